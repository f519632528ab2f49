// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/checks.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "base/version.h"
#include "cli/frame/words.h"
#include "os/preload_list.h"

namespace gpumux::cli {
namespace {

// Long lists are for --json; a person needs to see what kind of thing it is.
constexpr std::size_t kShownNames = 8;

std::string join(const std::vector<std::string>& items) {
  std::string text;
  for (std::size_t i = 0; i < items.size() && i < kShownNames; ++i) text += (i == 0 ? "" : ", ") + items[i];
  if (items.size() > kShownNames) text += " and " + std::to_string(items.size() - kShownNames) + " more";
  return text;
}

std::vector<std::string> names_of(const std::vector<ProcessFact>& processes) {
  std::vector<std::string> names;
  for (const ProcessFact& process : processes) {
    names.push_back((process.name.empty() ? "?" : process.name) + " (" + std::to_string(process.pid) + ")");
  }
  return names;
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string octal(mode_t mode) {
  char text[16];
  std::snprintf(text, sizeof text, "%04o", static_cast<unsigned>(mode));
  return text;
}

std::string how_to_start(const Facts& facts) {
  return facts.systemd ? "sudo systemctl enable --now gpumuxd" : "sudo gpumuxd";
}

// The daemon's word: it watches the driver. Empty: healthy, or not known.
std::string why_sick(const Facts& facts, const std::string& uuid) {
  if (!facts.snapshot) return {};
  const auto& gpus = facts.snapshot->gpus;
  const auto found = std::find_if(gpus.begin(), gpus.end(), [&](const auto& gpu) { return gpu.uuid == uuid; });
  return found == gpus.end() ? std::string() : found->sick;
}

void check_gpus(const Facts& facts, Findings& findings) {
  const DriverFacts& driver = facts.driver;
  if (!driver.probe_error.empty()) return;  // said by check_driver
  if (!driver.nvml_error.empty()) {
    findings.push_back({"gpus", Level::kProblem, "NVML (libnvidia-ml.so.1) cannot be used: " + driver.nvml_error,
                        "the daemon finds the GPUs through it and cannot start",
                        "run nvidia-smi, which uses it too; after an update of the driver, reload its kernel module or "
                        "restart the machine; in a container "
                        "add utility to NVIDIA_DRIVER_CAPABILITIES"});
    return;
  }
  if (driver.gpus.empty()) {
    findings.push_back({"gpus", Level::kProblem, "the driver shows no GPU", "there is nothing to share",
                        "run nvidia-smi; in a container, pass GPUs in (--gpus all)"});
    return;
  }
  for (const GpuFact& gpu : driver.gpus) {
    const std::string name = "GPU " + std::to_string(gpu.index) + " (" + gpu.name + ")";
    if (const std::string why = why_sick(facts, gpu.uuid); !why.empty()) {
      findings.push_back({"gpus", Level::kProblem, name + " is sick: " + why,
                          "the queue starts no jobs on it, and Kubernetes puts no pods on it",
                          "do what its driver asks for; nvidia-smi -q -i " + std::to_string(gpu.index) + " says more"});
      continue;
    }
    if (gpu.compute_mode.empty() || gpu.compute_mode == "default") {
      findings.push_back({"gpus", Level::kOk, name});
      continue;
    }
    const bool prohibited = gpu.compute_mode == "prohibited";
    findings.push_back({"gpus", Level::kProblem, name + " is in compute mode " + gpu.compute_mode,
                        prohibited ? "no program can use it"
                                   : "the driver lets one process use it at a time; a second one fails with 'device "
                                     "busy' whatever gpumux does",
                        "sudo nvidia-smi -i " + std::to_string(gpu.index) + " -c DEFAULT"});
  }
}

void check_library(const Facts& facts, Findings& findings) {
  const LibraryFacts& library = facts.library;
  if (!library.error.empty()) {
    findings.push_back({"library", Level::kProblem, library.error, "`gpumux run` cannot put a program under gpumux",
                        "install gpumux again, for this system"});
  } else if (!library.mapped) {
    findings.push_back(
        {"library", Level::kProblem,
         "the loader does not preload " + library.path +
             (library.loader_message.empty() ? "" : ": " + library.loader_message),
         "programs run without gpumux",
         "check that the file is readable and not on a file system mounted noexec; install gpumux again"});
  } else {
    findings.push_back({"library", Level::kOk, library.path + " can be preloaded"});
  }
  for (const std::string& entry : facts.missing_preloads) {
    findings.push_back({"ld.so.preload", Level::kWarning,
                        "/etc/ld.so.preload names " + entry + ", which does not exist",
                        "every program on this machine complains about it when it starts",
                        "remove the entry, or install what it names"});
  }
  for (const std::string& entry : os::file_entries(facts.ld_so_preload)) {
    if (!os::is_library(entry)) continue;
    if (library.path.empty() || entry == library.path) {
      findings.push_back(
          {"ld.so.preload", Level::kOk, "/etc/ld.so.preload has " + entry + ": every program is under gpumux"});
    } else {
      findings.push_back({"ld.so.preload", Level::kWarning,
                          "/etc/ld.so.preload has " + entry + ", but this gpumux belongs to " + library.path,
                          "programs use the one in /etc/ld.so.preload, which may be of another version",
                          "make both the same installation"});
    }
  }
}

std::optional<Finding> check_user_dir(const Facts& facts) {
  const DirFacts& dir = facts.user_dir;
  if (!dir.exists) return std::nullopt;
  if (dir.is_dir && dir.owner == facts.uid && (dir.mode & 0077) == 0)
    return Finding{"private directory", Level::kOk, dir.path + " is yours alone"};
  std::string title = dir.path + " ";
  if (!dir.is_dir) {
    title += "is not a directory";
  } else if (dir.owner != facts.uid) {
    title += "belongs to user " + std::to_string(dir.owner);
  } else {
    title += "can be used by others (mode " + octal(dir.mode) + ")";
  }
  return Finding{
      "private directory", Level::kProblem, title,
      "another user could pose as your daemon, so `gpumux run` does not use it and cannot start a private daemon",
      dir.is_dir && dir.owner == facts.uid ? "chmod 700 " + dir.path
                                           : "have it removed, or set GPUMUX_RUNTIME_DIR to a directory of yours"};
}

// Whether the process is a part of a server that the daemon has started, or a program under it.
bool is_of_ours(const std::vector<api_client::MpsServer>& servers, const ProcessFact& process) {
  return std::any_of(servers.begin(), servers.end(), [&](const api_client::MpsServer& server) {
    return process.pid == server.pid || (server.pid != 0 && process.parent == server.pid) ||
           std::find(server.programs.begin(), server.programs.end(), process.pid) != server.programs.end();
  });
}

void check_mps(const Facts& all, Findings& findings) {
  Facts facts = all;
  const std::vector<api_client::MpsServer> ours =
      facts.snapshot ? facts.snapshot->mps_servers : std::vector<api_client::MpsServer>();
  const auto drop_ours = [&](std::vector<ProcessFact>& processes) {
    std::erase_if(processes, [&](const ProcessFact& process) { return is_of_ours(ours, process); });
  };
  std::vector<ProcessFact> started = facts.mps_daemons;
  drop_ours(facts.mps_daemons);
  std::erase_if(started, [&](const ProcessFact& process) { return !is_of_ours(ours, process); });
  for (const api_client::MpsServer& server : ours) {
    findings.push_back(
        {"mps", Level::kOk, "MPS of " + server.user + " is gpumux's: " + plural(server.programs.size(), "program")});
  }
  std::vector<std::string> seen;
  for (GpuFact& gpu : facts.driver.gpus) {
    // The driver lists servers by name alone.
    std::erase_if(gpu.mps_processes, [&](const ProcessFact& process) {
      return std::any_of(started.begin(), started.end(), [&](const ProcessFact& it) { return it.pid == process.pid; });
    });
    drop_ours(gpu.mps_processes);
  }
  if (!facts.mps_daemons.empty()) seen.push_back("running: " + join(names_of(facts.mps_daemons)));
  if (!facts.mps_pipe.empty()) seen.push_back("control pipe " + facts.mps_pipe);
  for (const GpuFact& gpu : facts.driver.gpus) {
    if (!gpu.mps_processes.empty())
      seen.push_back("GPU " + std::to_string(gpu.index) + ": " + join(names_of(gpu.mps_processes)));
  }
  if (seen.empty()) {
    if (ours.empty()) findings.push_back({"mps", Level::kOk, "MPS is not in use"});
    return;
  }
  // A pipe without a process is a leftover: clients try it and fail with an error of MPS's.
  const bool leftover = facts.mps_daemons.empty() && seen.size() == 1 && !facts.mps_pipe.empty();
  findings.push_back(
      {"mps", Level::kWarning, "MPS: " + join(seen),
       leftover ? "no MPS daemon was found, but programs may try to reach one through this pipe and fail to start"
                : "MPS runs its clients' work in one context of its own: a failing program can take the others with "
                  "it, which gpumux cannot prevent",
       leftover ? "remove " + facts.mps_pipe + " if no MPS daemon runs"
                : "stop it if programs share the GPU by gpumux: echo quit | nvidia-cuda-mps-control"});
}

void check_unknown_entries(const Facts& facts, Findings& findings) {
  if (!facts.daemon) return;
  if (facts.daemon->unknown_entries.empty()) {
    findings.push_back({"entries", Level::kOk, "no program has used a driver entry that gpumux does not know"});
    return;
  }
  std::vector<std::string> names;
  for (const auto& entry : facts.daemon->unknown_entries) {
    names.push_back(entry.name + " (" + std::to_string(entry.count) +
                    (entry.programs.empty() ? "" : ", " + join(entry.programs)) + ")");
  }
  findings.push_back({"entries", Level::kWarning, "driver entries that went past gpumux: " + join(names),
                      "the driver is newer than this gpumux; work that is submitted through them is not scheduled",
                      "update gpumux; report these names if it is up to date"});
}

void check_interrupts(const Facts& facts, Findings& findings) {
  if (!facts.snapshot) return;
  std::uint64_t interrupts = 0;
  std::map<std::string, std::vector<std::string>> programs;  // by the reason why they are not interrupted
  for (const api_client::Gpu& gpu : facts.snapshot->gpus) {
    interrupts += gpu.interrupts;
    for (const api_client::Seat& seat : gpu.seats) {
      if (!seat.not_interrupted.empty())
        programs[seat.not_interrupted].push_back(seat.program + " (" + std::to_string(seat.pid) + ")");
    }
  }
  for (const auto& [why, names] : programs) {
    findings.push_back({"interrupts", Level::kWarning, "unfinished work drains when its turn is over: " + why,
                        "others wait until kernels of " + join(names) + " have ended by themselves"});
  }
  if (!programs.empty()) return;
  findings.push_back({"interrupts", Level::kOk,
                      interrupts == 0 ? "nothing is known against interrupts, and no turn has ended with one"
                                      : plural(interrupts, "turn") + " ended with an interrupt"});
}

}  // namespace

Finding check_driver(const Facts& facts) {
  const DriverFacts& driver = facts.driver;
  const std::string get_driver = "install NVIDIA's driver " + std::string(kOldestDriver) +
                                 " or newer; in a container, start it with the driver passed in (--gpus all, "
                                 "NVIDIA_DRIVER_CAPABILITIES=compute,utility)";
  if (!driver.probe_error.empty())
    return {"driver", Level::kProblem, driver.probe_error,
            "the driver is not in order: programs that use it will fail the same way",
            "look at the kernel's log (dmesg | grep -i -e nvrm -e xid), run nvidia-smi; reload the driver "
            "or restart the machine"};
  if (!driver.cuda_error.empty() || driver.cuda_path.empty())
    return {"driver", Level::kProblem, "the CUDA driver (libcuda.so.1) cannot be used: " + driver.cuda_error,
            "no program can use a GPU here, with gpumux or without", get_driver};
  if (driver.cuda_version == 0)
    return {"driver", Level::kProblem, driver.cuda_path + " does not say its version",
            "it is damaged, or no CUDA driver", get_driver};
  const std::string version = "CUDA " + version_text(driver.cuda_version) +
                              (driver.driver_version.empty() ? "" : ", driver " + driver.driver_version) + " (" +
                              driver.cuda_path + ")";
  if (driver.cuda_version < kOldestCudaVersion)
    return {"driver", Level::kProblem, version + " is too old",
            "gpumux is made for CUDA " + version_text(kOldestCudaVersion) +
                " and newer; with this driver, calls may go past it",
            get_driver};
  if (!driver.simulated && !facts.kernel_module)
    return {"driver", Level::kProblem, version + " is installed, but its kernel module is not loaded",
            "the library finds no GPU without it",
            "sudo modprobe nvidia; if that fails, install the driver again for this kernel"};
  if (!facts.closed_devices.empty())
    return {"driver", Level::kProblem, "you may not open " + join(facts.closed_devices), "your programs find no GPU",
            "have its owner give you access (often membership in the group video or render)"};
  return {"driver", Level::kOk, (driver.simulated ? "simulated: " : "") + version};
}

std::optional<Finding> check_host_memory(const Facts& facts) {
  if (!facts.snapshot || facts.snapshot->host_memory.kind.empty()) return std::nullopt;  // only the daemon can tell
  const api_client::HostMemory& host = facts.snapshot->host_memory;
  std::string rate;
  if (host.making.count() > 0) {
    char text[64];
    std::snprintf(text, sizeof text, ", made at %.1f GB/s by each thread",
                  static_cast<double>(host.made) / static_cast<double>(host.making.count()));
    rate = text;
  }
  if (host.kind == "tmpfs") return Finding{"host memory", Level::kOk, "huge pages of the daemon's own tmpfs" + rate};
  if (host.kind == "huge_page_pool")
    return Finding{"host memory", Level::kOk, "huge pages of the system's pool" + rate};
  const std::string& setting = facts.shared_huge_pages;
  const bool off =
      setting.find("[never]") != std::string::npos || setting.find("[deny]") != std::string::npos || setting.empty();
  if (!off) return Finding{"host memory", Level::kOk, "memfds, which get huge pages on this system" + rate};
  return Finding{
      "host memory", Level::kWarning, "memfds of small pages" + rate,
      "programs that do not fit on a GPU together switch slowly at first: memory to evict into is made at a tenth of "
      "the bus's speed. The kernel refuses the daemon a tmpfs of its own" +
          (host.why_no_tmpfs.empty() ? "" : " (" + host.why_no_tmpfs + ")"),
      "run the daemon as a service of the whole machine (" + how_to_start(facts) +
          "), or give shared memory huge pages: echo "
          "advise | sudo tee /sys/kernel/mm/transparent_hugepage/shmem_enabled (until the next boot; for good: "
          "transparent_hugepage_shmem=advise among the kernel's arguments)"};
}

void check_daemon(const Facts& facts, Findings& findings) {
  if (facts.daemon_error) {
    const base::Error& error = *facts.daemon_error;
    if (error.code == base::Code::kUnavailable && !facts.waiting.empty()) {
      findings.push_back({"daemon", Level::kProblem,
                          error.message() + "; programs have lost their daemon: " + facts.waiting,
                          "each waits for a daemon as soon as it has no lease any more",
                          "any `gpumux run` starts a private daemon again; or " + how_to_start(facts)});
    } else if (error.code == base::Code::kUnavailable) {
      findings.push_back({"daemon", Level::kWarning, error.message(),
                          "`gpumux run` starts a daemon for you when it needs one; programs that have the library "
                          "preloaded otherwise run without gpumux, those excepted that had a daemon: they wait for one",
                          how_to_start(facts) + ", for a daemon of the whole machine"});
    } else if (error.code == base::Code::kDenied) {
      findings.push_back({"daemon", Level::kProblem, error.message(),
                          "your programs run without gpumux, at the same time as the programs that it schedules",
                          "ask the daemon's owner to let you in (allow_users, allow_groups in its configuration), or "
                          "mend the directory's owner and mode"});
    } else {
      findings.push_back({"daemon", Level::kProblem, error.message(), "programs wait for it or run without gpumux",
                          std::string("look at its log (") + (facts.systemd ? "journalctl -u gpumuxd, or " : "") +
                              "gpumuxd.log in the runtime directory) and restart it"});
    }
    return;
  }
  if (!facts.daemon) return;
  const api_client::DaemonInfo& daemon = *facts.daemon;
  const std::string name = "gpumuxd " + daemon.version + " of " + daemon.owner + " (pid " + std::to_string(daemon.pid) +
                           ", " + facts.runtime_dir + ")";
  if (daemon.version != base::version()) {
    findings.push_back({"daemon", Level::kWarning,
                        name + " and this gpumux, " + base::version() + ", are of different versions",
                        "they understand each other, but features that only one of them has do not work",
                        std::string("restart the daemon after an update") +
                            (facts.systemd ? " (systemctl restart gpumuxd)" : "") + "; programs go on"});
  } else {
    findings.push_back({"daemon", Level::kOk, name + (daemon.is_private ? ", private" : "")});
  }
  findings.push_back({"permissions", Level::kOk,
                      daemon.caps.priority
                          ? "you may use the daemon; its owner, root and members of its admin_group may change its "
                            "settings"
                          : "you may use the daemon and change its settings"});
  if (!facts.snapshot) return;
  for (const api_client::Gpu& gpu : facts.snapshot->gpus) {
    if (!gpu.claimed_by.empty()) {
      findings.push_back({"daemon", Level::kWarning,
                          "GPU " + std::to_string(gpu.index) + " is claimed by " + gpu.claimed_by +
                              ", which is not root's daemon; the daemon serves the GPU all the same",
                          "a private daemon cannot serve that GPU; a process that claims it is hostile or broken",
                          "ask its user, or end it"});
    }
    if (gpu.refused.empty()) continue;
    findings.push_back({"daemon", Level::kProblem,
                        "the daemon does not serve GPU " + std::to_string(gpu.index) + ": " + gpu.refused,
                        "programs that ask this daemon run without gpumux on that GPU",
                        "use the daemon that serves it, or stop that one"});
  }
}

std::optional<Finding> check_queue(const Facts& facts) {
  const auto problem = [](std::string title, std::string meaning, std::string advice) {
    return Finding{"queue", Level::kProblem, std::move(title), std::move(meaning), std::move(advice)};
  };
  if (facts.queue_error) {
    // A process in a container has no queue, and needs none.
    if (facts.queue_error->code == base::Code::kDenied) return std::nullopt;
    return problem("the daemon does not say how its job queue is: " + facts.queue_error->message(),
                   "jobs cannot be submitted or seen", "look at the daemon's log");
  }
  if (!facts.queue) return std::nullopt;
  const api_client::QueueState& queue = *facts.queue;
  if (queue.state == "off") return Finding{"queue", Level::kOk, queue.unavailable};
  if (queue.state == "no_room")
    return problem("the job queue refuses new jobs: " + queue.unavailable,
                   "`gpumux submit` fails; jobs that are in the queue go on", "make room on that disk");
  if (!queue.unavailable.empty())
    return problem(queue.unavailable, "jobs cannot be submitted, and earlier jobs are not seen",
                   "mend what it names, then restart the daemon");
  if (queue.paused)
    return Finding{"queue", Level::kWarning, "the job queue is paused", "new jobs are taken, but no job starts",
                   "gpumux admin unpause"};
  return Finding{"queue", Level::kOk, "the job queue takes jobs"};
}

void check_foreign(const Facts& facts, Findings& findings) {
  // The daemon knows which processes are its tenants. Without one, every process on a GPU is foreign.
  std::vector<std::pair<std::uint32_t, std::vector<ProcessFact>>> by_gpu;
  if (facts.snapshot) {
    for (const api_client::Gpu& gpu : facts.snapshot->gpus) {
      std::vector<ProcessFact> processes;
      for (const auto& process : gpu.foreign) processes.push_back({process.pid, process.name});
      by_gpu.emplace_back(gpu.index, std::move(processes));
    }
  } else {
    for (const GpuFact& gpu : facts.driver.gpus) by_gpu.emplace_back(gpu.index, gpu.processes);
  }
  bool any = false;
  for (const auto& [index, processes] : by_gpu) {
    if (processes.empty()) continue;
    any = true;
    findings.push_back(
        {"foreign", Level::kWarning,
         "GPU " + std::to_string(index) + " is used without gpumux by " + join(names_of(processes)),
         "their work runs at the same time as the lease holder's, and the memory that they use is not shared",
         "start them with `gpumux run`, or move them to another GPU"});
  }
  if (!any && !by_gpu.empty()) findings.push_back({"foreign", Level::kOk, "no process uses a GPU without gpumux"});
}

Findings check_all(const Facts& facts) {
  Findings findings;
  const auto add = [&findings](std::optional<Finding> finding) {
    if (finding) findings.push_back(std::move(*finding));
  };
  add(check_driver(facts));
  check_gpus(facts, findings);
  check_library(facts, findings);
  check_daemon(facts, findings);
  add(check_queue(facts));
  add(check_user_dir(facts));
  add(check_host_memory(facts));
  check_mps(facts, findings);
  check_foreign(facts, findings);
  check_unknown_entries(facts, findings);
  check_interrupts(facts, findings);
  check_environment(facts, findings);
  return findings;
}

}  // namespace gpumux::cli
