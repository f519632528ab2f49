// SPDX-License-Identifier: Apache-2.0
// The state that the parts of the pager share, and the rules for touching it.
//
// One lock, `mutex`, guards the tables. It is never held across a call of the driver: mapping takes tens of
// microseconds, and programs look up pointers all the time. A thread that needs the driver for a chunk claims it under
// the lock and lets go of the lock. It works, and takes the lock again to record the result. No other thread touches a
// claimed chunk; a range with claims is not destroyed. So there are two kinds of waiting:
//
//   - for the lock: always short;
//   - for a claim to end (mutex.wait): a thread that changes a range's peers or mappings waits for the job that works
//     on it. A thread that frees a range does not wait: the range goes when its last claim ends (State::remove). Jobs
//     wait for no thread: they skip what is claimed and drop what is doomed, each time they are stepped.
//
// The waiter holds nothing then, and is not inside the gate: the thread that steps a job closes gates too.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "base/lock.h"
#include "pager/bounds.h"
#include "pager/counters.h"
#include "pager/options.h"
#include "pager/ranges.h"
#include "pager/transfers.h"

namespace gpumux::pager {

struct State {
  State(const cuda::Driver& the_driver, const Options& the_options);

  const cuda::Driver& driver;
  const Options options;
  Bounds bounds;  // has its own lock
  const Mapper mapper;

  base::Mutex mutex;

  RangeTable table GPUMUX_GUARDED_BY(mutex);
  // Freed, still mapped, ready to be allocated again; the oldest first. Not in the table.
  std::vector<std::unique_ptr<Range>> reusable GPUMUX_GUARDED_BY(mutex);
  std::uint64_t reusable_bytes GPUMUX_GUARDED_BY(mutex) = 0;
  // Freed, but a job worked on it, or the driver refused to take the memory back. Tried again at every occasion, of
  // which each step of a job is one.
  std::vector<std::unique_ptr<Range>> stuck GPUMUX_GUARDED_BY(mutex);
  // Where handles of the program's are mapped: the mapping's address, and the range's id.
  std::map<cuda::CUdeviceptr, std::uint64_t> mappings GPUMUX_GUARDED_BY(mutex);
  std::vector<cuda::CUdevice> peers GPUMUX_GUARDED_BY(mutex);  // devices that get rights to all ranges
  std::uint64_t next_id GPUMUX_GUARDED_BY(mutex) = 1;
  Moved moved GPUMUX_GUARDED_BY(mutex);
  bool job_running GPUMUX_GUARDED_BY(mutex) = false;

  // Bytes of ranges that hold their program up (Range::holds_up) and are not resident. Written under the lock, read by
  // any thread: a thread may only submit while it is zero. Sequentially consistent, as it is rarely written.
  std::atomic<std::uint64_t> evicted_bytes{0};

  Transfers transfers;
  // On a new connection to the mover: which host memory this seat names. By the thread that begins a job, before it.
  void name_content();

  // The job that `job_running` stands for is over.
  void end_job();

  void claim(Range& range, Chunk& chunk) GPUMUX_REQUIRES(mutex);
  void unclaim(Range& range, Chunk& chunk) GPUMUX_REQUIRES(mutex);
  // The range with this id, when no chunk of it is claimed; null: it is gone.
  Range* wait_for_claims(std::uint64_t id) GPUMUX_REQUIRES(mutex);
  // Waits until no chunk of the range is claimed, and claims all of them; null: it is gone.
  Range* claim_all(std::uint64_t id) GPUMUX_REQUIRES(mutex);
  void unclaim_all(Range& range) GPUMUX_REQUIRES(mutex);
  // Takes a doomed range out of the table, for the caller to discard. Null: a job works on a chunk of it. Then it
  // stays, and goes when the last claim ends. REQUIRES: no thread of the program's has claimed it.
  std::unique_ptr<Range> remove(Range& range) GPUMUX_REQUIRES(mutex);
  // A doomed range no longer holds its program up.
  void doom(Range& range) GPUMUX_REQUIRES(mutex);
  // Nor does a handle's memory that no device may reach. That has changed.
  void update_needed(Range& range) GPUMUX_REQUIRES(mutex);
  // The chunks that an eviction of `bytes` takes, in its order. First come chunks that no device can reach, then the
  // cheapest, which needed no copy the last time. Within each kind they go by address. `each` gets the range and the
  // chunk's number.
  template <typename Each>
  void for_victims(std::uint64_t bytes, Each each) const GPUMUX_REQUIRES(mutex);

  // Without the lock, for ranges that are in no table:
  // Its allocation counts against the commitment, or no longer does. False: there is no more to commit.
  bool commit(Range& range);
  void uncommit(Range& range);
  // Gives all back to the driver; what it refuses is kept in `stuck`.
  void destroy(std::unique_ptr<Range> range);
  // Destroys reusable ranges, the oldest first, until `bytes` of device memory are free; returns how many are.
  std::uint64_t trim(std::uint64_t bytes);
  std::uint64_t retry_stuck();

 private:
  void count_evicted(const Range& range, bool held_up) GPUMUX_REQUIRES(mutex);
};

template <typename Each>
void State::for_victims(std::uint64_t bytes, Each each) const {
  std::uint64_t chosen = 0;
  enum class Rank { kUnneeded, kCheap, kOther };
  for (const Rank rank : {Rank::kUnneeded, Rank::kCheap, Rank::kOther}) {
    for (const auto& [base, range] : table.all()) {
      if (range->is_doomed() || range->foreign || range->pinned()) continue;
      for (std::uint32_t i = 0; i < range->chunks.size() && chosen < bytes; ++i) {
        const Chunk& chunk = range->chunks[i];
        const Rank its = !range->needed ? Rank::kUnneeded : chunk.was_cheap ? Rank::kCheap : Rank::kOther;
        if (chunk.place != ChunkPlace::kDevice || chunk.claimed || chunk.is_stuck || its != rank) continue;
        each(*range, i);
        chosen += chunk.bytes;
      }
    }
  }
}

}  // namespace gpumux::pager
