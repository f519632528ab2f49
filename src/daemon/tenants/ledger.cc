// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/ledger.h"

namespace gpumux::daemon {

void LedgerFigures::add(const LedgerFigures& other) {
  seats += other.seats;
  grants += other.grants;
  held += other.held;
  gpu_time += other.gpu_time;
  waited += other.waited;
  resident_byte_seconds += other.resident_byte_seconds;
  evicted_byte_seconds += other.evicted_byte_seconds;
  moved.add(other.moved);
}

double MemoryTime::seconds_to(base::TimePoint now) const {
  return now <= since_ ? 0 : std::chrono::duration<double>(now - since_).count();
}

void MemoryTime::change(base::TimePoint now, std::uint64_t resident, std::uint64_t evicted) {
  resident_sum_ = this->resident(now);
  evicted_sum_ = this->evicted(now);
  since_ = now;
  resident_ = static_cast<double>(resident);
  evicted_ = static_cast<double>(evicted);
}

Ledger::Entry& Ledger::open(const LedgerKey& key, base::TimePoint now) {
  if (entries_.size() >= most_) drop_old(now);
  const bool is_full = entries_.size() >= most_ && !entries_.contains(key);
  Entry& entry = is_full ? others_[key.gpu] : entries_[key];
  ++entry.live;
  return entry;
}

void Ledger::close(Entry& entry, const LedgerFigures& figures, base::TimePoint now) {
  entry.gone.add(figures);
  --entry.live;
  entry.last_left = now;
}

void Ledger::drop_old(base::TimePoint now) {
  std::erase_if(entries_,
                [&](const auto& one) { return one.second.live == 0 && now - one.second.last_left > kLedgerKeeps; });
}

std::vector<LedgerLine> Ledger::lines(const std::map<const Entry*, LedgerFigures>& live, base::TimePoint now) {
  drop_old(now);
  std::vector<LedgerLine> lines;
  lines.reserve(entries_.size() + others_.size());
  const auto add = [&](const LedgerKey& key, const Entry& entry) {
    LedgerLine& line = lines.emplace_back(LedgerLine{key, entry.gone, entry.live});
    if (const auto there = live.find(&entry); there != live.end()) line.figures.add(there->second);
  };
  for (const auto& [key, entry] : entries_) add(key, entry);
  for (const auto& [gpu, entry] : others_) add(LedgerKey::others(gpu), entry);
  return lines;
}

}  // namespace gpumux::daemon
