// SPDX-License-Identifier: Apache-2.0
// The tenant's side of the lease protocol: one thread that keeps a connection to the daemon, and what the daemon says
// handed on.
//
//   start -> connecting --Welcome--> connected --connection lost--> lost --Welcome--> connected ...
//               |  \--Refused------> ended: on_ungated
//               \--timeout---------> ended: on_ungated
//
// Nothing that opens a gate needs this thread: grants come through the lease page. The thread never calls the driver,
// so it answers whatever the GPU does. A port's functions are called on it, except where noted; they must not block.
#pragma once

#include <atomic>
#include <string>
#include <type_traits>

#include "base/clock.h"
#include "base/lock.h"
#include "base/result.h"
#include "os/kept_descriptor.h"
#include "os/thread.h"
#include "wire/messages.h"

namespace gpumux::client {

class LeasePageMemory;

// The calls by which the agent tells its owner of events.
class SeatPort {
 public:
  virtual void on_connected(const wire::Welcome& welcome, bool again) = 0;
  // After on_connected and after each wake: announce the seats that the daemon does not know yet, with
  // Agent::Announcement.
  virtual void announce_seats() = 0;
  // `fd`: the descriptor that came with it, if one did.
  virtual void on_message(const wire::DaemonMessage& message, os::FileDescriptor fd) = 0;
  // About once a second, while there is a connection.
  virtual void on_second() = 0;
  // The program has closed, or replaced, a descriptor of the library's: `what`. It was opened anew.
  virtual void on_closed_by_program(const std::string& what) = 0;
  // The connection is lost; the agent tries again by itself.
  virtual void on_lost() = 0;
  // There is no daemon, or it does not want us: the agent has ended. `why` is for people.
  virtual void on_ungated(const std::string& why) = 0;

 protected:
  ~SeatPort() = default;
};

struct AgentOptions {
  std::string socket_path;           // empty: looked for anew at each try (os::find_runtime_dir)
  base::Duration connect_timeout{};  // for the first connection; later ones are tried for ever
  wire::Hello hello;
  const LeasePageMemory* page = nullptr;  // stays the owner's
};

class Agent {
 public:
  Agent(AgentOptions options, SeatPort& port);
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;
  // Agents in programs live as long as the process. In tests: stops the thread and waits for it.
  ~Agent();

  // Starts the thread, with all signals blocked.
  base::Status start();

  // Any thread. False: not sent. If the daemon reads too slowly, a message may not fit. A Request, Note or FrameFreed
  // is then dropped, for it can be made again. Any other message breaks the connection off. The next connection begins
  // with the seats' state at that time.
  template <class Message>
  bool send(const Message& message) {
    const Announcement locked(*this);
    return send_locked(wire::encode(message).bytes(), kMayBeLost<Message>);
  }

  // Holds back all other sends while it lives, so that no message speaks of a seat before it is announced.
  class GPUMUX_SCOPED_CAPABILITY Announcement {
   public:
    explicit Announcement(Agent& agent) GPUMUX_ACQUIRE(agent.send_mutex_) : locked_(agent.send_mutex_), agent_(agent) {}
    ~Announcement() GPUMUX_RELEASE() {}
    // With `fd`, which stays the caller's (negative: none).
    template <class Message>
    bool send(const Message& message, int fd = -1) GPUMUX_NO_THREAD_SAFETY_ANALYSIS {  // it holds the lock
      return agent_.send_locked(wire::encode(message).bytes(), kMayBeLost<Message>, fd);
    }

   private:
    const base::Locked locked_;
    Agent& agent_;
  };

  // Any thread: makes the agent call announce_seats.
  void wake();

  // In a forked child: closes the descriptors that belong to the parent's connection. The object is not used again.
  void close_after_fork();

 private:
  template <class Message>
  static constexpr bool kMayBeLost = std::is_same_v<Message, wire::Request> || std::is_same_v<Message, wire::Note> ||
                                     std::is_same_v<Message, wire::FrameFreed>;

  void run();
  bool connect_once();
  bool await_welcome();
  void serve();
  void pause(base::Duration duration);
  bool keep_wake();
  void clear_wake();
  bool send_locked(std::span<const std::byte> bytes, bool may_be_lost, int fd = -1) GPUMUX_REQUIRES(send_mutex_);
  void disconnect();

  const AgentOptions options_;
  SeatPort& port_;
  os::Thread thread_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> connected_{false};
  bool was_connected_ = false;
  std::string refusal_;  // why the daemon does not want us, or cannot be seen, for ever
  std::string last_failure_;
  std::string closed_;  // by the program: to be said on the next connection
  // Two sockets: an eventfd cannot be told from another one (os/kept_descriptor.h), and a pipe that the program has
  // closed on one side would end it by SIGPIPE. Both are changed by the agent's thread only.
  os::KeptDescriptor wake_reader_;
  base::Mutex wake_mutex_;
  os::KeptDescriptor wake_writer_;  // changed under wake_mutex_
  base::Mutex send_mutex_;
  os::KeptDescriptor socket_;  // changed under send_mutex_, by the agent's thread only
};

}  // namespace gpumux::client
