// SPDX-License-Identifier: Apache-2.0
// gpumux run: makes everything ready and becomes the program.
//
// The program is exec'd, not started as a child. Its process id, signals, terminal, exit status and arguments are its
// own, and nothing of ours stays behind.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "api_client/client.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/standing.h"
#include "base/units.h"
#include "cli/frame/command.h"
#include "cli/run/preload.h"
#include "cli/run/private_daemon.h"
#include "cli/run/program_lookup.h"
#include "cli/run/run_arguments.h"
#include "cli/run/simulated_machine.h"
#include "cli/views/status_view.h"
#include "os/installation.h"
#include "os/preload_list.h"
#include "os/random.h"

namespace gpumux::cli {
namespace {

using base::Result;
using base::Status;

constexpr char kRunName[] = "run";
// A program starts without what the command says of it, rather than late.
constexpr base::Duration kAskingLimit = std::chrono::seconds(1);
constexpr char kRunUsage[] = "gpumux run [OPTIONS] [--] PROGRAM [ARGUMENTS...]";

struct RunOptions {
  std::string name;
  std::string gang;
  std::string memory;
  std::string priority;
  std::string share;
  std::string max_share;
  std::string mps;  // as GPUMUX_USE_MPS has it; empty: not said
  bool allow_ungated = false;
  bool verbose = false;
  bool quiet = false;
};

// Sets the variables that the library reads. The inner one of two nested runs belongs to the outer: one process tree is
// one run.
Status set_environment(const RunOptions& options, const std::string& library, const std::string& runtime_dir) {
  if (!os::is_preloaded_everywhere()) {
    const char* existing = std::getenv("LD_PRELOAD");
    ::setenv("LD_PRELOAD", os::compose_preload(existing == nullptr ? "" : existing, library).c_str(), 1);
  }
  const char* outer = std::getenv("GPUMUX_RUN_ID");
  const bool is_inner = outer != nullptr && outer[0] != '\0';
  if (!is_inner) {
    // 64 bits are enough to keep one user's runs apart; the daemon keeps users apart itself.
    const auto id = os::random_hex(8);
    if (!id) return tl::unexpected(id.error());
    ::setenv("GPUMUX_RUN_ID", id->c_str(), 1);
  }
  // The whole tree talks to one daemon, even if another one starts later.
  ::setenv("GPUMUX_RUNTIME_DIR", runtime_dir.c_str(), 1);
  const auto set = [](const char* variable, const std::string& value, bool over_outer = true) {
    if (!value.empty()) ::setenv(variable, value.c_str(), over_outer ? 1 : 0);
  };
  set("GPUMUX_NAME", options.name);
  set("GPUMUX_GANG", options.gang);
  set("GPUMUX_USE_MPS", options.mps);
  set("GPUMUX_PRIORITY", options.priority);
  set("GPUMUX_SHARE", options.share);
  // The inner run must not raise a limit that the outer run was given.
  set("GPUMUX_MEM_LIMIT", options.memory, !is_inner);
  set("GPUMUX_MAX_SHARE", options.max_share, !is_inner);
  return {};
}

// Said before the program starts: nothing of ours is there while it waits (decision 0030).
void tell_turns(const std::string& runtime_dir) {
  const auto snapshot = api_client::Client::connect({.runtime_dir = runtime_dir, .timeout = kAskingLimit})
                            .and_then(&api_client::Client::snapshot);
  if (!snapshot) return;
  if (const std::string turns = turns_line(*snapshot); !turns.empty()) say_error(kRunName, turns);
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Says what the daemon gives less of than the program asks for. The library reads these variables, whether an option or
// the user has set them.
void tell_caps(const std::string& runtime_dir) {
  const auto priority = base::parse_priority(variable("GPUMUX_PRIORITY"));
  const auto share = base::parse_share(variable("GPUMUX_SHARE"));
  if (!priority && !share) return;
  const auto daemon =
      api_client::Client::connect({.runtime_dir = runtime_dir, .timeout = kAskingLimit})
          .and_then([](const api_client::Client& client) { return client.daemon_info(variable("GPUMUX_RUN_ID")); });
  if (!daemon) return;
  const api_client::Caps& caps = daemon->caps;
  const auto tell = [](const std::string& asked, const std::string& most, const std::string& by) {
    const std::string why = by == "claims" ? "as the claims of its container or Slurm job have it"
                            : by == "job"  ? "for the job that it is in has no more (priority_cap)"
                                           : "for only the daemon's owner, root and members of its admin_group put a "
                                             "program above others";
    say_error(kRunName, "note: " + asked + " counts as " + most + ", " + why);
  };
  if (priority && caps.priority && *priority > *caps.priority)
    tell("priority " + std::to_string(*priority), std::to_string(*caps.priority), caps.priority_by);
  const auto most_share = base::parse_share(caps.share.value_or(""));
  if (share && most_share && (caps.share_by == "claims" ? *share != *most_share : *share > *most_share))
    tell("share " + base::format_share(*share), *caps.share, caps.share_by);
}

// Finds library and daemon and sets the environment. On success the program will be gated.
Status prepare(const RunOptions& options) {
  auto dir = os::executable_dir();
  if (!dir) return tl::unexpected(std::move(dir).error());
  auto library = os::find_library(*dir);
  if (!library) return tl::unexpected(std::move(library).error());
  GPUMUX_TRY(check_preloadable(*library));
  auto daemon = find_or_start_daemon();
  if (!daemon) return tl::unexpected(std::move(daemon).error());
  if (options.verbose) {
    say_error(kRunName, (daemon->started ? "started a daemon at " : "daemon at ") + daemon->runtime_dir + ", library " +
                            *library);
  }
  if (!options.quiet && ::isatty(STDERR_FILENO) == 1) tell_turns(daemon->runtime_dir);
  GPUMUX_TRY(set_environment(options, *library, daemon->runtime_dir));
  tell_caps(daemon->runtime_dir);
  return {};
}

[[noreturn]] void become(const std::vector<char*>& program) {
  ::execvp(program[0], program.data());
  const int failure = errno;
  say_error(kRunName, std::string(program[0]) + ": " + ::strerror(failure));
  std::exit(failure == ENOENT ? kExitNotFound : kExitNotExecutable);
}

}  // namespace

int run_command(const std::vector<char*>& arguments) {
  RunOptions options;
  bool simulated = false;
  CLI::App app("Runs an unmodified program under gpumux, so that it shares the GPUs with other programs.",
               "gpumux run");
  const auto read_by = [](auto parse) {
    return [parse](const std::string& text) {
      const auto parsed = parse(text);
      return parsed ? std::string() : parsed.error().message();
    };
  };
  const auto check_name = [](const std::string& text) {
    return text.size() < base::kMaxNameBytes ? std::string()
                                             : "longer than " + std::to_string(base::kMaxNameBytes - 1) + " bytes";
  };
  app.add_option("--name", options.name, "Show the program under this name in `gpumux status`")
      ->type_name("NAME")
      ->check(check_name);
  auto* gang =
      app.add_option("--gang", options.gang,
                     "Get and give back GPUs together with every other run that names the same KEY")
          ->type_name("KEY")
          ->check(check_name)
          ->check([](const std::string& key) { return key == "none" ? "'none' means no gang: write --no-gang" : ""; });
  app.add_flag_callback(
         "--no-gang", [&options] { options.gang = "none"; },
         "Never make the program's processes a gang, even with WORLD_SIZE > 1")
      ->excludes(gang);
  app.add_option("--mem", options.memory,
                 "The most GPU memory that the program and its children may have together, on each GPU")
      ->type_name("BYTES")
      ->check(read_by(base::parse_memory));
  app.add_option("--priority", options.priority, "Scheduling priority; higher runs first (default 0)")
      ->type_name("N")
      ->check(read_by(base::parse_priority));
  app.add_option("--share", options.share, "Weight among programs of the same priority: 2 gets twice the time of 1")
      ->type_name("X")
      ->check(read_by(base::parse_share));
  app.add_option("--max-share", options.max_share, "The most GPU time that the program may have, such as 30%")
      ->type_name("PART")
      ->check(read_by(base::parse_max_share));
  auto* mps = app.add_flag_callback(
      "--mps", [&options] { options.mps = "on"; },
      "Share the GPU through NVIDIA's MPS: kernels of your programs run side by side, and a fault of one hits all");
  app.add_flag_callback(
         "--no-mps", [&options] { options.mps = "off"; }, "Do without MPS, also where it is on for the GPU")
      ->excludes(mps);
  app.add_flag("--simulated", simulated,
               "Use simulated GPUs, which need no hardware; without a PROGRAM a small demo program runs");
  app.add_flag("--allow-ungated", options.allow_ungated, "Run the program without gpumux if it cannot run under it");
  app.add_flag("-q,--quiet", options.quiet, "Do not say which programs have the GPUs at the moment");
  app.add_flag("-v,--verbose", options.verbose, "Print which daemon and which library are used");
  app.footer(
      R"(The command uses the system's daemon if one runs. Otherwise it starts a daemon for you, which ends 10 s after
its last use. Processes of one run with WORLD_SIZE > 1 get and give back their GPUs together.

Examples:
  gpumux run -- python train.py --epochs 3
  gpumux run --name nightly -- torchrun --nproc-per-node 2 train.py
  gpumux run --mem 20G -- python serve.py      # sees a GPU of 20 GiB
  gpumux run --priority 5 -- python serve.py   # goes before the others
  gpumux run --share 0.5 --max-share 30% -- python crunch.py
  gpumux run --mps -- python small.py          # with other small programs
  gpumux run --allow-ungated -- ./simulate     # also on machines without a GPU
  gpumux run --simulated                       # a demo on a simulated GPU

Only users who may change settings (see `gpumux set`) may put a program above others. Every user may ask for less. If
the program gets less than it asks for, the command says so, and the program starts.

Exit status: the program's own; 126 it cannot be executed, 127 it was not found. Before it starts: 1 failed, 2 wrong
usage, 3 no daemon and none could be started, 4 not allowed.)");

  SplitArguments split = split_run_arguments(arguments, options_with_value(app));
  if (const auto exit_status = parse_command_line(app, split.options, kRunUsage)) return *exit_status;
  std::string demo;
  if (simulated) {
    if (const Status ready = use_simulated_machine(); !ready) return report_error(kRunName, ready.error());
    if (split.program.size() < 2) {
      auto found = find_demo_program();
      if (!found) return report_error(kRunName, found.error());
      demo = std::move(*found);
      split.program.insert(split.program.begin(), demo.data());
    }
  }
  if (split.program.size() < 2)
    return usage_error(kRunName,
                       std::string("no program was named\nUsage: ") + kRunUsage + "\nSee `gpumux run --help`.");

  const FoundProgram found = look_for_program(split.program[0]);
  if (found.exit_status != 0) {
    say_error(kRunName, found.why);
    return found.exit_status;
  }
  if (found.is_setuid) {
    say_error(kRunName, std::string("warning: ") + split.program[0] +
                            " is set-user-ID or set-group-ID: the loader drops LD_PRELOAD for it, so it and what it "
                            "starts use the GPUs without gpumux");
  }
  if (options.mps == "on" && ::geteuid() == 0)
    say_error(kRunName, "warning: --mps has no effect: gpumux starts no MPS for programs of root");
  if (const Status ready = prepare(options); !ready) {
    const int status = report_error(kRunName, ready.error());
    if (!options.allow_ungated) {
      say_error(kRunName, "the program was not started; --allow-ungated starts it without gpumux");
      return status;
    }
    say_error(kRunName, "warning: --allow-ungated: starting the program without gpumux");
  }
  become(split.program);
}

}  // namespace gpumux::cli
