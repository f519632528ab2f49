// SPDX-License-Identifier: Apache-2.0
// The job queue's door: it checks submissions against the machine, numbers them, and gives them to core and store.
#include <algorithm>
#include <utility>

#include "base/units.h"
#include "jobs/service/job_queue.h"
#include "jobs/service/job_why.h"

namespace gpumux::jobs {
namespace {

using base::Code;
using base::Result;
using base::Status;

}  // namespace

// Whether the submitter may come after a job of `owner` (none: there is no such job). A job that the submitter may not
// see is not there. That a job waits for `ok`, and starts, says how the other one ended: it may be asked only where
// that is shown.
Status JobQueue::check_after(const Dependency& dependency, std::optional<std::uint32_t> owner,
                             std::uint32_t submitter) const {
  const std::string job = std::to_string(dependency.on.value);
  const bool is_own = owner == submitter;
  if (!owner || (!is_own && config_.privacy == settings::Privacy::kOwn))
    return base::fail(Code::kInvalid, "after: there is no job " + job);
  if (is_own || config_.privacy == settings::Privacy::kOpen || dependency.need == Dependency::Need::kAny) return {};
  return base::fail(Code::kDenied,
                    "after: job " + job +
                        " is another user's, and its outcome is not shown (privacy = " + "limited): use any:" + job);
}

// A job that the core does not know is done, or was never there. `is_too_early`: its end is on its way into the store.
Status JobQueue::resolve_dependencies(JobSpec& spec, bool by_admin, bool& is_too_early) const {
  for (Dependency& dependency : spec.after) {
    const Owner* owner = find(dependency.on);
    std::optional<std::uint32_t> uid = owner != nullptr ? std::optional(owner->uid) : std::nullopt;
    if (!uid) {
      const auto stored = store_->find(dependency.on);
      if (!stored && stored.error().code != Code::kNotFound) return tl::unexpected(stored.error());
      if (stored) uid = stored->spec.uid;
      dependency.whole_array = stored && stored->spec.array == dependency.on;
    } else {
      dependency.whole_array = owner->array == dependency.on;
    }
    GPUMUX_TRY(check_after(dependency, uid, by_admin && uid ? *uid : spec.uid));
    const auto pending = [&] {
      if (!dependency.whole_array) return core_.standing(dependency.on).has_value();
      const std::vector<JobId> left = elements(dependency.on);
      return std::any_of(left.begin(), left.end(), [&](JobId job) { return core_.standing(job).has_value(); });
    };
    if (pending()) continue;
    const auto fate = store_->fate(dependency);
    if (!fate) return tl::unexpected(fate.error());
    dependency.fate = *fate;
    is_too_early = is_too_early || *fate == Dependency::Fate::kPending;
  }
  return {};
}

Result<std::string> JobQueue::log_of(const Submission& submission, const JobSpec& spec) const {
  const LaunchedJob job{
      .id = spec.id, .array = spec.array, .array_index = spec.array_index, .name = submission.name, .gpus = {}};
  return log_path(submission.document, job, runs_->launch().store_id);
}

void JobQueue::submit(std::shared_ptr<const Submission> submission, std::function<void(Result<Submitted>)> reply) {
  if (state_ != State::kOpen) return reply(base::fail(Code::kUnavailable, unavailable_));
  const Token token(submission->document.submitter.uid, submission->token);
  if (!token.second.empty()) {
    if (const auto same = tokens_.find(token); same != tokens_.end()) {
      same->second.push_back([reply = std::move(reply)](Result<Submitted> result) {
        if (result) result->was_known = true;
        reply(std::move(result));
      });
      return;
    }
    const auto known = store_->find_token(token.first, token.second);
    if (!known) return reply(tl::unexpected(known.error()));
    if (*known) {
      Submitted answer{.id = **known, .was_known = true, .capped_at = {}};
      if (const auto page = store_->page(query_of_array(**known)); page && !page->jobs.empty()) {
        answer.count = static_cast<std::uint32_t>(page->jobs.size());
      }
      return reply(answer);
    }
  }
  JobSpec spec = submission->spec;
  spec.uid = token.first;
  bool is_too_early = false;
  if (const auto resolved = resolve_dependencies(spec, submission->by_admin, is_too_early); !resolved)
    return reply(tl::unexpected(resolved.error()));
  if (is_too_early) {
    if (!unsaved_.empty())
      return reply(base::fail(Code::kUnavailable,
                              "jobs cannot be stored at present (the daemon's log says why): try again later"));
    // Behind everything that is on its way.
    return hand_over({}, {}, [this, submission, reply = std::move(reply)](const Status& status) mutable {
      if (!status) return reply(tl::unexpected(status.error()));
      submit(submission, std::move(reply));
    });
  }
  spec.id = next_id_;
  spec.begin = moment_of(submission->begin_at, clock_.now());
  const UserLimits& limits = limits_of(spec.uid);
  if (const auto refusal = core_.refusal(spec)) return reply(tl::unexpected(describe(*refusal, spec, limits, core_)));

  const std::uint32_t count =
      submission->elements.empty() ? 1 : static_cast<std::uint32_t>(submission->elements.size());
  const std::uint64_t bytes = submission->document_text.size() + spec.after.size() * kDependencyBytes;
  if (const auto checked = check_bytes(spec.uid, bytes * count); !checked)
    return reply(tl::unexpected(checked.error()));
  std::vector<Command> commands;
  std::vector<store::Insert> inserts;
  inserts.reserve(count);
  const std::shared_ptr<const std::string> document(submission, &submission->document_text);
  const store::WallTime submitted_at = wall_now();
  std::optional<Refusal> refused;
  if (!submission->elements.empty()) spec.array = spec.id;
  for (std::uint32_t i = 0; i < count && !refused; ++i) {
    spec.id = JobId{next_id_.value + i};
    if (!submission->elements.empty()) spec.array_index = submission->elements[i];
    if ((refused = core_.refusal(spec))) break;
    apply_now(jobs::Submitted{spec, submission->by_admin}, commands);
    store::Insert& insert = inserts.emplace_back();
    insert.job.spec = spec;
    insert.job.core.state = spec.held ? JobState::kHeld : JobState::kQueued;
    insert.job.name = submission->name;
    insert.job.command = submission->command;
    insert.job.log = log_of(*submission, spec).value_or("");  // the API has asked already whether it can be
    if (i == 0) insert.job.token = submission->token;
    insert.job.submitted_at = submitted_at;
    insert.job.begin_at = submission->begin_at;
    insert.document = document;
    own(spec.id, {.uid = spec.uid,
                  .array_index = spec.array_index,
                  .array = spec.array,
                  .bytes = bytes,
                  .submitted_at = submitted_at,
                  .name = submission->name,
                  .row = {insert.job, spec.request()}});
  }
  Submitted answer{.id = next_id_, .count = count, .capped_at = {}};
  if (const auto at = standing(next_id_); at && at->capped < at->priority) answer.capped_at = at->capped;
  if (refused) {
    // As if it had never been: nothing of it has been stored or started. Its commands for other jobs stand.
    for (const store::Insert& insert : inserts) {
      const JobId job = insert.job.spec.id;
      disown(job);
      apply_now(Withdrawn{job}, commands);
      std::erase_if(commands, [job](const Command& command) {
        return std::visit([job]<class C>(const C& c) { return c.job == job; }, command);
      });
    }
    hand_over(std::move(commands), {}, nullptr);
    return reply(tl::unexpected(describe(*refused, spec, limits, core_)));
  }
  next_id_ = JobId{next_id_.value + count};
  const bool has_token = !token.second.empty();
  if (has_token) tokens_[token].push_back(std::exchange(reply, nullptr));
  hand_over(std::move(commands), std::move(inserts),
            [this, has_token, token, answer, reply = std::move(reply)](const Status& status) {
              Result<Submitted> result = answer;
              if (!status) result = tl::unexpected(status.error());
              if (has_token) return submitted(token, result);
              reply(result);
            });
}

Status JobQueue::check_bytes(std::uint32_t uid, std::uint64_t bytes) const {
  const auto user = document_bytes_.find(uid);
  const std::uint64_t has = user != document_bytes_.end() ? user->second : 0;
  if (has + bytes <= config_.max_bytes) return {};
  return base::fail(Code::kDenied,
                    "max_bytes: arguments, environments and dependencies of your jobs that are not done may have " +
                        base::format_bytes(config_.max_bytes.value()) + "; they have " + base::format_bytes(has) +
                        ", and this would add " + base::format_bytes(bytes) +
                        ". Wait until some are done, cancel some (`gpumux cancel`), or hand in with a "
                        "smaller environment (`env -i`) or fewer dependencies");
}

void JobQueue::own(JobId job, Owner owner) {
  document_bytes_[owner.uid] += owner.bytes;
  owner.state_since = clock_.now();
  owners_[job] = std::move(owner);
}

void JobQueue::disown(JobId job) {
  const auto found = owners_.find(job);
  if (found == owners_.end()) return;
  const auto user = document_bytes_.find(found->second.uid);
  if ((user->second -= found->second.bytes) == 0) document_bytes_.erase(user);
  owners_.erase(found);
  unsaved_.erase(job);
}

void JobQueue::submitted(const Token& token, const Result<Submitted>& result) {
  const auto waiting = tokens_.extract(token);
  if (waiting.empty()) return;
  for (const auto& reply : waiting.mapped()) reply(result);
}

}  // namespace gpumux::jobs
