// SPDX-License-Identifier: Apache-2.0
// The API's addresses of jobs and their queue, as the rest of the API sees them. On the loop's thread.
#pragma once

#include <string_view>

#include "daemon/api/api_types.h"
#include "settings/structs.gen.h"

namespace gpumux::daemon {

class JobRoutes {
 public:
  // `path`: "/v1/jobs...", "/v1/queue..."; without the query.
  virtual ApiAnswer answer(const ApiRequest& request, std::string_view path, std::string_view query) = 0;
  virtual settings::Privacy privacy() const = 0;

 protected:
  ~JobRoutes() = default;
};

}  // namespace gpumux::daemon
