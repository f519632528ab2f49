// SPDX-License-Identifier: Apache-2.0
// Which program held each GPU when (api_client/holds.h), over a time: sums for `gpumux trace --summary`, and a picture.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api_client/holds.h"
#include "api_client/types.h"
#include "cli/frame/terminal.h"

namespace gpumux::cli {

// One of four shades for a cell: nothing of its time was held, a little, about half, all of it.
std::string_view shade(base::Duration held, base::Duration cell);

// Events go in, in their order, and finish() ends them. Only the time from `begin` to the end counts; earlier events
// only say which program had the GPU then.
class TraceHistory {
 public:
  // Without `begin`: from the first event on.
  explicit TraceHistory(std::optional<base::TimePoint> begin = {}) : begin_(begin) {}

  void add(const api_client::TraceEvent& event);
  // One of api_client::phases_of(), after the events. REQUIRES: the events were read after the snapshot.
  void add_phase(const api_client::TraceEvent& phase);
  void finish(base::TimePoint end);

  // For each GPU a row of shades for each program, over the time.
  std::vector<std::string> picture(const Output& output) const;
  // For each GPU how long each program had it and waited for it, and the cost of its switches.
  std::vector<std::string> summary(const Output& output) const;

  // For a view of what happens now, which never finishes.
  struct Turn {
    std::uint64_t tenant = 0;
    std::string program;
    base::TimePoint from{};
    base::TimePoint to{};
  };
  // The turns of one GPU, in the order of their beginnings. A turn that goes on ends at `now`.
  std::vector<Turn> turns(std::uint32_t gpu, base::TimePoint now) const;
  // Drops all that ended before: the memory of an endless history has a bound.
  void forget(base::TimePoint before);

 private:
  struct Program {
    std::string name;
    std::int64_t pid = 0;
    std::vector<std::pair<base::TimePoint, base::TimePoint>> held{};
    base::Duration waited{};
    base::Duration longest_wait{};
    std::uint64_t grants = 0;
    std::uint64_t unmet = 0;                      // waits that no grant ended
    std::optional<base::TimePoint> memory_due{};  // of a hold whose memory has not come yet
    bool is_away = false;                         // something of its memory
    bool is_gone = false;                         // from this GPU
  };
  struct Gpu {
    std::map<std::uint64_t, Program> programs{};  // by tenant
    std::vector<base::TimePoint> switches{};
    base::Duration unheld{};  // no program held it, while some program waited
    base::Duration memory{};  // holders waited for it
  };
  using Step = api_client::Holds::Step;

  bool counts(base::TimePoint time) const { return !begin_ || time >= *begin_; }
  base::Duration within(base::TimePoint from, base::TimePoint to) const;
  void take(const Step& step, const api_client::TraceEvent& event);
  void count(const Step& step, Gpu& gpu, Program& program) const;
  void end_memory_wait(Gpu& gpu, Program& program, base::TimePoint now) const;
  static base::Duration sum(const Program& program);
  std::vector<const Program*> shown(const Gpu& gpu) const;
  std::string heading(std::uint32_t index) const;

  std::optional<base::TimePoint> begin_;
  base::TimePoint end_{};
  api_client::Holds holds_;
  std::map<std::uint32_t, Gpu> gpus_;
};

}  // namespace gpumux::cli
