// SPDX-License-Identifier: Apache-2.0
#include "shim/process/settings.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "base/program_name.h"
#include "base/units.h"
#include "os/file_descriptor.h"

namespace gpumux::shim {
namespace {

// Null also for an empty value: "unset" and "set to nothing" mean the same to people.
const char* variable(const char* name) {
  const char* value = ::secure_getenv(name);
  return value != nullptr && value[0] != '\0' ? value : nullptr;
}

std::uint64_t count_variable(const char* name) {
  const char* value = variable(name);
  // Launchers set these; what is not a number was not set by one.
  return value != nullptr ? base::parse_integer(value, 0, 1u << 20).value_or(0) : 0;
}

base::Result<bool> on_or_off(std::string_view value) {
  if (value == "on" || value == "off") return value == "on";
  return base::fail(base::Code::kInvalid, "it can be 'on' or 'off'");
}

base::Result<wire::OnDaemonLoss> on_daemon_loss(std::string_view value) {
  if (value == "wait") return wire::OnDaemonLoss::kWait;
  if (value == "ungated") return wire::OnDaemonLoss::kUngated;
  return base::fail(base::Code::kInvalid, "it can be 'wait' or 'ungated'");
}

base::Result<std::uint64_t> memory_limit(std::string_view value) {
  const auto limit = base::parse_bytes(value);
  if (limit && *limit > 0) return *limit;
  return base::fail(base::Code::kInvalid, "it can be a number of bytes such as 20G");
}

// Processes that one launcher started: by gpumux run, else by the launcher's own meeting point.
std::string launch_key() {
  if (const char* run = variable("GPUMUX_RUN_ID")) return std::string("run:") + run;
  const char* address = variable("MASTER_ADDR");
  const char* port = variable("MASTER_PORT");
  if (address != nullptr && port != nullptr) return std::string("master:") + address + ":" + port;
  return {};
}

void read_gang(Settings& settings) {
  if (const char* gang = variable("GPUMUX_GANG")) {
    if (std::string_view(gang) == "none") return;
    settings.gang = std::string("named:") + gang;
    settings.sharing_gang = settings.gang;
    return;
  }
  const std::string key = launch_key();
  // More than one process will meet in collectives: known before the first one, so they are together before they can
  // wait for each other.
  if (count_variable("WORLD_SIZE") > 1 && !key.empty()) {
    settings.gang = key;
    settings.gang_world = static_cast<std::uint32_t>(count_variable("LOCAL_WORLD_SIZE"));
  }
  // Processes of one shell command share a process group.
  settings.sharing_gang = !key.empty() ? key : "group:" + std::to_string(::getpgrp());
}

// Complains by calling complain(name, value, why).
template <class Complain>
void read_lock_modes(Settings& settings, const Complain& complain) {
  constexpr std::uint64_t kMost = 1u << 30;  // fits into the 32 bits that the settings have
  // A variable that is set sets the lock modes, with any value.
  const auto read = [&](const char* name, const auto& take) {
    const char* value = variable(name);
    if (value == nullptr) return;
    if (!settings.lock_modes) settings.lock_modes.emplace();
    if (const std::string why = take(value); !why.empty()) complain(name, value, why);
  };
  const auto read_count = [&](const char* name, const auto& take) {
    read(name, [&](const char* value) {
      const auto count = base::parse_integer(value, 0, kMost);
      if (!count) return count.error().message();
      take(static_cast<std::uint32_t>(*count));
      return std::string();
    });
  };
  read_count("CUDA_OVERRIDE_KERNEL_N_SYNC", [&](std::uint32_t count) { settings.lock_modes->submissions = count; });
  read_count("CUDA_OVERRIDE_ALWAYS_LOCK", [&](std::uint32_t count) { settings.lock_modes->always = count != 0; });
  read_count("CUDA_OVERRIDE_SYNC_LOCK_SKIPS", [&](std::uint32_t count) { settings.lock_modes->skips = count; });
  read("CUDA_OVERRIDE_MAX_SYNC_MS", [&](const char* value) {
    const auto held = base::parse_duration(value, std::chrono::milliseconds(1));
    if (!held) return held.error().message();
    settings.lock_modes->held = *held;
    return std::string();
  });
}

}  // namespace

bool is_disabled() {
  const char* value = variable("GPUMUX_DISABLE");
  return value != nullptr && std::string_view(value) != "0";
}

Settings read_settings() {
  Settings settings;
  const auto complain = [&settings](const char* name, const char* value, const std::string& why) {
    settings.complaints.push_back(std::string(name) + "=" + value + " is ignored: " + why);
  };
  settings.disabled = is_disabled();
  if (const char* value = variable("GPUMUX_LOG")) settings.log = value;
  const auto take = [&](const char* name, auto parse, auto& into) {
    const char* value = variable(name);
    if (value == nullptr) return;
    if (const auto parsed = parse(value)) {
      into = *parsed;
    } else {
      complain(name, value, parsed.error().message());
    }
  };
  take(
      "GPUMUX_CONNECT_TIMEOUT", [](const char* value) { return base::parse_duration(value, std::chrono::seconds(1)); },
      settings.connect_timeout);
  take("GPUMUX_ON_DAEMON_LOSS", on_daemon_loss, settings.on_daemon_loss);
  take("GPUMUX_MEM_LIMIT", memory_limit, settings.memory.limit);
  take("GPUMUX_PRIORITY", base::parse_priority, settings.standing.priority);
  take("GPUMUX_SHARE", base::parse_share, settings.standing.share);
  take("GPUMUX_MAX_SHARE", base::parse_max_share, settings.standing.max_share);
  if (const char* run = variable("GPUMUX_RUN_ID")) settings.run = run;
  take("GPUMUX_PAGING", on_or_off, settings.memory.paging);
  take("GPUMUX_USE_MPS", on_or_off, settings.mps);
  if (const char* value = variable("GPUMUX_VERIFY")) settings.memory.verify = std::string_view(value) != "0";
  if (const char* value = variable("GPUMUX_MEMORY")) {
    settings.memory.managed = std::string_view(value) == "managed";
    if (!settings.memory.managed) complain("GPUMUX_MEMORY", value, "it can be 'managed'");
  } else if (const char* old = variable("NVSHARE_ENABLE_SINGLE_OVERSUB")) {
    settings.memory.managed = std::string_view(old) != "0";
  }
  read_lock_modes(settings, complain);
  read_gang(settings);
  return settings;
}

std::string program_name() {
  if (const char* name = variable("GPUMUX_NAME")) return name;
  std::array<char, 4096> line{};  // the beginning is enough for a name
  const os::FileDescriptor file(::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC));
  const ssize_t got = file ? ::read(file.get(), line.data(), line.size() - 1) : -1;
  if (got <= 0) return "?";
  const std::string_view all(line.data(), static_cast<std::size_t>(got));
  std::vector<std::string_view> words;
  for (std::size_t at = 0; at < all.size(); at += words.back().size() + 1) words.emplace_back(line.data() + at);
  return std::string(base::program_name(words));
}

}  // namespace gpumux::shim
