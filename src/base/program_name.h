// SPDX-License-Identifier: Apache-2.0
// The name by which people know a program: the base name of its executable. If that only runs a script (python, a
// shell, torchrun), it is the script's base name. The queue and the library have this rule in common, so `queue` and
// `status` agree.
//
//   python3 -u dir/train.py x                 train.py
//   torchrun --nproc_per_node=2 train.py      train.py
//   python -m package.module                  package.module
//   sh -c 'a; b'                              sh: its script has no name
#pragma once

#include <span>
#include <string_view>

namespace gpumux::base {

// `words`: the command line. The name is a part of one of them; empty: there is no word.
std::string_view program_name(std::span<const std::string_view> words);

}  // namespace gpumux::base
