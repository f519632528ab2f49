// SPDX-License-Identifier: Apache-2.0
// GPUs: their memory, the jobs on them, and the job that they are kept for. Private to src/jobs/core.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "jobs/core/part.h"

namespace gpumux::jobs {

inline constexpr std::uint64_t kMaxCapacity = std::uint64_t{1} << 44;  // 16 TiB: with kMaxOversubscribe below 2^64

class Gpus : Part {
 public:
  explicit Gpus(Common& common) : Part(common) {}

  const std::vector<Gpu>& all() const { return gpus_; }  // by index
  // REQUIRES: there is one, as there is of usable GPUs.
  const Gpu& at(GpuIndex index) const { return gpus_[index.value]; }
  // nullptr: there is none.
  const Gpu* find(GpuIndex index) const { return index.value < gpus_.size() ? &gpus_[index.value] : nullptr; }
  Gpu* find(GpuIndex index) { return index.value < gpus_.size() ? &gpus_[index.value] : nullptr; }

  void add(GpuIndex index, std::uint64_t capacity);
  // To be called after a GPU has changed but for its jobs.
  void survey();
  // Those that take jobs, and the capacity of the smallest of them.
  const GpuSet& usable() const { return usable_; }
  std::uint64_t smallest() const { return smallest_; }
  // The GPUs that the job may use, as far as they take jobs.
  GpuSet usable_for(const Job& job) const;

  // ---- memory, in bytes. A request of 0 is the whole GPU ----
  std::uint64_t promisable(const Gpu& gpu) const { return gpu.capacity * settings().oversubscribe / 1000; }
  std::uint64_t wanted_memory(const JobSpec& spec) const {
    return spec.memory != 0 ? spec.memory : settings().default_memory;
  }
  std::uint64_t request_of(const Job& job) const { return job.request.value_or(wanted_memory(job.spec)); }
  static std::uint64_t on_gpu(std::uint64_t request, const Gpu& gpu) {
    return request == 0 || request > gpu.capacity ? gpu.capacity : request;
  }
  std::uint64_t free_on(const Gpu& gpu) const {
    return promisable(gpu) - std::min(promisable(gpu), gpu.foreign + gpu.promised);
  }
  bool fits_now(const Job& job, const Gpu& gpu) const;
  // If those of `without` were not there.
  bool fits(const Job& job, const Gpu& gpu, const std::vector<Job*>& without) const;

  // ---- jobs ----
  // The jobs on these GPUs that the job cannot be beside, for one of the two wants its GPUs alone.
  std::vector<Job*> not_beside(const Job& job, const GpuSet& on) const;
  // The job occupies them from now on.
  void put(Job& job, const GpuSet& on);
  // REQUIRES: it occupies GPUs. It remembers which.
  void remove(Job& job);

  // ---- the reservation ----
  const Reservation& reservation() const { return reservation_; }
  void reserve(const Reservation& reservation) { reservation_ = reservation; }

  std::string check() const;  // invariants.cc

 private:
  std::vector<Gpu> gpus_;
  GpuSet usable_;
  std::uint64_t smallest_ = UINT64_MAX;
  Reservation reservation_;
};

}  // namespace gpumux::jobs
