// SPDX-License-Identifier: Apache-2.0
// The answers of the daemon's HTTP API as plain structs (docs/api.md is the contract).
//
// Reading is tolerant, so that a user's tool and a daemon of different versions understand each other. A missing field
// has the default written here, and an unknown one is ignored. A field of the wrong type is an error: that is not a
// version, it is a fault.
//
// Text in these structs comes from other people's processes (program names, notes) and may hold anything, escape
// sequences included. Programs that print it make it printable first.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace gpumux::api_client {

struct DriverInfo {
  std::string version;       // CUDA version that the driver serves, "13.0"
  std::string nvml_version;  // driver version, "580.159.04"
  bool simulated = false;
};

// A driver entry that went past the library, because the library does not know it.
struct UnknownEntry {
  std::string name;
  std::uint64_t count = 0;
  std::vector<std::string> programs;
};

// The most that programs of this process's get of what they ask for. Absent: as they ask.
struct Caps {
  std::optional<std::int32_t> priority;
  std::string priority_by;  // "admin_group", "job", "claims"
  std::optional<std::string> share;
  std::string share_by;  // the same; by "claims" it is the share, and no bound
};

// GET /v1/daemon
struct DaemonInfo {
  std::string version;
  std::int64_t pid = 0;
  std::uint32_t uid = 0;
  std::string owner;
  bool is_private = false;
  std::string runtime_dir;
  DriverInfo driver;
  std::vector<UnknownEntry> unknown_entries;
  Caps caps;
};

// A process that uses a GPU without gpumux.
struct ForeignProcess {
  std::int64_t pid = 0;
  std::string name;
  std::uint64_t memory_bytes = 0;
};

// Each is absent where the driver does not say it.
struct GpuLoad {
  std::optional<std::uint32_t> utilization_percent{};
  std::optional<std::uint32_t> power_milliwatts{};
  std::optional<std::uint32_t> power_limit_milliwatts{};
  std::optional<std::uint32_t> temperature_celsius{};
};

// All in bytes.
struct SeatMemory {
  std::uint64_t allocated = 0;
  std::uint64_t resident = 0;
  std::uint64_t evicted = 0;
  std::uint64_t unpageable = 0;
  std::map<std::string, std::string> unpageable_by_reason;
  std::uint64_t room = 0;
  std::uint64_t wanted = 0;  // more than its room, and waits for it; 0: it does not
  std::uint64_t quota = 0;   // 0: none
  std::uint64_t host_used = 0;
  std::uint64_t moved_out = 0;
  std::uint64_t moved_in = 0;
  std::uint64_t saved_clean = 0;
  std::uint64_t saved_constant = 0;
};

// A program's memory that was in the way of another's.
struct MemoryHolder {
  std::int64_t pid = 0;
  std::string program;
  std::uint64_t bytes = 0;
};

// The program may have ended since.
struct RefusedAllocation {
  std::int64_t pid = 0;
  std::string program;
  base::Duration age{};
  std::string reason;        // quota, gpu_memory, host_memory, nothing_moves
  std::uint64_t had = 0;     // bytes
  std::uint64_t wanted = 0;  // in all
  std::uint64_t limit = 0;   // of the reason; 0: none is known
  std::uint64_t others = 0;  // of other programs and contexts, and kept free
  std::vector<MemoryHolder> holders;
};

struct GpuMemory {
  std::uint64_t tenants = 0;
  std::uint64_t foreign = 0;
  std::uint64_t reserve = 0;
  std::uint64_t moved_out = 0;
  std::uint64_t moved_in = 0;
  std::uint64_t saved_clean = 0;
  std::uint64_t saved_constant = 0;
};

struct HostMemory {
  std::uint64_t budget = 0;
  std::uint64_t lent = 0;
  std::string kind{};          // tmpfs, huge_page_pool, memfd; empty: not known
  std::string why_no_tmpfs{};  // empty: there is one
  std::string why_no_mover{};  // empty: one serves, or none is needed
  std::uint64_t made = 0;      // bytes so far
  base::Duration making{};     // of all threads together
};

// The container that a program is in. An empty text is not known, or there is none.
struct Container {
  std::string id{};
  std::string pod_namespace{};
  std::string pod{};
};

// Of a program under MPS: its server, and the part of the GPU's threads that it may use.
struct SeatMps {
  std::uint32_t thread_percentage = 100;
};

struct Seat {
  std::uint64_t tenant = 0;
  std::int64_t pid = 0;
  std::uint32_t uid = 0;
  std::string user;
  std::string program;
  std::optional<std::uint64_t> job;  // that it is a program of
  Container container;
  std::string phase;              // idle, waiting, holding, revoked, draining, silent
  std::string lease;              // exclusive, shared; empty: none
  base::Duration since{};         // how long ago the phase began
  std::uint64_t queue_place = 0;  // from 1; 0: not waiting
  std::string waits_for;          // the seat and the reason, for people
  std::uint64_t grants = 0;
  base::Duration gpu_time{};         // it held a lease, and was not idle
  base::Duration recent_gpu_time{};  // of that, in the window of Snapshot::recent
  base::Duration waited{};
  base::Duration wait_p50{};  // from request to grant: half of all waits were no longer
  base::Duration wait_p99{};  // and 99 % no longer than this
  std::string gang;
  std::int64_t priority = 0;
  std::string share = "1";
  std::string max_share = "100%";
  bool poisoned = false;
  bool is_frozen = false;       // its work stands still in the middle until its next turn
  std::string not_interrupted;  // why unfinished work of it drains; empty: it is frozen, as far as is known
  std::string note;
  std::optional<SeatMps> mps{};
  std::optional<SeatMemory> memory;  // nothing: it is left to the driver
};

// An MPS server that the daemon has started for a user.
struct MpsServer {
  std::string user;
  std::string state;  // starting, serving, faulted, ending, died
  std::int64_t pid = 0;
  std::vector<std::int64_t> programs;  // their process ids
};

struct Gpu {
  std::uint32_t index = 0;
  std::string uuid;
  std::string name;
  std::string pci_bus_id;
  std::string architecture;        // "Hopper"; empty: not known
  std::string compute_capability;  // "9.0"; empty: not known
  std::uint64_t memory_total_bytes = 0;
  std::uint64_t memory_used_bytes = 0;
  std::string mode;
  std::string mode_now;  // serial or concurrent: the mode in force, also under "auto"
  std::string mode_why;  // and why
  std::string policy;
  std::string quantum;                          // as it was set: "auto", "unlimited", "50ms"
  base::Duration quantum_now{};                 // the quantum in force; 0: none
  std::map<std::string, std::string> settings;  // every setting as PATCH takes it; "true" and "false" for a yes or no
  base::Duration switch_cost{};
  std::uint64_t switches = 0;
  std::uint64_t interrupts = 0;  // turns that ended with unfinished work, which was taken off the GPU
  GpuLoad load{};
  GpuMemory memory;
  std::string remark;      // a note for its programs' users; empty: nothing
  std::string refused;     // why this GPU is not served; empty: it is
  std::string sick;        // why no new work belongs on it; empty: it is healthy
  std::string claimed_by;  // the process that keeps the lock's name though the daemon serves it; empty: none
  std::vector<RefusedAllocation> refused_allocations{};  // latest first
  std::vector<ForeignProcess> foreign;
  std::vector<Seat> seats;
};

// GET /v1/status
struct Snapshot {
  std::vector<Gpu> gpus;
  base::Duration recent{};  // how long the window of Seat::recent_gpu_time is; 0: nothing is known yet
  std::vector<MpsServer> mps_servers{};
  HostMemory host_memory;
};

struct SettingChange {
  std::string name;
  std::string before;
  std::string after;
};

// One line of GET /v1/trace.
struct TraceEvent {
  std::uint64_t sequence = 0;
  base::TimePoint time{};  // CLOCK_MONOTONIC
  std::optional<std::uint32_t> gpu;
  std::string event;
  std::uint64_t tenant = 0;
  std::int64_t pid = 0;
  std::string program;
  std::uint64_t job = 0;  // of the queue: the one that changes, or the tenant's; 0: none, or not to be seen
  std::string name;       // of a job that changes
  std::uint64_t epoch = 0;
  std::string lease;
  std::string detail;                  // why, or which: "quantum"
  std::string before;                  // the name of the state that this ends: "idle"; empty: none that has a length
  base::Duration lasted{};             // how long that was so
  std::vector<SettingChange> changes;  // of `settings`
  std::string pod;                     // "namespace/name"; empty: none is known
  std::string others;                  // every further field of the event, in the order of its name ("waited_ns=12")
};

// A duration of 2^62 ns or more means "never" and is read as base::Duration::max().
base::Result<DaemonInfo> parse_daemon_info(std::string_view json);
base::Result<Snapshot> parse_snapshot(std::string_view json);
base::Result<TraceEvent> parse_trace_event(std::string_view json);
// The answer to PATCH /v1/tenants/...: of a seat, the values that all seats of the tenant have.
base::Result<Seat> parse_tenant(std::string_view json);
// The GPUs of an answer to a change of settings.
base::Result<std::vector<Gpu>> parse_settings(std::string_view json);

}  // namespace gpumux::api_client
