// SPDX-License-Identifier: Apache-2.0
// The words behind `gpumux admin`, as requests to the daemon.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace gpumux::cli {

struct AdminChange {
  std::string what;  // as Client::change_queue takes it: "", "gpus/3", "users/eva"
  std::string body;  // JSON
};

// Nothing for "show". kInvalid says what is wrong with the words.
base::Result<std::vector<AdminChange>> parse_admin_words(const std::vector<std::string>& words);

}  // namespace gpumux::cli
