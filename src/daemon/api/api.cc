// SPDX-License-Identifier: Apache-2.0
#include "daemon/api/api.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/standing.h"
#include "base/units.h"
#include "daemon/api/openapi.h"
#include "daemon/api/status_parts.h"
#include "daemon/config/settings_patch.h"
#include "jobs/service/job_routes.h"
#include "server/api/routes.h"
#include "server/loop/log.h"
#include "server/peers/process_info.h"
#include "settings/settings.h"

namespace gpumux::daemon {
namespace {

using Json = nlohmann::ordered_json;

// More accounts than use one machine. Beyond it the daemon forgets all their rates, and so stays bounded.
constexpr std::size_t kMaxLimitedUsers = 4096;

// The most that a client may take an old status for.
constexpr base::Duration kOldestStatus = std::chrono::minutes(1);

// More tenants than this a client asks for in pages.
constexpr std::uint64_t kMostTenants = 1000;

base::Error no_tenant(std::string_view which) {
  return {base::Code::kNotFound, 0,
          "there is no tenant '" + std::string(which.substr(0, 64)) +
              "': use a number that `gpumux status --json` shows as a seat's tenant"};
}

tl::unexpected<base::Error> no_gpu(std::string_view which) {
  return base::fail(base::Code::kNotFound, "there is no GPU '" + std::string(which.substr(0, 64)) +
                                               "': use an index or UUID that `gpumux status` shows");
}

Json caps_json(const Standings::Caps& caps) {
  using By = Standings::Caps::By;
  const auto word = [](By by) { return by == By::kClaims ? "claims" : by == By::kJob ? "job" : "admin_group"; };
  Json json = Json::object();
  if (caps.priority) {
    json["priority"] = caps.priority->most;
    json["priority_by"] = word(caps.priority->by);
  }
  if (caps.share) {
    json["share"] = base::format_share(caps.share->most);
    json["share_by"] = word(caps.share->by);
  }
  return json;
}

server::ApiAnswer trace(std::string_view query, std::optional<uid_t> names_of) {
  server::ApiTrace answer{.follow = server::query_value(query, "follow") == "1", .names_of = names_of};
  for (const auto& [name, target] : {std::pair{"since", &answer.since}, std::pair{"limit", &answer.limit}}) {
    if (const auto read = server::read_number(query, name, 0, UINT64_MAX, *target); !read)
      return server::error_response(read.error());
  }
  return answer;
}

}  // namespace

Api::Api(Leases& leases, const Trials& trials, TenantParts& tenants, const server::AccessRules& access, DaemonInfo info,
         const LoopStatistics& loop, const TraceCounters& counters, jobs::JobRoutes& jobs)
    : leases_(leases),
      trials_(trials),
      tenants_(tenants),
      access_(access),
      info_(std::move(info)),
      loop_(loop),
      counters_(counters),
      jobs_(jobs) {}

server::ApiAnswer Api::answer(const server::ApiRequest& request) {
  const std::string_view target = request.target;
  const std::size_t question = target.find('?');
  const std::string_view path = target.substr(0, question);
  const std::string_view query = question == std::string_view::npos ? "" : target.substr(question + 1);
  if (server::is_logged(server::LogLevel::kDebug)) {
    server::log_debug(
        "request",
        {{"method", request.method}, {"target", request.target}, {"uid", request.peer.uid}, {"pid", request.peer.pid}});
  }
  const auto found = server::find_route(request.method, path);
  if (const auto* error = std::get_if<server::ApiResponse>(&found)) return *error;
  const auto& match = std::get<server::RouteMatch>(found);
  if (const auto checked = server::check_query(*match.route, query); !checked)
    return server::error_response(checked.error());
  switch (match.route->address) {
    case server::Address::kApi: return server::ApiResponse{200, api_text()};
    case server::Address::kDescription: return server::ApiResponse{200, openapi_text()};
    case server::Address::kDaemon: return daemon(request.peer, query);
    case server::Address::kStatus: return status(request.peer, query);
    case server::Address::kGpus:
      return status_part(request.peer, {}, [](const Json& all) {
        return server::json_response({{"gpus", all["gpus"]}});
      });
    case server::Address::kGpu: return gpu(request.peer, match.variable);
    case server::Address::kChangeGpu: return change(request, match.variable);
    case server::Address::kTenants: return tenants(request.peer, query);
    case server::Address::kTenant: return tenant(request.peer, match.variable);
    case server::Address::kChangeTenant: return change_tenant(request, match.variable);
    case server::Address::kTrace: return trace(query, names_of(request.peer));
    case server::Address::kMetrics: return metrics(request, query);
    case server::Address::kHold: return hold(request);
    default: return jobs_.answer(request, match, query);
  }
}

// A program's name may be its job's. So where others' jobs have no names (privacy), others' programs have none.
std::optional<uid_t> Api::names_of(const server::Peer& peer) const {
  if (jobs_.privacy() == settings::Privacy::kOpen || access_.may_change(peer)) return std::nullopt;
  return peer.uid;
}

server::ApiAnswer Api::daemon(const server::Peer& peer, std::string_view query) const {
  Json unknown = Json::array();
  for (const auto& [name, entry] : tenants_.unknown_entries.by_name()) {
    const bool has_names = !names_of(peer);
    unknown.push_back({{"name", name},
                       {"count", entry.count},
                       {"programs", has_names ? entry.programs : std::vector<std::string>()}});
  }
  Json json{
      {"version", info_.version},
      {"pid", info_.pid},
      {"uid", info_.uid},
      {"owner", ""},
      {"private", info_.is_private},
      {"started_unix_ns", info_.started_unix_ns},
      {"config_file", info_.config_file},
      {"runtime_dir", info_.runtime_dir},
      {"driver",
       {{"version", info_.driver.cuda_version},
        {"nvml_version", info_.driver.nvml_version},
        {"simulated", info_.driver.simulated}}},
      {"tenants", tenants_.table.sessions().size()},
      {"timers", {{"fired", loop_.fired}, {"late_over_1ms", loop_.late_over_1ms}, {"latest_ns", loop_.latest.count()}}},
      {"unknown_entries", std::move(unknown)},
      {"caps", caps_json(tenants_.standings.caps_of(
                   peer, server::decode_percent(server::query_value(query, "run").value_or(""))))}};
  return server::ApiWork([json = std::move(json), uid = info_.uid]() mutable {
    json["owner"] = server::user_name(uid);
    return server::json_response(json);
  });
}

std::optional<server::ApiResponse> Api::refuse_status(const server::Peer& peer) {
  if (access_.may_change(peer)) return std::nullopt;
  if (status_limits_.size() > kMaxLimitedUsers) status_limits_.clear();
  RateLimit& limit = status_limits_.try_emplace(peer.account, kStatusBurst, kStatusPerSecond).first->second;
  if (limit.take(leases_.now())) return std::nullopt;
  return server::error_response(
      429, {base::Code::kExhausted, 0,
            peer.account.text() + " asks for the status more than " + std::to_string(kStatusPerSecond) +
                " times a second: ask less often, or follow /v1/trace"});
}

server::ApiAnswer Api::status(const server::Peer& peer, std::string_view query) {
  if (auto refused = refuse_status(peer)) return std::move(*refused);
  const std::optional<uid_t> names = names_of(peer);
  if (server::query_value(query, "max_age_ns")) {
    std::uint64_t age = 0;
    const auto read =
        server::read_number(query, "max_age_ns", 0, static_cast<std::uint64_t>(kOldestStatus.count()), age);
    if (!read) return server::error_response(read.error());
    const base::TimePoint since = leases_.now() - base::Duration(static_cast<std::int64_t>(age));
    if (auto recent = recent_->find(names, since)) return server::ApiResponse{200, std::move(*recent)};
  }
  // Shared, because a std::function must be copyable.
  auto snapshot = std::make_shared<StatusSnapshot>(take_status(leases_, trials_, tenants_));
  if (names) snapshot->hide_names_but_of(*names);
  return server::ApiWork([snapshot, names, renderer = renderer_, recent = recent_] {
    std::string text = server::text_of(renderer->render(*snapshot));
    recent->keep(names, snapshot->now, text);
    return server::ApiResponse{200, std::move(text)};
  });
}

server::ApiAnswer Api::status_part(const server::Peer& peer, std::optional<base::GpuIndex> only,
                                   std::function<server::ApiResponse(const Json&)> part) {
  if (auto refused = refuse_status(peer)) return std::move(*refused);
  auto snapshot = std::make_shared<StatusSnapshot>(take_status(leases_, trials_, tenants_));
  if (only) std::erase_if(snapshot->gpus, [&](const GpuStatus& gpu) { return gpu.index != only->value; });
  if (const auto user = names_of(peer)) snapshot->hide_names_but_of(*user);
  return server::ApiWork(
      [snapshot, renderer = renderer_, part = std::move(part)] { return part(renderer->render(*snapshot)); });
}

server::ApiAnswer Api::gpu(const server::Peer& peer, std::string_view which) {
  const auto selected = which == "all" ? base::Result<std::vector<base::GpuIndex>>(no_gpu(which)) : select(which);
  if (!selected) return server::error_response(selected.error());
  return status_part(peer, selected->front(), [](const Json& all) { return server::json_response(all["gpus"].at(0)); });
}

server::ApiAnswer Api::tenants(const server::Peer& peer, std::string_view query) {
  std::uint64_t limit = kMostTenants;
  std::uint64_t beyond = 0;
  if (const auto read = server::read_number(query, "limit", 1, kMostTenants, limit); !read)
    return server::error_response(read.error());
  if (const auto read = server::read_number(query, "beyond", 0, UINT64_MAX, beyond); !read)
    return server::error_response(read.error());
  return status_part(
      peer, {}, [beyond, limit](const Json& all) { return server::json_response(tenants_part(all, beyond, limit)); });
}

server::ApiAnswer Api::tenant(const server::Peer& peer, const std::string& which) {
  return status_part(peer, {}, [which](const Json& all) {
    const auto number = base::parse_integer(which, 0, UINT64_MAX);
    const auto part = number ? tenant_part(all, *number) : std::nullopt;
    return part ? server::json_response(*part) : server::error_response(no_tenant(which));
  });
}

// Metrics say which user's programs have which GPU, so not every user may read them.
server::ApiAnswer Api::metrics(const server::ApiRequest& request, std::string_view query) {
  if (!access_.may_read_metrics(request.peer)) {
    return server::error_response(
        {base::Code::kDenied, 0,
         "user " + std::to_string(request.peer.uid) +
             " may not read metrics: only the daemon's owner, root and members of its admin_group "
             "may"});
  }
  const auto names = server::query_value(query, "names") == "0" ? exporter::Names::kHidden : exporter::Names::kShown;
  const MetricsFormat format = metrics_format(request.accept);
  return server::ApiWork([work = metrics(names, format), format] {
    return server::ApiResponse{200, work(), content_type(format)};
  });
}

Api::MetricsWork Api::metrics(exporter::Names names, MetricsFormat format) {
  auto snapshot = std::make_shared<MetricsSnapshot>(MetricsSnapshot{.status = take_status(leases_, trials_, tenants_),
                                                                    .info = info_,
                                                                    .loop = loop_,
                                                                    .counters = counters_.counts(),
                                                                    .tenants = tenants_.table.sessions().size()});
  for (const auto& [name, entry] : tenants_.unknown_entries.by_name()) snapshot->unknown_calls += entry.count;
  snapshot->queue = jobs_.figures();
  if (names == exporter::Names::kShown) {
    snapshot->ledger = tenants_.books.ledger();
  } else {
    snapshot->queue.users.clear();
  }
  return [snapshot, renderer = renderer_, format] { return render_metrics(*snapshot, *renderer, format); };
}

base::Result<std::vector<base::GpuIndex>> Api::select(std::string_view which) const {
  std::vector<base::GpuIndex> selected;
  for (std::size_t i = 0; i < leases_.gpus().size(); ++i) {
    const auto index = static_cast<std::uint32_t>(i);
    if (which == "all" || which == std::to_string(index) || which == leases_.gpus()[i].info.uuid_text) {
      selected.push_back({index});
    }
  }
  if (selected.empty()) return no_gpu(which);
  return selected;
}

server::ApiAnswer Api::hold(const server::ApiRequest& request) {
  // Only a private daemon ends by itself.
  if (info_.is_private) {
    if (const auto held = holds_.add(request.peer.pid); !held) return server::error_response(held.error());
  }
  return server::ApiResponse{200, "{}\n"};
}

server::ApiAnswer Api::change(const server::ApiRequest& request, std::string_view which) {
  if (!access_.may_change(request.peer)) {
    server::log_warning("a change was denied",
                        {{"pid", request.peer.pid}, {"uid", request.peer.uid}, {"target", request.target}});
    return server::error_response(
        {base::Code::kDenied, 0,
         "user " + std::to_string(request.peer.uid) +
             " may not change settings: only the daemon's owner, root and members of its admin_group may"});
  }
  const auto selected = select(which);
  if (!selected) return server::error_response(selected.error());
  auto patch = parse_settings_patch(request.body);
  if (!patch) return server::error_response(patch.error());

  std::vector<std::pair<std::uint32_t, Gpu>> changed;
  std::vector<std::string> sections;
  for (const base::GpuIndex gpu : *selected) {
    GpuSettings settings = leases_.gpus()[gpu.value].settings;
    assign_all(settings, patch->changes);
    leases_.set_settings(gpu, settings);
    changed.emplace_back(gpu.value, leases_.gpus()[gpu.value]);
    sections.push_back(leases_.gpus()[gpu.value].info.uuid_text);
  }
  server::log_info("settings changed",
                   {{"gpu", which}, {"uid", request.peer.uid}, {"pid", request.peer.pid}, {"change", request.body}});
  return server::ApiWork([changed = std::move(changed), sections = std::move(sections), patch = std::move(*patch),
                          file = info_.config_file] {
    for (const std::string& section : sections) {
      if (!patch.save || patch.changes.empty()) break;
      if (const auto saved = save_settings(file, section, patch.changes); !saved) {
        base::Error error = saved.error();
        error.what = "the settings are in force but could not be saved: " + error.what;
        return server::error_response(error);
      }
    }
    return server::json_response(render_settings(changed));
  });
}

server::ApiAnswer Api::change_tenant(const server::ApiRequest& request, std::string_view which) {
  const auto number = base::parse_integer(which, 0, UINT64_MAX);
  Session* const session = number ? tenants_.table.find({*number}) : nullptr;
  if (session == nullptr || !session->welcomed) {
    return server::error_response(no_tenant(which));
  }
  const auto wanted = parse_standing_patch(request.body, session->standing, session->first_standing);
  if (!wanted) return server::error_response(wanted.error());
  if (const auto changed = tenants_.standings.change(*session, *wanted, request.peer); !changed) {
    server::log_warning("a change was denied",
                        {{"pid", request.peer.pid}, {"uid", request.peer.uid}, {"target", request.target}});
    return server::error_response(changed.error());
  }
  return server::json_response({{"tenant", session->id.value},
                                {"pid", session->peer.pid},
                                {"program", session->label->program},
                                {"priority", session->standing.priority},
                                {"share", base::format_share(session->standing.share)},
                                {"max_share", base::format_max_share(session->standing.max_share)}});
}

}  // namespace gpumux::daemon
