// SPDX-License-Identifier: Apache-2.0
// Goal: the shown use of programs only grows, and its records never take more memory than they may. Method: the ledger
// by hand, with times given.
#include "daemon/tenants/ledger.h"

#include <gtest/gtest.h>

#include "daemon/tenants/job_memory.h"

#include <algorithm>

namespace gpumux::daemon {
namespace {

using namespace std::chrono_literals;

constexpr base::TimePoint kStart{1h};

LedgerKey key_of(const std::string& program, std::uint32_t gpu = 0, std::uint32_t uid = 1000) {
  return {.gpu = {gpu}, .owner = {uid, "", ""}, .what = LedgerProgram{program, 0, ""}};
}

LedgerKey others_of(std::uint32_t uid) { return {.gpu = {0}, .owner = {uid, "", ""}, .what = LedgerOthers()}; }

LedgerFigures figures_of(const std::vector<LedgerLine>& lines, const LedgerKey& key) {
  const auto found = std::find_if(lines.begin(), lines.end(), [&](const auto& line) { return line.key == key; });
  EXPECT_NE(found, lines.end());
  return found == lines.end() ? LedgerFigures() : found->figures;
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

TEST(Ledger, WhatIsTakenIsTakenOnce) {
  Ledger ledger;
  Ledger::Entry& entry = ledger.open(key_of("train"), kStart);
  EXPECT_EQ(ledger.take({{&entry, held(2s)}}).at(0).figures, held(2s));
  EXPECT_TRUE(ledger.take({{&entry, held(2s)}}).empty());
  LedgerFigures more = ledger.take({{&entry, held(5s)}}).at(0).figures;
  EXPECT_EQ(more.held, 3s);
  EXPECT_EQ(more.seats, 0u);
  Ledger::close(entry, held(6s), kStart);
  EXPECT_EQ(ledger.take({}).at(0).figures.held, 1s);
  EXPECT_TRUE(ledger.take({}).empty());
  EXPECT_EQ(ledger.lines({}, kStart).at(0).figures, held(6s)) << "it counts for metrics as before";
}

TEST(Ledger, AnEntryLeavesSomeTimeAfterItsLastSeat) {
  Ledger ledger;
  Ledger::Entry& entry = ledger.open(key_of("train"), kStart);
  EXPECT_EQ(ledger.lines({}, kStart + 100h).size(), 1u);  // its seat is there
  Ledger::close(entry, held(1s), kStart + 100h);
  EXPECT_EQ(ledger.lines({}, kStart + 100h + kLedgerKeeps).size(), 1u);
  EXPECT_EQ(ledger.lines({}, kStart + 100h + kLedgerKeeps + 1ns).size(), 0u);
}

TEST(Ledger, ASeatWithoutAPlaceStaysWithItsOwnersOthers) {
  Ledger ledger({.all = 3, .of_owner = 2});
  Ledger::Entry& a = ledger.open(key_of("a"), kStart);
  ledger.open(key_of("b"), kStart);
  Ledger::Entry& c = ledger.open(key_of("c"), kStart);
  Ledger::Entry& d = ledger.open(key_of("d"), kStart);
  EXPECT_EQ(&c, &d);
  EXPECT_EQ(&ledger.open(key_of("a"), kStart), &a) << "what has a place keeps it";
  Ledger::close(a, {}, kStart);
  // A place is free again. The next one has it, and those that had none stay where they count.
  Ledger::close(a, held(1s), kStart);
  const base::TimePoint later = kStart + kLedgerKeeps + 1s;
  Ledger::Entry& again = ledger.open(key_of("c"), later);
  EXPECT_NE(&again, &c);
  Ledger::close(c, held(4s), later);
  Ledger::close(d, held(2s), later);
  EXPECT_EQ(figures_of(ledger.lines({}, later), others_of(1000)).held, 6s);
}

TEST(Ledger, AnOwnerWithManyNamesTakesNoPlaceFromAnother) {
  Ledger ledger({.all = 4, .of_owner = 2});
  for (int i = 0; i < 100; ++i) Ledger::close(ledger.open(key_of(std::to_string(i)), kStart), held(1s), kStart);
  Ledger::close(ledger.open(key_of("train", 0, 1001), kStart), held(3s), kStart);
  const auto lines = ledger.lines({}, kStart);
  EXPECT_EQ(lines.size(), 4u);
  EXPECT_EQ(figures_of(lines, key_of("train", 0, 1001)).held, 3s);
  EXPECT_EQ(figures_of(lines, others_of(1000)).held, 98s);
}

TEST(Ledger, WhenAllPlacesAreTakenAnOwnerStillHasItsSum) {
  Ledger ledger({.all = 2, .of_owner = 2});
  for (std::uint32_t uid = 1; uid <= 3; ++uid)
    Ledger::close(ledger.open(key_of("train", 0, uid), kStart), held(std::chrono::seconds(uid)), kStart);
  EXPECT_EQ(figures_of(ledger.lines({}, kStart), others_of(3)).held, 3s);
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

// ---- what a job's programs have at once -------------------------------------------------------------------

TEST(JobMemory, IsTheMostOfAllProgramsOnOneGpuAtOnce) {
  JobMemory memory;
  const base::GpuIndex first{0}, second{1};
  memory.change(7, first, 0, 100);
  memory.change(7, first, 0, 50);  // another program
  memory.change(7, first, 100, 20);
  memory.change(7, second, 0, 120);
  memory.change(8, first, 0, 10);
  EXPECT_EQ(memory.take(), (std::map<std::uint64_t, std::uint64_t>{{7, 150}, {8, 10}}));
  EXPECT_TRUE(memory.take().empty()) << "nothing has grown";
  memory.change(7, first, 20, 0);
  memory.change(7, first, 50, 170);
  memory.change(7, first, 170, 0);
  EXPECT_EQ(memory.take(), (std::map<std::uint64_t, std::uint64_t>{{7, 170}})) << "also of a program that has ended";
}

}  // namespace
}  // namespace gpumux::daemon
