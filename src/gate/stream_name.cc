// SPDX-License-Identifier: Apache-2.0
#include "gate/stream_name.h"

#include <atomic>

#include "gate/stream_set.h"

namespace gpumux::gate {

std::uint64_t number_of_this_thread() {
  static constinit std::atomic<std::uint64_t> next{1};
  [[gnu::tls_model("initial-exec")]] static constinit thread_local std::uint64_t number = 0;
  if (number == 0) number = next.fetch_add(1, std::memory_order_relaxed);
  return number;
}

StreamName name_of(cuda::CUcontext context, cuda::CUstream stream) {
  return {context, stream, stream == kPerThreadStream ? number_of_this_thread() : 0};
}

}  // namespace gpumux::gate
