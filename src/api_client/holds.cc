// SPDX-License-Identifier: Apache-2.0
#include "api_client/holds.h"

#include <algorithm>
#include <string>
#include <utility>

namespace gpumux::api_client {
namespace {

using base::TimePoint;

std::optional<Holds::Span> end(std::optional<TimePoint>& since, TimePoint now) {
  if (!since) return std::nullopt;
  return Holds::Span{*std::exchange(since, std::nullopt), now};
}

}  // namespace

std::vector<TraceEvent> phases_of(const Snapshot& snapshot, TimePoint now) {
  std::vector<TraceEvent> phases;
  for (const api_client::Gpu& gpu : snapshot.gpus) {
    for (const api_client::Seat& seat : gpu.seats) {
      TraceEvent& phase = phases.emplace_back();
      phase.time = now - seat.since;
      phase.gpu = gpu.index;
      phase.event = "claim";
      phase.tenant = seat.tenant;
      phase.pid = seat.pid;
      phase.program = seat.program;
      phase.lease = seat.lease;
      // The gate of a draining seat is closed.
      phase.detail = seat.lease.empty() || seat.phase == "draining" ? seat.phase : "holding";
    }
  }
  return phases;
}

std::vector<Holds::Step> Holds::add(const TraceEvent& event) {
  if (!first_) first_ = event.time;
  std::vector<Step> steps;
  if (event.tenant == 0) return steps;
  if (event.event != "gone") {
    if (!event.gpu) return steps;
    Step& step = steps.emplace_back(take(*event.gpu, event));
    Gpu& gpu = gpus_[step.gpu];
    gpu.seen = event.time;
    count_unheld(gpu, event.time, step);
    return steps;
  }
  for (auto& [index, gpu] : gpus_) {
    if (!gpu.seats.contains(event.tenant)) continue;
    Step& step = steps.emplace_back(take(index, event));
    gpu.seats.erase(event.tenant);
    gpu.seen = event.time;
    count_unheld(gpu, event.time, step);
  }
  return steps;
}

std::optional<Holds::Step> Holds::add_phase(const TraceEvent& phase) {
  Gpu& gpu = gpus_[*phase.gpu];
  if (std::exchange(gpu.seats[phase.tenant].is_known, true)) return std::nullopt;
  Step step = take(*phase.gpu, phase);
  count_unheld(gpu, gpu.seen, step);
  return step;
}

std::vector<Holds::Step> Holds::finish(TimePoint end) {
  std::vector<Step> steps;
  TraceEvent event;
  event.time = end;
  event.event = "close";
  for (auto& [index, gpu] : gpus_) {
    for (const auto& [tenant, seat] : gpu.seats) {
      event.tenant = tenant;
      Step& step = steps.emplace_back(take(index, event));
      count_unheld(gpu, end, step);
    }
  }
  return steps;
}

std::optional<TimePoint> Holds::held_since(std::uint32_t gpu, std::uint64_t tenant) const {
  const auto of_gpu = gpus_.find(gpu);
  if (of_gpu == gpus_.end()) return std::nullopt;
  const auto found = of_gpu->second.seats.find(tenant);
  return found == of_gpu->second.seats.end() ? std::nullopt : found->second.holds;
}

Holds::Step Holds::take(std::uint32_t index, const TraceEvent& event) {
  Step step{.gpu = index, .tenant = event.tenant};
  Gpu& gpu = gpus_[index];
  Seat& seat = gpu.seats[event.tenant];
  const std::string& kind = event.event;
  if (kind == "request" || (kind == "claim" && event.detail == "waiting")) {
    step.asks = !seat.waits;
    if (step.asks) seat.waits = event.time;
    seat.is_known = true;
  } else if (kind == "grant" || (kind == "claim" && (event.detail == "holding" || event.detail == "draining"))) {
    begin_lease(gpu, seat, event, step);
  } else if (kind == "gate_closed" || kind == "drained" || kind == "stall" || kind == "close" || kind == "gone") {
    end_lease(seat, event, step);
  }
  return step;
}

void Holds::begin_lease(Gpu& gpu, Seat& seat, const TraceEvent& event, Step& step) {
  seat.is_known = seat.is_leased = step.gets = true;
  step.waited = end(seat.waits, event.time);
  if (event.event == "claim" && event.detail == "draining") {
    step.held = end(seat.holds, event.time);
    if (!seat.drains) seat.drains = event.time;
    return;
  }
  step.drained = end(seat.drains, event.time);
  if (!seat.holds) seat.holds = event.time;
  if (event.event != "grant") return;
  step.is_grant = true;
  seat.granted = event.time;
  if (event.lease == "shared") return;
  step.is_switch = gpu.last_exclusive && *gpu.last_exclusive != event.tenant;
  gpu.last_exclusive = event.tenant;
}

void Holds::end_lease(Seat& seat, const TraceEvent& event, Step& step) const {
  const std::string& kind = event.event;
  step.goes = kind == "close" || kind == "gone";
  // Of a lease, the trace may have the end only.
  if (!std::exchange(seat.is_known, true) && !step.goes) seat.holds = first_;
  step.held = end(seat.holds, event.time);
  if (kind == "gate_closed") {
    step.closes = true;
    if (step.held && !seat.drains) seat.drains = event.time;
    return;
  }
  step.drained = end(seat.drains, event.time);
  step.leaves = std::exchange(seat.is_leased, false);
  if (step.goes) step.waited = end(seat.waits, event.time);
  if (kind != "stall" && seat.granted) step.tenure = event.time - *std::exchange(seat.granted, std::nullopt);
}

void Holds::count_unheld(Gpu& gpu, TimePoint now, Step& step) {
  const auto any = [&gpu](auto member) {
    return std::any_of(gpu.seats.begin(), gpu.seats.end(),
                       [member](const auto& one) { return (one.second.*member).has_value(); });
  };
  if (!any(&Seat::waits) || any(&Seat::holds)) {
    step.unheld = end(gpu.unheld, now);
  } else if (!gpu.unheld) {
    gpu.unheld = now;
  }
}

}  // namespace gpumux::api_client
