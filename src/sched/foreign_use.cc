// SPDX-License-Identifier: Apache-2.0
#include "sched/foreign_use.h"

#include <algorithm>

namespace gpumux::sched {
namespace {

// Less is noise, and would only make bounds change.
constexpr std::uint64_t kGrain = std::uint64_t{16} << 20;
// The memory of a program's context with its libraries' kernels loaded: 0.5 to 0.7 GB (H200, CUDA 13.0, PyTorch). On a
// small or simulated GPU in proportion.
constexpr std::uint64_t kMaxContextBytes = std::uint64_t{768} << 20;
constexpr std::uint64_t kContextDivisor = 64;

}  // namespace

void ForeignUse::heard(base::TimePoint now, bool moves, std::uint64_t more) {
  believe_earlier(now);
  heard_at_ = now;
  if (moves) moved_at_ = now;
  for (Look& look : unsettled_) look.beyond = minus(look.beyond, more);
}

void ForeignUse::opened(base::TimePoint now) {
  if (now >= newcomers_until_) {
    newcomers_ = 0;
    before_newcomers_ = bytes_;
  }
  ++newcomers_;
  newcomers_until_ = now + kContextPatience;
}

void ForeignUse::came_back(std::uint64_t bytes) {
  if (!is_first_) return;
  bytes_ = minus(bytes_, bytes);
  least_ = minus(least_, bytes);
  before_newcomers_ = std::min(before_newcomers_, bytes_);
  // The last settled look counted these bytes as other programs', too.
  if (settled_) settled_ = minus(*settled_, bytes);
}

void ForeignUse::closed(base::TimePoint now) {
  moved_at_ = now;
  looks_ = 0;
  unsettled_.clear();
  settled_.reset();
  left_ = std::numeric_limits<std::uint64_t>::max();
}

void ForeignUse::keep(std::uint64_t left) {
  bytes_ += left;
  has_bytes_ = true;
  seen_at_ = {};
  looks_ = 0;
  unsettled_.clear();
  settled_.reset();
}

// No report is late any more for what was looked at before that.
void ForeignUse::believe_earlier(base::TimePoint now) {
  while (!unsettled_.empty() && now - unsettled_.front().asked_at >= kLatestReport) {
    believe(unsettled_.front());
    unsettled_.pop_front();
  }
}

void ForeignUse::believe(const Look& look) {
  if (minus(bytes_, look.beyond) < kGrain) seen_at_ = look.asked_at;
  const std::uint64_t others = others_in(look);
  const std::uint64_t more = std::min(others, settled_.value_or(0));
  if (more >= bytes_ + kGrain) bytes_ = more;
  settled_ = others;
}

// The part of the use that only other programs can explain.
std::uint64_t ForeignUse::others_in(const Look& look) const {
  const std::uint64_t others = minus(look.beyond, look.returning);
  return look.managed > 0 ? std::min(others, std::max(bytes_, minus(look.beyond, look.managed))) : others;
}

void ForeignUse::begin_again(const Look& look) {
  looks_ = 1;
  first_at_ = look.asked_at;
  least_ = most_ = look.beyond;
}

void ForeignUse::look(const Look& look) {
  believe_earlier(look.asked_at);
  const bool is_quiet = moved_at_ < look.asked_at;
  look_again_ = !is_quiet;
  if (!is_quiet) {
    // The first look of all may be at a moment when tenants allocate: then the second one counts, as far as they agree.
    if (!has_looked_) begin_again(look);
    has_looked_ = true;
    return;
  }
  has_looked_ = true;
  if (looks_ == 0)
    begin_again(look);
  else
    ++looks_;
  least_ = std::min(least_, look.beyond);
  most_ = std::max(most_, look.beyond);
  if (!has_bytes_) {
    has_bytes_ = true;
    is_first_ = true;
    bytes_ = minus(least_, look.returning);
  }
  // A seat that is silent for kLatestReport has nothing untold: it reports at once what it frees. (A report may be on
  // its way at this very moment. The look before has shown that.)
  const bool all_is_told = look.asked_at - heard_at_ >= kLatestReport;
  const bool is_sure = looks_ > 1 && (all_is_told || look.asked_at - first_at_ >= kLatestReport);
  if (is_sure) conclude(look);
  unsettled_.push_back(look);
  if (all_is_told) believe_earlier(base::TimePoint::max());
  // Less is seen, or more, and not believed yet.
  look_again_ = minus(bytes_, look.beyond) >= kGrain || others_in(look) >= bytes_ + kGrain;
}

void ForeignUse::conclude(const Look& look) {
  is_first_ = false;
  if (minus(bytes_, most_) >= kGrain) bytes_ = most_;
  before_newcomers_ = std::min(before_newcomers_, bytes_);
  left_ = minus(most_, bytes_);
  begin_again(look);
}

std::uint64_t ForeignUse::expected(base::TimePoint now, std::uint64_t capacity, std::size_t seats) const {
  const std::uint64_t all = std::max(bytes_, expected_contexts(capacity, seats));
  if (now >= newcomers_until_) return all;
  return std::max(all, before_newcomers_ + expected_contexts(capacity, std::min(newcomers_, seats)));
}

ForeignUse::Unseen ForeignUse::unseen(base::TimePoint now, std::uint64_t capacity, std::size_t seats) const {
  return {expected(now, capacity, seats) - std::max(bytes_, expected_contexts(capacity, seats)), newcomers_until_};
}

std::uint64_t expected_contexts(std::uint64_t capacity, std::size_t seats) {
  return seats * std::min(kMaxContextBytes, capacity / kContextDivisor);
}

}  // namespace gpumux::sched
