// SPDX-License-Identifier: Apache-2.0
// Room on GPUs: which jobs fit where now(), where the first that does not fit will start, and which may start before
// it.
//
// The first job in order that cannot start has a *reservation*. It names the GPUs on which the job can start soonest.
// By the time limits of the present jobs, it also names the latest time of that start. A job behind it may start on
// these GPUs only if that cannot delay it. Either that job ends by then, or the memory left there is enough for both.
// If no time limit bounds the start, "enough for both" is strict: it counts_ all jobs next to which the reserved one
// could start.
//
// Why one reservation, and not one for each waiting job: every event would need a new plan for the whole queue. Most of
// such a plan never comes true, for jobs end before their limits. With one, the first in order is never delayed. Every
// job becomes first at some time, so no job waits for ever.
#include <algorithm>
#include <tuple>

#include "jobs/core/planner.h"

namespace gpumux::jobs {
namespace {

bool contains(const std::vector<Job*>& jobs, const Job* job) {
  return std::find(jobs.begin(), jobs.end(), job) != jobs.end();
}

}  // namespace

// Bounds that tell in one comparison that a job cannot start: most of those that a look meets cannot.
void Planner::survey_room() {
  const bool some_may_go = runs_.may_leave() || settings().preempt;
  most_free_ = most_gain_ = 0;
  gain_.assign(gpus_.all().size(), 0);
  for (const GpuIndex index : gpus_.usable()) {
    const Gpu& gpu = gpus_.at(index);
    const std::uint64_t room = gpus_.promisable(gpu) - std::min(gpus_.promisable(gpu), gpu.foreign);
    const bool alone = !gpu.occupants.empty() && gpu.occupants.front()->spec.exclusive;
    if (!alone) most_free_ = std::max(most_free_, room - std::min(room, gpu.promised));
    if (!some_may_go) continue;
    std::uint64_t stays = 0;
    for (const Job* job : gpu.occupants) {
      const bool may_go = job->leaves() || job->overdue() || (settings().preempt && job->in<Job::Running>());
      if (!may_go) stays += Gpus::on_gpu(*job->request, gpu);
    }
    gain_[index.value] = room - std::min(room, stays);
    most_gain_ = std::max(most_gain_, gain_[index.value]);
  }
}

std::uint64_t Planner::least_need(const Job& job) const {
  const std::uint64_t wanted_bytes = gpus_.wanted_memory(job.spec);
  return wanted_bytes == 0 ? gpus_.smallest() : std::min(wanted_bytes, gpus_.smallest());
}

// No waiting job wants less.
std::uint64_t Planner::least_need_of_all() const {
  std::uint64_t least = gpus_.smallest();
  auto wanted_bytes = waiting_.memories().begin();
  if (wanted_bytes != waiting_.memories().end() && wanted_bytes->first == 0) {
    if (settings().default_memory != 0) least = std::min(least, settings().default_memory);
    ++wanted_bytes;
  }
  return wanted_bytes == waiting_.memories().end() ? least : std::min(least, wanted_bytes->first);
}

// Where it fits now() without delaying the job with the reservation. Of any GPUs those on which least is left over, so
// that large requests find whole GPUs. Of these, the ones to which fewest suspended jobs want back.
std::optional<GpuSet> Planner::best_fit(const Job& job, const GpuSet& closed) const {
  if (least_need(job) > most_free_) return std::nullopt;
  const std::uint32_t count = job.wanted_gpus();
  std::vector<std::pair<std::pair<std::uint64_t, std::uint32_t>, GpuIndex>> fitting;
  for (const GpuIndex index : gpus_.usable_for(job)) {
    const Gpu& gpu = gpus_.at(index);
    const bool good = !closed.contains(index) && gpus_.fits_now(job, gpu) &&
                      (!gpus_.reservation().gpus.contains(index) || may_start_beside_reservation(job, gpu));
    if (!good) {
      if (job.has_its_gpus()) return std::nullopt;
      continue;
    }
    const std::uint64_t left = gpus_.promisable(gpu) - gpu.foreign - gpu.promised;
    fitting.push_back({{left, gpu.suspended}, index});
  }
  if (fitting.size() < count) return std::nullopt;
  std::partial_sort(fitting.begin(), fitting.begin() + count, fitting.end());
  GpuSet on;
  for (std::uint32_t i = 0; i < count; ++i) on.insert(fitting[i].second);
  return on;
}

// ---- the reservation ----------------------------------------------------------------------------

// The latest time of its end, as a waiting job sees it; max(): it cannot be told.
TimePoint Planner::expected_end(const Job& job, const Job& waiter) const {
  if (job.leaves()) return now();
  if (job.suspend_refused()) return TimePoint::max();
  const auto* const running = job.in<Job::Running>();
  return expected_end(job, running != nullptr ? running->since : now(), waiter);
}

// The same of one whose time limit runs down from `since` on.
TimePoint Planner::expected_end(const Job& job, TimePoint since, const Job& waiter) const {
  const Duration limit = runs_.limit_of(job);
  const bool goes_at_limit =
      job.spec.on_limit == OnLimit::kCancel || standing_towards(waiter, job) >= standing_towards(job, waiter);
  if (limit == kNoLimit || !goes_at_limit) return TimePoint::max();
  const Duration left = limit - std::min(limit, job.ran);
  return left > TimePoint::max() - since ? TimePoint::max() : std::max(now(), since + left);
}

// When it fits on this GPU at the latest, if only those of `planned` start there before it.
TimePoint Planner::earliest(const Job& job, const Gpu& gpu, const std::vector<Planned>& planned) const {
  std::vector<std::pair<TimePoint, const Job*>> ends;
  std::uint64_t taken = gpu.foreign + Gpus::on_gpu(gpus_.wanted_memory(job.spec), gpu);
  std::size_t in_the_way = 0;  // however much memory is left
  const auto blocks = [&](const Job& other) { return job.spec.exclusive || other.spec.exclusive; };
  for (const Job* other : gpu.occupants) {
    ends.push_back({expected_end(*other, job), other});
    taken += Gpus::on_gpu(*other->request, gpu);
    if (blocks(*other)) ++in_the_way;
  }
  TimePoint at = now();
  for (const Planned& other : planned) {
    if (!other.gpus.contains(gpu.index)) continue;
    if (other.start == TimePoint::max()) return TimePoint::max();
    at = std::max(at, other.start);
    ends.push_back({expected_end(*other.job, other.start, job), other.job});
    taken += Gpus::on_gpu(gpus_.request_of(*other.job), gpu);
    if (blocks(*other.job)) ++in_the_way;
  }
  std::sort(ends.begin(), ends.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first, a.second->spec.id) < std::pair(b.first, b.second->spec.id);
  });
  for (const auto& [end, other] : ends) {
    if (taken <= gpus_.promisable(gpu) && in_the_way == 0) break;
    at = std::max(at, end);
    taken -= Gpus::on_gpu(gpus_.request_of(*other), gpu);
    if (blocks(*other)) --in_the_way;
  }
  return taken <= gpus_.promisable(gpu) && in_the_way == 0 ? at : TimePoint::max();
}

// The GPUs on which it can start soonest. It keeps those that it had unless others promise to be sooner: else it might
// be kept waiting by changing its mind.
Reservation Planner::reserve(const Job& job, const Reservation& before) const {
  using Soonest = std::pair<TimePoint, std::uint64_t /* to become free */>;
  std::vector<std::pair<Soonest, GpuIndex>> choice;
  const GpuSet possible = gpus_.usable_for(job);
  TimePoint as_before{};
  for (const GpuIndex index : possible) {
    const Gpu& gpu = gpus_.at(index);
    const TimePoint at = earliest(job, gpu, {});
    choice.push_back({{at, gpu.promised + gpu.foreign}, index});
    if (before.gpus.contains(index)) as_before = std::max(as_before, at);
  }
  const std::uint32_t count = job.wanted_gpus();
  std::partial_sort(choice.begin(), choice.begin() + count, choice.end());
  Reservation reserved{job.spec.id, {}, TimePoint{}};
  for (std::uint32_t i = 0; i < count; ++i) {
    reserved.gpus.insert(choice[i].second);
    reserved.start = std::max(reserved.start, choice[i].first.first);
  }
  const bool same = before.job == job.spec.id && before.gpus.size() == count && before.gpus.is_subset_of(possible);
  if (same && as_before <= reserved.start) return {job.spec.id, before.gpus, as_before};
  return reserved;
}

bool Planner::may_start_beside_reservation(const Job& job, const Gpu& gpu) const {
  const Job& first = *jobs().at(gpus_.reservation().job);
  const Duration limit = runs_.limit_of(job);
  const bool known = gpus_.reservation().start != TimePoint::max();
  if (known && limit != kNoLimit && limit - std::min(limit, job.ran) <= gpus_.reservation().start - now()) return true;
  if (job.spec.exclusive || first.spec.exclusive) return false;
  const std::uint64_t needed = gpu.foreign + Gpus::on_gpu(gpus_.wanted_memory(first.spec), gpu);
  if (needed > gpus_.promisable(gpu)) return false;
  const std::uint64_t spare = gpus_.promisable(gpu) - needed;
  std::uint64_t beside = Gpus::on_gpu(gpus_.wanted_memory(job.spec), gpu);
  for (const Job* other : gpu.occupants) {
    const std::uint64_t has = Gpus::on_gpu(*other->request, gpu);
    const bool stays =
        known ? expected_end(*other, first) > gpus_.reservation().start : has <= spare && !other->spec.exclusive;
    if (stays) beside += has;
  }
  return beside <= spare;
}

// ---- jobs that have to go -----------------------------------------------------------------------

bool Planner::gives_way(const Job& job, const Job& to) const {
  if (!job.in<Job::Running>() || job.suspend_refused()) return false;
  const Standing wanted_by = standing_towards(to, job), has = standing_towards(job, to);
  // A floor is behind all of the same capped priority, its user's own jobs included.
  const bool goes_behind = to.floor() && to.spec.capped == job.spec.capped;
  if (settings().preempt && wanted_by > has && !goes_behind) return true;
  return job.overdue() && (job.spec.on_limit == OnLimit::kCancel || wanted_by >= has);
}

// Where it would fit if the jobs went that are going anyway, and as few others as possible that have to give way to it.
// Not on GPUs that are kept for a job before it. `before`: GPUs on which others make way for it already.
std::optional<WayIn> Planner::way_in(const Job& job, const GpuSet& closed, const GpuSet& before) const {
  if (least_need(job) > most_gain_) return std::nullopt;
  struct Choice {
    std::size_t victims;
    Standing standing;        // the highest of the victims'
    std::uint64_t not_since;  // the lower the later the first of the victims came
    bool is_new;              // it is not one on which others make way already
    std::uint64_t promised;
    GpuIndex gpu;
    std::vector<Job*> out;
  };
  std::vector<Choice> choices;
  for (const GpuIndex index : gpus_.usable_for(job)) {
    const Gpu& gpu = gpus_.at(index);
    std::optional<Choice> choice;
    const bool possible = Gpus::on_gpu(gpus_.wanted_memory(job.spec), gpu) <= gain_[index.value];
    if (possible && !closed.contains(index) && !gpus_.reservation().gpus.contains(index)) {
      std::vector<Job*> out, may_go;
      for (Job* other : gpu.occupants) {
        if (other->leaves()) out.push_back(other);
        if (gives_way(*other, job)) may_go.push_back(other);
      }
      // The least important first; of equals one whose time is over, then the latest.
      std::sort(may_go.begin(), may_go.end(), [&job](const Job* a, const Job* b) {
        const Standing of_a = standing_towards(*a, job), of_b = standing_towards(*b, job);
        if (of_a != of_b) return of_a < of_b;
        if (a->overdue() != b->overdue()) return a->overdue();
        return a->spec.order > b->spec.order;
      });
      std::size_t victims = 0;
      while (!gpus_.fits(job, gpu, out) && victims < may_go.size()) out.push_back(may_go[victims++]);
      if (gpus_.fits(job, gpu, out)) {
        choice =
            Choice{victims, {INT32_MIN, INT32_MIN}, 0, !before.contains(index), gpu.promised, index, std::move(out)};
        for (std::size_t i = 0; i < victims; ++i) {
          choice->standing = std::max(choice->standing, standing_towards(*may_go[i], job));
          choice->not_since = std::max(choice->not_since, UINT64_MAX - may_go[i]->spec.order);
        }
      }
    }
    if (choice) choices.push_back(std::move(*choice));
    if (!choice && job.has_its_gpus()) return std::nullopt;
  }
  const std::uint32_t count = job.wanted_gpus();
  if (choices.size() < count) return std::nullopt;
  std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
    return std::tie(a.victims, a.standing, a.not_since, a.is_new, a.promised, a.gpu) <
           std::tie(b.victims, b.standing, b.not_since, b.is_new, b.promised, b.gpu);
  });
  choices.erase(choices.begin() + count, choices.end());
  WayIn way;
  std::vector<Job*> out;
  for (const Choice& choice : choices) {
    way.gpus.insert(choice.gpu);
    for (Job* other : choice.out) {
      if (!contains(out, other)) out.push_back(other);
    }
  }
  // A job that runs on several of these GPUs may have made room where another was to go: that other job stays.
  for (std::size_t i = out.size(); i-- > 0;) {
    Job* const other = out[i];
    if (other->leaves()) continue;
    out.erase(out.begin() + static_cast<std::ptrdiff_t>(i));
    bool enough = true;
    for (const GpuIndex index : way.gpus) enough = enough && gpus_.fits(job, gpus_.at(index), out);
    if (!enough) {
      out.insert(out.begin() + static_cast<std::ptrdiff_t>(i), other);
      way.victims.push_back(other);
    }
  }
  std::reverse(way.victims.begin(), way.victims.end());
  return way;
}

}  // namespace gpumux::jobs
