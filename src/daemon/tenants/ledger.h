// SPDX-License-Identifier: Apache-2.0
// The use of GPUs by programs, for metrics and for accounting. All seats with the same owner, program, job and
// container on the same GPU have one entry. An entry's figures are sums over its seats, also over those that are gone,
// so they only grow.
//
// A seat stays with its entry. An entry leaves some minutes after its last seat, when a scraper has had time to read
// it.
//
// There are at most kMaxLedgerEntries, and at most kMaxOwnerEntries of one owner. A seat that finds no place counts
// with its owner's others on that GPU. So an owner with ever new names loses only its own.
//
// Owned by the loop's thread.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "wire/messages.h"

namespace gpumux::daemon {

// Each is some 15 series of a scrape.
inline constexpr std::size_t kMaxLedgerEntries = 2000;
// An eighth: a user with a program for each of a node's GPUs, a few times over.
inline constexpr std::size_t kMaxOwnerEntries = 250;
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
    add(MovedMemory{memory.moved_out, memory.moved_in, memory.saved_clean, memory.saved_constant, memory.handed_over});
  }
  void add(const MovedMemory& other) { *this = combined(other, std::plus<>()); }
  MovedMemory since(const MovedMemory& before) const { return combined(before, std::minus<>()); }
  // Each of these figures with the same one of the others.
  template <class Operation>
  MovedMemory combined(const MovedMemory& other, Operation operation) const {
    return {operation(out, other.out), operation(in, other.in), operation(saved_clean, other.saved_clean),
            operation(saved_constant, other.saved_constant), operation(handed_over, other.handed_over)};
  }
  bool operator==(const MovedMemory&) const = default;
};

// The owner of a seat: a user of the host, with all subordinate ids, or a pod. A seat in a container of no known pod
// has no owner: its users are not the host's.
struct LedgerOwner {
  std::optional<std::uint32_t> uid;
  std::string pod_namespace;
  std::string pod;
  auto operator<=>(const LedgerOwner&) const = default;
};

struct LedgerProgram {
  std::string name;
  std::uint64_t job = 0;  // 0: none
  std::string container;  // its name in the pod
  auto operator<=>(const LedgerProgram&) const = default;
};

// The seats of an owner that found no place.
struct LedgerOthers {
  auto operator<=>(const LedgerOthers&) const = default;
};

struct LedgerKey {
  base::GpuIndex gpu;
  LedgerOwner owner;
  std::variant<LedgerProgram, LedgerOthers> what;
  auto operator<=>(const LedgerKey&) const = default;
};

struct LedgerFigures {
  std::uint64_t seats = 0;  // that there were
  std::uint64_t grants = 0;
  std::uint64_t switches = 0;  // that its grants were
  base::Duration held{};       // lease time
  base::Duration gpu_time{};   // the same without the time that it was idle before it gave leases up
  base::Duration waited{};
  double resident_byte_seconds = 0;
  double evicted_byte_seconds = 0;
  MovedMemory moved{};

  void add(const LedgerFigures& other) { *this = combined(other, std::plus<>()); }
  // The part of these figures that has come since they were `before`.
  LedgerFigures since(const LedgerFigures& before) const { return combined(before, std::minus<>()); }
  template <class Operation>
  LedgerFigures combined(const LedgerFigures& other, Operation operation) const {
    return {.seats = operation(seats, other.seats),
            .grants = operation(grants, other.grants),
            .switches = operation(switches, other.switches),
            .held = operation(held, other.held),
            .gpu_time = operation(gpu_time, other.gpu_time),
            .waited = operation(waited, other.waited),
            .resident_byte_seconds = operation(resident_byte_seconds, other.resident_byte_seconds),
            .evicted_byte_seconds = operation(evicted_byte_seconds, other.evicted_byte_seconds),
            .moved = moved.combined(other.moved, operation)};
  }
  bool operator==(const LedgerFigures&) const = default;
};

struct LedgerLine {
  LedgerKey key;
  LedgerFigures figures;
  std::uint64_t live = 0;  // seats that are there
};

// How much memory a seat has had for how long.
class MemoryTime {
 public:
  // `resident` and `evicted`: the bytes from `now` on.
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

struct LedgerLimits {
  std::size_t all = kMaxLedgerEntries;
  std::size_t of_owner = kMaxOwnerEntries;
};

class Ledger {
 public:
  struct Entry {
    LedgerFigures gone;   // of seats that are
    LedgerFigures taken;  // by take(), so far
    std::uint64_t live = 0;
    base::TimePoint last_left{};
  };

  explicit Ledger(const LedgerLimits& limits = {}) : limits_(limits) {}

  // A seat has been opened. The entry stays where it is until the seat is closed.
  Entry& open(const LedgerKey& key, base::TimePoint now);
  // The seat is gone, and has had this.
  static void close(Entry& entry, const LedgerFigures& figures, base::TimePoint now);
  // `live`: the sums over the seats that are there.
  std::vector<LedgerLine> lines(const std::map<const Entry*, LedgerFigures>& live, base::TimePoint now);
  // The figures that have come since the last call, of the entries that have any. To be called more often than entries
  // leave.
  std::vector<LedgerLine> take(const std::map<const Entry*, LedgerFigures>& live);

 private:
  bool has_place(const LedgerOwner& owner) const;
  void drop_old(base::TimePoint now);

  const LedgerLimits limits_;
  std::map<LedgerKey, Entry> entries_;
  std::map<LedgerOwner, std::size_t> places_;  // entries of programs
  std::size_t taken_ = 0;                      // their sum
};

}  // namespace gpumux::daemon
