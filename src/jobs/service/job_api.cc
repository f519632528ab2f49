// SPDX-License-Identifier: Apache-2.0
#include "jobs/service/job_api.h"

#include <pwd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/standing.h"
#include "base/units.h"
#include "daemon/config/strict_json.h"
#include "daemon/loop/log.h"
#include "settings/settings.h"

namespace gpumux::daemon {
namespace {

namespace asio = boost::asio;
namespace core = jobs;
using Json = nlohmann::ordered_json;
using base::Code;
using base::Duration;
using base::Result;
using core::JobId;
using namespace std::chrono_literals;

constexpr Duration kLongestWait = 30s;
constexpr std::size_t kLookupBytes = 65'536;
constexpr int kMaxDepth = 4;

ApiResponse ok(const Json& json, unsigned status = 200) {
  return {status, json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"};
}

base::Error invalid(std::string what) { return {Code::kInvalid, 0, std::move(what)}; }
base::Error no_job(std::string_view which) {
  return {Code::kNotFound, 0,
          "there is no job " + std::string(which.substr(0, 64)) +
              " (`gpumux queue` and `gpumux history` show those that there are)"};
}
base::Error denied(const Peer& peer, const std::string& what) {
  return {Code::kDenied, 0,
          "user " + std::to_string(peer.uid) + " may not " + what +
              ": only its owner, root and members of the admin_group may"};
}
base::Error not_admin(const Peer& peer, const std::string& what = "the queue") {
  return {Code::kDenied, 0,
          "user " + std::to_string(peer.uid) + " may not change " + what +
              ": only the daemon's owner, root and members of its admin_group may"};
}

Result<std::uint32_t> find_uid(const std::string& name) {
  if (const auto number = base::parse_integer(name, 0, UINT32_MAX - 1)) return static_cast<std::uint32_t>(*number);
  std::vector<char> buffer(kLookupBytes);
  passwd entry{};
  passwd* found = nullptr;
  ::getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) return base::fail(Code::kNotFound, "there is no user '" + name.substr(0, 64) + "'");
  return found->pw_uid;
}

Result<Json> parse_object(const std::string& body) {
  auto json = parse_strict_json<Json>(body, {.depth = kMaxDepth});
  if (json && (!json->is_object() || json->size() != 1))
    return tl::unexpected(invalid("the body must be a JSON object with one field (docs/api.md)"));
  return json;
}

Result<JobQueue::Change> parse_change(const std::string& body) {
  const auto json = parse_object(body);
  if (!json) return tl::unexpected(json.error());
  const std::string name = json->begin().key();
  const Json& value = json->begin().value();
  using Kind = JobQueue::Change::Kind;
  if (name == "cancel" && value == true) return JobQueue::Change{Kind::kCancel};
  if (name == "held" && value.is_boolean()) return JobQueue::Change{value.get<bool>() ? Kind::kHold : Kind::kRelease};
  if (name == "priority" && value.is_number_integer()) {
    const auto priority = base::parse_priority(value.dump());
    if (!priority) return tl::unexpected(priority.error());
    return JobQueue::Change{Kind::kPriority, *priority};
  }
  return tl::unexpected(
      invalid("the body must be one of {\"cancel\": true}, {\"held\": true}, {\"held\": false} and {\"priority\": 5}"));
}

Json limits_json(const core::UserLimits& limits) {
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
  const core::QueueSettings in_core = core_settings(config);
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
          {"max_history", config.max_history.is_unlimited() ? 0 : config.max_history.value()},
          {"limits", limits_json(in_core.limits)}};
}

// {"running": 2, "queued": null}
base::Status read_limits(const Json& json, core::UserLimits& limits) {
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

Result<std::uint64_t> parse_number(std::string_view query, std::string_view name, std::uint64_t fallback,
                                   std::uint64_t least, std::uint64_t most) {
  const auto text = query_value(query, name);
  if (!text) return fallback;
  const auto parsed = base::parse_integer(*text, least, most);
  if (!parsed)
    return tl::unexpected(
        invalid(std::string(name) + " must be a number from " + std::to_string(least) + " to " + std::to_string(most)));
  return *parsed;
}

// The parameters of GET /v1/jobs, except for `user`.
Result<store::Query> parse_list(std::string_view query) {
  const auto limit = parse_number(query, "limit", store::kMaxPageJobs, 1, store::kMaxPageJobs);
  if (!limit) return tl::unexpected(limit.error());
  const auto beyond = parse_number(query, "beyond", 0, 0, INT64_MAX);
  if (!beyond) return tl::unexpected(beyond.error());
  const auto beyond_ended = parse_number(query, "beyond_ended", 0, 0, INT64_MAX);
  if (!beyond_ended) return tl::unexpected(beyond_ended.error());
  const auto array = parse_number(query, "array", 0, 1, INT64_MAX);
  if (!array) return tl::unexpected(array.error());
  const std::string_view state = query_value(query, "state").value_or("unfinished");
  const std::string_view order = query_value(query, "order").value_or("oldest");
  if (state != "unfinished" && state != "done" && state != "all")
    return tl::unexpected(invalid("state must be unfinished, done or all"));
  if (order != "oldest" && order != "newest" && order != "ended")
    return tl::unexpected(invalid("order must be oldest, newest or ended"));
  if (order == "ended" && state != "done") return tl::unexpected(invalid("order=ended is for state=done only"));
  if (order == "ended" && *beyond != 0 && *beyond_ended == 0)
    return tl::unexpected(invalid("with order=ended, beyond needs beyond_ended: the last job's ended_unix_ns"));
  store::Query asked;
  using Which = store::Query::Which;
  asked.which = state == "all" ? Which::kAll : state == "done" ? Which::kDone : Which::kUnfinished;
  using Order = store::Query::Order;
  asked.order = order == "ended" ? Order::kLatestEnd : order == "newest" ? Order::kNewest : Order::kOldest;
  asked.beyond = JobId{*beyond};
  asked.beyond_ended = static_cast<store::WallTime>(*beyond_ended);
  if (*array != 0) asked.array = JobId{*array};
  asked.at_most = static_cast<std::uint32_t>(*limit);
  return asked;
}

// Reads the store and looks up `user` (empty: everybody): not for the loop.
Result<store::Page> read_page(const store::JobStore& store, store::Query asked, const std::string& user) {
  if (!user.empty()) {
    const auto uid = find_uid(user);
    if (!uid) return tl::unexpected(uid.error());
    // Another user's jobs are hidden from this peer: an empty list, as if there were none.
    if (asked.uid && *asked.uid != *uid) return store::Page{};
    asked.uid = *uid;
  }
  return store.page(asked);
}

}  // namespace

// As an address has it: "17", "17_3".
struct JobApi::Name {
  JobId job;
  std::optional<std::uint32_t> element;

  std::string text() const {
    return std::to_string(job.value) + (element ? "_" + std::to_string(*element) : std::string());
  }
};

struct JobApi::Found {
  store::StoredJob job;
  bool is_whole_array = false;  // of which it is the first
};

// What is asked of one job, or why it is not.
struct JobApi::Asked {
  JobId job;
  std::optional<base::Error> refused;
};

Result<JobApi::Name> JobApi::parse_name(std::string_view text) {
  const std::size_t mark = text.find('_');
  const auto id = base::parse_integer(text.substr(0, mark), 1, INT64_MAX);
  if (!id)
    return tl::unexpected(invalid("'" + std::string(text.substr(0, 64)) +
                                  "' is no job's id: it is a number such as 17, or 17_3 for element 3 of array 17"));
  Name name{.job = JobId{*id}, .element = {}};
  if (mark != std::string_view::npos) {
    const auto element = base::parse_integer(text.substr(mark + 1), 0, UINT32_MAX);
    if (!element)
      return tl::unexpected(
          invalid("'" + std::string(text.substr(0, 64)) + "': after _ comes the number of an array's element"));
    name.element = static_cast<std::uint32_t>(*element);
  }
  return name;
}

// Reads the store: not for the loop.
Result<JobApi::Found> JobApi::look_up(const store::JobStore& store, const Name& name) {
  const auto with_text = [&name](const base::Error& error) {
    return error.code == Code::kNotFound ? no_job(name.text()) : error;
  };
  JobId id = name.job;
  if (name.element) {
    store::Query query;
    query.array = name.job;
    query.array_index = name.element;
    const auto page = store.page(query);
    if (!page) return tl::unexpected(page.error());
    if (page->jobs.empty()) return tl::unexpected(with_text({Code::kNotFound, 0, ""}));
    id = page->jobs.front().spec.id;
  }
  auto job = store.find(id);
  if (!job) return tl::unexpected(with_text(job.error()));
  const bool is_first = job->spec.array == id;
  return Found{.job = std::move(*job), .is_whole_array = is_first && !name.element};
}

JobApi::JobApi(asio::io_context& io, JobQueue& queue, const AccessRules& access)
    : io_(io), queue_(queue), access_(access) {}

JobApi::~JobApi() { queue_.pool().join(); }

ApiAnswer JobApi::answer(const ApiRequest& request, std::string_view path, std::string_view query) {
  static constexpr std::string_view kJobs = "/v1/jobs/";
  static constexpr std::string_view kGpus = "/v1/queue/gpus/";
  static constexpr std::string_view kUsers = "/v1/queue/users/";
  const bool is_get = request.method == "GET";
  const bool is_patch = request.method == "PATCH";
  if (request.peer.is_contained)
    return error_response(
        {Code::kDenied, 0,
         "jobs are for users of the system that the daemon is on, and run there: the process that asks is in a "
         "container (its user or pid namespace, or its root directory, is another), or has ended. On Linux before 6.5, "
         "which cannot say which process asks, root asks over root/api.sock in the runtime directory"});
  // Else one user is as many users as there are subordinate ids: for the order, and for each limit.
  if (const auto user = request.peer.account.user(); user && *user != request.peer.uid)
    return error_response({Code::kDenied, 0,
                           "user " + std::to_string(request.peer.uid) + " is a subordinate id of user " +
                               std::to_string(*user) + ": hand in jobs as that user"});
  if (path == "/v1/queue" && is_get) return this->queue(request.peer);
  if (!queue_.unavailable().empty()) return error_response({Code::kUnavailable, 0, queue_.unavailable()});
  if (path == "/v1/jobs") {
    if (is_get) return list(request.peer, query);
    return request.method == "POST" ? submit(request) : wrong_method("GET and POST");
  }
  if (path == "/v1/queue") return is_patch ? change_queue(request) : wrong_method("GET and PATCH");
  if (path.starts_with(kGpus))
    return is_patch ? change_gpus(request, path.substr(kGpus.size())) : wrong_method("PATCH");
  if (path.starts_with(kUsers))
    return is_patch ? change_user(request, path.substr(kUsers.size())) : wrong_method("PATCH");
  if (!path.starts_with(kJobs)) return error_response({Code::kNotFound, 0, "there is nothing at this address"});
  std::string_view which = path.substr(kJobs.size());
  if (which.ends_with("/wait")) {
    which.remove_suffix(5);
    return is_get ? wait(request.peer, which, query) : wrong_method("GET");
  }
  if (is_get) {
    const std::string_view environment = query_value(query, "environment").value_or("0");
    if (environment != "0" && environment != "1") return error_response(invalid("environment must be 0 or 1"));
    return show(request.peer, which, environment == "1");
  }
  return is_patch ? change(request, which) : wrong_method("GET and PATCH");
}

Sight JobApi::sight(const Peer& peer, std::uint32_t uid) const {
  if (peer.uid == uid || access_.may_change(peer)) return Sight::kOwn;
  switch (queue_.config().privacy) {
    case settings::Privacy::kOpen: return Sight::kOpen;
    case settings::Privacy::kLimited: return Sight::kLimited;
    case settings::Privacy::kOwn: return Sight::kNothing;
  }
  return Sight::kNothing;
}

JobNow JobApi::now_of(JobId job) const {
  JobNow now{.standing = queue_.standing(job),
             .note = queue_.note(job),
             .limit_in = {},
             .default_memory = queue_.core_settings().default_memory};
  if (now.standing && now.standing->limit_at) now.limit_in = *now.standing->limit_at - queue_.now();
  return now;
}

// ---- handing in --------------------------------------------------------------------------------------------

ApiAnswer JobApi::submit(const ApiRequest& request) {
  auto body = std::make_shared<std::string>(request.body);
  return ApiLater([this, body, peer = request.peer](ApiReply reply) {
    asio::post(queue_.pool(), [this, body, peer, by_admin = access_.may_change(peer),
                               reply = std::move(reply)]() mutable {
      auto parsed = parse_submission(*body);
      base::Status status = parsed ? base::Status() : base::Status(tl::unexpected(parsed.error()));
      std::shared_ptr<Submission> submission;
      if (parsed) {
        submission = std::make_shared<Submission>(std::move(*parsed));
        submission->by_admin = by_admin;
        auto submitter = look_at_submitter(peer);
        if (submitter) {
          submission->document.submitter = std::move(*submitter);
          submission->document_text = to_text(submission->document);
          const std::uint64_t jobs = std::max<std::uint64_t>(submission->elements.size(), 1);
          status = queue_.store()->room_for(submission->document_text.size() * jobs);
          if (submission->document_text.size() * jobs > kMaxArrayBytes) {
            status = base::fail(Code::kInvalid,
                                "so many elements with so large an environment are too much: hand in a "
                                "smaller array, or a script that sets what it needs");
          }
          // What it would fail of in the end, said while somebody listens.
          const LaunchedJob first{.id = JobId{1},
                                  .array = JobId{submission->elements.empty() ? 0u : 1u},
                                  .name = submission->name,
                                  .gpus = {}};
          if (const auto log = log_path(submission->document, first, ""); !log) status = tl::unexpected(log.error());
        } else {
          status = tl::unexpected(submitter.error());
        }
      }
      asio::post(io_, [this, peer, submission, status = std::move(status), reply = std::move(reply)]() mutable {
        if (!status) return reply(error_response(status.error()));
        // The last look before the job is stored.
        if (peer.has_ended()) return reply(error_response({Code::kDenied, 0, "the process that submits has ended"}));
        queue_.submit(std::move(submission), [reply = std::move(reply)](const Result<JobQueue::Submitted>& submitted) {
          if (!submitted) return reply(error_response(submitted.error()));
          Json answer{{"id", submitted->id.value}, {"count", submitted->count}};
          if (submitted->capped_at) answer["priority_capped"] = *submitted->capped_at;
          reply(ok(answer, submitted->was_known ? 200 : 201));
        });
      });
    });
  });
}

// ---- looking -----------------------------------------------------------------------------------------------

ApiAnswer JobApi::list(const Peer& peer, std::string_view query) {
  auto asked = parse_list(query);
  if (!asked) return error_response(asked.error());
  if (queue_.config().privacy == settings::Privacy::kOwn && !access_.may_change(peer)) asked->uid = peer.uid;
  return ApiLater(
      [this, peer, asked = *asked, user = decode_percent(query_value(query, "user").value_or(""))](ApiReply reply) {
        asio::post(queue_.pool(), [this, peer, asked, user, reply = std::move(reply)]() mutable {
          auto page = std::make_shared<Result<store::Page>>(read_page(*queue_.store(), asked, user));
          asio::post(io_, [this, peer, page, reply = std::move(reply)]() mutable {
            if (!*page) return reply(error_response(page->error()));
            list_page(peer, std::make_shared<const store::Page>(std::move(**page)), std::move(reply));
          });
        });
      });
}

// The loop says where each job of the page stands now; the pool writes the text.
void JobApi::list_page(const Peer& peer, std::shared_ptr<const store::Page> page, ApiReply reply) {
  std::vector<std::pair<JobNow, Sight>> looks;
  looks.reserve(page->jobs.size());
  for (const store::StoredJob& job : page->jobs) looks.emplace_back(now_of(job.spec.id), sight(peer, job.spec.uid));
  asio::post(queue_.pool(), [this, page = std::move(page), looks = std::move(looks),
                             reply = std::move(reply)]() mutable {
    std::string text = "{\"jobs\": [";
    const char* separator = "";
    for (std::size_t i = 0; i < page->jobs.size(); ++i) {
      const auto& [now, seen] = looks[i];
      if (seen == Sight::kNothing) continue;
      text += std::exchange(separator, ",\n");
      append_job(text, page->jobs[i], now, seen, *names_);
    }
    text += std::string("], \"more\": ") + (page->more ? "true" : "false") + "}\n";
    asio::post(io_, [reply = std::move(reply), text = std::move(text)]() mutable { reply({200, std::move(text)}); });
  });
}

// `found` is called on the loop.
void JobApi::find_job(std::string_view which, std::function<void(Result<store::StoredJob>)> found) {
  const auto name = parse_name(which);
  if (!name) return found(tl::unexpected(name.error()));
  asio::post(queue_.pool(), [this, name = *name, found = std::move(found)]() mutable {
    auto job = std::make_shared<Result<Found>>(look_up(*queue_.store(), name));
    asio::post(io_, [job, found = std::move(found)] {
      if (!*job) return found(tl::unexpected(job->error()));
      found(std::move((*job)->job));
    });
  });
}

void JobApi::show_job(const Peer& peer, std::string which, JobId id, bool with_environment, ApiReply reply) {
  asio::post(queue_.pool(), [this, peer, which = std::move(which), id, with_environment,
                             reply = std::move(reply)]() mutable {
    auto job = std::make_shared<Result<store::StoredJob>>(queue_.store()->find(id));
    asio::post(io_, [this, peer, which = std::move(which), id, with_environment, job,
                     reply = std::move(reply)]() mutable {
      if (!*job) return reply(error_response(job->error()));
      const Sight seen = sight(peer, (*job)->spec.uid);
      if (seen == Sight::kNothing) return reply(error_response(no_job(which)));
      asio::post(queue_.pool(), [this, id, with_environment, job, seen, now = now_of(id), view = queue_.view(id),
                                 reply = std::move(reply)]() mutable {
        std::string body;
        const auto text = seen == Sight::kOwn ? queue_.store()->document(id) : Result<std::string>("");
        const auto document = text ? parse_document(*text) : Result<JobDocument>(tl::unexpected(text.error()));
        const JobDetails details{document ? &*document : nullptr, view, with_environment};
        append_job(body, **job, now, seen, *names_, seen == Sight::kOwn ? &details : nullptr);
        body += "\n";
        asio::post(io_, [reply = std::move(reply), response = ApiResponse{200, std::move(body)}] { reply(response); });
      });
    });
  });
}

ApiAnswer JobApi::show(const Peer& peer, std::string_view which, bool with_environment) {
  return ApiLater([this, peer, which = std::string(which), with_environment](ApiReply reply) {
    find_job(which, [this, peer, which, with_environment, reply](const Result<store::StoredJob>& job) {
      if (!job) return reply(error_response(job.error()));
      show_job(peer, which, job->spec.id, with_environment, reply);
    });
  });
}

ApiAnswer JobApi::wait(const Peer& peer, std::string_view which, std::string_view query) {
  const std::string_view until = query_value(query, "until").value_or("done");
  if (until != "done" && until != "started") return error_response(invalid("until must be done or started"));
  Duration patience = kLongestWait;
  if (const auto text = query_value(query, "timeout_ns")) {
    const auto parsed = base::parse_integer(*text, 0, INT64_MAX);
    if (!parsed) return error_response(invalid("timeout_ns must be a number"));
    patience = std::min(patience, Duration(static_cast<std::int64_t>(*parsed)));
  }
  return ApiLater([this, peer, which = std::string(which), patience, is_start = until == "started"](ApiReply reply) {
    find_job(which, [this, peer, which, patience, is_start, reply](const Result<store::StoredJob>& job) {
      if (!job) return reply(error_response(job.error()));
      if (sight(peer, job->spec.uid) == Sight::kNothing) return reply(error_response(no_job(which)));
      const JobId id = job->spec.id;
      queue_.wait(id, is_start, patience, [this, peer, which, id, reply] { show_job(peer, which, id, false, reply); });
    });
  });
}

// ---- changing ----------------------------------------------------------------------------------------------

ApiAnswer JobApi::change(const ApiRequest& request, std::string_view which) {
  auto change = parse_change(request.body);
  if (!change) return error_response(change.error());
  change->by_admin = access_.may_change(request.peer);
  if (which == "all") {
    if (!access_.may_change(request.peer)) return error_response(not_admin(request.peer, "everybody's jobs"));
    return ApiLater([this, change = *change](ApiReply reply) { change_all(std::nullopt, change, reply); });
  }
  static constexpr std::string_view kUser = "user:";
  if (which.starts_with(kUser)) {
    return ApiLater([this, peer = request.peer, change = *change,
                     user = decode_percent(which.substr(kUser.size()))](ApiReply reply) {
      asio::post(queue_.pool(), [this, peer, change, user, reply = std::move(reply)]() mutable {
        const auto uid = find_uid(user);
        asio::post(io_, [this, peer, change, uid, reply = std::move(reply)] {
          if (!uid) return reply(error_response(uid.error()));
          if (*uid != peer.uid && !access_.may_change(peer))
            return reply(error_response(denied(peer, "change that user's jobs")));
          change_all(*uid, change, reply);
        });
      });
    });
  }
  auto names = std::make_shared<std::vector<Name>>();
  for (std::string_view rest = which;;) {
    const std::size_t comma = rest.find(',');
    const auto one = parse_name(rest.substr(0, comma));
    if (!one) return error_response(one.error());
    names->push_back(*one);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return ApiLater([this, peer = request.peer, change = *change, names](ApiReply reply) {
    asio::post(queue_.pool(), [this, peer, change, names, reply = std::move(reply)] {
      auto found = std::make_shared<std::vector<Result<Found>>>();
      for (const Name& name : *names) found->push_back(look_up(*queue_.store(), name));
      asio::post(io_, [this, peer, change, names, found, reply] {
        for (std::size_t i = 0; i < found->size(); ++i) {
          Result<Found>& one = (*found)[i];
          if (one && sight(peer, one->job.spec.uid) == Sight::kNothing)
            one = tl::unexpected(no_job((*names)[i].text()));
        }
        change_found(peer, *names, *found, change, reply);
      });
    });
  });
}

void JobApi::change_found(const Peer& peer, const std::vector<Name>& names, const std::vector<Result<Found>>& jobs,
                          const JobQueue::Change& change, const ApiReply& reply) {
  const bool is_admin = access_.may_change(peer);
  std::vector<Asked> asked;
  std::set<JobId> seen;
  std::size_t denied_jobs = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const Result<Found>& found = jobs[i];
    if (!found) {
      asked.push_back({names[i].job, found.error()});
      continue;
    }
    const core::JobSpec& spec = found->job.spec;
    // Of an array of which nothing is left the first one stands for all.
    std::vector<JobId> ids = found->is_whole_array ? queue_.elements(spec.id) : std::vector<JobId>();
    if (ids.empty()) ids.push_back(spec.id);
    if (spec.uid != peer.uid && !is_admin) {
      asked.push_back({spec.id, denied(peer, "change job " + std::to_string(spec.id.value))});
      ++denied_jobs;
    } else {
      for (const JobId id : ids) {
        if (seen.insert(id).second) asked.push_back({id, {}});
      }
    }
  }
  if (denied_jobs > 0)
    log_warning("changes of jobs were denied", {{"uid", peer.uid}, {"pid", peer.pid}, {"jobs", denied_jobs}});
  if (seen.empty()) return reply(error_response(*asked.back().refused));
  change_jobs(std::move(asked), change, reply);
}

void JobApi::change_all(std::optional<std::uint32_t> uid, const JobQueue::Change& change, const ApiReply& reply) {
  std::vector<Asked> asked;
  for (const JobId job : queue_.unfinished(uid)) asked.push_back({job, {}});
  change_jobs(std::move(asked), change, reply);
}

void JobApi::change_jobs(std::vector<Asked> asked, const JobQueue::Change& change, const ApiReply& reply) {
  std::vector<JobId> jobs;
  for (const Asked& one : asked) {
    if (!one.refused) jobs.push_back(one.job);
  }
  queue_.change(std::move(jobs), change,
                [this, asked = std::make_shared<std::vector<Asked>>(std::move(asked)),
                 reply](const Result<std::vector<JobId>>& changed) {
                  if (!changed) return reply(error_response(changed.error()));
                  // There may be a million.
                  asio::post(queue_.pool(), [this, asked, changed = *changed, reply] {
                    std::string body = "{\"jobs\": [";
                    auto next = changed.begin();
                    for (const Asked& one : *asked) {
                      const bool is_changed = next != changed.end() && *next == one.job && !one.refused;
                      if (is_changed) ++next;
                      if (&one != &asked->front()) body += ",\n";
                      body += "{\"id\": " + std::to_string(one.job.value) + ", \"changed\": ";
                      body += is_changed ? "true" : "false";
                      if (one.refused)
                        body +=
                            ", \"error\": " +
                            Json{{"code", to_string(one.refused->code)}, {"message", one.refused->message()}}.dump();
                      body += "}";
                    }
                    body += "]}\n";
                    asio::post(io_, [reply, response = ApiResponse{200, std::move(body)}] { reply(response); });
                  });
                });
}

// ---- the queue itself --------------------------------------------------------------------------------------

ApiAnswer JobApi::queue(const Peer& peer) {
  Json json{{"settings", settings_json(queue_.config())},
            {"paused", queue_.is_paused()},
            {"unavailable", queue_.unavailable()}};
  const auto in = [&](core::JobState state) { return queue_.core().counts()[static_cast<std::size_t>(state)]; };
  using core::JobState;
  Json gpus = Json::array();
  std::vector<core::UserUsage> users;
  if (queue_.unavailable().empty()) {
    for (std::size_t i = 0; i < queue_.gpus().size(); ++i) {
      const auto room = queue_.core().room(base::GpuIndex{static_cast<std::uint32_t>(i)});
      if (!room) continue;
      gpus.push_back({{"index", i},
                      {"capacity_bytes", room->capacity},
                      {"promised_bytes", room->promised},
                      {"foreign_bytes", room->foreign},
                      {"drained", room->drained},
                      {"present", room->present}});
    }
    users = queue_.core().usage(queue_.now());
    const auto kept = queue_.core().kept();
    const JobQueue::Owner* owner = kept ? queue_.find(kept->job) : nullptr;
    if (owner != nullptr && sight(peer, owner->uid) != Sight::kNothing) {
      Json reserved{{"job", kept->job.value}, {"gpus", Json::array()}};
      for (const base::GpuIndex gpu : kept->gpus) reserved["gpus"].push_back(gpu.value);
      if (kept->start) reserved["starts_in_ns"] = (*kept->start - queue_.now()).count();
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
  return ApiWork([json = std::move(json), users = std::move(users), limits = queue_.limits(), names = names_, sees_all,
                  uid = peer.uid]() mutable {
    Json list = Json::array();
    std::set<std::uint32_t> shown;
    const auto add = [&](std::uint32_t user, const core::UserUsage& usage) {
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
    for (const core::UserUsage& usage : users) add(usage.uid, usage);
    for (const auto& [user, own] : limits) add(user, {});
    json["users"] = std::move(list);
    return ok(json);
  });
}

ApiAnswer JobApi::change_queue(const ApiRequest& request) {
  if (!access_.may_change(request.peer)) return error_response(not_admin(request.peer));
  const auto json = parse_object(request.body);
  if (!json) return error_response(json.error());
  if (!json->contains("paused") || !(*json)["paused"].is_boolean())
    return error_response(invalid(
        "the body must be {\"paused\": true} or {\"paused\": false}; settings are in the configuration, [queue]"));
  return ApiLater([this, peer = request.peer, is_paused = (*json)["paused"].get<bool>()](ApiReply reply) {
    log_info(is_paused ? "the queue is paused" : "the queue goes on", {{"uid", peer.uid}, {"pid", peer.pid}});
    queue_.set_paused(is_paused,
                      [this, peer, reply](const base::Status& status) { answer_queue(status, peer, reply); });
  });
}

ApiAnswer JobApi::change_gpus(const ApiRequest& request, std::string_view which) {
  if (!access_.may_change(request.peer)) return error_response(not_admin(request.peer));
  const auto json = parse_object(request.body);
  if (!json) return error_response(json.error());
  if (!json->contains("drained") || !(*json)["drained"].is_boolean())
    return error_response(invalid("the body must be {\"drained\": true} or {\"drained\": false}"));
  std::vector<base::GpuIndex> gpus;
  for (std::size_t i = 0; i < queue_.gpus().size(); ++i) {
    if (which == "all" || which == std::to_string(i) || which == queue_.gpus()[i].uuid)
      gpus.push_back({static_cast<std::uint32_t>(i)});
  }
  if (gpus.empty())
    return error_response({Code::kNotFound, 0,
                           "there is no GPU '" + std::string(which.substr(0, 64)) +
                               "': use an index or UUID that /v1/status shows, or all"});
  return ApiLater([this, peer = request.peer, gpus, is_drained = (*json)["drained"].get<bool>()](ApiReply reply) {
    log_info(is_drained ? "GPUs are drained" : "GPUs take jobs again",
             {{"gpus", gpus.size()}, {"uid", peer.uid}, {"pid", peer.pid}});
    // They are stored in order: the last one's word is all's.
    auto left = std::make_shared<std::size_t>(gpus.size());
    auto failed = std::make_shared<base::Status>();
    for (const base::GpuIndex gpu : gpus) {
      queue_.set_drained(gpu, is_drained, [this, peer, left, failed, reply](const base::Status& status) {
        if (!status) *failed = status;
        if (--*left == 0) answer_queue(*failed, peer, reply);
      });
    }
  });
}

ApiAnswer JobApi::change_user(const ApiRequest& request, std::string_view which) {
  if (!access_.may_change(request.peer)) return error_response(not_admin(request.peer));
  auto parsed = parse_strict_json<Json>(request.body, {.depth = kMaxDepth});
  if (!parsed) return error_response(parsed.error());
  const Json json = std::move(*parsed);
  if (!json.is_object() || json.empty())
    return error_response(invalid("the body must be like {\"running\": 2, \"queued\": null}, or {\"default\": true}"));
  return ApiLater([this, peer = request.peer, json, user = decode_percent(which)](ApiReply reply) {
    asio::post(queue_.pool(), [this, peer, json, user, reply = std::move(reply)]() mutable {
      const auto uid = find_uid(user);
      asio::post(io_, [this, peer, json, uid, reply = std::move(reply)] {
        if (!uid) return reply(error_response(uid.error()));
        std::optional<core::UserLimits> limits;
        if (!(json.size() == 1 && json.contains("default") && json["default"] == true)) {
          const auto own = queue_.limits().find(*uid);
          limits = own != queue_.limits().end() ? own->second : queue_.core_settings().limits;
          if (const auto read = read_limits(json, *limits); !read) return reply(error_response(read.error()));
        }
        log_info("a user's limits are changed", {{"user", *uid}, {"uid", peer.uid}, {"pid", peer.pid}});
        queue_.set_limits(*uid, limits,
                          [this, peer, reply](const base::Status& status) { answer_queue(status, peer, reply); });
      });
    });
  });
}

void JobApi::answer_queue(const base::Status& status, const Peer& peer, const ApiReply& reply) {
  if (!status) return reply(error_response(status.error()));
  auto work = std::get<ApiWork>(queue(peer));
  asio::post(queue_.pool(), [this, work = std::move(work), reply] {
    asio::post(io_, [reply, response = work()] { reply(response); });
  });
}

}  // namespace gpumux::daemon
