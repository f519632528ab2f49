// SPDX-License-Identifier: Apache-2.0
#include "jobs/service/job_requests.h"

#include <signal.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/split.h"
#include "base/standing.h"
#include "base/units.h"
#include "server/api/strict_json.h"
#include "server/peers/process_info.h"

namespace gpumux::jobs {
namespace {

using Json = RequestJson;
using base::Code;
using base::Result;

// Linux's, on every machine that gpumux runs on.
constexpr int kMaxSignal = 64;

// "failed,timed out": as `outcome` of a job has them.
Result<std::vector<Outcome>> parse_outcomes(const std::string& text) {
  std::vector<Outcome> outcomes;
  for (const std::string_view word : base::split(text, ',')) {
    const auto known =
        std::find_if(kOutcomes.begin(), kOutcomes.end(), [&](Outcome outcome) { return to_string(outcome) == word; });
    if (known == kOutcomes.end()) {
      std::string all;
      for (const Outcome outcome : kOutcomes) all += (all.empty() ? "" : ", ") + std::string(to_string(outcome));
      return tl::unexpected(invalid("outcome must be one or more of " + all + ", with commas between them"));
    }
    outcomes.push_back(*known);
  }
  return outcomes;
}

// 10, "10", "USR1", "SIGUSR1".
Result<int> parse_signal(const Json& value) {
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  if (const auto number = base::parse_integer(text, 1, kMaxSignal)) return static_cast<int>(*number);
  for (int number = 1; number < NSIG; ++number) {
    const char* const name = ::sigabbrev_np(number);
    if (name != nullptr && (text == name || text == std::string("SIG") + name)) return number;
  }
  return tl::unexpected(invalid("'" + text.substr(0, 32) +
                                "' is no signal: write a name such as SIGUSR1, or a number from 1 to " +
                                std::to_string(kMaxSignal)));
}

// An order, which stands alone; none: the field is not one.
Result<std::optional<JobQueue::Change>> parse_order(const std::string& name, const Json& value) {
  using Kind = JobQueue::Change::Kind;
  struct Order {
    std::string_view name;
    bool value;
    Kind kind;
  };
  static constexpr std::array<Order, 6> kOrders{{{"cancel", true, Kind::kCancel},
                                                 {"held", true, Kind::kHold},
                                                 {"held", false, Kind::kRelease},
                                                 {"suspended", true, Kind::kSuspend},
                                                 {"suspended", false, Kind::kResume},
                                                 {"run_again", true, Kind::kRunAgain}}};
  if (name == "signal") {
    const auto signal = parse_signal(value);
    if (!signal) return tl::unexpected(signal.error());
    return JobQueue::Change{.kind = Kind::kSignal, .signal = *signal};
  }
  bool is_known = false;
  for (const Order& order : kOrders) {
    if (order.name != name) continue;
    is_known = true;
    if (value == order.value) return JobQueue::Change{.kind = order.kind};
  }
  if (is_known) return tl::unexpected(invalid(name + " cannot be " + value.dump().substr(0, 32)));
  return std::nullopt;
}

}  // namespace

base::Error invalid(std::string what) { return {Code::kInvalid, 0, std::move(what)}; }
base::Error no_job(std::string_view which) {
  return {Code::kNotFound, 0,
          "there is no job " + std::string(which.substr(0, 64)) +
              " (`gpumux queue` and `gpumux history` show those that there are)"};
}
base::Error denied(const server::Peer& peer, const std::string& what) {
  return {Code::kDenied, 0,
          "user " + std::to_string(peer.uid) + " may not " + what +
              ": only its owner, root and members of the admin_group may"};
}
base::Error not_admin(const server::Peer& peer, const std::string& what) {
  return {Code::kDenied, 0,
          "user " + std::to_string(peer.uid) + " may not change " + what +
              ": only the daemon's owner, root and members of its admin_group may"};
}

Result<JobName> JobName::parse(std::string_view text) {
  const std::size_t mark = text.find('_');
  const auto id = base::parse_integer(text.substr(0, mark), 1, INT64_MAX);
  if (!id)
    return tl::unexpected(invalid("'" + std::string(text.substr(0, 64)) +
                                  "' is no job's id: it is a number such as 17, or 17_3 for element 3 of array 17"));
  JobName name{.job = JobId{*id}, .element = {}};
  if (mark != std::string_view::npos) {
    const auto element = base::parse_integer(text.substr(mark + 1), 0, UINT32_MAX);
    if (!element)
      return tl::unexpected(
          invalid("'" + std::string(text.substr(0, 64)) + "': after _ comes the number of an array's element"));
    name.element = static_cast<std::uint32_t>(*element);
  }
  return name;
}

Result<store::StoredJob> find_job(const store::JobStore& store, const JobName& name) {
  if (!name.element) return store.find(name.job);
  store::Query query;
  query.array = name.job;
  query.array_index = name.element;
  const auto page = store.page(query);
  if (!page) return tl::unexpected(page.error());
  if (page->jobs.empty()) return base::fail(Code::kNotFound, "there is no such element");
  return store.find(page->jobs.front().spec.id);
}

Result<std::uint32_t> find_uid(const std::string& name) {
  if (const auto uid = server::user_id(name)) return *uid;
  return base::fail(Code::kNotFound, "there is no user '" + name.substr(0, 64) + "'");
}

Result<bool> parse_flag(const std::string& body, const std::string& name, const std::string& hint) {
  const auto json = server::parse_strict_json<Json>(body, {.depth = kMaxRequestDepth});
  if (!json) return tl::unexpected(json.error());
  if (!json->is_object() || json->size() != 1)
    return tl::unexpected(invalid("the body must be a JSON object with one field (docs/api.md)"));
  if (const auto flag = json->find(name); flag != json->end() && flag->is_boolean()) return flag->get<bool>();
  return tl::unexpected(invalid("the body must be {\"" + name + "\": true} or {\"" + name + "\": false}" + hint));
}

// Either an order, {"cancel": true}, or what a job asks for: {"memory_bytes": ..., "gpus": 2}.
Result<JobQueue::Change> parse_change(const std::string& body) {
  const auto json = server::parse_strict_json<Json>(body, {.depth = kMaxRequestDepth});
  if (!json) return tl::unexpected(json.error());
  if (!json->is_object() || json->empty())
    return tl::unexpected(invalid("the body must be a JSON object with what is to change (docs/api.md)"));
  for (const auto& [name, value] : json->items()) {
    auto order = parse_order(name, value);
    if (!order) return tl::unexpected(order.error());
    if (*order && json->size() > 1) return tl::unexpected(invalid(name + " must be alone in the body"));
    if (*order) return std::move(**order);
  }
  auto wishes = parse_wishes(body);
  if (!wishes) return tl::unexpected(wishes.error());
  return JobQueue::Change{.kind = JobQueue::Change::Kind::kWishes, .wishes = std::move(*wishes)};
}

base::Status read_limits(const Json& json, UserLimits& limits) {
  for (const auto& [name, value] : json.items()) {
    settings::Limit<std::uint32_t>* const count = name == "running"  ? &limits.running
                                                  : name == "queued" ? &limits.queued
                                                  : name == "gpus"   ? &limits.gpus
                                                                     : nullptr;
    if (count != nullptr && value.is_null()) {
      *count = settings::kUnlimited;
    } else if (count != nullptr && value.is_number_unsigned() && value.get<std::uint64_t>() < UINT32_MAX) {
      *count = value.get<std::uint32_t>();
    } else if (name == "priority_cap" && value.is_null()) {
      limits.priority_cap = settings::kUnlimited;
    } else if (const auto priority = base::parse_priority(value.dump());
               name == "priority_cap" && value.is_number_integer() && priority) {
      limits.priority_cap = *priority;
    } else {
      return tl::unexpected(
          invalid("limits are running, queued and gpus (a number, or null for none), and priority_cap, and not '" +
                  name.substr(0, 64) + "' with this value"));
    }
  }
  return {};
}

Result<store::Query> parse_list(std::string_view query) {
  store::Query asked;
  asked.at_most = store::kMaxPageJobs;
  std::uint64_t array = 0;
  GPUMUX_TRY(server::read_number(query, "limit", 1, store::kMaxPageJobs, asked.at_most));
  GPUMUX_TRY(server::read_number(query, "beyond", 0, INT64_MAX, asked.beyond.value));
  GPUMUX_TRY(server::read_number(query, "beyond_ended", 0, INT64_MAX, asked.beyond_ended));
  GPUMUX_TRY(server::read_number(query, "array", 1, INT64_MAX, array));
  GPUMUX_TRY(server::read_number(query, "ended_since_unix_ns", 0, INT64_MAX, asked.ended_since));
  const std::string_view state = server::query_value(query, "state").value_or("unfinished");
  const std::string_view order = server::query_value(query, "order").value_or("oldest");
  if (order == "ended" && state != "done") return tl::unexpected(invalid("order=ended is for state=done only"));
  if (order == "ended" && asked.beyond != kNoJob && asked.beyond_ended == 0)
    return tl::unexpected(invalid("with order=ended, beyond needs beyond_ended: the last job's ended_unix_ns"));
  if (const auto outcome = server::query_value(query, "outcome")) {
    auto outcomes = parse_outcomes(server::decode_percent(*outcome));
    if (!outcomes) return tl::unexpected(outcomes.error());
    asked.outcomes = std::move(*outcomes);
  }
  if (state != "done" && (asked.ended_since != 0 || !asked.outcomes.empty()))
    return tl::unexpected(invalid("ended_since_unix_ns and outcome are for state=done only"));
  using Which = store::Query::Which;
  asked.which = state == "all" ? Which::kAll : state == "done" ? Which::kDone : Which::kUnfinished;
  using By = store::Query::Order;
  asked.order = order == "ended" ? By::kLatestEnd : order == "newest" ? By::kNewest : By::kOldest;
  if (array != 0) asked.array = JobId{array};
  return asked;
}

}  // namespace gpumux::jobs
