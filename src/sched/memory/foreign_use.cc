// SPDX-License-Identifier: Apache-2.0
#include "sched/memory/foreign_use.h"

#include <algorithm>

namespace gpumux::sched {
namespace {

// Less is noise, and would only make bounds change.
constexpr std::uint64_t kGrain = std::uint64_t{16} << 20;
// The charge of a newcomer. A program's context with its libraries' kernels loaded takes 0.5 to 0.7 GB (H200, CUDA
// 13.0, PyTorch). On a small or simulated GPU in proportion.
std::uint64_t context_bytes(std::uint64_t capacity) { return std::min(std::uint64_t{768} << 20, capacity / 64); }

}  // namespace

void ForeignUse::heard(base::TimePoint now, bool moves, std::uint64_t more, std::uint64_t freed) {
  believe_earlier(now);
  heard_at_ = now;
  if (moves) moved_at_ = now;
  // The first look is believed at once. So it is corrected as long as reports may be late for it.
  const bool is_first_unsettled = series_ && !unsettled_.empty() && unsettled_.front().asked_at == series_->first_at &&
                                  knowledge_ == Knowledge::kFirst;
  if (is_first_unsettled) came_back(std::min(more, unsettled_.front().untold));
  for (Look& look : unsettled_) {
    const std::uint64_t explained = std::min(more, look.untold);
    look.beyond = minus(look.beyond, explained);
    look.untold -= explained;
  }
  // The looks since the series began may have shown this much too little.
  if (series_ && now - series_->first_at < kLatestReport) series_->most += freed;
}

void ForeignUse::opened(base::TimePoint now, base::TenantId tenant, std::uint64_t account) {
  std::erase_if(newcomers_, [now](const Newcomer& one) { return now >= one.until; });
  const auto is_its = [account](const Newcomer& one) { return one.account == account; };
  if (std::count_if(newcomers_.begin(), newcomers_.end(), is_its) >= std::ptrdiff_t{kMostNewcomers})
    newcomers_.erase(std::find_if(newcomers_.begin(), newcomers_.end(), is_its));
  const base::TimePoint until = now + kContextPatience;
  if (tenants_++ == 0) newcomers_.push_back({.until = until, .before = bytes_});
  newcomers_.push_back({.tenant = tenant, .account = account, .until = until, .before = bytes_});
  heard_at_ = now;  // its first report comes in a moment
}

void ForeignUse::has_context(base::TimePoint now, base::TenantId tenant) {
  for (Newcomer& one : newcomers_) {
    if (one.tenant == tenant && !one.made_at) one.made_at = now;
  }
}

void ForeignUse::lower_before() {
  for (Newcomer& one : newcomers_) one.before = std::min(one.before, bytes_);
}

void ForeignUse::came_back(std::uint64_t bytes) {
  if (knowledge_ != Knowledge::kFirst) return;
  bytes_ = minus(bytes_, bytes);
  if (series_) series_->least = minus(series_->least, bytes);
  lower_before();
  // The last settled look counted these bytes as other programs', too.
  if (settled_) settled_ = minus(*settled_, bytes);
}

void ForeignUse::closed(base::TimePoint now, base::TenantId tenant) {
  --tenants_;
  std::erase_if(newcomers_, [tenant](const Newcomer& one) { return one.tenant == tenant; });
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
  const base::TimePoint since = series_->first_at;
  if (is_sure) conclude(look);
  unsettled_.push_back(look);
  if (all_is_told) believe_earlier(base::TimePoint::max());
  if (is_sure && unsettled_.empty()) contexts_seen(since);
  // Less is seen, or more, and not believed yet.
  look_again_ = minus(bytes_, look.beyond) >= kGrain || others_in(look) >= bytes_ + kGrain;
}

// All that has been there since then is counted. Newcomers that have made no context yet make theirs beside that.
void ForeignUse::contexts_seen(base::TimePoint since) {
  const auto is_seen = [since](const Newcomer& one) { return one.made_at && *one.made_at < since; };
  if (std::erase_if(newcomers_, is_seen) == 0) return;
  for (Newcomer& one : newcomers_) {
    if (!one.made_at) one.before = bytes_;
  }
}

void ForeignUse::conclude(const Look& look) {
  knowledge_ = Knowledge::kSure;
  if (minus(bytes_, series_->most) >= kGrain) bytes_ = series_->most;
  lower_before();
  left_ = minus(series_->most, bytes_);
  begin_again(look);
}

std::uint64_t ForeignUse::expected(base::TimePoint now, std::uint64_t capacity) const {
  std::uint64_t all = bytes_;
  std::uint64_t contexts = 0;  // of a newcomer and all that came after it
  for (auto one = newcomers_.rbegin(); one != newcomers_.rend() && now < one->until; ++one)
    all = std::max(all, one->before + (contexts += context_bytes(capacity)));
  return all;
}

std::optional<ForeignUse::Unseen> ForeignUse::unseen(base::TimePoint now, std::uint64_t capacity) const {
  const auto oldest =
      std::find_if(newcomers_.begin(), newcomers_.end(), [now](const Newcomer& one) { return now < one.until; });
  if (oldest == newcomers_.end()) return std::nullopt;
  const bool looks_tell =
      std::all_of(oldest, newcomers_.end(), [](const Newcomer& one) { return one.made_at.has_value(); });
  return Unseen{.bytes = expected(now, capacity) - bytes_, .until = oldest->until, .looks_tell = looks_tell};
}

}  // namespace gpumux::sched
