// SPDX-License-Identifier: Apache-2.0
// Goal: what programs have had only grows while it is shown, and never takes more memory than it may. Method: the
// ledger by hand, with times given.
#include "daemon/tenants/ledger.h"

#include <gtest/gtest.h>

namespace gpumux::daemon {
namespace {

using namespace std::chrono_literals;

constexpr base::TimePoint kStart{1h};

LedgerKey key_of(const std::string& program, std::uint32_t gpu = 0) {
  LedgerKey key;
  key.gpu = {gpu};
  key.uid = 1000;
  key.program = program;
  return key;
}

LedgerFigures held(base::Duration time) {
  LedgerFigures figures;
  figures.seats = 1;
  figures.held = time;
  return figures;
}

TEST(Ledger, SumsOverSeatsThatAreThereAndThatAreGone) {
  Ledger ledger;
  Ledger::Entry& first = ledger.open(key_of("train"), kStart);
  Ledger::Entry& second = ledger.open(key_of("train"), kStart);
  EXPECT_EQ(&first, &second);
  ledger.open(key_of("train", 1), kStart);
  Ledger::close(first, held(5s), kStart);
  const auto lines = ledger.lines({{&second, held(2s)}}, kStart);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].figures.held, 7s);
  EXPECT_EQ(lines[0].figures.seats, 2u);
  EXPECT_EQ(lines[0].live, 1u);
  EXPECT_EQ(lines[1].key.gpu.value, 1u);
  EXPECT_EQ(lines[1].live, 1u);
}

TEST(Ledger, AnEntryLeavesSomeTimeAfterItsLastSeat) {
  Ledger ledger;
  Ledger::Entry& entry = ledger.open(key_of("train"), kStart);
  EXPECT_EQ(ledger.lines({}, kStart + 100h).size(), 1u);  // its seat is there
  Ledger::close(entry, held(1s), kStart + 100h);
  EXPECT_EQ(ledger.lines({}, kStart + 100h + kLedgerKeeps).size(), 1u);
  EXPECT_EQ(ledger.lines({}, kStart + 100h + kLedgerKeeps + 1ns).size(), 0u);
}

TEST(Ledger, ASeatWithoutAPlaceStaysWithTheOthers) {
  Ledger ledger(2);
  Ledger::Entry& a = ledger.open(key_of("a"), kStart);
  ledger.open(key_of("b"), kStart);
  Ledger::Entry& c = ledger.open(key_of("c"), kStart);
  Ledger::Entry& d = ledger.open(key_of("d"), kStart);
  EXPECT_EQ(&c, &d);
  // A place is free again. The next one has it, and those that had none stay where they count.
  Ledger::close(a, held(1s), kStart);
  const base::TimePoint later = kStart + kLedgerKeeps + 1s;
  Ledger::Entry& again = ledger.open(key_of("c"), later);
  EXPECT_NE(&again, &c);
  Ledger::close(c, held(4s), later);
  Ledger::close(d, held(2s), later);
  const auto lines = ledger.lines({}, later + 100h);
  const auto others = std::find_if(lines.begin(), lines.end(), [](const auto& line) { return line.key.is_others; });
  ASSERT_NE(others, lines.end());
  EXPECT_EQ(others->figures.held, 6s);
  EXPECT_EQ(others->live, 0u);
}

TEST(MemoryTime, CountsBytesTimesSeconds) {
  MemoryTime memory;
  EXPECT_EQ(memory.resident(kStart), 0);
  memory.change(kStart, 100, 0);
  memory.change(kStart + 2s, 40, 60);
  EXPECT_EQ(memory.resident(kStart + 3s), 240);
  EXPECT_EQ(memory.evicted(kStart + 3s), 60);
  EXPECT_EQ(memory.resident(kStart), 200);  // a clock that is behind takes nothing away
}

}  // namespace
}  // namespace gpumux::daemon
