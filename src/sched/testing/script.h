// SPDX-License-Identifier: Apache-2.0
// A core and a clock for tests: tells the core what happens and gives back what it wants done, as one line of text.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sched/lease/lease_core.h"

namespace gpumux::sched {

inline SeatId seat(std::uint64_t tenant, std::uint32_t gpu) { return {TenantId{tenant}, GpuIndex{gpu}}; }

// The built-in settings, but for two bounds that most tests are not about: no in-flight bound, and a set idle hold. So
// a changed rule of the idle hold fails the tests of that rule only.
inline GpuSettings plain() {
  GpuSettings settings;
  settings.in_flight = kUnlimited;
  settings.idle_hold = std::chrono::microseconds(200);
  return settings;
}

// plain(), but with the automatic idle hold.
inline GpuSettings automatic_hold() {
  GpuSettings settings = plain();
  settings.idle_hold = kAutomatic;
  return settings;
}

// Whether the text has this part. A failure shows both.
inline ::testing::AssertionResult says(const std::string& text, const std::string& part) {
  return ::testing::AssertionResult(text.find(part) != std::string::npos)
         << "'" << part << "' is sought in '" << text << "'";
}

class Script {
 public:
  // `count` GPUs of the same settings.
  explicit Script(std::uint32_t count = 1, const GpuSettings& settings = plain()) : settings_(settings) {
    for (std::uint32_t i = 0; i < count; ++i) tell(GpuAdded{GpuIndex{i}, settings, LeaseEpoch{1}});
  }

  // A tenant with a seat on each of `gpus`.
  void tenant(std::uint64_t id, const std::vector<std::uint32_t>& gpus, std::uint32_t weight = 1,
              std::uint32_t uid = 0) {
    tell(TenantConnected{TenantId{id}, uid});
    for (const std::uint32_t gpu : gpus) tell(SeatOpened{seat(id, gpu), weight});
  }

  std::string tell(const Event& event) {
    std::vector<Command> commands;
    core_.apply(now_, event, commands);
    EXPECT_EQ(core_.check_invariants(), "") << "after " << to_string(event);
    std::string text;
    hints_.clear();
    for (const Command& command : commands) {
      std::string& into = std::holds_alternative<HeadsUp>(command) ? hints_ : text;
      into += (into.empty() ? "" : "; ") + to_string(command);
    }
    return text;
  }
  // The HeadsUp commands of the last event. They promise nothing, and are kept apart from what does.
  const std::string& hints() const { return hints_; }

  std::string request(SeatId s) { return tell(Requested{s}); }
  std::string seen(SeatId s) { return tell(RevokeSeen{s, epoch(s)}); }
  std::string closed(SeatId s) { return tell(GateClosed{s, epoch(s)}); }
  std::string drained(SeatId s) { return tell(Drained{s, epoch(s), false}); }
  std::string settings(GpuIndex gpu, const GpuSettings& settings) { return tell(SettingsChanged{gpu, settings}); }

  // Lets time pass, waking the core at each of its deadlines.
  std::string wait(Duration duration) {
    const TimePoint end = now_ + duration;
    std::string text;
    for (auto next = core_.next_deadline(); next && *next <= end; next = core_.next_deadline()) {
      now_ = std::max(now_, *next);
      const std::string more = tell(TimePassed{});
      if (!more.empty()) text += (text.empty() ? "" : "; ") + more;
    }
    now_ = end;
    return text;
  }

  // Lets time pass without waking the core: it is busy with something else.
  void skip(Duration duration) { now_ += duration; }

  SeatView view(SeatId s) const {
    for (const GpuView& gpu : core_.view(now_)) {
      for (const SeatView& one : gpu.seats) {
        if (one.seat == s) return one;
      }
    }
    return {};
  }
  SeatTotals totals(SeatId s) const { return core_.totals(now_, s); }
  GpuView gpu(std::uint32_t index) const { return core_.view(now_).at(index); }
  LeaseEpoch epoch(SeatId s) const { return view(s).epoch; }
  SeatPhase phase(SeatId s) const { return view(s).phase; }
  TimePoint now() const { return now_; }
  LeaseCore& core() { return core_; }

 private:
  GpuSettings settings_;
  LeaseCore core_;
  TimePoint now_{};
  std::string hints_;
};

}  // namespace gpumux::sched
