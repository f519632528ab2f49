// SPDX-License-Identifier: Apache-2.0
// The API's metrics for scrapers over TCP, as the configuration has it.
//
// Owned by the loop's thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <memory>

#include "base/result.h"
#include "daemon/api/api.h"
#include "daemon/config/config.h"
#include "exporter/server.h"

namespace gpumux::daemon {

class MetricsDoor {
 public:
  MetricsDoor(boost::asio::io_context& io, boost::asio::thread_pool& worker, Api& api)
      : io_(io), worker_(worker), api_(api) {}

  // Whether the settings of metrics and their files are right. Reads files: not for the loop.
  static base::Status check(const Config& config);
  // Opens the configured addresses, in place of the ones that were open. kInvalid: a setting is wrong, or a file is. An
  // address that cannot be had is only logged.
  base::Status open(const Config& config);
  void close() { server_.reset(); }

 private:
  boost::asio::io_context& io_;
  boost::asio::thread_pool& worker_;
  Api& api_;
  std::unique_ptr<exporter::Server> server_;  // none: no address is configured, or it cannot be had
};

}  // namespace gpumux::daemon
