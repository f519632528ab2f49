// SPDX-License-Identifier: Apache-2.0
// The node's mover (docs/decisions/0039) is a process. The daemon starts it for the first seat that is to be connected,
// borrows host memory for it as for a tenant, and keeps the books. So a mover that is started again knows all content
// that the last one has saved.
//
// On the loop's thread.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "daemon/tenants/host_memory.h"
#include "os/file_descriptor.h"
#include "wire/mover_messages.h"

namespace gpumux::daemon {

class NodeMover {
 public:
  // Its name among tenants that borrow host memory. No tenant has it.
  static constexpr base::TenantId kBorrower{~std::uint64_t{0}};

  // `program`: e.g. /usr/libexec/gpumux/gpumux-mover.
  NodeMover(boost::asio::io_context& io, HostMemory& host, std::string program);
  ~NodeMover();
  NodeMover(const NodeMover&) = delete;
  NodeMover& operator=(const NodeMover&) = delete;

  // Another one is started after its end: every seat needs another connection.
  void on_restarted(std::function<void()> callback) { on_restarted_ = std::move(callback); }

  // A seat of a process. It has its content even if its connection to the daemon ends and comes back.
  struct Seat {
    pid_t pid = 0;
    std::uint64_t process_start = 0;  // process_info.h; 0: not known
    std::uint32_t slot = 0;
    auto operator<=>(const Seat&) const = default;
  };
  // The seat's end of a new connection. None: it cannot be started now, which the log says.
  os::FileDescriptor connect(const Seat& seat, const base::GpuUuid& gpu);
  // Whether it has been connected, and may have content.
  bool knows(const Seat& seat);
  // The seat is closed.
  void closed(const Seat& seat);
  // The process's connection to the daemon has ended. Its content goes when the process has ended.
  void left(const Seat& seat, os::FileDescriptor process);
  // About once a second.
  void look();
  // Host memory for it (HostMemory::on_lent).
  void lent(const HostLoan& loan, int fd);

 private:
  struct Unsent {
    std::vector<std::byte> bytes;
    int lent = -1;  // a descriptor of the host memory's
    os::FileDescriptor own;
  };

  bool start();
  void lost(std::string_view why);
  void restart();
  void forget(std::map<Seat, std::uint64_t>::iterator seat);
  void hear();
  void wait_read();
  void wait_write();
  void flush();
  template <class Message>
  void send(const Message& message, int lent = -1, os::FileDescriptor own = {});
  void send_chunk(std::uint64_t number, std::uint64_t loan);
  void on(const wire::MoverHostWanted& wanted);
  void on(const wire::MoverHostReturned& returned);
  bool has_ended();

  boost::asio::io_context& io_;
  HostMemory& host_;
  const std::string program_;
  std::function<void()> on_restarted_ = [] {};
  os::FileDescriptor books_;
  std::uint32_t slots_ = 0;
  std::map<std::uint64_t, std::uint64_t> loans_;  // by the chunk's number in the books
  boost::asio::posix::stream_descriptor socket_;
  boost::asio::steady_timer again_;
  std::deque<Unsent> unsent_;
  pid_t process_ = 0;  // 0: none
  bool is_pausing_ = false;
  std::uint64_t last_number_ = 0;
  std::map<Seat, std::uint64_t> numbers_;    // of seats that may have content
  std::map<Seat, os::FileDescriptor> left_;  // of these, whose connection has ended: pidfds
};

}  // namespace gpumux::daemon
