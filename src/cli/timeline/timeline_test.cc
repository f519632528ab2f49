// SPDX-License-Identifier: Apache-2.0
// Goal: a timeline says what the trace says, and is one that viewers can show: slices of a track nest. Method: events
// by hand and at random by seed; the test reads the file with the messages that wrote it. tests/e2e/timeline_test.py
// reads one with protoc, and with Perfetto's own reader where there is one.
#include "cli/timeline/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "cli/timeline/perfetto.pb.h"

namespace gpumux::cli {
namespace {

using api_client::TraceEvent;
using perfetto::TrackEvent;
using namespace std::chrono_literals;

class TimelineTest : public ::testing::Test {
 protected:
  TraceEvent event(const std::string& name, std::uint64_t tenant, const std::string& detail = "") {
    TraceEvent made;
    made.time = base::TimePoint(++now_ * 1ms);
    made.gpu = 0;
    made.event = name;
    made.tenant = tenant;
    made.pid = static_cast<std::int64_t>(4000 + tenant);
    made.program = "p" + std::to_string(tenant);
    made.epoch = now_;
    made.lease = name == "grant" ? "exclusive" : "";
    made.detail = detail;
    return made;
  }
  perfetto::Trace trace() {
    perfetto::Trace read;
    EXPECT_TRUE(read.ParseFromString(bytes_));
    return read;
  }
  // "GPU 0|p1 (4001): 3-5 holds, 4-5 leaves: quantum" for each track, in the order of its description. Fails if
  // anything does not nest.
  std::vector<std::string> tracks() {
    struct Seen {
      std::string title;
      std::vector<std::string> slices;
      std::vector<std::size_t> open;
    };
    std::map<std::uint64_t, Seen> seen;
    const perfetto::Trace read = trace();
    std::vector<perfetto::TracePacket> packets(read.packet().begin(), read.packet().end());
    // As a reader does: packets without a time stay in front.
    std::stable_sort(packets.begin(), packets.end(),
                     [](const auto& a, const auto& b) { return a.timestamp() < b.timestamp(); });
    for (const perfetto::TracePacket& packet : packets) {
      if (packet.has_track_descriptor()) {
        const auto& track = packet.track_descriptor();
        EXPECT_FALSE(seen.contains(track.uuid()));
        const std::string parent = track.parent_uuid() != 0 ? seen.at(track.parent_uuid()).title + "|" : "";
        seen[track.uuid()].title = parent + track.name();
      } else if (packet.has_track_event()) {
        const TrackEvent& one = packet.track_event();
        EXPECT_TRUE(seen.contains(one.track_uuid())) << "not described";
        EXPECT_EQ(packet.timestamp_clock_id(), 3u);
        Seen& track = seen[one.track_uuid()];
        const std::string at = std::to_string(packet.timestamp() / 1'000'000);
        if (one.type() == TrackEvent::TYPE_SLICE_BEGIN) {
          track.open.push_back(track.slices.size());
          track.slices.push_back(at + "- " + one.name());
        } else if (one.type() == TrackEvent::TYPE_SLICE_END) {
          EXPECT_FALSE(track.open.empty()) << "an end without a beginning: " << track.title;
          if (track.open.empty()) continue;
          std::string& slice = track.slices[track.open.back()];
          slice.insert(slice.find('-') + 1, at);
          track.open.pop_back();
        } else {
          track.slices.push_back(at + " " + one.name());
        }
      }
    }
    std::vector<std::string> lines;
    for (const auto& [id, track] : seen) {
      std::string line = track.title + ":";
      for (const std::string& slice : track.slices) line += (&slice == &track.slices.front() ? " " : ", ") + slice;
      lines.push_back(line);
    }
    return lines;
  }

  std::string bytes_;
  std::uint64_t now_ = 0;
  Timeline timeline_{{5s, 6s, 7s}, [this](const std::string& bytes) { bytes_ += bytes; }};
};

TEST_F(TimelineTest, TwoProgramsAlternate) {
  for (const TraceEvent& one :
       {event("request", 1), event("grant", 1), event("request", 2), event("revoke", 1, "quantum"),
        event("gate_closed", 1), event("grant", 2), event("drained", 1), event("evicted", 1), event("moves", 1, "out"),
        event("moves", 1, "nowhere"), event("moves", 1, "in"), event("complete", 1), event("gone", 2)}) {
    timeline_.add(one);
  }
  EXPECT_EQ(tracks(), (std::vector<std::string>{
                          "GPU 0: 2-6 p1 (4001), 6-13 p2 (4002)",
                          "GPU 0|p1 (4001) waits: 1-2 waits",
                          "GPU 0|p1 (4001): 2-7 holds, 4-7 leaves: quantum, 5-7 drains",
                          "GPU 0|p2 (4002) waits: 3-6 waits",
                          "GPU 0|p2 (4002): 6-13 holds",
                          "GPU 0|p1 (4001) memory: 8-12 not all on the GPU, 9-10 out, 11-12 in",
                      }));
}

TEST_F(TimelineTest, AnIdleHoldEndsWithItsLease) {
  timeline_.add(event("grant", 1));
  now_ = 9;
  TraceEvent drained = event("drained", 1);
  drained.before = "idle";
  drained.lasted = 4ms;
  timeline_.add(drained);
  // Nothing is known of a lease that began before the trace.
  timeline_.add(drained);
  EXPECT_EQ(tracks(), (std::vector<std::string>{"GPU 0: 1-10 p1 (4001)", "GPU 0|p1 (4001): 1-10 holds, 6-10 idle"}));
}

TEST_F(TimelineTest, AnIdleHoldIsWholeIfTheGateWasClosedBeforeItsEnd) {
  timeline_.add(event("grant", 1));
  now_ = 8;
  timeline_.add(event("gate_closed", 1));
  TraceEvent drained = event("drained", 1);
  drained.before = "idle";
  drained.lasted = 4ms;
  timeline_.add(drained);
  EXPECT_EQ(tracks(), (std::vector<std::string>{
                          "GPU 0: 1-10 p1 (4001)",
                          "GPU 0|p1 (4001): 1-10 holds, 6-10 idle, 9-10 leaves, 9-10 drains",
                      }));
}

TEST_F(TimelineTest, AnIdleHoldIsNotPartlyWithinWhatEndedBefore) {
  for (const TraceEvent& one : {event("grant", 1), event("revoke", 1, "quantum"), event("grant", 1)})
    timeline_.add(one);
  now_ = 5;
  TraceEvent drained = event("drained", 1);
  drained.before = "idle";
  drained.lasted = 4ms;
  timeline_.add(drained);
  EXPECT_EQ(tracks(), (std::vector<std::string>{
                          "GPU 0: 1-6 p1 (4001)",
                          "GPU 0|p1 (4001): 1-3 holds, 2-3 leaves: quantum, 3-6 holds, 3-6 idle",
                      }));
}

TEST_F(TimelineTest, AJobIsLinkedToItsPrograms) {
  const auto job = [&](const std::string& before, const std::string& state) {
    TraceEvent made = event("job", 0, state);
    made.gpu.reset();
    made.job = 17;
    made.name = "train";
    made.before = before;
    made.lasted = 2ms;
    return made;
  };
  const auto of_job = [&](TraceEvent made) {
    made.job = 17;
    return made;
  };
  now_ = 2;
  for (const TraceEvent& one : {job("queued", "starting"), job("starting", "running"), of_job(event("grant", 1)),
                                of_job(event("drained", 1)), of_job(event("grant", 1)), job("running", "done")})
    timeline_.add(one);
  TraceEvent hidden = job("running", "done");
  hidden.job = 0;
  timeline_.add(hidden);
  EXPECT_EQ(tracks(), (std::vector<std::string>{
                          "Jobs:",
                          "Jobs|train (job 17): 1-3 queued, 3-4 starting, 4-8 running, 5 p1 (4001) on GPU 0",
                          "GPU 0: 5-6 p1 (4001), 7- p1 (4001)",
                          "GPU 0|p1 (4001): 5-6 holds, 7- holds",
                      }));
  // The arrow is to the first lease alone.
  std::vector<std::string> ends;
  const perfetto::Trace read = trace();
  for (const perfetto::TracePacket& packet : read.packet()) {
    for (const std::uint64_t flow : packet.track_event().flow_ids())
      ends.push_back(std::to_string(flow) + " " + packet.track_event().name());
  }
  EXPECT_EQ(ends, (std::vector<std::string>{"4 p1 (4001) on GPU 0", "4 holds"}));
}

TEST_F(TimelineTest, JobsThatDoNotChangeAreShownAsTheyAre) {
  api_client::Job unchanged;
  unchanged.id = 3;
  unchanged.name = "waiting";
  unchanged.state = "queued";
  unchanged.state_since_unix_ns = 1'000'000'000 - 998'000'000;  // REALTIME is a second behind MONOTONIC here
  api_client::Job changed = unchanged, nameless = unchanged;
  changed.id = 4;
  changed.name = "running";
  nameless.id = 5;
  nameless.name = "";
  timeline_.expect({unchanged, changed, nameless});
  now_ = 1007;
  TraceEvent ended = event("job", 0, "suspending");
  ended.gpu.reset();
  ended.job = 4;
  ended.name = "running";
  ended.before = "running";
  ended.lasted = 3ms;
  timeline_.add(ended);
  timeline_.show_unchanged();
  EXPECT_EQ(tracks(), (std::vector<std::string>{"Jobs:", "Jobs|waiting (job 3): 1002- queued",
                                                "Jobs|running (job 4): 1005-1008 running, 1008- suspending"}));
}

TEST_F(TimelineTest, AJobThatIsOlderThanTheMachinesStartIsShownFromThere) {
  api_client::Job waiting;
  waiting.id = 3;
  waiting.name = "waiting";
  waiting.state = "queued";
  waiting.state_since_unix_ns = 1'000'000'000;
  bytes_.clear();
  Timeline started_late({100s, 6s, 6s}, [this](const std::string& bytes) { bytes_ += bytes; });
  started_late.expect({waiting});
  started_late.show_unchanged();
  EXPECT_EQ(tracks(), (std::vector<std::string>{"Jobs:", "Jobs|waiting (job 3): 0- queued"}));
}

TEST_F(TimelineTest, ATraceThatIsCutOffHasNoEndsWithoutBeginnings) {
  for (const TraceEvent& one : {event("drained", 1), event("moves", 1, "nowhere"), event("complete", 1),
                                event("gate_closed", 1), event("revoke", 1, "quantum"), event("gone", 1)}) {
    timeline_.add(one);
  }
  EXPECT_EQ(tracks(), (std::vector<std::string>{"GPU 0:", "GPU 0|p1 (4001):"}));
}

TEST_F(TimelineTest, RelatesTheClocks) {
  const perfetto::Trace read = trace();
  ASSERT_EQ(read.packet_size(), 1);
  const auto& clocks = read.packet(0).clock_snapshot().clocks();
  ASSERT_EQ(clocks.size(), 3);
  EXPECT_EQ(clocks[0].clock_id(), 1u);
  EXPECT_EQ(clocks[0].timestamp(), 5'000'000'000u);
  EXPECT_EQ(clocks[1].clock_id(), 3u);
  EXPECT_EQ(clocks[2].clock_id(), 6u);
}

TEST_F(TimelineTest, WhateverComesNests) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::vector<std::string> names{"request", "grant",   "revoke",   "gate_closed", "drained", "close",
                                       "gone",    "evicted", "complete", "suspend",     "resume",  "stall",
                                       "claim",   "kill",    "settings", "connect",     "job",     "moves"};
  for (int i = 0; i < 20'000; ++i) {
    TraceEvent one = event(names[random() % names.size()], 1 + random() % 4, random() % 2 == 0 ? "quantum" : "");
    if (one.event == "claim") one.detail = std::array{"waiting", "holding", "draining"}[random() % 3];
    if (one.event == "moves") one.detail = std::array{"out", "in", "nowhere"}[random() % 3];
    if (one.event == "grant" && random() % 2 == 0) one.lease = "shared";
    if (one.event == "connect" || one.event == "job") one.gpu.reset();
    one.job = random() % 4;
    if (one.event == "job") one.detail = std::array{"running", "suspended", "done"}[random() % 3];
    if (random() % 4 == 0) one.before = "idle";
    if (!one.before.empty()) one.lasted = base::Duration(1ms) * static_cast<std::int64_t>(random() % 20);
    timeline_.add(one);
  }
  EXPECT_GT(tracks().size(), 100u);
}

}  // namespace
}  // namespace gpumux::cli
