// SPDX-License-Identifier: Apache-2.0
#include "cli/timeline/timeline.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "cli/timeline/perfetto.pb.h"

namespace gpumux::cli {
namespace {

// Clocks that Perfetto has numbers for.
constexpr std::uint32_t kRealtime = 1;
constexpr std::uint32_t kMonotonic = 3;
constexpr std::uint32_t kBoottime = 6;
// One writer of packets: their order is the order of time.
constexpr std::uint32_t kSequence = 1;
// TrackDescriptor.child_ordering: by sibling_order_rank.
constexpr int kByRank = 3;
// Below all GPUs.
constexpr int kRankOfJobs = 1'000'000;

std::string who(const api_client::TraceEvent& event) {
  return (event.program.empty() ? "?" : event.program) + " (" + std::to_string(event.pid) + ")";
}

// Events that are a moment of a program, and say nothing of what begins or ends.
bool is_moment(std::string_view event) {
  static constexpr std::array<std::string_view, 7> kMoments{"stall",    "partner", "silent", "answering",
                                                            "standing", "kill",    "refused"};
  for (const std::string_view moment : kMoments) {
    if (event == moment) return true;
  }
  return false;
}

}  // namespace

Timeline::Timeline(const Clocks& clocks, Write write)
    : write_(std::move(write)), to_monotonic_(clocks.monotonic - clocks.realtime) {
  perfetto::TracePacket packet;
  packet.set_trusted_packet_sequence_id(kSequence);
  auto* snapshot = packet.mutable_clock_snapshot();
  for (const auto& [clock, time] : {std::pair{kRealtime, clocks.realtime}, std::pair{kMonotonic, clocks.monotonic},
                                    std::pair{kBoottime, clocks.boottime}}) {
    auto* one = snapshot->add_clocks();
    one->set_clock_id(clock);
    one->set_timestamp(static_cast<std::uint64_t>(time.count()));
  }
  snapshot->set_primary_trace_clock(kMonotonic);
  this->write(packet);
}

void Timeline::write(const perfetto::TracePacket& packet) {
  // A trace is a row of such pieces: each is a trace of one packet.
  perfetto::Trace trace;
  *trace.add_packet() = packet;
  write_(trace.SerializeAsString());
}

std::uint64_t Timeline::describe(std::uint64_t parent, const std::string& name, int rank) {
  perfetto::TracePacket packet;
  packet.set_trusted_packet_sequence_id(kSequence);
  auto* track = packet.mutable_track_descriptor();
  track->set_uuid(next_track_);
  track->set_name(name);
  if (parent != 0) track->set_parent_uuid(parent);
  track->set_child_ordering(kByRank);
  track->set_sibling_order_rank(rank);
  write(packet);
  return next_track_++;
}

perfetto::TrackEvent& Timeline::start(perfetto::TracePacket& packet, const Line& line, base::TimePoint time,
                                      int type) const {
  packet.set_trusted_packet_sequence_id(kSequence);
  // MONOTONIC begins when the machine starts. A job may have waited since before that.
  packet.set_timestamp(static_cast<std::uint64_t>(std::max(time, base::TimePoint()).time_since_epoch().count()));
  packet.set_timestamp_clock_id(kMonotonic);
  auto* event = packet.mutable_track_event();
  event->set_type(static_cast<perfetto::TrackEvent::Type>(type));
  event->set_track_uuid(line.track);
  return *event;
}

void Timeline::mark(const Line& line, base::TimePoint time, int type, const std::string& name, const Notes& notes,
                    std::uint64_t flow) {
  perfetto::TracePacket packet;
  auto& event = start(packet, line, time, type);
  event.set_name(name);
  for (const auto& [key, value] : notes) {
    auto* note = event.add_debug_annotations();
    note->set_name(key);
    note->set_string_value(value);
  }
  if (flow != kNoFlow) event.add_flow_ids(flow);
  write(packet);
}

void Timeline::begin(Line& line, base::TimePoint time, const std::string& name, const Notes& notes,
                     std::uint64_t flow) {
  mark(line, time, perfetto::TrackEvent::TYPE_SLICE_BEGIN, name, notes, flow);
  line.open.push_back(time);
}

void Timeline::end(Line& line, base::TimePoint time, std::size_t down_to) {
  if (line.open.size() > down_to) line.ended = time;
  for (; line.open.size() > down_to; line.open.pop_back()) {
    perfetto::TracePacket packet;
    start(packet, line, time, perfetto::TrackEvent::TYPE_SLICE_END);
    write(packet);
  }
}

// A slice of which the trace has nothing before its end. All other open slices end with it. Readers sort packets by
// time, so this slice is around those that began later, and an end belongs to the slice that began last.
void Timeline::past(Line& line, const api_client::TraceEvent& event) {
  base::TimePoint begun = std::max(event.time - event.lasted, line.ended);
  if (!line.open.empty()) begun = std::max(begun, line.open.front());
  begin(line, begun, event.before);
  end(line, event.time);
}

void Timeline::instant(const Line& line, base::TimePoint time, const std::string& name, const Notes& notes,
                       std::uint64_t flow) {
  mark(line, time, perfetto::TrackEvent::TYPE_INSTANT, name, notes, flow);
}

Timeline::OfGpu& Timeline::gpu(std::uint32_t index) {
  const auto found = gpus_.find(index);
  if (found != gpus_.end()) return found->second;
  const std::uint64_t track = describe(0, "GPU " + std::to_string(index), static_cast<int>(index));
  return gpus_.emplace(index, OfGpu{.line = {.track = track}}).first->second;
}

Timeline::Line& Timeline::line(const api_client::TraceEvent& event, Track track) {
  auto& lines = seats_[{event.tenant, *event.gpu}];
  if (const auto found = lines.find(track); found != lines.end()) return found->second;
  const std::uint64_t parent = gpu(*event.gpu).line.track;
  static constexpr std::array<std::string_view, 3> kSuffixes{"", " waits", " memory"};
  const std::string name = who(event) + std::string(kSuffixes[static_cast<std::size_t>(track)]);
  const int rank = static_cast<int>(event.tenant) * 3 + static_cast<int>(track);
  return lines.emplace(track, Line{.track = describe(parent, name, rank)}).first->second;
}

// The GPU's own line has one slice at a time, of the seat that got it last.
void Timeline::hand_over(OfGpu& gpu, base::TimePoint time, std::optional<Seat> to) {
  if (gpu.holder == to) return;
  end(gpu.line, time);
  gpu.holder = to;
  if (to) begin(gpu.line, time, gpu.holders.at(*to));
}

void Timeline::begin_lease(const api_client::TraceEvent& event) {
  const std::uint64_t flow = flow_to(event);
  Line& leases = line(event, Track::kLeases);
  end(leases, event.time);
  Notes notes{{"epoch", std::to_string(event.epoch)}};
  if (!event.pod.empty()) notes.emplace_back("pod", event.pod);
  if (event.job != 0) notes.emplace_back("job", std::to_string(event.job));
  begin(leases, event.time,
        event.detail == "borrowed" ? "borrows"
        : event.lease == "shared"  ? "holds, shared"
                                   : "holds",
        notes, flow);
}

void Timeline::of_seat(const api_client::TraceEvent& event, const api_client::Holds::Step& step) {
  const base::TimePoint time = event.time;
  const Seat seat{step.tenant, step.gpu};
  const std::string& what = event.event;
  OfGpu& here = gpu(step.gpu);
  // A track without a line has no open slice.
  const auto end_open = [&](Track track, std::size_t down_to = 0) {
    const auto of = seats_.find(seat);
    if (of == seats_.end()) return;
    if (const auto found = of->second.find(track); found != of->second.end()) end(found->second, time, down_to);
  };
  if (is_moment(what))
    instant(line(event, Track::kLeases), time, what, event.detail.empty() ? Notes{} : Notes{{"detail", event.detail}});
  if (step.asks) {
    Line& waits = line(event, Track::kWaits);
    if (!waits.open.empty()) return;
    std::string holders;
    for (const auto& [other, name] : here.holders) holders += (holders.empty() ? "" : ", ") + name;
    begin(waits, time, "waits", holders.empty() ? Notes{} : Notes{{"held by", holders}});
  } else if (step.gets) {
    end_open(Track::kWaits);
    begin_lease(event);
    here.holders[seat] = who(event);
    hand_over(here, time, seat);
  } else if (what == "revoke") {
    Line& leases = line(event, Track::kLeases);
    if (leases.open.empty()) return;
    end(leases, time, 1);
    begin(leases, time, "leaves: " + event.detail);
  } else if (step.closes) {
    Line& leases = line(event, Track::kLeases);
    if (leases.open.empty()) return;
    // A program that gives its lease up by itself leaves from here on.
    if (leases.open.size() == 1) begin(leases, time, "leaves");
    if (leases.open.size() == 2) begin(leases, time, "drains");
  } else if (what == "evicted") {
    Line& memory = line(event, Track::kMemory);
    if (memory.open.empty()) begin(memory, time, "not all on the GPU");
  } else if (what == "moves") {
    end_open(Track::kMemory, 1);
    if (event.detail != "out" && event.detail != "in") return;
    Line& memory = line(event, Track::kMemory);
    if (memory.open.empty()) begin(memory, time, "not all on the GPU");
    begin(memory, time, event.detail);
  } else if (what == "complete") {
    end_open(Track::kMemory);
  } else if (what == "suspend") {
    Line& waits = line(event, Track::kWaits);
    end(waits, time);
    begin(waits, time, "suspended");
  } else if (what == "resume") {
    end_open(Track::kWaits);
  }
  if (step.leaves) {
    if (!event.before.empty()) past(line(event, Track::kLeases), event);
    end_open(Track::kLeases);
    here.holders.erase(seat);
    if (here.holder == seat)
      hand_over(here, time, here.holders.empty() ? std::nullopt : std::optional(here.holders.begin()->first));
  }
  if (step.goes) {
    end_open(Track::kWaits);
    end_open(Track::kMemory);
    seats_.erase(seat);
  }
}

Timeline::OfJob& Timeline::job(std::uint64_t id, const std::string& name) {
  const auto found = jobs_.find(id);
  if (found != jobs_.end()) return found->second;
  if (all_jobs_ == 0) all_jobs_ = describe(0, "Jobs", kRankOfJobs);
  const std::uint64_t track = describe(all_jobs_, name + " (job " + std::to_string(id) + ")", static_cast<int>(id));
  return jobs_.emplace(id, OfJob{.line = {.track = track}}).first->second;
}

// The first lease of a job's program is marked at the job, too. The arrow between both has the number of the lease's
// track.
std::uint64_t Timeline::flow_to(const api_client::TraceEvent& event) {
  const auto of = jobs_.find(event.job);
  if (of == jobs_.end() || seats_[{event.tenant, *event.gpu}].contains(Track::kLeases)) return kNoFlow;
  const std::uint64_t flow = line(event, Track::kLeases).track;
  instant(of->second.line, event.time, who(event) + " on GPU " + std::to_string(*event.gpu), {}, flow);
  return flow;
}

// A job that the viewer may not see has only its time.
void Timeline::of_job(const api_client::TraceEvent& event) {
  if (event.job == 0) return;
  OfJob& of = job(event.job, event.name);
  of.state.clear();
  if (of.line.open.empty()) {
    past(of.line, event);
  } else {
    end(of.line, event.time);
  }
  if (event.detail != "done") return begin(of.line, event.time, event.detail);
  jobs_.erase(event.job);
}

void Timeline::expect(const std::vector<api_client::Job>& jobs) {
  for (const api_client::Job& one : jobs) {
    // Of a job without a name its owner alone may know more.
    if (one.name.empty() || one.state_since_unix_ns == 0) continue;
    OfJob& of = job(one.id, one.name);
    of.state = one.state;
    of.since = base::TimePoint(base::Duration(one.state_since_unix_ns) + to_monotonic_);
  }
}

void Timeline::show_unchanged() {
  for (auto& [id, of] : jobs_) {
    if (!of.state.empty()) begin(of.line, of.since, of.state);
  }
}

void Timeline::add(const api_client::TraceEvent& event) {
  if (event.event == "job") return of_job(event);
  if (event.event == "settings" && event.gpu) return instant(gpu(*event.gpu).line, event.time, "settings");
  for (const api_client::Holds::Step& step : holds_.add(event)) {
    // A program that goes does so from each GPU.
    api_client::TraceEvent here = event;
    here.gpu = step.gpu;
    of_seat(here, step);
  }
}

}  // namespace gpumux::cli
