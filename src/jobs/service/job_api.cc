// SPDX-License-Identifier: Apache-2.0
#include "jobs/service/job_api.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/split.h"
#include "base/units.h"
#include "server/loop/log.h"

namespace gpumux::jobs {
namespace {

namespace asio = boost::asio;
using Json = RequestJson;
using base::Code;
using base::Duration;
using base::Result;
using namespace std::chrono_literals;

// A guess: clients ask again after it, and one that is gone keeps its place no longer.
constexpr Duration kLongestWait = 30s;

// Reads the store and looks up `user` (empty: all users): not for the loop.
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

// One job of a request to change jobs. `refused`: why it stays as it is; none: it changes.
struct JobApi::Asked {
  JobId job;
  std::optional<base::Error> refused;
};

// Reads the store: not for the loop.
Result<JobApi::Found> JobApi::look_up(const store::JobStore& store, const JobName& name) {
  auto job = jobs::find_job(store, name);
  if (!job) return tl::unexpected(job.error().code == Code::kNotFound ? no_job(name.text()) : job.error());
  const bool is_first = job->spec.array == job->spec.id;
  return Found{.job = std::move(*job), .is_whole_array = is_first && !name.element};
}

JobApi::JobApi(asio::io_context& io, JobQueue& queue, LedgerKeeper& ledger, const server::AccessRules& access)
    : io_(io), queue_(queue), ledger_(ledger), access_(access), reports_(queue.pool().get_executor()) {}

JobApi::~JobApi() { queue_.pool().join(); }

server::ApiAnswer JobApi::answer(const server::ApiRequest& request, const server::RouteMatch& match,
                                 std::string_view query) {
  if (request.peer.is_contained)
    return server::error_response(
        {Code::kDenied, 0,
         "jobs and reports are for users of the system that the daemon is on: the process that asks is in a "
         "container (its user or pid namespace, or its root directory, is another), or has ended. On Linux before 6.5, "
         "which cannot say which process asks, root asks over root/api.sock in the runtime directory"});
  // Else one user is as many users as there are subordinate ids: for the order, and for each limit.
  if (const auto user = request.peer.account.user(); user && *user != request.peer.uid)
    return server::error_response({Code::kDenied, 0,
                                   "user " + std::to_string(request.peer.uid) + " is a subordinate id of user " +
                                       std::to_string(*user) + ": ask as that user"});
  const server::Address address = match.route->address;
  if (address == server::Address::kQueue) return this->queue(request.peer);
  if (!queue_.unavailable().empty()) return server::error_response({Code::kUnavailable, 0, queue_.unavailable()});
  switch (address) {
    case server::Address::kReport: return report(request.peer, query);
    case server::Address::kJobs: return list(request.peer, query);
    case server::Address::kSubmit: return submit(request);
    case server::Address::kWaitForJob: return wait(request.peer, match.variable, query);
    case server::Address::kChangeJobs: return change(request, match.variable);
    case server::Address::kChangeQueue: return change_queue(request);
    case server::Address::kChangeQueueGpu: return change_gpus(request, match.variable);
    case server::Address::kChangeQueueUser: return change_user(request, match.variable);
    default: break;  // kJob: the API hands over nothing else
  }
  return show(request.peer, match.variable, server::query_value(query, "environment") == "1");
}

Sight JobApi::sight(const server::Peer& peer, std::optional<std::uint32_t> uid) const {
  if (peer.uid == uid || access_.may_change(peer)) return Sight::kOwn;
  switch (queue_.config().privacy) {
    case settings::Privacy::kOpen: return Sight::kOpen;
    case settings::Privacy::kLimited: return Sight::kLimited;
    case settings::Privacy::kOwn: return Sight::kNothing;
  }
  return Sight::kNothing;
}

JobNow JobApi::now_of(const server::Peer& peer, JobId job, const Starts& starts) const {
  JobNow now{.standing = queue_.standing(job),
             .note = queue_.note(job),
             .limit_in = {},
             .default_memory = queue_.core_settings().default_memory,
             .state_since = {},
             .why = {},
             .starts_in = {}};
  if (const auto start = starts.find(job); start != starts.end())
    now.starts_in = std::max(start->second - queue_.now(), Duration::zero());
  if (now.standing && now.standing->reason != WaitReason::kNone)
    now.why = why_facts(queue_, job, *now.standing, [&](std::optional<std::uint32_t> uid) { return sight(peer, uid); });
  if (const auto* owner = queue_.find(job)) now.state_since = wall_now() - (queue_.now() - owner->state_since).count();
  if (now.standing && now.standing->limit_at) now.limit_in = *now.standing->limit_at - queue_.now();
  return now;
}

// ---- handing in --------------------------------------------------------------------------------------------

// Reads the store, and looks at the submitter: not for the loop.
Result<std::shared_ptr<const Submission>> JobApi::prepare(const std::string& body, const server::Peer& peer,
                                                          bool by_admin) const {
  auto parsed = parse_submission(body);
  if (!parsed) return tl::unexpected(parsed.error());
  auto submitter = look_at_submitter(peer);
  if (!submitter) return tl::unexpected(submitter.error());
  const auto submission = std::make_shared<Submission>(std::move(*parsed));
  submission->by_admin = by_admin;
  submission->document.submitter = std::move(*submitter);
  submission->document_text = to_text(submission->document);
  // A start would fail of this in the end: it is said while the submitter listens.
  const LaunchedJob first{
      .id = JobId{1}, .array = JobId{submission->elements.empty() ? 0u : 1u}, .name = submission->name, .gpus = {}};
  if (const auto errors = error_path(submission->document, first); !errors) return tl::unexpected(errors.error());
  if (const auto log = log_path(submission->document, first, ""); !log) return tl::unexpected(log.error());
  const std::uint64_t bytes =
      submission->document_text.size() * std::max<std::uint64_t>(submission->elements.size(), 1);
  if (bytes > kMaxArrayBytes) {
    return base::fail(Code::kInvalid,
                      "the array's elements and their environments are too large together: submit "
                      "a smaller array, or a script that sets the variables that it needs");
  }
  GPUMUX_TRY(queue_.store()->room_for(bytes));
  return submission;
}

server::ApiAnswer JobApi::submit(const server::ApiRequest& request) {
  auto body = std::make_shared<const std::string>(request.body);
  return server::ApiLater([this, body, peer = request.peer](server::ApiReply reply) {
    on_pool([this, body, peer, by_admin = access_.may_change(peer)] { return prepare(*body, peer, by_admin); },
            [this, peer, reply = std::move(reply)](Result<std::shared_ptr<const Submission>> submission) {
              if (!submission) return reply(server::error_response(submission.error()));
              // The last look before the job is stored.
              if (peer.has_ended())
                return reply(server::error_response({Code::kDenied, 0, "the process that submits has ended"}));
              queue_.submit(std::move(*submission), [reply](const Result<JobQueue::Submitted>& submitted) {
                if (!submitted) return reply(server::error_response(submitted.error()));
                Json answer{{"id", submitted->id.value}, {"count", submitted->count}};
                if (submitted->capped_at) answer["priority_capped"] = *submitted->capped_at;
                reply(server::json_response(answer, submitted->was_known ? 200 : 201));
              });
            });
  });
}

// ---- looking -----------------------------------------------------------------------------------------------

server::ApiAnswer JobApi::list(const server::Peer& peer, std::string_view query) {
  auto asked = parse_list(query);
  if (!asked) return server::error_response(asked.error());
  if (queue_.config().privacy == settings::Privacy::kOwn && !access_.may_change(peer)) asked->uid = peer.uid;
  return server::ApiLater(
      [this, peer, asked = *asked,
       user = server::decode_percent(server::query_value(query, "user").value_or(""))](server::ApiReply reply) {
        const auto read = [this, peer, asked, user, reply = std::move(reply)] {
          on_pool([this, asked, user] { return read_page(*queue_.store(), asked, user); },
                  [this, peer, reply](Result<store::Page> page) {
                    if (!page) return reply(server::error_response(page.error()));
                    list_page(peer, std::move(*page), reply);
                  });
        };
        // A history has what jobs have had of GPUs up to now. A list of what runs is asked for again and again.
        if (asked.which == store::Query::Which::kUnfinished) return read();
        ledger_.flush(read);
      });
}

// The loop says where each job of the page stands now; the pool writes the text.
void JobApi::list_page(const server::Peer& peer, store::Page page, server::ApiReply reply) {
  std::vector<std::pair<JobNow, Sight>> looks;
  looks.reserve(page.jobs.size());
  const Starts starts = queue_.core().expected_starts();
  for (const store::StoredJob& job : page.jobs)
    looks.emplace_back(now_of(peer, job.spec.id, starts), sight(peer, job.spec.uid));
  on_pool(
      [this, page = std::move(page), looks = std::move(looks)] {
        std::string text = "{\"jobs\": [";
        const char* separator = "";
        for (std::size_t i = 0; i < page.jobs.size(); ++i) {
          const auto& [now, seen] = looks[i];
          if (seen == Sight::kNothing) continue;
          text += std::exchange(separator, ",\n");
          append_job(text, page.jobs[i], now, seen, *names_);
        }
        text += std::string("], \"more\": ") + (page.more ? "true" : "false") + "}\n";
        return server::ApiResponse{200, std::move(text)};
      },
      std::move(reply));
}

// `found` is called on the loop.
void JobApi::find_job(std::string_view which, std::function<void(Result<store::StoredJob>)> found) {
  const auto name = JobName::parse(which);
  if (!name) return found(tl::unexpected(name.error()));
  on_pool([this, name = *name] { return look_up(*queue_.store(), name); },
          [found = std::move(found)](Result<Found> job) {
            if (!job) return found(tl::unexpected(job.error()));
            found(std::move(job->job));
          });
}

void JobApi::show_job(const server::Peer& peer, std::string which, JobId id, bool with_environment,
                      server::ApiReply reply) {
  const auto show = [this, peer, which = std::move(which), id, with_environment,
                     reply = std::move(reply)](Result<store::StoredJob> job) {
    if (!job) return reply(server::error_response(job.error()));
    const Sight seen = sight(peer, job->spec.uid);
    if (seen == Sight::kNothing) return reply(server::error_response(no_job(which)));
    on_pool(
        [this, id, with_environment, job = std::move(*job), seen,
         now = now_of(peer, id, queue_.core().expected_starts()), view = queue_.view(id)] {
          std::string body;
          const auto text = seen == Sight::kOwn ? queue_.store()->document(id) : Result<std::string>("");
          auto document = text ? parse_document(*text) : Result<JobDocument>(tl::unexpected(text.error()));
          if (document) take_order(*document, job);
          const JobDetails details{document ? &*document : nullptr, view, with_environment};
          append_job(body, job, now, seen, *names_, seen == Sight::kOwn ? &details : nullptr);
          return server::ApiResponse{200, body + "\n"};
        },
        reply);
  };
  on_pool([this, id] { return queue_.store()->find(id); }, show);
}

server::ApiAnswer JobApi::show(const server::Peer& peer, std::string_view which, bool with_environment) {
  return server::ApiLater([this, peer, which = std::string(which), with_environment](server::ApiReply reply) {
    ledger_.flush([this, peer, which, with_environment, reply] {
      find_job(which, [this, peer, which, with_environment, reply](const Result<store::StoredJob>& job) {
        if (!job) return reply(server::error_response(job.error()));
        show_job(peer, which, job->spec.id, with_environment, reply);
      });
    });
  });
}

server::ApiAnswer JobApi::wait(const server::Peer& peer, std::string_view which, std::string_view query) {
  const bool is_start = server::query_value(query, "until") == "started";
  Duration patience = kLongestWait;
  if (const auto text = server::query_value(query, "timeout_ns")) {
    const auto parsed = base::parse_integer(*text, 0, INT64_MAX);
    if (!parsed) return server::error_response(invalid("timeout_ns must be a number"));
    patience = std::min(patience, Duration(static_cast<std::int64_t>(*parsed)));
  }
  return server::ApiLater([this, peer, which = std::string(which), patience, is_start](server::ApiReply reply) {
    find_job(which, [this, peer, which, patience, is_start, reply](const Result<store::StoredJob>& job) {
      if (!job) return reply(server::error_response(job.error()));
      if (sight(peer, job->spec.uid) == Sight::kNothing) return reply(server::error_response(no_job(which)));
      const JobId id = job->spec.id;
      queue_.wait(id, is_start, patience, [this, peer, which, id, reply] { show_job(peer, which, id, false, reply); });
    });
  });
}

// ---- changing ----------------------------------------------------------------------------------------------

server::ApiAnswer JobApi::change(const server::ApiRequest& request, std::string_view which) {
  auto change = parse_change(request.body);
  if (!change) return server::error_response(change.error());
  change->by_admin = access_.may_change(request.peer);
  if (which == "all") {
    if (!access_.may_change(request.peer)) return server::error_response(not_admin(request.peer, "everybody's jobs"));
    return server::ApiLater(
        [this, change = *change](server::ApiReply reply) { change_all(std::nullopt, change, reply); });
  }
  static constexpr std::string_view kUser = "user:";
  if (which.starts_with(kUser)) {
    return server::ApiLater([this, peer = request.peer, change = *change,
                             user = std::string(which.substr(kUser.size()))](server::ApiReply reply) {
      on_pool([user] { return find_uid(user); },
              [this, peer, change, reply = std::move(reply)](const Result<std::uint32_t>& uid) {
                if (!uid) return reply(server::error_response(uid.error()));
                if (*uid != peer.uid && !access_.may_change(peer))
                  return reply(server::error_response(denied(peer, "change that user's jobs")));
                change_all(*uid, change, reply);
              });
    });
  }
  std::vector<JobName> names;
  for (const std::string_view one : base::split(which, ',')) {
    const auto name = JobName::parse(one);
    if (!name) return server::error_response(name.error());
    names.push_back(*name);
  }
  return server::ApiLater(
      [this, peer = request.peer, change = *change, names = std::move(names)](server::ApiReply reply) {
        const auto look = [this, names] {
          std::vector<Result<Found>> found;
          for (const JobName& name : names) found.push_back(look_up(*queue_.store(), name));
          return found;
        };
        on_pool(look, [this, peer, change, names, reply = std::move(reply)](std::vector<Result<Found>> found) {
          for (std::size_t i = 0; i < found.size(); ++i) {
            if (found[i] && sight(peer, found[i]->job.spec.uid) == Sight::kNothing)
              found[i] = tl::unexpected(no_job(names[i].text()));
          }
          change_found(peer, names, found, change, reply);
        });
      });
}

void JobApi::change_found(const server::Peer& peer, const std::vector<JobName>& names,
                          const std::vector<Result<Found>>& jobs, const JobQueue::Change& change,
                          const server::ApiReply& reply) {
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
    const JobSpec& spec = found->job.spec;
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
    server::log_warning("changes of jobs were denied", {{"uid", peer.uid}, {"pid", peer.pid}, {"jobs", denied_jobs}});
  if (seen.empty()) return reply(server::error_response(*asked.back().refused));
  change_jobs(std::move(asked), change, reply);
}

void JobApi::change_all(std::optional<std::uint32_t> uid, const JobQueue::Change& change,
                        const server::ApiReply& reply) {
  std::vector<Asked> asked;
  for (const JobId job : queue_.unfinished(uid)) asked.push_back({job, {}});
  change_jobs(std::move(asked), change, reply);
}

void JobApi::change_jobs(std::vector<Asked> asked, const JobQueue::Change& change, const server::ApiReply& reply) {
  std::vector<JobId> jobs;
  for (const Asked& one : asked) {
    if (!one.refused) jobs.push_back(one.job);
  }
  // There may be a million.
  const auto all = std::make_shared<const std::vector<Asked>>(std::move(asked));
  const auto tell = [this, all, reply](Result<JobQueue::Changed> changed) {
    if (!changed) return reply(server::error_response(changed.error()));
    on_pool(
        [all, changed = std::move(*changed)] {
          std::string body = "{\"jobs\": [";
          auto next = changed.jobs.begin();
          for (const Asked& one : *all) {
            const auto why = changed.refused.find(one.job);
            const base::Error* const refused = one.refused                    ? &*one.refused
                                               : why != changed.refused.end() ? &why->second
                                                                              : nullptr;
            const bool is_changed = next != changed.jobs.end() && *next == one.job && refused == nullptr;
            if (is_changed) ++next;
            if (&one != &all->front()) body += ",\n";
            body += "{\"id\": " + std::to_string(one.job.value) + ", \"changed\": ";
            body += is_changed ? "true" : "false";
            if (refused != nullptr)
              body += ", \"error\": " +
                      Json{{"code", server::api_code(refused->code)}, {"message", refused->message()}}.dump();
            body += "}";
          }
          return server::ApiResponse{200, body + "]}\n"};
        },
        reply);
  };
  queue_.change(std::move(jobs), change, tell);
}

}  // namespace gpumux::jobs
