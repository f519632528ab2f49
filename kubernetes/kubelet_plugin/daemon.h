// SPDX-License-Identifier: Apache-2.0
// The answer of the node's daemon, asked once.
//
// Any thread.
#pragma once

#include <string>

#include "api_client/types.h"
#include "base/clock.h"
#include "base/result.h"

namespace gpumux::kubernetes {

// A daemon that does not answer within this counts as dead. It answers from memory, within milliseconds.
inline constexpr base::Duration kAnswerLimit = std::chrono::seconds(2);

struct DaemonSays {
  base::Result<api_client::Snapshot> snapshot;
  api_client::DriverInfo driver;  // of a snapshot that is there
};

DaemonSays ask_daemon(const std::string& runtime_dir);

}  // namespace gpumux::kubernetes
