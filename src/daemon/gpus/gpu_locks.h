// SPDX-License-Identifier: Apache-2.0
// The locks of all GPUs of the machine. It takes the locks of this daemon's GPUs, and tells other processes which
// daemon serves a GPU. It also takes a GPU that another daemon gives up.
//
// Owned by the loop's thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "base/ids.h"
#include "base/result.h"
#include "daemon/gpus/gpu_lock.h"
#include "daemon/gpus/leases.h"
#include "daemon/peers/closer.h"

namespace gpumux::daemon {

class GpuLocks {
 public:
  struct Events {
    // Another daemon has given up a GPU, and this one has its lock now.
    std::function<void(base::GpuIndex)> gained;
    // Root's daemon takes over. This daemon has given up all locks.
    std::function<void(base::GpuIndex, const LockOwner& roots)> overruled;
  };
  // `runtime_dir` is told to processes that ask. `leases` is told which GPUs another process claims.
  GpuLocks(boost::asio::io_context& io, Leases& leases, Closer& closer, std::string runtime_dir, std::string folder,
           bool is_private, Events events);
  GpuLocks(const GpuLocks&) = delete;
  GpuLocks& operator=(const GpuLocks&) = delete;

  // At start, for each GPU by index. kExists says for people which daemon has the GPU. May ask that daemon, and wait.
  base::Status take(const std::string& uuid);
  // The daemon that has the first GPU that could not be taken, as far as that is known.
  const std::optional<LockOwner>& other() const { return other_; }
  // The next GPU by index is not this daemon's to serve.
  void leave_out(const std::string& uuid);
  // A private daemon gave way at one of the GPUs: its tenants come.
  bool has_taken_over() const;

  // For a GPU that `leases` knows: says which process claims the GPU of this daemon, root's, all the same.
  void report_squatter(base::GpuIndex gpu);
  // Takes what has become free. Never waits: it does not ask which daemon has the rest.
  void retry();
  void give_up();

 private:
  struct Gpu {
    Gpu(boost::asio::io_context& io, LockRequest of, bool is_wanted)
        : request(std::move(of)), wanted(is_wanted), waiter(io), pause(io) {}
    LockRequest request;
    bool wanted;
    std::optional<GpuLock> lock;
    boost::asio::posix::stream_descriptor waiter;  // of a copy of the lock's descriptor
    boost::asio::steady_timer pause;               // while the closer has too many visitors
  };
  Gpu& add(const std::string& uuid, bool wanted);
  void hold(base::GpuIndex gpu, GpuLock lock);
  void answer(base::GpuIndex gpu);

  boost::asio::io_context& io_;
  Leases& leases_;
  Closer& closer_;
  const std::string runtime_dir_;
  const std::string folder_;
  const bool is_private_;
  const Events events_;
  std::deque<Gpu> gpus_;
  std::optional<LockOwner> other_;
};

}  // namespace gpumux::daemon
