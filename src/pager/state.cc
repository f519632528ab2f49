// SPDX-License-Identifier: Apache-2.0
#include "pager/state.h"

#include <algorithm>

namespace gpumux::pager {

State::State(const cuda::Driver& the_driver, const Options& the_options)
    : driver(the_driver),
      options(the_options),
      mapper(the_driver, the_options.device, bounds),
      transfers(the_options.mover) {}

void State::name_content() {
  if (options.mover == nullptr || !options.mover->wants_names()) return;
  std::vector<MoverLink::Named> all;
  {
    const base::Locked locked(mutex);
    for (const auto& [base, range] : table.all()) {
      for (const Chunk& chunk : range->chunks) {
        if (!chunk.saved.empty()) all.push_back({chunk.number, chunk.saved, chunk.place == ChunkPlace::kDevice});
      }
    }
  }
  options.mover->name_all(all);
}

void State::end_job() {
  retry_stuck();
  const base::Locked locked(mutex);
  job_running = false;
  mutex.wake_all();
}

void State::claim(Range& range, Chunk& chunk) {
  chunk.claimed = true;
  ++range.claims;
}

void State::unclaim(Range& range, Chunk& chunk) {
  chunk.claimed = false;
  --range.claims;
  if (range.life == Range::Life::kLeaving && range.claims == 0) stuck.push_back(table.remove(range));
  mutex.wake_all();
}

std::unique_ptr<Range> State::remove(Range& range) {
  if (range.claims == 0) return table.remove(range);
  range.life = Range::Life::kLeaving;
  uncommit(range);  // the program may allocate as much again
  return nullptr;
}

Range* State::wait_for_claims(std::uint64_t id) {
  for (;;) {
    Range* range = table.by_id(id);
    if (range == nullptr || range->claims == 0) return range;
    mutex.wait();
  }
}

Range* State::claim_all(std::uint64_t id) {
  Range* range = table.by_id(id);
  if (range == nullptr) return nullptr;
  ++range->waiters;
  range = wait_for_claims(id);
  if (range == nullptr) return nullptr;
  --range->waiters;
  if (range->is_doomed()) return nullptr;
  for (Chunk& chunk : range->chunks) claim(*range, chunk);
  range->is_held = true;
  return range;
}

void State::unclaim_all(Range& range) {
  range.is_held = false;
  for (Chunk& chunk : range.chunks) unclaim(range, chunk);
}

void State::doom(Range& range) {
  const bool before = range.holds_up();
  range.life = Range::Life::kDoomed;
  count_evicted(range, before);
}

void State::update_needed(Range& range) {
  const bool before = range.holds_up();
  range.needed = range.handle == nullptr || range.handle->wanted != 0 || range.handle->is_accessible();
  count_evicted(range, before);
}

void State::count_evicted(const Range& range, bool held_up) {
  if (range.holds_up() == held_up) return;
  const std::uint64_t evicted = range.bytes - range.resident_bytes();
  if (held_up) {
    evicted_bytes.fetch_sub(evicted);
  } else {
    evicted_bytes.fetch_add(evicted);
  }
}

bool State::commit(Range& range) {
  range.committed = range.committed || bounds.commit(range.bytes);
  return range.committed;
}

void State::uncommit(Range& range) {
  if (range.committed) bounds.uncommit(range.bytes);
  range.committed = false;
}

void State::destroy(std::unique_ptr<Range> range) {
  uncommit(*range);
  bool all = true;
  for (Chunk& chunk : range->chunks) {
    transfers.forget(chunk.saved, chunk.number);
    if (mapper.detach(chunk) != cuda::CUDA_SUCCESS) all = false;
  }
  if (all && driver.cuMemAddressFree(range->base, range->bytes) == cuda::CUDA_SUCCESS) return;
  const base::Locked locked(mutex);
  stuck.push_back(std::move(range));
}

std::uint64_t State::trim(std::uint64_t bytes) {
  std::uint64_t freed = retry_stuck();
  while (freed < bytes) {
    std::unique_ptr<Range> oldest;
    {
      const base::Locked locked(mutex);
      if (reusable.empty()) break;
      oldest = std::move(reusable.front());
      reusable.erase(reusable.begin());
      reusable_bytes -= oldest->bytes;
    }
    freed += oldest->bytes;
    destroy(std::move(oldest));
  }
  return freed;
}

std::uint64_t State::retry_stuck() {
  std::vector<std::unique_ptr<Range>> again;
  {
    const base::Locked locked(mutex);
    again.swap(stuck);
  }
  std::uint64_t bytes = 0;
  for (auto& range : again) bytes += range->resident_bytes();
  for (auto& range : again) destroy(std::move(range));
  // Ranges that the driver refuses to take back are there again.
  const base::Locked locked(mutex);
  for (const auto& range : stuck) bytes -= std::min(bytes, range->resident_bytes());
  return bytes;
}

}  // namespace gpumux::pager
