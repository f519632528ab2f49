// SPDX-License-Identifier: Apache-2.0
// Physical memory that one seat gives to others through the daemon, and is lent by it (docs/decisions/0015).
//
//     evicted --give--> FrameGiven      FrameLent --on_lent--> at hand --take--> restored into --give, freed--> ...
//                                                                 \--drop--> FrameFreed
//
// Frames that are lent and not used keep memory from every seat. So a seat drops all of them if it has nothing to
// restore, must give memory up, or lacks that memory in another form. Frames are known by the number that the daemon
// has given them. Frames of a daemon that is gone are memory like any other, until they are freed.
//
//   The agent's thread: on_*. The mover's: the functions of pager::Frames, drop, tell_freed. Any: freed, descriptor.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/lock.h"
#include "os/file_descriptor.h"
#include "os/kept_descriptor.h"
#include "pager/frames.h"
#include "wire/messages.h"

namespace gpumux::shim {

class SeatFrames final : public pager::Frames {
 public:
  // The way to the daemon; false: it cannot be reached now.
  struct Port {
    virtual bool give_frame(const wire::FrameGiven& frame, int fd) = 0;
    virtual bool freed_frame(const wire::FrameFreed& frame) = 0;
    virtual bool ask_for_frame(const wire::FrameWanted& frame) = 0;
    // Makes the mover call tell_freed.
    virtual void wake_mover() = 0;

   protected:
    ~Port() = default;
  };

  SeatFrames(Port& port, std::uint32_t slot) : port_(port), slot_(slot) {}
  ~SeatFrames() { close_all(); }
  SeatFrames(const SeatFrames&) = delete;
  SeatFrames& operator=(const SeatFrames&) = delete;

  // pager::Frames. Numbers are the daemon's, and in their highest bits which daemon's.
  bool wants(std::uint64_t number, std::uint64_t bytes) override;
  void give(std::uint64_t number, std::uint64_t bytes, int fd) override;
  base::FrameSizes at_hand() override;
  std::optional<Lent> take(std::uint64_t bytes) override;
  // The mover tells the daemon: the thread that frees may hold any lock.
  void freed(std::uint64_t number) override;
  // Waits for the daemon's answer, or its end.
  int descriptor(std::uint64_t number) override;

  // Lent frames that are not used go back.
  void drop() override;
  // Tells the daemon which frames were freed, up to what a busy daemon has room for. False: call it again.
  bool tell_freed();

  // From the daemon.
  void on_lent(const wire::FrameLent& message, os::FileDescriptor frame);
  // A newer bound. A lower bound takes back what was lent ahead of it.
  void on_room(const wire::Room& room);
  // The connection is lost, and with it what its daemon knew.
  void on_lost();

  // Closes the frames that are lent and not used, and says nothing. Also in a forked child, in which no thread holds
  // the mutex: the parent's frames must not live as long as the child.
  void close_all();

 private:
  struct AtHand {
    // A forked child reads it without the mutex. So it changes only inside base::NoFork.
    os::KeptDescriptor fd;
    std::uint64_t number = 0;
    std::uint64_t bytes = 0;  // 0: there is none
  };
  // More than a restoration gets ahead by. Frames beyond that go back.
  static constexpr std::size_t kMostAtHand = 64;
  // One thread asks for one descriptor at a time; the others wait for it.
  struct Asked {
    std::uint64_t number = 0;  // 0: no thread asks
    bool answered = false;
    os::FileDescriptor fd;
  };
  std::uint64_t tagged(std::uint64_t number) const { return daemon_.load() * wire::kFrameNumbers + number; }
  AtHand* find_at_hand(std::uint64_t bytes) GPUMUX_REQUIRES(mutex_);
  bool is_current(std::uint64_t number) const { return number / wire::kFrameNumbers == daemon_.load(); }

  Port& port_;
  const std::uint32_t slot_;
  std::atomic<base::FrameSizes> wanted_{0};
  std::uint64_t room_ = 0;                // the agent's
  std::atomic<std::uint64_t> daemon_{1};  // counts daemons, up to what fits next to a frame's number
  base::Mutex mutex_;
  std::array<AtHand, kMostAtHand> at_hand_ GPUMUX_GUARDED_BY(mutex_);
  std::vector<std::uint64_t> freed_ GPUMUX_GUARDED_BY(mutex_);
  Asked asked_ GPUMUX_GUARDED_BY(mutex_);
};

}  // namespace gpumux::shim
