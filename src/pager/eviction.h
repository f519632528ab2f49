// SPDX-License-Identifier: Apache-2.0
// Taking a drained seat's memory off the GPU, chunk by chunk.
//
//   claim ... the mover saves it (transfers.h) ... unmap, release ... say so
//
// Several chunks are on their way at once. While one is copied, the one before is unmapped. Freed memory counts at once
// (freed_bytes), so that another seat can be given it. A chunk that needs no copy goes without waiting for the bus.
//
// A failure loses nothing: a chunk is either still on the GPU as it was, or complete in host memory.
//
// Owned and stepped by one thread; destroying an unfinished one waits for the copies that are under way.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "pager/drained.h"
#include "pager/job.h"
#include "pager/state.h"

namespace gpumux::pager {

class Eviction : public Job {
 public:
  // Frees at least `bytes`, or all there is if that is less; memory kept for reuse first.
  Eviction(State& state, const DrainedSeat& drained, std::uint64_t bytes);
  ~Eviction();

  // Does what can be done without waiting.
  JobState step();

  // Device memory that the driver has got back so far.
  std::uint64_t freed_bytes() const { return freed_; }

  // If the mover verifies: blocks that had changed although their hash said that they had not. They were copied.
  std::uint64_t wrong_hashes() const { return wrong_hashes_; }

 private:
  struct Reference {
    std::uint64_t range = 0;
    std::uint32_t chunk = 0;
  };
  struct Entry {
    Range* range = nullptr;
    Chunk* chunk = nullptr;
    std::optional<Transfers::Saving> saving;  // nothing: its save has not begun
  };

  void plan(std::uint64_t bytes);
  bool claim_next();
  bool save_next();
  // False: the entry is over and can be dropped.
  bool advance(Entry& entry);
  void take_off(Entry& entry);
  void commit(Entry& entry);
  void keep(Entry& entry);

  const DrainedSeat& drained_;
  const std::uint64_t wanted_;
  std::vector<Reference> plan_;
  std::size_t next_ = 0;  // in plan_
  std::deque<Entry> window_;
  bool starved_ = false;         // in this step: there was no host memory
  std::uint32_t taken_off_ = 0;  // chunks, in this step
  std::uint64_t freed_ = 0;
  std::uint64_t wrong_hashes_ = 0;
};

}  // namespace gpumux::pager
