// SPDX-License-Identifier: Apache-2.0
// Goal: memory leaves when it must and may, and comes back when it can. A blocked job is tried neither too often nor
// for ever. Method: tables of looks at one seat, in order, with what the pager thread does and when it looks again.
#include "shim/memory/move.h"

#include <gtest/gtest.h>

namespace gpumux::shim {
namespace {

using namespace std::chrono_literals;
using pager::JobState;
using Act = Move::Act;
using Step = Move::Step;
using View = Move::View;

constexpr std::optional<base::Duration> kNever;
constexpr base::Duration kPatience = 10s;
constexpr base::Duration kPoll = Move::kPoll;

base::TimePoint at(base::Duration since_start) { return base::TimePoint(1h) + since_start; }

// Views, by what is true of the seat.
View held() { return {.excess = 5, .evicted = 5}; }
View drained() { return {.excess = 5, .evicted = 5, .may_evict = true}; }
View leaving(const Step& step) { return {.excess = 5, .evicted = 5, .is_shut = true, .may_evict = true, .step = step}; }
View away() { return {.evicted = 5}; }
View returning(const Step& step) { return {.evicted = 5, .step = step}; }
View waited_for(const Step& step) { return {.evicted = 5, .is_waited_for = true, .patience = kPatience, .step = step}; }
View shut(View view) {
  view.is_shut = true;
  return view;
}
View broken(View view) {
  view.is_broken = true;
  return view;
}
constexpr Step kFails{.error = cuda::CUDA_ERROR_UNKNOWN};
constexpr Step kHasNoMover{.error = cuda::CUDA_ERROR_NOT_READY};
constexpr Step kIsRefused{.state = JobState::kStarved};

struct Row {
  const char* what;
  View view;
  base::Duration time;
  Act act;
  std::optional<base::Duration> again;
};

void expect_all(Move& move, std::initializer_list<Row> rows) {
  for (const Row& row : rows) {
    const Move::Decision decision = move.next(row.view, at(row.time));
    EXPECT_EQ(decision.act, row.act) << row.what;
    EXPECT_EQ(decision.again, row.again) << row.what;
  }
}
void expect_all(std::initializer_list<Row> rows) {
  Move move;
  expect_all(move, rows);
}

TEST(Move, GoesTheWayThatTheBoundWants) {
  expect_all({{"it has all that it wants", {}, 0ms, Act::kRest, kNever}});
  expect_all({{"above its bound, and drained", drained(), 0ms, Act::kEvict, kNever}});
  expect_all({{"below its bound, lease or not", away(), 0ms, Act::kRestore, kNever}});
  expect_all({{"a broken one stays as it is", broken(drained()), 0ms, Act::kWait, kNever},
              {"either way", broken(away()), 0ms, Act::kWait, kNever}});
}

TEST(Move, WaitsForTheDrain) {
  expect_all({
      {"a holder keeps what it has", held(), 0ms, Act::kWait, Move::kDrainLook},
      {"twice as long", held(), 1ms, Act::kWait, 2 * Move::kDrainLook},
      {"a lease that is given opens the gate", shut(held()), 1ms, Act::kOpen, 4 * Move::kDrainLook},
      {"it is drained sooner", drained(), 1ms, Act::kEvict, kNever},
  });
  Move move;
  for (int i = 0; i < 20; ++i) move.next(held(), at(0ms));
  expect_all(move, {{"not too long", held(), 0ms, Act::kWait, Move::kLongestDrainLook}});
}

TEST(Move, OpensTheGateWhenNothingIsToLeave) {
  expect_all({
      {"it is drained", drained(), 0ms, Act::kEvict, kNever},
      {"a higher bound", shut(away()), 1ms, Act::kOpen, 0ns},
      {"which means", away(), 1ms, Act::kRestore, kNever},
  });
  expect_all({{"a free has made room", shut({}), 0ms, Act::kOpen, 0ns}, {"so", {}, 0ms, Act::kRest, kNever}});
}

TEST(Move, StepsAnEvictionUntilItIsOver) {
  const auto step = [](JobState state, std::uint64_t moved = 0, std::uint64_t in_all = 0) {
    return leaving({.state = state, .moved = moved, .moved_in_all = in_all});
  };
  View higher = step(JobState::kWaiting);
  higher.excess = 0;
  View higher_and_starved = step(JobState::kStarved);
  higher_and_starved.excess = 0;
  expect_all({
      {"begin", drained(), 0ms, Act::kEvict, kNever},
      {"there is more to do", step(JobState::kRunning), 0ms, Act::kWait, 0ns},
      {"copies are under way", step(JobState::kWaiting), 0ms, Act::kWait, kPoll},
      {"host memory is missing", step(JobState::kStarved), 0ms, Act::kWait, kPoll},
      {"for long", step(JobState::kStarved), Move::kStuckAfter, Act::kWait, kPoll},
      {"some has come", step(JobState::kStarved, 1), Move::kStuckAfter, Act::kWait, kPoll},
      {"the bound is high enough", higher, 2s, Act::kCancel, kPoll},
      {"the same, while it is starved", higher_and_starved, 2s, Act::kCancel, kPoll},
      {"it is over", step(JobState::kCancelled), 2s, Act::kOpen, 0ns},
      {"the bound is lower", drained(), 2s, Act::kEvict, kNever},
      {"all has left", step(JobState::kDone, 0, 5), 2s, Act::kOpen, 0ns},
      {"now it wants it back", away(), 2s, Act::kRestore, kNever},
  });
}

TEST(Move, TriesABlockedEvictionAgainLaterEachTime) {
  const View nothing_left = leaving({.state = JobState::kDone});
  expect_all({
      {"begin", drained(), 0ms, Act::kEvict, kNever},
      {"it cannot begin, or fails", leaving(kFails), 0ms, Act::kOpen, 2ms},
      {"too early", drained(), 1ms, Act::kWait, 1ms},
      {"again", drained(), 2ms, Act::kEvict, kNever},
      {"all that is left is pinned", nothing_left, 2ms, Act::kOpen, 4ms},
      {"that says nothing of the other way", away(), 3ms, Act::kRestore, kNever},
      {"nor that of this one", drained(), 3ms, Act::kEvict, kNever},
      {"it fails as if for the first time", leaving(kFails), 3ms, Act::kOpen, 2ms},
      {"all is well, and what was is forgotten", {}, 4ms, Act::kRest, kNever},
      {"again", drained(), 4ms, Act::kEvict, kNever},
  });
  Move move;
  base::Duration time{};
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(move.next(drained(), at(time)).act, Act::kEvict);
    time += *move.next(leaving(kFails), at(time)).again;
  }
  expect_all(move, {{"begin", drained(), time, Act::kEvict, kNever},
                    {"not too late", leaving(kFails), time, Act::kOpen, Move::kLongestRetry}});
}

TEST(Move, AnEvictionIsStuckIfItIsStarvedForLong) {
  Move move;
  move.next(drained(), at(0ms));
  move.next(leaving({.state = JobState::kStarved}), at(0ms));
  EXPECT_EQ(move.starved_since(), at(0ms));
  EXPECT_FALSE(move.is_stuck(at(Move::kStuckAfter)));
  EXPECT_TRUE(move.is_stuck(at(Move::kStuckAfter + 1ms)));
  move.next(leaving({.state = JobState::kRunning, .moved = 1}), at(1s));
  EXPECT_EQ(move.starved_since(), std::nullopt) << "something has left";
  move.next(leaving(kFails), at(2s));
  EXPECT_TRUE(move.is_stuck(at(3s))) << "it is blocked";
  move.next(away(), at(3s));
  EXPECT_FALSE(move.is_stuck(at(3s)));
  move.next(returning(kFails), at(3s));
  EXPECT_EQ(move.starved_since(), at(3s));
  EXPECT_FALSE(move.is_stuck(at(1h))) << "it is no eviction";
}

TEST(Move, StepsARestorationUntilItIsOver) {
  View lower = returning({.state = JobState::kWaiting});
  lower.excess = 1;
  expect_all({
      {"begin", away(), 0ms, Act::kRestore, kNever},
      {"there is more to do", returning({.state = JobState::kRunning}), 0ms, Act::kWait, 0ns},
      {"copies are under way", returning({.state = JobState::kWaiting}), 0ms, Act::kWait, kPoll},
      {"a lower bound ends it", lower, 0ms, Act::kCancel, kPoll},
      {"it is over", returning({.state = JobState::kCancelled}), 0ms, Act::kWait, 0ns},
      {"begin", away(), 0ms, Act::kRestore, kNever},
      {"the bound leaves no room", returning({.state = JobState::kStarved, .lacks_room = true}), 0ms, Act::kWait,
       kNever},
      {"a higher bound has come", away(), 0ms, Act::kRestore, kNever},
      {"all is there", returning({.state = JobState::kDone}), 0ms, Act::kWait, 0ns},
      {"nothing is to be done", {}, 0ms, Act::kRest, kNever},
  });
}

TEST(Move, TriesABlockedRestorationAgainLaterEachTime) {
  const Step moves_and_fails{.moved = 1, .error = cuda::CUDA_ERROR_UNKNOWN};
  expect_all({
      {"begin", away(), 0ms, Act::kRestore, kNever},
      {"it fails", returning(kFails), 0ms, Act::kWait, 2ms},
      {"too early", away(), 1ms, Act::kWait, 1ms},
      {"again", away(), 2ms, Act::kRestore, kNever},
      {"it fails again", returning(kFails), 2ms, Act::kWait, 4ms},
      {"again", away(), 6ms, Act::kRestore, kNever},
      {"it gets on", returning(moves_and_fails), 6ms, Act::kWait, 2ms},
  });
}

TEST(Move, GivesUpForAProgramThatWaitsTooLong) {
  const base::Duration late = 1ms + kPatience;
  const Step no_memory{.error = cuda::CUDA_ERROR_OUT_OF_MEMORY};
  const Step moves{.state = JobState::kRunning, .moved = 1};
  // Each of these is no failure, or ends the series of failures.
  for (const View& view : {returning(kFails), waited_for(no_memory), waited_for(moves)}) {
    Move move;
    expect_all(move,
               {{"begin", away(), 0ms, Act::kRestore, kNever}, {"it fails", waited_for(kFails), 1ms, Act::kWait, 2ms}});
    move.next(view, at(10ms));
    EXPECT_EQ(move.next(waited_for(kFails), at(late)).act, Act::kWait);
    EXPECT_EQ(move.next(waited_for(kFails), at(late + kPatience)).act, Act::kGiveUp);
  }
  Move move;
  expect_all(move, {{"begin", away(), 0ms, Act::kRestore, kNever},
                    {"it fails", waited_for(kFails), 1ms, Act::kWait, 2ms},
                    {"a lower bound is no success", held(), 5ms, Act::kWait, Move::kDrainLook},
                    {"nor is a higher one", away(), 10ms, Act::kRestore, kNever},
                    {"it fails again", waited_for(kFails), late - 1ns, Act::kWait, 2ms},
                    {"that is enough", waited_for(kFails), late, Act::kGiveUp, kNever}});
  Move other;
  expect_all(other, {{"begin", away(), 0ms, Act::kRestore, kNever},
                     {"it fails", waited_for(kFails), 1ms, Act::kWait, 2ms},
                     {"its memory is freed", {}, 5ms, Act::kRest, kNever},
                     {"there is more", away(), late, Act::kRestore, kNever},
                     {"that fails for the first time", waited_for(kFails), late, Act::kWait, 2ms}});
}

TEST(Move, StrandsAProgramThatTheDriverRefusesForTooLong) {
  const Step moves{.state = JobState::kRunning, .moved = 1};
  Move move;
  base::TimePoint time = at(0ms);
  const auto refuse = [&](base::Duration duration, const View& view) {
    for (const base::TimePoint end = time + duration; time < end; time += 10ms) move.next(view, time);
  };
  move.next(away(), time);
  refuse(2 * kPatience, returning(kIsRefused));
  EXPECT_FALSE(move.is_stranded()) << "without the lease it waits for its turn";
  refuse(kPatience / 2, waited_for(kIsRefused));
  refuse(kPatience, returning(kIsRefused));
  EXPECT_FALSE(move.is_stranded()) << "half of its patience is left for its next turn";
  refuse(kPatience / 2 + 50ms, waited_for(kIsRefused));
  EXPECT_TRUE(move.is_stranded());
  refuse(kPatience, returning(kIsRefused));
  EXPECT_TRUE(move.is_stranded()) << "until something has come";
  move.next(waited_for(moves), time);
  EXPECT_FALSE(move.is_stranded());
  // A claim takes room, and that must not make the wait endless.
  move.claimed(time);
  View claimed = waited_for(kIsRefused);
  claimed.step->lacks_room = true;
  refuse(kPatience + 50ms, claimed);
  EXPECT_TRUE(move.is_stranded());
  move.next({}, time);  // gives the claim back
  move.next({}, time);
  EXPECT_FALSE(move.is_stranded()) << "its memory is freed";
  // The daemon's word is awaited for as long as it takes, and time in which the process stood still is no wait.
  move.next(away(), time);
  claimed.step->lacks_room = true;
  refuse(2 * kPatience, claimed);
  move.next(waited_for(kIsRefused), time);
  move.next(waited_for(kIsRefused), time + 1h);
  EXPECT_FALSE(move.is_stranded());
}

// The mover cannot be started: without an error its programs would wait for ever.
TEST(Move, StrandsASeatThatHasNoMover) {
  Move move;
  base::TimePoint time = at(0ms);
  const auto fail = [&](base::Duration duration, const View& view) {
    for (const base::TimePoint end = time + duration; time < end; time += 10ms) move.next(view, time);
  };
  move.next(away(), time);
  fail(2 * kPatience, returning(kHasNoMover));
  EXPECT_FALSE(move.is_stranded()) << "its program does not wait for it";
  fail(kPatience + 50ms, waited_for(kHasNoMover));
  EXPECT_TRUE(move.is_stranded());
  move.next(waited_for({.state = JobState::kRunning, .moved = 1}), time);
  EXPECT_FALSE(move.is_stranded()) << "another one is there";
}

TEST(Move, ClaimsMemoryThatTheDriverDoesNotHave) {
  Move move;
  const View lacks_room = returning({.state = JobState::kStarved, .lacks_room = true});
  expect_all(move, {{"begin", away(), 0ms, Act::kRestore, kNever},
                    {"the driver has none", returning(kIsRefused), 0ms, Act::kClaim, 2ms},
                    {"again", away(), 2ms, Act::kRestore, kNever},
                    {"nor now", returning(kIsRefused), 2ms, Act::kClaim, 4ms}});
  EXPECT_EQ(move.starved_since(), at(0ms));
  move.claimed(at(10ms));
  expect_all(move, {{"the claim has taken the room", lacks_room, 20ms, Act::kWait, Move::kClaimHolds - 10ms},
                    {"a claim holds", away(), 30ms, Act::kRestore, kNever},
                    {"no longer than that", away(), 10ms + Move::kClaimHolds, Act::kRelease, 0ns},
                    {"then", away(), 10ms + Move::kClaimHolds, Act::kRestore, kNever}});
  for (const View& view : {View{}, held(), drained()}) {
    move.next(away(), at(2s));
    move.claimed(at(2s));
    expect_all(move, {{"a claim is for a restoration", view, 2s, Act::kRelease, 0ns}});
    EXPECT_NE(move.next(view, at(2s)).act, Act::kRelease) << "once";
  }
}

}  // namespace
}  // namespace gpumux::shim
