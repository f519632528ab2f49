// SPDX-License-Identifier: Apache-2.0
// Goal: the picture and the sums tell the truth about a trace, one that is cut off at its beginning too.
// Method: traces of two programs, written by hand.
#include "cli/views/trace_history.h"

#include <gtest/gtest.h>

#include <clocale>
#include <tuple>

namespace gpumux::cli {
namespace {

using namespace std::chrono_literals;

base::TimePoint at(double seconds) { return base::TimePoint(base::Duration(static_cast<std::int64_t>(seconds * 1e9))); }

class TraceHistoryTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { std::setlocale(LC_CTYPE, "C.UTF-8"); }

  void add(double seconds, const std::string& kind, std::uint64_t tenant, const std::string& lease = "") {
    api_client::TraceEvent event;
    event.time = at(seconds);
    event.event = kind;
    event.tenant = tenant;
    event.pid = static_cast<std::int64_t>(tenant);
    event.program = tenant == 7 ? "alpha" : "beta";
    event.lease = lease;
    if (kind != "gone" && kind != "connect") event.gpu = gpu_;
    history_.add(event);
  }
  void grant(double seconds, std::uint64_t tenant) { add(seconds, "grant", tenant, "exclusive"); }
  // The two take turns of 2 s; the second one waits for 1 s.
  void two_turns() {
    add(10, "connect", 7);
    add(10, "request", 7);
    grant(10, 7);
    add(11, "request", 8);
    add(12, "revoke", 7);
    add(12, "gate_closed", 7);
    grant(12, 8);
    add(12.1, "drained", 7);
    add(14, "drained", 8);
  }
  // The bars of eight cells, one for each program.
  std::vector<std::string> bars(double end) {
    history_.finish(at(end));
    std::vector<std::string> rows;
    // Names take ten columns, the figures 26.
    const auto lines = history_.picture({.terminal = true, .columns = 10 + 1 + 8 + 26, .rows = 24});
    for (std::size_t i = 2; i + 1 < lines.size(); ++i) {
      std::string row;
      const std::string rest = lines[i].substr(11);
      for (std::size_t byte = 0, cell = 0; cell < 8; ++cell) {
        const std::size_t size = rest[byte] == ' ' ? 1 : 3;
        row += rest.substr(byte, size);
        byte += size;
      }
      rows.push_back(row);
    }
    return rows;
  }
  std::string summary(double end) {
    history_.finish(at(end));
    std::string text;
    for (const std::string& line : history_.summary(Output{})) text += line + "\n";
    return text;
  }

  TraceHistory history_;
  std::uint32_t gpu_ = 0;
};

TEST_F(TraceHistoryTest, ThePictureShowsWhoHeldWhen) {
  two_turns();
  EXPECT_EQ(bars(14), (std::vector<std::string>{"████    ", "    ████"}));
  const auto lines = history_.picture(Output{});
  EXPECT_EQ(lines[0], "GPU 0, 4.0 s");
  EXPECT_EQ(display_width(lines[2]), display_width(lines[1]));
  EXPECT_TRUE(lines[2].starts_with("alpha (7) ")) << lines[2];
  EXPECT_TRUE(lines[2].ends_with("       1   2.00 s   0.00 s")) << lines[2];
  EXPECT_TRUE(lines[3].ends_with("       1   2.00 s   1.00 s")) << lines[3];
  EXPECT_TRUE(lines[1].ends_with("4.0 s   turns     held   waited")) << lines[1];
}

TEST_F(TraceHistoryTest, WhatIsHeldAtTheEndCounts) {
  grant(0, 7);
  EXPECT_EQ(bars(4), (std::vector<std::string>{"████████"}));
}

TEST_F(TraceHistoryTest, AKilledHolderHoldsNoMore) {
  grant(0, 7);
  add(1, "gone", 7);
  EXPECT_EQ(bars(2), (std::vector<std::string>{"████    "}));
}

TEST_F(TraceHistoryTest, PartOfACellIsLighter) {
  grant(0, 7);
  add(0.5, "drained", 7);
  grant(2, 7);
  add(2.01, "drained", 7);
  EXPECT_EQ(bars(8), (std::vector<std::string>{"▒ ░     "})) << "a short turn is seen";
}

TEST_F(TraceHistoryTest, ALeaseOfBeforeTheTraceIsHeldFromItsBeginning) {
  add(0, "connect", 9);
  add(1, "revoke", 7);
  add(1, "gate_closed", 7);
  add(1, "drained", 7);
  EXPECT_EQ(bars(2), (std::vector<std::string>{"████    "}));
}

// The trace is a ring: a program that has held a GPU for long has no event in it.
TEST_F(TraceHistoryTest, WhatTheTraceDoesNotTellIsAsItIsNow) {
  api_client::Snapshot snapshot;
  api_client::Gpu& gpu = snapshot.gpus.emplace_back();
  for (const auto& [tenant, phase, lease] :
       {std::tuple{7, "holding", "shared"}, {8, "waiting", ""}, {9, "draining", "shared"}, {10, "holding", "shared"}}) {
    api_client::Seat& seat = gpu.seats.emplace_back();
    seat.tenant = static_cast<std::uint64_t>(tenant);
    seat.program = tenant == 7 ? "alpha" : "beta";
    seat.phase = phase;
    seat.lease = lease;
    seat.since = 100s;
  }
  grant(0, 10);
  add(1, "gate_closed", 10);
  for (const auto& phase : phases_of(snapshot, at(3))) history_.add_phase(phase);
  const auto turns = history_.turns(0, at(3));
  ASSERT_EQ(turns.size(), 2u);
  EXPECT_EQ(turns[0].tenant, 7u);
  EXPECT_EQ(turns[0].program, "alpha");
  EXPECT_EQ(turns[0].from, at(-97));
  EXPECT_EQ(turns[0].to, at(3));
  EXPECT_EQ(turns[1].tenant, 10u) << "an event says more than the phase";
  EXPECT_EQ(turns[1].to, at(1));
  add(3.5, "drained", 9);
  add(4, "gate_closed", 7);
  // A picture begins with the first event all the same.
  EXPECT_EQ(bars(4), (std::vector<std::string>{"████████", "        ", "██      "}));
}

TEST_F(TraceHistoryTest, OnlyWhatIsAskedForCounts) {
  history_ = TraceHistory(at(13));
  two_turns();
  const std::string text = summary(14);
  EXPECT_NE(text.find("GPU 0, 1.0 s"), std::string::npos) << text;
  EXPECT_EQ(text.find("alpha"), std::string::npos) << text;
  EXPECT_NE(text.find("beta       8  1.00s  100.0%       0"), std::string::npos) << text;
  EXPECT_NE(text.find("0 switches\n"), std::string::npos) << text;
}

TEST_F(TraceHistoryTest, TheSummaryHasTimesWaitsAndSwitches) {
  two_turns();
  // No program has it for half a second, and the next holder waits half a second for its memory.
  add(14, "evicted", 7);
  add(14, "request", 7);
  grant(14.5, 7);
  add(15, "complete", 7);
  const std::string text = summary(16);
  EXPECT_NE(text.find("PROGRAM  PID   HELD   PART  GRANTS  WAITED  MEAN WAIT  LONGEST WAIT"), std::string::npos)
      << text;
  EXPECT_NE(text.find("alpha      7  3.50s  58.3%       2   500ms      250ms         500ms"), std::string::npos)
      << text;
  EXPECT_NE(text.find("beta       8  2.00s  33.3%       1   1.00s      1.00s         1.00s"), std::string::npos)
      << text;
  EXPECT_NE(text.find("2 switches, 500ms each: no program had the GPU for 500ms while some waited, and holders waited "
                      "500ms for their memory"),
            std::string::npos)
      << text;
}

TEST_F(TraceHistoryTest, GpusAreToldApart) {
  grant(0, 7);
  gpu_ = 1;
  grant(0, 8);
  history_.finish(at(2));
  const auto lines = history_.picture(Output{});
  ASSERT_EQ(lines.size(), 8u);
  EXPECT_EQ(lines[4], "GPU 1, 2.0 s");
  EXPECT_EQ(lines[7], "The program had the GPU: ░ a little, ▒ half, █ all of the time");
}

TEST_F(TraceHistoryTest, ProgramsThatWaitAreShown) {
  grant(0, 7);
  add(0, "request", 8);
  const std::string text = summary(3);
  EXPECT_NE(text.find("beta       8      -    0.0%       0   3.00s      3.00s         3.00s"), std::string::npos)
      << text;
}

// A mean is not longer than the longest: the wait that goes on counts in both.
TEST_F(TraceHistoryTest, AWaitThatGoesOnIsOneOfItsWaits) {
  grant(0, 7);
  add(0, "request", 8);
  add(1, "drained", 7);
  grant(1, 8);
  add(2, "drained", 8);
  grant(2, 7);
  add(2, "request", 8);
  const std::string text = summary(5);
  EXPECT_NE(text.find("beta       8  1.00s  20.0%       1   4.00s      2.00s         3.00s"), std::string::npos)
      << text;
}

TEST_F(TraceHistoryTest, OfNothingItSaysSo) {
  add(0, "connect", 7);
  EXPECT_EQ(summary(1), "No program had a GPU or waited for one.\n");
  EXPECT_EQ(history_.picture(Output{}).size(), 1u);
}

TEST_F(TraceHistoryTest, TurnsAreThereWhileTheyGoOn) {
  two_turns();
  grant(14, 7);
  const auto turns = history_.turns(0, at(15));
  ASSERT_EQ(turns.size(), 3u);
  EXPECT_EQ(turns[0].from, at(10));
  EXPECT_EQ(turns[0].to, at(12));
  EXPECT_EQ(turns[1].program, "beta");
  EXPECT_EQ(turns[2].tenant, 7u);
  EXPECT_EQ(turns[2].to, at(15));
  EXPECT_TRUE(history_.turns(1, at(15)).empty());
}

TEST_F(TraceHistoryTest, WhatIsForgottenIsNotShown) {
  two_turns();
  history_.forget(at(13));
  ASSERT_EQ(history_.turns(0, at(15)).size(), 1u);
  EXPECT_EQ(history_.turns(0, at(15))[0].program, "beta");
  // A program that has been forgotten holds nothing by its end.
  add(16, "gone", 7);
  add(16, "gone", 8);
  history_.forget(at(20));
  EXPECT_TRUE(history_.turns(0, at(20)).empty());
  grant(21, 7);
  EXPECT_EQ(history_.turns(0, at(22)).size(), 1u);
}

}  // namespace
}  // namespace gpumux::cli
