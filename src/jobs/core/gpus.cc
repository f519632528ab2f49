// SPDX-License-Identifier: Apache-2.0
// GPUs, and which jobs fit on them now.
#include "jobs/core/state.h"

namespace gpumux::jobs {

Gpu* JobCore::State::gpu_of(GpuIndex index) { return index.value < gpus.size() ? &gpus[index.value] : nullptr; }

void JobCore::State::survey_gpus() {
  usable = {};
  smallest = UINT64_MAX;
  for (const Gpu& gpu : gpus) {
    if (!gpu.usable()) continue;
    usable.insert(gpu.index);
    smallest = std::min(smallest, gpu.capacity);
  }
}

GpuSet JobCore::State::usable_for(const Job& job) const {
  if (job.state == JobState::kSuspended) return job.gpus & usable;
  if (job.has_its_gpus()) return job.spec.gpus & usable;
  if (job.spec.memory <= smallest) return usable;
  GpuSet large_enough;
  for (const GpuIndex index : usable) {
    if (job.spec.memory <= gpus[index.value].capacity) large_enough.insert(index);
  }
  return large_enough;
}

bool JobCore::State::fits_now(const Job& job, const Gpu& gpu) const {
  if (!gpu.occupants.empty() && (job.spec.exclusive || gpu.occupants.front()->spec.exclusive)) return false;
  return gpu.foreign + gpu.promised + on_gpu(wanted_memory(job.spec), gpu) <= promisable(gpu);
}

bool JobCore::State::fits(const Job& job, const Gpu& gpu, const std::vector<Job*>& without) const {
  std::uint64_t taken = gpu.foreign + on_gpu(wanted_memory(job.spec), gpu);
  for (const Job* other : gpu.occupants) {
    if (contains(without, other)) continue;
    if (job.spec.exclusive || other->spec.exclusive) return false;
    taken += on_gpu(*other->request, gpu);
  }
  return taken <= promisable(gpu);
}

}  // namespace gpumux::jobs
