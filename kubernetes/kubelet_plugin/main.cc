// SPDX-License-Identifier: Apache-2.0
// gpumux-kubelet-plugin: serves this node's GPUs to the kubelet.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <variant>

#include "kubernetes/kubelet_plugin/device_plugin_api.h"
#include "kubernetes/kubelet_plugin/dra_api.h"
#include "kubernetes/kubelet_plugin/log.h"
#include "kubernetes/kubelet_plugin/metrics.h"
#include "kubernetes/kubelet_plugin/node_files.h"
#include "kubernetes/kubelet_plugin/options.h"
#include "os/installation.h"
#include "os/standard_descriptors.h"

namespace gpumux::kubernetes {
namespace {

base::Status do_once(const PluginOptions& options) {
  if (options.task == Task::kCheck) return options.api == Api::kDra ? check_dra(options) : check_device_plugin(options);
  if (options.task == Task::kRemove) return remove_node_files(options.settings, {options.runtime_dir});
  const auto programs = os::executable_dir();
  if (!programs) return tl::unexpected(programs.error());
  return install_node_files(options.settings, *programs);
}

int run(int argc, const char* const* argv) {
  const auto parsed = parse_options(argc, argv, [](const char* name) -> const char* { return ::secure_getenv(name); });
  if (const auto* early = std::get_if<EarlyExit>(&parsed)) {
    std::fputs(early->text.c_str(), early->is_error ? stderr : stdout);
    return early->exit_code;
  }
  const auto& options = std::get<PluginOptions>(parsed);
  if (options.task != Task::kServe) {
    const base::Status done = do_once(options);
    if (!done) std::fprintf(stderr, "gpumux-kubelet-plugin: %s\n", done.error().message().c_str());
    return done ? kExitStopped : kExitFailed;
  }
  // Before there is any other thread: all are to leave the signals to this one.
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGTERM);
  ::sigaddset(&signals, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const auto metrics = Metrics::open(options.settings, options.runtime_dir);
  if (!metrics) {
    log(LogLevel::kError, metrics.error().message());
    return kExitUsage;
  }
  base::Status served;
  switch (options.api) {
    case Api::kDevicePlugin: served = serve_device_plugin(options, signals); break;
    case Api::kDra: served = serve_dra(options, signals); break;
  }
  if (!served) log(LogLevel::kError, served.error().message());
  return served ? kExitStopped : kExitFailed;
}

}  // namespace
}  // namespace gpumux::kubernetes

int main(int argc, char** argv) {
  gpumux::os::fill_standard_descriptors();
  try {
    return gpumux::kubernetes::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpumux-kubelet-plugin: %s\n", error.what());
    return gpumux::kubernetes::kExitFailed;
  }
}
