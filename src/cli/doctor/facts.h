// SPDX-License-Identifier: Apache-2.0
// The facts that the doctor looks at, as plain values. The checks (checks.h) judge them without touching the machine,
// so that a test can show them every state of a machine.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "api_client/jobs.h"
#include "api_client/types.h"
#include "base/result.h"

namespace gpumux::cli {

struct ProcessFact {
  std::int64_t pid = 0;
  std::string name;
  std::int64_t parent = 0;  // 0: it was not looked for
};

struct GpuFact {
  std::uint32_t index = 0;
  std::string uuid;
  std::string name;
  std::string compute_mode;  // default, exclusive-thread, exclusive-process, prohibited; empty: not known
  std::vector<ProcessFact> processes;
  std::vector<ProcessFact> mps_processes;
};

// The driver as a child process saw it (probe.h).
struct DriverFacts {
  std::string probe_error;  // the child itself failed: "it crashed (signal 11)", "it did not answer within 20 s"
  std::string cuda_path;    // the libcuda.so.1 that was loaded; empty: none
  std::string cuda_error;   // the loader's reason
  int cuda_version = 0;     // 13000 for 13.0; 0: not known
  bool simulated = false;
  std::string nvml_error;  // could not be loaded, or did not start
  std::string driver_version;
  std::vector<GpuFact> gpus;
};

struct LibraryFacts {
  std::string path;            // empty: not found
  std::string error;           // not found, or the loader would refuse it
  bool mapped = false;         // a child of ours had it preloaded
  std::string loader_message;  // the loader's messages of that time
};

struct DirFacts {
  std::string path;
  bool exists = false;
  bool is_dir = false;
  uid_t owner = 0;
  mode_t mode = 0;
};

struct Facts {
  uid_t uid = 0;
  bool systemd = false;  // it starts this machine's services
  std::map<std::string, std::string> environment;

  DriverFacts driver;
  bool kernel_module = false;               // /proc/driver/nvidia/version is there
  std::vector<std::string> closed_devices;  // /dev/nvidia* that this user may not open

  LibraryFacts library;
  std::string ld_so_preload;                  // the file's text
  std::vector<std::string> missing_preloads;  // its entries that are not there

  std::string runtime_dir;  // where a daemon was looked for
  std::optional<base::Error> daemon_error;
  std::string waiting;  // without a daemon: the programs that have the library at work in them (tenants_text)
  std::optional<api_client::DaemonInfo> daemon;
  std::optional<api_client::Snapshot> snapshot;
  std::optional<api_client::QueueState> queue;
  std::optional<base::Error> queue_error;  // the daemon answers, but not about its queue
  DirFacts user_dir;

  // How the kernel gives shared memory huge pages: "always within_size [advise] never ...". Empty: not known.
  std::string shared_huge_pages;

  std::vector<ProcessFact> mps_daemons;
  std::string mps_pipe;  // MPS's control pipe, where it exists; empty: it does not
};

// Looks at this machine. Creates no CUDA context, starts no daemon and changes nothing.
Facts collect_facts(const std::string& runtime_dir);

}  // namespace gpumux::cli
