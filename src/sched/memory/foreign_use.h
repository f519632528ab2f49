// SPDX-License-Identifier: Apache-2.0
// The foreign memory of a GPU: what its tenants do not report. Found from looks at how much of the GPU is used in all.
//
// Use beyond the seats' reports has four causes: other programs, contexts of tenants, memory that tenants have left,
// and late reports. A program's own allocations and frees are reported a quarter of a second late at most, and at once
// after as long a silence. So a look may show too much (an allocation not yet reported) or too little (a free). A
// single look is never believed. More is counted when two in a row show it, and less when no look for a while shows
// more. Programs may free time and again, and then no look of that while shows all. So a free that is reported late is
// added to what these looks have shown. Counting too much would cost a seat room, or an allocation. Counting too little
// would give away memory that is taken, and the driver would refuse it to the seat. So what a look shows counts as
// foreign when reports can no longer be late for it, less what they have explained until then. A report explains no
// more than the seats counted for at the look. A look at a moment when a seat was known to move memory says nothing,
// for the two sums are of different moments. The planner's reserve covers what has come and is not believed yet.
//
// Contexts are what looks show of them. A tenant that has just come is about to make one, which looks show too late. So
// a newcomer is charged a context for some seconds, whether it makes one or not. That is all that a program can have
// charged to others by coming, so only a few newcomers of each account count. A GPU's first tenant brings the mover,
// whose context is made beside the tenant's: the mover is a newcomer, too.
//
// Pure: is told the time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"

namespace gpumux::sched {

// Reports are late by this much at most, the message included, on a machine that is not overloaded. (While no thread
// waits for a change, shim/memory/reports.h reports it every 250 ms.)
inline constexpr base::Duration kLatestReport = std::chrono::milliseconds(300);
// A newcomer's context has been seen by then: it takes half a second to be made, and looks are a second apart.
inline constexpr base::Duration kContextPatience = std::chrono::seconds(3);
// The last newcomers of an account, so many, are charged a context each. A guess: no more commonly start within a
// second.
inline constexpr std::size_t kMostNewcomers = 4;

// a - b, and never below zero.
constexpr std::uint64_t minus(std::uint64_t a, std::uint64_t b) { return a > b ? a - b : 0; }

class ForeignUse {
 public:
  // Expected, and not shown by a look yet. It is not expected any more after `until`. `looks_tell`: all of it would be
  // there by now, so looks show soon how much it is.
  struct Unseen {
    std::uint64_t bytes = 0;
    base::TimePoint until{};
    bool looks_tell = false;
  };
  struct Look {
    base::TimePoint asked_at{};
    std::uint64_t beyond = 0;  // used, less what seats have said that they have
    // The seats' managed memory. The driver moves its pages, and they make way for other allocations. So use that they
    // may explain is not counted as other programs'.
    std::uint64_t managed = 0;
    std::uint64_t returning = 0;  // what tenants that are gone may have left
    // The most that seats may have and have not said: what they count for, less what they have said.
    std::uint64_t untold = std::numeric_limits<std::uint64_t>::max();
  };

  // A seat has said what it has. `moves`: that is other than before, or becoming so at this moment. `more`: than
  // before. `freed`: its program has freed this much since its last report.
  void heard(base::TimePoint now, bool moves, std::uint64_t more = 0, std::uint64_t freed = 0);
  // A newcomer, of an account (SeatOwner::account).
  void opened(base::TimePoint now, base::TenantId tenant, std::uint64_t account);
  // A seat has reported for the first time, and had these bytes before the first look.
  void came_back(std::uint64_t bytes);
  // The tenant has memory, and so it has made its context.
  void has_context(base::TimePoint now, base::TenantId tenant);
  // A tenant's seat is gone: no report tells what it had any more.
  void closed(base::TimePoint now, base::TenantId tenant);
  void look(const Look& look);
  // `left` bytes of what the dead have left have not come back in time. They count as foreign from now on.
  void keep(std::uint64_t left);

  // When a look last showed this foreign memory, and no report has explained it. None: no look has.
  std::optional<base::TimePoint> seen_at() const { return seen_at_; }
  // The most that tenants that are gone have left, as far as looks have shown it since the last one went.
  std::uint64_t left_behind() const { return left_; }
  // Memory to keep free on a GPU of this capacity, including newcomers' contexts.
  std::uint64_t expected(base::TimePoint now, std::uint64_t capacity) const;
  // The part of expected() that is only for newcomers, and when the oldest of them is none any more. A look may have
  // shown it before they were known. None: there are no newcomers.
  std::optional<Unseen> unseen(base::TimePoint now, std::uint64_t capacity) const;
  // The last look has said nothing yet: another one soon would.
  bool look_again() const { return look_again_; }

 private:
  void begin_again(const Look& look);
  void lower_before();
  void contexts_seen(base::TimePoint since);
  void conclude(const Look& look);
  void believe_earlier(base::TimePoint now);
  void believe(const Look& look);
  std::uint64_t others_in(const Look& look) const;

  static constexpr std::uint64_t kNoAccount = std::numeric_limits<std::uint64_t>::max();

  enum class Knowledge : std::uint8_t {
    kNone,
    kLooked,  // while memory moved: `bytes_` is not known yet
    kFirst,   // `bytes_` may be the own tenants', who have not come back yet
    kSure,
  };
  // Looks since something was last concluded.
  struct Series {
    std::size_t looks = 0;
    base::TimePoint first_at{};
    std::uint64_t least = 0;
    std::uint64_t most = 0;
  };
  struct Newcomer {
    base::TenantId tenant{};  // none: the mover
    std::uint64_t account = kNoAccount;
    base::TimePoint until{};
    std::uint64_t before = 0;                  // what there was before it
    std::optional<base::TimePoint> made_at{};  // its context is there since then, or longer
  };

  std::uint64_t bytes_ = 0;
  Knowledge knowledge_ = Knowledge::kNone;
  bool look_again_ = false;
  std::optional<base::TimePoint> heard_at_;
  base::TimePoint moved_at_{};
  std::optional<base::TimePoint> seen_at_;
  // Looks that reports may still be late for, oldest first, less what was reported since and may have been there.
  std::deque<Look> unsettled_;
  std::optional<std::uint64_t> settled_;  // what the last settled look has shown
  std::optional<Series> series_;
  std::uint64_t left_ = std::numeric_limits<std::uint64_t>::max();
  std::size_t tenants_ = 0;
  std::vector<Newcomer> newcomers_;  // oldest first; some may be none any more
};

}  // namespace gpumux::sched
