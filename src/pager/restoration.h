// SPDX-License-Identifier: Apache-2.0
// Bringing a seat's memory back to the GPU, at the same addresses, chunk by chunk.
//
//   claim ... create, map, rights ... copy from host memory, set constants ... say so
//
// Needs no drained seat: nobody can use what is not there. It uses no more room than it was allowed (allow), so that
// memory which another seat gives up piece by piece can be taken piece by piece.
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

class Restoration {
 public:
  static constexpr std::uint64_t kAnyRoom = UINT64_MAX;

  // May take so many bytes of device memory, until it is allowed more.
  Restoration(State& state, std::uint64_t room) : state_(state), room_(room) {}
  ~Restoration();
  Restoration(const Restoration&) = delete;
  Restoration& operator=(const Restoration&) = delete;

  // kDone: at this moment nothing is evicted. Does what can be done without waiting.
  JobState step();
  void cancel() { stop(JobState::kCancelled); }

  void allow(std::uint64_t more_bytes) { room_ = room_ > kAnyRoom - more_bytes ? kAnyRoom : room_ + more_bytes; }

  // Device memory taken so far, and how much of it is usable already.
  std::uint64_t taken_bytes() const { return taken_; }
  std::uint64_t restored_bytes() const { return restored_; }
  // Of kStarved: the seat's bound leaves no room for the next chunk. Otherwise the driver has no memory, though it
  // should: whose it was may not have given it back yet.
  bool lacks_room() const { return lacks_room_; }
  cuda::CUresult error() const { return error_; }

 private:
  struct Entry {
    Range* range = nullptr;
    Chunk* chunk = nullptr;
    std::vector<cuda::CUdevice> peers;
    cuda::CUevent event = nullptr;
    bool failing = false;
    std::uint64_t copied = 0;
  };

  void fill();
  bool claim_next(Entry* entry);
  bool nothing_evicted();
  cuda::CUresult submit(Entry& entry);
  bool advance(Entry& entry);
  void commit(Entry& entry);
  void undo(Entry& entry);
  void fail(cuda::CUresult error);
  void stop(JobState outcome);
  JobState over(JobState outcome);

  State& state_;
  std::uint64_t room_;
  std::uint64_t taken_ = 0;
  std::uint64_t restored_ = 0;
  std::deque<Entry> window_;
  bool stopping_ = false;
  bool starved_ = false;
  bool lacks_room_ = false;
  std::uint32_t attached_ = 0;  // chunks, in this step
  std::uint32_t context_failures_ = 0;
  JobState outcome_ = JobState::kDone;
  JobState result_ = JobState::kRunning;
  cuda::CUresult error_ = cuda::CUDA_SUCCESS;
  cuda::CUdeviceptr resume_at_ = 0;  // where the last chunk was found
};

}  // namespace gpumux::pager
