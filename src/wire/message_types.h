// SPDX-License-Identifier: Apache-2.0
// The numbers of the messages between a tenant and the daemon (wire/messages.h).
#pragma once

#include <cstdint>

namespace gpumux::wire {

enum class Type : std::uint32_t {
  kHello = 1,
  kSeatOpen = 2,
  kSeatClose = 3,
  kRequest = 4,
  kRevokeSeen = 5,
  kGateClosed = 6,
  kDrained = 7,
  kStepped = 8,
  kGangJoin = 9,
  kNote = 10,
  kIdling = 11,
  kMemory = 12,
  kRoomWanted = 13,
  kHostWanted = 14,
  kHostReturned = 15,
  kHostForgotten = 16,
  kMeasured = 17,
  kFrameGiven = 18,
  kFrameFreed = 19,
  kFrameWanted = 20,
  kMpsAsked = 21,
  kMoverWanted = 22,

  kWelcome = 64,
  kRefused = 65,
  kSeatOpened = 66,
  kSeatRefused = 67,
  kRevoke = 68,
  kReopen = 69,
  kStep = 70,
  kContention = 71,
  kRoom = 72,
  kHostLent = 73,
  kHostSpare = 74,
  kPrepareSwapOut = 75,
  kHostForget = 76,
  kMeasure = 77,
  kFrameLent = 78,
  kMpsAnswered = 79,
  kMoverOpened = 80,
};

}  // namespace gpumux::wire
