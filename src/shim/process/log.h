// SPDX-License-Identifier: Apache-2.0
// The library's messages. It never writes to the program's output unasked, with one exception. It says on standard
// error that it runs ungated, or waits for a daemon to come back: then there is no daemon whose log could say it.
#pragma once

#include <string>

#include "wire/messages.h"

namespace gpumux::shim {

// Where messages go in addition to the daemon: a file to append to, or a descriptor of the program's ("stderr",
// "stdout", /dev/stderr, /dev/stdout, /dev/fd/N, /proc/self/fd/N). Empty: nowhere.
void set_log(const std::string& destination);

// To the destination only, with time and pid.
void write_log(wire::Severity severity, const std::string& text);

// To standard error, once, for any destination.
void tell_user(const std::string& text);

}  // namespace gpumux::shim
