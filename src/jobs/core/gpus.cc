// SPDX-License-Identifier: Apache-2.0
// GPUs, and which jobs fit on them now.
#include "jobs/core/gpus.h"

#include <algorithm>

namespace gpumux::jobs {

void Gpus::add(GpuIndex index, std::uint64_t capacity) {
  while (gpus_.size() <= index.value) {
    gpus_.emplace_back();
    gpus_.back().index = GpuIndex{static_cast<std::uint32_t>(gpus_.size() - 1)};
  }
  Gpu& gpu = gpus_[index.value];
  gpu.present = true;
  gpu.capacity = std::min(capacity, kMaxCapacity);
  gpu.promised = 0;
  for (const Job* job : gpu.occupants) gpu.promised += on_gpu(*job->request, gpu);
  survey();
}

void Gpus::survey() {
  usable_ = {};
  smallest_ = UINT64_MAX;
  for (const Gpu& gpu : gpus_) {
    if (!gpu.usable()) continue;
    usable_.insert(gpu.index);
    smallest_ = std::min(smallest_, gpu.capacity);
  }
}

GpuSet Gpus::usable_for(const Job& job) const {
  if (job.in<Job::Suspended>()) return job.gpus & usable_;
  if (job.has_its_gpus()) return job.spec.gpus & usable_;
  if (job.spec.memory <= smallest_) return usable_;
  GpuSet large_enough;
  for (const GpuIndex index : usable_) {
    if (job.spec.memory <= at(index).capacity) large_enough.insert(index);
  }
  return large_enough;
}

bool Gpus::fits_now(const Job& job, const Gpu& gpu) const {
  if (!gpu.occupants.empty() && (job.spec.exclusive || gpu.occupants.front()->spec.exclusive)) return false;
  return gpu.foreign + gpu.promised + on_gpu(wanted_memory(job.spec), gpu) <= promisable(gpu);
}

bool Gpus::fits(const Job& job, const Gpu& gpu, const std::vector<Job*>& without) const {
  std::uint64_t taken = gpu.foreign + on_gpu(wanted_memory(job.spec), gpu);
  for (const Job* other : gpu.occupants) {
    if (std::find(without.begin(), without.end(), other) != without.end()) continue;
    if (job.spec.exclusive || other->spec.exclusive) return false;
    taken += on_gpu(*other->request, gpu);
  }
  return taken <= promisable(gpu);
}

std::vector<Job*> Gpus::not_beside(const Job& job, const GpuSet& on) const {
  std::vector<Job*> others;
  for (const GpuIndex index : on) {
    const Gpu* const gpu = find(index);
    if (gpu == nullptr) continue;
    for (Job* other : gpu->occupants) {
      const bool is_known = std::find(others.begin(), others.end(), other) != others.end();
      if (!is_known && (job.spec.exclusive || other->spec.exclusive)) others.push_back(other);
    }
  }
  return others;
}

void Gpus::put(Job& job, const GpuSet& on) {
  job.request = wanted_memory(job.spec);
  job.gpus = on;
  for (const GpuIndex index : on) {
    Gpu* const gpu = find(index);
    if (gpu == nullptr) continue;
    gpu->promised += on_gpu(*job.request, *gpu);
    gpu->occupants.push_back(&job);
  }
}

void Gpus::remove(Job& job) {
  for (const GpuIndex index : job.gpus) {
    Gpu* const gpu = find(index);
    if (gpu == nullptr) continue;
    gpu->promised -= on_gpu(*job.request, *gpu);
    std::erase(gpu->occupants, &job);
  }
  job.request.reset();
}

}  // namespace gpumux::jobs
