// SPDX-License-Identifier: Apache-2.0
// Channels of a test, which end with it. Those of a process never do.
#pragma once

#include "shim/process/channels.h"

namespace gpumux::shim {

struct TestChannels : Channels {
  using Channels::Channels;
  ~TestChannels() { forget(); }
};

}  // namespace gpumux::shim
