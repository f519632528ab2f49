// SPDX-License-Identifier: Apache-2.0
#include "jobs/service/ledger_keeper.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <string>
#include <utility>

#include "server/loop/log.h"

namespace gpumux::jobs {
namespace {

namespace asio = boost::asio;

// A guess: rows are kept up to this much longer than the settings say, and each time is one commit.
constexpr base::Duration kRollUp = std::chrono::seconds(60);

}  // namespace

LedgerKeeper::LedgerKeeper(asio::io_context& io, const base::Clock& clock, JobQueue& queue, Take take,
                           TakePeaks take_peaks)
    : io_(io),
      clock_(clock),
      queue_(queue),
      take_(std::move(take)),
      take_peaks_(std::move(take_peaks)),
      flush_timer_(io, server::LoopTimer::every(kFlush), [this](base::TimePoint) { flush(nullptr); }),
      roll_up_timer_(io, server::LoopTimer::every(kRollUp), [this](base::TimePoint) { roll_up(); }) {}

void LedgerKeeper::open() {
  if (!queue_.unavailable().empty()) return;
  flush_timer_.update();
  roll_up();
  roll_up_timer_.update();
}

void LedgerKeeper::add(const store::LedgerRow& row, const store::LedgerSums& sums) {
  const auto known = unstored_.rows.find(row);
  if (known != unstored_.rows.end()) return known->second.add(sums);
  store::LedgerRow its = row;
  if (unstored_.rows.size() >= kMaxUnstoredRows) its.program.reset();
  unstored_.rows[its].add(sums);
}

// Of jobs there are fewer: each has a place.
void LedgerKeeper::add(const store::AddToJob& use) {
  store::AddToJob& sum = unstored_.jobs[use.job];
  sum.job = use.job;
  sum.gpu_seconds += use.gpu_seconds;
  sum.peak_memory = std::max(sum.peak_memory, use.peak_memory);
}

void LedgerKeeper::take() {
  taken_at_ = clock_.now();
  for (const auto& [row, sums] : take_()) {
    if (sums != store::LedgerSums()) add(row, sums);
    if (row.program && row.program->job != kNoJob && sums.gpu_time != 0)
      add(store::AddToJob{.job = row.program->job, .gpu_seconds = sums.gpu_time});
  }
  for (const auto& [job, bytes] : take_peaks_()) add(store::AddToJob{.job = JobId{job}, .peak_memory = bytes});
}

std::vector<store::Change> LedgerKeeper::changes() const {
  const store::WallTime now = wall_now();
  std::vector<store::Change> changes;
  changes.reserve(storing_.rows.size() + storing_.jobs.size());
  for (const auto& [row, sums] : storing_.rows) changes.push_back(store::AddToLedger{now, row, sums});
  for (const auto& [job, use] : storing_.jobs) changes.emplace_back(std::in_place_type<store::AddToJob>, use);
  return changes;
}

void LedgerKeeper::flush(std::function<void()> done) {
  if (done) waiting_.push_back(std::move(done));
  // A commit that is under way is a moment old.
  if (!storing_.is_empty()) return;
  if (!taken_at_ || clock_.now() - *taken_at_ >= kFreshEnough) take();
  if (unstored_.is_empty()) return finish();
  storing_ = std::exchange(unstored_, {});
  queue_.keep(changes(), [this](const base::Result<std::vector<store::Applied>>& applied) {
    stored(applied.map([](const auto&) {}));
  });
}

void LedgerKeeper::stored(const base::Status& status) {
  if (!status && !std::exchange(fails_, true))
    server::log_error("what programs have had of GPUs could not be stored; it is kept and tried again",
                      {{"why", status.error().message()}});
  if (status && std::exchange(fails_, false)) server::log_info("what programs have had of GPUs is stored again", {});
  const auto handed_in = std::exchange(storing_, {});
  if (!status) {
    for (const auto& [row, sums] : handed_in.rows) add(row, sums);
    for (const auto& [job, use] : handed_in.jobs) add(use);
  }
  finish();
}

void LedgerKeeper::finish() {
  for (auto& done : std::exchange(waiting_, {})) asio::post(io_, std::move(done));
}

void LedgerKeeper::close() {
  if (!queue_.unavailable().empty()) return;
  take();
  storing_ = std::exchange(unstored_, {});
  if (!storing_.is_empty()) queue_.keep(changes(), nullptr);
}

void LedgerKeeper::roll_up() {
  const auto& config = queue_.config();
  const store::RollUpLedger change{.hours_before = wall_now() - config.ledger_hours.count(),
                                   .days_before = wall_now() - config.ledger_history.count()};
  queue_.keep({change}, [this, most = change.at_most](const base::Result<std::vector<store::Applied>>& applied) {
    // As many as allowed: there may be more. A commit that fails is tried again the next time.
    if (applied && applied->front().pruned >= most) roll_up();
  });
}

}  // namespace gpumux::jobs
