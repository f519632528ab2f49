// SPDX-License-Identifier: Apache-2.0
// Showing something again and again, until Ctrl-C or until the output is closed.
#pragma once

#include <functional>
#include <string>
#include <vector>

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

  using Look = std::function<base::Result<std::vector<std::string>>(const Output&)>;

  // Lines, drawn over those before where the cursor can be moved. A daemon that is away for a while is waited for:
  // watching is for seeing such things; but not at first, and not one that lets nobody in. The command's exit status.
  int screens(const char* command, const Look& look) const;
  // The same for programs: one after the other, and nothing while there is nothing.
  int documents(const char* command, const Look& look) const;

 private:
  int watch(const char* command, const Look& look, bool is_for_people) const;

  double seconds_ = 1;
  CLI::Option* option_;
};

}  // namespace gpumux::cli
