// SPDX-License-Identifier: Apache-2.0
#include "sched/policy.h"

namespace gpumux::sched {

const Policy& policy_of(PolicyKind kind) {
  switch (kind) {
    case PolicyKind::kFifo: return fifo_policy();
    case PolicyKind::kFair: break;
  }
  return fair_policy();
}

}  // namespace gpumux::sched
