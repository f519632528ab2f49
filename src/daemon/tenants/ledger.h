// SPDX-License-Identifier: Apache-2.0
// What programs have had of GPUs, for metrics: one entry for all seats that have the same user, program, job, pod and
// container on the same GPU. An entry's figures are sums over its seats, also over those that are gone, so they only
// grow.
//
// A seat stays with its entry. An entry leaves some minutes after its last seat, when a scraper has had time to read
// it. There are at most kMaxLedgerEntries; a seat that finds no place counts with the GPU's others.
//
// Owned by the loop's thread.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "wire/messages.h"

namespace gpumux::daemon {

// Each is some 15 series of a scrape.
inline constexpr std::size_t kMaxLedgerEntries = 2000;
// Scrapers read once a minute or more often.
inline constexpr base::Duration kLedgerKeeps = std::chrono::minutes(10);

// Sums over seats' lives, in bytes.
struct MovedMemory {
  std::uint64_t out = 0;
  std::uint64_t in = 0;
  std::uint64_t saved_clean = 0;
  std::uint64_t saved_constant = 0;
  std::uint64_t handed_over = 0;
  void add(const wire::Memory& memory) {
    out += memory.moved_out;
    in += memory.moved_in;
    saved_clean += memory.saved_clean;
    saved_constant += memory.saved_constant;
    handed_over += memory.handed_over;
  }
  void add(const MovedMemory& other) {
    out += other.out;
    in += other.in;
    saved_clean += other.saved_clean;
    saved_constant += other.saved_constant;
    handed_over += other.handed_over;
  }
};

struct LedgerKey {
  base::GpuIndex gpu;
  std::uint32_t uid = 0;
  std::string program;
  std::uint64_t job = 0;  // 0: none
  std::string pod_namespace;
  std::string pod;
  std::string container;   // its name in the pod
  bool is_others = false;  // of seats that found no place; all else but the GPU is empty

  static LedgerKey others(base::GpuIndex gpu) {
    LedgerKey key;
    key.gpu = gpu;
    key.is_others = true;
    return key;
  }
  auto operator<=>(const LedgerKey&) const = default;
};

struct LedgerFigures {
  std::uint64_t seats = 0;  // that there were
  std::uint64_t grants = 0;
  base::Duration held{};      // lease time
  base::Duration gpu_time{};  // the same without the time that it was idle before it gave leases up
  base::Duration waited{};
  double resident_byte_seconds = 0;
  double evicted_byte_seconds = 0;
  MovedMemory moved{};

  void add(const LedgerFigures& other);
};

struct LedgerLine {
  LedgerKey key;
  LedgerFigures figures;
  std::uint64_t live = 0;  // seats that are there
};

// How much memory a seat has had for how long.
class MemoryTime {
 public:
  // It has so much from `now` on.
  void change(base::TimePoint now, std::uint64_t resident, std::uint64_t evicted);
  // Byte seconds until `now`.
  double resident(base::TimePoint now) const { return resident_sum_ + seconds_to(now) * resident_; }
  double evicted(base::TimePoint now) const { return evicted_sum_ + seconds_to(now) * evicted_; }

 private:
  double seconds_to(base::TimePoint now) const;

  base::TimePoint since_{};
  double resident_ = 0;
  double evicted_ = 0;
  double resident_sum_ = 0;
  double evicted_sum_ = 0;
};

class Ledger {
 public:
  struct Entry {
    LedgerFigures gone;  // of seats that are
    std::uint64_t live = 0;
    base::TimePoint last_left{};
  };

  explicit Ledger(std::size_t most = kMaxLedgerEntries) : most_(most) {}

  // A seat has been opened. The entry stays where it is until the seat is closed.
  Entry& open(const LedgerKey& key, base::TimePoint now);
  // The seat is gone, and has had this.
  static void close(Entry& entry, const LedgerFigures& figures, base::TimePoint now);
  // `live`: the sums over the seats that are there.
  std::vector<LedgerLine> lines(const std::map<const Entry*, LedgerFigures>& live, base::TimePoint now);

 private:
  void drop_old(base::TimePoint now);

  const std::size_t most_;
  std::map<LedgerKey, Entry> entries_;
  // Of seats that found no place. They stay: what they have counted may be anybody's.
  std::map<base::GpuIndex, Entry> others_;
};

}  // namespace gpumux::daemon
