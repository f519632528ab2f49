// SPDX-License-Identifier: Apache-2.0
// Goal: no two programs of one GPU have the same letter, and each keeps its own. Method: seats and events written by
// hand.
#include "top/marks.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "top/sample.h"

namespace gpumux::top {
namespace {

constexpr std::size_t kAll = 61;  // letters

// Tenants by GPU; a tenant's process is 4700 + its number.
api_client::Snapshot seats(const std::map<std::uint32_t, std::set<std::uint64_t>>& tenants) {
  api_client::Snapshot snapshot;
  for (const auto& [index, of_gpu] : tenants) {
    api_client::Gpu& gpu = snapshot.gpus.emplace_back();
    gpu.index = index;
    for (const std::uint64_t tenant : of_gpu) gpu.seats.push_back(sample_seat(tenant, "alpha", "idle"));
  }
  return snapshot;
}

std::set<std::uint64_t> numbers(std::uint64_t first, std::uint64_t count) {
  std::set<std::uint64_t> all;
  for (std::uint64_t i = 0; i < count; ++i) all.insert(first + i);
  return all;
}

TEST(Marks, ProgramsOfOneGpuHaveDifferentLetters) {
  Marks marks;
  marks.take_snapshot(seats({{0, numbers(1, kAll)}, {1, numbers(101, kAll)}}), at(0));
  for (const std::uint32_t gpu : {0u, 1u}) {
    std::set<char> letters;
    for (std::uint64_t i = 1; i <= kAll; ++i) letters.insert(marks.of(gpu, std::uint64_t{100} * gpu + i).letter);
    EXPECT_EQ(letters.size(), kAll);
    EXPECT_EQ(letters.count('x'), 0u) << "x is of all that is not under gpumux";
    EXPECT_EQ(letters.count('?') + letters.count(kNoLetter), 0u);
  }
  // More programs than letters.
  marks.take_snapshot(seats({{0, numbers(1, kAll + 2)}}), at(1));
  EXPECT_EQ(marks.of(0, 1).letter, 'a');
  EXPECT_EQ(marks.of(0, kAll + 1).letter, kNoLetter);
  EXPECT_EQ(marks.of(0, kAll + 2).letter, kNoLetter);
}

TEST(Marks, ManyShortProgramsTakeNoLetterOfOneThatIsThere) {
  Marks marks;
  for (std::uint64_t i = 0; i < 500; ++i) {
    marks.take_snapshot(seats({{0, {1, 2, 3 + i}}}), at(static_cast<double>(i)));
    EXPECT_EQ(marks.of(0, 1).letter, 'a');
    EXPECT_EQ(marks.of(0, 2).letter, 'b');
    for (const char other : {'a', 'b', '?', kNoLetter}) EXPECT_NE(marks.of(0, 3 + i).letter, other);
  }
}

TEST(Marks, AProgramHasOneLetterOnAllGpusIfItIsFree) {
  Marks marks;
  marks.take_snapshot(seats({{0, {1, 2}}, {1, {2, 3}}}), at(0));
  EXPECT_EQ(marks.of(0, 1).letter, 'a');
  EXPECT_EQ(marks.of(0, 2).letter, 'b');
  EXPECT_EQ(marks.of(1, 2).letter, 'b');
  EXPECT_EQ(marks.of(1, 3).letter, 'c');
}

TEST(Marks, AProgramThatIsGoneKeepsItsLetterUntilItIsForgotten) {
  Marks marks;
  marks.take_snapshot(seats({{0, {1, 2}}}), at(0));
  marks.take_snapshot(seats({{0, {2, 3}}}), at(5));
  marks.forget(at(0));
  EXPECT_EQ(marks.of(0, 1).letter, 'a');
  EXPECT_EQ(marks.of(0, 3).letter, 'c');
  marks.forget(at(1));
  EXPECT_EQ(marks.of(0, 1).letter, '?');
  marks.take_snapshot(seats({{0, {2, 3, 4}}}), at(6));
  EXPECT_EQ(marks.of(0, 4).letter, 'a');
}

TEST(Marks, AProgramIsItsProcess) {
  Marks marks;
  marks.take_snapshot(seats({{0, {1, 2}}}), at(0));
  marks.forget_tenants();
  EXPECT_EQ(marks.of(0, 1).letter, '?');
  api_client::Snapshot again = seats({{0, {1, 2}}});
  std::swap(again.gpus[0].seats[0].pid, again.gpus[0].seats[1].pid);
  marks.take_snapshot(again, at(1));
  EXPECT_EQ(marks.of(0, 1).letter, 'b');
  EXPECT_EQ(marks.of(0, 2).letter, 'a');
}

// The kernel does not tell the processes of some containers.
TEST(Marks, WithoutAProcessATenantIsAProgram) {
  Marks marks;
  api_client::Snapshot snapshot = seats({{0, {1, 2}}});
  for (api_client::Seat& seat : snapshot.gpus[0].seats) seat.pid = 0;
  marks.take_snapshot(snapshot, at(0));
  EXPECT_NE(marks.of(0, 1).letter, marks.of(0, 2).letter);
}

}  // namespace
}  // namespace gpumux::top
