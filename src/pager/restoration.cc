// SPDX-License-Identifier: Apache-2.0
#include "pager/restoration.h"

#include <unistd.h>

#include "base/no_fork.h"

namespace gpumux::pager {

using cuda::CUresult;

Restoration::~Restoration() {
  cancel();
  while (!is_over(step())) state_.copier().wait();
}

JobState Restoration::step() {
  if (stage_ == Stage::kOver) return outcome_;
  state_.retry_stuck();
  starved_ = false;
  attached_ = 0;
  if (state_.cancel_jobs.load()) stop(JobState::kCancelled);
  if (window_.empty() && is_stopping()) return over(outcome_);
  if (window_.empty() && nothing_evicted()) return over(JobState::kDone);
  const auto current = state_.copier().enter();
  may_copy_ = !state_.copier().needs_context() || current.result() == cuda::CUDA_SUCCESS;
  const bool has_lost_context = !may_copy_ && state_.copier().context() != nullptr;
  if (has_lost_context || (!may_copy_ && !window_.empty())) {
    fail(current.result());
    if (!window_.empty() && !context_lost(current.result())) return JobState::kWaiting;
    for (Entry& entry : window_) undo(entry);
    window_.clear();
    return over(outcome_);
  }
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
  // All that is left has content, and no context of the program's is there to copy it in.
  if (!may_copy_ && attached_ == 0) {
    fail(current.result());
    return over(outcome_);
  }
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
  Frames* const frames = state_.options.frames;
  const base::FrameSizes at_hand = frames != nullptr ? frames->at_hand() : 0;
  {
    const base::Locked locked(state_.mutex);
    if (at_hand != 0 && claim_locked(at_hand, entry)) return true;
    if (!claim_locked(0, entry)) return false;
  }
  // The driver must get this memory back before the seat can have it in another form.
  if (at_hand != 0) frames->drop();
  return true;
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
      if (chunk.place == ChunkPlace::kDevice || chunk.claimed || (chunk.has_content() && !may_copy_)) continue;
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
    Chunk& chunk = *entry.chunk;
    // A chunk that was never written shows what its memory held before, which has to be nothing of another seat's.
    const auto content = chunk.fits_frames() ? Mapper::Content::kOverwritten : Mapper::Content::kAny;
    CUresult result = state_.mapper.attach(chunk, entry.peers, content);
    // Freed memory that is kept for reuse is the first to go.
    while (result == cuda::CUDA_ERROR_OUT_OF_MEMORY && state_.trim(chunk.bytes) != 0)
      result = state_.mapper.attach(chunk, entry.peers, content);
    // The memory of its last owner may not have come back yet; later.
    starved_ = result == cuda::CUDA_ERROR_OUT_OF_MEMORY;
    lacks_room_ = starved_ && state_.bounds.left() < chunk.bytes;
    if (result != cuda::CUDA_SUCCESS) {
      if (!starved_) fail(result);
      const base::Locked locked(state_.mutex);
      state_.unclaim(*entry.range, chunk);
      return;
    }
    ++attached_;
    if (!chunk.has_content()) {
      commit(entry);
      continue;
    }
    std::optional<base::NoFork> no_fork;  // a child must not keep the descriptor
    if (!state_.copier().needs_context()) no_fork.emplace();
    Place place;
    result = state_.place_of(chunk, &place);
    if (result != cuda::CUDA_SUCCESS) {
      fail(result);
      undo(entry);
      return;
    }
    result = state_.copier().load(entry.loading, place, chunk.content, chunk.number);
    if (place.memory >= 0) ::close(place.memory);
    if (result != cuda::CUDA_SUCCESS) fail(result);
    window_.push_back(std::move(entry));
    if (is_stopping()) return;
  }
}

// False: the entry is over.
bool Restoration::advance(Entry& entry) {
  CUresult error = cuda::CUDA_SUCCESS;
  switch (state_.copier().look(entry.loading, &error)) {
    case Copier::Progress::kDone: commit(entry); return false;
    case Copier::Progress::kFailed:
      fail(error);
      undo(entry);
      return false;
    default: return true;
  }
}

void Restoration::commit(Entry& entry) {
  Chunk& chunk = *entry.chunk;
  restored_ += chunk.bytes;
  if (chunk.has_content()) state_.copier().loaded(chunk.content, chunk.number);
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
  state_.mapper.detach(chunk);
  const base::Locked locked(state_.mutex);
  state_.unclaim(*entry.range, chunk);
}

}  // namespace gpumux::pager
