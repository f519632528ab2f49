// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/host_memory.h"

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "os/system_clock.h"
#include "server/loop/log.h"
#include "server/loop/pool_work.h"

namespace gpumux::daemon {
namespace {

// Of x86-64, and of arm64 with pages of 4 KiB.
constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;
// Large enough that a thousand cover a large machine. Small enough to be ready soon (60 ms on one thread).
constexpr std::uint64_t kMaxChunk = std::uint64_t{256} << 20;
// A small budget is still many chunks.
constexpr std::uint64_t kChunksInBudget = 16;
// Ready beyond what is known to be needed, so that a switch that evicts a little more finds it.
constexpr std::size_t kWindowChunks = 4;
// Chunks that are being made at once. While a request waits: more than the pool has threads. Otherwise: at most as many
// as it has, so that a request that begins to wait is behind few.
constexpr std::size_t kMaxMaking = 32;
constexpr std::size_t kMaxMakingAhead = 8;
// Enough to tell kinds of memory from each other (2 ms in huge pages, 8 ms in small ones), and to cost nothing.
constexpr std::uint64_t kMeasureBytes = std::uint64_t{16} << 20;
// Host memory of earlier daemons never leaves less than this part of the budget to be lent. The next lease holder may
// have its memory there, and gets none of it back before the present holder has somewhere to go.
constexpr std::uint64_t kLeastOfBudget = 4;
// Host memory is short no more when there is this much less to be evicted than there was. A guess: with more, it would
// be short by turns.
constexpr std::uint64_t kMuchLessNumerator = 3;
constexpr std::uint64_t kMuchLessDenominator = 4;

std::uint64_t chunk_for(std::uint64_t budget) {
  const std::uint64_t part = budget / kChunksInBudget / kHugePage * kHugePage;
  return std::clamp(part, kHugePage, kMaxChunk);
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
      alive_(std::make_shared<Alive>()) {
  alive_->self = this;
}

HostMemory::~HostMemory() { alive_->self = nullptr; }

void HostMemory::keep_at(const std::string& folder) {
  auto files = HostFiles::open_at(folder);
  if (files) {
    files_ = std::make_shared<const HostFiles>(std::move(*files));
  } else {
    server::log_error("evicted data ends with this daemon and its mover", {{"why", files.error().message()}});
  }
}

void HostMemory::measure() {
  server::work_then(
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
  if (short_at_ && demand_ <= *short_at_ / kMuchLessDenominator * kMuchLessNumerator) short_at_.reset();
  rebalance();
}

void HostMemory::set_elsewhere(std::uint64_t bytes) {
  if (std::exchange(elsewhere_, bytes) > bytes) serve();
}

std::size_t HostMemory::needed() const {
  const std::size_t in_use = lent_.size() + requests_.size();
  if (demand_ == 0) return in_use;
  const auto expected = static_cast<std::size_t>((demand_ + copies_ + chunk_bytes_ - 1) / chunk_bytes_);
  return std::max(expected, in_use) + kWindowChunks;
}

bool HostMemory::has_too_much() const {
  return there() > *std::max_element(needed_lately_.begin(), needed_lately_.end());
}

bool HostMemory::may_make() const {
  const std::uint64_t elsewhere = std::min(elsewhere_, budget_ / kLeastOfBudget * (kLeastOfBudget - 1));
  return !failing_ && taken() + elsewhere + chunk_bytes_ <= budget_;
}

void HostMemory::wanted() {
  if (requests_.size() >= kMaxHostRequests) return;
  requests_.push_back(os::now());
  const std::size_t waiting = requests_.size();
  serve();
  if (requests_.size() == waiting) ++loans_.waited;
}

std::optional<std::uint64_t> HostMemory::adopt(os::FileDescriptor memory) {
  if (!HostFiles::is_whole(memory.get(), chunk_bytes_)) return std::nullopt;
  lent_.emplace(++last_, std::move(memory));
  return last_;
}

void HostMemory::returned(std::uint64_t chunk) {
  auto lent = lent_.extract(chunk);
  if (lent.empty()) return;
  failing_ = false;
  // A file that has had a name cannot have another one.
  if (files_->is_attached()) {
    drop(std::move(lent.mapped()));
  } else {
    ready_.push_back(std::move(lent.mapped()));
  }
  serve();
}

void HostMemory::abandon() {
  lent_.clear();
  requests_.clear();
  serve();
}

void HostMemory::lend() {
  loans_.waiting += os::now() - requests_.front();
  requests_.pop_front();
  ++loans_.all;
  lent_.emplace(++last_, std::move(ready_.back()));
  ready_.pop_back();
  on_lent_(last_);
}

void HostMemory::serve() {
  while (!requests_.empty() && !ready_.empty()) lend();
  rebalance();
  if (requests_.empty() || is_making()) return;
  // Nothing comes.
  short_at_ = std::max(short_at_.value_or(0), demand_);
  requests_.clear();
}

void HostMemory::rebalance() {
  const std::size_t needs = needed();
  needed_lately_.back() = std::max(needed_lately_.back(), needs);
  const std::size_t missing = needs - std::min(needs, there());
  const std::size_t most = requests_.empty() ? kMaxMakingAhead : kMaxMaking;
  while (making_ < std::min(missing, most) && may_make()) make();
  while (has_too_much() && !ready_.empty()) {
    drop(std::move(ready_.back()));
    ready_.pop_back();
  }
}

void HostMemory::make() {
  ++making_;
  server::work_then(
      pool_, loop_, [files = files_, bytes = chunk_bytes_] { return files->make(bytes); },
      [alive = alive_](base::Result<HostFile> file) {
        if (alive->self != nullptr) alive->self->has_made(std::move(file));
      });
}

void HostMemory::has_made(base::Result<HostFile> file) {
  --making_;
  if (file) {
    count(*file, chunk_bytes_);
    ready_.push_back(std::move(file->fd));
  } else {
    if (!std::exchange(failing_, true)) {
      server::log_warning("the machine has no memory left for evicted data", {{"why", file.error().message()},
                                                                              {"lent", base::format_bytes(lent())},
                                                                              {"budget", base::format_bytes(budget_)}});
    }
  }
  serve();
}

void HostMemory::drop(os::FileDescriptor file) {
  ++unmaking_;
  server::work_then(
      pool_, loop_,
      [old = std::move(file), bytes = chunk_bytes_]() mutable {
        HostFiles::unmake(std::move(old), bytes);
        return true;
      },
      [alive = alive_](bool) {
        if (alive->self == nullptr) return;
        --alive->self->unmaking_;
        alive->self->failing_ = false;
        alive->self->serve();
      });
}

void HostMemory::look() {
  needed_lately_.push_back(0);
  if (needed_lately_.size() > kKeptLooks) needed_lately_.pop_front();
  failing_ = false;
  rebalance();
}

int HostMemory::descriptor_of(std::uint64_t chunk) const {
  const auto lent = lent_.find(chunk);
  return lent == lent_.end() ? -1 : lent->second.get();
}

}  // namespace gpumux::daemon
