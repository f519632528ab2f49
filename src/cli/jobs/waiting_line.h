// SPDX-License-Identifier: Apache-2.0
// The reason for which a command waits, on one line of stderr. On a terminal each text is written over the last one;
// elsewhere each new text is a line. It is gone when this is.
#pragma once

#include <string>

namespace gpumux::cli {

class WaitingLine {
 public:
  WaitingLine();
  ~WaitingLine() { clear(); }
  WaitingLine(const WaitingLine&) = delete;
  WaitingLine& operator=(const WaitingLine&) = delete;

  // Whether it can be written over: stderr is a terminal.
  bool moves() const { return moves_; }
  void show(const std::string& text);
  void clear();

 private:
  bool moves_;
  bool on_screen_ = false;
  std::string shown_;
};

}  // namespace gpumux::cli
