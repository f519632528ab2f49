// SPDX-License-Identifier: Apache-2.0
// Host memory for evicted data: memfds of huge pages, populated ahead of need, lent to one tenant at a time.
//
// It belongs to the daemon, and so is charged to the daemon's cgroup and not to a pod's: whoever touches a page of a
// memfd first pays for it, and that is one of our threads.
//
// Zeroed between tenants. Whoever has had a memfd may still have it mapped, so one that comes back cannot be made safe
// for somebody else by clearing it: it is closed, and a new one made. Between processes that are open to each other
// anyway (trust_domain.h) it is handed on as it is: where host memory is short, every switch hands on as much as it
// moves, and making it anew takes several times as long as the switch (2 GB/s a thread in 4 KiB pages). What a tenant
// that is gone has left is never handed on: the GPU may still be writing to it.
//
// Populating takes a hundred times longer than a switch may wait, so chunks are ready before they are asked for: as
// many as everybody's memory together exceeds what the GPUs hold (set_demand), and a window. Somebody who asks beyond
// that is answered as soon as the next chunk is ready.
//
// Short. When somebody has had to be turned away for the budget, nobody may keep what it could do without (on_short),
// until there is much less to be evicted.
//
// Owned by the loop's thread; `pool` makes and unmakes the chunks (a chunk takes 20 ms to be freed), and sees nothing
// else of this.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
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
  // Whether everybody is to give back what it could do without. Must not call back.
  using OnShort = std::function<void(bool is_short)>;

  HostMemory(boost::asio::io_context& loop, boost::asio::thread_pool& pool, std::uint64_t budget);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  void on_lent(OnLent callback) { on_lent_ = std::move(callback); }
  void on_short(OnShort callback) { on_short_ = std::move(callback); }

  // About so many bytes of evicted data there may be in all.
  void set_demand(std::uint64_t bytes);
  // `domain`: the tenant's trust_domain.
  void wanted(base::TenantId tenant, std::uint32_t slot, std::uint64_t bytes, std::string_view domain);
  // An id that is not lent to this tenant is ignored.
  void returned(base::TenantId tenant, std::uint64_t id);
  void gone(base::TenantId tenant);

  std::uint64_t budget() const { return budget_; }
  std::uint64_t chunk_bytes() const { return chunk_bytes_; }
  std::uint64_t lent() const { return lent_; }
  std::uint64_t lent_to(base::TenantId tenant) const;
  std::uint64_t ready() const { return (ready_.size() + used_.size()) * chunk_bytes_; }
  bool is_short() const { return short_; }

 private:
  struct Request {
    base::TenantId tenant;
    std::uint32_t slot = 0;
    std::uint64_t bytes = 0;
  };
  struct Loan {
    std::uint64_t bytes = 0;
    os::FileDescriptor memory;
  };
  struct Borrower {
    std::string domain;
    std::unordered_map<std::uint64_t, Loan> loans;  // by id
  };
  // Has come back, and may go to its own domain as it is.
  struct Used {
    std::string domain;
    os::FileDescriptor memory;
  };
  struct Alive;  // shared with the pool's jobs: cleared when this object goes

  // Descriptors that are being closed count as being made: the memory is not there before.
  std::uint64_t taken() const { return lent_ + (ready_.size() + used_.size() + making_) * chunk_bytes_; }
  std::uint64_t needed() const { return demand_ > lent_ ? demand_ - lent_ : 0; }
  void serve();
  bool serve(const Request& request);
  void make_more();
  // In the pool: closes `old`, and makes a new one if asked to.
  void remake(os::FileDescriptor old, bool make);
  void remade(std::optional<base::Result<os::FileDescriptor>> chunk);
  void set_short(bool is_short);

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
  bool short_ = false;
  std::uint64_t short_at_ = 0;  // what the demand was then
  std::vector<os::FileDescriptor> ready_;
  std::vector<Used> used_;
  std::deque<Request> requests_;
  std::unordered_map<base::TenantId, Borrower> borrowers_;
};

}  // namespace gpumux::daemon
