// SPDX-License-Identifier: Apache-2.0
// Goal: which program has a GPU when is as holds_cases.json says, and a trace that is cut off at its beginning is read
// as well as it can be.
// Method: the cases of the table, of programs a, b, c on GPUs 0 and 1; and traces written by hand.
#include "api_client/holds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

namespace gpumux::api_client {
namespace {

using namespace std::chrono_literals;

base::TimePoint at(int seconds) { return base::TimePoint(seconds * 1s); }
std::string text(base::TimePoint time) { return std::to_string(time.time_since_epoch() / 1s); }

// "4 grant a0 shared" is an event of program a on GPU 0 at 4 s; "4 gone a" one of no GPU.
TraceEvent event_of(const std::string& line) {
  std::istringstream words(line);
  int seconds = 0;
  std::string program;
  TraceEvent event;
  words >> seconds >> event.event >> program >> event.detail;
  event.time = at(seconds);
  event.program = program.substr(0, 1);
  event.tenant = static_cast<std::uint64_t>(program[0] - 'a') + 1;
  if (program.size() > 1) event.gpu = program[1] - '0';
  event.lease = event.detail == "shared" ? "shared" : event.event == "grant" ? "exclusive" : "";
  return event;
}

std::string program_of(const Holds::Step& step) {
  return std::string(1, static_cast<char>('a' + step.tenant - 1)) + std::to_string(step.gpu);
}

// All that a trace says, in the words of the table.
class Reading {
 public:
  void add(const std::string& line) {
    const TraceEvent event = event_of(line);
    for (const Holds::Step& step : holds_.add(event)) {
      take(step, false);
      if (step.is_switch) switches.push_back(text(event.time));
    }
  }
  void phase(const std::string& line) {
    if (const auto step = holds_.add_phase(event_of(line))) take(*step, false);
  }
  void finish(int seconds = 1000) {
    for (const Holds::Step& step : holds_.finish(at(seconds))) take(step, true);
    std::sort(spans.begin(), spans.end());
  }

  std::vector<std::string> spans;
  std::vector<std::string> switches;
  std::vector<std::string> unheld;

 private:
  void take(const Holds::Step& step, bool is_open) {
    const auto add = [&](const std::string& word, const std::optional<Holds::Span>& span) {
      if (span) spans.push_back(program_of(step) + word + text(span->from) + "-" + (is_open ? "" : text(span->to)));
    };
    add(" waits ", step.waited);
    add(" holds ", step.held);
    add(" drains ", step.drained);
    if (step.unheld && step.unheld->to > step.unheld->from)
      unheld.push_back(text(step.unheld->from) + "-" + text(step.unheld->to));
  }

  Holds holds_;
};

using Lines = std::vector<std::string>;

TEST(Holds, AreAsTheTableSays) {
  std::ifstream file(HOLDS_CASES);
  const auto cases = nlohmann::json::parse(file);
  ASSERT_GT(cases.size(), 10u);
  for (const auto& one : cases) {
    SCOPED_TRACE(one.at("rule").get<std::string>());
    Reading reading;
    for (const auto& event : one.at("events")) reading.add(event.get<std::string>());
    reading.finish();
    Lines expected = one.at("spans").get<Lines>();
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(reading.spans, expected);
    EXPECT_EQ(reading.switches, one.at("switches").get<Lines>());
  }
}

TEST(Holds, ALeaseOfBeforeTheTraceIsHeldFromItsBeginning) {
  Reading reading;
  for (const std::string line : {"1 evicted b0", "3 gate_closed a0", "4 drained a0", "5 drained b0", "6 gone c"})
    reading.add(line);
  reading.finish();
  EXPECT_EQ(reading.spans, (Lines{"a0 drains 3-4", "a0 holds 1-3", "b0 holds 1-5"}));
}

TEST(Holds, APhaseSaysMoreThanNoEvent) {
  Reading reading;
  reading.add("10 grant a0");
  reading.add("11 evicted b0");
  for (const std::string line : {"2 claim a0 draining", "3 claim b0 holding", "4 claim c0 idle", "5 claim d1 waiting"})
    reading.phase(line);
  reading.finish();
  EXPECT_EQ(reading.spans, (Lines{"a0 holds 10-", "b0 holds 3-", "d1 waits 5-"}));
}

TEST(Holds, TimeInWhichAProgramWaitsAndNoneHoldsIsUnheld) {
  Reading reading;
  for (const std::string line : {"1 request a0", "3 grant a0", "4 request b0", "5 request c0", "6 gate_closed a0",
                                 "8 drained a0", "9 grant b0", "10 drained b0", "10 request a1", "12 gone c"}) {
    reading.add(line);
  }
  reading.finish(20);
  EXPECT_EQ(reading.unheld, (Lines{"1-3", "6-9", "10-12", "10-20"}));
}

TEST(Holds, TheStepSaysHowLongALeaseWas) {
  Holds holds;
  EXPECT_TRUE(holds.add(event_of("1 grant a0")).front().gets);
  EXPECT_FALSE(holds.add(event_of("3 gate_closed a0")).front().tenure);
  EXPECT_TRUE(holds.add(event_of("4 stall a0")).front().leaves);
  const auto drained = holds.add(event_of("6 drained a0"));
  EXPECT_EQ(drained.front().tenure, base::Duration(5s));
  EXPECT_FALSE(drained.front().leaves) << "it has left before";
  EXPECT_FALSE(holds.add(event_of("7 drained a0")).front().tenure);
}

TEST(Holds, AProgramThatHasGoneIsForgotten) {
  Holds holds;
  holds.add(event_of("1 grant a0"));
  EXPECT_EQ(holds.held_since(0, 1), at(1));
  EXPECT_EQ(holds.add(event_of("2 gone a")).size(), 1u);
  EXPECT_EQ(holds.held_since(0, 1), std::nullopt);
  EXPECT_EQ(holds.held_since(1, 1), std::nullopt);
  EXPECT_TRUE(holds.add(event_of("3 gone a")).empty());
}

}  // namespace
}  // namespace gpumux::api_client
