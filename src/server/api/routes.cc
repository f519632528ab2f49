// SPDX-License-Identifier: Apache-2.0
#include "server/api/routes.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace gpumux::server {
namespace {

using Type = Parameter::Type;

Parameter word(std::string_view name, std::string_view meaning, std::vector<std::string_view> words) {
  return {name, meaning, Type::kWord, std::move(words)};
}
Parameter number(std::string_view name, std::string_view meaning) { return {name, meaning, Type::kNumber, {}}; }
Parameter text(std::string_view name, std::string_view meaning) { return {name, meaning, Type::kText, {}}; }

std::vector<Route> make_routes() {
  return {
      {Address::kMetrics,
       "GET",
       "/metrics",
       "Metrics for Prometheus, or in OpenMetrics if Accept asks for that",
       "",
       {},
       {word("names", "0: no users, programs, jobs and pods; 1 is the default", {"0", "1"})}},
      {Address::kApi, "GET", "/v1", "The version, and every address", "Api"},
      {Address::kDaemon,
       "GET",
       "/v1/daemon",
       "What the daemon is",
       "Daemon",
       {},
       {text("run", "Caps of programs of this run (GPUMUX_RUN_ID) of the caller's")}},
      {Address::kGpus, "GET", "/v1/gpus", "The GPUs, as in /v1/status", "Gpus"},
      {Address::kGpu, "GET", "/v1/gpus/{gpu}", "One GPU, by index or UUID", "Gpu"},
      {Address::kChangeGpu, "PATCH", "/v1/gpus/{gpu}", "Change settings of one GPU, or of all", "ChangedGpus",
       "GpuSettings"},
      {Address::kHold, "POST", "/v1/hold", "Count the calling process as a user of the daemon until it ends",
       "Nothing"},
      {Address::kJobs,
       "GET",
       "/v1/jobs",
       "One page of jobs",
       "JobPage",
       {},
       {word("state", "Which jobs; unfinished is the default", {"unfinished", "done", "all"}),
        text("user", "Only jobs of this user, by name or uid"), number("array", "Only elements of this array"),
        text("outcome", "Only jobs that have ended so, with commas between several; with state=done"),
        number("ended_since_unix_ns", "Only jobs that have ended since then; with state=done"),
        word("order", "By id, or the latest end first; oldest is the default", {"oldest", "newest", "ended"}),
        number("limit", "The most jobs of the page, from 1 to 1000, which is the default"),
        number("beyond", "The id of the last job of the page before"),
        number("beyond_ended", "Its ended_unix_ns; with order=ended")}},
      {Address::kSubmit, "POST", "/v1/jobs", "Submit a job, or an array of jobs", "Submitted", "Submission"},
      {Address::kJob,
       "GET",
       "/v1/jobs/{job}",
       "One job, by id or as ARRAY_ELEMENT",
       "Job",
       {},
       {word("environment", "1: with its environment; 0 is the default", {"0", "1"})}},
      {Address::kChangeJobs, "PATCH", "/v1/jobs/{job}", "Change jobs: ids, user:NAME, or all", "ChangedJobs",
       "JobPatch"},
      {Address::kWaitForJob,
       "GET",
       "/v1/jobs/{job}/wait",
       "The job, when it is done or the time is over",
       "Job",
       {},
       {word("until", "What to wait for; done is the default", {"done", "started"}),
        number("timeout_ns", "How long; 30 s is the default and the most")}},
      {Address::kDescription, "GET", "/v1/openapi.json", "This description", "OpenApi"},
      {Address::kQueue, "GET", "/v1/queue", "The job queue as a whole", "Queue"},
      {Address::kChangeQueue, "PATCH", "/v1/queue", "Pause the queue, or let it go on", "Queue", "QueuePatch"},
      {Address::kChangeQueueGpu, "PATCH", "/v1/queue/gpus/{gpu}", "Drain a GPU, or all, or let them take jobs again",
       "Queue", "QueueGpuPatch"},
      {Address::kChangeQueueUser, "PATCH", "/v1/queue/users/{user}", "Set limits of a user, by name or uid", "Queue",
       "QueueUserPatch"},
      {Address::kReport,
       "GET",
       "/v1/report",
       "What programs have had of GPUs",
       "Report",
       {},
       {word("by", "What each row is the sum of; user is the default", {"user", "job", "pod", "program"}),
        number("since_unix_ns", "From then; the beginning is the default"),
        number("until_unix_ns", "Until then; now is the default"), text("user", "Only this user's, by name or uid"),
        text("job", "Only this job's, by id or as ARRAY_ELEMENT; by the id of an array all of its elements'"),
        number("limit", "The most rows, from 1 to 10000, which is the default; the field rest sums the others")}},
      {Address::kStatus,
       "GET",
       "/v1/status",
       "The GPUs with their seats, and host memory",
       "Status",
       {},
       {number("max_age_ns", "The answer may be so old, at most a minute; 0 is the default")}},
      {Address::kTenants,
       "GET",
       "/v1/tenants",
       "The tenants that have seats, each with its seats",
       "Tenants",
       {},
       {number("limit", "The most tenants, from 1 to 1000, which is the default"),
        number("beyond", "The number of the last tenant of the page before")}},
      {Address::kTenant, "GET", "/v1/tenants/{tenant}", "One tenant, by its number", "Tenant"},
      {Address::kChangeTenant, "PATCH", "/v1/tenants/{tenant}", "Change a tenant's priority, share and cap",
       "ChangedTenant", "TenantPatch"},
      {Address::kTrace,
       "GET",
       "/v1/trace",
       "The lease trace, one JSON object a line",
       "TraceEvent",
       {},
       {number("since", "The first sequence number that is wanted"),
        word("follow", "1: go on with each event as it happens; 0 is the default", {"0", "1"}),
        number("limit", "Begin with this many of the newest events")}},
  };
}

// The part of `path` that stands for the variable of `pattern`; empty: it has none; none: the path is another.
std::optional<std::string_view> variable_in(std::string_view pattern, std::string_view path) {
  const std::size_t open = pattern.find('{');
  if (open == std::string_view::npos) return pattern == path ? std::optional<std::string_view>("") : std::nullopt;
  const std::string_view after = pattern.substr(pattern.find('}') + 1);
  if (path.size() <= open + after.size() || path.substr(0, open) != pattern.substr(0, open) || !path.ends_with(after))
    return std::nullopt;
  const std::string_view variable = path.substr(open, path.size() - open - after.size());
  return variable.find('/') == std::string_view::npos ? std::optional(variable) : std::nullopt;
}

}  // namespace

std::span<const Route> routes() {
  static const std::vector<Route> kRoutes = make_routes();
  return kRoutes;
}

std::string methods_of(std::string_view path) {
  std::string methods;
  for (const Route& route : routes()) {
    if (route.path != path) continue;
    methods += (methods.empty() ? "" : ", ") + std::string(route.method);
    if (route.method == "GET") methods += ", HEAD";
  }
  return methods;
}

std::variant<RouteMatch, ApiResponse> find_route(std::string_view method, std::string_view path) {
  const std::string_view wanted = method == "HEAD" ? "GET" : method;
  const Route* other = nullptr;
  for (const Route& route : routes()) {
    const auto variable = variable_in(route.path, path);
    if (!variable) continue;
    std::string decoded = decode_percent(*variable);
    // A name with a NUL would be looked up as what is before it.
    if (decoded.find('\0') != std::string::npos) continue;
    if (route.method == wanted) return RouteMatch{&route, std::move(decoded)};
    other = &route;
  }
  if (other != nullptr) return wrong_method(methods_of(other->path));
  return error_response({base::Code::kNotFound, 0, "there is nothing at this address: GET /v1 lists the addresses"});
}

base::Status check_query(const Route& route, std::string_view query) {
  std::vector<std::string_view> names;
  for (const Parameter& parameter : route.parameters) names.push_back(parameter.name);
  GPUMUX_TRY(check_query(query, names));
  for (const Parameter& parameter : route.parameters) {
    const auto value = query_value(query, parameter.name);
    if (value && decode_percent(*value).find('\0') != std::string::npos)
      return base::fail(base::Code::kInvalid, std::string(parameter.name) + " has a NUL");
    const auto& words = parameter.words;
    if (!value || words.empty() || std::find(words.begin(), words.end(), *value) != words.end()) continue;
    std::string allowed;
    for (const std::string_view word : words)
      allowed += (allowed.empty() ? "" : word == words.back() ? " or " : ", ") + std::string(word);
    return base::fail(base::Code::kInvalid, std::string(parameter.name) + " must be " + allowed);
  }
  return {};
}

}  // namespace gpumux::server
