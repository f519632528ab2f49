// SPDX-License-Identifier: Apache-2.0
#include "daemon/settings.h"

#include <array>

#include "base/units.h"

namespace gpumux::daemon {
namespace {

using namespace std::chrono_literals;
using base::Duration;

// The error is completed by set_setting, which knows the setting's name and what is allowed.
base::Status bad() { return base::fail(base::Code::kInvalid, ""); }

// A bare number has no unit that everybody would guess alike ("quantum = 50"), so none is accepted.
base::Status read_time(Duration& target, std::string_view text, Duration minimum, Duration maximum) {
  if (text.empty() || text.back() < 'a' || text.back() > 'z') return bad();
  const auto parsed = base::parse_duration(text, 1ns);
  if (!parsed || *parsed < minimum || *parsed > maximum) return bad();
  target = *parsed;
  return {};
}

base::Status read_time_or_unlimited(Duration& target, std::string_view text, Duration minimum, Duration maximum) {
  if (text == "unlimited") {
    target = sched::kUnlimited;
    return {};
  }
  return read_time(target, text, minimum, maximum);
}

std::string write_time(Duration value) {
  if (value == sched::kAutomatic) return "auto";
  if (value == sched::kUnlimited) return "unlimited";
  return base::format_duration(value);
}

// Below a millisecond a switch costs more than the work between two of them; a day is as good as for ever.
base::Status parse_quantum(GpuSettings& s, std::string_view text) {
  if (text == "auto") {
    s.quantum = sched::kAutomatic;
    return {};
  }
  return read_time_or_unlimited(s.quantum, text, 1ms, 24h);
}

base::Status parse_mode(GpuSettings& s, std::string_view text) {
  s.auto_mode = text == "auto";
  if (text == "auto") {
    s.mode = sched::Mode::kSerial;
  } else if (text == "serial") {
    s.mode = sched::Mode::kSerial;
  } else if (text == "concurrent") {
    s.mode = sched::Mode::kConcurrent;
  } else {
    return bad();
  }
  return {};
}

base::Status parse_policy(GpuSettings& s, std::string_view text) {
  if (text == "fair") {
    s.policy = sched::PolicyKind::kFair;
  } else if (text == "fifo") {
    s.policy = sched::PolicyKind::kFifo;
  } else {
    return bad();
  }
  return {};
}

std::string write_mode(const GpuSettings& s) {
  if (s.auto_mode) return "auto";
  return s.mode == sched::Mode::kSerial ? "serial" : "concurrent";
}

base::Status read_boolean(bool& target, std::string_view text) {
  if (text != "true" && text != "false") return bad();
  target = text == "true";
  return {};
}

base::Status parse_idle_hold(GpuSettings& s, std::string_view text) {
  if (text == "auto") {
    s.idle_hold = sched::kAutomatic;
    return {};
  }
  return read_time_or_unlimited(s.idle_hold, text, 0ns, 10s);
}

base::Status parse_time_slice(GpuSettings& s, std::string_view text) {
  if (text == "driver") {
    s.time_slice = sched::kDriversSlice;
    return {};
  }
  if (text == "auto") {
    s.time_slice = sched::kAutomatic;
    return {};
  }
  return read_time(s.time_slice, text, 100us, 100ms);
}

// A tebibyte is more than any GPU has.
constexpr std::uint64_t kMaxReserve = std::uint64_t{1} << 40;

base::Status parse_reserve(GpuSettings& s, std::string_view text) {
  if (text == "auto") {
    s.reserve = kAutomaticReserve;
    return {};
  }
  // Bytes have a unit as times have.
  if (text.empty() || (text.back() >= '0' && text.back() <= '9')) return bad();
  const auto parsed = base::parse_bytes(text, 1);
  if (!parsed || *parsed > kMaxReserve) return bad();
  s.reserve = *parsed;
  return {};
}

std::string write_reserve(const GpuSettings& s) {
  if (s.reserve == kAutomaticReserve) return "auto";
  constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;
  if (s.reserve % kMebibyte == 0) return std::to_string(s.reserve / kMebibyte) + "M";
  return std::to_string(s.reserve) + "B";
}

base::Status parse_on_stall(GpuSettings& s, std::string_view text) {
  if (text != "wait" && text != "gang") return bad();
  s.on_stall = text == "gang" ? sched::OnStall::kGang : sched::OnStall::kWait;
  return {};
}

constexpr std::array<SettingKey, 20> kKeys{{
    {"mode", "GPUMUX_MODE", "NVSHARE_SCHEDULING_MODE", "auto, serial or concurrent",
     "Whether tenants hold the GPU one at a time, or all at once under the driver's own time slicing; auto: "
     "whichever gives more where all their memory fits together, otherwise one at a time.",
     false, parse_mode, write_mode},
    {"auto_by_gain", "GPUMUX_AUTO_BY_GAIN", "", "true or false",
     "In mode auto, whether it is measured what gives more where all fits together; false: all at once there.", true,
     [](GpuSettings& s, std::string_view text) { return read_boolean(s.auto_by_gain, text); },
     [](const GpuSettings& s) { return std::string(s.auto_by_gain ? "true" : "false"); }},
    {"reserve", "GPUMUX_RESERVE", "", "a number of bytes with a unit, such as 512M, at most 1024G, or auto",
     "GPU memory that is kept free for contexts and whatever else the driver takes without asking.", false,
     parse_reserve, write_reserve},
    {"policy", "GPUMUX_POLICY", "", "fair or fifo",
     "Who is next: whoever has had the least GPU time, or whoever has waited longest.", false, parse_policy,
     [](const GpuSettings& s) { return std::string(s.policy == sched::PolicyKind::kFair ? "fair" : "fifo"); }},
    {"quantum", "GPUMUX_QUANTUM", "", "a time from 1ms to 24h, auto, or unlimited",
     "How long a tenant may hold the GPU while others wait; auto follows the measured cost of a switch.", false,
     parse_quantum, [](const GpuSettings& s) { return write_time(s.quantum); }},
    {"max_runtime", "GPUMUX_MAX_RUNTIME", "NVSHARE_MAX_RUNTIME_SEC", "a time from 100ms to 24h, or unlimited",
     "Nobody holds the GPU longer than this while others wait, whatever the quantum.", false,
     [](GpuSettings& s, std::string_view text) { return read_time_or_unlimited(s.max_runtime, text, 100ms, 24h); },
     [](const GpuSettings& s) { return write_time(s.max_runtime); }},
    {"idle_hold", "GPUMUX_IDLE_HOLD", "", "a time from 0us to 10s, auto, or unlimited",
     "How long an idle tenant keeps a GPU that others wait for; auto: as long as the switch would cost; unlimited: "
     "idleness never ends its turn.",
     false, parse_idle_hold, [](const GpuSettings& s) { return write_time(s.idle_hold); }},
    {"in_flight", "GPUMUX_IN_FLIGHT", "", "a time from 100us to 10s, or unlimited",
     "How much work a tenant may have queued on a GPU that others use too: that much they wait when its turn is over.",
     false, [](GpuSettings& s, std::string_view text) { return read_time_or_unlimited(s.in_flight, text, 100us, 10s); },
     [](const GpuSettings& s) { return write_time(s.in_flight); }},
    {"time_slice", "GPUMUX_TIME_SLICE", "", "driver, auto, or a time from 100us to 100ms",
     "How long the GPU runs one tenant's work before it turns to another's, where both have some; driver: as the "
     "driver "
     "has it, auto: less for a lower priority, or a time for all but those.",
     false, parse_time_slice,
     [](const GpuSettings& s) {
       return s.time_slice == sched::kDriversSlice ? std::string("driver") : write_time(s.time_slice);
     }},
    {"stall_timeout", "GPUMUX_STALL_TIMEOUT", "", "a time from 10ms to 1h",
     "A revocation whose work has not drained by then is taken back and tried again later.", false,
     [](GpuSettings& s, std::string_view text) { return read_time(s.stall_timeout, text, 10ms, 1h); },
     [](const GpuSettings& s) { return write_time(s.stall_timeout); }},
    {"stall_retry", "GPUMUX_STALL_RETRY", "", "a time from 1ms to 1m",
     "How long after that it is tried again; doubled each time, up to 64 times this.", false,
     [](GpuSettings& s, std::string_view text) { return read_time(s.stall_retry, text, 1ms, 1min); },
     [](const GpuSettings& s) { return write_time(s.stall_retry); }},
    {"on_stall", "GPUMUX_ON_STALL", "", "wait or gang",
     "What becomes of a tenant whose work does not drain: it is tried again later, or it and those of its user's "
     "programs that it may wait for are taken for one gang.",
     false, parse_on_stall,
     [](const GpuSettings& s) { return std::string(s.on_stall == sched::OnStall::kGang ? "gang" : "wait"); }},
    {"kill_stalled_after", "GPUMUX_KILL_STALLED_AFTER", "", "a time from 1s to 24h, or unlimited",
     "A tenant whose work has not drained for this long, revocation after revocation, is killed if others wait.", false,
     [](GpuSettings& s, std::string_view text) { return read_time_or_unlimited(s.kill_stalled_after, text, 1s, 24h); },
     [](const GpuSettings& s) { return write_time(s.kill_stalled_after); }},
    {"step_delay", "GPUMUX_STEP_DELAY", "", "a time from 100us to 10s",
     "How long a revoked gang may stay half drained before its members are let through a few submissions at a time.",
     false, [](GpuSettings& s, std::string_view text) { return read_time(s.step_delay, text, 100us, 10s); },
     [](const GpuSettings& s) { return write_time(s.step_delay); }},
    {"gang_ageing", "GPUMUX_GANG_AGEING", "", "a time from 0us to 1h",
     "A gang that has waited this long has its GPUs kept free for it.", false,
     [](GpuSettings& s, std::string_view text) { return read_time(s.gang_ageing, text, 0ns, 1h); },
     [](const GpuSettings& s) { return write_time(s.gang_ageing); }},
    {"priority_ageing", "GPUMUX_PRIORITY_AGEING", "", "a time from 10ms to 24h, or unlimited",
     "Who has waited this long for higher priorities goes before them for a quantum.", false,
     [](GpuSettings& s, std::string_view text) { return read_time_or_unlimited(s.priority_ageing, text, 10ms, 24h); },
     [](const GpuSettings& s) { return write_time(s.priority_ageing); }},
    {"silence_limit", "GPUMUX_SILENCE_LIMIT", "", "a time from 10ms to 1h",
     "A tenant that does not answer a revocation for this long (stopped, in a debugger) is passed over.", false,
     [](GpuSettings& s, std::string_view text) { return read_time(s.silence_limit, text, 10ms, 1h); },
     [](const GpuSettings& s) { return write_time(s.silence_limit); }},
    {"kill_silent_after", "GPUMUX_KILL_SILENT_AFTER", "", "a time from 1s to 24h, or unlimited",
     "A tenant that does not answer a revocation for this long is killed.", false,
     [](GpuSettings& s, std::string_view text) { return read_time_or_unlimited(s.kill_silent_after, text, 1s, 24h); },
     [](const GpuSettings& s) { return write_time(s.kill_silent_after); }},
    {"overlap", "GPUMUX_OVERLAP", "", "true or false",
     "Whether the next tenant starts while the last one's submitted work still finishes.", true,
     [](GpuSettings& s, std::string_view text) { return read_boolean(s.overlap, text); },
     [](const GpuSettings& s) { return std::string(s.overlap ? "true" : "false"); }},
    {"hand_over", "GPUMUX_HAND_OVER", "", "true or false",
     "Whether what one program evicts is handed over to the next one of its user, instead of being freed and scrubbed.",
     true, [](GpuSettings& s, std::string_view text) { return read_boolean(s.hand_over, text); },
     [](const GpuSettings& s) { return std::string(s.hand_over ? "true" : "false"); }},
}};

base::Status refuse(const SettingKey& key, std::string_view text, std::string_view allowed) {
  return base::fail(base::Code::kInvalid, std::string(key.name) + " cannot be '" + std::string(text.substr(0, 64)) +
                                              "': it must be " + std::string(allowed));
}

}  // namespace

std::span<const SettingKey> setting_keys() { return kKeys; }

const SettingKey* find_setting(std::string_view name) {
  for (const SettingKey& key : kKeys) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

base::Status set_setting(GpuSettings& settings, std::string_view name, std::string_view text) {
  const SettingKey* key = find_setting(name);
  if (key == nullptr) {
    return base::fail(base::Code::kInvalid, "there is no setting '" + std::string(name.substr(0, 64)) +
                                                "' (there are " + known_settings() + ")");
  }
  if (!key->parse(settings, text)) return refuse(*key, text, key->allowed);
  return {};
}

base::Status set_by_alias(GpuSettings& settings, const SettingKey& key, std::string_view text) {
  if (key.name != "max_runtime") return set_setting(settings, key.name, text);
  // nvshare counted whole seconds and took no fewer than ten.
  const auto seconds = base::parse_integer(text, 10, 86400);
  if (!seconds) return refuse(key, text, "a number of seconds from 10 to 86400");
  settings.max_runtime = std::chrono::seconds(static_cast<std::int64_t>(*seconds));
  return {};
}

std::string known_settings() {
  std::string all;
  for (const SettingKey& key : kKeys) {
    if (!all.empty()) all += ", ";
    all += key.name;
  }
  return all;
}

}  // namespace gpumux::daemon
