// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "api_client/client.h"
#include "cli/doctor/facts.h"
#include "cli/doctor/probe.h"
#include "cli/run/preload.h"
#include "cli/run/tenants_here.h"
#include "os/durable_file.h"
#include "os/file_descriptor.h"
#include "os/installation.h"
#include "os/preload_list.h"
#include "os/runtime_dir.h"

namespace gpumux::cli {
namespace {

// Only variables that gpumux and the driver read; the rest of the environment stays private.
bool is_of_interest(std::string_view name) {
  for (const std::string_view prefix : {"GPUMUX_", "NVSHARE_", "CUDA_", "LD_PRELOAD"}) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> names_in(const std::string& dir) {
  return os::list_directory(dir).value_or(std::vector<std::string>());
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

void collect_devices(Facts& facts) {
  facts.kernel_module = ::access("/proc/driver/nvidia/version", F_OK) == 0;
  for (const std::string& name : names_in("/dev")) {
    const bool wanted =
        name == "nvidiactl" || name == "nvidia-uvm" || (name.starts_with("nvidia") && is_number(name.substr(6)));
    // Asked, not opened: opening wakes the GPU.
    if (wanted && ::access(("/dev/" + name).c_str(), R_OK | W_OK) != 0) facts.closed_devices.push_back("/dev/" + name);
  }
}

void collect_library(Facts& facts) {
  const auto dir = os::executable_dir();
  const auto found = dir ? os::find_library(*dir) : base::Result<std::string>(tl::unexpected(dir.error()));
  if (!found) {
    facts.library.error = found.error().message();
  } else {
    facts.library.path = *found;
    if (const auto fine = check_preloadable(*found); !fine) {
      facts.library.error = fine.error().message();
    } else {
      probe_preload(facts.library);
    }
  }
  facts.ld_so_preload = read_text("/etc/ld.so.preload");
  for (const std::string& entry : os::file_entries(facts.ld_so_preload)) {
    if (entry.starts_with('/') && entry.find('$') == std::string::npos && ::access(entry.c_str(), R_OK) != 0) {
      facts.missing_preloads.push_back(entry);
    }
  }
}

void collect_daemon(Facts& facts, const std::string& runtime_dir) {
  const auto found = runtime_dir.empty() ? os::find_runtime_dir() : base::Result<std::string>(runtime_dir);
  if (!found) {
    facts.daemon_error = found.error();
    return;
  }
  facts.runtime_dir = *found;
  const auto client = api_client::Client::connect({.runtime_dir = *found});
  if (!client) {
    facts.daemon_error = client.error();
    return;
  }
  auto info = client->daemon_info();
  if (!info) {
    facts.daemon_error = info.error();
    return;
  }
  facts.daemon = std::move(*info);
  if (auto snapshot = client->snapshot()) facts.snapshot = std::move(*snapshot);
  if (auto queue = client->queue()) {
    facts.queue = std::move(*queue);
  } else {
    facts.queue_error = std::move(queue).error();
  }
}

void collect_user_dir(Facts& facts) {
  struct stat status {};
  facts.user_dir.path = os::user_runtime_dir();
  if (::lstat(facts.user_dir.path.c_str(), &status) != 0) return;
  facts.user_dir.exists = true;
  facts.user_dir.is_dir = S_ISDIR(status.st_mode);
  facts.user_dir.owner = status.st_uid;
  facts.user_dir.mode = status.st_mode & 07777;
}

void collect_mps(Facts& facts) {
  for (const std::string& name : names_in("/proc")) {
    if (!is_number(name)) continue;
    std::string command = read_text("/proc/" + name + "/comm");
    while (!command.empty() && command.back() == '\n') command.pop_back();
    // The kernel keeps 15 bytes: nvidia-cuda-mps-control and nvidia-cuda-mps-server look the same.
    if (command != "nvidia-cuda-mps") continue;
    // "4711 (nvidia-cuda-mps) S 17 ..."
    const std::string stat = read_text("/proc/" + name + "/stat");
    const std::size_t after = stat.rfind(')');
    const std::int64_t parent =
        after == std::string::npos || stat.size() < after + 4 ? 0 : std::atoll(stat.c_str() + after + 4);
    facts.mps_daemons.push_back({std::atoll(name.c_str()), command, parent});
  }
  const char* dir = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  const std::string pipe = std::string(dir != nullptr && dir[0] != '\0' ? dir : "/tmp/nvidia-mps") + "/control";
  if (::access(pipe.c_str(), F_OK) == 0) facts.mps_pipe = pipe;
}

void collect_huge_pages(Facts& facts) {
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/shmem_enabled"), facts.shared_huge_pages);
}

}  // namespace

Facts collect_facts(const std::string& runtime_dir) {
  Facts facts;
  facts.uid = ::geteuid();
  facts.systemd = ::access("/run/systemd/system", F_OK) == 0;  // as sd_booted(3) has it
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || !is_of_interest(text.substr(0, equals))) continue;
    facts.environment[std::string(text.substr(0, equals))] = std::string(text.substr(equals + 1));
  }
  facts.driver = probe_driver();
  collect_devices(facts);
  collect_library(facts);
  collect_daemon(facts, runtime_dir);
  if (facts.daemon_error && facts.daemon_error->code == base::Code::kUnavailable)
    facts.waiting = tenants_text(tenants_here(facts.runtime_dir));
  collect_user_dir(facts);
  collect_mps(facts);
  collect_huge_pages(facts);
  return facts;
}

}  // namespace gpumux::cli
