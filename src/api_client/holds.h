// SPDX-License-Identifier: Apache-2.0
// Which program has each GPU when, from the events of a trace.
//
// The rule: a program waits for a GPU from its request until a grant, holds it from the grant until its gate has
// closed, and drains from then until its work is done.
//
// A claim says which of the three is so already. A revoked program may wait before its gate has closed, or while it
// drains. A stall ends a hold and a drain: others wait for it no longer. A seat that closes ends all three, and so does
// a program that goes.
//
// holds_cases.json is the rule as a table. The tests of three readers of a trace have it: this one's, the page's
// (web/page/src/leases.ts), and that of the tests in Python (tests/framework/spans.py).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "api_client/types.h"
#include "base/clock.h"

namespace gpumux::api_client {

// For each seat an event like the one that began its present phase.
std::vector<TraceEvent> phases_of(const Snapshot& snapshot, base::TimePoint now);

// Events go in, in their order. It keeps what is so now, and none of the past.
class Holds {
 public:
  struct Span {
    base::TimePoint from{};
    base::TimePoint to{};
  };

  // The meaning of an event for one program on one GPU.
  struct Step {
    std::uint32_t gpu = 0;
    std::uint64_t tenant = 0;
    bool asks = false;             // a wait has begun
    bool gets = false;             // a lease is granted, or claimed
    bool is_grant = false;         // and not claimed
    bool is_switch = false;        // another program had the exclusive lease before
    bool closes = false;           // the gate has closed, or the program says so again
    bool leaves = false;           // a lease is over, and the trace has its beginning
    bool goes = false;             // the seat has closed
    std::optional<Span> waited{};  // these have ended
    std::optional<Span> held{};
    std::optional<Span> drained{};
    std::optional<Span> unheld{};            // some program waited for the GPU, and none held it
    std::optional<base::Duration> tenure{};  // since the last grant, until the work was done
  };

  // A step for each GPU of the event: a program that goes does so from all.
  std::vector<Step> add(const TraceEvent& event);
  // One of phases_of(). A program of which no event has told a lease is in this phase since before the first event.
  // REQUIRES: the events were read after the snapshot. The program has not gone since.
  std::optional<Step> add_phase(const TraceEvent& phase);
  // As if all seats closed.
  std::vector<Step> finish(base::TimePoint end);

  // Since when the program has held the GPU.
  std::optional<base::TimePoint> held_since(std::uint32_t gpu, std::uint64_t tenant) const;

 private:
  struct Seat {
    std::optional<base::TimePoint> waits{};
    std::optional<base::TimePoint> holds{};
    std::optional<base::TimePoint> drains{};
    std::optional<base::TimePoint> granted{};  // last
    bool is_leased = false;                    // as events have told
    bool is_known = false;                     // has had an event of a lease
  };
  struct Gpu {
    std::map<std::uint64_t, Seat> seats{};  // by tenant
    std::optional<std::uint64_t> last_exclusive{};
    std::optional<base::TimePoint> unheld{};
    base::TimePoint seen{};  // the time of the last event
  };

  Step take(std::uint32_t index, const TraceEvent& event);
  void begin_lease(Gpu& gpu, Seat& seat, const TraceEvent& event, Step& step);
  void end_lease(Seat& seat, const TraceEvent& event, Step& step) const;
  static void count_unheld(Gpu& gpu, base::TimePoint now, Step& step);

  std::optional<base::TimePoint> first_{};  // the time of the first event
  std::map<std::uint32_t, Gpu> gpus_;
};

}  // namespace gpumux::api_client
