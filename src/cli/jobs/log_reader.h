// SPDX-License-Identifier: Apache-2.0
// A job's log, shown as it grows. It is read with the user's own rights, like any file of the user's.
//
// A log may be cut to nothing and grow anew (by its job, or by another with the same file). It may even grow beyond the
// reader's place before the next look. So the reader remembers the last bytes that it has shown, and looks for them
// each time. Another program may also have put another file in its place (a log rotation). Both are told, and shown
// from the beginning.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/result.h"
#include "os/file_descriptor.h"

namespace gpumux::cli {

class LogReader {
 public:
  // `output`: the descriptor that it is shown on.
  LogReader(std::string path, int output) : path_(std::move(path)), output_(output) {}

  struct Shown {
    bool there = false;       // the log is
    bool anything = false;    // something new was shown
    bool began_anew = false;  // and it is the log's beginning, once more
  };

  // Shows all that has come since the last time. kUnsupported: it is no file that keeps the bytes that are written to
  // it.
  base::Result<Shown> show_new();

  // Skips all but the last `lines` lines. A log that is not there yet has none to skip.
  base::Status skip_to_last_lines(std::uint64_t lines);

 private:
  base::Result<bool> open();
  bool was_replaced() const;
  bool is_what_was_shown() const;
  base::Result<bool> copy_rest();
  void begin_anew();

  std::string path_;
  int output_;
  os::FileDescriptor file_;
  off_t offset_ = 0;  // the bytes before it have been shown, or skipped
  std::string tail_;  // the bytes right before it, as they were
};

}  // namespace gpumux::cli
