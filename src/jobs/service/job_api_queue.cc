// SPDX-License-Identifier: Apache-2.0
// The API's addresses of the queue itself: its settings, its GPUs and users, and the changes of them.
#include <set>
#include <utility>

#include "jobs/service/job_api.h"
#include "jobs/service/job_requests.h"
#include "jobs/service/json_object.h"
#include "server/api/strict_json.h"
#include "server/loop/log.h"
#include "settings/settings.h"

namespace gpumux::jobs {
namespace {

using Json = RequestJson;
using base::Code;

Json limits_json(const UserLimits& limits) {
  Json json = Json::object();
  const auto add = [&](const char* name, const auto& limit) {
    if (!limit.is_unlimited()) json[name] = limit.value();
  };
  add("running", limits.running);
  add("queued", limits.queued);
  add("gpus", limits.gpus);
  add("priority_cap", limits.priority_cap);
  return json;
}

template <class Word>
std::string word_of(std::string_view setting, Word word) {
  return settings::format_field(settings::find(settings::kQueueSettings, setting)->type, word);
}

Json settings_json(const settings::QueueSettings& config) {
  const QueueSettings in_core = core_settings(config);
  return {{"order", word_of("order", config.order)},
          {"half_life_ns", config.half_life.count()},
          {"oversubscribe", static_cast<double>(config.oversubscribe) / 1000},
          {"default_memory_bytes", in_core.default_memory},
          {"max_job_time_ns", in_core.max_time.count()},
          {"preempt", config.preempt},
          {"privacy", word_of("privacy", config.privacy)},
          {"cancel_grace_ns", config.cancel_grace.count()},
          {"suspend_patience_ns", config.suspend_patience.count()},
          {"history_ns", config.history.count()},
          {"max_bytes", config.max_bytes.is_unlimited() ? 0 : config.max_bytes.value()},  // 0: unlimited
          {"ledger_hours_ns", config.ledger_hours.count()},
          {"ledger_history_ns", config.ledger_history.count()},
          {"max_history", config.max_history.is_unlimited() ? 0 : config.max_history.value()},
          {"limits", limits_json(in_core.limits)}};
}

std::string_view state_word(JobQueue::State state) {
  switch (state) {
    case JobQueue::State::kFailed: return "failed";
    case JobQueue::State::kOff: return "off";
    case JobQueue::State::kOpen: return "open";
  }
  return "failed";
}

}  // namespace

server::ApiAnswer JobApi::queue(const server::Peer& peer) {
  Json json{{"settings", settings_json(queue_.config())},
            {"paused", queue_.is_paused()},
            {"state", state_word(queue_.state())},
            {"unavailable", queue_.unavailable()}};
  const auto in = [&](JobState state) { return queue_.core().counts()[static_cast<std::size_t>(state)]; };
  Json gpus = Json::array();
  std::vector<UserUsage> users;
  if (queue_.unavailable().empty()) {
    for (std::size_t i = 0; i < queue_.gpus().size(); ++i) {
      const auto room = queue_.core().room(base::GpuIndex{static_cast<std::uint32_t>(i)});
      if (!room) continue;
      Json jobs = Json::array();
      for (const JobId job : room->jobs) {
        const JobQueue::Owner* const owner = queue_.find(job);
        const Sight seen = owner != nullptr ? sight(peer, owner->uid) : Sight::kNothing;
        if (seen == Sight::kNothing) continue;
        jobs.push_back({{"id", job.value}, {"uid", owner->uid}});
        if (seen != Sight::kLimited) jobs.back()["name"] = text_json(owner->name);
      }
      gpus.push_back({{"index", i},
                      {"capacity_bytes", room->capacity},
                      {"promised_bytes", room->promised},
                      {"outside_jobs_bytes", room->foreign},
                      {"drained", room->drained},
                      {"sick", room->sick},
                      {"present", room->present},
                      {"jobs", std::move(jobs)}});
    }
    users = queue_.core().usage(queue_.now());
    const Reservation& kept = queue_.core().reservation();
    const JobQueue::Owner* owner = queue_.find(kept.job);
    if (owner != nullptr && sight(peer, owner->uid) != Sight::kNothing) {
      Json reserved{{"job", kept.job.value}, {"gpus", Json::array()}};
      for (const base::GpuIndex gpu : kept.gpus) reserved["gpus"].push_back(gpu.value);
      if (kept.start != base::TimePoint::max()) reserved["starts_in_ns"] = (kept.start - queue_.now()).count();
      json["reserved"] = std::move(reserved);
    }
  }
  json["jobs"] = {{"queued", in(JobState::kQueued)},
                  {"held", in(JobState::kHeld)},
                  {"running", in(JobState::kStarting) + in(JobState::kRunning) + in(JobState::kSuspending) +
                                  in(JobState::kResuming) + in(JobState::kEnding)},
                  {"suspended", in(JobState::kSuspended)}};
  json["gpus"] = std::move(gpus);
  const bool sees_all = access_.may_change(peer) || queue_.config().privacy != settings::Privacy::kOwn;
  return server::ApiWork([json = std::move(json), users = std::move(users), limits = queue_.limits(), names = names_,
                          sees_all, uid = peer.uid,
                          store = queue_.unavailable().empty() ? queue_.store() : nullptr]() mutable {
    // A submission is refused for the same reason (prepare).
    if (const auto room = store != nullptr ? store->room_for(0) : base::Status(); !room) {
      json["state"] = "no_room";
      json["unavailable"] = room.error().message();
    }
    Json list = Json::array();
    std::set<std::uint32_t> shown;
    const auto add = [&](std::uint32_t user, const UserUsage& usage) {
      if (!shown.insert(user).second || (!sees_all && user != uid)) return;
      Json entry{{"uid", user},
                 {"user", names->name(user)},
                 {"running", usage.running},
                 {"queued", usage.queued},
                 {"gpus", usage.gpus},
                 {"used_gpu_ns", usage.gpu_microseconds * 1000}};
      if (const auto own = limits.find(user); own != limits.end()) entry["limits"] = limits_json(own->second);
      list.push_back(std::move(entry));
    };
    for (const UserUsage& usage : users) add(usage.uid, usage);
    for (const auto& [user, own] : limits) add(user, {});
    json["users"] = std::move(list);
    for (Json& gpu : json["gpus"]) {
      for (Json& job : gpu["jobs"]) job["user"] = names->name(job["uid"].get<uid_t>());
    }
    return server::json_response(json);
  });
}

QueueFigures JobApi::figures() const {
  QueueFigures figures;
  figures.is_available = queue_.unavailable().empty();
  figures.is_paused = queue_.is_paused();
  if (!figures.is_available) return figures;
  const JobCounts& counts = queue_.core().counts();
  for (std::size_t state = 0; state < static_cast<std::size_t>(JobState::kDone); ++state)
    figures.jobs.emplace_back(to_string(static_cast<JobState>(state)), counts[state]);
  for (const auto& [outcome, count] : queue_.outcomes()) figures.ended.emplace_back(to_string(outcome), count);
  figures.waits = queue_.waits();
  for (const UserUsage& usage : queue_.core().usage(queue_.now())) {
    if (usage.running + usage.queued > 0) figures.users.push_back({usage.uid, usage.running, usage.queued, usage.gpus});
  }
  return figures;
}

server::ApiAnswer JobApi::change_queue(const server::ApiRequest& request) {
  if (!access_.may_change(request.peer)) return server::error_response(not_admin(request.peer));
  const auto is_paused = parse_flag(request.body, "paused", "; settings are in the configuration, [queue]");
  if (!is_paused) return server::error_response(is_paused.error());
  return server::ApiLater([this, peer = request.peer, is_paused = *is_paused](server::ApiReply reply) {
    server::log_info(is_paused ? "the queue is paused" : "the queue goes on", {{"uid", peer.uid}, {"pid", peer.pid}});
    queue_.set_paused(is_paused, answer_queue(peer, reply));
  });
}

server::ApiAnswer JobApi::change_gpus(const server::ApiRequest& request, std::string_view which) {
  if (!access_.may_change(request.peer)) return server::error_response(not_admin(request.peer));
  const auto is_drained = parse_flag(request.body, "drained");
  if (!is_drained) return server::error_response(is_drained.error());
  std::vector<base::GpuIndex> gpus;
  GpuSet there;
  for (std::uint32_t i = 0; i < queue_.gpus().size(); ++i) {
    there.insert({i});
    if (which == "all" || which == std::to_string(i) || which == queue_.gpus()[i].uuid) gpus.push_back({i});
  }
  if (gpus.empty())
    return server::error_response({Code::kNotFound, 0,
                                   "there is no GPU '" + std::string(which.substr(0, 64)) + "': this machine has " +
                                       (there.empty() ? "no GPU" : gpus_text(there)) +
                                       "; write a number, a UUID, or all"});
  return server::ApiLater([this, peer = request.peer, gpus, is_drained = *is_drained](server::ApiReply reply) {
    server::log_info(is_drained ? "GPUs are drained" : "GPUs take jobs again",
                     {{"gpus", gpus.size()}, {"uid", peer.uid}, {"pid", peer.pid}});
    // They are stored in order: the last one's word is all's.
    auto left = std::make_shared<std::size_t>(gpus.size());
    auto failed = std::make_shared<base::Status>();
    for (const base::GpuIndex gpu : gpus) {
      queue_.set_drained(gpu, is_drained,
                         [left, failed, answer = answer_queue(peer, reply)](const base::Status& status) {
                           if (!status) *failed = status;
                           if (--*left == 0) answer(*failed);
                         });
    }
  });
}

server::ApiAnswer JobApi::change_user(const server::ApiRequest& request, std::string_view which) {
  if (!access_.may_change(request.peer)) return server::error_response(not_admin(request.peer));
  auto parsed = server::parse_strict_json<Json>(request.body, {.depth = kMaxRequestDepth});
  if (!parsed) return server::error_response(parsed.error());
  const Json json = std::move(*parsed);
  if (!json.is_object() || json.empty())
    return server::error_response(
        invalid("the body must be like {\"running\": 2, \"queued\": null}, or {\"default\": true}"));
  return server::ApiLater([this, peer = request.peer, json, user = std::string(which)](server::ApiReply reply) {
    on_pool([user] { return find_uid(user); },
            [this, peer, json, reply = std::move(reply)](const base::Result<std::uint32_t>& uid) {
              if (!uid) return reply(server::error_response(uid.error()));
              std::optional<UserLimits> limits;
              if (!(json.size() == 1 && json.contains("default") && json["default"] == true)) {
                limits = queue_.limits_of(*uid);
                if (const auto read = read_limits(json, *limits); !read)
                  return reply(server::error_response(read.error()));
              }
              server::log_info("a user's limits are changed", {{"user", *uid}, {"uid", peer.uid}, {"pid", peer.pid}});
              queue_.set_limits(*uid, limits, answer_queue(peer, reply));
            });
  });
}

// Answers with the queue as it is then.
std::function<void(const base::Status&)> JobApi::answer_queue(const server::Peer& peer, const server::ApiReply& reply) {
  return [this, peer, reply](const base::Status& status) {
    if (!status) return reply(server::error_response(status.error()));
    on_pool(std::get<server::ApiWork>(queue(peer)), reply);
  };
}

}  // namespace gpumux::jobs
