// SPDX-License-Identifier: Apache-2.0
// Environment variables with values that nobody will take, or that nobody reads. docs/environment.md has the table of
// all of them.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>

#include "base/limits.h"
#include "base/standing.h"
#include "base/units.h"
#include "cli/command.h"
#include "cli/doctor/checks.h"
#include "cli/settings_change.h"

namespace gpumux::cli {
namespace {

enum class Kind {
  kAny,
  kSetting,  // of `gpumux set`; overlap is true or false here
  kWords,    // one of `allowed`
  kTime,     // a bare number is seconds
  kMilliseconds,
  kNumber,  // from `minimum` to `maximum`
  kBytes,   // more than none
  kPriority,
  kShare,
  kMaxShare,
  kPath,  // absolute
  kName,  // shorter than kMaxNameBytes
};

enum class Reader {
  kLibrary,
  kDaemon,
  kCommand,
  kNobody,  // for programs to read, or an older system's, kept for what it will mean here
};

struct Variable {
  std::string_view name;
  Reader reader;
  Kind kind;
  std::string_view allowed;   // kWords: separated by spaces; kSetting: the setting
  std::uint64_t minimum = 0;  // kNumber
  std::uint64_t maximum = UINT32_MAX;
  std::string_view own_name;  // of an alias: the variable that wins
};

constexpr std::array<Variable, 69> kVariables{{
    {"GPUMUX_RUNTIME_DIR", Reader::kLibrary, Kind::kPath, "", 0, 0, ""},
    {"GPUMUX_LIBRARY", Reader::kCommand, Kind::kAny, "", 0, 0, ""},
    {"GPUMUX_DAEMON", Reader::kCommand, Kind::kAny, "", 0, 0, ""},
    {"GPUMUX_NVML", Reader::kDaemon, Kind::kAny, "", 0, 0, ""},
    {"GPUMUX_DISABLE", Reader::kLibrary, Kind::kAny, "", 0, 0, ""},
    {"GPUMUX_CONNECT_TIMEOUT", Reader::kLibrary, Kind::kTime, "", 0, 0, ""},
    {"GPUMUX_ON_DAEMON_LOSS", Reader::kLibrary, Kind::kWords, "wait ungated", 0, 0, ""},
    {"GPUMUX_LOG", Reader::kLibrary, Kind::kAny, "", 0, 0, ""},
    {"GPUMUX_LOG_LEVEL", Reader::kDaemon, Kind::kWords, "debug info warning error", 0, 0, ""},
    {"GPUMUX_NAME", Reader::kLibrary, Kind::kName, "", 0, 0, ""},
    {"GPUMUX_GANG", Reader::kLibrary, Kind::kName, "", 0, 0, ""},
    {"GPUMUX_RUN_ID", Reader::kLibrary, Kind::kName, "", 0, 0, ""},
    {"GPUMUX_MEM_LIMIT", Reader::kLibrary, Kind::kBytes, "", 0, 0, ""},
    {"GPUMUX_PRIORITY", Reader::kLibrary, Kind::kPriority, "", 0, 0, ""},
    {"GPUMUX_SHARE", Reader::kLibrary, Kind::kShare, "", 0, 0, ""},
    {"GPUMUX_MAX_SHARE", Reader::kLibrary, Kind::kMaxShare, "", 0, 0, ""},
    {"GPUMUX_PAGING", Reader::kLibrary, Kind::kWords, "on off", 0, 0, ""},
    {"GPUMUX_MEMORY", Reader::kLibrary, Kind::kWords, "managed", 0, 0, ""},
    {"GPUMUX_VERIFY", Reader::kLibrary, Kind::kAny, "", 0, 0, ""},
    {"CUDA_OVERRIDE_KERNEL_N_SYNC", Reader::kLibrary, Kind::kNumber, "", 0, 1u << 30, ""},
    {"CUDA_OVERRIDE_MAX_SYNC_MS", Reader::kLibrary, Kind::kMilliseconds, "", 0, 0, ""},
    {"CUDA_OVERRIDE_ALWAYS_LOCK", Reader::kLibrary, Kind::kNumber, "", 0, 1u << 30, ""},
    {"CUDA_OVERRIDE_SYNC_LOCK_SKIPS", Reader::kLibrary, Kind::kNumber, "", 0, 1u << 30, ""},
    {"GPUMUX_HOST_MEMORY", Reader::kDaemon, Kind::kAny, "", 0, 0, ""},
    {"GPUMUX_MODE", Reader::kDaemon, Kind::kSetting, "mode", 0, 0, ""},
    {"GPUMUX_AUTO_BY_GAIN", Reader::kDaemon, Kind::kSetting, "auto_by_gain", 0, 0, ""},
    {"GPUMUX_RESERVE", Reader::kDaemon, Kind::kSetting, "reserve", 0, 0, ""},
    {"GPUMUX_POLICY", Reader::kDaemon, Kind::kSetting, "policy", 0, 0, ""},
    {"GPUMUX_QUANTUM", Reader::kDaemon, Kind::kSetting, "quantum", 0, 0, ""},
    {"GPUMUX_MAX_RUNTIME", Reader::kDaemon, Kind::kSetting, "max_runtime", 0, 0, ""},
    {"GPUMUX_IDLE_HOLD", Reader::kDaemon, Kind::kSetting, "idle_hold", 0, 0, ""},
    {"GPUMUX_IN_FLIGHT", Reader::kDaemon, Kind::kSetting, "in_flight", 0, 0, ""},
    {"GPUMUX_TIME_SLICE", Reader::kDaemon, Kind::kSetting, "time_slice", 0, 0, ""},
    {"GPUMUX_STALL_TIMEOUT", Reader::kDaemon, Kind::kSetting, "stall_timeout", 0, 0, ""},
    {"GPUMUX_STALL_RETRY", Reader::kDaemon, Kind::kSetting, "stall_retry", 0, 0, ""},
    {"GPUMUX_ON_STALL", Reader::kDaemon, Kind::kSetting, "on_stall", 0, 0, ""},
    {"GPUMUX_KILL_STALLED_AFTER", Reader::kDaemon, Kind::kSetting, "kill_stalled_after", 0, 0, ""},
    {"GPUMUX_STEP_DELAY", Reader::kDaemon, Kind::kSetting, "step_delay", 0, 0, ""},
    {"GPUMUX_GANG_AGEING", Reader::kDaemon, Kind::kSetting, "gang_ageing", 0, 0, ""},
    {"GPUMUX_PRIORITY_AGEING", Reader::kDaemon, Kind::kSetting, "priority_ageing", 0, 0, ""},
    {"GPUMUX_SILENCE_LIMIT", Reader::kDaemon, Kind::kSetting, "silence_limit", 0, 0, ""},
    {"GPUMUX_KILL_SILENT_AFTER", Reader::kDaemon, Kind::kSetting, "kill_silent_after", 0, 0, ""},
    {"GPUMUX_OVERLAP", Reader::kDaemon, Kind::kWords, "true false", 0, 0, ""},
    {"GPUMUX_HAND_OVER", Reader::kDaemon, Kind::kWords, "true false", 0, 0, ""},
    {"GPUMUX_STATE_DIR", Reader::kDaemon, Kind::kAny, "", 0, 0, ""},
    {"GPUMUX_QUEUE_ORDER", Reader::kDaemon, Kind::kWords, "fair fifo", 0, 0, ""},
    {"GPUMUX_QUEUE_HALF_LIFE", Reader::kDaemon, Kind::kAny, "", 0, 0, ""},
    {"GPUMUX_QUEUE_DEFAULT_MEM", Reader::kDaemon, Kind::kAny, "", 0, 0, ""},
    {"GPUMUX_QUEUE_OVERSUBSCRIBE", Reader::kDaemon, Kind::kAny, "", 0, 0, ""},
    {"GPUMUX_QUEUE_MAX_JOB_TIME", Reader::kDaemon, Kind::kAny, "", 0, 0, ""},
    {"GPUMUX_QUEUE_PREEMPT", Reader::kDaemon, Kind::kWords, "true false", 0, 0, ""},
    {"GPUMUX_QUEUE_PRIVACY", Reader::kDaemon, Kind::kWords, "open limited own", 0, 0, ""},
    {"GPUMUX_QUEUE_MAX_RUNNING", Reader::kDaemon, Kind::kAny, "", 0, 0, ""},
    {"GPUMUX_QUEUE_MAX_QUEUED", Reader::kDaemon, Kind::kAny, "", 0, 0, ""},
    {"GPUMUX_QUEUE_MAX_BYTES", Reader::kDaemon, Kind::kAny, "", 0, 0, ""},
    {"GPUMUX_QUEUE_MAX_GPUS", Reader::kDaemon, Kind::kAny, "", 0, 0, ""},
    {"GPUMUX_QUEUE_PRIORITY_CAP", Reader::kDaemon, Kind::kAny, "", 0, 0, ""},
    {"GPUMUX_QUEUE_CANCEL_GRACE", Reader::kDaemon, Kind::kAny, "", 0, 0, ""},
    {"GPUMUX_QUEUE_SUSPEND_PATIENCE", Reader::kDaemon, Kind::kAny, "", 0, 0, ""},
    {"GPUMUX_QUEUE_HISTORY", Reader::kDaemon, Kind::kAny, "", 0, 0, ""},
    {"GPUMUX_QUEUE_MAX_HISTORY", Reader::kDaemon, Kind::kAny, "", 0, 0, ""},
    {"GPUMUX_JOB_ID", Reader::kNobody, Kind::kAny, "", 0, 0, ""},
    {"GPUMUX_ARRAY_ID", Reader::kNobody, Kind::kAny, "", 0, 0, ""},
    {"GPUMUX_ARRAY_INDEX", Reader::kNobody, Kind::kAny, "", 0, 0, ""},
    {"NVSHARE_SCHEDULING_MODE", Reader::kDaemon, Kind::kSetting, "mode", 0, 0, "GPUMUX_MODE"},
    {"NVSHARE_MAX_RUNTIME_SEC", Reader::kDaemon, Kind::kNumber, "", 10, 86400, "GPUMUX_MAX_RUNTIME"},
    {"NVSHARE_ENABLE_SINGLE_OVERSUB", Reader::kLibrary, Kind::kAny, "", 0, 0, "GPUMUX_MEMORY"},
    {"NVSHARE_DEBUG", Reader::kDaemon, Kind::kAny, "", 0, 0, "GPUMUX_LOG_LEVEL"},
    {"NVSHARE_VIRTUAL_DEVICES", Reader::kNobody, Kind::kNumber, "", 1, 65536, ""},
}};

// The simulated driver's variables are its own business (sim/cuda has their table).
constexpr std::string_view kSimulatorPrefix = "GPUMUX_SIM_";

bool is_word(std::string_view words, std::string_view value) {
  return !value.empty() && value.find(' ') == std::string_view::npos &&
         (" " + std::string(words) + " ").find(" " + std::string(value) + " ") != std::string::npos;
}

template <class Parsed>
std::string why_not(const Parsed& parsed) {
  return parsed ? std::string() : parsed.error().message();
}

// Why `value` will not do; empty: it will.
std::string complaint(const Variable& variable, const std::string& value) {
  switch (variable.kind) {
    case Kind::kAny: return {};
    case Kind::kSetting: {
      for (const SettingRule& rule : setting_rules()) {
        if (rule.name == variable.allowed && !check_setting(rule.name, value))
          return "it must be " + std::string(rule.allowed);
      }
      return {};
    }
    case Kind::kWords: {
      if (is_word(variable.allowed, value)) return {};
      std::string words(variable.allowed);
      for (std::size_t at = 0; (at = words.find(' ', at)) != std::string::npos; at += 2) words.replace(at, 1, ", ");
      return "it must be one of " + words;
    }
    case Kind::kTime:
      return base::parse_duration(value, std::chrono::seconds(1))
                 ? ""
                 : "it must be a time such as 10s, 500ms, or a number of seconds";
    case Kind::kMilliseconds:
      return base::parse_duration(value, std::chrono::milliseconds(1)) ? "" : "it must be a number of milliseconds";
    case Kind::kBytes: {
      const auto bytes = base::parse_bytes(value, 1);
      return bytes && *bytes > 0 ? "" : "it must be a number of bytes such as 20G";
    }
    case Kind::kPriority: return why_not(base::parse_priority(value));
    case Kind::kShare: return why_not(base::parse_share(value));
    case Kind::kMaxShare: return why_not(base::parse_max_share(value));
    case Kind::kNumber:
      return base::parse_integer(value, variable.minimum, variable.maximum)
                 ? ""
                 : "it must be a whole number from " + std::to_string(variable.minimum) + " to " +
                       std::to_string(variable.maximum);
    case Kind::kPath:
      return value.front() == '/' ? "" : "it must be an absolute path: programs run in different directories";
    case Kind::kName:
      return value.size() < base::kMaxNameBytes
                 ? ""
                 : "it must be shorter than " + std::to_string(base::kMaxNameBytes) + " bytes";
  }
  return {};
}

std::string what_the_reader_does(Reader reader) {
  switch (reader) {
    case Reader::kLibrary: return "programs ignore it and use the default";
    case Reader::kDaemon: return "a daemon that is started with it refuses to start";
    case Reader::kCommand: return "gpumux refuses it";
    case Reader::kNobody: return "nothing in this version reads it";
  }
  return {};
}

void check_known(const Variable& variable, const std::string& value, const Facts& facts, Findings& findings) {
  const std::string name(variable.name);
  const bool is_grave = variable.reader == Reader::kDaemon || variable.reader == Reader::kCommand;
  const std::string why = complaint(variable, value);
  if (why.empty() && variable.reader == Reader::kNobody) {
    findings.push_back({"environment", Level::kWarning, name + " is set, and has no effect",
                        what_the_reader_does(variable.reader), "unset it, unless it is there for another system"});
  }
  if (!why.empty()) {
    findings.push_back({"environment", is_grave ? Level::kProblem : Level::kWarning, name + "=" + value + ": " + why,
                        what_the_reader_does(variable.reader), "correct it, or unset " + name});
  }
  const auto own = facts.environment.find(std::string(variable.own_name));
  if (own != facts.environment.end() && !own->second.empty()) {
    findings.push_back({"environment", Level::kWarning,
                        name + " and " + std::string(variable.own_name) + " are both set",
                        std::string(variable.own_name) + " wins", "unset " + name});
  }
  if (variable.name == "GPUMUX_DISABLE" && value != "0") {
    findings.push_back({"environment", Level::kWarning, "GPUMUX_DISABLE=" + value,
                        "the library stands aside: programs run without gpumux", "unset GPUMUX_DISABLE"});
  }
}

}  // namespace

void check_environment(const Facts& facts, Findings& findings) {
  const std::size_t before = findings.size();
  std::vector<std::string_view> names;
  for (const Variable& variable : kVariables) names.push_back(variable.name);
  for (const auto& [name, value] : facts.environment) {
    if (value.empty()) continue;  // counts as unset
    const auto* known =
        std::find_if(kVariables.begin(), kVariables.end(), [&](const Variable& v) { return v.name == name; });
    if (known != kVariables.end()) {
      check_known(*known, value, facts, findings);
      continue;
    }
    const bool ours = name.starts_with("GPUMUX_") || name.starts_with("NVSHARE_") || name.starts_with("CUDA_OVERRIDE_");
    if (!ours || name.starts_with(kSimulatorPrefix)) continue;
    const std::string_view guess = nearest(name, names);
    findings.push_back({"environment", Level::kWarning, "nothing reads " + name,
                        "it is misspelt, or of another version",
                        guess.empty() ? "unset it" : "did you mean " + std::string(guess) + "?"});
  }
  if (findings.size() == before) findings.push_back({"environment", Level::kOk, "no variable has a bad value", "", ""});
}

}  // namespace gpumux::cli
