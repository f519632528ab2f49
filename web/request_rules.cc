// SPDX-License-Identifier: Apache-2.0
#include "web/request_rules.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "api_client/jobs.h"
#include "base/split.h"

namespace gpumux::web {
namespace {

using base::Code;

constexpr std::array<std::string_view, 3> kHosts{"127.0.0.1", "localhost", "[::1]"};

struct Readable {
  std::string_view path;
  std::vector<std::string_view> parameters;
};

// A job's environment is not in the list: it may have other secrets of the user's.
const std::vector<Readable>& readables() {
  static const std::vector<Readable> kReadables{
      {"/v1/daemon", {}},
      {"/v1/status", {}},
      {"/v1/queue", {}},
      {"/v1/jobs",
       {"state", "user", "array", "outcome", "ended_since_unix_ns", "order", "limit", "beyond", "beyond_ended"}},
      {"/v1/report", {"by", "since_unix_ns", "until_unix_ns", "user", "limit"}},
      {"/v1/trace", {"since", "limit"}}};
  return kReadables;
}

// Characters that a target has. A fragment and a second question mark are not among them.
bool is_plain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    const bool is_word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    return is_word || std::string_view("-._~%,/=&").find(c) != std::string_view::npos;
  });
}

base::Status not_here() { return base::fail(Code::kNotFound, "this page has no such address"); }

base::Status check_trace_limit(std::string_view value) {
  std::uint64_t limit = 0;
  const auto read = std::from_chars(value.data(), value.data() + value.size(), limit);
  if (read.ec == std::errc() && read.ptr == value.data() + value.size() && limit <= kMostTraceEvents) return {};
  return base::fail(Code::kInvalid, "limit: name at most " + std::to_string(kMostTraceEvents) + " events");
}

base::Status check_parameters(const Readable& readable, std::string_view query) {
  bool has_limit = false;
  while (!query.empty()) {
    const std::string_view one = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), one.size() + 1));
    const std::string_view name = one.substr(0, one.find('='));
    const auto& known = readable.parameters;
    if (std::find(known.begin(), known.end(), name) == known.end()) return not_here();
    if (name != "limit" || readable.path != "/v1/trace") continue;
    GPUMUX_TRY(check_trace_limit(one.substr(std::min(one.size(), name.size() + 1))));
    has_limit = true;
  }
  // Without a limit the daemon sends all that it remembers.
  if (readable.path == "/v1/trace" && !has_limit) return check_trace_limit("");
  return {};
}

}  // namespace

bool is_own_host(std::string_view host, std::uint16_t port) {
  const std::string end = ":" + std::to_string(port);
  return std::any_of(kHosts.begin(), kHosts.end(), [&](std::string_view own) {
    return host.size() == own.size() + end.size() && host.substr(0, own.size()) == own &&
           host.substr(own.size()) == end;
  });
}

bool is_own_origin(std::string_view origin, std::string_view host) {
  constexpr std::string_view kScheme = "http://";
  return origin.size() == kScheme.size() + host.size() && origin.substr(0, kScheme.size()) == kScheme &&
         origin.substr(kScheme.size()) == host;
}

bool is_own_site(std::string_view fetch_site) {
  return fetch_site.empty() || fetch_site == "same-origin" || fetch_site == "none";
}

std::vector<std::string_view> cookies_named(std::string_view header, std::string_view name) {
  std::vector<std::string_view> values;
  for (std::string_view one : base::split(header, ';')) {
    one.remove_prefix(std::min(one.size(), one.find_first_not_of(' ')));
    if (one.size() > name.size() && one.substr(0, name.size()) == name && one[name.size()] == '=')
      values.push_back(one.substr(name.size() + 1));
  }
  return values;
}

base::Status check_read(std::string_view target) {
  const std::size_t mark = target.find('?');
  const std::string_view path = target.substr(0, mark);
  const std::string_view query = mark == std::string_view::npos ? std::string_view() : target.substr(mark + 1);
  if (!is_plain(path) || !is_plain(query)) return not_here();
  for (const Readable& readable : readables()) {
    if (path == readable.path) return check_parameters(readable, query);
  }
  if (mark != std::string_view::npos) return not_here();
  return job_of(path, "/v1/jobs/").map([](const std::string&) {});
}

base::Result<std::string> job_of(std::string_view target, std::string_view folder) {
  if (target.substr(0, folder.size()) != folder) return tl::unexpected(not_here().error());
  std::string job(target.substr(folder.size()));
  if (!api_client::check_job_id(job)) return tl::unexpected(not_here().error());
  return job;
}

base::Result<std::string> job_change(std::string_view body) {
  const auto change = nlohmann::json::parse(body, nullptr, false);
  if (change.is_object() && change.size() == 1) {
    const std::string& name = change.begin().key();
    const auto& value = change.begin().value();
    const bool is_known = (name == "cancel" && value == true) || (name == "held" && value.is_boolean()) ||
                          (name == "suspended" && value.is_boolean()) ||
                          (name == "priority" && value.is_number_integer());
    if (is_known) return change.dump();
  }
  return base::fail(Code::kInvalid, "the page changes a job by one of cancel, held, suspended and priority");
}

}  // namespace gpumux::web
