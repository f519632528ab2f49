// SPDX-License-Identifier: Apache-2.0
// Serves the daemon's page for scrapers on a TCP address of the plugin's pod, if one is configured. The daemon decides
// what is in the page; a scraper that is not known reads one without names.
//
// Threads: one serves connections, another one asks the daemon.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <memory>
#include <string>
#include <thread>

#include "base/result.h"
#include "exporter/server.h"
#include "settings/structs.gen.h"

namespace gpumux::kubernetes {

class Metrics {
 public:
  // Signals are blocked in the caller's thread, and so in these. kInvalid: a setting is wrong, or a file is. An address
  // that cannot be had is only logged: pods need this plugin more than scrapers do.
  static base::Result<std::unique_ptr<Metrics>> open(const settings::KubeletSettings& settings,
                                                     const std::string& runtime_dir);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

 private:
  explicit Metrics(std::string runtime_dir) : runtime_dir_(std::move(runtime_dir)) {}
  exporter::Page page(exporter::Names names, const std::string& accept) const;

  const std::string runtime_dir_;
  boost::asio::io_context io_{1};
  boost::asio::thread_pool worker_{1};
  std::unique_ptr<exporter::Server> server_;  // none: no address is configured, or it cannot be had
  std::thread thread_;
};

}  // namespace gpumux::kubernetes
