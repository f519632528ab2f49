// SPDX-License-Identifier: Apache-2.0
// A seat's way to the node's mover, as the pager sees it. Slots of host memory have numbers here: a block of kCopied
// has its slot's number as its `word`.
#pragma once

#include <cstdint>
#include <optional>

#include "cuda/driver.gen.h"
#include "pager/copier/content.h"

namespace gpumux::pager {

class MoverLink {
 public:
  struct Answer {
    enum class Result : std::uint8_t { kDone, kFailed, kNoHost, kLost };
    std::uint64_t ticket = 0;
    Result result = Result::kDone;              // kNoHost: another answer follows
    cuda::CUresult error = cuda::CUDA_SUCCESS;  // of kFailed
    Content content;                            // of a save that is done
    std::uint64_t copied = 0;                   // bytes, as the next
    std::uint64_t clean = 0;
    std::uint64_t constant = 0;
    std::uint32_t wrong_hashes = 0;
  };

  // A mover has been offered to this seat. From then on there is one, now or later.
  virtual bool is_offered() const = 0;
  // Counts connections. Questions on an earlier one get no answer.
  virtual std::uint64_t connection() const = 0;
  // False: it cannot be reached now. `memory`: a descriptor of the chunk's, that stays the caller's.
  virtual bool save(std::uint64_t ticket, std::uint64_t chunk, const Content& content, int memory) = 0;
  virtual bool load(std::uint64_t ticket, std::uint64_t chunk, const Content& content, int memory) = 0;
  virtual void cancel(std::uint64_t ticket) = 0;
  // Any thread; never waits. It may be said later.
  virtual void forget(std::uint64_t chunk, const Content& content, bool are_copies) = 0;
  // The next answer, without waiting.
  virtual std::optional<Answer> next() = 0;
  // Until there may be one, or the connection is lost.
  virtual void wait() = 0;

 protected:
  ~MoverLink() = default;
};

}  // namespace gpumux::pager
