// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/kubelet_plugin/metrics.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "api_client/client.h"
#include "kubernetes/kubelet_plugin/daemon.h"
#include "kubernetes/kubelet_plugin/log.h"

namespace gpumux::kubernetes {

base::Result<std::unique_ptr<Metrics>> Metrics::open(const settings::KubeletSettings& settings,
                                                     const std::string& runtime_dir) {
  std::unique_ptr<Metrics> metrics(new Metrics(runtime_dir));
  if (!settings.metrics_address) return metrics;
  auto server = exporter::Server::open(
      metrics->io_,
      {.address = *settings.metrics_address,
       .token_file = settings.metrics_token_file.value_or(""),
       .certificate_file = settings.metrics_certificate_file.value_or(""),
       .key_file = settings.metrics_key_file.value_or("")},
      [self = metrics.get()](exporter::Names names, std::string accept, std::function<void(exporter::Page)> reply) {
        boost::asio::post(self->worker_, [self, names, accept = std::move(accept), reply = std::move(reply)] {
          reply(self->page(names, accept));
        });
      });
  if (!server && server.error().code == base::Code::kInvalid) return tl::unexpected(server.error());
  if (!server) {
    log(LogLevel::kError, "no metrics are served on " + *settings.metrics_address +
                              " until the plugin starts again: " + server.error().message());
    return metrics;
  }
  metrics->server_ = std::move(*server);
  log(LogLevel::kInfo, "metrics are served on " + metrics->server_->address());
  metrics->thread_ = std::thread([self = metrics.get()] { self->io_.run(); });
  return metrics;
}

Metrics::~Metrics() {
  io_.stop();
  if (thread_.joinable()) thread_.join();
  worker_.join();
}

exporter::Page Metrics::page(exporter::Names names, const std::string& accept) const {
  auto page = api_client::Client::connect({runtime_dir_, kAnswerLimit}).and_then([&](const api_client::Client& client) {
    return client.metrics(names == exporter::Names::kShown, accept);
  });
  if (page) return {200, std::move(page->content_type), std::move(page->body)};
  return {503, "text/plain; charset=utf-8", "the daemon of gpumux on this node does not answer\n"};
}

}  // namespace gpumux::kubernetes
