// SPDX-License-Identifier: Apache-2.0
// Which stream a handle means. The handle of a thread's own default stream is the same in all threads, and the legacy
// stream's is the same in all contexts.
#pragma once

#include <cstdint>

#include "cuda/abi.h"

namespace gpumux::gate {

// A number that no other thread of the process ever has, from 1 on.
std::uint64_t number_of_this_thread();

// A stream, told apart from all others that exist or existed, until its handle or its context's is used again.
struct StreamName {
  cuda::CUcontext context = nullptr;
  cuda::CUstream stream = nullptr;  // null: the legacy one of the context
  std::uint64_t thread = 0;         // of a thread's own default stream
  bool operator==(const StreamName&) const = default;
};

// The stream that the calling thread means. `stream`: null or kPerThreadStream for a default stream of `context`.
StreamName name_of(cuda::CUcontext context, cuda::CUstream stream);

}  // namespace gpumux::gate
