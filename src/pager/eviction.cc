// SPDX-License-Identifier: Apache-2.0
#include "pager/eviction.h"

#include <unistd.h>

#include <utility>

#include "base/no_fork.h"

namespace gpumux::pager {

using cuda::CUresult;

Eviction::Eviction(State& state, const DrainedSeat& drained, std::uint64_t bytes)
    : Job(state, Stage::kPlanning), drained_(drained), wanted_(bytes) {}

Eviction::~Eviction() {
  cancel();
  // Claims must not outlive their job, nor copies their memory. The copies under way take milliseconds.
  while (!is_over(step())) state_.transfers.wait();
}

void Eviction::plan(std::uint64_t bytes) {
  const base::Locked locked(state_.mutex);
  plan_.clear();
  next_ = 0;
  state_.for_victims(bytes, [this](const Range& range, std::uint32_t chunk) { plan_.push_back({range.id, chunk}); });
}

JobState Eviction::step() {
  if (stage_ == Stage::kOver) return outcome_;
  state_.retry_stuck();
  starved_ = false;
  taken_off_ = 0;
  if (!drained_.still_drained()) stop(JobState::kCancelled, Stage::kUndrained);
  if (stage_ == Stage::kPlanning) {
    stage_ = Stage::kMoving;
    freed_ += state_.trim(wanted_);
    if (freed_ < wanted_) plan(wanted_ - freed_);
  }
  while (save_next()) {
  }
  for (std::size_t i = 0; i < window_.size();) {
    if (advance(window_[i])) {
      ++i;
    } else {
      window_.erase(window_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  if (window_.empty() && (is_stopping() || next_ == plan_.size())) {
    if (is_stopping()) return over(outcome_);
    // Chunks were claimed by other threads the first time, or were not enough.
    if (freed_ < wanted_ && !plan_.empty()) plan(wanted_ - freed_);
    if (freed_ >= wanted_ || plan_.empty()) return over(JobState::kDone);
  }
  if (starved_) return JobState::kStarved;
  if (taken_off_ >= kChunksPerStep) return JobState::kRunning;
  return JobState::kWaiting;
}

// Takes the next chunk of the plan that still is what it was. False: there is none.
bool Eviction::claim_next() {
  const base::Locked locked(state_.mutex);
  for (; next_ < plan_.size(); ++next_) {
    Range* range = state_.table.by_id(plan_[next_].range);
    if (range == nullptr || range->is_doomed() || range->waiters != 0 || range->pinned()) continue;
    Chunk& chunk = range->chunks[plan_[next_].chunk];
    if (chunk.place != ChunkPlace::kDevice || chunk.claimed || chunk.is_stuck) continue;
    state_.claim(*range, chunk);
    Entry entry;
    entry.range = range;
    entry.chunk = &chunk;
    window_.push_back(std::move(entry));
    ++next_;
    return true;
  }
  return false;
}

// False: there is no next chunk, no room for it, or the driver refuses that it is copied, and the job ends.
bool Eviction::save_next() {
  if (is_stopping() || !state_.transfers.has_room() || !claim_next()) return false;
  Entry& entry = window_.back();
  Chunk& chunk = *entry.chunk;
  const base::NoFork no_fork;  // a child must not keep the descriptor
  int memory = -1;
  if (const CUresult result = state_.mapper.lend(chunk, &memory); result != cuda::CUDA_SUCCESS) {
    chunk.is_stuck = chunk.frame.has_value();
    const bool goes_on = chunk.is_stuck;
    keep(entry);
    window_.pop_back();
    if (!goes_on) fail(result);
    return goes_on;
  }
  const bool may_keep = state_.mapper.may_be_frame(chunk) && base::frame_size(chunk.bytes) != 0;
  entry.saving = state_.transfers.save(memory, may_keep, chunk.block_count(), chunk.saved, chunk.number);
  ::close(memory);
  return true;
}

bool Eviction::advance(Entry& entry) {
  using Progress = Transfers::Progress;
  CUresult error = cuda::CUDA_SUCCESS;
  const Progress progress = state_.transfers.look(*entry.saving, &error);
  if (error != cuda::CUDA_SUCCESS) fail(error);
  const bool is_short = progress == Progress::kNoHost;
  bool doomed = false;
  {
    const base::Locked locked(state_.mutex);
    doomed = entry.range->is_doomed() || (is_short && entry.range->waiters != 0);
  }
  if (progress == Progress::kUnderWay || is_short) {
    starved_ = starved_ || is_short;
    if (is_stopping() || (is_short && doomed)) state_.transfers.cancel(*entry.saving);
    return true;
  }
  // A seat that was let in again may have written since.
  if (progress != Progress::kDone || doomed || stage_ == Stage::kUndrained) {
    keep(entry);
    return false;
  }
  if (entry.saving->copied() == 0 && taken_off_ >= kChunksPerStep) return true;
  take_off(entry);
  return false;
}

// The content is in host memory: the device's memory can go.
void Eviction::take_off(Entry& entry) {
  ++taken_off_;
  const CUresult result = state_.mapper.detach(*entry.chunk);
  if (entry.chunk->is_complete()) {
    keep(entry);
    fail(result);
    return;
  }
  if (result == cuda::CUDA_SUCCESS) freed_ += entry.chunk->bytes;
  commit(entry);
  if (result != cuda::CUDA_SUCCESS) fail(result);
}

void Eviction::commit(Entry& entry) {
  Chunk& chunk = *entry.chunk;
  const base::Locked locked(state_.mutex);
  state_.transfers.commit(*entry.saving, !chunk.has_memory(), &chunk.saved);
  state_.moved.out += entry.saving->copied();
  state_.moved.saved_clean += entry.saving->clean();
  state_.moved.saved_constant += entry.saving->constant();
  wrong_hashes_ += entry.saving->wrong_hashes();
  chunk.place = ChunkPlace::kHost;
  chunk.was_cheap = entry.saving->copied() == 0;
  if (entry.range->holds_up()) state_.evicted_bytes.fetch_add(chunk.bytes);
  state_.unclaim(*entry.range, chunk);
}

// The chunk stays on the GPU.
void Eviction::keep(Entry& entry) {
  const base::Locked locked(state_.mutex);
  if (entry.saving && stage_ == Stage::kUndrained) {
    // The hash may be of what was there before the seat wrote, and the copy of what is there now.
    state_.transfers.discard(*entry.saving, &entry.chunk->saved);
  } else if (entry.saving) {
    state_.transfers.keep(*entry.saving, &entry.chunk->saved);
    wrong_hashes_ += entry.saving->wrong_hashes();
  }
  state_.unclaim(*entry.range, *entry.chunk);
}

}  // namespace gpumux::pager
