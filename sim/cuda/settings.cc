// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/settings.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/units.h"

namespace gpumux::sim {
namespace {

enum class Unit { kCount, kBytes, kTime, kInterrupts, kText };

struct Key {
  const char* name;  // in machine.conf; the variable is GPUMUX_SIM_ and the name in capitals
  Unit unit;
  std::uint64_t minimum;
  std::uint64_t maximum;
  void (*store)(Settings&, std::uint64_t);
};

constexpr std::uint64_t kTera = std::uint64_t{1} << 40;
constexpr std::uint64_t kMega = std::uint64_t{1} << 20;
constexpr std::uint64_t kMinute = 60'000'000'000;

// Each group of a context has a channel. More than this would only take time.
constexpr std::uint64_t kLeastChannels = 4;
constexpr std::uint64_t kMostChannels = 1024;

// Minimum and maximum keep a typing error from looking like a hang or a division by zero; none is a limit of the model.
constexpr Key kKeys[] = {
    {"gpus", Unit::kCount, 0, kMaxGpus, [](Settings& s, std::uint64_t v) { s.gpus = static_cast<std::uint32_t>(v); }},
    {"peers", Unit::kCount, 0, 1, [](Settings& s, std::uint64_t v) { s.peers = static_cast<std::uint32_t>(v); }},
    {"memory", Unit::kBytes, 4 * kMega, 16 * kTera, [](Settings& s, std::uint64_t v) { s.memory_bytes = v; }},
    {"context_memory", Unit::kBytes, 0, kTera, [](Settings& s, std::uint64_t v) { s.context_bytes = v; }},
    {"reserved_memory", Unit::kBytes, 0, kTera, [](Settings& s, std::uint64_t v) { s.reserved_bytes = v; }},
    {"h2d_bandwidth", Unit::kBytes, kMega, kTera, [](Settings& s, std::uint64_t v) { s.h2d_bytes_per_second = v; }},
    {"d2h_bandwidth", Unit::kBytes, kMega, kTera, [](Settings& s, std::uint64_t v) { s.d2h_bytes_per_second = v; }},
    {"d2d_bandwidth", Unit::kBytes, kMega, kTera, [](Settings& s, std::uint64_t v) { s.d2d_bytes_per_second = v; }},
    {"peer_bandwidth", Unit::kBytes, kMega, kTera, [](Settings& s, std::uint64_t v) { s.peer_bytes_per_second = v; }},
    {"kernel_bandwidth", Unit::kBytes, kMega, kTera,
     [](Settings& s, std::uint64_t v) { s.kernel_bytes_per_second = v; }},
    {"duplex_percent", Unit::kCount, 1, 100, [](Settings& s, std::uint64_t v) { s.duplex_percent = v; }},
    {"launch_cost", Unit::kTime, 0, kMinute, [](Settings& s, std::uint64_t v) { s.launch_nanoseconds = v; }},
    {"switch_cost", Unit::kTime, 0, kMinute, [](Settings& s, std::uint64_t v) { s.switch_nanoseconds = v; }},
    {"slice", Unit::kTime, 10'000, kMinute, [](Settings& s, std::uint64_t v) { s.slice_nanoseconds = v; }},
    {"death_delay", Unit::kTime, 0, kMinute, [](Settings& s, std::uint64_t v) { s.death_nanoseconds = v; }},
    {"interrupts", Unit::kInterrupts, 0, 2, [](Settings& s, std::uint64_t v) { s.interrupts = Interrupts(v); }},
    {"channels", Unit::kCount, kLeastChannels, kMostChannels,
     [](Settings& s, std::uint64_t v) { s.channels = static_cast<std::uint32_t>(v); }},
    {"freeze_cost", Unit::kTime, 0, kMinute, [](Settings& s, std::uint64_t v) { s.freeze_nanoseconds = v; }},
    {"thaw_cost", Unit::kTime, 0, kMinute, [](Settings& s, std::uint64_t v) { s.thaw_nanoseconds = v; }},
    {"seed", Unit::kCount, 0, UINT64_MAX, [](Settings& s, std::uint64_t v) { s.seed = v; }},
    {"name", Unit::kText, 0, 0, nullptr},
};

std::string variable_of(const Key& key) {
  std::string name = std::string("GPUMUX_SIM_") + key.name;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
  return name;
}

base::Status store(const Key& key, std::string_view value, Settings& settings) {
  if (key.unit == Unit::kText) {
    if (value.empty() || value.size() >= sizeof settings.name) {
      return base::fail(base::Code::kInvalid, std::string(key.name) + " must have 1 to 63 characters");
    }
    std::memset(settings.name, 0, sizeof settings.name);
    std::memcpy(settings.name, value.data(), value.size());
    return {};
  }
  std::uint64_t number = 0;
  if (key.unit == Unit::kInterrupts) {
    constexpr std::string_view kWords[] = {"yes", "refused", "unknown"};  // in the order of Interrupts
    const auto* const word = std::find(std::begin(kWords), std::end(kWords), value);
    if (word == std::end(kWords)) {
      return base::fail(base::Code::kInvalid,
                        std::string(key.name) + " = " + std::string(value) + " is not yes, refused or unknown");
    }
    number = static_cast<std::uint64_t>(word - std::begin(kWords));
  } else if (key.unit == Unit::kTime) {
    const auto parsed = base::parse_duration(value, base::Duration(1));
    if (!parsed) return tl::unexpected(parsed.error());
    number = static_cast<std::uint64_t>(parsed->count());
  } else {
    const auto parsed =
        key.unit == Unit::kBytes ? base::parse_bytes(value) : base::parse_integer(value, key.minimum, key.maximum);
    if (!parsed) return tl::unexpected(parsed.error());
    number = *parsed;
  }
  if (number < key.minimum || number > key.maximum) {
    return base::fail(base::Code::kInvalid, std::string(key.name) + " = " + std::string(value) + " is out of range (" +
                                                std::to_string(key.minimum) + " to " + std::to_string(key.maximum) +
                                                (key.unit == Unit::kTime ? " ns)" : ")"));
  }
  key.store(settings, number);
  return {};
}

std::string_view trim(std::string_view text) {
  const char* blank = " \t\r";
  const std::size_t first = text.find_first_not_of(blank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blank) - first + 1);
}

base::Error at(std::string where, base::Error error) {
  error.what = std::move(where) + ": " + error.what;
  return error;
}

}  // namespace

base::Status apply_lines(std::string_view text, Settings& settings) {
  std::size_t number = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    line = trim(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const std::string where = "machine.conf line " + std::to_string(number);
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos) return base::fail(base::Code::kInvalid, where + " is not `key = value`");
    const std::string_view name = trim(line.substr(0, equals));
    const auto* key = std::find_if(std::begin(kKeys), std::end(kKeys), [&](const Key& k) { return name == k.name; });
    if (key == std::end(kKeys))
      return base::fail(base::Code::kInvalid, where + ": there is no setting " + std::string(name));
    if (auto stored = store(*key, trim(line.substr(equals + 1)), settings); !stored) {
      return tl::unexpected(at(where, std::move(stored).error()));
    }
  }
  return {};
}

base::Status apply_environment(Settings& settings) {
  for (const Key& key : kKeys) {
    const std::string variable = variable_of(key);
    const char* value = ::secure_getenv(variable.c_str());
    if (value == nullptr || value[0] == '\0') continue;
    if (auto stored = store(key, value, settings); !stored)
      return tl::unexpected(at(variable, std::move(stored).error()));
  }
  return {};
}

std::string machine_directory() {
  if (const char* named = ::secure_getenv("GPUMUX_SIM_DIR"); named != nullptr && named[0] != '\0') return named;
  return "/dev/shm/gpumux-sim-" + std::to_string(::geteuid());
}

}  // namespace gpumux::sim
