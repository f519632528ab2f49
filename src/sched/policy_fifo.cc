// SPDX-License-Identifier: Apache-2.0
// fifo: whoever asked first.
#include "sched/policy.h"

namespace gpumux::sched {
namespace {

class FifoPolicy final : public Policy {
 public:
  std::int64_t rank(const Waiter&) const override { return 0; }  // all equal: the time of request decides
  Duration goes_on_for(const Waiter&, const Waiter&) const override { return Duration::zero(); }
};

}  // namespace

const Policy& fifo_policy() {
  static const FifoPolicy policy;
  return policy;
}

}  // namespace gpumux::sched
