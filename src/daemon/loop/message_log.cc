// SPDX-License-Identifier: Apache-2.0
#include "daemon/loop/message_log.h"

namespace gpumux::daemon {

std::string_view name_of(wire::Type type) {
  using wire::Type;
  switch (type) {
    case Type::kHello: return "Hello";
    case Type::kSeatOpen: return "SeatOpen";
    case Type::kSeatClose: return "SeatClose";
    case Type::kRequest: return "Request";
    case Type::kRevokeSeen: return "RevokeSeen";
    case Type::kGateClosed: return "GateClosed";
    case Type::kDrained: return "Drained";
    case Type::kStepped: return "Stepped";
    case Type::kGangJoin: return "GangJoin";
    case Type::kNote: return "Note";
    case Type::kIdling: return "Idling";
    case Type::kMemory: return "Memory";
    case Type::kRoomWanted: return "RoomWanted";
    case Type::kHostWanted: return "HostWanted";
    case Type::kHostReturned: return "HostReturned";
    case Type::kHostForgotten: return "HostForgotten";
    case Type::kMeasured: return "Measured";
    case Type::kFrameGiven: return "FrameGiven";
    case Type::kFrameFreed: return "FrameFreed";
    case Type::kFrameWanted: return "FrameWanted";
    case Type::kMpsAsked: return "MpsAsked";
    case Type::kWelcome: return "Welcome";
    case Type::kRefused: return "Refused";
    case Type::kSeatOpened: return "SeatOpened";
    case Type::kSeatRefused: return "SeatRefused";
    case Type::kRevoke: return "Revoke";
    case Type::kReopen: return "Reopen";
    case Type::kStep: return "Step";
    case Type::kContention: return "Contention";
    case Type::kRoom: return "Room";
    case Type::kHostLent: return "HostLent";
    case Type::kHostSpare: return "HostSpare";
    case Type::kPrepareSwapOut: return "PrepareSwapOut";
    case Type::kHostForget: return "HostForget";
    case Type::kMeasure: return "Measure";
    case Type::kFrameLent: return "FrameLent";
    case Type::kMpsAnswered: return "MpsAnswered";
  }
  return "unknown";
}

void write_line(std::string_view sentence, const MessageLine& line) {
  const auto text = [](const auto& number) { return number ? std::to_string(*number) : std::string("-"); };
  log_debug(sentence, {{"tenant", line.tenant.value},
                       {"pid", line.pid},
                       {"message", name_of(line.type)},
                       {"slot", text(line.slot)},
                       {"epoch", text(line.epoch)}});
}

}  // namespace gpumux::daemon
