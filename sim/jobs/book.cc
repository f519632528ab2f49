// SPDX-License-Identifier: Apache-2.0
#include "sim/jobs/book.h"

#include <algorithm>
#include <utility>

namespace gpumux::simjobs {

std::uint64_t Book::request(const BookedJob& job) const {
  return job.spec.memory != 0 ? job.spec.memory : settings.default_memory;
}

std::string Book::put(JobId id, const GpuSet& where) {
  BookedJob& job = jobs.at(id);
  const std::string who = "job " + std::to_string(id.value);
  if (job.on_gpus) return who + " is started twice";
  if (where.size() != job.spec.wanted_gpus()) return who + " gets another number of GPUs than it wants";
  if (!job.spec.gpus.empty() && where != job.spec.gpus) return who + " gets other GPUs than it named";
  if (job.suspended && where != job.gpus) return who + " is resumed on other GPUs";
  job.request = request(job);
  for (const GpuIndex index : where) {
    if (index.value >= gpus.size()) return who + " is started on a GPU that is not there";
    BookedGpu& gpu = gpus[index.value];
    const std::string there = who + " on GPU " + std::to_string(index.value);
    if (!gpu.takes_jobs()) return there + ", which takes no jobs";
    std::uint64_t taken = gpu.foreign + on(gpu, job.request);
    for (const JobId other : gpu.jobs) {
      if (job.spec.exclusive || jobs.at(other).spec.exclusive) return there + " beside an exclusive job";
      taken += on(gpu, jobs.at(other).request);
    }
    if (taken * 1000 > gpu.capacity * settings.oversubscribe) return there + ", where there is no room";
    gpu.jobs.insert(id);
  }
  job.on_gpus = true;
  job.leaving = job.suspended = false;
  job.gpus = where;
  return {};
}

void Book::remove(JobId id) {
  BookedJob& job = jobs.at(id);
  if (!job.on_gpus) return;
  for (const GpuIndex index : job.gpus) gpus[index.value].jobs.erase(id);
  job.on_gpus = false;
}

namespace {

// The cap first. A priority above it counts among jobs of its user only.
std::pair<std::int32_t, std::int32_t> towards(const BookedJob& job, const BookedJob& other) {
  return {job.record.capped, job.spec.uid == other.spec.uid ? job.record.priority : job.record.capped};
}

}  // namespace

bool Book::goes_before(const BookedJob& one, const BookedJob& other) const {
  if (one.record.capped != other.record.capped) return one.record.capped > other.record.capped;
  // A job whose time was over has gone behind all that waited.
  if (other.suspended && one.record.order < other.record.order) return true;
  if (one.spec.uid == other.spec.uid) {
    return std::pair(-std::int64_t{one.record.priority}, one.record.order) <
           std::pair(-std::int64_t{other.record.priority}, other.record.order);
  }
  // It waits for those of its user that go before it.
  std::uint64_t order = other.record.order;
  for (const auto& [id, job] : jobs) {
    const bool is_ahead = job.spec.uid == other.spec.uid && !job.on_gpus && job.record.capped == other.record.capped &&
                          job.record.priority > other.record.priority;
    if (is_ahead) order = std::max(order, job.record.order);
  }
  return one.record.order < order;
}

std::optional<TimePoint> Book::gone_by(const BookedJob& job, const BookedJob& for_whom, TimePoint now) const {
  if (job.leaving) return now;
  Duration limit = job.spec.time_limit;
  if (settings.max_time != Duration(0))
    limit = limit == Duration(0) ? settings.max_time : std::min(limit, settings.max_time);
  const bool goes = job.spec.on_limit == jobs::OnLimit::kCancel || towards(job, for_whom) <= towards(for_whom, job);
  if (limit == Duration(0) || now < job.refused_until || !goes) return std::nullopt;
  const Duration left = limit - std::min(limit, job.slice);
  return std::max(now, (job.running ? job.slice_since : now) + left);
}

std::optional<TimePoint> Book::latest_start(const BookedJob& job, const BookedGpu& gpu, TimePoint now) const {
  std::uint64_t taken = gpu.foreign + on(gpu, request(job));
  std::vector<std::pair<TimePoint, JobId>> ends;
  std::set<JobId> blocking;
  for (const JobId id : gpu.jobs) {
    const BookedJob& other = jobs.at(id);
    taken += on(gpu, other.request);
    if (job.spec.exclusive || other.spec.exclusive) blocking.insert(id);
    if (const auto end = gone_by(other, job, now)) ends.push_back({*end, id});
  }
  const std::uint64_t room = gpu.capacity * settings.oversubscribe / 1000;
  std::sort(ends.begin(), ends.end());
  TimePoint at = now;
  for (const auto& [end, id] : ends) {
    if (taken <= room && blocking.empty()) break;
    at = end;
    taken -= on(gpu, jobs.at(id).request);
    blocking.erase(id);
  }
  if (taken <= room && blocking.empty()) return at;
  return std::nullopt;
}

std::optional<TimePoint> Book::latest_start(const BookedJob& job, TimePoint now) const {
  const GpuSet& named = job.suspended ? job.gpus : job.spec.gpus;
  std::vector<TimePoint> at;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const BookedGpu& gpu = gpus[i];
    if (!gpu.takes_jobs() || (named.empty() && job.spec.memory > gpu.capacity)) continue;
    if (!named.empty() && !named.contains(GpuIndex{static_cast<std::uint32_t>(i)})) continue;
    if (const auto one = latest_start(job, gpu, now)) at.push_back(*one);
  }
  const std::size_t wanted = job.spec.wanted_gpus();
  if (at.size() < wanted) return std::nullopt;
  std::nth_element(at.begin(), at.begin() + static_cast<std::ptrdiff_t>(wanted - 1), at.end());
  return at[wanted - 1];
}

}  // namespace gpumux::simjobs
