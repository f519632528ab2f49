// SPDX-License-Identifier: Apache-2.0
// The lease trace as a timeline for Perfetto (https://ui.perfetto.dev): events in, packets out.
//
// The timeline keeps only the slices that are open at a moment, so a trace may be as long as it likes. A trace that is
// cut off at its beginning has ends without beginnings, which are left out. A slice that has not ended when the trace
// does stays open.
//
// Tracks: of each GPU, the program that has it. Below it, for each program on it, its leases, its waits, and when its
// memory was not on the GPU. Of each job, its states; an arrow goes from it to the first lease of each of its programs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api_client/holds.h"
#include "api_client/jobs.h"
#include "api_client/types.h"
#include "base/clock.h"

namespace gpumux::perfetto {
class TracePacket;
class TrackEvent;
}  // namespace gpumux::perfetto

namespace gpumux::cli {

class Timeline {
 public:
  using Write = std::function<void(const std::string& bytes)>;

  // The same moment by the clocks of the machine; relates the timeline to those of other tools.
  struct Clocks {
    base::Duration realtime{};
    base::Duration monotonic{};
    base::Duration boottime{};
  };

  Timeline(const Clocks& clocks, Write write);

  // Jobs that were not done, before any event. An event may name one whose beginning is not in the trace.
  void expect(const std::vector<api_client::Job>& jobs);
  void add(const api_client::TraceEvent& event);
  // Shows the states of expected jobs of which no event has said anything: they have not changed.
  void show_unchanged();

 private:
  using Seat = std::pair<std::uint64_t, std::uint32_t>;  // tenant, GPU
  enum class Track : std::uint64_t { kLeases = 0, kWaits = 1, kMemory = 2 };
  struct Line {
    std::uint64_t track = 0;
    std::vector<base::TimePoint> open{};  // beginnings of slices, outermost first
    base::TimePoint ended{};              // when a slice ended last
  };
  struct OfGpu {
    Line line;
    std::optional<Seat> holder{};  // whose slice is open
    std::map<Seat, std::string> holders{};
  };
  struct OfJob {
    Line line;
    std::string state{};  // as expected
    base::TimePoint since{};
  };
  using Notes = std::vector<std::pair<std::string, std::string>>;
  static constexpr std::uint64_t kNoFlow = 0;

  void of_seat(const api_client::TraceEvent& event, const api_client::Holds::Step& step);
  void begin_lease(const api_client::TraceEvent& event);
  void of_job(const api_client::TraceEvent& event);
  OfJob& job(std::uint64_t id, const std::string& name);
  std::uint64_t flow_to(const api_client::TraceEvent& event);
  OfGpu& gpu(std::uint32_t index);
  Line& line(const api_client::TraceEvent& event, Track track);
  std::uint64_t describe(std::uint64_t parent, const std::string& name, int rank);
  void mark(const Line& line, base::TimePoint time, int type, const std::string& name, const Notes& notes,
            std::uint64_t flow);
  void begin(Line& line, base::TimePoint time, const std::string& name, const Notes& notes = {},
             std::uint64_t flow = kNoFlow);
  void end(Line& line, base::TimePoint time, std::size_t down_to = 0);
  void past(Line& line, const api_client::TraceEvent& event);
  void instant(const Line& line, base::TimePoint time, const std::string& name, const Notes& notes = {},
               std::uint64_t flow = kNoFlow);
  void hand_over(OfGpu& gpu, base::TimePoint time, std::optional<Seat> to);
  perfetto::TrackEvent& start(perfetto::TracePacket& packet, const Line& line, base::TimePoint time, int type) const;
  void write(const perfetto::TracePacket& packet);

  Write write_;
  base::Duration to_monotonic_;  // added to REALTIME
  std::uint64_t next_track_ = 1;
  std::uint64_t all_jobs_ = 0;  // the track above theirs; 0: there is none yet
  api_client::Holds holds_;
  std::map<std::uint32_t, OfGpu> gpus_;
  std::map<Seat, std::map<Track, Line>> seats_;
  std::map<std::uint64_t, OfJob> jobs_;  // that are not done
};

}  // namespace gpumux::cli
