// SPDX-License-Identifier: Apache-2.0
// What a tenant and the daemon say to each other.
//
// Transport: a unix socket of whole messages (SOCK_SEQPACKET) at most kMaxMessageBytes long. Each message is a Header
// and one of the structs below, in the machine's byte order: both ends are on one machine. One direction each, in
// order; nothing is acknowledged unless it says so. The first message must be Hello, with the lease page's descriptor;
// the daemon answers Welcome or Refused.
//
//   tenant                                   daemon
//   Hello + lease page  ------------------>
//                       <------------------  Welcome
//   SeatOpen            ------------------>
//                       <------------------  SeatOpened
//   Request             ------------------>                      a thread wants to submit
//                                            (page: granted)     futex wake, no message
//                       <------------------  Revoke              (page: not granted)
//   Idling              ------------------>                      it will be released in a moment, if nothing comes up
//   RevokeSeen          ------------------>                      the agent is alive
//   GateClosed          ------------------>                      nobody inside; submitted work may still run: draining
//   Drained             ------------------>                      nothing runs: drained. Also sent unasked: a release
//
// What was revoked and does not drain:
//                       <------------------  Reopen              the lease goes on, under a new epoch (page: granted)
//                       <------------------  Step                let `permits` submissions through, then drain again
//   Stepped, Drained    ------------------>
//
// Versions: a struct only ever grows at its end, and what is new there means "as before" when zero. A receiver takes a
// shorter message from an older peer as filled up with zeros, and ignores what a newer peer has added; a message
// shorter than its first version's length (kMinimumBytes) is a protocol error. A change that this cannot express raises
// kProtocolVersion.
//
// Trust: the daemon takes every byte of a tenant's message as hostile. Who a tenant is comes from SO_PEERCRED, never
// from here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

#include "base/limits.h"
#include "base/result.h"

namespace gpumux::wire {

// 2: Idling.
inline constexpr std::uint32_t kProtocolVersion = 2;
inline constexpr std::uint32_t kOldestProtocolVersion = 1;
inline constexpr std::uint32_t kIdlingProtocol = 2;

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

  kWelcome = 64,
  kRefused = 65,
  kSeatOpened = 66,
  kSeatRefused = 67,
  kRevoke = 68,
  kReopen = 69,
  kStep = 70,
  kContention = 71,
};

struct Header {
  std::uint32_t type = 0;
  std::uint32_t bytes = 0;  // of the whole message; must equal what arrived
};
static_assert(sizeof(Header) == 8);

// ---- tenant to daemon -------------------------------------------------------------------------------------

enum class OnDaemonLoss : std::uint32_t { kWait = 0, kUngated = 1 };

// First message; carries the lease page's descriptor.
struct Hello {
  static constexpr Type kType = Type::kHello;
  static constexpr std::size_t kMinimumBytes = 160;
  std::uint32_t protocol = 0;         // the sender's kProtocolVersion
  std::uint32_t oldest_protocol = 0;  // the oldest that it speaks
  std::uint32_t gang_world = 0;       // processes of `gang` that use GPUs of this machine; 0: not known
  std::uint32_t pid_here = 0;         // the sender's pid in its own namespace: for messages to people only
  char program[base::kMaxNameBytes] = {};
  char gang[base::kMaxNameBytes] = {};  // empty: none. The daemon keeps users' gangs apart, whatever they are called
  char version[16] = {};                // of the library
};
static_assert(sizeof(Hello) == 160);

// What a tenant that reconnects still has, so that a new daemon can rebuild its state.
enum class SeatState : std::uint32_t { kNone = 0, kWaiting = 1, kHolding = 2, kDraining = 3 };

struct SeatOpen {
  static constexpr Type kType = Type::kSeatOpen;
  static constexpr std::size_t kMinimumBytes = 40;
  std::uint32_t slot = 0;  // chosen by the tenant, below kMaxSeatsPerTenant, not in use
  SeatState state = SeatState::kNone;
  std::uint64_t epoch = 0;      // of the lease that it holds or drains
  std::uint32_t exclusive = 0;  // whether that lease is exclusive
  std::uint32_t reserved = 0;
  std::uint8_t gpu_uuid[16] = {};
};
static_assert(sizeof(SeatOpen) == 40);

struct SeatClose {
  static constexpr Type kType = Type::kSeatClose;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
};

// A thread waits at the gate. Sent again harmlessly; answered by a grant in the lease page.
struct Request {
  static constexpr Type kType = Type::kRequest;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
};

// Answers to Revoke. GateClosed and Drained name the epoch they speak of; another epoch than the current one is
// ignored.
struct RevokeSeen {
  static constexpr Type kType = Type::kRevokeSeen;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
  std::uint64_t epoch = 0;
};
struct GateClosed {
  static constexpr Type kType = Type::kGateClosed;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
  std::uint64_t epoch = 0;
};
struct Drained {
  static constexpr Type kType = Type::kDrained;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint32_t slot = 0;
  std::uint32_t poisoned = 0;  // 1: drained because the context has a sticky error and can run nothing more
  std::uint64_t epoch = 0;
};

// A submission let through by Step has been made.
struct Stepped {
  static constexpr Type kType = Type::kStepped;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
  std::uint64_t epoch = 0;
};

// The seat is idle, somebody waits, and its idle hold has begun: unless it finds work again it will be released at the
// end of that. Only a hint, so that those who are to be woken then can be woken before; not sent to a daemon that does
// not speak kIdlingProtocol.
struct Idling {
  static constexpr Type kType = Type::kIdling;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
  std::uint64_t epoch = 0;
};

// This process's seats belong together from now on (it uses peers or collectives), and with everybody of the same user
// who joined the same key. An empty key: only this process's own seats.
struct GangJoin {
  static constexpr Type kType = Type::kGangJoin;
  static constexpr std::size_t kMinimumBytes = 64;
  char key[base::kMaxNameBytes] = {};
};

enum class Severity : std::uint32_t { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };
enum class NoteKind : std::uint32_t {
  kText = 0,          // a line for the log
  kUnknownEntry = 1,  // the name of a driver entry that went past the library: counted, shown by `gpumux doctor`
};

struct Note {
  static constexpr Type kType = Type::kNote;
  static constexpr std::size_t kMinimumBytes = 8 + base::kMaxNoteBytes;
  Severity severity = Severity::kInfo;
  NoteKind kind = NoteKind::kText;
  char text[base::kMaxNoteBytes] = {};
};

// ---- daemon to tenant -------------------------------------------------------------------------------------

struct Welcome {
  static constexpr Type kType = Type::kWelcome;
  static constexpr std::size_t kMinimumBytes = 32;
  std::uint32_t protocol = 0;  // the one to speak: the newest that both know
  // What the daemon's owner configured; the tenant's own setting wins.
  OnDaemonLoss on_daemon_loss = OnDaemonLoss::kWait;
  std::uint64_t tenant = 0;
  char version[16] = {};  // of the daemon
};
static_assert(sizeof(Welcome) == 32);

enum class Reason : std::uint32_t {
  kNone = 0,
  kVersion = 1,     // no protocol in common
  kLimit = 2,       // too many tenants, of this user or in all
  kDenied = 3,      // this user may not connect
  kBadPage = 4,     // the lease page is missing, of the wrong size or not sealed
  kUnknownGpu = 5,  // no GPU of this UUID is served here
  kSlotInUse = 6,
  kOwnedElsewhere = 7,  // another daemon serves this GPU
};

// The daemon closes the connection after it.
struct Refused {
  static constexpr Type kType = Type::kRefused;
  static constexpr std::size_t kMinimumBytes = 136;
  Reason reason = Reason::kNone;
  std::uint32_t reserved = 0;
  char text[128] = {};
};

struct SeatOpened {
  static constexpr Type kType = Type::kSeatOpened;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint32_t slot = 0;
  std::uint32_t gpu_index = 0;
};

// Work on this GPU is not gated by this daemon: the tenant runs ungated there and says so.
struct SeatRefused {
  static constexpr Type kType = Type::kSeatRefused;
  static constexpr std::size_t kMinimumBytes = 136;
  std::uint32_t slot = 0;
  Reason reason = Reason::kNone;
  char text[128] = {};
};

// The page says "not granted" already. An epoch older than the slot's means that the lease was released meanwhile:
// ignored.
struct Revoke {
  static constexpr Type kType = Type::kRevoke;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
  std::uint64_t epoch = 0;
};

// The revocation is taken back; the page says "granted" again, under this new epoch, which tells what is said of the
// old one apart.
struct Reopen {
  static constexpr Type kType = Type::kReopen;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
  std::uint64_t epoch = 0;
};

// The page's `permits` was raised by one: one submission may go through although the gate is closed; then drain and
// report again.
struct Step {
  static constexpr Type kType = Type::kStep;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
  std::uint64_t epoch = 0;
};

// Somebody waits for the GPU that this seat holds, or nobody does any more. While somebody waits an idle holder
// releases.
struct Contention {
  static constexpr Type kType = Type::kContention;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint32_t slot = 0;
  std::uint32_t contended = 0;
  std::uint64_t idle_hold_ns = 0;  // how long the seat may stay idle before it releases
};

using TenantMessage =
    std::variant<Hello, SeatOpen, SeatClose, Request, RevokeSeen, GateClosed, Drained, Stepped, GangJoin, Note, Idling>;
using DaemonMessage = std::variant<Welcome, Refused, SeatOpened, SeatRefused, Revoke, Reopen, Step, Contention>;

// ---- codec ------------------------------------------------------------------------------------------------

// A message as it goes on the wire.
template <class Message>
struct Encoded {
  Header header{static_cast<std::uint32_t>(Message::kType), sizeof(Encoded)};
  Message message;
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(this, 1)); }
};

template <class Message>
Encoded<Message> encode(const Message& message) {
  static_assert(sizeof(Encoded<Message>) == sizeof(Header) + sizeof(Message), "no padding between header and message");
  static_assert(sizeof(Encoded<Message>) <= base::kMaxMessageBytes);
  static_assert(Message::kMinimumBytes <= sizeof(Message));
  return Encoded<Message>{.message = message};
}

// Reads what one side received. Any bytes at all are safe to pass. Text fields come back with a terminating zero;
// enumerations outside what this version knows are kProtocol.
base::Result<TenantMessage> decode_from_tenant(std::span<const std::byte> bytes);
base::Result<DaemonMessage> decode_from_daemon(std::span<const std::byte> bytes);

// The text of a fixed field, up to its first zero.
template <std::size_t N>
std::string_view text_of(const char (&field)[N]) {
  std::size_t length = 0;
  while (length < N && field[length] != '\0') ++length;
  return {field, length};
}

// Copies as much of `text` as fits, always leaving a terminating zero.
template <std::size_t N>
void set_text(char (&field)[N], std::string_view text) {
  const std::size_t length = text.size() < N ? text.size() : N - 1;
  for (std::size_t i = 0; i < N; ++i) field[i] = i < length ? text[i] : '\0';
}

}  // namespace gpumux::wire
