// SPDX-License-Identifier: Apache-2.0
// A request of the HTTP API.
#pragma once

#include <string>

namespace gpumux::api_client {

struct Request {
  std::string method;
  std::string target;
  std::string body = {};
};

}  // namespace gpumux::api_client
