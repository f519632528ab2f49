// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics_door.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "server/loop/log.h"

namespace gpumux::daemon {
namespace {

exporter::Settings settings_of(const Config& config) {
  return {.address = config.metrics_address.value_or(""),
          .token_file = config.metrics_token_file.value_or(""),
          .certificate_file = config.metrics_certificate_file.value_or(""),
          .key_file = config.metrics_key_file.value_or("")};
}

}  // namespace

base::Status MetricsDoor::check(const Config& config) {
  return config.metrics_address ? exporter::Server::check(settings_of(config)) : base::Status();
}

base::Status MetricsDoor::open(const Config& config) {
  close();
  if (!config.metrics_address) return {};
  auto server = exporter::Server::open(
      io_, settings_of(config),
      [this](exporter::Names names, const std::string& accept, std::function<void(exporter::Page)> reply) {
        const MetricsFormat format = metrics_format(accept);
        auto work = api_.metrics(names, format);
        boost::asio::post(worker_, [work = std::move(work), format, reply = std::move(reply)] {
          reply({200, std::string(content_type(format)), work()});
        });
      });
  if (!server) {
    if (server.error().code == base::Code::kInvalid) return tl::unexpected(server.error());
    // Programs need this daemon more than scrapers do.
    server::log_error("metrics are not served over TCP; a reload tries again",
                      {{"address", *config.metrics_address}, {"why", server.error().message()}});
    return {};
  }
  server_ = std::move(*server);
  server::log_info("metrics", {{"address", server_->address()}, {"names", config.metrics_token_file.has_value()}});
  return {};
}

}  // namespace gpumux::daemon
