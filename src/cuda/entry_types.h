// SPDX-License-Identifier: Apache-2.0
// The columns of the entry table (entries.table) for one entry point of the driver.
#pragma once

#include <cstdint>

namespace gpumux::cuda {

// Which stream a null stream means.
enum class StreamVariant : std::uint8_t {
  kNone,    // the function has no stream
  kLegacy,  // the context's one default stream
  kPtds,    // the calling thread's own default stream ("per-thread default stream"), without a stream parameter
  kPtsz,    // the same, in functions with one ("per-thread stream zero")
};

// The library's treatment of an entry point.
enum class Action : std::uint8_t {
  kForward,  // nothing: the program calls the driver's own
  kGate,     // a submission: it passes the gate
  kHold,     // submits nothing, but the driver looks up addresses: memory stays where it is during the call
  kSync,     // waits for the GPU: not gated, but idleness is seen here
  kRoom,     // the driver takes memory for it: if there is none, others make room, and it is tried again
  kHook,     // written by hand
};

struct EntryInfo {
  const char* symbol;    // as the driver exports it
  const char* api_name;  // as it is asked of cuGetProcAddress; empty: it is not offered there
  std::uint32_t
      since;  // the CUDA version whose ABI of that name this is, as 1000 * major + 10 * minor; 0: no such version
  StreamVariant variant;
  Action action;
};

}  // namespace gpumux::cuda
