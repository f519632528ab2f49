// SPDX-License-Identifier: Apache-2.0
// Allocations that were refused, for people: the last one of each seat, and of all seats that are gone the last one on
// their GPU. So there are never more than seats and GPUs.
//
// A call of a program is told as refused once, at its first refusal: it may ask again, for less or more.
//
// Owned by the loop's thread; copies of its entries may be read elsewhere.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "daemon/loop/trace.h"
#include "node/events.h"
#include "sched/memory/residency.h"

namespace gpumux::daemon {

// A seat's memory that was in the way.
struct MemoryHolder {
  std::shared_ptr<const TenantLabel> label;
  std::uint64_t bytes = 0;
};
// A line of `gpumux status` names them all. A guess: more names are not read.
inline constexpr std::size_t kMostHolders = 3;

struct RefusedAllocation {
  base::TimePoint at{};
  base::TenantId tenant{};
  std::shared_ptr<const TenantLabel> label{};
  sched::Refusal why = sched::Refusal::kNone;
  std::uint64_t had = 0;                // bytes that the seat had allocated
  std::uint64_t wanted = 0;             // and would have had with this
  std::uint64_t limit = 0;              // kQuota: its quota; kGpuMemory: the bytes that the GPU holds; otherwise 0
  std::uint64_t others = 0;             // kGpuMemory: bytes of other programs, of contexts, and kept free
  std::vector<MemoryHolder> holders{};  // those with the most, most first
};

// The reason as the trace, metrics and the API have it.
std::string_view word_of(sched::Refusal refusal);

class Refusals {
 public:
  using LabelOf = std::function<std::shared_ptr<const TenantLabel>(base::TenantId)>;
  explicit Refusals(LabelOf label_of) : label_of_(std::move(label_of)) {}

  void wanted(const node::RoomWanted& wish) { newest_wish_.insert_or_assign(wish.seat, wish); }
  // The newest wish is refused. Null: its call was told as refused already.
  const RefusedAllocation* refused(base::TimePoint now, base::SeatId seat, sched::Refusal why,
                                   const sched::Residency& memory);
  void gone(base::SeatId seat);
  // Of a GPU, the latest first.
  std::vector<RefusedAllocation> on(base::GpuIndex gpu) const;

 private:
  LabelOf label_of_;
  std::map<base::SeatId, node::RoomWanted> newest_wish_;
  std::map<base::SeatId, RefusedAllocation> last_;
  std::map<base::GpuIndex, RefusedAllocation> last_of_gone_;
};

}  // namespace gpumux::daemon
