// SPDX-License-Identifier: Apache-2.0
#include "jobs/service/job_api.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <set>
#include <utility>

#include "base/units.h"
#include "daemon/loop/log.h"

namespace gpumux::daemon {
namespace {

namespace asio = boost::asio;
namespace core = jobs;
using Json = RequestJson;
using base::Code;
using base::Duration;
using base::Result;
using core::JobId;
using namespace std::chrono_literals;

constexpr Duration kLongestWait = 30s;

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

struct JobApi::Found {
  store::StoredJob job;
  bool is_whole_array = false;  // of which it is the first
};

// One job of a request to change jobs. `refused`: why it stays as it is; none: it is to be changed.
struct JobApi::Asked {
  JobId job;
  std::optional<base::Error> refused;
};

// Reads the store: not for the loop.
Result<JobApi::Found> JobApi::look_up(const store::JobStore& store, const JobName& name) {
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

JobApi::JobApi(asio::io_context& io, JobQueue& queue, LedgerKeeper& ledger, const AccessRules& access)
    : io_(io), queue_(queue), ledger_(ledger), access_(access), reports_(queue.pool().get_executor()) {}

JobApi::~JobApi() { queue_.pool().join(); }

ApiAnswer JobApi::answer(const ApiRequest& request, const RouteMatch& match, std::string_view query) {
  if (request.peer.is_contained)
    return error_response(
        {Code::kDenied, 0,
         "jobs and reports are for users of the system that the daemon is on: the process that asks is in a "
         "container (its user or pid namespace, or its root directory, is another), or has ended. On Linux before 6.5, "
         "which cannot say which process asks, root asks over root/api.sock in the runtime directory"});
  // Else one user is as many users as there are subordinate ids: for the order, and for each limit.
  if (const auto user = request.peer.account.user(); user && *user != request.peer.uid)
    return error_response({Code::kDenied, 0,
                           "user " + std::to_string(request.peer.uid) + " is a subordinate id of user " +
                               std::to_string(*user) + ": ask as that user"});
  const Address address = match.route->address;
  if (address == Address::kQueue) return this->queue(request.peer);
  if (!queue_.unavailable().empty()) return error_response({Code::kUnavailable, 0, queue_.unavailable()});
  switch (address) {
    case Address::kReport: return report(request.peer, query);
    case Address::kJobs: return list(request.peer, query);
    case Address::kSubmit: return submit(request);
    case Address::kWaitForJob: return wait(request.peer, match.variable, query);
    case Address::kChangeJobs: return change(request, match.variable);
    case Address::kChangeQueue: return change_queue(request);
    case Address::kChangeQueueGpu: return change_gpus(request, match.variable);
    case Address::kChangeQueueUser: return change_user(request, match.variable);
    default: break;  // kJob: the API hands over nothing else
  }
  const std::string_view environment = query_value(query, "environment").value_or("0");
  if (environment != "0" && environment != "1") return error_response(invalid("environment must be 0 or 1"));
  return show(request.peer, match.variable, environment == "1");
}

Sight JobApi::sight(const Peer& peer, std::optional<std::uint32_t> uid) const {
  if (peer.uid == uid || access_.may_change(peer)) return Sight::kOwn;
  switch (queue_.config().privacy) {
    case settings::Privacy::kOpen: return Sight::kOpen;
    case settings::Privacy::kLimited: return Sight::kLimited;
    case settings::Privacy::kOwn: return Sight::kNothing;
  }
  return Sight::kNothing;
}

JobNow JobApi::now_of(const Peer& peer, JobId job, const Starts& starts) const {
  JobNow now{.standing = queue_.standing(job),
             .note = queue_.note(job),
             .limit_in = {},
             .default_memory = queue_.core_settings().default_memory,
             .state_since = {},
             .why = {},
             .starts_in = {}};
  if (const auto start = starts.find(job); start != starts.end())
    now.starts_in = std::max(start->second - queue_.now(), Duration::zero());
  if (now.standing && now.standing->reason != core::WaitReason::kNone)
    now.why = why_facts(queue_, job, *now.standing, [&](std::optional<std::uint32_t> uid) { return sight(peer, uid); });
  if (const auto* owner = queue_.find(job)) now.state_since = wall_now() - (queue_.now() - owner->state_since).count();
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
                                "the array's elements and their environments are too large together: submit "
                                "a smaller array, or a script that sets the variables that it needs");
          }
          // A start would fail of this in the end: it is said while the submitter listens.
          const LaunchedJob first{.id = JobId{1},
                                  .array = JobId{submission->elements.empty() ? 0u : 1u},
                                  .name = submission->name,
                                  .gpus = {}};
          if (const auto log = log_path(submission->document, first, ""); !log) status = tl::unexpected(log.error());
          if (const auto errors = error_path(submission->document, first); !errors)
            status = tl::unexpected(errors.error());
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
          reply(json_response(answer, submitted->was_known ? 200 : 201));
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
        const auto read = [this, peer, asked, user, reply = std::move(reply)] {
          asio::post(queue_.pool(), [this, peer, asked, user, reply] {
            auto page = std::make_shared<Result<store::Page>>(read_page(*queue_.store(), asked, user));
            asio::post(io_, [this, peer, page, reply] {
              if (!*page) return reply(error_response(page->error()));
              list_page(peer, std::make_shared<const store::Page>(std::move(**page)), reply);
            });
          });
        };
        // A history has what jobs have had of GPUs up to now. A list of what runs is asked for again and again.
        if (asked.which == store::Query::Which::kUnfinished) return read();
        ledger_.flush(read);
      });
}

// The loop says where each job of the page stands now; the pool writes the text.
void JobApi::list_page(const Peer& peer, std::shared_ptr<const store::Page> page, ApiReply reply) {
  std::vector<std::pair<JobNow, Sight>> looks;
  looks.reserve(page->jobs.size());
  const Starts starts = queue_.core().expected_starts();
  for (const store::StoredJob& job : page->jobs)
    looks.emplace_back(now_of(peer, job.spec.id, starts), sight(peer, job.spec.uid));
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
  const auto name = JobName::parse(which);
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
      asio::post(queue_.pool(), [this, id, with_environment, job, seen,
                                 now = now_of(peer, id, queue_.core().expected_starts()), view = queue_.view(id),
                                 reply = std::move(reply)]() mutable {
        std::string body;
        const auto text = seen == Sight::kOwn ? queue_.store()->document(id) : Result<std::string>("");
        auto document = text ? parse_document(*text) : Result<JobDocument>(tl::unexpected(text.error()));
        if (document) take_order(*document, **job);
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
    ledger_.flush([this, peer, which, with_environment, reply] {
      find_job(which, [this, peer, which, with_environment, reply](const Result<store::StoredJob>& job) {
        if (!job) return reply(error_response(job.error()));
        show_job(peer, which, job->spec.id, with_environment, reply);
      });
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
    return ApiLater(
        [this, peer = request.peer, change = *change, user = std::string(which.substr(kUser.size()))](ApiReply reply) {
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
  auto names = std::make_shared<std::vector<JobName>>();
  for (std::string_view rest = which;;) {
    const std::size_t comma = rest.find(',');
    const auto one = JobName::parse(rest.substr(0, comma));
    if (!one) return error_response(one.error());
    names->push_back(*one);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return ApiLater([this, peer = request.peer, change = *change, names](ApiReply reply) {
    asio::post(queue_.pool(), [this, peer, change, names, reply = std::move(reply)] {
      auto found = std::make_shared<std::vector<Result<Found>>>();
      for (const JobName& name : *names) found->push_back(look_up(*queue_.store(), name));
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

void JobApi::change_found(const Peer& peer, const std::vector<JobName>& names, const std::vector<Result<Found>>& jobs,
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
                 reply](const Result<JobQueue::Changed>& changed) {
                  if (!changed) return reply(error_response(changed.error()));
                  for (Asked& one : *asked) {
                    if (const auto why = changed->refused.find(one.job); why != changed->refused.end() && !one.refused)
                      one.refused = why->second;
                  }
                  // There may be a million.
                  asio::post(queue_.pool(), [this, asked, changed = changed->jobs, reply] {
                    std::string body = "{\"jobs\": [";
                    auto next = changed.begin();
                    for (const Asked& one : *asked) {
                      const bool is_changed = next != changed.end() && *next == one.job && !one.refused;
                      if (is_changed) ++next;
                      if (&one != &asked->front()) body += ",\n";
                      body += "{\"id\": " + std::to_string(one.job.value) + ", \"changed\": ";
                      body += is_changed ? "true" : "false";
                      if (one.refused)
                        body += ", \"error\": " +
                                Json{{"code", api_code(one.refused->code)}, {"message", one.refused->message()}}.dump();
                      body += "}";
                    }
                    body += "]}\n";
                    asio::post(io_, [reply, response = ApiResponse{200, std::move(body)}] { reply(response); });
                  });
                });
}

}  // namespace gpumux::daemon
