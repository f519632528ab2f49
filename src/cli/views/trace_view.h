// SPDX-License-Identifier: Apache-2.0
// The lease trace as people read it.
#pragma once

#include <string>

#include "api_client/holds.h"
#include "api_client/types.h"
#include "cli/frame/terminal.h"

namespace gpumux::cli {

// Turns events, in order, into lines: "12:03:04.123456  GPU 0  grant        train.py (4711)  exclusive". An
// event that ends a tenure says how long it was.
class TraceView {
 public:
  // `to_wall`: added to CLOCK_MONOTONIC to get the time of day. Epochs say little, and have 14 digits.
  TraceView(Output output, base::Duration to_wall, bool shows_epochs)
      : output_(output), to_wall_(to_wall), shows_epochs_(shows_epochs) {}

  std::string line(const api_client::TraceEvent& event);

 private:
  api_client::Holds holds_;
  Output output_;
  base::Duration to_wall_;
  bool shows_epochs_;
};

}  // namespace gpumux::cli
