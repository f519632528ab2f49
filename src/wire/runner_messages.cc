// SPDX-License-Identifier: Apache-2.0
#include "wire/runner_messages.h"

#include "wire/decode.h"

namespace gpumux::wire {
namespace {

struct Checks : Unchecked {
  using Unchecked::known;
  using Unchecked::tidy;

  static void tidy(Begin& m) { terminate(m.directory); }
  static void tidy(RunnerEnded& m) { terminate(m.text); }
  static void tidy(RunnerRefused& m) { terminate(m.text); }

  static bool known(const Begin& m) { return m.directory[0] == '/'; }
  static bool known(const Terminate& m) { return within(m.reason, EndReason::kCancelled, EndReason::kDaemon); }
  static bool known(const Signal& m) { return m.number >= 1 && m.number <= kMaxSignal; }
  static bool known(const RunnerState& m) {
    return within(m.phase, RunnerPhase::kStarting, RunnerPhase::kEnded) &&
           within(m.suspension, Suspension::kNone, Suspension::kFailed);
  }
  static bool known(const RunnerEnded& m) {
    return within(m.how, EndHow::kExited, EndHow::kSetupFailed) &&
           within(m.reason, EndReason::kNone, EndReason::kDaemon);
  }
};

}  // namespace

base::Result<ToRunner> decode_to_runner(std::span<const std::byte> bytes) {
  return decode<Checks>(bytes, static_cast<const ToRunner*>(nullptr));
}

base::Result<FromRunner> decode_from_runner(std::span<const std::byte> bytes) {
  return decode<Checks>(bytes, static_cast<const FromRunner*>(nullptr));
}

}  // namespace gpumux::wire
