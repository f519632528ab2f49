// SPDX-License-Identifier: Apache-2.0
// The messages between a tenant and the daemon.
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
//   GateClosed          ------------------>                      nothing more reaches the GPU; work may still run
//   Drained             ------------------>                      nothing runs: drained or frozen. Unasked: a release
// Memory (docs/memory.md): the daemon says how much a seat may have on the GPU, and the seat goes there.
//                       <------------------  Room                its new bound
//   Memory              ------------------>                      its memory, whenever the daemon or a person needs it
//   RoomWanted          ------------------>                      a thread's allocation needs more; answered by Room
//                       <------------------  MoverOpened + socket the seat's connection to the node's mover
//   MoverWanted         ------------------>                      that connection is lost; answered by another one
//                       <------------------  PrepareSwapOut      a revocation is near: managed memory leaves
// Measuring programs (daemon/gpus/gain.h):
//                       <------------------  Measure             how much has the seat submitted so far?
//   Measured            ------------------>                      this much
// Before the program initialises the driver (docs/how-to/mps.md):
//   MpsAsked            ------------------>  (only if Welcome says that it is answered)
//                       <------------------  MpsAnswered         when the server is ready
//
// Versions: a struct only ever grows at its end, and what is new there means "as before" when zero. A receiver fills up
// a shorter message from an older peer with zeros, and ignores the part that a newer peer has added. A message shorter
// than its first version's length (kMinimumBytes) is a protocol error. A change that this cannot express raises
// kProtocolVersion.
//
// Trust: the daemon takes every byte of a tenant's message as hostile. A tenant's identity comes from SO_PEERCRED,
// never from here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

#include "base/frame_sizes.h"
#include "base/limits.h"
#include "base/result.h"
#include "wire/encode.h"
#include "wire/message_types.h"
#include "wire/retired_messages.h"

namespace gpumux::wire {

inline constexpr std::uint32_t kProtocolVersion = 1;
inline constexpr std::uint32_t kOldestProtocolVersion = 1;

// ---- tenant to daemon -------------------------------------------------------------------------------------

enum class OnDaemonLoss : std::uint32_t { kWait = 0, kUngated = 1 };

// First message; carries the lease page's descriptor.
struct Hello {
  static constexpr Type kType = Type::kHello;
  static constexpr std::size_t kMinimumBytes = 248;
  std::uint32_t protocol = 0;         // the sender's kProtocolVersion
  std::uint32_t oldest_protocol = 0;  // the oldest that it speaks
  std::uint32_t gang_world = 0;       // processes of `gang` that use GPUs of this machine; 0: not known
  std::uint32_t pid_here = 0;         // the sender's pid in its own namespace: for messages to people only
  char program[base::kMaxNameBytes] = {};
  char gang[base::kMaxNameBytes] = {};  // empty: none. The daemon keeps users' gangs apart, whatever they are called
  char version[16] = {};                // of the library
  // The most device memory that the process tree of one run may have allocated on each GPU; 0: no limit. Processes of
  // one user with the same `run` have it together; without a name, this process has it for itself.
  std::uint64_t memory_limit = 0;
  char run[base::kMaxNameBytes] = {};
  // How it asks to stand among others (base/standing.h). More than the default (priority 0, one share) needs the right
  // to change settings.
  std::int32_t priority = 0;
  std::uint32_t share = 0;      // hundredths; 0: one share
  std::uint32_t max_share = 0;  // thousandths; 0: no cap
  std::uint32_t flags = 0;      // kEndsOwnTurns, kCanFreeze, kKnowsMover
};
static_assert(sizeof(Hello) == 248);
// It wants exclusive turns, gives each up itself (shim/tenant/lock_modes.h), and waits in order of arrival: no quantum
// is for it.
inline constexpr std::uint32_t kEndsOwnTurns = 1u << 0;
// It knows Revoke::freeze_after_ns. If the driver does not freeze, a note says so (kUninterruptible).
inline constexpr std::uint32_t kCanFreeze = 1u << 1;
// It knows MoverOpened.
inline constexpr std::uint32_t kKnowsMover = 1u << 2;

// The state of the lease that a reconnecting tenant still has, so that a new daemon can rebuild its own state.
enum class SeatState : std::uint32_t { kNone = 0, kWaiting = 1, kHolding = 2, kDraining = 3 };

struct SeatOpen {
  static constexpr Type kType = Type::kSeatOpen;
  static constexpr std::size_t kMinimumBytes = 40;
  std::uint32_t slot = 0;  // chosen by the tenant, below kMaxSeatsPerTenant, not in use
  SeatState state = SeatState::kNone;
  std::uint64_t epoch = 0;      // of the lease that it holds or drains
  std::uint32_t exclusive = 0;  // whether that lease is exclusive
  std::uint32_t has_mover = 0;  // 1: it is connected to a mover, which has its content
  std::uint8_t gpu_uuid[16] = {};
};

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

// Answers to Revoke. They name the epoch that they speak of; another one than the current one is ignored.
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
  // 1: its work stands still in the middle, and goes on with the next grant, which it asks for. Or if its memory must
  // leave: then it drains.
  std::uint32_t frozen = 0;
  std::uint32_t reserved = 0;
};

// The answer of libraries before this one to a Step. It has no meaning now.
struct Stepped {
  static constexpr Type kType = Type::kStepped;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint32_t slot = 0;
  std::uint32_t count = 0;
  std::uint64_t epoch = 0;
};

// The seat is idle, another seat waits, and its idle hold has begun. It will be released at the end of that, unless it
// finds work again. Only a hint: the daemon can wake the next holders before.
struct Idling {
  static constexpr Type kType = Type::kIdling;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
  std::uint64_t epoch = 0;
};

// Why device memory is not the pager's. All but kManaged must stay where it is.
enum class Unpageable : std::uint32_t {
  kExported = 0,    // other processes reach it, or may
  kImported = 1,    // another process's
  kRegistered = 2,  // with a network card (RDMA)
  kMapped = 3,      // the program's own virtual-memory calls, where they cannot be followed
  kPool = 4,        // stream-ordered pools, where they are left to the driver
  kGraph = 5,       // memory nodes of graphs
  kArray = 6,
  kManaged = 7,  // unified: its pages go where the driver wants them
  kOther = 8,    // GPUMUX_PAGING=off, and whatever else the driver was asked for
};
inline constexpr std::size_t kUnpageableReasons = 9;

// A seat's memory, all in bytes unless named otherwise. Sent when the seat has taken note of a new bound
// (`room_sequence`), has less memory on the GPU, or has finished a pager's job. Otherwise it is sent for people, at
// most some times a second. The daemon believes it up to the GPU's own bounds.
struct Memory {
  static constexpr Type kType = Type::kMemory;
  static constexpr std::size_t kMinimumBytes = 200;
  std::uint32_t slot = 0;
  std::uint32_t room_sequence = 0;                    // the newest Room that is in force
  std::uint64_t epoch = 0;                            // of the lease that the seat holds; 0: none
  std::uint64_t allocated = 0;                        // that the program has asked for and not freed, pageable or not
  std::uint64_t resident = 0;                         // pageable, on the GPU; includes memory that is kept for reuse
  std::uint64_t evicted = 0;                          // pageable, not on the GPU. Zero: its work may run
  std::uint64_t unpageable[kUnpageableReasons] = {};  // on the GPU; of kManaged, wherever its pages are
  std::uint64_t host_used = 0;                        // of the host memory that it has been lent
  std::uint64_t host_clean = 0;                       // of that, copies of memory that is on the GPU too
  // Since it began.
  std::uint64_t moved_out = 0;
  std::uint64_t moved_in = 0;
  std::uint64_t saved_clean = 0;
  std::uint64_t saved_constant = 0;
  std::uint32_t flags = 0;  // kMemoryBusy, kMemoryStuck
  std::uint32_t reserved = 0;
  std::uint64_t managed_away = 0;  // of unpageable[kManaged], moved to the host by the seat, and not back
  std::uint64_t handed_over = 0;   // since it began: restored into frames
  base::FrameSizes frames = 0;     // always 0: the mover keeps frames now
  // Of unpageable[kOther]: room that the driver has refused to the seat. The seat has no memory there.
  std::uint64_t hidden = 0;
};
static_assert(sizeof(Memory) == 200);
inline constexpr std::uint32_t kMemoryBusy = 1u << 0;   // a job of the pager's is under way
inline constexpr std::uint32_t kMemoryStuck = 1u << 1;  // it cannot give up the memory that Room takes from it

// A thread of the program's wants memory beyond its bounds and waits for the answer: the first Room whose `ticket` is
// not older.
struct RoomWanted {
  static constexpr Type kType = Type::kRoomWanted;
  static constexpr std::size_t kMinimumBytes = 32;
  std::uint32_t slot = 0;
  std::uint32_t ticket = 0;      // grows; never 0
  std::uint64_t room = 0;        // on the GPU in all, with its present memory; 0: as it is
  std::uint64_t commitment = 0;  // allocated in all; 0: as it is
  std::uint64_t managed = 0;     // of `commitment`, unified memory: that need not fit on the GPU
  std::uint32_t again = 0;       // 1: the daemon has refused an earlier wish of the same call
  std::uint32_t reserved = 0;
};

// Answers Measure: how much work the seat has submitted since its process began, in whatever unit, which never changes.
// It is compared with the same seat's words at other times only.
struct Measured {
  static constexpr Type kType = Type::kMeasured;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint32_t slot = 0;
  std::uint32_t question = 0;  // the Measure's
  std::uint64_t submissions = 0;
};

// This process's seats belong together from now on, for it uses peers or collectives. They also belong together with
// those of all processes of the same user that joined the same key. An empty key: only this process's own seats.
struct GangJoin {
  static constexpr Type kType = Type::kGangJoin;
  static constexpr std::size_t kMinimumBytes = 64;
  char key[base::kMaxNameBytes] = {};
};

// Asks whether the process should be a client of MPS. Answered by MpsAnswered, unless `server` names the server that
// the process was told already. Then it is that server's client, and a new daemon learns it.
struct MpsAsked {
  static constexpr Type kType = Type::kMpsAsked;
  static constexpr std::size_t kMinimumBytes = 528;
  std::uint32_t is_wanted = 0;          // 1: by the program's own setting; 0: as its GPUs are set
  std::uint32_t server = 0;             // 0: none yet
  std::uint32_t thread_percentage = 0;  // that it was told with the server
  std::uint32_t reserved = 0;
  char visible_gpus[512] = {};  // CUDA_VISIBLE_DEVICES; empty: all. A longer value is cut off
};
static_assert(sizeof(MpsAsked) == 528);

enum class Severity : std::uint32_t { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };
enum class NoteKind : std::uint32_t {
  kText = 0,             // a line for the log
  kUnknownEntry = 1,     // the name of a driver entry that went past the library: counted, shown by `gpumux doctor`
  kUninterruptible = 2,  // why the process's work cannot be frozen: revoked, it drains
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
  // As the daemon's owner configured; the tenant's own setting wins.
  OnDaemonLoss on_daemon_loss = OnDaemonLoss::kWait;
  std::uint64_t tenant = 0;
  char version[16] = {};          // of the daemon
  std::uint32_t answers_mps = 0;  // 1: MpsAsked is answered
  std::uint32_t reserved = 0;
};
static_assert(sizeof(Welcome) == 40);

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

// The page says "not granted" already. An epoch older than the slot's is ignored: that lease has been released since.
struct Revoke {
  static constexpr Type kType = Type::kRevoke;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
  std::uint64_t epoch = 0;
  // Work that has not finished so long after this message is frozen, if the driver can do that. 0: it drains, however
  // long that takes.
  std::uint64_t freeze_after_ns = 0;
};

// Sent by daemons before this one: the page says "granted" again, under a new epoch, although the seat has not drained.
// This daemon says so by the page alone.
struct Reopen {
  static constexpr Type kType = Type::kReopen;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
  std::uint64_t epoch = 0;
};

// Sent by daemons before this one: the page has permits, each for one submission through the closed gate. This library
// makes none, and its work then runs on after the daemon's stall_timeout.
struct Step {
  static constexpr Type kType = Type::kStep;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
  std::uint64_t epoch = 0;
};

// Another seat waits for the GPU that this seat holds, or none does any more. While another seat waits, an idle holder
// releases. Also sent when one of the times changes.
struct Contention {
  static constexpr Type kType = Type::kContention;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint32_t slot = 0;
  std::uint32_t contended = 0;
  std::uint64_t idle_hold_ns = 0;  // how long the seat may stay idle before it releases; over an hour: without end
  std::uint64_t in_flight_ns = 0;  // the most work that it may have queued; 0: any
  // Always 0: the driver's time slice. Libraries of earlier releases set the slice that this says.
  std::uint64_t time_slice_ns = 0;
};

// Why a wish was refused (Room::refused). kNothingComes: waiting longer is of no use. kTooMuch: that amount cannot come
// while things stay as they are, and less may.
inline constexpr std::uint32_t kNothingComes = 1;
inline constexpr std::uint32_t kTooMuch = 2;

// How much the seat may have on the GPU, pageable and not, in bytes; and how much it may have allocated in all. The
// seat goes there by itself. Above its room, it evicts as soon as it is drained. Below it, it restores evicted memory,
// whether it holds a lease or not. A holder that has more than its room keeps its memory, and gets no more.
struct Room {
  static constexpr Type kType = Type::kRoom;
  static constexpr std::size_t kMinimumBytes = 56;
  std::uint32_t slot = 0;
  std::uint32_t sequence = 0;  // grows; never 0
  std::uint64_t room = 0;
  std::uint64_t commitment = 0;
  std::uint64_t total = 0;        // the memory of the GPU as the program sees it: the GPU's own, or the quota
  std::uint32_t ticket = 0;       // the newest RoomWanted that this answers; 0: none yet
  std::uint32_t refused = 0;      // that one got less than it wanted: kNothingComes or kTooMuch; 0: it was not refused
  base::FrameSizes frames = 0;    // always 0: the mover keeps frames now
  std::uint32_t is_limited = 0;   // 1: `commitment` is within a quota, which binds all of the program's memory
  std::uint32_t is_stranded = 0;  // 1: evicted memory cannot come back while all that is on the GPU stays there
  std::uint64_t most = 0;         // the most that it could have allocated in all as things are now; 0: not said
};
static_assert(sizeof(Room) == 64);

// The seat holds a lease that will be revoked soon. The next holder will want `managed` bytes of the room that its
// managed memory takes. Only a hint.
struct PrepareSwapOut {
  static constexpr Type kType = Type::kPrepareSwapOut;
  static constexpr std::size_t kMinimumBytes = 24;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
  std::uint64_t epoch = 0;
  std::uint64_t bytes = 0;  // always 0: only managed memory leaves ahead
  std::uint64_t managed = 0;
};

// The tenant answers with Measured, at once.
struct Measure {
  static constexpr Type kType = Type::kMeasure;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint32_t slot = 0;
  std::uint32_t question = 0;
};

// The MPS server whose client the process is, from now until it ends.
struct MpsAnswered {
  static constexpr Type kType = Type::kMpsAnswered;
  static constexpr std::size_t kMinimumBytes = 248;
  std::uint32_t server = 0;             // 0: none, and `why` may say why
  std::uint32_t thread_percentage = 0;  // of the GPU's threads that it may use at most; 100: all
  char pipe_directory[112] = {};        // CUDA_MPS_PIPE_DIRECTORY
  char why[128] = {};                   // for people; empty: MPS was not asked for
};
static_assert(sizeof(MpsAnswered) == 248);

// The seat's connection to the mover is lost, e.g. because the program has closed its descriptor. Without a mover the
// daemon does not answer: every seat gets a connection when one serves again.
struct MoverWanted {
  static constexpr Type kType = Type::kMoverWanted;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint32_t slot = 0;
  std::uint32_t number = 0;  // MoverOpened's; if the daemon has given a newer one since, it does not answer
};

using TenantMessage = std::variant<Hello, SeatOpen, SeatClose, Request, RevokeSeen, GateClosed, Drained, Stepped,
                                   GangJoin, Note, Idling, Memory, RoomWanted, HostWanted, HostReturned, HostForgotten,
                                   Measured, FrameGiven, FrameFreed, FrameWanted, MpsAsked, MoverWanted>;
inline constexpr std::uint64_t kFrameNumbers = std::uint64_t{1} << 48;

// Carries the seat's end of a connection to the node's mover (wire/mover_messages.h). An earlier one is of no use any
// more.
struct MoverOpened {
  static constexpr Type kType = Type::kMoverOpened;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint32_t slot = 0;
  std::uint32_t number = 0;  // of the connection; grows
};

using DaemonMessage =
    std::variant<Welcome, Refused, SeatOpened, SeatRefused, Revoke, Reopen, Step, Contention, Room, HostLent,
                 HostForget, HostSpare, PrepareSwapOut, Measure, FrameLent, MpsAnswered, MoverOpened>;

// ---- codec ------------------------------------------------------------------------------------------------

// Reads what one side received. Any bytes at all are safe to pass. Text fields come back with a terminating zero;
// enumerations that this version does not know are kProtocol.
base::Result<TenantMessage> decode_from_tenant(std::span<const std::byte> bytes);
base::Result<DaemonMessage> decode_from_daemon(std::span<const std::byte> bytes);

}  // namespace gpumux::wire
