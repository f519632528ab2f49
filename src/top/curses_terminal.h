// SPDX-License-Identifier: Apache-2.0
// The terminal: keys come from it and the canvas goes to it. All of ncurses is behind this.
//
// One object at a time. While it is there, the terminal is in its full-screen mode; afterwards it is as it was.
#pragma once

#include <memory>
#include <optional>

#include "base/result.h"
#include "top/canvas.h"
#include "top/look.h"
#include "top/view_state.h"

namespace gpumux::top {

class CursesTerminal {
 public:
  // kUnsupported: stdin or stdout is no terminal, or it is one that cannot show a screen; with what to do.
  static base::Result<std::unique_ptr<CursesTerminal>> open();
  ~CursesTerminal();
  CursesTerminal(const CursesTerminal&) = delete;
  CursesTerminal& operator=(const CursesTerminal&) = delete;

  const Look& look() const { return look_; }
  // The terminal has another size.
  void resize();
  void show(const Canvas& canvas);
  // The next key that was pressed. Nothing: there is none now.
  std::optional<KeyPress> read();
  // A descriptor to poll, which the caller closes: readable when a key has been pressed. The terminal's own must not be
  // given to an event loop. That would make it non-blocking for the shell, too, and for output.
  static int key_events();
  // Whether the terminal is gone: it has something to read, and that is its end.
  static bool has_ended();

 private:
  explicit CursesTerminal(Look look) : look_(look) {}

  Look look_;
};

}  // namespace gpumux::top
