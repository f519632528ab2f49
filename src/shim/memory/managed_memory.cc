// SPDX-License-Identifier: Apache-2.0
#include "shim/memory/managed_memory.h"

#include <algorithm>

#include "cuda/current_context.h"

namespace gpumux::shim {
namespace {

using cuda::CUresult;

// Pieces in one bite: each costs some calls of the driver.
constexpr int kMostBites = 16;
constexpr cuda::CUmemLocation kHost{cuda::CU_MEM_LOCATION_TYPE_HOST, 0};

std::uint64_t page_of(std::uint64_t address) { return address / ManagedMemory::kPageBytes * ManagedMemory::kPageBytes; }
std::uint64_t page_from(std::uint64_t address) { return page_of(address + ManagedMemory::kPageBytes - 1); }

}  // namespace

// ---- what there is

const ManagedMemory::Live* ManagedMemory::live_at(cuda::CUdeviceptr address) const {
  const auto next = ranges_.upper_bound(address);
  if (next == ranges_.begin()) return nullptr;
  const Live& live = std::prev(next)->second;
  return address - live.range.address < live.range.bytes ? &live : nullptr;
}

std::uint64_t ManagedMemory::add(const Range& range) {
  const base::Locked locked(mutex_);
  std::uint64_t gone = 0;
  if (const auto there = ranges_.find(range.address); there != ranges_.end()) {
    gone = counted(there->second.range.bytes);
    forget(there->second.range);
  }
  ranges_[range.address] = {range, next_id_++, false};
  bytes_.fetch_add(counted(range.bytes), std::memory_order_relaxed);
  return gone;
}

// Pages that it shares with others stay what they are.
void ManagedMemory::forget(const Range& range) {
  const std::uint64_t begin = page_from(range.address);
  const std::uint64_t end = page_of(range.address + range.bytes);
  bytes_.fetch_sub(counted(range.bytes), std::memory_order_relaxed);
  if (begin >= end) return;
  preferred_.erase(begin, end);
  for (std::uint64_t at = begin; at < end;) {
    const auto piece = away_.find(at);
    const std::uint64_t next = piece ? std::min(piece->end, end) : away_.next_begin(at, end);
    if (piece) away_bytes_.fetch_sub(next - at, std::memory_order_relaxed);
    at = next;
  }
  away_.erase(begin, end);
  not_fetched_.erase(begin, end);
}

std::optional<ManagedMemory::Freeing> ManagedMemory::begin_free(cuda::CUdeviceptr address) {
  const base::Locked locked(mutex_);
  const auto found = ranges_.find(address);
  if (found == ranges_.end() || found->second.is_going) return std::nullopt;
  found->second.is_going = true;
  return Freeing{address, found->second.id, counted(found->second.range.bytes)};
}

bool ManagedMemory::end_free(const Freeing& freeing, bool freed) {
  const base::Locked locked(mutex_);
  const auto found = ranges_.find(freeing.address);
  if (found == ranges_.end() || found->second.id != freeing.id) return false;
  found->second.is_going = false;
  if (!freed) return false;
  forget(found->second.range);
  ranges_.erase(found);
  note();
  return true;
}

std::uint64_t ManagedMemory::context_gone(cuda::CUcontext context) {
  const base::Locked locked(mutex_);
  std::uint64_t gone = 0;
  for (auto range = ranges_.begin(); range != ranges_.end();) {
    const Range& its = range->second.range;
    if (its.context != context) {
      ++range;
      continue;
    }
    gone += counted(its.bytes);
    forget(its);
    range = ranges_.erase(range);
  }
  streams_.erase(context);
  note();
  return gone;
}

void ManagedMemory::follow(cuda::CUdeviceptr address, std::uint64_t bytes, cuda::CUmem_advise advice,
                           cuda::CUmemLocation place) {
  const std::uint64_t begin = page_of(address);
  const std::uint64_t end = page_from(address + bytes);
  if (advice == cuda::CU_MEM_ADVISE_SET_PREFERRED_LOCATION) preferred_.set(begin, end, place);
  if (advice == cuda::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION) preferred_.erase(begin, end);
}

bool ManagedMemory::prefers_other(std::uint64_t address) const {
  const auto preferred = preferred_.find(address);
  return preferred && !(preferred->value.type == cuda::CU_MEM_LOCATION_TYPE_DEVICE && preferred->value.id == device_);
}

// ---- where it is to go

void ManagedMemory::evict(std::uint64_t bytes) {
  const base::Locked locked(mutex_);
  if (!can_move()) return;
  aim_ = Aim::kLeave;
  const std::uint64_t most = std::min(bytes, this->bytes());
  to_go_ = most - std::min(most, away_bytes());
  cursor_ = 0;
  note();
}

void ManagedMemory::come_back(std::uint64_t room) {
  const base::Locked locked(mutex_);
  if (aim_ == Aim::kComeBack) return;
  aim_ = Aim::kComeBack;
  to_go_ = room;
  cursor_ = 0;
  note();
}

void ManagedMemory::stop_coming_back() {
  const base::Locked locked(mutex_);
  if (aim_ == Aim::kComeBack) aim_ = Aim::kStay;
  note();
}

bool ManagedMemory::step() {
  const base::Locked locked(mutex_);
  if (is_running()) return true;
  std::uint64_t bitten = 0;
  for (int i = 0; i < kMostBites && aim_ != Aim::kStay && bitten < kBiteBytes; ++i) {
    const auto piece = aim_ == Aim::kLeave ? next_to_leave() : next_to_come_back();
    if (!piece) {
      aim_ = Aim::kStay;
    } else if (aim_ == Aim::kLeave ? send_away(*piece) : fetch(*piece)) {
      bitten += piece->bytes();
    }
  }
  note();
  return aim_ != Aim::kStay || bitten != 0;
}

void ManagedMemory::note() {
  const bool is_running =
      std::any_of(streams_.begin(), streams_.end(), [](const auto& entry) { return entry.second.is_running; });
  is_at_home_.store(aim_ == Aim::kStay && !is_running && away_bytes() == 0, std::memory_order_relaxed);
}

// If host and GPU cannot both reach it at any time (some virtual GPUs), the driver takes no such advice.
bool ManagedMemory::can_move() {
  if (can_move_ < 0) {
    int value = 0;
    const bool has_entries = (driver_.cuMemAdvise_v2 != nullptr && driver_.cuMemPrefetchAsync_v2 != nullptr) ||
                             (driver_.cuMemAdvise != nullptr && driver_.cuMemPrefetchAsync != nullptr);
    const bool is_concurrent = driver_.cuDeviceGetAttribute(&value, cuda::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
                                                            device_) == cuda::CUDA_SUCCESS &&
                               value != 0;
    can_move_ = has_entries && is_concurrent ? 1 : 0;
  }
  return can_move_ == 1;
}

bool ManagedMemory::is_running() {
  bool any = false;
  for (auto& [context, stream] : streams_) {
    if (!stream.is_running) continue;
    const cuda::WorkingContext current(driver_, context);
    // An error is the context's: then nothing of it runs any more.
    stream.is_running =
        current.result() == cuda::CUDA_SUCCESS && driver_.cuStreamQuery(stream.stream) == cuda::CUDA_ERROR_NOT_READY;
    any = any || stream.is_running;
  }
  return any;
}

// ---- piece by piece

// The first address after `begin` where one of the maps changes, at most `end`.
std::uint64_t ManagedMemory::cut(std::uint64_t begin, std::uint64_t end) const {
  const auto cut_by = [begin, &end](const auto& map) {
    const auto piece = map.find(begin);
    end = piece ? std::min(end, piece->end) : map.next_begin(begin, end);
  };
  cut_by(preferred_);
  cut_by(away_);
  cut_by(not_fetched_);
  return std::min(end, begin + kBiteBytes);
}

std::optional<ManagedMemory::Piece> ManagedMemory::next_to_leave() {
  while (to_go_ != 0) {
    auto next = ranges_.upper_bound(cursor_);
    if (next != ranges_.begin() && page_of(std::prev(next)->first + std::prev(next)->second.range.bytes) > cursor_)
      --next;
    if (next == ranges_.end()) return std::nullopt;
    const auto& [range, id, is_going] = next->second;
    const std::uint64_t begin = std::max(cursor_, page_from(range.address));
    std::uint64_t end = page_of(range.address + range.bytes);
    if (is_going || begin >= end) {  // it has no page to itself, or none any more
      cursor_ = range.address + range.bytes;
      continue;
    }
    end = cut(begin, std::min(end, begin + page_from(to_go_)));
    cursor_ = end;
    if (!away_.find(begin)) return Piece{begin, end, range.context};
  }
  return std::nullopt;
}

// False: it stays where it is.
bool ManagedMemory::send_away(const Piece& piece) {
  if (prefers_other(piece.begin)) return false;
  const cuda::WorkingContext current(driver_, piece.context);
  if (current.result() != cuda::CUDA_SUCCESS || was_left_with_the_host(piece)) return false;
  const bool is_advised = !preferred_.find(piece.begin) && prefer_host(piece) == cuda::CUDA_SUCCESS;
  if (prefetch(piece, true) != cuda::CUDA_SUCCESS) {
    if (is_advised) prefer_nothing(piece);
    return false;
  }
  away_.set(piece.begin, piece.end, {is_advised});
  away_bytes_.fetch_add(piece.bytes(), std::memory_order_relaxed);
  not_fetched_.erase(piece.begin, piece.end);
  to_go_ -= std::min(to_go_, piece.bytes());
  return true;
}

bool ManagedMemory::was_left_with_the_host(const Piece& piece) const {
  int place = cuda::kDeviceInvalid;
  return !not_fetched_.find(piece.begin) && driver_.cuMemRangeGetAttribute != nullptr &&
         driver_.cuMemRangeGetAttribute(&place, sizeof place, cuda::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION,
                                        piece.begin, piece.bytes()) == cuda::CUDA_SUCCESS &&
         place == cuda::kDeviceCpu;
}

std::optional<ManagedMemory::Piece> ManagedMemory::next_to_come_back() {
  for (;;) {
    const std::uint64_t begin = away_.find(cursor_) ? cursor_ : away_.next_begin(cursor_, UINT64_MAX);
    if (begin == UINT64_MAX) return std::nullopt;
    const Live& live = *live_at(begin);
    const std::uint64_t end = page_of(live.range.address + live.range.bytes);
    cursor_ = live.is_going ? end : cut(begin, end);
    if (!live.is_going) return Piece{begin, cursor_, live.range.context};
  }
}

// False: nothing is under way for it.
bool ManagedMemory::fetch(const Piece& piece) {
  const bool is_advised = away_.find(piece.begin)->value.is_advised;
  away_.erase(piece.begin, piece.end);
  away_bytes_.fetch_sub(piece.bytes(), std::memory_order_relaxed);
  not_fetched_.set(piece.begin, piece.end, true);
  const cuda::WorkingContext current(driver_, piece.context);
  if (current.result() != cuda::CUDA_SUCCESS) return false;
  // We take our advice back, unless the program has since replaced it by its own.
  if (is_advised && !preferred_.find(piece.begin)) prefer_nothing(piece);
  if (to_go_ < piece.bytes() || prefers_other(piece.begin) || prefetch(piece, false) != cuda::CUDA_SUCCESS)
    return false;
  to_go_ -= piece.bytes();
  not_fetched_.erase(piece.begin, piece.end);
  return true;
}

CUresult ManagedMemory::prefer_host(const Piece& piece) {
  constexpr auto kAdvice = cuda::CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
  if (driver_.cuMemAdvise_v2 != nullptr) return driver_.cuMemAdvise_v2(piece.begin, piece.bytes(), kAdvice, kHost);
  return driver_.cuMemAdvise(piece.begin, piece.bytes(), kAdvice, cuda::kDeviceCpu);
}

// The driver does not look at the location that is passed.
void ManagedMemory::prefer_nothing(const Piece& piece) {
  constexpr auto kAdvice = cuda::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
  if (driver_.cuMemAdvise_v2 != nullptr) {
    driver_.cuMemAdvise_v2(piece.begin, piece.bytes(), kAdvice, kHost);
  } else {
    driver_.cuMemAdvise(piece.begin, piece.bytes(), kAdvice, cuda::kDeviceCpu);
  }
}

CUresult ManagedMemory::prefetch(const Piece& piece, bool to_host) {
  Stream* const stream = stream_of(piece.context);
  if (stream == nullptr) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = cuda::CUDA_SUCCESS;
  if (driver_.cuMemPrefetchAsync_v2 != nullptr) {
    const cuda::CUmemLocation device{cuda::CU_MEM_LOCATION_TYPE_DEVICE, device_};
    result = driver_.cuMemPrefetchAsync_v2(piece.begin, piece.bytes(), to_host ? kHost : device, 0, stream->stream);
  } else {
    result =
        driver_.cuMemPrefetchAsync(piece.begin, piece.bytes(), to_host ? cuda::kDeviceCpu : device_, stream->stream);
  }
  stream->is_running = stream->is_running || result == cuda::CUDA_SUCCESS;
  return result;
}

// The context is current. Null: it cannot have one.
ManagedMemory::Stream* ManagedMemory::stream_of(cuda::CUcontext context) {
  if (const auto found = streams_.find(context); found != streams_.end()) return &found->second;
  cuda::CUstream stream = nullptr;
  if (driver_.cuStreamCreate(&stream, cuda::CU_STREAM_NON_BLOCKING) != cuda::CUDA_SUCCESS) return nullptr;
  return &(streams_[context] = {stream, false});
}

}  // namespace gpumux::shim
