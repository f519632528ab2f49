// SPDX-License-Identifier: Apache-2.0
// Showing something again and again, until q or Ctrl-C is pressed or the output is closed.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "cli/frame/command.h"
#include "cli/frame/terminal.h"

namespace gpumux::cli {

class Watch {
 public:
  // Adds --watch [SECONDS]. `app` and this are used until watching ends.
  explicit Watch(CLI::App& app);

  bool is_wanted() const { return option_->count() > 0; }
  CLI::Option* option() { return option_; }

  base::Duration interval() const;

  // For the head line: where the daemon is that is looked at.
  void set_runtime_dir(std::string runtime_dir) { runtime_dir_ = std::move(runtime_dir); }

  using Look = std::function<base::Result<std::vector<std::string>>(const Output&)>;

  // Lines, drawn over those before where the cursor can be moved. It waits for a daemon that is away for a while:
  // watching is for seeing such things. Exceptions: at first, and a daemon that refuses the user. The command's exit
  // status.
  int screens(const char* command, const Look& look) const;
  // The same for programs: one after the other, and nothing while there is nothing.
  int documents(const char* command, const Look& look) const;

 private:
  std::string head(const char* command, const Output& output, bool has_keys) const;

  double seconds_ = 0;
  std::string runtime_dir_;
  CLI::Option* option_;
};

// A screen of lines with a head line above them. If not all lines fit, those from the `top`-th one on are shown, and a
// last line says how many are hidden. `top` is made to be where there is something.
std::vector<std::string> screen_of(const std::string& head, const std::vector<std::string>& lines, std::size_t rows,
                                   bool has_keys, std::size_t& top);

}  // namespace gpumux::cli
