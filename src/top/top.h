// SPDX-License-Identifier: Apache-2.0
// `gpumux top`: the event loop between the terminal and the daemon.
//
// One thread polls for keys, signals, a timer and the daemon's answers, so a daemon that hangs or is gone delays no
// key. It asks over one connection that stays open: for the status once a second, and for what is new in the trace
// every other time. It asks for jobs when the trace says that one has changed, and now and then besides.
#pragma once

#include "api_client/client.h"
#include "base/result.h"

namespace gpumux::top {

// Until the user quits. The error: there is no daemon, it does not let the user in, or the terminal cannot show it.
base::Status run_top(const api_client::Options& options);

}  // namespace gpumux::top
