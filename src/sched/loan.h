// SPDX-License-Identifier: Apache-2.0
// The loan of one GPU's turn: a holder that waits for its memory, the *lender*, lets another unit run.
#pragma once

#include "sched/events.h"

namespace gpumux::sched {

struct Unit;

class Loan {
 public:
  // REQUIRES: no unit lends the turn.
  void begin(Unit& lender, TimePoint now) {
    lender_ = &lender;
    since_ = now;
  }
  // Returns how long it lasted. REQUIRES: a unit lends the turn.
  Duration end(TimePoint now) {
    lender_ = nullptr;
    return now - since_;
  }

  // nullptr: no unit lends the turn.
  Unit* lender() const { return lender_; }
  // Whether another unit than this one lends the turn.
  bool is_from_other_than(const Unit& unit) const { return lender_ != nullptr && lender_ != &unit; }
  // How long the unit has lent its turn by now. Zero: it does not.
  Duration lent_by(const Unit& unit, TimePoint now) const { return lender_ == &unit ? now - since_ : Duration::zero(); }

 private:
  Unit* lender_ = nullptr;
  TimePoint since_{};
};

}  // namespace gpumux::sched
