// SPDX-License-Identifier: Apache-2.0
// The keys that are pressed at the terminal while something is shown.
//
// While an object of this class is there, keys come at once and are not echoed. The terminal is as it was whenever the
// process ends or is stopped by a signal. Where stdin is no terminal, or belongs to another job of the shell, there are
// no keys. One object at a time.
#pragma once

#include "base/clock.h"

namespace gpumux::cli {

enum class Key { kNone, kQuit, kUp, kDown, kPageUp, kPageDown, kFirst, kLast };

class Keys {
 public:
  Keys() { take(); }
  ~Keys();
  Keys(const Keys&) = delete;
  Keys& operator=(const Keys&) = delete;

  bool are_there() const { return taken_; }
  // The next key that means something. kNone: none came in time, or the terminal has another size.
  Key wait(base::Duration patience);

 private:
  void take();
  Key read();

  bool taken_ = false;
};

}  // namespace gpumux::cli
