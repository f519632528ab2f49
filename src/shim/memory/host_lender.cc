// SPDX-License-Identifier: Apache-2.0
#include "shim/memory/host_lender.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include "os/system_clock.h"
#include "pager/sizes.h"

namespace gpumux::shim {
namespace {

using namespace std::chrono_literals;

// Asked for at a time: large enough for few messages, small enough that a chunk becomes free as a whole again.
constexpr std::uint64_t kAskBytes = 256 * pager::kMebibyte;
// Under way at most: what arrives is pinned soon after, and the daemon zeroes and populates it before.
// A guess: the daemon makes that much in a second or less.
constexpr std::uint64_t kMostAsked = 2048 * pager::kMebibyte;
// After "not now". The daemon gets memory back from others within some milliseconds.
constexpr base::Duration kAskAgain = 3ms;

}  // namespace

std::size_t HostLender::Chunk::pieces() const { return (bytes + pager::kHostChunkBytes - 1) / pager::kHostChunkBytes; }

HostLender::~HostLender() {
  for (const Chunk& chunk : chunks_) ::munmap(chunk.address, chunk.bytes);
}

void HostLender::on_lent(const wire::HostLent& message, os::FileDescriptor memory) {
  const base::Locked locked(mutex_);
  if (!asked_.empty()) asked_.erase(asked_.begin());
  if (message.bytes == 0) {
    refused_until_ = os::now() + kAskAgain;
    return;
  }
  const bool has_memory = static_cast<bool>(memory);
  inbox_.emplace_back(Arrived{message, has_memory, os::KeptDescriptor(std::move(memory))});
}

void HostLender::on_forget(const wire::HostForget& message) {
  const base::Locked locked(mutex_);
  inbox_.emplace_back(message);
}

// Nothing that this daemon has said before counts any more.
void HostLender::on_lost() {
  const base::Locked locked(mutex_);
  asked_.clear();
  refused_until_ = {};
  inbox_.clear();
  inbox_.emplace_back(Lost{});
}

// Aligned to a block, so that huge pages and copies meet it.
bool HostLender::map(const Arrived& arrived) {
  const std::uint64_t bytes = arrived.lent.bytes / pager::kBlockBytes * pager::kBlockBytes;
  // Negative where the program has closed it: nothing is mapped then.
  const int memory = arrived.memory.get();
  // Pages beyond the file's end cannot be touched: better not to believe the number alone.
  if (bytes == 0 || bytes > wire::kMaxHostChunkBytes || ::lseek(memory, 0, SEEK_END) < static_cast<off_t>(bytes))
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
  if (::mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory, 0) == MAP_FAILED) {
    ::munmap(address, bytes);
    return false;
  }
  // A forked child has no use for it, and must not keep it when we are gone.
  ::madvise(address, bytes, MADV_DONTFORK);
  ::madvise(address, bytes, MADV_HUGEPAGE);
  Chunk chunk;
  chunk.id = arrived.lent.id;
  chunk.address = address;
  chunk.bytes = bytes;
  for (std::uint64_t at = bytes; at != 0;) {
    const std::uint64_t piece = at % pager::kHostChunkBytes != 0 ? at % pager::kHostChunkBytes : pager::kHostChunkBytes;
    at -= piece;
    chunk.free.push_back(address + at);
  }
  chunks_.push_back(std::move(chunk));
  return true;
}

HostLender::Chunks::iterator HostLender::find(State state, std::optional<std::uint64_t> id) {
  return std::find_if(chunks_.begin(), chunks_.end(),
                      [&](const Chunk& chunk) { return chunk.state == state && (!id || chunk.id == *id); });
}

bool HostLender::lend_again(std::uint64_t id) {
  const auto kept = find(State::kKept, id);
  if (kept == chunks_.end()) return false;
  if (::mprotect(kept->address, kept->bytes, PROT_READ | PROT_WRITE) != 0) {
    unmap(kept);
    return false;
  }
  kept->state = State::kLent;
  return true;
}

void HostLender::unmap(Chunks::iterator chunk) {
  port_.unregister_host(slot_, chunk->address, chunk->bytes);
  ::munmap(chunk->address, chunk->bytes);
  chunks_.erase(chunk);
}

void HostLender::take(const Arrived& arrived) {
  if (arrived.has_memory ? !map(arrived) : !lend_again(arrived.lent.id)) port_.return_host(arrived.lent.id, false);
}

// Some of them may not be here, and yet the daemon waits for its answer.
void HostLender::take(const wire::HostForget& forget) {
  for (const std::uint64_t id : std::span(forget.ids, forget.count)) {
    if (const auto kept = find(State::kKept, id); kept != chunks_.end()) kept->state = State::kVain;
  }
  asked_to_forget_ = true;
}

// Numbers of an earlier connection mean nothing to the daemon of the next one.
void HostLender::take(Lost) {
  for (Chunk& chunk : chunks_) chunk.state = chunk.is_usable() ? State::kOrphan : State::kVain;
  asked_to_forget_ = false;
}

void HostLender::take_messages() {
  std::vector<Message> messages;
  {
    const base::Locked locked(mutex_);
    messages.swap(inbox_);
  }
  for (const Message& message : messages) std::visit([this](const auto& one) { take(one); }, message);
}

void HostLender::keep_nothing() {
  keeps_nothing_ = true;
  for (Chunk& chunk : chunks_) chunk.state = chunk.is_usable() ? chunk.state : State::kVain;
}

void HostLender::ask(std::uint64_t missing) {
  for (;;) {
    std::uint64_t bytes = 0;
    {
      const base::Locked locked(mutex_);
      const std::uint64_t asked = std::accumulate(asked_.begin(), asked_.end(), std::uint64_t{0});
      if (asked >= std::min(missing, kMostAsked) || os::now() < refused_until_) return;
      bytes = std::min(pager::round_up(missing - asked, pager::kHostChunkBytes), kAskBytes);
      // Before it is sent: the answer may be here first.
      asked_.push_back(bytes);
    }
    if (port_.ask_for_host(slot_, bytes)) continue;
    const base::Locked locked(mutex_);
    if (!asked_.empty()) asked_.pop_back();
    refused_until_ = os::now() + kAskAgain;
    return;
  }
}

void HostLender::want(std::uint64_t bytes) {
  take_messages();
  const std::uint64_t have = unused_bytes();
  if (have < bytes) ask(bytes - have);
}

std::uint64_t HostLender::unused_bytes() const {
  std::uint64_t bytes = 0;
  for (const Chunk& chunk : chunks_) {
    if (!chunk.is_usable()) continue;
    for (const std::byte* piece : chunk.free)
      bytes += std::min<std::uint64_t>(pager::kHostChunkBytes,
                                       static_cast<std::uint64_t>(chunk.address + chunk.bytes - piece));
  }
  return bytes;
}

std::uint64_t HostLender::whole_unused_bytes() const {
  std::uint64_t bytes = 0;
  for (const Chunk& chunk : chunks_) bytes += chunk.is_whole() ? chunk.bytes : 0;
  return bytes;
}

std::optional<pager::HostChunk> HostLender::lend(std::uint64_t bytes) {
  take_messages();
  // The fullest first, so that the emptiest become free as a whole.
  Chunk* best = nullptr;
  for (Chunk& chunk : chunks_) {
    if (chunk.is_usable() && !chunk.free.empty() && (best == nullptr || chunk.free.size() < best->free.size()))
      best = &chunk;
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

void HostLender::give_back(const pager::HostChunk& piece) {
  for (Chunk& chunk : chunks_) {
    if (piece.address >= chunk.address && piece.address < chunk.address + chunk.bytes)
      chunk.free.push_back(piece.address);
  }
}

std::uint64_t HostLender::give_up(std::uint64_t bytes) {
  take_messages();
  std::uint64_t given = 0;
  for (std::size_t i = chunks_.size(); i-- > 0 && given < bytes;) {
    Chunk& chunk = chunks_[i];
    if (!chunk.is_whole()) continue;
    given += chunk.bytes;
    const std::uint64_t id = chunk.id;
    const bool is_lent = chunk.state == State::kLent;
    // Others may have it from now on: a stray pointer of the program's must not find it.
    const bool kept = is_lent && !keeps_nothing_ && ::mprotect(chunk.address, chunk.bytes, PROT_NONE) == 0;
    if (kept) {
      chunk.state = State::kKept;
    } else {
      unmap(chunks_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (is_lent) port_.return_host(id, kept);
  }
  return given;
}

// One at a time, a few milliseconds: a job of the pager's may be under way.
bool HostLender::forget_one() {
  take_messages();
  if (const auto vain = find(State::kVain); vain != chunks_.end()) {
    unmap(vain);
    // A connection that was lost since has taken the question with it.
    take_messages();
  } else if (!asked_to_forget_) {
    // The process is about to end. The daemon may still lend by its number what is no longer here, and is told so.
    return keeps_nothing_ && give_up(1) != 0;
  }
  if (asked_to_forget_ && find(State::kVain) == chunks_.end()) {
    asked_to_forget_ = false;
    port_.forgot_host(slot_);
  }
  return true;
}

const char* HostLender::check() const {
  std::set<std::uint64_t> ids;
  std::set<const std::byte*> pieces;
  for (const Chunk& chunk : chunks_) {
    const bool is_numbered = chunk.state == State::kLent || chunk.state == State::kKept;
    if (is_numbered && !ids.insert(chunk.id).second) return "two chunks have the same number";
    if (!chunk.is_usable() && chunk.free.size() != chunk.pieces()) return "a chunk is used that the daemon has";
    for (const std::byte* piece : chunk.free) {
      if (piece < chunk.address || piece >= chunk.address + chunk.bytes) return "a piece is not of its chunk";
      if (!pieces.insert(piece).second) return "a piece is free twice";
    }
  }
  return nullptr;
}

}  // namespace gpumux::shim
