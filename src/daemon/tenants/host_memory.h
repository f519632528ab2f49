// SPDX-License-Identifier: Apache-2.0
// Host memory for evicted data: files of huge pages (host_files.h), made ahead of need, and lent to the node's mover.
//
// It belongs to the daemon, so its pages are charged to the daemon's cgroup and not to a pod's. The kernel charges a
// page to the thread that touches it first, and that is one of our threads.
//
// How much there is. The daemon makes chunks until there are as many as are needed. It gives back only chunks beyond
// the most that was needed at any of the last kKeptLooks looks. Needed is the demand (set_demand), or the bytes that
// are lent and waited for if they are more, and a window.
//
// Populating takes a hundred times longer than a switch may wait, so chunks are ready before they are asked for. (On a
// virtual machine that gets its memory from its host at the first touch, it takes a thousand times longer.) A request
// beyond that waits until the next chunk is ready or comes back. Where the budget or the machine has no more, it is
// dropped: the mover does away with copies, and asks again.
//
// Short. Once the daemon has refused a loan for the budget, host memory is short. The shortage ends when there is much
// less to be evicted.
//
// Owned by the loop's thread; `pool` makes and unmakes the chunks (a chunk takes 20 ms to be freed), and sees nothing
// else of this.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "daemon/tenants/host_files.h"
#include "os/file_descriptor.h"

namespace gpumux::daemon {

// A mover that asks for more at once asks again when it has used some.
inline constexpr std::size_t kMaxHostRequests = 64;

// Longer than a round of turns, so that the next switch finds as much as the last one needed. There is a look each
// second.
inline constexpr std::size_t kKeptLooks = 60;

// The files that have been made so far.
struct HostMade {
  std::optional<HostFileKind> kind;  // of the newest
  std::uint64_t bytes = 0;
  base::Duration took{};  // of all threads together
};

// How often something has been lent so far.
struct HostLoans {
  std::uint64_t all = 0;
  std::uint64_t waited = 0;  // requests that were not answered at once
  base::Duration waiting{};  // for how long, of all together
};

class HostMemory {
 public:
  // A chunk is lent, by its number. Must not call back.
  using OnLent = std::function<void(std::uint64_t chunk)>;

  HostMemory(boost::asio::io_context& loop, boost::asio::thread_pool& pool, std::uint64_t budget,
             HostFiles files = HostFiles::open());
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  void on_lent(OnLent callback) { on_lent_ = std::move(callback); }

  // From now on its files can have names that the next daemon finds (host_names.h), in a file system at this folder. If
  // that cannot be, the log says so. Before anything is wanted.
  void keep_at(const std::string& folder);
  // Makes a little and gives it back, so that it is known how that is done here, and how fast.
  void measure();
  // Bytes of evicted data that there may be in all, roughly, and bytes of copies of data that has come back.
  void set_demand(std::uint64_t evicted, std::uint64_t copies = 0);
  // Bytes that movers of earlier daemons still have. They count against the budget.
  void set_elsewhere(std::uint64_t bytes);

  // One more chunk is wanted.
  void wanted();
  // Nothing is wanted any more.
  void withdraw() { requests_.clear(); }
  // Chunks that are wanted, and neither lent nor refused.
  std::size_t awaited() const { return requests_.size(); }
  // Nothing happens if it is not lent.
  void returned(std::uint64_t chunk);
  // Memory that an earlier daemon has lent. Its number, and it is lent; none: it is not a whole chunk.
  std::optional<std::uint64_t> adopt(os::FileDescriptor memory);
  // All that is lent stays with the mover that has it, and is not this daemon's any more. Nothing is wanted.
  void abandon();
  // About once a second.
  void look();

  std::uint64_t budget() const { return budget_; }
  std::uint64_t chunk_bytes() const { return chunk_bytes_; }
  // Of a chunk that is lent; stays ours.
  int descriptor_of(std::uint64_t chunk) const;
  std::uint64_t lent() const { return lent_.size() * chunk_bytes_; }
  std::uint64_t ready() const { return ready_.size() * chunk_bytes_; }
  // The bytes that the budget bounds: these, and the chunks that are being made or given back at this moment.
  std::uint64_t taken() const { return (lent_.size() + ready_.size() + making_ + unmaking_) * chunk_bytes_; }
  // Whether something is being made or given back.
  bool is_making() const { return making_ + unmaking_ > 0; }
  bool is_short() const { return short_at_.has_value(); }
  const HostLoans& loans() const { return loans_; }
  const HostFiles& files() const { return *files_; }
  const HostMade& made() const { return made_; }

 private:
  struct Alive;  // shared with the pool's jobs: cleared when this object goes

  // In chunks.
  std::size_t there() const { return lent_.size() + ready_.size(); }
  std::size_t needed() const;
  bool has_too_much() const;
  bool may_make() const;
  void serve();
  void rebalance();
  void lend();
  void make();
  void has_made(base::Result<HostFile> file);
  void drop(os::FileDescriptor file);
  void count(const HostFile& file, std::uint64_t bytes);

  boost::asio::io_context& loop_;
  boost::asio::thread_pool& pool_;
  const std::uint64_t budget_;
  const std::uint64_t chunk_bytes_;
  std::shared_ptr<const HostFiles> files_;  // the pool's jobs have it, too
  HostMade made_;
  OnLent on_lent_ = [](std::uint64_t) {};
  std::shared_ptr<Alive> alive_;
  std::uint64_t demand_ = 0;
  std::uint64_t copies_ = 0;
  std::uint64_t elsewhere_ = 0;
  std::deque<std::size_t> needed_lately_{0};  // the most between two looks each; the last one: since the last look
  HostLoans loans_;
  bool failing_ = false;  // the machine has no memory left: not tried again before something comes back, or a look
  std::optional<std::uint64_t> short_at_;  // the demand at that time; none: it is not short
  std::deque<base::TimePoint> requests_;   // when they came
  std::size_t making_ = 0;
  std::size_t unmaking_ = 0;
  std::vector<os::FileDescriptor> ready_;
  std::unordered_map<std::uint64_t, os::FileDescriptor> lent_;  // by number
  std::uint64_t last_ = 0;
};

}  // namespace gpumux::daemon
