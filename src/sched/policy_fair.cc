// SPDX-License-Identifier: Apache-2.0
// fair: weighted GPU time. The unit that has had the least time for its weight goes first.
//
// A revoked seat is not in the queue while it drains, so choosing the least at each switch is not enough: of two seats,
// each switch would take the other one, whatever the weights. So a holder whose quantum is over goes on until its
// virtual time has caught up with the waiter's. A seat of weight 3 then keeps the GPU about three quanta at a time
// against a seat of weight 1, without a switch in between.
#include <limits>

#include "sched/policy.h"

namespace gpumux::sched {
namespace {

class FairPolicy final : public Policy {
 public:
  std::int64_t rank(const Waiter& waiter) const override { return waiter.virtual_time; }

  Duration goes_on_for(const Waiter& holder, const Waiter& waiter) const override {
    const std::int64_t behind = waiter.virtual_time - holder.virtual_time;
    if (behind <= 0) return Duration::zero();
    const auto weight = static_cast<std::int64_t>(holder.weight);
    if (behind > std::numeric_limits<std::int64_t>::max() / weight) return Duration::max();
    return Duration(behind * weight);
  }
};

}  // namespace

const Policy& fair_policy() {
  static const FairPolicy policy;
  return policy;
}

}  // namespace gpumux::sched
