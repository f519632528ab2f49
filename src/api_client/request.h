// SPDX-License-Identifier: Apache-2.0
// A request of the HTTP API, and its answer.
#pragma once

#include <chrono>
#include <string>

#include "base/clock.h"

namespace gpumux::api_client {

// How long one call may take. The daemon answers from memory, in well under a millisecond; 10 s is for a machine that
// swaps.
inline constexpr base::Duration kDefaultTimeout = std::chrono::seconds(10);

struct Request {
  std::string method;
  std::string target;
  std::string body = {};
  std::string accept = {};  // which formats are wanted; empty: any
};

struct Answer {
  unsigned http_status = 0;
  std::string content_type;
  std::string body;
};

}  // namespace gpumux::api_client
