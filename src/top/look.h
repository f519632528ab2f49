// SPDX-License-Identifier: Apache-2.0
// The terminal's properties, and the drawings that several parts of the screen share. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "cli/frame/terminal.h"
#include "top/canvas.h"
#include "top/model.h"

namespace gpumux::top {

struct Look {
  std::size_t rows = 24;
  std::size_t columns = 80;
  Letters letters = Letters::kUnicode;
  bool colours = true;
};

// A range of cells in one row.
struct Span {
  std::size_t row = 0;
  std::size_t column = 0;
  std::size_t width = 0;
};

// The cells of one owner: in its colour with its name; without colours, filled with its letter. `has_border`: something
// else was before.
struct Run {
  Mark mark;
  std::string label;
  bool has_border = false;
};
void draw_run(Canvas& canvas, const Look& look, const Span& span, const Run& run);

// "name [||||||      97%]"; nothing where the driver does not say.
void draw_meter(Canvas& canvas, const Span& span, std::string_view name, std::optional<std::uint32_t> percent);

// Words that explain others.
inline constexpr Style kDim{.dim = true};

// The colours of words, as `gpumux status` and `gpumux queue` have them.
Style style_of(cli::Colour colour);

}  // namespace gpumux::top
