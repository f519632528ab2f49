// SPDX-License-Identifier: Apache-2.0
#include "wire/messages.h"

#include "wire/decode.h"

namespace gpumux::wire {
namespace {

struct Checks : Unchecked {
  using Unchecked::known;
  using Unchecked::tidy;

  static void tidy(Hello& m) {
    terminate(m.program);
    terminate(m.gang);
    terminate(m.version);
    terminate(m.run);
  }
  static void tidy(GangJoin& m) { terminate(m.key); }
  static void tidy(Note& m) { terminate(m.text); }
  static void tidy(Welcome& m) { terminate(m.version); }
  static void tidy(Refused& m) { terminate(m.text); }
  static void tidy(MpsAsked& m) { terminate(m.visible_gpus); }
  static void tidy(MpsAnswered& m) {
    terminate(m.pipe_directory);
    terminate(m.why);
  }
  static void tidy(SeatRefused& m) { terminate(m.text); }

  static bool known(const SeatOpen& m) { return within(m.state, SeatState::kNone, SeatState::kDraining); }
  static bool known(const Note& m) {
    return within(m.severity, Severity::kDebug, Severity::kError) &&
           within(m.kind, NoteKind::kText, NoteKind::kUninterruptible);
  }
  static bool known(const Welcome& m) { return within(m.on_daemon_loss, OnDaemonLoss::kWait, OnDaemonLoss::kUngated); }
  static bool known(const HostForget& m) { return m.count <= kMostForgotten; }
};

}  // namespace

base::Result<TenantMessage> decode_from_tenant(std::span<const std::byte> bytes) {
  return decode<Checks>(bytes, static_cast<const TenantMessage*>(nullptr));
}

base::Result<DaemonMessage> decode_from_daemon(std::span<const std::byte> bytes) {
  return decode<Checks>(bytes, static_cast<const DaemonMessage*>(nullptr));
}

}  // namespace gpumux::wire
