// SPDX-License-Identifier: Apache-2.0
#include "top/look.h"

#include <algorithm>

namespace gpumux::top {
namespace {

// With fewer cells a run has its letter only.
constexpr std::size_t kLeastLabel = 4;

std::string repeated(std::string_view text, std::size_t count) {
  std::string result;
  for (std::size_t i = 0; i < count; ++i) result += text;
  return result;
}

}  // namespace

void draw_run(Canvas& canvas, const Look& look, const Span& span, const Run& run) {
  if (span.width == 0) return;
  const std::string letter(1, run.mark.letter);
  const bool has_border = run.has_border && span.width > 1;
  if (!look.colours) {
    canvas.put(span.row, span.column, (has_border ? "|" : letter) + repeated(letter, span.width - 1), {}, span.width);
    return;
  }
  const Style style{.hue = run.mark.hue, .reversed = true};
  canvas.fill(span.row, span.column, span.width, style);
  std::size_t column = span.column;
  if (has_border) column = canvas.put(span.row, column, look.letters == Letters::kUnicode ? "▏" : "|", style);
  const std::size_t room = span.column + span.width - column;
  const bool has_label = room >= kLeastLabel && !run.label.empty();
  canvas.put(span.row, column, has_label ? letter + " " + run.label : letter, style, room);
}

void draw_meter(Canvas& canvas, const Span& span, std::string_view name, std::optional<std::uint32_t> percent) {
  const std::string begin = std::string(name) + " [";
  if (span.width < begin.size() + 6) return;
  const std::size_t first = canvas.put(span.row, span.column, begin, {.dim = true});
  const std::size_t end = span.column + span.width - 1;
  const std::size_t room = end - first;
  if (percent) {
    const std::size_t filled = (std::min<std::size_t>(*percent, 100) * room + 50) / 100;
    canvas.put(span.row, first, repeated("|", filled), {.hue = Hue::kGreen});
  }
  canvas.put_right(span.row, end, percent ? " " + std::to_string(*percent) + "%" : " not known", {.bold = true});
  canvas.put(span.row, end, "]", {.dim = true});
}

Style style_of(cli::Colour colour) {
  switch (colour) {
    case cli::Colour::kNone: return {};
    case cli::Colour::kBold: return {.bold = true};
    case cli::Colour::kDim: return {.dim = true};
    case cli::Colour::kRed: return {.hue = Hue::kRed};
    case cli::Colour::kGreen: return {.hue = Hue::kGreen};
    case cli::Colour::kYellow: return {.hue = Hue::kYellow};
    case cli::Colour::kCyan: return {.hue = Hue::kCyan};
  }
  return {};
}

}  // namespace gpumux::top
