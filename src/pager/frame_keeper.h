// SPDX-License-Identifier: Apache-2.0
// Keeps the descriptors of memory that another process has made and this one uses. A process that has imported memory
// cannot export it. So whatever hands the memory on needs the descriptor by which it came.
#pragma once

#include <cstdint>

namespace gpumux::pager {

class FrameKeeper {
 public:
  // The seat has freed that memory. Any thread, and never inside base::NoFork.
  virtual void freed(std::uint64_t number) = 0;
  // A descriptor of that memory, for another process to import. The caller closes it; a child
  // that is forked before that inherits it (base/no_fork.h). Negative: there is none any more.
  virtual int descriptor(std::uint64_t number) = 0;

 protected:
  ~FrameKeeper() = default;
};

// Memory that a keeper has the descriptor of.
struct KeptFrame {
  FrameKeeper* keeper = nullptr;
  std::uint64_t number = 0;
};

}  // namespace gpumux::pager
