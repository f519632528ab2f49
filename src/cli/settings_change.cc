// SPDX-License-Identifier: Apache-2.0
#include "cli/settings_change.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/ids.h"
#include "base/limits.h"
#include "base/standing.h"
#include "base/units.h"

namespace gpumux::cli {
namespace {

using namespace std::chrono_literals;
using base::Code;
using base::Duration;
using base::Result;
using base::Status;

// More than any GPU has.
constexpr std::uint64_t kMaxReserve = std::uint64_t{1} << 40;

// What the daemon takes (docs/api.md). It checks again and has the last word; checking here gives the error before any
// GPU is changed.
struct Rule {
  SettingRule shown;
  std::string_view words;  // values that are words, separated by spaces
  bool is_time = false;
  Duration minimum{};
  Duration maximum{};
  bool is_bytes = false;
};

constexpr std::array<Rule, 20> kRules{{
    {{"mode", "--mode", "MODE", "auto, serial or concurrent",
      "One holder at a time, or all at once; auto: what gives more where all fits"},
     "auto serial concurrent"},
    {{"auto_by_gain", "--auto-by-gain", "BOOL", "true or false",
      "In mode auto, measure what gives more where all fits"},
     "true false"},
    {{"reserve", "--reserve", "BYTES", "a number of bytes with a unit, such as 512M, at most 1024G, or auto",
      "GPU memory kept free for what the driver takes"},
     "auto",
     false,
     {},
     {},
     true},
    {{"policy", "--policy", "POLICY", "fair or fifo", "Next is who had the least GPU time, or who has waited longest"},
     "fair fifo"},
    {{"quantum", "--quantum", "TIME", "a time from 1ms to 24h, auto, or unlimited",
      "How long a GPU is held while others wait"},
     "auto unlimited",
     true,
     1ms,
     24h},
    {{"max_runtime", "--max-runtime", "TIME", "a time from 100ms to 24h, or unlimited",
      "Nobody holds longer than this while others wait"},
     "unlimited",
     true,
     100ms,
     24h},
    {{"idle_hold", "--idle-hold", "TIME", "a time from 0us to 10s, auto, or unlimited",
      "How long an idle program keeps a GPU that others wait for"},
     "auto unlimited",
     true,
     0ns,
     10s},
    {{"in_flight", "--in-flight", "TIME", "a time from 100us to 10s, or unlimited",
      "How much work a program may have queued on a GPU that others use"},
     "unlimited",
     true,
     100us,
     10s},
    {{"time_slice", "--time-slice", "TIME", "driver, auto, or a time from 100us to 100ms",
      "How long the GPU runs one program beside another; auto: by priority"},
     "driver auto",
     true,
     100us,
     100ms},
    {{"stall_timeout", "--stall-timeout", "TIME", "a time from 10ms to 1h",
      "A revocation that has not drained by then is taken back"},
     "",
     true,
     10ms,
     1h},
    {{"stall_retry", "--stall-retry", "TIME", "a time from 1ms to 1m", "How long after that it is tried again"},
     "",
     true,
     1ms,
     1min},
    {{"on_stall", "--on-stall", "WHAT", "wait or gang",
      "What does not drain is tried again later, or taken for one gang with those that it may wait for"},
     "wait gang"},
    {{"kill_stalled_after", "--kill-stalled-after", "TIME", "a time from 1s to 24h, or unlimited",
      "A program that has not drained this long is killed if others wait"},
     "unlimited",
     true,
     1s,
     24h},
    {{"step_delay", "--step-delay", "TIME", "a time from 100us to 10s",
      "How long a gang may stay half drained before it is helped on"},
     "",
     true,
     100us,
     10s},
    {{"gang_ageing", "--gang-ageing", "TIME", "a time from 0us to 1h",
      "A gang that waited this long has its GPUs kept free for it"},
     "",
     true,
     0ns,
     1h},
    {{"priority_ageing", "--priority-ageing", "TIME", "a time from 10ms to 24h, or unlimited",
      "Who waited this long for higher priorities goes before them for a quantum"},
     "unlimited",
     true,
     10ms,
     24h},
    {{"silence_limit", "--silence-limit", "TIME", "a time from 10ms to 1h",
      "A program that does not answer this long is passed over"},
     "",
     true,
     10ms,
     1h},
    {{"kill_silent_after", "--kill-silent-after", "TIME", "a time from 1s to 24h, or unlimited",
      "A program that does not answer this long is killed"},
     "unlimited",
     true,
     1s,
     24h},
    {{"overlap", "--overlap", "BOOL", "true or false",
      "Whether the next program starts while the last one's work still finishes"},
     "true false"},
    {{"hand_over", "--hand-over", "BOOL", "true or false",
      "Whether evicted memory goes to the next program of the same user, not scrubbed"},
     "true false"},
}};

constexpr auto kShown = [] {
  std::array<SettingRule, kRules.size()> shown{};
  for (std::size_t i = 0; i < kRules.size(); ++i) shown[i] = kRules[i].shown;
  return shown;
}();

bool has_word(std::string_view words, std::string_view value) {
  while (!words.empty()) {
    const std::size_t end = std::min(words.find(' '), words.size());
    if (words.substr(0, end) == value) return true;
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return false;
}

bool ends_in_digit(std::string_view text) { return !text.empty() && text.back() >= '0' && text.back() <= '9'; }

std::string names_of(const std::vector<api_client::Gpu>& gpus) {
  std::string text;
  for (const auto& gpu : gpus) text += (text.empty() ? "" : ", ") + std::to_string(gpu.index) + " (" + gpu.uuid + ")";
  return text.empty() ? "none" : text;
}

}  // namespace

std::span<const SettingRule> setting_rules() { return kShown; }

Status check_setting(std::string_view name, std::string_view value) {
  for (const Rule& rule : kRules) {
    if (rule.shown.name != name) continue;
    if (has_word(rule.words, value)) return {};
    std::string reason = std::string(rule.shown.option) + " cannot be '" + std::string(value.substr(0, 64)) +
                         "': it must be " + std::string(rule.shown.allowed);
    if (rule.is_bytes) {
      const auto bytes = base::parse_bytes(value, 1);
      if (ends_in_digit(value) || !bytes || *bytes > kMaxReserve) return base::fail(Code::kInvalid, reason);
      return {};
    }
    if (rule.is_time && ends_in_digit(value))
      reason += " (a unit is missing: write " + std::string(value.substr(0, 32)) + "ms or s)";
    if (!rule.is_time || ends_in_digit(value)) return base::fail(Code::kInvalid, reason);
    const auto time = base::parse_duration(value, 1ns);
    if (!time || *time < rule.minimum || *time > rule.maximum) return base::fail(Code::kInvalid, reason);
    return {};
  }
  return base::fail(Code::kInvalid, "there is no setting '" + std::string(name) + "'");
}

std::string settings_body(const std::vector<SettingValue>& values, bool save) {
  nlohmann::json body = nlohmann::json::object();
  for (const SettingValue& value : values) {
    if (value.name == "overlap" || value.name == "auto_by_gain" || value.name == "hand_over") {
      body[value.name] = value.value == "true";
    } else {
      body[value.name] = value.value;
    }
  }
  if (save) body["save"] = true;
  return body.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

Status check_standing(std::string_view name, std::string_view value) {
  if (value == "default") return {};
  Status checked;
  const auto check = [&](const auto& parsed) {
    if (!parsed) checked = tl::unexpected(parsed.error());
  };
  if (name == "priority") check(base::parse_priority(value));
  if (name == "share") check(base::parse_share(value));
  if (name == "max_share") check(base::parse_max_share(value));
  if (checked) return {};
  std::string option(name);
  std::replace(option.begin(), option.end(), '_', '-');
  return base::fail(Code::kInvalid, "--" + option + " cannot be '" + std::string(value.substr(0, 64)) +
                                        "': " + checked.error().what + ", or default: as it started");
}

Result<std::uint64_t> parse_tenant(std::string_view text) {
  const auto number = base::parse_integer(text, 1, std::numeric_limits<std::int64_t>::max());
  if (number) return *number;
  return base::fail(Code::kInvalid, "'" + std::string(text.substr(0, 64)) +
                                        "' names no program: give its process id, as `gpumux status` shows it");
}

Result<std::uint64_t> find_tenant(const std::vector<api_client::Gpu>& gpus, std::string_view text) {
  const auto number = parse_tenant(text);
  if (!number) return tl::unexpected(number.error());
  std::optional<std::uint64_t> found;
  for (const auto& gpu : gpus) {
    for (const auto& seat : gpu.seats) {
      if (seat.pid == static_cast<std::int64_t>(*number)) return seat.tenant;
      if (seat.tenant == *number) found = seat.tenant;
    }
  }
  if (found) return *found;
  return base::fail(Code::kNotFound, "no program with the process id " + std::string(text) +
                                         " uses a GPU under gpumux: see `gpumux status`");
}

Status check_gpu_name(std::string_view text) {
  if (text == "all" || base::parse_integer(text, 0, base::kMaxGpus - 1)) return {};
  const bool prefix = text.starts_with("GPU-") || text.starts_with("MIG-");
  if (prefix && text.size() > 4 && text.find_first_not_of("0123456789abcdefABCDEF-", 4) == std::string_view::npos)
    return {};
  if (base::GpuUuid::parse(text)) return {};
  return base::fail(Code::kInvalid, "'" + std::string(text.substr(0, 64)) +
                                        "' names no GPU: give an index (0), a UUID (GPU-...) or all");
}

Result<const api_client::Gpu*> find_gpu(const std::vector<api_client::Gpu>& gpus, std::string_view text) {
  if (const auto index = base::parse_integer(text, 0, base::kMaxGpus - 1)) {
    for (const auto& gpu : gpus) {
      if (gpu.index == *index) return &gpu;
    }
  }
  const api_client::Gpu* found = nullptr;
  for (const auto& gpu : gpus) {
    const std::string_view uuid = gpu.uuid;
    if (uuid == text || (uuid.size() > 4 && uuid.substr(4) == text)) return &gpu;
    if (text.size() <= 4 || !uuid.starts_with(text)) continue;
    if (found != nullptr) {
      return base::fail(Code::kInvalid, "'" + std::string(text) + "' could be " + found->uuid + " or " + gpu.uuid +
                                            ": write more of it");
    }
    found = &gpu;
  }
  if (found == nullptr) {
    return base::fail(Code::kNotFound,
                      "there is no GPU '" + std::string(text) + "'; the daemon serves: " + names_of(gpus));
  }
  return found;
}

}  // namespace gpumux::cli
