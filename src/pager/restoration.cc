// SPDX-License-Identifier: Apache-2.0
#include "pager/restoration.h"

#include <unistd.h>

#include "base/no_fork.h"

namespace gpumux::pager {

using cuda::CUresult;

Restoration::~Restoration() {
  cancel();
  while (!is_over(step())) state_.transfers.wait();
}

JobState Restoration::step() {
  if (stage_ == Stage::kOver) return outcome_;
  state_.retry_stuck();
  starved_ = false;
  attached_ = 0;
  if (window_.empty() && is_stopping()) return over(outcome_);
  if (window_.empty() && nothing_evicted()) return over(JobState::kDone);
  if (!is_stopping()) fill();
  for (std::size_t i = 0; i < window_.size();) {
    if (advance(window_[i])) {
      ++i;
    } else {
      window_.erase(window_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  if (window_.empty()) {
    if (is_stopping()) return over(outcome_);
    if (nothing_evicted()) return over(JobState::kDone);
  }
  if (starved_ && window_.empty()) return JobState::kStarved;
  if (!starved_ && window_.size() < kRestoredInFlight && attached_ != 0) return JobState::kRunning;
  return JobState::kWaiting;
}

bool Restoration::nothing_evicted() {
  const base::Locked locked(state_.mutex);
  return state_.evicted_bytes.load() == 0;
}

// The next chunk, by address, that is not on the GPU; after the last one the first again. A chunk that a frame is there
// for goes first. False: all that are away are claimed, or there is none.
bool Restoration::claim_next(Entry* entry) {
  const base::Locked locked(state_.mutex);
  const base::FrameSizes sizes = state_.transfers.frames_at_hand();
  return (sizes != 0 && claim_locked(sizes, entry)) || claim_locked(0, entry);
}

// `sizes`: into a frame of one of these; empty: any chunk.
bool Restoration::claim_locked(base::FrameSizes sizes, Entry* entry) {
  const auto& all = state_.table.all();
  if (state_.evicted_bytes.load() == 0 || all.empty()) return false;
  auto at = all.lower_bound(resume_at_);
  for (std::size_t seen = 0; seen <= all.size(); ++seen, ++at) {
    if (at == all.end()) at = all.begin();
    Range& range = *at->second;
    if (!range.holds_up() || range.waiters != 0) continue;
    for (Chunk& chunk : range.chunks) {
      if (chunk.place == ChunkPlace::kDevice || chunk.claimed) continue;
      if (sizes != 0 && (!chunk.fits_frames() || (base::frame_size(chunk.bytes) & sizes) == 0)) continue;
      state_.claim(range, chunk);
      entry->range = &range;
      entry->chunk = &chunk;
      entry->peers = range.peers;
      resume_at_ = range.base;
      return true;
    }
  }
  return false;
}

void Restoration::fill() {
  while (window_.size() < kRestoredInFlight && attached_ < kChunksPerStep) {
    Entry entry;
    if (!claim_next(&entry)) return;
    switch (fits_kept_frames(*entry.chunk) ? begin_in_frame(entry) : begin(entry)) {
      case Begun::kUnderWay: window_.push_back(std::move(entry)); break;
      case Begun::kOver: break;
      case Begun::kRefused: return;
    }
    if (is_stopping()) return;
  }
}

// The node's mover may keep memory of that size, and copies all of the chunk's content into it.
bool Restoration::fits_kept_frames(const Chunk& chunk) {
  return chunk.has_content() && chunk.fits_frames() && !chunk.has_memory() && base::frame_size(chunk.bytes) != 0 &&
         state_.transfers.may_have_frames();
}

// Freed memory that is kept for reuse is the first to go.
template <class Take>
CUresult Restoration::with_room(const Chunk& chunk, Take take) {
  CUresult result = take();
  while (result == cuda::CUDA_ERROR_OUT_OF_MEMORY && state_.trim(chunk.bytes) != 0) result = take();
  return result;
}

Restoration::Begun Restoration::begin_in_frame(Entry& entry) {
  Chunk& chunk = *entry.chunk;
  const auto take_room = [&] {
    return state_.mapper.take_room(chunk) ? cuda::CUDA_SUCCESS : cuda::CUDA_ERROR_OUT_OF_MEMORY;
  };
  CUresult result = with_room(chunk, take_room);
  if (result != cuda::CUDA_SUCCESS) return refused(entry, result);
  entry.stage = Entry::Stage::kIntoFrame;
  result = state_.transfers.load(entry.loading, -1, chunk.saved, chunk.number);
  if (result != cuda::CUDA_SUCCESS) fail(result);
  return Begun::kUnderWay;
}

Restoration::Begun Restoration::begin(Entry& entry) {
  Chunk& chunk = *entry.chunk;
  entry.stage = Entry::Stage::kIntoOwn;
  CUresult result = with_room(chunk, [&] { return state_.mapper.attach(chunk, entry.peers); });
  if (result != cuda::CUDA_SUCCESS) return refused(entry, result);
  ++attached_;
  if (!chunk.has_content()) {
    commit(entry);
    return Begun::kOver;
  }
  {
    const base::NoFork no_fork;  // a child must not keep the descriptor
    int memory = -1;
    result = state_.mapper.lend(chunk, &memory);
    if (result == cuda::CUDA_SUCCESS) {
      entry.loading = {};
      const CUresult loads = state_.transfers.load(entry.loading, memory, chunk.saved, chunk.number);
      if (loads != cuda::CUDA_SUCCESS) fail(loads);
    }
    if (memory >= 0) ::close(memory);
  }
  if (result == cuda::CUDA_SUCCESS) return Begun::kUnderWay;
  fail(result);
  undo(entry);
  return Begun::kRefused;
}

Restoration::Begun Restoration::refused(Entry& entry, CUresult result) {
  Chunk& chunk = *entry.chunk;
  // The memory of its last owner may not have come back yet; later.
  starved_ = result == cuda::CUDA_ERROR_OUT_OF_MEMORY;
  lacks_room_ = starved_ && state_.bounds.left() < chunk.bytes;
  if (starved_ && !lacks_room_) state_.transfers.make_way(chunk.bytes);
  if (!starved_) fail(result);
  const base::Locked locked(state_.mutex);
  state_.unclaim(*entry.range, chunk);
  return Begun::kRefused;
}

// False: the entry is over.
bool Restoration::advance(Entry& entry) {
  CUresult error = cuda::CUDA_SUCCESS;
  const Transfers::Progress progress = state_.transfers.look(entry.loading, &error);
  if (entry.stage == Entry::Stage::kIntoOwn) return advance_own(entry, progress, error);
  switch (progress) {
    case Transfers::Progress::kNoFrame: break;
    case Transfers::Progress::kDone: {
      if (!entry.loading.frame()) break;
      ++attached_;
      if (state_.mapper.adopt(*entry.chunk, *entry.loading.frame(), entry.peers) == cuda::CUDA_SUCCESS) {
        commit(entry);
        return false;
      }
      // It has given its room back.
      entry.stage = Entry::Stage::kIntoOwn;
      break;
    }
    default: return advance_own(entry, progress, error);
  }
  if (is_stopping()) {
    undo(entry);
    return false;
  }
  if (entry.stage == Entry::Stage::kIntoFrame) state_.mapper.give_room(*entry.chunk);
  return begin(entry) == Begun::kUnderWay;
}

bool Restoration::advance_own(Entry& entry, Transfers::Progress progress, CUresult error) {
  switch (progress) {
    case Transfers::Progress::kDone: commit(entry); return false;
    case Transfers::Progress::kFailed:
      fail(error);
      undo(entry);
      return false;
    default: return true;
  }
}

void Restoration::commit(Entry& entry) {
  Chunk& chunk = *entry.chunk;
  restored_ += chunk.bytes;
  if (chunk.has_content()) state_.transfers.loaded(chunk.saved, chunk.number);
  const base::Locked locked(state_.mutex);
  chunk.place = ChunkPlace::kDevice;
  state_.moved.in += entry.loading.copied();
  if (chunk.frame) state_.moved.handed_over += chunk.bytes;
  if (entry.range->holds_up()) state_.evicted_bytes.fetch_sub(chunk.bytes);
  state_.unclaim(*entry.range, chunk);
}

// The content is still in host memory; the device's memory goes again.
void Restoration::undo(Entry& entry) {
  Chunk& chunk = *entry.chunk;
  if (entry.stage == Entry::Stage::kIntoFrame) state_.mapper.give_room(chunk);
  state_.mapper.detach(chunk);
  const base::Locked locked(state_.mutex);
  state_.unclaim(*entry.range, chunk);
}

}  // namespace gpumux::pager
