// SPDX-License-Identifier: Apache-2.0
// gpumux_simsched: runs seeds through the simulation, and says how to replay one that fails.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <string>

#include "sim/sched/simulation.h"

using gpumux::simsched::Interrupts;

int main(int argc, char** argv) {
  gpumux::simsched::Options options;
  std::uint64_t seeds = 1;
  std::uint64_t seconds = 3600, calm_after = 3600;
  bool no_gangs = false, no_faults = false;
  CLI::App app(
      "Runs random workloads through gpumux's lease core in virtual time and checks its invariants after every step.");
  app.add_option("--seed", options.seed, "The first seed")->capture_default_str();
  app.add_option("--seeds", seeds, "How many seeds, counting up")->capture_default_str();
  app.add_option("--steps", options.steps, "Events that the core is told, per seed")->capture_default_str();
  app.add_option("--gpus", options.gpus, "GPUs (0: by seed)")->capture_default_str()->check(CLI::Range(0, 64));
  app.add_option("--jobs,--tenants", options.jobs, "Jobs at the same time (0: by seed)")->capture_default_str();
  app.add_flag("--no-gangs", no_gangs, "Ranks of one job do not say that they belong together");
  app.add_flag("--no-faults", no_faults, "Nobody is stopped or killed, nothing fails, nothing is changed");
  app.add_flag("--claims", options.claims, "Most jobs are in claims, which have shares together");
  app.add_flag("--busy-singles", options.busy_singles, "Only jobs of one rank that always have work");
  app.add_flag("--collectives", options.collectives, "Only jobs of one rank on each GPU, with collectives");
  app.add_flag("--eager", options.eager, "Ranks submit collectives before the others of their job are there");
  app.add_flag("--strangers", options.strangers,
               "Most jobs of several processes do not say that these belong together");
  app.add_flag("--overloaded", options.overloaded, "Messages, agents and gates are late now and then");
  app.add_flag("--memory", options.memory, "Seats have memory, and the residency planner runs beside the core");
  app.add_flag("--suspend", options.suspensions, "Jobs are suspended, frozen and resumed");
  app.add_flag("--hostile", options.hostile, "Jobs of one account lie about their memory");
  app.add_option("--interrupts", options.interrupts,
                 "Work that does not drain is frozen: `some` seats' (drivers may refuse), or `all`, with kernels that "
                 "take seconds or never end")
      ->transform(CLI::CheckedTransformer(std::map<std::string, Interrupts>{
          {"none", Interrupts::kNone}, {"some", Interrupts::kSome}, {"all", Interrupts::kAll}}))
      ->capture_default_str();
  app.add_option("--seconds", seconds, "Of virtual time at most, per seed")->capture_default_str();
  app.add_option("--calm-after", calm_after, "Seconds of virtual time after which nothing disturbs anybody any more");
  app.add_flag("--log", options.keep_log, "Print every event and command");
  CLI11_PARSE(app, argc, argv);
  options.gangs = !no_gangs;
  options.faults = !no_faults;
  options.duration = std::chrono::seconds(seconds);
  options.calm_after = std::chrono::seconds(calm_after);

  for (const std::uint64_t end = options.seed + seeds; options.seed != end; ++options.seed) {
    const gpumux::simsched::Outcome outcome = simulate(options);
    std::fputs(outcome.log.c_str(), stdout);
    if (seeds == 1 || !outcome.wrong.empty()) {
      std::printf(
          "seed %llu: %llu steps, %.3f s, %llu grants, %llu revocations, %llu gates opened again, %llu stalls, "
          "%llu killed for them, %llu silences, "
          "%llu restarts, longest wait %.3f s, log %016llx\n",
          static_cast<unsigned long long>(options.seed), static_cast<unsigned long long>(outcome.steps),
          static_cast<double>(outcome.time.count()) / 1e9, static_cast<unsigned long long>(outcome.grants),
          static_cast<unsigned long long>(outcome.revocations), static_cast<unsigned long long>(outcome.let_through),
          static_cast<unsigned long long>(outcome.stalls), static_cast<unsigned long long>(outcome.killed_stalled),
          static_cast<unsigned long long>(outcome.silences), static_cast<unsigned long long>(outcome.restarts),
          static_cast<double>(outcome.longest_wait.count()) / 1e9, static_cast<unsigned long long>(outcome.log_hash));
    }
    if (options.memory && (seeds == 1 || !outcome.wrong.empty())) {
      std::printf(
          "  memory: %llu MiB out, %llu MiB in, %llu bounds, %llu wishes (%llu refused, the longest %.3f s), "
          "%llu refusals of the driver's, %llu changes of mode, %llu leases given up for want of memory, "
          "%llu turns borrowed\n",
          static_cast<unsigned long long>(outcome.bytes_out >> 20),
          static_cast<unsigned long long>(outcome.bytes_in >> 20), static_cast<unsigned long long>(outcome.bounds),
          static_cast<unsigned long long>(outcome.wishes), static_cast<unsigned long long>(outcome.wishes_refused),
          static_cast<double>(outcome.longest_wish.count()) / 1e9,
          static_cast<unsigned long long>(outcome.refused_by_driver),
          static_cast<unsigned long long>(outcome.mode_changes), static_cast<unsigned long long>(outcome.gave_way),
          static_cast<unsigned long long>(outcome.borrowed));
    }
    if (options.interrupts != Interrupts::kNone && (seeds == 1 || !outcome.wrong.empty())) {
      std::printf("  interrupts: %llu, %llu refused, %llu seats drained later\n",
                  static_cast<unsigned long long>(outcome.interruptions),
                  static_cast<unsigned long long>(outcome.refused_interruptions),
                  static_cast<unsigned long long>(outcome.drained_later));
    }
    if (outcome.wrong.empty()) continue;
    std::fflush(stdout);
    std::fprintf(stderr, "seed %llu FAILED %s\n", static_cast<unsigned long long>(options.seed), outcome.wrong.c_str());
    return 1;
  }
  return 0;
}
