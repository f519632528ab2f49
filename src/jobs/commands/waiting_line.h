// SPDX-License-Identifier: Apache-2.0
// What a command waits for, on one line of stderr that is written over while a terminal shows it; elsewhere each new
// text is a line. It is gone when this is.
#pragma once

#include <string>

namespace gpumux::cli {

class WaitingLine {
 public:
  WaitingLine();
  ~WaitingLine() { clear(); }
  WaitingLine(const WaitingLine&) = delete;
  WaitingLine& operator=(const WaitingLine&) = delete;

  // Whether it can be written over: somebody looks at it.
  bool moves() const { return moves_; }
  void show(const std::string& text);
  void clear();

 private:
  bool moves_;
  bool on_screen_ = false;
  std::string shown_;
};

}  // namespace gpumux::cli
