// SPDX-License-Identifier: Apache-2.0
// The API's addresses of jobs, their queue and the ledger that is kept with them, as the rest of the API sees them. On
// the loop's thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api/api_types.h"
#include "server/api/routes.h"
#include "server/loop/wait_histogram.h"
#include "settings/structs.gen.h"

namespace gpumux::jobs {

// For metrics.
struct QueueFigures {
  bool is_available = false;  // there is a queue; all else is of it
  bool is_paused = false;
  std::vector<std::pair<std::string_view, std::uint64_t>> jobs;   // by state, of those that are not done
  std::vector<std::pair<std::string_view, std::uint64_t>> ended;  // by outcome, since the daemon's start
  server::WaitHistogram waits;                                    // from submission to the first start
  struct User {
    std::uint32_t uid = 0;
    std::uint64_t running = 0, queued = 0, gpus = 0;
  };
  std::vector<User> users;
};

class JobRoutes {
 public:
  virtual QueueFigures figures() const = 0;
  // `match`: of "/v1/jobs...", "/v1/queue...", "/v1/report".
  virtual server::ApiAnswer answer(const server::ApiRequest& request, const server::RouteMatch& match,
                                   std::string_view query) = 0;
  virtual settings::Privacy privacy() const = 0;

 protected:
  ~JobRoutes() = default;
};

}  // namespace gpumux::jobs
