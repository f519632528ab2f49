// SPDX-License-Identifier: Apache-2.0
#include "pager/eviction.h"

#include <unistd.h>

#include <utility>

#include "base/no_fork.h"

namespace gpumux::pager {

using cuda::CUresult;

Eviction::Eviction(State& state, const DrainedSeat& drained, std::uint64_t bytes, bool discard)
    : Job(state, Stage::kPlanning), drained_(drained), discard_(discard), wanted_(bytes) {}

Eviction::~Eviction() {
  cancel();
  // Claims must not outlive their job, nor copies their memory. The copies under way take milliseconds.
  while (!is_over(step())) state_.copier().wait();
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
  if (state_.cancel_jobs.load()) stop(JobState::kCancelled);
  if (!drained_.still_drained()) stop(JobState::kCancelled, Stage::kUndrained);
  if (stage_ == Stage::kPlanning) {
    stage_ = Stage::kMoving;
    freed_ += state_.trim(wanted_);
    if (freed_ < wanted_) plan(wanted_ - freed_);
  }
  // A broken seat's memory is discarded without the help of its context.
  if (discard_) {
    while (!is_stopping() && taken_off_ < kChunksPerStep && freed_ < wanted_ && claim_next(UINT32_MAX)) {
      take_off(window_.back());
      window_.pop_back();
    }
    if (is_stopping()) return over(outcome_);
    return taken_off_ == 0 ? over(JobState::kDone) : JobState::kRunning;
  }
  const auto current = state_.copier().enter();
  if (state_.copier().needs_context() && current.result() != cuda::CUDA_SUCCESS &&
      !(plan_.empty() && window_.empty())) {
    fail(current.result());
    if (!window_.empty() && !context_lost(current.result())) return JobState::kWaiting;
    for (Entry& entry : window_) keep(entry);
    window_.clear();
    return over(outcome_);
  }
  fill();
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

// Takes the next chunk of the plan that still is what it was. False: there is none, or it has more blocks than allowed.
bool Eviction::claim_next(std::uint32_t most_blocks) {
  const base::Locked locked(state_.mutex);
  for (; next_ < plan_.size(); ++next_) {
    Range* range = state_.table.by_id(plan_[next_].range);
    if (range == nullptr || range->is_doomed() || range->waiters != 0 || range->pinned()) continue;
    Chunk& chunk = range->chunks[plan_[next_].chunk];
    if (chunk.place != ChunkPlace::kDevice || chunk.claimed) continue;
    if (chunk.block_count() > most_blocks) return false;
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
  const std::uint32_t room = state_.copier().room();
  if (is_stopping() || room == 0 || !claim_next(room)) return false;
  Entry& entry = window_.back();
  Chunk& chunk = *entry.chunk;
  std::optional<base::NoFork> no_fork;  // a child must not keep the descriptor
  if (!state_.copier().needs_context()) no_fork.emplace();
  Place place;
  if (const CUresult result = state_.place_of(chunk, &place); result != cuda::CUDA_SUCCESS) {
    keep(entry);
    window_.pop_back();
    fail(result);
    return false;
  }
  entry.saving = state_.copier().save(place, chunk.block_count(), chunk.content, chunk.number);
  if (place.memory >= 0) ::close(place.memory);
  return true;
}

void Eviction::fill() {
  while (save_next()) {
  }
  state_.copier().launch();
}

bool Eviction::advance(Entry& entry) {
  using Progress = Copier::Progress;
  Copier& copier = state_.copier();
  CUresult error = cuda::CUDA_SUCCESS;
  Progress progress = copier.look(*entry.saving, &error);
  if (error != cuda::CUDA_SUCCESS) fail(error);
  if (progress == Progress::kUnderWay) {
    if (is_stopping()) copier.cancel(*entry.saving);
    return true;
  }
  const bool is_short = progress == Progress::kNoHost;
  const bool waits = progress == Progress::kWaits || is_short;
  bool doomed = false;
  {
    const base::Locked locked(state_.mutex);
    doomed = entry.range->is_doomed() || (waits && entry.range->waiters != 0);
  }
  if (is_short) {
    starved_ = true;
    if (doomed || is_stopping()) copier.cancel(*entry.saving);
    return true;
  }
  // A seat that was let in again may have written since.
  if (doomed || stage_ == Stage::kUndrained || (waits && is_stopping())) {
    keep(entry);
    return false;
  }
  if (waits) progress = copier.go_on(*entry.saving, !starved_, &error);
  if (error != cuda::CUDA_SUCCESS) fail(error);
  switch (progress) {
    case Progress::kUnderWay:
    case Progress::kWaits: return true;
    case Progress::kNoHost:
      // The host memory that is left is for the chunk that has begun to take it.
      starved_ = true;
      return true;
    case Progress::kFailed:
    case Progress::kNoFrame: keep(entry); return false;
    case Progress::kDone: break;
  }
  if (entry.saving->copied() == 0 && taken_off_ >= kChunksPerStep) return true;
  take_off(entry);
  return false;
}

// The content is in host memory (or not wanted): the device's memory can go.
void Eviction::take_off(Entry& entry) {
  ++taken_off_;
  const CUresult result =
      state_.mapper.detach(*entry.chunk, discard_ ? Mapper::Fate::kFreed : Mapper::Fate::kHandedOver);
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
  if (entry.saving) {
    state_.copier().commit(*entry.saving, !chunk.has_memory());
    state_.moved.out += entry.saving->copied();
    state_.moved.saved_clean += entry.saving->clean();
    state_.moved.saved_constant += entry.saving->constant();
    wrong_hashes_ += entry.saving->wrong_hashes();
  } else {
    state_.copier().forget(chunk.content, chunk.number);
  }
  chunk.place = entry.saving ? ChunkPlace::kHost : ChunkPlace::kNowhere;
  chunk.was_cheap = entry.saving && entry.saving->copied() == 0;
  if (entry.range->holds_up()) state_.evicted_bytes.fetch_add(chunk.bytes);
  state_.unclaim(*entry.range, chunk);
}

// The chunk stays on the GPU.
void Eviction::keep(Entry& entry) {
  const base::Locked locked(state_.mutex);
  if (entry.saving) {
    state_.copier().keep(*entry.saving);
    wrong_hashes_ += entry.saving->wrong_hashes();
  }
  state_.unclaim(*entry.range, *entry.chunk);
}

}  // namespace gpumux::pager
