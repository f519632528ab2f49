// SPDX-License-Identifier: Apache-2.0
// --trace FILE: the lease trace as lines of JSON, written by another thread than the loop's.
#pragma once

#include <boost/asio/thread_pool.hpp>
#include <memory>
#include <string>

#include "base/result.h"
#include "daemon/loop/trace.h"
#include "os/file_descriptor.h"

namespace gpumux::daemon {

// Bytes of lines that may wait for a slow disk. Beyond it lines are left out, and the gap in `sequence` shows it.
inline constexpr std::size_t kMaxTraceBacklogBytes = 16 << 20;

class TraceFile {
 public:
  explicit TraceFile(boost::asio::thread_pool& worker) : worker_(worker) {}

  base::Status open(const std::string& path);
  void write(const TraceEntry& entry);
  // Hands over the gathered lines.
  void flush();

 private:
  struct Shared;  // with the worker
  boost::asio::thread_pool& worker_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace gpumux::daemon
