// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/host_memory.h"

#include <algorithm>
#include <ctime>
#include <optional>
#include <set>
#include <string>

#include "base/units.h"
#include "daemon/loop/log.h"
#include "daemon/loop/pool_work.h"
#include "os/pidfd.h"
#include "os/system_clock.h"
#include "wire/messages.h"

namespace gpumux::daemon {
namespace {

// Of x86-64, and of arm64 with pages of 4 KiB.
constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;
// Large enough that a thousand cover a large machine. Small enough to be ready soon (60 ms on one thread), and that a
// tenant that needs little does not keep much.
constexpr std::uint64_t kMaxChunk = std::uint64_t{256} << 20;
// A small budget is still many chunks.
constexpr std::uint64_t kChunksInBudget = 16;
// Ready beyond what is known to be needed, so that a switch that evicts a little more finds it.
constexpr std::size_t kWindowChunks = 4;
// Chunks that are being made at once. While a seat waits: more than the pool has threads. Otherwise: at most as many as
// it has, so that a seat that begins to wait is behind few.
constexpr std::size_t kMaxMaking = 32;
constexpr std::size_t kMaxMakingAhead = 8;
// Enough to tell kinds of memory from each other (2 ms in huge pages, 8 ms in small ones), and to cost nothing.
constexpr std::uint64_t kMeasureBytes = std::uint64_t{16} << 20;
// Loans of an earlier daemon never leave less than this part of the budget to be lent. The next lease holder may have
// its memory there, and gets none of it back before the present holder has somewhere to go.
constexpr std::uint64_t kLeastOfBudget = 4;
// Host memory is short no more when there is this much less to be evicted than there was. A guess: with more, it would
// be short by turns.
constexpr std::uint64_t kMuchLessNumerator = 3;
constexpr std::uint64_t kMuchLessDenominator = 4;
// Unmapping takes a tenth of a second, once the data that is being moved has been. A tenant that has not unmapped after
// this many looks is stopped, or worse.
constexpr std::uint32_t kPatientLooks = 3;

std::uint64_t chunk_for(std::uint64_t budget) {
  const std::uint64_t part = budget / kChunksInBudget / kHugePage * kHugePage;
  return std::clamp(part, kHugePage, kMaxChunk);
}

// Numbers start where the time puts them, so that one which an earlier daemon has given means nothing to this one.
std::uint64_t first_id() {
  timespec t{};
  ::clock_gettime(CLOCK_BOOTTIME, &t);
  return (static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(t.tv_nsec)) | 1;
}

}  // namespace

struct HostMemory::Alive {
  HostMemory* self = nullptr;
};

HostMemory::HostMemory(boost::asio::io_context& loop, boost::asio::thread_pool& pool, std::uint64_t budget,
                       HostFiles files)
    : loop_(loop),
      pool_(pool),
      budget_(budget),
      chunk_bytes_(chunk_for(budget)),
      files_(std::make_shared<HostFiles>(std::move(files))),
      alive_(std::make_shared<Alive>()),
      seats_(chunk_bytes_),
      shares_(budget / chunk_bytes_),
      chunks_(first_id(), seats_, shares_) {
  alive_->self = this;
}

HostMemory::~HostMemory() { alive_->self = nullptr; }

void HostMemory::measure() {
  work_then(
      pool_, loop_,
      [files = files_] {
        auto made = files->make(kMeasureBytes);
        if (made) made->fd.reset();
        return made;
      },
      [alive = alive_](const base::Result<HostFile>& made) {
        if (alive->self != nullptr && made) alive->self->count(*made, kMeasureBytes);
      });
}

void HostMemory::count(const HostFile& file, std::uint64_t bytes) {
  made_.kind = file.kind;
  made_.bytes += bytes;
  made_.took += file.took;
}

void HostMemory::set_demand(std::uint64_t evicted, std::uint64_t copies) {
  if (demand_ == evicted && copies_ == copies) return;
  demand_ = evicted;
  copies_ = copies;
  if (short_ && demand_ <= short_at_ / kMuchLessDenominator * kMuchLessNumerator) set_short(false);
  rebalance();
}

std::size_t HostMemory::there() const {
  return chunks_.count(State::kLent) + chunks_.count(State::kReturned) + chunks_.count(State::kReady);
}

std::size_t HostMemory::needed() const {
  const std::size_t in_use = chunks_.count(State::kLent) + requests_.size();
  if (demand_ == 0) return in_use;
  const auto expected = static_cast<std::size_t>((demand_ + copies_ + chunk_bytes_ - 1) / chunk_bytes_);
  return std::max(expected, in_use) + kWindowChunks;
}

bool HostMemory::has_too_much() const {
  return there() > *std::max_element(needed_lately_.begin(), needed_lately_.end());
}

void HostMemory::set_short(bool is_short) {
  if (is_short) short_at_ = std::max(short_ ? short_at_ : 0, demand_);
  if (short_ == is_short) return;
  short_ = is_short;
  on_short_(is_short);
}

void HostMemory::closed(const HostSeat& seat) {
  seats_.closed(seat);
  std::erase_if(requests_, [&](const Request& request) {
    if (request.seat != seat) return false;
    shares_.answered(request.account);
    on_lent_({seat, 0, 0}, -1);
    return true;
  });
}

void HostMemory::wanted(const HostSeat& seat, std::uint64_t bytes, std::string_view domain, const Account& account) {
  reap();
  std::uint64_t of_tenant = 0;
  std::uint64_t of_seat = 0;
  for (const Request& request : requests_) {
    of_tenant += request.seat.tenant == seat.tenant ? 1u : 0u;
    of_seat += request.seat == seat ? 1u : 0u;
  }
  Borrower& borrower = borrowers_[seat.tenant];
  if (bytes == 0 || of_tenant >= kMaxHostRequests || seats_.lent_to(seat) + of_seat >= seats_.most_of(seat)) {
    on_lent_({seat, 0, 0}, -1);
    return;
  }
  borrower.domain = domain;
  borrower.account = account;
  const base::TimePoint now = os::now();
  requests_.push_back({seat, account, now});
  shares_.asked(account);
  serve();
  if (!requests_.empty() && requests_.back().asked_at == now) ++loans_.waited;
  if (!requests_.empty()) on_awaited_();
}

std::optional<std::uint64_t> HostMemory::adopt(const HostSeat& seat, os::FileDescriptor memory, std::string_view domain,
                                               const Account& account) {
  if (!HostFiles::is_whole(memory.get(), chunk_bytes_)) return std::nullopt;
  Borrower& borrower = borrowers_[seat.tenant];
  borrower.domain = domain;
  borrower.account = account;
  HostChunk& chunk = chunks_.add();
  chunk.memory = std::move(memory);
  chunks_.move(chunk, State::kReady);
  chunk.borrower = seat;
  chunk.account = account;
  chunk.domain = domain;
  chunks_.move(chunk, State::kLent);
  return chunk.id;
}

// Null: no chunk of the seat's trust domain is free. `kept`: the seat has this chunk mapped.
HostChunk* HostMemory::find_handed_on(const HostSeat& seat, const Borrower& borrower, bool may_grow, bool& kept) {
  for (;;) {
    kept = false;
    if (borrower.domain.empty()) return nullptr;
    // A chunk that the seat has kept costs it nothing. It has to map and register any other.
    HostChunk* best = nullptr;
    for (HostChunk* const chunk : chunks_.in(State::kReturned)) {
      if (chunk->domain != borrower.domain || (!may_grow && chunk->keepers.empty())) continue;
      const bool is_keeper = std::find(chunk->keepers.begin(), chunk->keepers.end(), seat) != chunk->keepers.end();
      if (is_keeper && is_let_go(seat, chunk->id)) continue;  // it unmaps it at this moment
      if (is_keeper || !kept) best = chunk;
      kept = kept || is_keeper;
    }
    if (best == nullptr || HostFiles::is_whole(best->memory.get(), chunk_bytes_)) return best;
    unmake(*best);
  }
}

// False: there is nothing that it could have now.
bool HostMemory::serve(const Request& request) {
  const Borrower& borrower = borrowers_[request.seat.tenant];
  const bool grows = may_grow(request.account);
  bool kept = false;
  HostChunk* chunk = find_handed_on(request.seat, borrower, grows, kept);
  const bool is_handed_on = chunk != nullptr;
  if (!is_handed_on && grows) chunk = newest_ready();
  if (chunk == nullptr) return false;
  std::erase(chunk->keepers, request.seat);
  chunk->borrower = request.seat;
  chunk->account = request.account;
  chunk->domain = borrower.domain;
  chunks_.move(*chunk, State::kLent);
  ++loans_.all;
  if (is_handed_on) ++loans_.handed_on;
  if (kept) ++loans_.kept;
  on_lent_({request.seat, chunk->id, chunk_bytes_}, kept ? -1 : chunk->memory.get());
  return true;
}

void HostMemory::serve() {
  while (serve_in_order()) continue;
  rebalance();
  if (!requests_.empty()) tell_all(wire::kMostForgotten);
}

// True: some have been answered, so that one which came after them need not wait any longer.
bool HostMemory::serve_in_order() {
  bool has_answered = false;
  bool has_yielded = false;
  for (std::size_t i = 0; i < requests_.size();) {
    const Request request = requests_[i];
    if (shares_.yields(request.account)) {
      has_yielded = true;
      ++i;
      continue;
    }
    const bool has_returned = chunks_.count(State::kReturned) > 0;
    const bool comes =
        leaving_soon() > 0 ||
        (may_grow(request.account) ? is_making() || (!failing_ && may_make()) || has_returned : kept_free() > 0);
    const bool served = serve(request);
    if (!served && !comes) set_short(true);
    // Others are asked for what its account is owed, and that is not to go to requests that come later.
    if (!served && (comes || shares_.is_owed(request.account))) {
      ++i;
      continue;
    }
    requests_.erase(requests_.begin() + static_cast<std::ptrdiff_t>(i));
    shares_.answered(request.account);
    loans_.waiting += os::now() - request.asked_at;
    has_answered = true;
    // It may have to wait for another seat that gives something back: it asks again.
    if (!served) on_lent_({request.seat, 0, 0}, -1);
  }
  return has_answered && has_yielded;
}

// A process that has lost its connection and come back says what this daemon has lent it: that is counted already.
std::uint64_t HostMemory::earlier_elsewhere() const {
  std::uint64_t earlier = counts_earlier_ ? earlier_ : 0;
  for (const auto& [tenant, left] : left_) earlier -= std::min(earlier, left.bytes);
  return std::min(earlier, budget_ / kLeastOfBudget * (kLeastOfBudget - 1));
}

bool HostMemory::may_make() const { return taken() + earlier_elsewhere() + chunk_bytes_ <= budget_; }

// One more chunk can be mapped, and what is reserved is still there (HostShares::reserved).
bool HostMemory::has_unreserved() const {
  const std::uint64_t mapped = lent() + leaving() + kept_free() * chunk_bytes_;
  return mapped + earlier_elsewhere() + chunk_bytes_ <= lendable();
}

// The account may have one more chunk mapped. It has less than is reserved for accounts that begin, or that stays free.
bool HostMemory::may_grow(const Account& account) const {
  if (has_unreserved()) return true;
  const HostChunks::List& returned = chunks_.in(State::kReturned);
  const auto kept =
      static_cast<std::uint64_t>(std::count_if(returned.begin(), returned.end(), [&](const HostChunk* chunk) {
        return !chunk->keepers.empty() && chunk->account == account;
      }));
  return shares_.mapped_by(account) + kept < shares_.reserved();
}

// Chunks that are free, and mapped by a process.
std::size_t HostMemory::kept_free() const {
  const HostChunks::List& returned = chunks_.in(State::kReturned);
  return static_cast<std::size_t>(
      std::count_if(returned.begin(), returned.end(), [](const HostChunk* chunk) { return !chunk->keepers.empty(); }));
}

void HostMemory::uses(const HostSeat& seat, std::uint64_t bytes, bool is_back) {
  const auto borrower = is_back ? borrowers_.try_emplace(seat.tenant).first : borrowers_.find(seat.tenant);
  if (borrower == borrowers_.end()) return;
  std::map<std::uint32_t, std::uint64_t>& earlier = borrower->second.earlier;
  const auto its = is_back ? earlier.try_emplace(seat.slot).first : earlier.find(seat.slot);
  if (its == earlier.end()) return;
  const std::uint64_t before = its->second;
  its->second = std::min(bytes, is_back ? budget_ : before);
  earlier_ += its->second;
  earlier_ -= before;
  if (its->second == 0) earlier.erase(its);
  if (counts_earlier_ && before > bytes) serve();
}

void HostMemory::rebalance() {
  const std::size_t needs = needed();
  needed_lately_.back() = std::max(needed_lately_.back(), needs);
  const auto growing = static_cast<std::size_t>(std::count_if(
      requests_.begin(), requests_.end(), [this](const Request& request) { return may_grow(request.account); }));
  const std::size_t missing = std::max(needs - std::min(needs, there()), growing);
  while (!failing_ && making() < std::min(missing, most_making()) && may_make()) make();
  // A request that still waits is of another trust domain than the chunks that are free.
  for (std::size_t coming = making() + leaving_soon();
       coming < std::min(growing, kMaxMaking) && chunks_.count(State::kReturned) > 0; ++coming)
    drop_one();
  for (std::size_t coming = leaving_soon(); coming < std::min(requests_.size() - growing, kMaxMaking) && drop_kept();)
    ++coming;
  while (has_too_much() && drop_unmapped()) continue;
}

std::size_t HostMemory::most_making() const { return requests_.empty() ? kMaxMakingAhead : kMaxMaking; }

// Of what its keepers have been told to let go of, as much as they are likely to.
std::size_t HostMemory::leaving_soon() const {
  const HostChunks::List& leaving = chunks_.in(State::kLeaving);
  return static_cast<std::size_t>(std::count_if(leaving.begin(), leaving.end(),
                                                [](const HostChunk* chunk) { return chunk->looks <= kPatientLooks; }));
}

HostChunk* HostMemory::newest_ready() const {
  return chunks_.count(State::kReady) == 0 ? nullptr : chunks_.in(State::kReady).back();
}

HostChunk* HostMemory::oldest_returned(bool is_kept) const {
  const HostChunks::List& returned = chunks_.in(State::kReturned);
  const auto found = std::find_if(returned.begin(), returned.end(),
                                  [is_kept](const HostChunk* chunk) { return chunk->keepers.empty() != is_kept; });
  return found == returned.end() ? nullptr : *found;
}

// Drops a free chunk, which costs no program anything.
bool HostMemory::drop_unmapped() {
  HostChunk* chunk = oldest_returned(false);
  if (chunk == nullptr) chunk = newest_ready();
  if (chunk == nullptr) return false;
  close(*chunk);
  return true;
}

void HostMemory::drop_one() {
  if (!drop_unmapped()) drop_kept();
}

bool HostMemory::drop_kept() {
  HostChunk* const chunk = oldest_returned(true);
  if (chunk == nullptr) return false;
  unmake(*chunk);
  return true;
}

void HostMemory::make() {
  const std::uint64_t id = chunks_.add().id;
  work_then(
      pool_, loop_, [files = files_, bytes = chunk_bytes_] { return files->make(bytes); },
      [alive = alive_, id](base::Result<HostFile> file) {
        if (alive->self != nullptr) alive->self->has_made(id, std::move(file));
      });
}

void HostMemory::has_made(std::uint64_t id, base::Result<HostFile> file) {
  HostChunk& chunk = *chunks_.find(id);
  if (file) {
    count(*file, chunk_bytes_);
    chunk.memory = std::move(file->fd);
    chunks_.move(chunk, State::kReady);
  } else {
    chunks_.remove(chunk);
    if (!failing_) {
      log_warning("the machine has no memory left for evicted data", {{"why", file.error().message()},
                                                                      {"lent", base::format_bytes(lent())},
                                                                      {"budget", base::format_bytes(budget_)}});
    }
    failing_ = true;
  }
  serve();
}

void HostMemory::close(HostChunk& chunk, Old how) {
  work_then(
      pool_, loop_,
      [old = std::move(chunk.memory), how, bytes = chunk_bytes_, id = chunk.id]() mutable {
        if (how == Old::kUnmade) HostFiles::unmake(std::move(old), bytes);
        old.reset();
        return id;
      },
      [alive = alive_](std::uint64_t id) {
        if (alive->self != nullptr) alive->self->has_closed(id);
      });
  chunks_.move(chunk, State::kUnmaking);
}

void HostMemory::has_closed(std::uint64_t id) {
  chunks_.remove(*chunks_.find(id));
  failing_ = false;
  serve();
}

void HostMemory::returned(base::TenantId tenant, std::uint64_t id, bool kept) {
  HostChunk* const chunk = chunks_.find(id);
  if (chunk == nullptr || chunk->state() != State::kLent || chunk->borrower.tenant != tenant) return;
  const HostSeat seat = chunk->borrower;
  if (kept) chunk->keepers.push_back(seat);
  if (chunk->domain.empty()) {
    unmake(*chunk);
  } else {
    chunks_.move(*chunk, State::kReturned);
    failing_ = false;
  }
  if (kept && !borrowers_[tenant].keeps) let_go(seat, id);
  serve();
}

// Of processes whose connection ended before them. They answer nothing, as keepers of what they have.
void HostMemory::reap() {
  std::vector<base::TenantId> ended;
  for (const auto& [tenant, left] : left_) {
    if (os::has_ended(left.process.get())) ended.push_back(tenant);
  }
  for (const base::TenantId tenant : ended) {
    left_.erase(tenant);
    gone(tenant);
  }
}

void HostMemory::gone(base::TenantId tenant, os::FileDescriptor process) {
  std::erase_if(requests_, [&](const Request& request) {
    const bool is_its = request.seat.tenant == tenant;
    if (is_its) shares_.answered(request.account);
    return is_its;
  });
  const auto gone = borrowers_.extract(tenant);
  if (gone.empty()) return seats_.gone(tenant);
  for (const auto& [slot, bytes] : gone.mapped().earlier) earlier_ -= bytes;
  const auto is_its = [&](const HostSeat& seat) { return seat.tenant == tenant; };
  for (const State state : {State::kReturned, State::kLent, State::kLeaving}) {
    for (HostChunk* const chunk : chunks_.in(state)) std::erase_if(chunk->keepers, is_its);
  }
  for (HostChunk* const chunk : HostChunks::List(chunks_.in(State::kLeaving))) {
    if (chunk->keepers.empty()) close(*chunk);
  }
  const std::uint64_t lent = lent_to(tenant);
  const bool stays = process && lent != 0 && !os::has_ended(process.get());
  for (HostChunk* const chunk : HostChunks::List(chunks_.in(State::kLent))) {
    if (!is_its(chunk->borrower)) continue;
    if (stays) chunk->keepers.push_back(chunk->borrower);
    if (!process && chunk->keepers.empty()) {
      close(*chunk, Old::kOnlyClosed);
    } else {
      unmake(*chunk);
    }
  }
  seats_.gone(tenant);
  if (stays) left_.emplace(tenant, Left{std::move(process), lent});
  serve();
}

void HostMemory::look() {
  reap();
  needed_lately_.push_back(0);
  if (needed_lately_.size() > kKeptLooks) needed_lately_.pop_front();
  rebalance();
  const std::size_t soon = leaving_soon();
  const auto is_asked = [&](const HostSeat& seat) {
    const Forgetting* const forgetting = forgetting_of(seat);
    return forgetting != nullptr && !forgetting->told.empty();
  };
  for (HostChunk* const chunk : chunks_.in(State::kLeaving)) {
    if (std::any_of(chunk->keepers.begin(), chunk->keepers.end(), is_asked)) ++chunk->looks;
  }
  if (leaving_soon() != soon) {
    std::set<std::uint64_t> silent;
    for (const HostChunk* const chunk : chunks_.in(State::kLeaving)) {
      if (chunk->looks <= kPatientLooks) continue;
      for (const HostSeat& keeper : chunk->keepers) {
        if (is_asked(keeper)) silent.insert(keeper.tenant.value);
      }
    }
    log_warning("host memory cannot go back to the machine: tenants that do not answer have it mapped",
                {{"tenant", *silent.begin()}, {"tenants", silent.size()}, {"bytes", base::format_bytes(leaving())}});
    serve();  // no seat waits for it any longer
  }
  if (has_too_much()) drop_one();
  tell_all(1);
}

std::uint64_t HostMemory::awaited() const {
  const auto requests = std::count_if(requests_.begin(), requests_.end(),
                                      [this](const Request& request) { return !shares_.yields(request.account); });
  return static_cast<std::uint64_t>(requests) * chunk_bytes_;
}

std::uint64_t HostMemory::beyond(base::TenantId tenant) const {
  const auto found = borrowers_.find(tenant);
  if (found == borrowers_.end()) return 0;
  const std::uint64_t beyond_share = std::min(seats_.lent_to(tenant), shares_.beyond(found->second.account));
  return std::max(seats_.useless_of(tenant), beyond_share) * chunk_bytes_;
}

std::uint64_t HostMemory::lent_or_awaited(const std::function<bool(const HostSeat&)>& is_one) const {
  const auto waiting =
      std::count_if(requests_.begin(), requests_.end(), [&](const Request& request) { return is_one(request.seat); });
  return (seats_.lent_to(is_one) + static_cast<std::uint64_t>(waiting)) * chunk_bytes_;
}

bool HostMemory::awaits(base::TenantId tenant) const {
  return std::any_of(requests_.begin(), requests_.end(),
                     [tenant](const Request& request) { return request.seat.tenant == tenant; });
}

int HostMemory::descriptor_of(std::uint64_t id) {
  const HostChunk* const chunk = chunks_.find(id);
  return chunk == nullptr ? -1 : chunk->memory.get();
}

}  // namespace gpumux::daemon
