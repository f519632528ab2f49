// SPDX-License-Identifier: Apache-2.0
// The number of the thread that calls, which no other thread of the process ever has.
//
// The handle of a thread's default stream is the same in all threads. So such a stream's name has this number, too.
#pragma once

#include <cstdint>

namespace gpumux::gate {

// From 1 on.
std::uint64_t number_of_this_thread();

}  // namespace gpumux::gate
