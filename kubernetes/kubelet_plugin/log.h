// SPDX-License-Identifier: Apache-2.0
// The plugin's log: one line an event on standard error, as the daemon writes them. A pod's log has standard error.
//
// Any thread.
#pragma once

#include <string_view>

namespace gpumux::kubernetes {

enum class LogLevel { kInfo, kWarning, kError };

// "2026-11-25T15:36:16.123 info SENTENCE". Control characters are written as spaces, so one sentence is one line.
void log(LogLevel level, std::string_view sentence);

}  // namespace gpumux::kubernetes
