// SPDX-License-Identifier: Apache-2.0
// Goal: the model follows the daemon's answers, a daemon that goes and comes back too. Method: answers and times
// written by hand.
#include "top/model.h"

#include <gtest/gtest.h>

#include "top/sample.h"

namespace gpumux::top {
namespace {

using namespace std::chrono_literals;

api_client::Snapshot with_tenants(std::initializer_list<std::uint64_t> tenants) {
  api_client::Snapshot snapshot;
  api_client::Gpu& gpu = snapshot.gpus.emplace_back();
  for (const std::uint64_t tenant : tenants) gpu.seats.push_back(sample_seat(tenant, "alpha", "idle"));
  return snapshot;
}

std::string event(std::uint64_t sequence, double seconds, const std::string& kind, const std::string& more = "") {
  return "{\"sequence\":" + std::to_string(sequence) +
         ",\"time_ns\":" + std::to_string(at(seconds).time_since_epoch().count()) + ",\"gpu\":0,\"event\":\"" + kind +
         "\",\"tenant\":7,\"pid\":7,\"program\":\"alpha\"" + more + "}\n";
}

TEST(Model, ProgramsKeepTheirMarks) {
  Model model("/run/gpumux");
  model.take_snapshot(with_tenants({3, 5}), at(0));
  EXPECT_EQ(model.mark_of(0, 3).letter, 'a');
  // Programs that have ended already have marks, too.
  ASSERT_TRUE(model.take_trace(event(1, 1, "drained")));
  EXPECT_EQ(model.mark_of(0, 7).letter, 'c');
  // As long as the timeline may show them.
  model.take_snapshot(with_tenants({5}), at(1) + kHistory);
  EXPECT_EQ(model.mark_of(0, 7).letter, 'c');
  model.take_snapshot(with_tenants({5}), at(2) + kHistory);
  EXPECT_EQ(model.mark_of(0, 7).letter, '?');
}

TEST(Model, ProgramsKeepTheirMarksWhenADaemonComesBack) {
  Model model("/run/gpumux");
  model.take_snapshot(with_tenants({3, 5}), at(0));
  model.begin_anew();
  // Their processes are the same; their numbers are not, nor are their order.
  api_client::Snapshot snapshot = with_tenants({3, 5});
  snapshot.gpus[0].seats[0].tenant = 2;
  snapshot.gpus[0].seats[1].tenant = 1;
  model.take_snapshot(std::move(snapshot), at(1));
  EXPECT_EQ(model.mark_of(0, 2).letter, 'a');
  EXPECT_EQ(model.mark_of(0, 1).letter, 'b');
}

// The history begins with the latest events of all GPUs, and has none of a program that has held its GPU for long.
TEST(Model, TurnsOfBeforeTheTraceBeginWithTheStatus) {
  Model model("");
  api_client::Snapshot snapshot = with_tenants({3, 5});
  for (api_client::Seat& seat : snapshot.gpus[0].seats) {
    seat.phase = "holding";
    seat.lease = "shared";
  }
  model.take_snapshot(std::move(snapshot), at(100));
  ASSERT_TRUE(model.take_trace(event(70'000, 99, "request")));
  const auto turns = model.history().turns(0, at(101));
  ASSERT_EQ(turns.size(), 2u);
  for (const auto& turn : turns) {
    EXPECT_EQ(turn.from, at(98));
    EXPECT_EQ(turn.to, at(101));
  }
}

TEST(Model, TheTraceIsReadOn) {
  Model model("");
  EXPECT_EQ(model.next_event(), 0u);
  ASSERT_TRUE(model.take_trace(event(40, 1, "grant", ",\"lease\":\"exclusive\",\"job\":12") + event(41, 2, "drained")));
  EXPECT_EQ(model.next_event(), 42u);
  EXPECT_EQ(model.job_of(7), 12u);
  const auto turns = model.history().turns(0, at(3));
  ASSERT_EQ(turns.size(), 1u);
  EXPECT_EQ(turns[0].to, at(2));
  ASSERT_TRUE(model.take_trace(""));
  EXPECT_EQ(model.next_event(), 42u);
  EXPECT_FALSE(model.take_trace("no JSON\n"));
}

TEST(Model, AGapInTheTraceIsNoTurn) {
  Model model("");
  ASSERT_TRUE(model.take_trace(event(1, 1, "grant", ",\"lease\":\"exclusive\"")));
  EXPECT_EQ(model.history().turns(0, at(3)).size(), 1u);
  ASSERT_TRUE(model.take_trace(event(900, 50, "request")));
  EXPECT_TRUE(model.history().turns(0, at(60)).empty());
}

TEST(Model, OldTurnsAreForgotten) {
  Model model("");
  ASSERT_TRUE(model.take_trace(event(1, 1, "grant", ",\"lease\":\"exclusive\"") + event(2, 2, "drained")));
  model.take_snapshot(with_tenants({7}), at(10));
  EXPECT_EQ(model.history().turns(0, at(10)).size(), 1u);
  model.take_snapshot(with_tenants({7}), at(3) + kHistory);
  EXPECT_TRUE(model.history().turns(0, at(3) + kHistory).empty());
}

TEST(Model, JobsAreAskedForWhenOneHasChanged) {
  Model model("");
  EXPECT_TRUE(model.take_job_changes());  // at first
  EXPECT_FALSE(model.take_job_changes());
  ASSERT_TRUE(model.take_trace(event(1, 1, "request")));
  EXPECT_FALSE(model.take_job_changes());
  ASSERT_TRUE(model.take_trace("{\"sequence\":2,\"time_ns\":5,\"event\":\"job\",\"job\":3,\"detail\":\"running\"}\n"));
  EXPECT_TRUE(model.take_job_changes());
}

TEST(Model, ADaemonThatComesBackBeginsAnew) {
  Model model("");
  ASSERT_TRUE(model.take_trace(event(5, 1, "grant", ",\"lease\":\"exclusive\"")));
  model.lose({base::Code::kUnavailable, 0, "gone"}, 100);
  model.lose({base::Code::kUnavailable, 0, "still gone"}, 200);
  ASSERT_TRUE(model.lost());
  EXPECT_EQ(model.lost()->since_unix_ns, 100);
  EXPECT_EQ(model.lost()->why, "still gone");
  EXPECT_TRUE(model.lost()->is_gone);
  model.find();
  model.begin_anew();
  EXPECT_FALSE(model.lost());
  EXPECT_EQ(model.next_event(), 0u);
  EXPECT_TRUE(model.history().turns(0, at(9)).empty());
  EXPECT_TRUE(model.take_job_changes());
}

}  // namespace
}  // namespace gpumux::top
