// SPDX-License-Identifier: Apache-2.0
// gpumux_simjobs: runs seeds through the simulation of the job queue, and says how to replay one that fails.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "sim/jobs/simulation.h"

int main(int argc, char** argv) {
  gpumux::simjobs::Options options;
  std::uint64_t seeds = 1;
  bool no_faults = false;
  CLI::App app("Runs random jobs through gpumux's job core in virtual time and checks everything that it does.");
  app.add_option("--seed", options.seed, "The first seed")->capture_default_str();
  app.add_option("--seeds", seeds, "How many seeds, counting up")->capture_default_str();
  app.add_option("--jobs", options.jobs, "Jobs that are submitted, per seed")->capture_default_str();
  app.add_option("--gpus", options.gpus, "GPUs (0: by seed)")->capture_default_str()->check(CLI::Range(0, 128));
  app.add_option("--users", options.users, "Users (0: by seed)")->capture_default_str();
  app.add_option("--backlog", options.backlog, "Jobs that are there most of the time (0: by seed)")
      ->capture_default_str();
  app.add_option("--check-every", options.check_every, "Events between two checks of all invariants (0: never)")
      ->capture_default_str();
  app.add_flag("--no-faults", no_faults, "Nothing fails, nothing is changed");
  app.add_flag("--plain", options.plain, "First come, first served; one priority; everybody has a time limit");
  app.add_flag("--log", options.keep_log, "Print every event and command");
  CLI11_PARSE(app, argc, argv);
  options.faults = !no_faults;

  for (const std::uint64_t end = options.seed + seeds; options.seed != end; ++options.seed) {
    const gpumux::simjobs::Outcome outcome = simulate(options);
    std::fputs(outcome.log.c_str(), stdout);
    if (seeds == 1 || !outcome.wrong.empty()) {
      const auto count = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
      std::printf(
          "seed %llu: %llu events, %.1f h, %llu starts, %llu passed others, %llu suspensions, %llu resumed, "
          "%llu refused, %llu restarts, at most %llu there, longest wait %.1f h, log %016llx\n",
          count(options.seed), count(outcome.events), static_cast<double>(outcome.time.count()) / 3.6e12,
          count(outcome.starts), count(outcome.backfills), count(outcome.suspensions), count(outcome.resumes),
          count(outcome.refusals), count(outcome.restarts), count(outcome.longest_queue),
          static_cast<double>(outcome.longest_wait.count()) / 3.6e12, count(outcome.log_hash));
    }
    if (outcome.wrong.empty()) continue;
    std::fflush(stdout);
    std::fprintf(stderr, "seed %llu FAILED %s\n", static_cast<unsigned long long>(options.seed), outcome.wrong.c_str());
    return 1;
  }
  return 0;
}
