// SPDX-License-Identifier: Apache-2.0
// gpumuxd: the node's scheduling daemon.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "command_line/parse.h"
#include "daemon/daemon.h"
#include "daemon/metrics_door.h"
#include "daemon/options.h"
#include "daemon/watcher.h"
#include "os/standard_descriptors.h"
#include "server/loop/log.h"

namespace gpumux::daemon {
namespace {

// Each tenant takes two descriptors; the usual soft limit of 1024 would end at 256 of them.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void warn(const std::string& text) {
  std::fputs(command_line::error_text("gpumuxd", "warning: " + text).c_str(), stderr);
}

// A section of a GPU that is not there has no effect, which its writer does not expect.
void warn_of_missing_gpus(const Config& config, const std::string& nvml_path) {
  if (config.gpus.empty()) return;
  const auto inventory = open_nvml(nvml_path);
  if (!inventory) {
    warn("the GPUs of [gpu.N] could not be looked up: " + inventory.error().message());
    return;
  }
  std::vector<std::string> uuids;
  for (const GpuInfo& gpu : (*inventory)->gpus()) uuids.push_back(gpu.uuid_text);
  for (const std::string& name : config.missing_gpus(uuids)) {
    warn("[gpu." + name + "] has no effect: this is none of the machine's GPUs (see nvidia-smi -L)");
  }
}

int serve(ParsedOptions parsed) {
  const server::LogLevel level = parsed.daemon.config.log_level;
  auto inventory = open_nvml(parsed.nvml_path);
  if (!inventory) {
    server::log_error(inventory.error().message());
    return kExitNoGpu;
  }
  auto daemon = Daemon::make(std::move(parsed.daemon), std::move(*inventory));
  if (!daemon) {
    server::log_error(daemon.error().error.message());
    return daemon.error().exit_code;
  }
  server::start_log(level);
  const int exit_code = (*daemon)->run();
  daemon->reset();
  server::stop_log();
  return exit_code;
}

int run(int argc, const char* const* argv) {
  auto options = parse_options(argc, argv, [](const char* name) -> const char* { return ::secure_getenv(name); });
  if (const auto* early = std::get_if<EarlyExit>(&options)) {
    std::fputs(early->text.c_str(), early->is_error ? stderr : stdout);
    return early->exit_code;
  }
  auto& parsed = std::get<ParsedOptions>(options);
  if (parsed.check_config) {
    if (const auto right = MetricsDoor::check(parsed.daemon.config); !right) {
      std::fputs(command_line::error_text("gpumuxd", right.error().message()).c_str(), stderr);
      return kExitConfig;
    }
    if (parsed.daemon.config.files.empty()) std::printf("no configuration file; defaults and environment are right\n");
    for (const std::string& file : parsed.daemon.config.files) std::printf("%s: right\n", file.c_str());
    warn_of_missing_gpus(parsed.daemon.config, parsed.nvml_path);
    return kExitStopped;
  }
  raise_descriptor_limit();
  server::set_log_level(parsed.daemon.config.log_level);
  if (!parsed.restart_on_failure) return serve(std::move(parsed));
  return watch(parsed.daemon.notify_fd, [&parsed](int notify_fd) {
    parsed.daemon.notify_fd = notify_fd;
    return serve(std::move(parsed));
  });
}

}  // namespace
}  // namespace gpumux::daemon

int main(int argc, char** argv) {
  gpumux::os::fill_standard_descriptors();
  try {
    return gpumux::daemon::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpumuxd: %s\n", error.what());
    return gpumux::daemon::kExitFailed;
  }
}
