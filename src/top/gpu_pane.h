// SPDX-License-Identifier: Apache-2.0
// The upper part of the screen: each GPU's load, memory, holder, waiters and timeline. Pure.
//
// All GPUs have the same form: the largest in which all of them fit. If not even single lines fit, those around the
// chosen GPU are shown.
#pragma once

#include <cstddef>
#include <vector>

#include "top/look.h"
#include "top/model.h"
#include "top/view_state.h"

namespace gpumux::top {

class GpuPane {
 public:
  // The pane takes at most `most_rows` rows. `spare_rows`: those that nothing else on the screen needs. Only with them
  // each program has a row of the timeline of its own. The arguments are used until this is gone.
  GpuPane(const Model& model, const View& view, const Clocks& clocks, const Look& look, std::size_t most_rows,
          std::size_t spare_rows);

  std::size_t rows() const;
  void draw(Canvas& canvas, std::size_t top) const;

 private:
  enum class Form { kTall, kFull, kShort, kLine };

  std::size_t rows_of(const api_client::Gpu& gpu, Form form) const;
  std::size_t rows_in(Form form) const;
  bool is_wide() const;
  std::size_t draw_full(Canvas& canvas, std::size_t row, const api_client::Gpu& gpu) const;
  std::size_t draw_short(Canvas& canvas, std::size_t row, const api_client::Gpu& gpu) const;
  std::size_t draw_line(Canvas& canvas, std::size_t row, const api_client::Gpu& gpu) const;
  void draw_title(Canvas& canvas, std::size_t row, const api_client::Gpu& gpu) const;
  void draw_memory(Canvas& canvas, const Span& span, const api_client::Gpu& gpu) const;
  void draw_turns(Canvas& canvas, const Span& span, const api_client::Gpu& gpu) const;
  void draw_timeline(Canvas& canvas, const Span& span, const api_client::Gpu& gpu) const;
  std::size_t draw_lanes(Canvas& canvas, std::size_t row, const api_client::Gpu& gpu) const;
  base::Duration window() const { return kWindows[view_.window % kWindows.size()]; }
  bool is_full() const { return form_ == Form::kTall || form_ == Form::kFull; }

  const Model& model_;
  const View& view_;
  const Clocks& clocks_;
  const Look& look_;
  std::vector<const api_client::Gpu*> gpus_;
  Form form_ = Form::kFull;
};

}  // namespace gpumux::top
