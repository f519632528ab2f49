// SPDX-License-Identifier: Apache-2.0
// The whole screen, from the model, the user's view and the size of the terminal. Pure.
//
// From top to bottom: a head line; the GPUs; programs; jobs; a line for questions, messages and the selected row's
// reason; the keys. If there is no room for all, jobs are left out first, then programs.
#pragma once

#include <cstddef>

#include "top/look.h"
#include "top/model.h"
#include "top/view_state.h"

namespace gpumux::top {

struct Screen {
  Canvas canvas;
  std::size_t page = 1;  // rows of the pane that keys move in
};

Screen draw(const Model& model, const View& view, const Clocks& clocks, const Look& look);

}  // namespace gpumux::top
