// SPDX-License-Identifier: Apache-2.0
#include "store/memory_store.h"

#include <algorithm>
#include <mutex>
#include <set>

#include "store/checks.h"

namespace gpumux::store {
namespace {

using sched::jobs::Dependency;
using sched::jobs::JobState;

class MemoryStore final : public JobStore {
 public:
  Result<std::vector<Applied>> commit(const std::vector<Change>& changes) override {
    GPUMUX_TRY(check(changes));
    const std::lock_guard lock(mutex_);
    for (const Change& change : changes) {
      const auto* const insert = std::get_if<Insert>(&change);
      if (insert == nullptr || !jobs_.contains(insert->job.spec.id) || by_token(insert->job)) continue;
      return base::fail(base::Code::kExists, "job " + std::to_string(insert->job.spec.id.value) + " is stored already");
    }
    std::vector<Applied> applied;
    for (const Change& change : changes) {
      applied.push_back(std::visit([this](const auto& one) { return apply(one); }, change));
    }
    return applied;
  }

  Result<JobId> next_id() const override {
    const std::lock_guard lock(mutex_);
    return JobId{last_id_.value + 1};
  }

  Result<StoredJob> find(JobId job) const override {
    const std::lock_guard lock(mutex_);
    const auto found = jobs_.find(job);
    if (found == jobs_.end()) return not_found(job);
    return found->second.job;
  }

  Result<std::string> document(JobId job) const override {
    const std::lock_guard lock(mutex_);
    const auto found = jobs_.find(job);
    if (found == jobs_.end() || found->second.job.core.state == JobState::kDone) return not_found(job);
    return found->second.document;
  }

  Result<std::optional<JobId>> find_token(std::uint32_t uid, std::string_view token) const override {
    const std::lock_guard lock(mutex_);
    const auto found = tokens_.find({uid, std::string(token)});
    if (found == tokens_.end()) return std::nullopt;
    return found->second;
  }

  Result<Page> page(const Query& query) const override {
    const std::lock_guard lock(mutex_);
    const std::size_t at_most = std::clamp(query.at_most, 1u, kMaxPageJobs);
    Page page;
    const auto take = [&](const StoredJob& job) {
      const bool done = job.core.state == JobState::kDone;
      if (query.uid && job.spec.uid != *query.uid) return true;
      if (query.array && job.spec.array != *query.array) return true;
      if (query.array_index && job.spec.array_index != *query.array_index) return true;
      if (query.which == Query::Which::kUnfinished && done) return true;
      if (query.which == Query::Which::kDone && !done) return true;
      page.more = page.jobs.size() == at_most;
      if (page.more) return false;
      page.jobs.push_back(job);
      page.jobs.back().spec.after.clear();
      return true;
    };
    if (query.order == Query::Order::kLatestEnd) {
      std::set<std::pair<WallTime, JobId>> ends;
      for (const auto& [id, entry] : jobs_) ends.insert({entry.job.ended_at, id});
      auto at = query.beyond == sched::jobs::kNoJob ? ends.end() : ends.lower_bound({query.beyond_ended, query.beyond});
      while (at != ends.begin() && take(jobs_.at((--at)->second).job)) continue;
    } else if (query.order == Query::Order::kNewest) {
      auto at = query.beyond == sched::jobs::kNoJob ? jobs_.end() : jobs_.lower_bound(query.beyond);
      while (at != jobs_.begin() && take((--at)->second.job)) continue;
    } else {
      for (auto at = jobs_.upper_bound(query.beyond); at != jobs_.end() && take(at->second.job);) ++at;
    }
    return page;
  }

  Result<std::vector<StoredJob>> unfinished() const override {
    const std::lock_guard lock(mutex_);
    std::vector<StoredJob> all;
    for (const auto& [id, entry] : jobs_) {
      if (entry.job.core.state == JobState::kDone) continue;
      all.push_back(entry.job);
      all.back().document_bytes = entry.document.size();
      for (Dependency& dependency : all.back().spec.after) {
        if (dependency.fate != Dependency::Fate::kPending) continue;
        dependency.fate = known_fate(dependency).value_or(Dependency::Fate::kBroken);
      }
    }
    return all;
  }

  Result<Dependency::Fate> fate(const Dependency& dependency) const override {
    const std::lock_guard lock(mutex_);
    const std::optional<Dependency::Fate> fate = known_fate(dependency);
    if (!fate) return not_found(dependency.on);
    return *fate;
  }

  Status room_for(std::uint64_t /*bytes*/) const override { return {}; }

  Result<std::map<std::uint32_t, std::uint64_t>> with_more_done_than(std::uint64_t most) const override {
    const std::lock_guard lock(mutex_);
    std::map<std::uint32_t, std::uint64_t> more;
    for (const auto& [id, entry] : jobs_) {
      if (entry.job.core.state == JobState::kDone) ++more[entry.job.spec.uid];
    }
    std::erase_if(more, [most](const auto& user) { return user.second <= most; });
    for (auto& [uid, count] : more) count -= most;
    return more;
  }

  Result<std::vector<Usage>> usage() const override {
    const std::lock_guard lock(mutex_);
    std::vector<Usage> all;
    for (const auto& [uid, usage] : usage_) all.push_back(usage);
    return all;
  }

  Result<std::map<std::string, std::string>> values() const override {
    const std::lock_guard lock(mutex_);
    return values_;
  }

 private:
  struct Entry {
    StoredJob job;
    std::string document;
  };

  static tl::unexpected<base::Error> not_found(JobId job) {
    return base::fail(base::Code::kNotFound, "there is no job " + std::to_string(job.value));
  }

  std::optional<JobId> by_token(const StoredJob& job) const {
    const auto found = job.token.empty() ? tokens_.end() : tokens_.find({job.spec.uid, job.token});
    if (found == tokens_.end()) return std::nullopt;
    return found->second;
  }

  std::optional<Dependency::Fate> known_fate(const Dependency& dependency) const {
    if (!dependency.whole_array) {
      const auto found = jobs_.find(dependency.on);
      if (found == jobs_.end()) return std::nullopt;
      return fate_of(dependency.need, found->second.job.core.state, found->second.job.core.outcome);
    }
    std::optional<Dependency::Fate> all;
    for (const auto& [id, entry] : jobs_) {
      if (entry.job.spec.array != dependency.on) continue;
      const Dependency::Fate one = fate_of(dependency.need, entry.job.core.state, entry.job.core.outcome);
      if (one == Dependency::Fate::kBroken) return one;
      if (!all || one == Dependency::Fate::kPending) all = one;
    }
    return all;
  }

  Applied apply(const Insert& insert) {
    if (const std::optional<JobId> first = by_token(insert.job)) return {false, first, 0};
    const JobId id = insert.job.spec.id;
    last_id_ = std::max(last_id_, id);
    if (!insert.job.token.empty()) tokens_[{insert.job.spec.uid, insert.job.token}] = id;
    Entry& entry = jobs_[id];
    entry = {insert.job, std::string(insert.text())};
    take_over(entry.job, insert.job.core);
    return {};
  }

  static void take_over(StoredJob& job, const sched::jobs::Record& core) {
    job.core = core;
    job.core.job = job.spec.id;
    job.spec.order = core.order;
    job.spec.priority = core.priority;
    job.spec.capped = core.capped;
    job.spec.held = core.held;
  }

  Applied apply(const Update& update) {
    const auto found = jobs_.find(update.job);
    if (found == jobs_.end()) return {false, {}, 0};
    StoredJob& job = found->second.job;
    if (update.core) take_over(job, *update.core);
    if (job.core.state == JobState::kDone) {
      found->second.document.clear();
      job.spec.after.clear();
    }
    if (update.started_at) job.started_at = *update.started_at;
    if (update.ended_at) job.ended_at = *update.ended_at;
    if (update.exit_status) job.exit_status = *update.exit_status;
    if (update.note) job.note = *update.note;
    return {};
  }

  Applied apply(const PutUsage& put) {
    usage_[put.uid] = {put.uid, put.gpu_microseconds, put.at};
    return {};
  }

  Applied apply(const PutValue& put) {
    if (put.value.empty()) {
      values_.erase(put.key);
    } else {
      values_[put.key] = put.value;
    }
    return {};
  }

  Applied apply(const Prune& prune) {
    std::set<JobId> needed_jobs, needed_arrays;
    for (const auto& [id, entry] : jobs_) {
      for (const Dependency& one : entry.job.spec.after) {
        if (is_needed(entry.job, one)) (one.whole_array ? needed_arrays : needed_jobs).insert(one.on);
      }
    }
    std::set<std::pair<WallTime, JobId>> old;
    for (const auto& [id, entry] : jobs_) {
      if (entry.job.core.state != JobState::kDone || entry.job.ended_at >= prune.ended_before) continue;
      if (prune.uid && entry.job.spec.uid != *prune.uid) continue;
      if (needed_jobs.contains(id) || needed_arrays.contains(entry.job.spec.array)) continue;
      old.insert({entry.job.ended_at, id});
    }
    Applied applied;
    for (const auto& [at, id] : old) {
      if (applied.pruned == prune.at_most) break;
      const auto found = jobs_.find(id);
      tokens_.erase({found->second.job.spec.uid, found->second.job.token});
      jobs_.erase(found);
      ++applied.pruned;
    }
    return applied;
  }

  mutable std::mutex mutex_;
  std::map<JobId, Entry> jobs_;
  std::map<std::pair<std::uint32_t, std::string>, JobId> tokens_;
  std::map<std::uint32_t, Usage> usage_;
  std::map<std::string, std::string> values_;
  JobId last_id_;
};

}  // namespace

std::unique_ptr<JobStore> make_memory_store() { return std::make_unique<MemoryStore>(); }

}  // namespace gpumux::store
