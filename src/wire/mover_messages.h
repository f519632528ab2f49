// SPDX-License-Identifier: Apache-2.0
// The messages between a seat and the node's mover. The mover makes each seat's connection, and the daemon gives it to
// the seat. So nothing here says who speaks. A doorkeeper passes the messages on (mover/doors.h).
//
// Transport as in wire/messages.h: whole messages, SOCK_SEQPACKET. After the struct come `blocks` records of 8 bytes,
// one for each 2 MiB of the chunk.
//
//   seat                                     mover
//   Names + slots       ------------------>                      first, one for each chunk: what the seat still names.
//                                                                One without slots is the last: the rest goes
//   Save + memory       ------------------>                      bring this chunk's content to host memory
//   Load + memory       ------------------>                      the other way
//   Cancel              ------------------>                      of a Save: if it has not begun, it does not
//   Forget + slots      ------------------>                      not needed any more
//                       <------------------  Moved + blocks      the answer to Save and Load, in any order
//
//   Load                ------------------>                      the same into memory that the mover keeps: a frame
//                       <------------------  Moved + memory      it is the seat's from now on
//   Given               ------------------>                      the answer to a Moved that says that the mover keeps
//                                                                the memory: the seat has released it, or goes on
//   MakeWay             ------------------>                      the driver has no memory for the seat: frames go
//
// The descriptor is one of cuMemExportToShareableHandle. No work writes to a chunk between Save and Moved, and none
// touches it between Load and Moved.
//
// Frames go from seat to seat only within a trust domain, which the daemon says (MoverSeat): the giver could have kept
// a mapping.
//
// Trust: the mover takes every byte as hostile. A seat reaches host memory only by slots that are its own by the
// mover's books. The mover's answers are about the seat's own content.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <variant>

#include "base/frame_sizes.h"
#include "base/result.h"
#include "wire/header.h"

namespace gpumux::wire {

// The most of one chunk: 1 GiB.
inline constexpr std::uint32_t kMostMoverBlocks = 512;

enum class MoverType : std::uint32_t {
  kSave = 1,
  kLoad = 2,
  kForget = 3,
  kCancel = 4,
  kGiven = 5,
  kMakeWay = 6,
  kNames = 7,

  kMoved = 64,
};

struct MoverBlock {
  enum class Kind : std::uint32_t {
    kNone = 0,      // nothing is known
    kSlot = 1,      // `value`: the number of the slot of host memory that holds it
    kConstant = 2,  // `value`: the word that it consists of
  };
  Kind kind = Kind::kNone;
  std::uint32_t value = 0;
};
static_assert(sizeof(MoverBlock) == 8);

struct MoverSave {
  static constexpr MoverType kType = MoverType::kSave;
  static constexpr std::size_t kMinimumBytes = 24;
  std::uint64_t ticket = 0;  // the seat's own, as the next
  std::uint64_t chunk = 0;   // a number that it never uses for another chunk
  std::uint32_t blocks = 0;
  std::uint32_t verify = 0;  // 1: compare what is not copied, byte by byte
  // 1: the seat is to release the memory when it is saved, and no process but the seat and the mover has it. So the
  // mover may keep it.
  std::uint32_t may_keep = 0;
  std::uint32_t reserved = 0;
};

struct MoverLoad {
  static constexpr MoverType kType = MoverType::kLoad;
  static constexpr std::size_t kMinimumBytes = 24;
  std::uint64_t ticket = 0;
  std::uint64_t chunk = 0;
  std::uint32_t blocks = 0;
  std::uint32_t reserved = 0;
};

// Of all blocks of the chunk, the ones of kind kSlot.
struct MoverForget {
  static constexpr MoverType kType = MoverType::kForget;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint64_t chunk = 0;
  std::uint32_t blocks = 0;
  // 1: the GPU has the same content. So the slots are copies, and the mover may do away with them when it likes.
  std::uint32_t are_copies = 0;
};

// An answer may be lost with its connection, and a Forget, too. So each connection begins with these.
struct MoverNames {
  static constexpr MoverType kType = MoverType::kNames;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint64_t chunk = 0;
  std::uint32_t blocks = 0;      // zero: that was all, and the mover lets go of the seat's other slots
  std::uint32_t are_copies = 0;  // as in MoverForget
};

struct MoverCancel {
  static constexpr MoverType kType = MoverType::kCancel;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint64_t ticket = 0;
  std::uint32_t blocks = 0;  // none
  std::uint32_t reserved = 0;
};

struct MoverGiven {
  static constexpr MoverType kType = MoverType::kGiven;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint64_t ticket = 0;       // of the Save
  std::uint32_t blocks = 0;       // none
  std::uint32_t is_released = 0;  // 0: the memory is still the seat's, and its content counts
};

struct MoverMakeWay {
  static constexpr MoverType kType = MoverType::kMakeWay;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint64_t bytes = 0;
  std::uint32_t blocks = 0;  // none
  std::uint32_t reserved = 0;
};

enum class MoverResult : std::uint32_t {
  kDone = 0,
  kFailed = 1,   // by the driver; nothing is under way any more, and the content is where it was
  kNoHost = 2,   // not an answer yet: there is not enough host memory, and the Save waits for it
  kLost = 3,     // a block that was to be loaded is not the seat's
  kNoFrame = 4,  // of a Load without memory: the mover keeps none of that size for the seat
};

struct MoverMoved {
  static constexpr MoverType kType = MoverType::kMoved;
  static constexpr std::size_t kMinimumBytes = 48;
  std::uint64_t ticket = 0;
  MoverResult result = MoverResult::kDone;
  std::uint32_t error = 0;   // of kFailed: a CUresult
  std::uint32_t blocks = 0;  // of a Save that is done: where the content is now
  std::uint32_t wrong_hashes = 0;
  std::uint64_t copied = 0;  // bytes, as the next
  std::uint64_t clean = 0;
  std::uint64_t constant = 0;
  std::uint32_t is_kept = 0;  // of a Save: 1: the mover keeps the memory, if Given says that the seat has released it
  std::uint32_t reserved = 0;
  base::FrameSizes frames = 0;  // sizes of which the mover keeps memory for the seat's domain
};

using ToMover = std::variant<MoverSave, MoverLoad, MoverForget, MoverCancel, MoverGiven, MoverMakeWay, MoverNames>;

// ---- between the daemon and the mover that it has started
//
//   daemon                                   mover
//   MoverDoor + socket  ------------------>                      where it listens for the next daemon
//   MoverBooks + file   ------------------>                      before any other: the books of all slots
//   MoverHost + file    ------------------>                      a chunk of host memory, by its number in the books
//                       <------------------  MoverReady          it has the driver, and has handed over all that it has
//                       <------------------  MoverHostWanted
//                       <------------------  MoverHostReturned   the chunk with this number is not used any more
//   MoverSeat           ------------------>                      a seat. With `connects` the mover answers:
//                       <------------------  MoverConnected + socket  the seat's end. Without one: it cannot be now
//   MoverBound          ------------------>                      how much host memory a seat may have
//   MoverSeats          ------------------>                      all seats were named: content of others is of no use
//   MoverSeatGone       ------------------>                      its content is of no use any more
//   MoverAsked          ------------------>                      answered at once
//                       <------------------  MoverAnswered       on how many GPUs nothing has gone on since the last
//                       one
//
// The daemon keeps a descriptor of the books and of each chunk. So another mover gets all of them. A mover that has
// lost its daemon listens for the next one, and keeps the same descriptors for it:
//
//   daemon                                   mover
//                       <------------------  MoverBooks + file, MoverHost + file, MoverSeat: of each that it has
//                       <------------------  MoverReady

enum class MoverControlType : std::uint32_t {
  kBooks = 1,
  kHost = 2,
  kSeat = 3,
  kSeatGone = 4,
  kSeats = 5,
  kDoor = 6,
  kBound = 7,
  kAsked = 8,

  kHostWanted = 64,
  kHostReturned = 65,
  kReady = 66,
  kAnswered = 67,
  kConnected = 68,
};

struct MoverDoor {
  static constexpr MoverControlType kType = MoverControlType::kDoor;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint64_t reserved = 0;
};
struct MoverBooks {
  static constexpr MoverControlType kType = MoverControlType::kBooks;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint32_t slots = 0;
  std::uint32_t slots_per_chunk = 0;  // of host memory
};
struct MoverHost {
  static constexpr MoverControlType kType = MoverControlType::kHost;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint64_t number = 0;
  std::uint64_t bytes = 0;
};
struct MoverSeat {
  static constexpr MoverControlType kType = MoverControlType::kSeat;
  static constexpr std::size_t kMinimumBytes = 24;
  std::uint64_t seat = 0;
  std::uint8_t gpu_uuid[16] = {};
  // By which the daemon knows it again (daemon/tenants/node_mover.h).
  std::uint64_t process_start = 0;
  std::uint32_t pid = 0;
  std::uint32_t slot = 0;
  std::uint64_t domain = 0;  // seats of one trust domain have the same one; 0: the seat gets and gives no frames
  std::uint64_t most = 0;    // as in MoverBound
  // The key of the seat's account (server/peers/account.h): a number times 4, and 1 for a user or 2 for a container.
  std::uint64_t account = 0;
  std::uint32_t connects = 0;  // 1: the mover makes a connection for it
  std::uint32_t reserved = 0;
};
struct MoverBound {
  static constexpr MoverControlType kType = MoverControlType::kBound;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint64_t seat = 0;
  std::uint64_t most = 0;  // bytes of host memory; a Save beyond that waits
};
struct MoverSeatGone {
  static constexpr MoverControlType kType = MoverControlType::kSeatGone;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint64_t seat = 0;
};
struct MoverSeats {
  static constexpr MoverControlType kType = MoverControlType::kSeats;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint64_t reserved = 0;
};
struct MoverAsked {
  static constexpr MoverControlType kType = MoverControlType::kAsked;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint64_t reserved = 0;
};
struct MoverHostWanted {
  static constexpr MoverControlType kType = MoverControlType::kHostWanted;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint64_t bytes = 0;
};
struct MoverHostReturned {
  static constexpr MoverControlType kType = MoverControlType::kHostReturned;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint64_t number = 0;
};
struct MoverReady {
  static constexpr MoverControlType kType = MoverControlType::kReady;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint32_t answers = 0;   // 1: it knows MoverAsked
  std::uint32_t connects = 0;  // 1: it makes the seats' connections
};
struct MoverConnected {
  static constexpr MoverControlType kType = MoverControlType::kConnected;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint64_t seat = 0;
};
struct MoverAnswered {
  static constexpr MoverControlType kType = MoverControlType::kAnswered;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint32_t still_gpus = 0;          // whose threads have not gone on since the last question
  std::uint32_t ending_doorkeepers = 0;  // that have not ended yet (mover/doors.h)
};
using FromMoversDaemon =
    std::variant<MoverBooks, MoverHost, MoverSeat, MoverSeatGone, MoverSeats, MoverDoor, MoverBound, MoverAsked>;
using ToMoversDaemon = std::variant<MoverHostWanted, MoverHostReturned, MoverReady, MoverBooks, MoverHost, MoverSeat,
                                    MoverAnswered, MoverConnected>;
base::Result<FromMoversDaemon> decode_from_movers_daemon(std::span<const std::byte> bytes);
base::Result<ToMoversDaemon> decode_to_movers_daemon(std::span<const std::byte> bytes);

// ---- encoding

// A message and its blocks, in one buffer of the caller's.
// (A newer peer's structs may be longer.)
inline constexpr std::size_t kMostMoverBytes =
    sizeof(Header) + 2 * sizeof(MoverMoved) + kMostMoverBlocks * sizeof(MoverBlock);

// The struct, and its blocks as a view of `bytes`. kProtocol: it is none of these messages, or its lengths disagree.
struct ToMoverMessage {
  ToMover message;
  std::span<const MoverBlock> blocks;
};
base::Result<ToMoverMessage> decode_to_mover(std::span<const std::byte> bytes);
struct FromMoverMessage {
  MoverMoved message;
  std::span<const MoverBlock> blocks;
};
base::Result<FromMoverMessage> decode_from_mover(std::span<const std::byte> bytes);

// Writes header, struct and blocks into `buffer`, and returns that part of it. REQUIRES: at most kMostMoverBlocks, and
// as many as the message says; `buffer` has kMostMoverBytes.
template <class Message>
std::span<const std::byte> encode_for_mover(const Message& message, std::span<const MoverBlock> blocks,
                                            std::span<std::byte> buffer) {
  const std::size_t length = sizeof(Header) + sizeof message + blocks.size_bytes();
  const Header header{static_cast<std::uint32_t>(Message::kType), static_cast<std::uint32_t>(length)};
  std::memcpy(buffer.data(), &header, sizeof header);
  std::memcpy(buffer.data() + sizeof header, &message, sizeof message);
  if (!blocks.empty()) std::memcpy(buffer.data() + sizeof header + sizeof message, blocks.data(), blocks.size_bytes());
  return buffer.first(length);
}

}  // namespace gpumux::wire
