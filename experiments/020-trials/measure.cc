// SPDX-License-Identifier: Apache-2.0
// Simulated loads for the trials of "at once or by turns". Prints a line for each load: what the choices were worth.
// Built by run.py with the gain.h of either commit.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "daemon/gpus/gain.h"

namespace {

using namespace std::chrono_literals;
using gpumux::base::Duration;
using gpumux::base::TimePoint;
using gpumux::daemon::Gain;
using gpumux::sched::Way;

constexpr Duration kTick = 2ms;
constexpr Duration kQuantum = 40ms;
constexpr Duration kInFlight = 4ms;
constexpr double kPi = 3.14159265358979;

// Speeds are submissions a second of each program; by turns, the mean over whole rounds.
struct Load {
  std::string name;
  std::size_t programs = 2;
  double at_once = 1000, by_turns = 1000;
  double noise = 0;  // each program's speed varies by so much of it, and is drawn anew after `noise_lasts`
  Duration noise_lasts = 100ms;
  double drift = 0;           // the GPU's speed goes up and down by so much of it, in 5 s
  double least_gain = 0;      // by turns, for them to be the right way
  Duration burst{};           // a program submits the work of so long at a time
  double wants = 1;           // the part of the time that each wants the GPU
  bool has_requests = false;  // the last program has them, at random times
  Duration starts_within{};   // after its seat was opened
  Duration drains = 5ms;
  // The other way is better now. `scale`: of all speeds.
  std::function<bool(Duration)> is_inverted = [](Duration) { return false; };
  std::function<double(Duration)> scale = [](Duration) { return 1.0; };
};

struct Result {
  double decided_s = -1;  // the right way was chosen for the first time
  double wrong = 0;       // part of the time
  double tried = 0;       // part of the time in the other way
  double lost = 0;        // part of the speed of the better way all the time
  int changes = 0;
};

class World {
 public:
  World(const Load& load, std::uint32_t seed) : load_(load), random_(seed), programs_(load.programs) {
    for (std::size_t i = 0; i < load.programs; ++i) {
      situation_.seats.push_back({.seat = {gpumux::base::TenantId{i + 1}, gpumux::base::GpuIndex{0}}});
      programs_[i].starts = load.starts_within * static_cast<std::int64_t>(draw() * 1000) / 1000;
    }
    situation_.is_open = true;
    situation_.turn = kQuantum + kInFlight;
  }

  Result run(Duration time) {
    Result result;
    Duration wrong{}, tried{};
    double done = 0, best = 0;
    Way chosen = Way::kAtOnce;
    for (Duration at{}; at < time; at += kTick) {
      look(TimePoint(100s) + at, at);
      if (gain_.way() != chosen) ++result.changes;
      chosen = gain_.way();
      const bool is_inverted = load_.is_inverted(at);
      const double at_once = is_inverted ? load_.by_turns : load_.at_once;
      const double by_turns = is_inverted ? load_.at_once : load_.by_turns;
      const double speed = way_ == Way::kAtOnce ? at_once : has_drained(at) ? by_turns : at_once / 2;
      work(at, at_once, by_turns);
      done += speed;
      best += std::max(at_once, by_turns);
      if (gain_.is_trying()) tried += kTick;
      const bool is_right =
          at_once == by_turns || (gain_.way() == Way::kByTurns) == (by_turns > at_once * (1 + load_.least_gain));
      if (!is_right) wrong += kTick;
      if (is_right && result.decided_s < 0) result.decided_s = std::chrono::duration<double>(at).count();
    }
    const double whole = std::chrono::duration<double>(time).count();
    result.wrong = std::chrono::duration<double>(wrong).count() / whole;
    result.tried = std::chrono::duration<double>(tried).count() / whole;
    result.lost = 1 - done / best;
    return result;
  }

 private:
  struct Program {
    Duration starts{};
    double speed = 1;
    Duration drawn{-1h};
    double ready = 0;  // work that is done and not submitted: bursts
    double submitted = 0;
    Duration request_ends{}, next_request{};
  };
  double draw() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  bool has_drained(Duration at) const { return at - turns_since_ >= load_.drains; }

  void look(TimePoint now, Duration at) {
    const auto turn = static_cast<std::size_t>((at - turns_since_) / (kQuantum + 2ms)) % programs_.size();
    for (std::size_t i = 0; i < programs_.size(); ++i)
      situation_.seats[i].has_turn = way_ == Way::kByTurns && has_drained(at) && turn == i;
    if (!gpumux::base::is_due(gain_.look_again(), now) && !is_answered_ && at > 0s) return;
    is_answered_ = false;
    const Way way = gain_.choose(now, situation_);
    if (way != way_ && way == Way::kByTurns) turns_since_ = at;
    way_ = way;
    const auto question = gain_.take_question();
    if (!question) return;
    for (std::size_t i = 0; i < programs_.size(); ++i) {
      const auto submitted = static_cast<std::uint64_t>(programs_[i].submitted);
      if (gain_.told(situation_.seats[i].seat, *question, submitted)) is_answered_ = true;
    }
  }

  void work(Duration at, double at_once, double by_turns) {
    const double tick = std::chrono::duration<double>(kTick).count();
    for (std::size_t i = 0; i < programs_.size(); ++i) {
      Program& program = programs_[i];
      if (at - program.drawn >= load_.noise_lasts) {
        program.drawn = at;
        program.speed = 1 + load_.noise * (2 * draw() - 1);
      }
      double speed = (way_ == Way::kAtOnce ? at_once : by_turns) * program.speed * load_.scale(at);
      speed *= 1 + load_.drift * std::sin(2 * kPi * (std::chrono::duration<double>(at).count() / 5 + phase_));
      if (at < program.starts) speed = 0;
      double wants = load_.wants;
      if (load_.has_requests && i + 1 == programs_.size()) {
        // 30 requests a second of 7 ms; in either way each is answered, later by turns.
        if (at >= program.next_request) {
          program.request_ends = at + 8ms;
          program.next_request = at + 8ms + std::chrono::milliseconds(static_cast<int>(-26 * std::log(1 - draw())));
        }
        wants = at < program.request_ends ? 1 : 0;
        if (at >= program.request_ends) speed = 0;
      } else if (way_ == Way::kByTurns && !load_.has_requests) {
        speed = situation_.seats[i].has_turn ? speed * static_cast<double>(programs_.size()) : 0;
      }
      situation_.seats[i].wanted += std::chrono::duration_cast<Duration>(wants * kTick);
      program.ready += speed * tick;
      const double burst = std::chrono::duration<double>(load_.burst).count() * at_once;
      if (program.ready < burst) continue;
      program.submitted += program.ready;
      program.ready = 0;
    }
  }

  const Load& load_;
  std::mt19937 random_;
  std::vector<Program> programs_;
  Gain gain_;
  Gain::Situation situation_;
  Way way_ = Way::kAtOnce;
  Duration turns_since_{};
  bool is_answered_ = false;
  double phase_ = draw();
};

std::vector<Load> loads() {
  const auto every = [](Duration period) { return [period](Duration at) { return (at / period) % 2 == 1; }; };
  const auto faster = [](Duration period) {
    return [period](Duration at) { return (at / period) % 2 == 1 ? 3.0 : 1.0; };
  };
  std::vector<Load> loads;
  const auto add = [&](Load load) { loads.push_back(std::move(load)); };
  add({.name = "4 of small kernels", .programs = 4, .at_once = 500, .by_turns = 970, .noise = 0.02});
  add({.name = "8 of small kernels", .programs = 8, .at_once = 300, .by_turns = 970, .noise = 0.02});
  add({.name = "4 of small kernels, work begins within 5 s",
       .programs = 4,
       .at_once = 500,
       .by_turns = 970,
       .noise = 0.02,
       .starts_within = 5s});
  add({.name = "2 of large kernels", .at_once = 600, .by_turns = 660, .noise = 0.02, .drift = 0.02});
  add({.name = "2 of large kernels, bursts of 20 ms",
       .at_once = 600,
       .by_turns = 660,
       .noise = 0.02,
       .drift = 0.02,
       .burst = 20ms});
  add({.name = "2 with 3 % to gain", .at_once = 970, .noise = 0.01, .drift = 0.01});
  add({.name = "2 with 3 % to gain, bursts of 20 ms", .at_once = 970, .noise = 0.02, .drift = 0.01, .burst = 20ms});
  add({.name = "2 with 4 % to gain, bursts of 100 ms", .at_once = 960, .noise = 0.05, .burst = 100ms});
  add({.name = "2 that lose 10 %", .by_turns = 900, .noise = 0.02, .drift = 0.02});
  add({.name = "3 that lose 5 %, noise 10 %", .programs = 3, .by_turns = 950, .noise = 0.1});
  add({.name = "3 that lose 5 %, noise 30 %", .programs = 3, .by_turns = 950, .noise = 0.3});
  add({.name = "3 that lose 5 %, noise 30 % for 0.5 s",
       .programs = 3,
       .by_turns = 950,
       .noise = 0.3,
       .noise_lasts = 500ms});
  add({.name = "3 that lose 15 %, noise 30 % for 0.5 s",
       .programs = 3,
       .by_turns = 850,
       .noise = 0.3,
       .noise_lasts = 500ms});
  add({.name = "3 that lose 15 %, bursts of 100 ms", .programs = 3, .by_turns = 850, .noise = 0.1, .burst = 100ms});
  add({.name = "3 that gain 10 %, noise 10 %", .programs = 3, .at_once = 910, .noise = 0.1});
  add({.name = "3 that gain 10 %, noise 30 % for 0.5 s",
       .programs = 3,
       .at_once = 910,
       .noise = 0.3,
       .noise_lasts = 500ms});
  add({.name = "3 that gain 40 %, noise 30 % for 0.5 s",
       .programs = 3,
       .at_once = 700,
       .noise = 0.3,
       .noise_lasts = 500ms});
  add({.name = "3 that gain 40 %, bursts of 100 ms", .programs = 3, .at_once = 700, .noise = 0.1, .burst = 100ms});
  add({.name = "requests and a training, 3 % lost",
       .by_turns = 970,
       .noise = 0.02,
       .least_gain = 0.1,
       .has_requests = true});
  add({.name = "requests and a training, 7 % gained",
       .at_once = 935,
       .noise = 0.02,
       .least_gain = 0.1,
       .has_requests = true});
  add({.name = "pauses, 7 % gained", .programs = 3, .at_once = 935, .noise = 0.05, .least_gain = 0.1, .wants = 0.5});
  add({.name = "pauses, 25 % gained", .programs = 3, .at_once = 800, .noise = 0.05, .least_gain = 0.1, .wants = 0.5});
  add({.name = "the better way and speeds change each 2 min",
       .programs = 4,
       .at_once = 600,
       .by_turns = 900,
       .noise = 0.05,
       .is_inverted = every(2min),
       .scale = faster(2min)});
  add({.name = "the better way changes each 5 min",
       .programs = 4,
       .at_once = 800,
       .by_turns = 950,
       .noise = 0.05,
       .is_inverted = every(5min)});
  add({.name = "speeds change each 3 s, 10 % lost", .programs = 3, .by_turns = 900, .scale = faster(3s)});
  add({.name = "drains for 0.5 s", .programs = 4, .at_once = 500, .by_turns = 970, .least_gain = 1, .drains = 500ms});
  return loads;
}

}  // namespace

int main(int count, char** words) {
  const int seeds = count > 1 ? std::atoi(words[1]) : 8;
  std::printf("%-52s %9s %9s %8s %8s %8s %8s\n", "load", "decided s", "latest s", "wrong %", "trials %", "lost %",
              "changes");
  for (const Load& load : loads()) {
    std::vector<double> decided;
    double wrong = 0, tried = 0, lost = 0, changes = 0;
    for (int seed = 1; seed <= seeds; ++seed) {
      const Result result = World(load, static_cast<std::uint32_t>(seed)).run(1h);
      decided.push_back(result.decided_s < 0 ? 3600 : result.decided_s);
      wrong += result.wrong / seeds;
      tried += result.tried / seeds;
      lost += result.lost / seeds;
      changes += static_cast<double>(result.changes) / seeds;
    }
    std::sort(decided.begin(), decided.end());
    std::printf("%-52s %9.1f %9.1f %8.2f %8.2f %8.2f %8.1f\n", load.name.c_str(), decided[decided.size() / 2],
                decided.back(), 100 * wrong, 100 * tried, 100 * lost, changes);
    std::fflush(stdout);
  }
}
