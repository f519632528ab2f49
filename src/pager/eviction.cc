// SPDX-License-Identifier: Apache-2.0
#include "pager/eviction.h"

#include <algorithm>
#include <cstring>

#include "pager/copier/block_hash_function.h"

namespace gpumux::pager {

using cuda::CUresult;

Eviction::Eviction(State& state, const DrainedSeat& drained, std::uint64_t bytes, bool discard)
    : Job(state, Stage::kPlanning),
      drained_(drained),
      discard_(discard),
      wanted_(bytes),
      hashing_(!discard && state.engine.can_hash()) {}

Eviction::~Eviction() {
  cancel();
  // Claims must not outlive their job, nor copies their memory. The copies under way take milliseconds.
  while (!is_over(step())) {
    const auto current = state_.engine.enter();
    for (const cuda::CUstream stream : {state_.engine.out(), state_.engine.hash_stream()})
      state_.driver.cuStreamSynchronize(stream);
  }
}

void Eviction::plan(std::uint64_t bytes) {
  const base::Locked locked(state_.mutex);
  plan_.clear();
  next_ = 0;
  state_.for_victims(bytes, [this](const Range& range, std::uint32_t chunk) { plan_.push_back({range.id, chunk}); });
}

JobState Eviction::step() {
  if (stage_ == Stage::kOver) return outcome_;
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
  const auto current = state_.engine.enter();
  if (current.result() != cuda::CUDA_SUCCESS && !(plan_.empty() && window_.empty())) {
    fail(current.result());
    if (!window_.empty() && !engine_lost(current.result())) return JobState::kWaiting;
    for (Entry& entry : window_) keep(entry);
    window_.clear();
    return over(outcome_);
  }
  if (!is_stopping()) fill();
  look_at_batches();
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
  if (taken_off_ == kChunksPerStep) return JobState::kRunning;
  return JobState::kWaiting;
}

// Takes the next chunk of the plan that still is what it was. False: there is none, or it has more blocks than allowed.
bool Eviction::claim_next(std::uint32_t most_blocks) {
  const base::Locked locked(state_.mutex);
  for (; next_ < plan_.size(); ++next_) {
    Range* range = state_.table.by_id(plan_[next_].range);
    if (range == nullptr || range->doomed || range->waiters != 0 || range->pinned()) continue;
    Chunk& chunk = range->chunks[plan_[next_].chunk];
    if (chunk.place != ChunkPlace::kDevice || chunk.claimed) continue;
    if (chunk.block_count() > most_blocks) return false;
    state_.claim(*range, chunk);
    Entry entry;
    entry.range = range;
    entry.chunk = &chunk;
    entry.blocks.resize(chunk.block_count());
    entry.to_copy = chunk.block_count();
    window_.push_back(std::move(entry));
    ++next_;
    return true;
  }
  return false;
}

// The same, and it can be copied. False, too: the driver refused that, and the job ends.
bool Eviction::claim_reachable(std::uint32_t most_blocks) {
  if (is_stopping() || !claim_next(most_blocks)) return false;
  const CUresult result = state_.mapper.reach(*window_.back().chunk);
  if (result == cuda::CUDA_SUCCESS) return true;
  keep(window_.back());
  window_.pop_back();
  fail(result);
  return false;
}

void Eviction::fill() {
  if (!hashing_) {
    while (window_.size() < 2 * kCopiesInFlight && claim_reachable(UINT32_MAX)) {
    }
    return;
  }
  for (std::uint32_t batch = 0; batch < Engine::kBatches; ++batch) {
    if (batches_[batch].entries != 0 || next_ == plan_.size()) continue;
    const std::size_t first = window_.size();
    std::uint32_t blocks = 0;
    while (claim_reachable(Engine::kBatchBlocks - blocks)) {
      Entry& entry = window_.back();
      entry.phase = Phase::kHashing;
      entry.batch = batch;
      entry.first_block = blocks;
      for (std::uint32_t i = 0; i < entry.chunk->block_count(); ++i)
        state_.engine.batch_addresses(batch)[blocks++] = entry.chunk->reach + i * kBlockBytes;
    }
    if (blocks != 0) hash(batch, first);
  }
}

void Eviction::hash(std::uint32_t batch, std::size_t first_entry) {
  Batch& made = batches_[batch];
  const Entry& last = window_.back();
  const std::uint32_t blocks = last.first_block + last.chunk->block_count();
  made = Batch{};
  made.entries = static_cast<std::uint32_t>(window_.size() - first_entry);
  if (const CUresult result = state_.engine.launch_hash(batch, blocks, &made.event); result != cuda::CUDA_SUCCESS) {
    // Everything is copied then, which is right, only slower.
    hashing_ = false;
    made = Batch{};
    for (std::size_t i = first_entry; i < window_.size(); ++i) window_[i].phase = Phase::kReady;
  }
}

void Eviction::look_at_batches() {
  for (Batch& batch : batches_) {
    if (batch.entries == 0 || batch.done) continue;
    CUresult error = cuda::CUDA_SUCCESS;
    const GpuState seen = state_.engine.state_of(batch.event, state_.engine.hash_stream(), &error);
    if (seen == GpuState::kPending) continue;
    batch.done = true;
    state_.engine.give(batch.event);
    batch.event = nullptr;
    if (seen == GpuState::kDone) continue;
    // No results: the entries copy everything.
    for (Entry& entry : window_) {
      if (entry.phase == Phase::kHashing && &batches_[entry.batch] == &batch) entry.phase = Phase::kReady;
    }
    batch = Batch{};
    hashing_ = false;
  }
}

void Eviction::classify(Entry& entry) {
  const BlockHashResult* results = state_.engine.batch_results(entry.batch) + entry.first_block;
  entry.to_copy = 0;
  for (std::uint32_t i = 0; i < entry.blocks.size(); ++i) {
    BlockPlan& plan = entry.blocks[i];
    plan.hashed = true;
    plan.hash = {results[i].low, results[i].high};
    plan.word = results[i].first_word;
    const Block* known = entry.chunk->blocks == nullptr ? nullptr : &entry.chunk->blocks[i];
    if (results[i].is_constant == 1) {
      plan.fate = Fate::kConstant;
    } else if (known != nullptr && known->kind == Block::Kind::kCopied && known->hashed && known->hash == plan.hash) {
      plan.fate = Fate::kClean;
    }
    if (plan.fate != Fate::kCopy && state_.options.verify && !matches(entry, i, plan)) plan.fate = Fate::kCopy;
    if (plan.fate == Fate::kCopy) ++entry.to_copy;
  }
  entry.phase = Phase::kReady;
  Batch& batch = batches_[entry.batch];
  if (--batch.entries == 0) batch.done = false;
}

// Is a block that the hash says need not be copied really what it is believed to be? Reads all of it.
bool Eviction::matches(const Entry& entry, std::uint32_t block, const BlockPlan& plan) {
  std::vector<std::uint32_t> content(kBlockBytes / sizeof(std::uint32_t));
  const cuda::CUdeviceptr address = entry.chunk->reach + block * kBlockBytes;
  const CUresult result =
      state_.driver.cuMemcpyDtoHAsync_v2(content.data(), address, kBlockBytes, state_.engine.hash_stream());
  const CUresult waited = state_.driver.cuStreamSynchronize(state_.engine.hash_stream());
  if (result != cuda::CUDA_SUCCESS || waited != cuda::CUDA_SUCCESS) return false;
  const bool same =
      plan.fate == Fate::kConstant
          ? std::all_of(content.begin(), content.end(), [&](std::uint32_t word) { return word == plan.word; })
          : std::memcmp(content.data(), entry.chunk->blocks[block].slot.address(), kBlockBytes) == 0;
  if (!same) ++wrong_hashes_;
  return same;
}

bool Eviction::advance(Entry& entry) {
  if (entry.phase == Phase::kHashing) {
    if (!batches_[entry.batch].done) return true;
    // A seat that was let in again may have written since.
    if (is_stopping()) {
      keep(entry);
      return false;
    }
    classify(entry);
  }
  bool doomed = false;
  {
    const base::Locked locked(state_.mutex);
    doomed = entry.range->doomed || (entry.phase == Phase::kReady && entry.range->waiters != 0);
  }
  switch (entry.phase) {
    case Phase::kHashing: return true;
    case Phase::kReady:
      if (doomed || is_stopping()) {
        keep(entry);
        return false;
      }
      if (entry.to_copy == 0) {
        if (taken_off_ == kChunksPerStep) return true;
        take_off(entry);
        return false;
      }
      if (copying_ == kCopiesInFlight || starved_) return true;
      return begin_copies(entry);
    case Phase::kCopying:
    case Phase::kFailing: {
      CUresult error = cuda::CUDA_SUCCESS;
      const GpuState seen = state_.engine.state_of(entry.event, state_.engine.out(), &error);
      if (seen == GpuState::kPending) return true;
      state_.engine.give(entry.event);
      entry.event = nullptr;
      --copying_;
      if (seen == GpuState::kFailed) fail(error);
      if (seen == GpuState::kDone && entry.phase == Phase::kCopying && !doomed && stage_ != Stage::kUndrained) {
        take_off(entry);
      } else {
        keep(entry);
      }
      return false;
    }
  }
  return true;
}

// Host memory for every block that needs a copy. False: there is not enough; what was found is kept.
bool Eviction::find_slots(Entry& entry) {
  Chunk& chunk = *entry.chunk;
  if (chunk.blocks == nullptr) chunk.blocks = std::make_unique<Block[]>(chunk.block_count());
  std::vector<HostSlot> found;
  for (std::uint32_t i = 0; i < chunk.block_count(); ++i) {
    if (entry.blocks[i].fate != Fate::kCopy || chunk.blocks[i].slot) continue;
    if (found.empty()) {
      // All that are missing in a row from here on, so that one copy can fill them.
      std::uint32_t row = 0;
      while (i + row < chunk.block_count() && entry.blocks[i + row].fate == Fate::kCopy && !chunk.blocks[i + row].slot)
        ++row;
      while (state_.host.take(row, &found) == 0) {
        if (!state_.host.borrow()) return false;
      }
      std::reverse(found.begin(), found.end());
    }
    chunk.blocks[i].slot = found.back();
    chunk.blocks[i].kind = Block::Kind::kNone;
    found.pop_back();
  }
  return true;
}

// False: the entry is over.
bool Eviction::begin_copies(Entry& entry) {
  if (!find_slots(entry)) {
    starved_ = true;
    return true;
  }
  const CUresult result = submit(entry);
  ++copying_;
  entry.phase = result == cuda::CUDA_SUCCESS ? Phase::kCopying : Phase::kFailing;
  if (result != cuda::CUDA_SUCCESS) fail(result);
  return true;
}

CUresult Eviction::submit(Entry& entry) {
  Chunk& chunk = *entry.chunk;
  std::uint32_t i = 0;
  while (i < chunk.block_count()) {
    if (entry.blocks[i].fate != Fate::kCopy) {
      ++i;
      continue;
    }
    const std::uint32_t first = i;
    do {
      // From here on the slot holds neither the old content nor yet the new one.
      chunk.blocks[i].kind = Block::Kind::kNone;
      ++i;
    } while (i < chunk.block_count() && entry.blocks[i].fate == Fate::kCopy &&
             chunk.blocks[i - 1].slot.is_followed_by(chunk.blocks[i].slot));
    if (const CUresult result = state_.host.ensure_registered(chunk.blocks[first].slot); result != cuda::CUDA_SUCCESS)
      return result;
    const CUresult result =
        state_.driver.cuMemcpyDtoHAsync_v2(chunk.blocks[first].slot.address(), chunk.reach + first * kBlockBytes,
                                           (i - first) * kBlockBytes, state_.engine.out());
    if (result != cuda::CUDA_SUCCESS) return result;
  }
  // Without an event the stream is asked, which is later, and as right.
  state_.engine.record(state_.engine.out(), &entry.event);
  return cuda::CUDA_SUCCESS;
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
  if (!discard_ && chunk.blocks == nullptr) chunk.blocks = std::make_unique<Block[]>(chunk.block_count());
  const base::Locked locked(state_.mutex);
  Moved& moved = state_.moved;
  if (discard_) state_.forget_copies(chunk);
  for (std::uint32_t i = 0; i < chunk.block_count() && !discard_; ++i) {
    const BlockPlan& plan = entry.blocks[i];
    Block& block = chunk.blocks[i];
    switch (plan.fate) {
      case Fate::kCopy:
        block.kind = Block::Kind::kCopied;
        block.hash = plan.hash;
        block.hashed = plan.hashed;
        moved.out += kBlockBytes;
        break;
      case Fate::kClean: moved.saved_clean += kBlockBytes; break;
      case Fate::kConstant:
        state_.host.give(block.slot);
        block = Block{};
        block.kind = Block::Kind::kConstant;
        block.word = plan.word;
        moved.saved_constant += kBlockBytes;
        break;
    }
  }
  chunk.place = discard_ ? ChunkPlace::kNowhere : ChunkPlace::kHost;
  chunk.was_cheap = entry.to_copy == 0;
  if (entry.range->holds_up()) state_.evicted_bytes.fetch_add(chunk.bytes);
  state_.unclaim(*entry.range, chunk);
}

// The chunk stays on the GPU. Slots that were to be filled are given back.
void Eviction::keep(Entry& entry) {
  Chunk& chunk = *entry.chunk;
  if (entry.phase == Phase::kHashing && batches_[entry.batch].entries != 0) --batches_[entry.batch].entries;
  if (entry.event != nullptr) state_.engine.give(entry.event);
  entry.event = nullptr;
  const base::Locked locked(state_.mutex);
  for (std::uint32_t i = 0; i < chunk.block_count() && chunk.blocks != nullptr; ++i) {
    Block& block = chunk.blocks[i];
    if (block.kind == Block::Kind::kCopied) continue;
    state_.host.give(block.slot);
    block = Block{};
  }
  state_.unclaim(*entry.range, chunk);
}

}  // namespace gpumux::pager
