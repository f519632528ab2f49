// SPDX-License-Identifier: Apache-2.0
// Host memory for evicted data: files of huge pages (host_files.h), populated ahead of need, lent to one tenant at a
// time.
//
// It belongs to the daemon, so its pages are charged to the daemon's cgroup and not to a pod's. The kernel charges a
// page to the thread that touches it first, and that is one of our threads.
//
// Zeroed between tenants. A tenant that has had a file may still have it mapped, so clearing the file does not make it
// safe for another tenant. The daemon closes it, and makes a new one. Exception: between processes that are open to
// each other anyway (trust_domain.h) it is handed on as it is. Where host memory is short, every switch hands on as
// much as it moves. Making it anew would take several times as long as the switch (2 GB/s a thread in 4 KiB pages). A
// file that a tenant had on loan when it went is never handed on: the GPU may still be writing to it.
//
// A seat that gives a chunk back may keep it mapped, and registered with the driver. The next loan of that chunk to the
// seat needs no descriptor and registers nothing (docs/decisions/0010-host-memory-stays-registered.md). So a chunk's
// memory is the machine's again only when all its keepers have unmapped it, and it counts until then. host_chunks.h has
// the states of a chunk. A chunk that leaves is lent to no seat any more, and each keeper is told to let go of it. It
// is closed when the last keeper has let go of it, or is gone. A seat is told of a bounded number of chunks at a time,
// and of no more before it has answered. So one message at most waits for a seat that does not answer.
//
// How much there is. The daemon makes chunks until there are as many as are needed. It gives back only chunks beyond
// the most that was needed at any of the last kKeptLooks looks. A chunk that is free counts as there, in whosever
// mappings it is. Needed is the demand (set_demand), or the bytes that are lent and waited for if they are more, and a
// window.
//
// Letting go is not free: for each chunk the driver stops the program for some milliseconds. So of the chunks that are
// mapped and no longer needed one leaves at each look. (A chunk that no seat has mapped goes at once.) All of them
// leave as fast as they can when a tenant waits for memory, or a keeper may be frozen.
//
// Populating takes a hundred times longer than a switch may wait, so chunks are ready before they are asked for. (On a
// virtual machine that gets its memory from its host at the first touch, it takes a thousand times longer.) A seat that
// asks beyond that waits until the next chunk is ready or comes back. The daemon asks seats that come back at that
// moment to give up copies, up to the awaited bytes (on_awaited). So one seat evicts into the memory that another one
// restores from, for as long as there is not enough for both.
//
// Borrowing. A seat is lent at most the memory that it may have to evict, and a chunk. A tenant without a seat is lent
// nothing (host_seats.h). Among accounts the budget is shared (host_shares.h).
//
// Short. Once the daemon has refused a loan for the budget, no seat may keep memory that it could do without
// (on_short). The shortage ends when there is much less to be evicted.
//
// Owned by the loop's thread; `pool` makes and unmakes the chunks (a chunk takes 20 ms to be freed), and sees nothing
// else of this.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "daemon/peers/account.h"
#include "daemon/tenants/host_chunks.h"
#include "daemon/tenants/host_files.h"
#include "daemon/tenants/host_seats.h"
#include "daemon/tenants/host_shares.h"
#include "os/file_descriptor.h"

namespace gpumux::daemon {

// A tenant that asks for more at once than it will be given waits for nothing: it asks again when it has used some.
inline constexpr std::size_t kMaxHostRequests = 64;

struct HostLoan {
  HostSeat seat;
  std::uint64_t id = 0;     // of the chunk, as long as there is one
  std::uint64_t bytes = 0;  // zero: not now
};

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
  std::uint64_t handed_on = 0;  // of these, as a seat of the same trust domain has left it
  std::uint64_t kept = 0;       // of those, to a seat that had kept it mapped
  std::uint64_t waited = 0;     // requests that were not answered at once
  base::Duration waiting{};     // for how long, of all together
};

class HostMemory {
 public:
  // The descriptor is ours; negative: the seat has kept this chunk. Must not call back.
  using OnLent = std::function<void(const HostLoan&, int fd)>;
  // The seat is to let go of these chunks, which it has kept, and say so (forgotten). Must not call back.
  using OnForget = std::function<void(const HostSeat&, std::span<const std::uint64_t> ids)>;
  // Whether every tenant has to give back the memory that it could do without. Must not call back.
  using OnShort = std::function<void(bool is_short)>;

  HostMemory(boost::asio::io_context& loop, boost::asio::thread_pool& pool, std::uint64_t budget,
             HostFiles files = HostFiles::open());
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  void on_lent(OnLent callback) { on_lent_ = std::move(callback); }
  void on_forget(OnForget callback) { on_forget_ = std::move(callback); }
  void on_short(OnShort callback) { on_short_ = std::move(callback); }
  // A seat has begun to wait. Must not call back.
  using OnAwaited = std::function<void()>;
  void on_awaited(OnAwaited callback) { on_awaited_ = std::move(callback); }

  // Makes a little and gives it back, so that it is known how that is done here, and how fast.
  void measure();
  // Bytes of evicted data that there may be in all, roughly, and bytes of copies of data that has come back.
  void set_demand(std::uint64_t evicted, std::uint64_t copies = 0);
  // `bytes`: the seat's memory that may be evicted or is. A seat of which nothing was said borrows nothing.
  void has(const HostSeat& seat, std::uint64_t bytes) { seats_.has(seat, bytes); }
  void closed(const HostSeat& seat);
  // Memory that an earlier daemon has lent to the seat, and that is lent from now on as `wanted` lends. Its number;
  // none: it is not a whole chunk.
  std::optional<std::uint64_t> adopt(const HostSeat& seat, os::FileDescriptor memory, std::string_view domain,
                                     const Account& account);
  // `domain`: the tenant's trust_domain. `account`: the account that the loans count for; always the same for a tenant.
  void wanted(const HostSeat& seat, std::uint64_t bytes, std::string_view domain, const Account& account);
  // `kept`: it is still mapped there. An id that is not lent to this tenant is ignored.
  void returned(base::TenantId tenant, std::uint64_t id, bool kept);
  // The answer to on_forget; without a question it is ignored.
  void forgotten(const HostSeat& seat);
  // False: the tenant lets go of all that it has kept, and of everything that it gives back from now on. It may be
  // frozen soon, and nothing could be taken from it then. True: as before.
  void set_keeps(base::TenantId tenant, bool keeps);
  // Loans of an earlier daemon count, too. (If the budget is a part of the available memory, that is without them.)
  void set_counts_earlier(bool counts) { counts_earlier_ = counts; }
  // `bytes`: the host memory that the seat uses. `is_back`: the seat has come back, and all of that is an earlier
  // daemon's. Later on, the least that it has reported since then counts as an earlier daemon's. (A tenant that lies
  // takes no more from others than it could borrow.)
  void uses(const HostSeat& seat, std::uint64_t bytes, bool is_back);
  // The bytes that seats wait for, until they have been made or come back; and whether this tenant waits. Requests that
  // come after others are left out.
  std::uint64_t awaited() const;
  bool awaits(base::TenantId tenant) const;
  // The bytes that this tenant owes to others: memory that its seats have no use for, or memory beyond the share of its
  // account.
  std::uint64_t beyond(base::TenantId tenant) const;
  // Mapped bytes that no seat has a use for: they cannot be promised to any seat until their processes have unmapped
  // them.
  std::uint64_t useless() const { return (seats_.useless() + chunks_.count(State::kLeaving)) * chunk_bytes_; }
  // The bytes that all seats of which `is_one` holds have on loan, or wait for.
  std::uint64_t lent_or_awaited(const std::function<bool(const HostSeat&)>& is_one) const;
  // It has been told to let go of something, and has not answered.
  bool is_forgetting(base::TenantId tenant) const;
  // `process`: a pidfd. The tenant's loans count until its process has ended, for it may go on using them. Without a
  // pidfd the daemon assumes that the process has ended, and does not empty its loans, in case it has not.
  void gone(base::TenantId tenant, os::FileDescriptor process = {});
  // About once a second. Chunks that are not needed go, one at a time. A tenant that has not let go of chunks in time
  // is counted on no longer.
  void look();

  std::uint64_t budget() const { return budget_; }
  // The most that one account can borrow, if no other account borrows.
  std::uint64_t lendable() const { return budget_ - shares_.reserved() * chunk_bytes_; }
  std::uint64_t chunk_bytes() const { return chunk_bytes_; }
  // Of a chunk that is lent; stays ours.
  int descriptor_of(std::uint64_t id);
  std::uint64_t lent() const { return bytes_in(State::kLent); }
  std::uint64_t lent_to(base::TenantId tenant) const { return seats_.lent_to(tenant) * chunk_bytes_; }
  std::uint64_t ready() const { return bytes_in(State::kReady) + bytes_in(State::kReturned); }
  // To go back to the machine; processes still have them mapped.
  std::uint64_t leaving() const { return bytes_in(State::kLeaving); }
  // The bytes that the budget bounds: all of these, and the chunks that are being made or given back at this moment.
  std::uint64_t taken() const { return chunks_.count() * chunk_bytes_; }
  // Whether something is being made or given back.
  bool is_making() const { return making() > 0; }
  bool is_short() const { return short_; }
  const HostLoans& loans() const { return loans_; }
  const HostFiles& files() const { return *files_; }
  const HostMade& made() const { return made_; }
  // Empty, or the first fault. For tests.
  std::string check_invariants() const { return chunks_.check_invariants(); }

 private:
  using State = HostChunk::State;
  struct Request {
    HostSeat seat;
    Account account;
    base::TimePoint asked_at{};
  };
  // Chunks that a seat has been told to let go of, without an answer yet, and chunks that the daemon tells it of next.
  struct Forgetting {
    std::vector<std::uint64_t> told;
    std::vector<std::uint64_t> to_tell;
  };
  struct Borrower {
    std::string domain;
    Account account;
    std::map<std::uint32_t, Forgetting> forgetting;  // by slot
    std::map<std::uint32_t, std::uint64_t> earlier;  // by slot: bytes of an earlier daemon's
    bool keeps = true;
  };
  // The connection has ended, and its process has not.
  struct Left {
    os::FileDescriptor process;  // a pidfd
    std::uint64_t bytes = 0;     // that it had on loan
  };
  struct Alive;  // shared with the pool's jobs: cleared when this object goes

  std::uint64_t bytes_in(State state) const { return chunks_.count(state) * chunk_bytes_; }
  // In chunks: being made or given back; lent or free; needed at this moment.
  std::size_t making() const { return chunks_.count(State::kMaking) + chunks_.count(State::kUnmaking); }
  std::size_t there() const;
  std::size_t needed() const;
  bool has_too_much() const;
  std::uint64_t earlier_elsewhere() const;
  bool may_make() const;
  bool has_unreserved() const;
  bool may_grow(const Account& account) const;
  std::size_t kept_free() const;
  void reap();
  void serve();
  bool serve_in_order();
  bool serve(const Request& request);
  HostChunk* find_handed_on(const HostSeat& seat, const Borrower& borrower, bool may_grow, bool& kept);
  void rebalance();
  std::size_t leaving_soon() const;
  bool drop_unmapped();
  bool drop_kept();
  void drop_one();
  HostChunk* newest_ready() const;
  HostChunk* oldest_returned(bool is_kept) const;
  void unmake(HostChunk& chunk);
  void let_go(const HostSeat& seat, std::uint64_t id);
  const Forgetting* forgetting_of(const HostSeat& seat) const;
  bool is_let_go(const HostSeat& seat, std::uint64_t id) const;
  bool is_urgent(const Borrower& borrower) const { return !requests_.empty() || !borrower.keeps; }
  void tell(const HostSeat& seat, std::size_t most);
  void tell_urgent(const HostSeat& seat);
  void tell_all(std::size_t most);
  // In the pool: makes a chunk, or does away with one that no seat has mapped.
  void make();
  void has_made(std::uint64_t id, base::Result<HostFile> file);
  enum class Old : std::uint8_t { kUnmade, kOnlyClosed };  // kOnlyClosed: a process may still use it
  void close(HostChunk& chunk, Old how = Old::kUnmade);
  void has_closed(std::uint64_t id);
  void count(const HostFile& file, std::uint64_t bytes);
  std::size_t most_making() const;
  void set_short(bool is_short);

  boost::asio::io_context& loop_;
  boost::asio::thread_pool& pool_;
  const std::uint64_t budget_;
  const std::uint64_t chunk_bytes_;
  const std::shared_ptr<const HostFiles> files_;  // the pool's jobs have it, too
  HostMade made_;
  OnLent on_lent_ = [](const HostLoan&, int) {};
  OnForget on_forget_ = [](const HostSeat&, std::span<const std::uint64_t>) {};
  OnShort on_short_ = [](bool) {};
  OnAwaited on_awaited_ = [] {};
  std::shared_ptr<Alive> alive_;
  std::uint64_t demand_ = 0;
  std::uint64_t copies_ = 0;
  std::deque<std::size_t> needed_lately_{0};  // the most between two looks each; the last one: since the last look
  bool counts_earlier_ = false;
  std::uint64_t earlier_ = 0;
  HostLoans loans_;
  bool failing_ = false;  // the machine has no memory left: not tried again before something comes back
  bool short_ = false;
  std::uint64_t short_at_ = 0;  // the demand at that time
  std::unordered_map<base::TenantId, Left> left_;
  std::deque<Request> requests_;
  HostSeats seats_;
  HostShares shares_;
  HostChunks chunks_;
  std::unordered_map<base::TenantId, Borrower> borrowers_;
};

}  // namespace gpumux::daemon
