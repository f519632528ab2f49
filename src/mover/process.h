// SPDX-License-Identifier: Apache-2.0
// The mover's process: what the daemon says, host memory, and a worker on a thread of its own for each GPU that has a
// seat.
//
// When its daemon is gone it goes on for the seats that it has, and listens for the next daemon, which it hands over
// all that the last one has given it. It ends when it has neither a daemon nor a seat.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "cuda/driver.gen.h"
#include "mover/books.h"
#include "mover/doors.h"
#include "mover/worker.h"
#include "os/file_descriptor.h"
#include "wire/mover_messages.h"

namespace gpumux::mover {

class Process {
 public:
  // `connection`: to the daemon.
  Process(const cuda::Driver& driver, os::FileDescriptor connection, Doors doors)
      : driver_(driver), doors_(std::move(doors)), connection_(std::move(connection)) {}
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Until there is nothing more to do. An error: the daemon says what no daemon says, or the driver has no GPU.
  base::Status run();

 private:
  struct SeatGone {
    SeatNumber seat = 0;
  };
  struct NewSeat {
    SeatNumber seat = 0;
    os::FileDescriptor relay;
    os::FileDescriptor presence;
    Domain domain = 0;
    std::uint64_t account = 0;
    std::uint64_t most = 0;
  };
  struct SeatBound {
    SeatNumber seat = 0;
    std::uint64_t most = 0;
  };
  struct Question {};  // of the daemon's
  using Mail = std::variant<NewSeat, SeatGone, SeatBound, Question>;

  // One GPU's.
  struct Gpu {
    Gpu(Process& process, cuda::CUdevice device);
    ~Gpu();
    void post(Mail mail);
    void run();

    Process& process;
    const cuda::CUdevice device;
    os::FileDescriptor wake;
    std::mutex mutex;
    std::deque<Mail> mail;              // under the mutex
    std::atomic<std::size_t> seats{0};  // that it has or will have
    std::atomic<bool> stopping{false};
    std::atomic<bool> is_asked{false};  // and has not gone on since
    std::thread thread;
  };

  // Host memory comes from the daemon, and is asked for when it runs out.
  class Lender final : public HostMemory {
   public:
    explicit Lender(Process& process) : process_(process) {}
    std::optional<HostChunk> lend() override;
    void give_back(const HostChunk& chunk) override;

   private:
    Process& process_;
  };

  // For a daemon that does not read as fast as this process writes.
  struct Unsent {
    std::vector<std::byte> bytes;
    std::shared_ptr<const os::FileDescriptor> file;
  };

  base::Status serve();
  base::Status hear();
  base::Status on(const wire::MoverDoor&, os::FileDescriptor door);
  base::Status on(const wire::MoverBooks& books, os::FileDescriptor file);
  base::Status on(const wire::MoverHost& host, os::FileDescriptor file);
  base::Status on(const wire::MoverSeat& seat, os::FileDescriptor);
  base::Status on(const wire::MoverSeatGone& gone, os::FileDescriptor);
  base::Status on(const wire::MoverBound& bound, os::FileDescriptor);
  base::Status on(const wire::MoverSeats&, os::FileDescriptor);
  base::Status on(const wire::MoverAsked&, os::FileDescriptor);
  void forget(SeatNumber seat);
  os::FileDescriptor connect(const wire::MoverSeat& seat);
  template <class Message>
  void send(const Message& message, os::FileDescriptor file = {});
  bool has_seats();
  void open_door();
  void hand_over();
  void flush();
  bool has_daemon();
  void leave_daemon();
  void look();
  bool shrink_host();

  const cuda::Driver& driver_;
  Doors doors_;
  os::FileDescriptor door_;  // where the next daemon connects
  std::mutex connection_mutex_;
  os::FileDescriptor connection_;  // under the mutex; none: the daemon is gone
  std::deque<Unsent> unsent_;      // under the mutex; empty without a daemon
  std::shared_ptr<const os::FileDescriptor> books_file_;
  std::optional<Books> books_;
  std::map<std::uint64_t, std::shared_ptr<const os::FileDescriptor>> host_files_;  // by number, under the mutex
  std::optional<BookKeeper> keeper_;
  Lender lender_{*this};
  std::optional<HostSlots> host_;
  std::atomic<std::int64_t> asked_at_{0};  // for host memory, ns
  std::vector<std::unique_ptr<Gpu>> gpus_;
  struct Known {
    Gpu* gpu = nullptr;  // null: it has had no connection to this process yet
    wire::MoverSeat seat;
  };
  std::map<SeatNumber, Known> seats_;
  std::atomic<bool> is_ending_{false};
  std::deque<std::uint64_t> used_lately_;  // the host memory in use at each look
  base::TimePoint next_look_{};
};

}  // namespace gpumux::mover
