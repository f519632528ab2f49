// SPDX-License-Identifier: Apache-2.0
// Host memory for one seat's evicted data: the daemon's, lent chunk by chunk (files), handed to the pager in pieces.
//
// The pager takes what is here; it never waits. So host memory that it will need is asked for ahead (want). If the
// daemon cannot give it at once, it is asked again after a while. Memory that the pager has given back stays here until
// the daemon recalls it: the next switch will want it.
//
// Memory that goes back to the daemon is *kept*: mapped without any rights, and registered with the driver. So it costs
// nothing when the daemon lends it to this seat again. Other seats may have it in between. It is unmapped when the
// daemon says so (HostForget), or is gone.
//
//     kLent <--HostLent without memory-- kKept --HostForget, connection lost, keep_nothing--> kVain --> unmapped
//     kLent --give_up------------------> kKept
//     kLent --connection lost----------> kOrphan --give_up--> unmapped
//
// The agent's thread calls on_*, which only leave a message. The mover takes the messages, and has the chunks alone.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/lock.h"
#include "os/file_descriptor.h"
#include "os/kept_descriptor.h"
#include "pager/copier/host_memory.h"
#include "wire/messages.h"

namespace gpumux::shim {

class HostLender final : public pager::HostMemory {
 public:
  // The way to the daemon; false: it cannot be reached now.
  struct Port {
    virtual bool ask_for_host(std::uint32_t slot, std::uint64_t bytes) = 0;
    virtual void return_host(std::uint64_t id, bool kept) = 0;
    virtual void forgot_host(std::uint32_t slot) = 0;
    // Memory that is about to be unmapped may be registered with the driver.
    virtual void unregister_host(std::uint32_t slot, const std::byte* address, std::uint64_t bytes) = 0;

   protected:
    ~Port() = default;
  };

  HostLender(Port& port, std::uint32_t slot) : port_(port), slot_(slot) {}
  ~HostLender() override;
  HostLender(const HostLender&) = delete;
  HostLender& operator=(const HostLender&) = delete;

  // pager::HostMemory
  std::optional<pager::HostChunk> lend(std::uint64_t bytes) override;
  void give_back(const pager::HostChunk& chunk) override;

  // Asks the daemon for enough that `bytes` are here in addition to the pager's, and maps what has come. Cheap, and
  // does nothing more if it has been asked already.
  void want(std::uint64_t bytes);

  // Unused chunks go back to the daemon until `bytes` bytes have; returns how many.
  std::uint64_t give_up(std::uint64_t bytes);

  // Unmaps one chunk in kVain. False: there is none.
  bool forget_one();
  // From now on nothing is kept: kept chunks become kVain, and forget_one gives up unused ones.
  void keep_nothing();
  bool has_any() const { return !chunks_.empty(); }

  // From the daemon. No bytes: it has none now. No memory: it is kept here.
  void on_lent(const wire::HostLent& message, os::FileDescriptor memory);
  void on_forget(const wire::HostForget& message);
  // The connection is lost: what was asked for gets no answer, and what was lent is this seat's alone.
  void on_lost();

  // Bytes that are here and not with the pager.
  std::uint64_t unused_bytes() const;
  // Of these, bytes that can go back to the daemon: chunks of which nothing is used.
  std::uint64_t whole_unused_bytes() const;

  // Null, or what is wrong with the chunks. For tests.
  const char* check() const;

 private:
  enum class State : std::uint8_t {
    kLent,    // the daemon has lent it
    kOrphan,  // the same, but that daemon is gone: it is this seat's alone
    kKept,    // the daemon has it again, and may lend it by its number
    kVain,    // it was kept, and is not lent again: forget_one unmaps it
  };
  struct Chunk {
    std::uint64_t id = 0;
    State state = State::kLent;
    std::byte* address = nullptr;
    std::uint64_t bytes = 0;
    std::vector<std::byte*> free;  // pieces

    bool is_usable() const { return state <= State::kOrphan; }
    std::size_t pieces() const;
    bool is_whole() const { return is_usable() && free.size() == pieces(); }
  };
  using Chunks = std::vector<Chunk>;
  // Messages that the agent's thread leaves for the mover.
  struct Arrived {
    wire::HostLent lent;
    bool has_memory = false;    // it came with a descriptor
    os::KeptDescriptor memory;  // until the mover maps it
  };
  struct Lost {};
  using Message = std::variant<Arrived, wire::HostForget, Lost>;

  void take_messages();
  void take(const Arrived& arrived);
  void take(const wire::HostForget& forget);
  void take(Lost);
  bool map(const Arrived& arrived);
  bool lend_again(std::uint64_t id);
  Chunks::iterator find(State state, std::optional<std::uint64_t> id = std::nullopt);
  void unmap(Chunks::iterator chunk);
  void ask(std::uint64_t missing);

  Port& port_;
  const std::uint32_t slot_;
  mutable base::Mutex mutex_;
  std::vector<Message> inbox_ GPUMUX_GUARDED_BY(mutex_);  // in the order in which they came
  std::vector<std::uint64_t> asked_
      GPUMUX_GUARDED_BY(mutex_);  // bytes of each question without an answer, in their order
  base::TimePoint refused_until_ GPUMUX_GUARDED_BY(mutex_){};
  Chunks chunks_;                 // the mover's
  bool keeps_nothing_ = false;    // the mover's
  bool asked_to_forget_ = false;  // the mover's: the daemon waits to hear that no chunk is in kVain
};

}  // namespace gpumux::shim
