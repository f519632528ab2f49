// SPDX-License-Identifier: Apache-2.0
#include "daemon/gpus/refusals.h"

#include <algorithm>
#include <utility>

namespace gpumux::daemon {
namespace {

// The memory of another seat that kept the allocation from being made.
std::uint64_t in_the_way(sched::Refusal why, const sched::MemoryReport& report) {
  switch (why) {
    case sched::Refusal::kNone:
    case sched::Refusal::kQuota: break;
    case sched::Refusal::kGpuMemory: return report.unpageable;
    case sched::Refusal::kHostMemory: return report.allocated;
    case sched::Refusal::kNothingMoves: return report.resident + report.unpageable;
  }
  return 0;
}

}  // namespace

std::string_view word_of(sched::Refusal refusal) {
  switch (refusal) {
    case sched::Refusal::kNone: break;
    case sched::Refusal::kQuota: return "quota";
    case sched::Refusal::kGpuMemory: return "gpu_memory";
    case sched::Refusal::kHostMemory: return "host_memory";
    case sched::Refusal::kNothingMoves: return "nothing_moves";
  }
  return {};
}

const RefusedAllocation* Refusals::refused(base::TimePoint now, base::SeatId seat, sched::Refusal why,
                                           const sched::Residency& memory) {
  const node::RoomWanted& wish = newest_wish_[seat];
  if (wish.again) return nullptr;
  const sched::GpuMemory gpu = memory.view(seat.gpu);
  RefusedAllocation one{.at = now, .tenant = seat.tenant, .label = label_of_(seat.tenant), .why = why};
  // The room may be more than the call needs: the driver has failed with less.
  one.wanted = wish.commitment != 0 ? wish.commitment : wish.room;
  for (const sched::SeatMemoryView& other : gpu.seats) {
    if (other.seat == seat) {
      one.had = other.report.allocated;
      if (why == sched::Refusal::kQuota) one.limit = other.quota;
    } else if (const std::uint64_t bytes = in_the_way(why, other.report); bytes > 0) {
      one.holders.push_back({label_of_(other.seat.tenant), bytes});
    }
  }
  if (why == sched::Refusal::kGpuMemory) {
    one.limit = gpu.capacity;
    one.others = gpu.reserve + gpu.foreign + gpu.returning;
  }
  std::stable_sort(one.holders.begin(), one.holders.end(),
                   [](const MemoryHolder& a, const MemoryHolder& b) { return a.bytes > b.bytes; });
  if (one.holders.size() > kMostHolders) one.holders.resize(kMostHolders);
  return &(last_[seat] = std::move(one));
}

void Refusals::gone(base::SeatId seat) {
  newest_wish_.erase(seat);
  const auto found = last_.find(seat);
  if (found == last_.end()) return;
  RefusedAllocation& of_gone = last_of_gone_[seat.gpu];
  if (of_gone.at < found->second.at) of_gone = std::move(found->second);
  last_.erase(found);
}

std::vector<RefusedAllocation> Refusals::on(base::GpuIndex gpu) const {
  std::vector<RefusedAllocation> all;
  for (const auto& [seat, one] : last_) {
    if (seat.gpu == gpu) all.push_back(one);
  }
  if (const auto found = last_of_gone_.find(gpu); found != last_of_gone_.end()) all.push_back(found->second);
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.at > b.at; });
  return all;
}

}  // namespace gpumux::daemon
