// SPDX-License-Identifier: Apache-2.0
// Carries programs' use of GPUs from the node's ledger into the store (jobs/store/ledger.h), every kFlush. So kill -9
// loses the use since then, and nothing else.
//
// The keeper takes each figure from the ledger once, and owns it until it is stored. A new daemon's ledger begins at
// zero, and so do the seats of tenants that come back to it: nothing is counted twice. Figures that cannot be stored
// are kept, summed by row, and count in the hour in which they are stored at last.
//
// Owned by the loop's thread. Does nothing without a store.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "jobs/service/job_queue.h"
#include "jobs/store/ledger.h"
#include "server/loop/loop_timer.h"

namespace gpumux::jobs {

// Of the loop's time, a copy of 2,000 entries; of the disk's, one commit if anything was used.
inline constexpr base::Duration kFlush = std::chrono::seconds(30);
// A report is no older than this, however often users ask.
inline constexpr base::Duration kFreshEnough = std::chrono::seconds(1);
// Rows that wait for a disk that takes none; rows beyond this count with their owner's others.
inline constexpr std::size_t kMaxUnstoredRows = 2000;

// The use of a GPU by one owner's program.
struct UsedRow {
  store::LedgerRow row;
  store::LedgerSums sums;
};

class LedgerKeeper {
 public:
  // The figures of programs since the last call.
  using Take = std::function<std::vector<UsedRow>()>;
  // Of jobs: how much memory they have had at most, as far as that has grown.
  using TakePeaks = std::function<std::map<std::uint64_t, std::uint64_t>()>;

  // All outlive this object.
  LedgerKeeper(boost::asio::io_context& io, const base::Clock& clock, JobQueue& queue, Take take, TakePeaks take_peaks);
  LedgerKeeper(const LedgerKeeper&) = delete;
  LedgerKeeper& operator=(const LedgerKeeper&) = delete;

  // When the queue is open.
  void open();
  // Calls back when programs' use is stored, or could not be.
  void flush(std::function<void()> done);
  // Hands in the rows that there are. The queue is closed afterwards, which waits for it.
  void close();

 private:
  struct Figures {
    std::map<store::LedgerRow, store::LedgerSums> rows;
    std::map<JobId, store::AddToJob> jobs;
    bool is_empty() const { return rows.empty() && jobs.empty(); }
  };
  void take();
  void add(const store::LedgerRow& row, const store::LedgerSums& sums);
  void add(const store::AddToJob& use);
  std::vector<store::Change> changes() const;
  void stored(const base::Status& status);
  void finish();
  void roll_up();

  boost::asio::io_context& io_;
  const base::Clock& clock_;
  JobQueue& queue_;
  const Take take_;
  const TakePeaks take_peaks_;
  Figures unstored_;
  Figures storing_;  // handed in; empty: nothing is under way
  std::vector<std::function<void()>> waiting_;
  std::optional<base::TimePoint> taken_at_;
  bool fails_ = false;  // the last commit has; said once
  server::LoopTimer flush_timer_;
  server::LoopTimer roll_up_timer_;
};

}  // namespace gpumux::jobs
