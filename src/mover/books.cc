// SPDX-License-Identifier: Apache-2.0
#include "mover/books.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "mover/copier/sizes.h"

namespace gpumux::mover {

base::Result<Books> Books::open(int file, std::uint32_t slots, std::uint32_t slots_per_chunk) {
  struct stat facts {};
  if (::fstat(file, &facts) != 0) return base::fail_errno(errno, "cannot look at the books of host memory");
  const std::uint64_t bytes = bytes_for(slots);
  if (slots == 0 || slots_per_chunk == 0 || static_cast<std::uint64_t>(facts.st_size) < bytes)
    return base::fail(base::Code::kInvalid, "the books of host memory are too small");
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return base::fail_errno(errno, "cannot map the books of host memory");
  return Books(std::span(static_cast<Entry*>(memory), slots), slots_per_chunk);
}

Books::Books(Books&& other) noexcept
    : entries_(std::exchange(other.entries_, {})), slots_per_chunk_(other.slots_per_chunk_) {}

Books::~Books() {
  if (!entries_.empty()) ::munmap(entries_.data(), entries_.size_bytes());
}

// The entry of a slot that holds content, as it was at one moment. Nothing: it holds none.
std::optional<Books::Snapshot> Books::content_of(std::uint32_t slot) const {
  if (slot >= slots()) return std::nullopt;
  const Entry& entry = entries_[slot];
  for (;;) {
    const std::uint64_t word = entry.word.load();
    if (state_in(word) != State::kHeld && state_in(word) != State::kClean) return std::nullopt;
    const Snapshot seen{
        .word = word,
        .owner = {entry.seat.load(), entry.chunk.load(), static_cast<std::uint32_t>(entry.block.load())},
        .held = {.hashed = entry.hashed.load() != 0, .hash = {entry.hash_low.load(), entry.hash_high.load()}}};
    if (entry.word.load() == word) return seen;
  }
}

// False: the slot is not this owner's.
bool Books::change(std::uint32_t slot, const Owner& owner, State state) {
  for (;;) {
    const auto seen = content_of(slot);
    if (!seen || seen->owner != owner) return false;
    std::uint64_t word = seen->word;
    if (entries_[slot].word.compare_exchange_strong(word, with(word, state))) return true;
  }
}

std::optional<Books::Held> Books::find(std::uint32_t slot, const Owner& owner) const {
  const auto seen = content_of(slot);
  return seen && seen->owner == owner ? std::optional(seen->held) : std::nullopt;
}

std::optional<Books::Held> Books::hold(std::uint32_t slot, const Owner& owner) {
  if (!change(slot, owner, State::kHeld)) return std::nullopt;
  return find(slot, owner);  // only its own messages change what is held
}

bool Books::loaded(std::uint32_t slot, const Owner& owner) { return change(slot, owner, State::kClean); }

bool Books::take(std::uint32_t slot, const Owner& owner) { return change(slot, owner, State::kWriting); }

bool Books::take(std::uint32_t slot, SeatNumber seat) {
  const auto seen = content_of(slot);
  return seen && seen->owner.seat == seat && take(slot, seen->owner);
}

std::optional<std::uint32_t> Books::reclaim(std::uint32_t* from) {
  for (std::uint32_t seen = 0; seen < slots(); ++seen) {
    const std::uint32_t slot = *from;
    *from = slot + 1 == slots() ? 0 : slot + 1;
    std::uint64_t word = entries_[slot].word.load();
    if (state_in(word) == State::kClean &&
        entries_[slot].word.compare_exchange_strong(word, with(word, State::kWriting)))
      return slot;
  }
  return std::nullopt;
}

void Books::set(std::uint32_t slot, State state) { entries_[slot].word.store(with(entries_[slot].word.load(), state)); }

// Before any byte of the slot changes: the caller begins its copy after this.
void Books::writing(std::uint32_t slot) { set(slot, State::kWriting); }

void Books::written(std::uint32_t slot, const Owner& owner, bool hashed, const BlockHash& hash) {
  Entry& entry = entries_[slot];
  entry.seat.store(owner.seat);
  entry.chunk.store(owner.chunk);
  entry.block.store(owner.block);
  entry.hashed.store(hashed ? 1 : 0);
  entry.hash_low.store(hash.low);
  entry.hash_high.store(hash.high);
  entry.word.store(with(entry.word.load() + kStates, State::kHeld));
}

void Books::released(std::uint32_t slot) { set(slot, State::kFree); }

std::unordered_set<SeatNumber> Books::owners() const {
  std::unordered_set<SeatNumber> owners;
  for (std::uint32_t slot = 0; slot < slots(); ++slot) {
    if (const auto seen = content_of(slot)) owners.insert(seen->owner.seat);
  }
  return owners;
}

std::uint64_t Books::bytes_of(SeatNumber seat) const {
  std::uint64_t bytes = 0;
  for (std::uint32_t slot = 0; slot < slots(); ++slot) {
    const auto seen = content_of(slot);
    bytes += seen && seen->owner.seat == seat ? kBlockBytes : 0;
  }
  return bytes;
}

}  // namespace gpumux::mover
