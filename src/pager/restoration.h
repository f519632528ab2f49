// SPDX-License-Identifier: Apache-2.0
// Bringing a seat's memory back to the GPU, at the same addresses, chunk by chunk.
//
//   claim ... create, map, rights ... the mover loads it (transfers.h) ... say so
//   claim ... have it loaded into a frame ... import, map, rights ................. say so
//                 \-- there is none: as above
//
// Needs no drained seat: no thread can use what is not there. It takes no more than the seat's bound allows, and goes
// on when that is raised. So memory that another seat gives up piece by piece is taken piece by piece.
//
// Copies in host memory are kept: a block that is unchanged when it is evicted again need not be copied then.
//
// Owned and stepped by one thread; destroying an unfinished one waits for the copies that are under way.
#pragma once

#include <deque>
#include <vector>

#include "pager/job.h"
#include "pager/state.h"

namespace gpumux::pager {

class Restoration : public Job {
 public:
  explicit Restoration(State& state) : Job(state, Stage::kMoving) {}
  ~Restoration();

  // kDone: at this moment nothing is evicted. Does what can be done without waiting.
  JobState step();

  // Device memory that is usable again.
  std::uint64_t restored_bytes() const { return restored_; }
  // Of kStarved: the seat's bound leaves no room for the next chunk. Otherwise the driver has no memory, though it
  // should: the process that had it may not have given it back yet.
  bool lacks_room() const { return lacks_room_; }

 private:
  struct Entry {
    enum class Stage : std::uint8_t {
      kIntoFrame,  // it has its room, and no memory yet
      kIntoOwn,
    };
    Stage stage = Stage::kIntoOwn;
    Range* range = nullptr;
    Chunk* chunk = nullptr;
    std::vector<cuda::CUdevice> peers;
    Transfers::Loading loading;
  };

  void fill();
  bool claim_next(Entry* entry);
  bool claim_locked(base::FrameSizes sizes, Entry* entry) GPUMUX_REQUIRES(state_.mutex);
  bool nothing_evicted();
  enum class Begun : std::uint8_t {
    kUnderWay,
    kOver,     // nothing was to be copied
    kRefused,  // it is not claimed any more
  };
  bool fits_kept_frames(const Chunk& chunk);
  template <class Take>
  cuda::CUresult with_room(const Chunk& chunk, Take take);
  Begun begin_in_frame(Entry& entry);
  Begun begin(Entry& entry);
  Begun refused(Entry& entry, cuda::CUresult result);
  bool advance(Entry& entry);
  bool advance_own(Entry& entry, Transfers::Progress progress, cuda::CUresult error);
  void commit(Entry& entry);
  void undo(Entry& entry);

  std::uint64_t restored_ = 0;
  std::deque<Entry> window_;
  bool starved_ = false;
  bool lacks_room_ = false;
  std::uint32_t attached_ = 0;       // chunks, in this step
  cuda::CUdeviceptr resume_at_ = 0;  // where the last chunk was found
};

}  // namespace gpumux::pager
