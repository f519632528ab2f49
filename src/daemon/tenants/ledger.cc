// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/ledger.h"

namespace gpumux::daemon {

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

bool Ledger::has_place(const LedgerOwner& owner) const {
  const auto its = places_.find(owner);
  return taken_ < limits_.all && (its == places_.end() || its->second < limits_.of_owner);
}

Ledger::Entry& Ledger::open(const LedgerKey& key, base::TimePoint now) {
  auto found = entries_.find(key);
  if (found == entries_.end() && !has_place(key.owner)) drop_old(now);
  if (found == entries_.end() && has_place(key.owner)) {
    found = entries_.try_emplace(key).first;
    ++places_[key.owner];
    ++taken_;
  }
  Entry& entry = found != entries_.end() ? found->second : entries_[{key.gpu, key.owner, LedgerOthers()}];
  ++entry.live;
  return entry;
}

void Ledger::close(Entry& entry, const LedgerFigures& figures, base::TimePoint now) {
  entry.gone.add(figures);
  --entry.live;
  entry.last_left = now;
}

void Ledger::drop_old(base::TimePoint now) {
  std::erase_if(entries_, [&](const auto& one) {
    const auto& [key, entry] = one;
    const bool is_old = entry.live == 0 && now - entry.last_left > kLedgerKeeps;
    if (is_old && std::holds_alternative<LedgerProgram>(key.what)) {
      const auto its = places_.find(key.owner);
      if (--its->second == 0) places_.erase(its);
      --taken_;
    }
    return is_old;
  });
}

std::vector<LedgerLine> Ledger::take(const std::map<const Entry*, LedgerFigures>& live) {
  std::vector<LedgerLine> lines;
  for (auto& [key, entry] : entries_) {
    LedgerFigures all = entry.gone;
    if (const auto there = live.find(&entry); there != live.end()) all.add(there->second);
    if (all == entry.taken) continue;
    lines.push_back({key, all.since(entry.taken), entry.live});
    entry.taken = all;
  }
  return lines;
}

std::vector<LedgerLine> Ledger::lines(const std::map<const Entry*, LedgerFigures>& live, base::TimePoint now) {
  drop_old(now);
  std::vector<LedgerLine> lines;
  lines.reserve(entries_.size());
  for (const auto& [key, entry] : entries_) {
    LedgerLine& line = lines.emplace_back(LedgerLine{key, entry.gone, entry.live});
    if (const auto there = live.find(&entry); there != live.end()) line.figures.add(there->second);
  }
  return lines;
}

}  // namespace gpumux::daemon
