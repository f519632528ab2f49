// SPDX-License-Identifier: Apache-2.0
// Starts a program of ours. Our own memory is not copied for it, however large it is.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/result.h"

namespace gpumux::os {

// A child of the caller, who waits for it. It leads a session of its own, has no signal blocked or handled, and
// `standard_input` as standard input. Of other descriptors it has those that are not close-on-exec. `arguments`: the
// first one is its name. Any thread. Errors: by errno, with `program` in the text.
base::Result<pid_t> spawn(const std::string& program, std::vector<std::string> arguments,
                          std::vector<std::string> environment, int standard_input);

}  // namespace gpumux::os
