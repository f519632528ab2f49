// SPDX-License-Identifier: Apache-2.0
// Moves the content of one GPU's memory for all seats of that GPU.
//
//   a Save or Load comes -> queued -> its memory is imported and mapped here -> copied -> let go -> answered
//                             ^---- there is no host memory: let go, and tried again after a while
//
// The memory of a chunk that is saved stays mapped if a seat of the same trust domain has a chunk of that size in host
// memory (frames.h). A Load without memory goes into such a frame. So nothing is mapped for it here, and the driver
// scrubs nothing.
//
// Each direction is served seat by seat in turn, and a seat's messages in the order in which they came. A few chunks of
// each direction are mapped at once, so that the bus is never idle. A seat that does not read its answers is not heard
// until it does.
//
// One thread owns a worker and steps it. Books and slots of host memory are other GPUs' workers', too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_set>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "cuda/driver.gen.h"
#include "mover/books.h"
#include "mover/copier/copier.h"
#include "mover/frames.h"
#include "mover/mapping.h"
#include "os/file_descriptor.h"
#include "wire/mover_messages.h"

namespace gpumux::mover {

class Worker {
 public:
  // Mapped at once, for each direction. Four copies are under way at once (Copier::kCopiesInFlight); the others
  // are being hashed, or wait. A guess.
  static constexpr std::size_t kMostMapped = 8;
  // Messages of one seat that are not answered. Beyond that it is not heard.
  static constexpr std::size_t kMostUnanswered = 64;
  // Messages of one seat that are heard in one step. Then the others have their turn.
  static constexpr int kMostHeard = 64;
  // A doorkeeper that does not say for so long whether a seat is there has lost all seats of its account: their copies
  // hold up those of others. A guess; on a busy machine an answer takes milliseconds.
  static constexpr base::Duration kPresencePatience = std::chrono::seconds(5);
  // Messages of all seats that wait. Each has a descriptor.
  static constexpr std::size_t kMostQueued = 512;

  Worker(const cuda::Driver& driver, cuda::CUdevice device, HostSlots& host, Books& books);
  // Waits for the copies that are under way.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // A seat of this GPU's, and its connection. With `presence` that is a relay of its account's doorkeeper
  // (Doors::Connection).
  void add(SeatNumber seat, os::FileDescriptor connection, Domain domain = 0, os::FileDescriptor presence = {},
           std::uint64_t account = 0);
  // The seat's process has ended, and its content in host memory is of no use.
  void remove(SeatNumber seat);
  // From now on the seat has at most so many bytes of host memory: a Save beyond that waits. Without this it has no
  // bound.
  void bound(SeatNumber seat, std::uint64_t most) { bounds_[seat].most = most; }
  // Hears the seats and goes on with what is under way, without waiting. How long `wait` may wait; nothing: until a
  // seat says something.
  std::optional<base::Duration> step(base::TimePoint now);
  // Until a connection has something for `step`, `most` is over, or `wake` can be read.
  void wait(std::optional<base::Duration> most, int wake = -1);

  std::size_t seats() const { return seats_.size(); }
  // The frames that it keeps, or has offered to keep.
  std::size_t frames() const { return frames_.size(); }
  // The driver answers everything in this context with an error, or does not take a seat's memory back from it. Nothing
  // but the end of the process helps.
  bool is_broken() const { return is_broken_; }

 private:
  struct Unsent {
    std::vector<std::byte> bytes;
    os::FileDescriptor memory;
  };
  struct Seat {
    SeatNumber number = 0;
    os::FileDescriptor connection;
    os::FileDescriptor presence;  // none: the connection is the seat's own
    std::uint64_t account = 0;
    std::uint64_t asked = 0;  // whether it is there, so many times; and until then it was
    std::uint64_t was_there = 0;
    Domain domain = 0;
    Away away;
    // The slots that it has named, until it has named all.
    struct NamesSome {
      std::vector<bool> slots;
    };
    struct HasNamedAll {};
    std::variant<NamesSome, HasNamedAll> names;
    std::size_t unanswered = 0;
    std::uint64_t saved_at = 0;  // when its last Save began, by Worker::turn_; the next one for Loads
    std::uint64_t loaded_at = 0;
    std::uint64_t& turn(bool is_load) { return is_load ? loaded_at : saved_at; }
    std::deque<Unsent> unsent;
    bool is_gone = false;
  };
  // One chunk on its way.
  struct Operation {
    enum class Kind : std::uint8_t {
      kSave,
      kSaveToKeep,  // the mover may keep the memory
      kLoad,
      kLoadIntoFrame,  // the memory is the seat's when it is loaded
    };
    bool is_load() const { return kind >= Kind::kLoad; }

    Seat* seat = nullptr;
    std::uint64_t ticket = 0;
    std::uint64_t chunk = 0;
    Kind kind = Kind::kSave;
    bool verifies = false;
    bool is_cancelled = false;
    os::FileDescriptor memory;  // while it is not mapped
    std::optional<Mapping> mapping;
    std::vector<wire::MoverBlock> said;  // what its message says of the content
    bool is_short = false;               // there was no host memory for it, and its seat knows
    // From begin() on.
    Content content;
    std::vector<std::uint32_t> named;  // the slots that it may work with
    std::uint64_t may_take = 0;        // bytes of host memory that are set aside for it (may_take)
    std::uint64_t asked = 0;           // since it was copied: the question whether its seat is there; 0: none
    base::TimePoint asked_at{};
    std::variant<std::monostate, Copier::Saving, Copier::Loading> copying;
    Owner owner(std::size_t block) const { return {seat->number, chunk, static_cast<std::uint32_t>(block)}; }
    std::uint64_t bytes() const { return said.size() * kBlockBytes; }
  };

  // `used`: at least as much as the seat has, but for its operations that are under way.
  struct Bound {
    std::uint64_t most = 0;
    std::uint64_t used = 0;
    base::TimePoint counted_at{};
  };

  void hear(Seat& seat);
  void on(Seat& seat, const wire::MoverSave& save, std::span<const wire::MoverBlock> blocks, os::FileDescriptor memory);
  void on(Seat& seat, const wire::MoverLoad& load, std::span<const wire::MoverBlock> blocks, os::FileDescriptor memory);
  void on(Seat& seat, const wire::MoverForget& forget, std::span<const wire::MoverBlock> blocks,
          os::FileDescriptor memory);
  void on(Seat& seat, const wire::MoverNames& names, std::span<const wire::MoverBlock> blocks,
          os::FileDescriptor memory);
  void on(Seat& seat, const wire::MoverCancel& cancel, std::span<const wire::MoverBlock> blocks,
          os::FileDescriptor memory);
  void on(Seat& seat, const wire::MoverGiven& given, std::span<const wire::MoverBlock> blocks,
          os::FileDescriptor memory);
  void on(Seat& seat, const wire::MoverMakeWay& need, std::span<const wire::MoverBlock> blocks,
          os::FileDescriptor memory);
  static Operation& add_to(std::deque<Operation>& list, Seat& seat, Operation::Kind kind, std::uint64_t ticket,
                           std::uint64_t chunk, std::span<const wire::MoverBlock> blocks);
  void match_asks();
  bool take_content(Operation& operation);
  void end(Operation& operation, bool is_on_gpu);
  cuda::CUresult open();
  static void let_go(Operation& operation);
  std::deque<Operation>::iterator next_queued(bool is_load);
  bool is_awaited(const Operation& saved) const;
  bool moves(Domain domain) const;
  enum class Presence : std::uint8_t {
    kAsked,  // and not answered
    kThere,
    kGone,
  };
  Presence presence(Operation& copied);
  static void hear_presence(Seat& seat);
  void begin_next(bool is_load);
  bool begin(Operation& operation);
  void advance_all(base::TimePoint now);
  void forget_removed();
  void release_unnamed(SeatNumber seat, const std::vector<bool>& named);
  void reclaim(std::size_t slots);
  bool may_take(Operation& save);
  std::uint32_t number_of(const HostSlot& slot) const;
  HostSlot slot_of(std::uint32_t number) const;
  enum class Then : std::uint8_t {
    kGoOn,
    kAgain,        // there is no host memory
    kBeyondBound,  // the same, for this seat
    kOver,
  };
  Then advance(Operation& operation);
  Then advance_save(Operation& operation, Copier::Saving& saving);
  Then advance_load(Operation& operation, Copier::Loading& loading);
  void answer(Operation& operation, wire::MoverResult result, cuda::CUresult error = cuda::CUDA_SUCCESS);
  void send(Seat& seat, std::span<const std::byte> bytes, os::FileDescriptor memory = {});
  void flush(Seat& seat);

  const cuda::Driver& driver_;
  const cuda::CUdevice device_;
  HostSlots& host_;
  Books& books_;
  Copier copier_;
  cuda::CUresult open_failed_ = cuda::CUDA_SUCCESS;
  base::TimePoint open_again_at_{};
  bool is_broken_ = false;
  std::list<Seat> seats_;  // the next one that is heard first
  std::uint64_t turn_ = 0;
  std::deque<Operation> asked_;   // loads into frames that were heard in this step
  std::deque<Operation> asking_;  // in the step before
  std::deque<Operation> queued_;
  std::list<Operation> mapped_;
  std::deque<Operation> short_;  // wait for host memory
  Frames frames_;
  base::TimePoint try_short_at_{};
  std::uint32_t reclaimed_at_ = 0;
  std::map<SeatNumber, Bound> bounds_;
  base::TimePoint now_{};                  // of this step
  std::vector<SeatNumber> removed_;        // their content goes when nothing works with it
  std::unordered_set<SeatNumber> owners_;  // seats that may have content
  std::vector<bool> busy_;                 // slots that an operation works with; no other message of the seat's may
  alignas(8) std::byte buffer_[wire::kMostMoverBytes];
};

// The books follow the slots.
class BookKeeper final : public SlotBooks {
 public:
  explicit BookKeeper(Books& books) : books_(books) {}
  void writing(const HostSlot& slot) override;
  void given(const HostSlot& slot) override;

 private:
  Books& books_;
};

// A chunk of host memory that an earlier mover had, with the slots that the books say are in use. False: the books have
// no room for it, or it is not usable.
bool adopt(HostSlots& host, Books& books, const HostChunk& chunk);

}  // namespace gpumux::mover
