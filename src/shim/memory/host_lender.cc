// SPDX-License-Identifier: Apache-2.0
#include "shim/memory/host_lender.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "os/system_clock.h"
#include "pager/sizes.h"

namespace gpumux::shim {
namespace {

using namespace std::chrono_literals;

// Asked for at a time: large enough for few messages, small enough that a chunk becomes free as a whole again.
constexpr std::uint64_t kAskBytes = 256 * pager::kMebibyte;
// Under way at most: what arrives is pinned soon after, and the daemon zeroes and populates it before.
constexpr std::uint64_t kMostAsked = 2048 * pager::kMebibyte;
// After "not now". The daemon gets memory back from others within some milliseconds.
constexpr base::Duration kAskAgain = 3ms;

}  // namespace

HostLender::~HostLender() {
  for (const Lent& lent : lent_) ::munmap(lent.address, lent.bytes);
}

void HostLender::on_lent(const wire::HostLent& message, os::FileDescriptor memory) {
  const base::Locked locked(mutex_);
  if (!asked_each_.empty()) {
    asked_ -= asked_each_.front();
    asked_each_.erase(asked_each_.begin());
  }
  if (message.bytes == 0) {
    refused_until_ = os::SystemClock().now() + kAskAgain;
    return;
  }
  arrived_.push_back({message, std::move(memory)});
}

void HostLender::on_forget(const wire::HostForget& message) {
  const base::Locked locked(mutex_);
  forget_.insert(forget_.end(), message.ids, message.ids + message.count);
}

void HostLender::on_lost() {
  const base::Locked locked(mutex_);
  asked_ = 0;
  asked_each_.clear();
  refused_until_ = {};
  lost_ = true;
  arrived_.clear();
  forget_.clear();
}

// Aligned to a block, so that huge pages and copies meet it.
bool HostLender::map(Arrived& arrived) {
  const std::uint64_t bytes = arrived.message.bytes / pager::kBlockBytes * pager::kBlockBytes;
  // Pages beyond the file's end cannot be touched: better not to believe the number alone.
  if (bytes == 0 || bytes > wire::kMaxHostChunkBytes ||
      ::lseek(arrived.memory.get(), 0, SEEK_END) < static_cast<off_t>(bytes))
    return false;
  const std::uint64_t reserved = bytes + pager::kBlockBytes;
  void* const space = ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) return false;
  auto* const begin = static_cast<std::byte*>(space);
  const std::uint64_t skip = pager::round_up(reinterpret_cast<std::uintptr_t>(begin), pager::kBlockBytes) -
                             reinterpret_cast<std::uintptr_t>(begin);
  std::byte* const address = begin + skip;
  if (skip != 0) ::munmap(begin, skip);
  ::munmap(address + bytes, pager::kBlockBytes - skip);
  if (::mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, arrived.memory.get(), 0) == MAP_FAILED) {
    ::munmap(address, bytes);
    return false;
  }
  // A forked child has no use for it, and must not keep it when we are gone.
  ::madvise(address, bytes, MADV_DONTFORK);
  ::madvise(address, bytes, MADV_HUGEPAGE);
  Lent lent;
  lent.id = arrived.message.id;
  lent.address = address;
  lent.bytes = bytes;
  for (std::uint64_t at = bytes; at != 0;) {
    const std::uint64_t piece = at % pager::kHostChunkBytes != 0 ? at % pager::kHostChunkBytes : pager::kHostChunkBytes;
    at -= piece;
    lent.free.push_back(address + at);
  }
  lent_.push_back(std::move(lent));
  return true;
}

// Its index. The daemon has numbered it: what is kept under this number is this one.
std::size_t HostLender::find_kept(std::uint64_t id) const {
  const auto found = std::find_if(lent_.begin(), lent_.end(),
                                  [id](const Lent& lent) { return lent.kept && !lent.orphan && lent.id == id; });
  return static_cast<std::size_t>(found - lent_.begin());
}

bool HostLender::take_kept(const wire::HostLent& message) {
  const std::size_t index = find_kept(message.id);
  if (index == lent_.size()) return false;
  Lent& lent = lent_[index];
  if (::mprotect(lent.address, lent.bytes, PROT_READ | PROT_WRITE) != 0) {
    unmap(index);
    return false;
  }
  lent.kept = false;
  return true;
}

void HostLender::unmap(std::size_t index) {
  const Lent& lent = lent_[index];
  port_.unregister_host(slot_, lent.address, lent.bytes);
  ::munmap(lent.address, lent.bytes);
  lent_.erase(lent_.begin() + static_cast<std::ptrdiff_t>(index));
}

void HostLender::map_arrived() {
  std::vector<Arrived> arrived;
  {
    const base::Locked locked(mutex_);
    arrived.swap(arrived_);
    // Numbers of an earlier connection mean nothing to whoever is at the other end now.
    if (std::exchange(lost_, false)) {
      for (Lent& lent : lent_) lent.orphan = true;
      keeps_in_vain_ = true;
    }
  }
  for (Arrived& one : arrived) {
    if (one.memory ? !map(one) : !take_kept(one.message)) port_.return_host(one.message.id, false);
  }
}

void HostLender::ask(std::uint64_t missing) {
  for (;;) {
    std::uint64_t bytes = 0;
    {
      const base::Locked locked(mutex_);
      if (asked_ >= std::min(missing, kMostAsked) || os::SystemClock().now() < refused_until_) return;
      bytes = std::min(pager::round_up(missing - asked_, pager::kHostChunkBytes), kAskBytes);
      // Before it is sent: the answer may be here first.
      asked_ += bytes;
      asked_each_.push_back(bytes);
    }
    if (port_.ask_for_host(slot_, bytes)) continue;
    const base::Locked locked(mutex_);
    if (!asked_each_.empty()) {
      asked_ -= asked_each_.back();
      asked_each_.pop_back();
    }
    refused_until_ = os::SystemClock().now() + kAskAgain;
    return;
  }
}

void HostLender::want(std::uint64_t bytes) {
  map_arrived();
  const std::uint64_t have = unused_bytes();
  if (have < bytes) ask(bytes - have);
}

std::uint64_t HostLender::unused_bytes() const {
  std::uint64_t bytes = 0;
  for (const Lent& lent : lent_) {
    if (lent.kept) continue;
    for (const std::byte* piece : lent.free)
      bytes += std::min<std::uint64_t>(pager::kHostChunkBytes,
                                       static_cast<std::uint64_t>(lent.address + lent.bytes - piece));
  }
  return bytes;
}

bool HostLender::is_whole(const Lent& lent) {
  return !lent.kept && lent.free.size() == (lent.bytes + pager::kHostChunkBytes - 1) / pager::kHostChunkBytes;
}

std::uint64_t HostLender::whole_unused_bytes() const {
  std::uint64_t bytes = 0;
  for (const Lent& lent : lent_) bytes += is_whole(lent) ? lent.bytes : 0;
  return bytes;
}

std::optional<pager::HostChunk> HostLender::lend(std::uint64_t bytes) {
  map_arrived();
  // The fullest first, so that the emptiest become free as a whole.
  Lent* best = nullptr;
  for (Lent& lent : lent_) {
    if (!lent.kept && !lent.free.empty() && (best == nullptr || lent.free.size() < best->free.size())) best = &lent;
  }
  if (best == nullptr) {
    ask(bytes);
    return std::nullopt;
  }
  std::byte* const piece = best->free.back();
  best->free.pop_back();
  const auto left = static_cast<std::uint64_t>(best->address + best->bytes - piece);
  return pager::HostChunk{piece, std::min<std::uint64_t>(left, pager::kHostChunkBytes), best->id};
}

void HostLender::give_back(const pager::HostChunk& chunk) {
  for (Lent& lent : lent_) {
    if (chunk.address >= lent.address && chunk.address < lent.address + lent.bytes) lent.free.push_back(chunk.address);
  }
}

std::uint64_t HostLender::give_up(std::uint64_t bytes) {
  map_arrived();
  std::uint64_t given = 0;
  for (std::size_t i = lent_.size(); i-- > 0 && given < bytes;) {
    Lent& lent = lent_[i];
    if (!is_whole(lent)) continue;
    given += lent.bytes;
    const std::uint64_t id = lent.id;
    const bool orphan = lent.orphan;
    // Others may have it from now on: a stray pointer of the program's must not find it.
    lent.kept = !orphan && !keeps_nothing_ && ::mprotect(lent.address, lent.bytes, PROT_NONE) == 0;
    const bool kept = lent.kept;
    if (!kept) unmap(i);
    if (!orphan) port_.return_host(id, kept);
  }
  return given;
}

// When the process is about to end. The daemon may still lend by its number what is no longer here, and hears so.
bool HostLender::forget_unused() {
  const auto kept = std::find_if(lent_.begin(), lent_.end(), [](const Lent& lent) { return lent.kept; });
  if (kept == lent_.end()) return give_up(1) != 0;
  unmap(static_cast<std::size_t>(kept - lent_.begin()));
  return true;
}

// One at a time, a few milliseconds: a job of the pager's may be under way.
bool HostLender::forget_one() {
  map_arrived();
  if (keeps_in_vain_) {
    const auto vain =
        std::find_if(lent_.begin(), lent_.end(), [](const Lent& lent) { return lent.kept && lent.orphan; });
    keeps_in_vain_ = vain != lent_.end();
    if (keeps_in_vain_) unmap(static_cast<std::size_t>(vain - lent_.begin()));
    return keeps_in_vain_;
  }
  std::optional<std::uint64_t> id;
  {
    const base::Locked locked(mutex_);
    if (!forget_.empty()) id = forget_.back();
  }
  if (!id) return keeps_nothing_ && forget_unused();
  if (const std::size_t index = find_kept(*id); index != lent_.size()) unmap(index);
  {
    const base::Locked locked(mutex_);
    // A connection that was lost meanwhile has taken the question with it.
    if (std::erase(forget_, *id) == 0 || !forget_.empty()) return true;
  }
  port_.forgot_host(slot_);
  return true;
}

}  // namespace gpumux::shim
