// SPDX-License-Identifier: Apache-2.0
// Host memory for evicted data: memfds of huge pages, populated ahead of need, lent to one tenant at a time.
//
// It belongs to the daemon, and so is charged to the daemon's cgroup and not to a pod's: whoever touches a page of a
// memfd first pays for it, and that is one of our threads. A loan is always a new memfd, and one that comes back is
// closed: nobody ever sees what another one has left, whatever that one still has mapped.
//
// Populating takes a hundred times longer than a switch may wait, so chunks are ready before they are asked for: as
// many as everybody's memory together exceeds what the GPUs hold (set_demand), and a window. Somebody who asks beyond
// that is answered as soon as the next chunk is ready.
//
// Owned by the loop's thread; `pool` makes the chunks and sees nothing else of this.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "os/file_descriptor.h"

namespace gpumux::daemon {

// "64G", or "50%" of what is available. kInvalid says what is allowed.
base::Status check_host_memory(std::string_view text);
// What it comes to on this machine at this moment: of the memory that is available, within the daemon's cgroup.
std::uint64_t host_budget(std::string_view text);

inline constexpr std::string_view kDefaultHostMemory = "60%";

// A tenant that asks for more at once than it will be given waits for nothing: it asks again when it has used some.
inline constexpr std::size_t kMaxHostRequests = 64;

struct HostLoan {
  base::TenantId tenant;
  std::uint32_t slot = 0;
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;  // zero: not now
};

class HostMemory {
 public:
  // The descriptor is the callee's to send; it is closed afterwards. Must not call back.
  using OnLent = std::function<void(const HostLoan&, int fd)>;
  // So much is lacking within the budget: somebody is to give back what it does without.
  using OnShort = std::function<void(std::uint64_t bytes)>;

  HostMemory(boost::asio::io_context& loop, boost::asio::thread_pool& pool, std::uint64_t budget);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  void on_lent(OnLent callback) { on_lent_ = std::move(callback); }
  void on_short(OnShort callback) { on_short_ = std::move(callback); }

  // About so many bytes of evicted data there may be in all.
  void set_demand(std::uint64_t bytes);
  void wanted(base::TenantId tenant, std::uint32_t slot, std::uint64_t bytes);
  // An id that is not lent to this tenant is ignored.
  void returned(base::TenantId tenant, std::uint64_t id);
  void gone(base::TenantId tenant);

  std::uint64_t budget() const { return budget_; }
  std::uint64_t chunk_bytes() const { return chunk_bytes_; }
  std::uint64_t lent() const { return lent_; }
  std::uint64_t lent_to(base::TenantId tenant) const;
  std::uint64_t ready() const { return ready_.size() * chunk_bytes_; }

 private:
  struct Request {
    base::TenantId tenant;
    std::uint32_t slot = 0;
    std::uint64_t bytes = 0;
  };
  struct Alive;  // shared with the pool's jobs: cleared when this object goes

  std::uint64_t taken() const { return lent_ + (ready_.size() + making_) * chunk_bytes_; }
  void serve();
  void make_more();
  void made(base::Result<os::FileDescriptor> chunk);

  boost::asio::io_context& loop_;
  boost::asio::thread_pool& pool_;
  const std::uint64_t budget_;
  const std::uint64_t chunk_bytes_;
  OnLent on_lent_;
  OnShort on_short_;
  std::shared_ptr<Alive> alive_;
  std::uint64_t next_id_ = 0;
  std::uint64_t demand_ = 0;
  std::uint64_t lent_ = 0;
  std::size_t making_ = 0;
  bool failing_ = false;  // the machine has no memory left: not tried again before something comes back
  std::vector<os::FileDescriptor> ready_;
  std::deque<Request> requests_;
  std::unordered_map<base::TenantId, std::unordered_map<std::uint64_t, std::uint64_t>> loans_;  // bytes by id
};

}  // namespace gpumux::daemon
