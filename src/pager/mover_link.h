// SPDX-License-Identifier: Apache-2.0
// A seat's way to the node's mover, as the pager sees it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/frame_sizes.h"
#include "cuda/driver.gen.h"
#include "pager/frame_keeper.h"
#include "pager/saved.h"

namespace gpumux::pager {

class MoverLink {
 public:
  struct Answer {
    enum class Result : std::uint8_t { kDone, kFailed, kNoHost, kLost, kNoFrame };
    std::uint64_t ticket = 0;
    Result result = Result::kDone;              // kNoHost: another answer follows
    cuda::CUresult error = cuda::CUDA_SUCCESS;  // of kFailed
    Saved saved;                                // of a save that is done
    std::uint64_t copied = 0;                   // bytes, as the next
    std::uint64_t clean = 0;
    std::uint64_t constant = 0;
    std::uint32_t wrong_hashes = 0;
    base::FrameSizes frames = 0;     // sizes of which the mover keeps memory for this seat
    bool is_kept = false;            // of a save: the mover waits for `give`
    std::optional<KeptFrame> frame;  // of a load without memory: the memory
  };

  // The host memory that the seat names for one chunk.
  struct Named {
    std::uint64_t chunk = 0;
    Saved saved;
    bool is_copy = false;  // the GPU has the same content
  };

  // Counts connections. Questions on an earlier one get no answer.
  virtual std::uint64_t connection() const = 0;
  // The mover has not heard on this connection which host memory the seat names.
  virtual bool wants_names() = 0;
  // All of it: the mover lets go of the seat's other host memory. Until then no save is sent. REQUIRES: no save is
  // under way.
  virtual void name_all(std::span<const Named> all) = 0;
  // False: it cannot be reached now. `memory`: a descriptor of the chunk's, that stays the caller's. `may_keep`: the
  // mover may keep the memory. Negative memory of a load: into memory that the mover keeps.
  virtual bool save(std::uint64_t ticket, std::uint64_t chunk, const Saved& saved, int memory, bool may_keep) = 0;
  virtual bool load(std::uint64_t ticket, std::uint64_t chunk, const Saved& saved, int memory) = 0;
  virtual void cancel(std::uint64_t ticket) = 0;
  // Any thread; never waits. It may be said later.
  virtual void forget(std::uint64_t chunk, const Saved& saved, bool are_copies) = 0;
  // The answer to is_kept. `is_released`: this process has nothing of the memory any more.
  virtual void give(std::uint64_t ticket, bool is_released) = 0;
  virtual void make_way(std::uint64_t bytes) = 0;
  // Whether this process can keep the memory of one more load without memory.
  virtual bool may_keep_frame() = 0;
  // The next answer, without waiting. Not inside base::NoFork.
  virtual std::optional<Answer> next() = 0;
  // Until there may be one, or the connection is lost.
  virtual void wait() = 0;

 protected:
  ~MoverLink() = default;
};

}  // namespace gpumux::pager
