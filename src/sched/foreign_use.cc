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
  if (!newcomers_ || now >= newcomers_->until) newcomers_ = {.before = bytes_};
  ++newcomers_->seats;
  newcomers_->until = now + kContextPatience;
}

void ForeignUse::came_back(std::uint64_t bytes) {
  if (knowledge_ != Knowledge::kFirst) return;
  bytes_ = minus(bytes_, bytes);
  if (series_) series_->least = minus(series_->least, bytes);
  if (newcomers_) newcomers_->before = std::min(newcomers_->before, bytes_);
  // The last settled look counted these bytes as other programs', too.
  if (settled_) settled_ = minus(*settled_, bytes);
}

void ForeignUse::closed(base::TimePoint now) {
  moved_at_ = now;
  series_.reset();
  unsettled_.clear();
  settled_.reset();
  left_ = std::numeric_limits<std::uint64_t>::max();
}

void ForeignUse::keep(std::uint64_t left) {
  bytes_ += left;
  if (knowledge_ != Knowledge::kFirst) knowledge_ = Knowledge::kSure;
  seen_at_.reset();
  series_.reset();
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
  series_ = {.looks = 1, .first_at = look.asked_at, .least = look.beyond, .most = look.beyond};
}

void ForeignUse::look(const Look& look) {
  believe_earlier(look.asked_at);
  const bool is_quiet = moved_at_ < look.asked_at;
  look_again_ = !is_quiet;
  if (!is_quiet) {
    // The first look of all may be at a moment when tenants allocate: then the second one counts, as far as they agree.
    if (knowledge_ != Knowledge::kNone) return;
    knowledge_ = Knowledge::kLooked;
    return begin_again(look);
  }
  if (!series_)
    begin_again(look);
  else
    ++series_->looks;
  series_->least = std::min(series_->least, look.beyond);
  series_->most = std::max(series_->most, look.beyond);
  if (knowledge_ < Knowledge::kFirst) {
    knowledge_ = Knowledge::kFirst;
    bytes_ = minus(series_->least, look.returning);
  }
  // A seat that is silent for kLatestReport has nothing untold: it reports at once what it frees. (A report may be on
  // its way at this very moment. The look before has shown that.)
  const bool all_is_told = !heard_at_ || look.asked_at - *heard_at_ >= kLatestReport;
  const bool is_sure = series_->looks > 1 && (all_is_told || look.asked_at - series_->first_at >= kLatestReport);
  if (is_sure) conclude(look);
  unsettled_.push_back(look);
  if (all_is_told) believe_earlier(base::TimePoint::max());
  // Less is seen, or more, and not believed yet.
  look_again_ = minus(bytes_, look.beyond) >= kGrain || others_in(look) >= bytes_ + kGrain;
}

void ForeignUse::conclude(const Look& look) {
  knowledge_ = Knowledge::kSure;
  if (minus(bytes_, series_->most) >= kGrain) bytes_ = series_->most;
  if (newcomers_) newcomers_->before = std::min(newcomers_->before, bytes_);
  left_ = minus(series_->most, bytes_);
  begin_again(look);
}

std::uint64_t ForeignUse::expected(base::TimePoint now, std::uint64_t capacity, std::size_t seats) const {
  const std::uint64_t all = std::max(bytes_, expected_contexts(capacity, seats));
  if (!newcomers_ || now >= newcomers_->until) return all;
  return std::max(all, newcomers_->before + expected_contexts(capacity, std::min(newcomers_->seats, seats)));
}

std::optional<ForeignUse::Unseen> ForeignUse::unseen(base::TimePoint now, std::uint64_t capacity,
                                                     std::size_t seats) const {
  if (!newcomers_) return std::nullopt;
  return Unseen{expected(now, capacity, seats) - std::max(bytes_, expected_contexts(capacity, seats)),
                newcomers_->until};
}

std::uint64_t expected_contexts(std::uint64_t capacity, std::size_t seats) {
  return seats * std::min(kMaxContextBytes, capacity / kContextDivisor);
}

}  // namespace gpumux::sched
