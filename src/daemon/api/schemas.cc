// SPDX-License-Identifier: Apache-2.0
// The fields of the API's JSON. A test holds every answer of a daemon against it: a field that is not here fails it.
#include <array>

#include "daemon/api/openapi.h"

namespace gpumux::daemon {
namespace {

// Fields that several schemas have.
#define GPUMUX_GPU_FIELDS                                                                                \
  "index: int, uuid: text, name: text, pci_bus_id: text, architecture: text, compute_capability: text, " \
  "compute_mode: text, memory_total_bytes: int, memory_used_bytes: int, mode: auto|serial|concurrent, "  \
  "policy: fair|fifo, quantum: text, mode_now: serial|concurrent, max_runtime_ns?: int, "                \
  "settings: GpuSettings, refused: text, claimed_by: text, sick: text"
#define GPUMUX_SUMS_FIELDS                                                                             \
  "held_seconds: number, gpu_seconds: number, waited_seconds: number, resident_byte_seconds: number, " \
  "evicted_byte_seconds: number, switches: int"

constexpr std::array kSchemas{
    Schema{"Error", "error: ErrorBody"},
    Schema{"ErrorBody", "code: ErrorCode, message: text"},
    Schema{"Nothing", ""},
    Schema{"Api", "version: text, description: text, addresses: ApiAddress[]"},
    Schema{"ApiAddress", "path: text, methods: text[], summary: text"},
    Schema{
        "Daemon",
        "version: text, pid: int, uid: int, owner: text, private: bool, started_unix_ns: int, config_file: text, "
        "runtime_dir: text, driver: Driver, tenants: int, timers: Timers, unknown_entries: UnknownEntry[], caps: Caps"},
    Schema{"Caps", "priority?: int, priority_by?: CapBy, share?: text, share_by?: CapBy"},
    Schema{"CapBy", "admin_group|job|claims"},
    Schema{"Driver", "version: text, nvml_version: text, simulated: bool"},
    Schema{"Timers", "fired: int, late_over_1ms: int, latest_ns: int"},
    Schema{"UnknownEntry", "name: text, count: int, programs: text[]"},

    Schema{"Status", "gpus: Gpu[], recent_ns: int, mps_servers: MpsServer[], host_memory: HostMemory"},
    Schema{"MpsServer",
           "server: int, uid: int, user: text, state: starting|serving|faulted|ending|died, pid: int, "
           "programs: int[]"},
    Schema{"Gpus", "gpus: Gpu[]"},
    Schema{"ChangedGpus", "gpus: ChangedGpu[]"},
    Schema{"ChangedGpu", GPUMUX_GPU_FIELDS},
    Schema{
        "Gpu", GPUMUX_GPU_FIELDS
        ", quantum_ns?: int, switch_cost_ns?: int, switches?: int, interrupts?: int, held_ns?: int, mode_why?: text, "
        "measured?: Measured, memory?: GpuMemory, load: Load, remark?: text, "
        "refused_allocations?: RefusedAllocation[], foreign: Foreign[], seats: Seat[]"},
    Schema{"Load",
           "utilization_percent?: int, power_milliwatts?: int, power_limit_milliwatts?: int, "
           "temperature_celsius?: int"},
    Schema{"RefusedAllocation",
           "tenant: int, pid: int, program: text, age_ns: int, "
           "reason: quota|gpu_memory|host_memory|nothing_moves, had_bytes: int, wanted_bytes: int, "
           "limit_bytes?: int, others_bytes?: int, holders: MemoryHolder[]"},
    Schema{"MemoryHolder", "pid: int, program: text, bytes: int"},
    Schema{"Measured", "by_turns_permille: int, noise_permille: int, has_pauses: bool, age_ns: int"},
    Schema{"GpuMemory",
           "tenants_bytes: int, foreign_bytes: int, returning_bytes: int, reserve_bytes: int, moved_out_bytes: int, "
           "moved_in_bytes: int, saved_clean_bytes: int, saved_constant_bytes: int, handed_over_bytes: int"},
    Schema{"Foreign", "pid: int, name: text, memory_bytes: int"},
    Schema{
        "Seat",
        "tenant: int, pid: int, uid: int, user: text, program: text, job?: int, phase: Phase, container?: Container, "
        "lease?: exclusive|shared, epoch?: int, since_ns: int, queue_place: int, waits_for: text, grants: int, "
        "held_ns: int, gpu_time_ns: int, recent_gpu_time_ns: int, waited_ns: int, wait_p50_ns: int, "
        "wait_p99_ns: int, gang: text, priority: int, share: text, max_share: text, poisoned: bool, "
        "is_frozen: bool, not_interrupted: text, submissions: int, note: text, mps?: SeatMps, memory?: SeatMemory"},
    Schema{"SeatMps", "server: int, thread_percentage: int"},
    Schema{"Phase", "idle|waiting|holding|revoked|draining|silent|suspended"},
    Schema{"Container", "id: text, namespace?: text, pod?: text, name?: text, claim?: text"},
    Schema{"SeatMemory",
           "allocated_bytes: int, resident_bytes: int, evicted_bytes: int, unpageable_bytes: int, "
           "unpageable: map int, room_bytes: int, commitment_bytes: int, wanted_bytes: int, quota_bytes: int, "
           "host_used_bytes: int, host_clean_bytes: int, moved_out_bytes: int, "
           "moved_in_bytes: int, saved_clean_bytes: int, saved_constant_bytes: int, handed_over_bytes: int"},
    Schema{"HostMemory",
           "budget_bytes: int, lent_bytes: int, ready_bytes: int, loans: int, waits: int, waited_ns: int, "
           "is_short: bool, kind: text, why_no_tmpfs: text, why_no_mover: text, made_bytes: int, made_ns: int"},
    Schema{"Tenants", "tenants: Tenant[], more: bool"},
    Schema{
        "Tenant",
        "tenant: int, pid: int, uid: int, user: text, program: text, job?: int, container?: Container, priority: int, "
        "share: text, max_share: text, seats: TenantSeat[]"},
    Schema{"TenantSeat",
           "gpu: int, phase: Phase, lease?: exclusive|shared, epoch?: int, since_ns: int, queue_place: int, "
           "waits_for: text, grants: int, held_ns: int, gpu_time_ns: int, recent_gpu_time_ns: int, waited_ns: int, "
           "wait_p50_ns: int, wait_p99_ns: int, gang: text, poisoned: bool, is_frozen: bool, not_interrupted: text, "
           "submissions: int, note: text, "
           "mps?: SeatMps, memory?: SeatMemory"},
    Schema{"TenantPatch", "priority?: int_or_default, share?: text_or_number, max_share?: text_or_number"},
    Schema{"ChangedTenant", "tenant: int, pid: int, program: text, priority: int, share: text, max_share: text"},
    Schema{"TraceEvent",
           "sequence: int, time_ns: int, gpu?: int, event: text, tenant?: int, pid?: int, program?: text, pod?: text, "
           "epoch?: int, lease?: exclusive|shared, detail?: text, job?: int, name?: text, before?: text, "
           "before_ns?: int, changes?: map text[]"},

    Schema{"Report",
           "since_unix_ns: int, until_unix_ns: int, by: user|job|pod|program, rows: ReportRow[], rest?: Sums"},
    Schema{"ReportRow",
           "uid?: int, user?: text, job?: int, array?: int, array_index?: int, name?: bytes_or_text, "
           "namespace?: bytes_or_text, pod?: bytes_or_text, program?: bytes_or_text, others?: bool, "
           "run_seconds?: number, " GPUMUX_SUMS_FIELDS},
    Schema{"Sums", GPUMUX_SUMS_FIELDS},

    Schema{"JobPage", "jobs: Job[], more: bool"},
    Schema{"Job",
           "id: int, array?: int, array_index?: int, array_limit?: int, name?: bytes_or_text, uid: int, "
           "user: text, state: JobState, state_since_unix_ns?: int, outcome?: Outcome, exit_status?: int, "
           "reason: Reason, why?: bytes_or_text, place?: int, starts_in_ns?: int, priority: int, "
           "priority_capped: int, gpus: int[], gpus_wanted: int, gpu_ids?: int[], memory_bytes: int, "
           "exclusive: bool, time_limit_ns: int, on_time_limit: suspend|cancel, limit_in_ns?: int, requeue: bool, "
           "attempt: int, submitted_unix_ns: int, begin_unix_ns?: int, started_unix_ns: int, ended_unix_ns: int, "
           "gpu_seconds: number, peak_memory_bytes: int, note?: bytes_or_text, command?: bytes_or_text, "
           "interactive?: bool, arguments?: bytes_or_text[], directory?: bytes_or_text, "
           "setup_command?: bytes_or_text, environment?: bytes_or_text[], log?: bytes_or_text, "
           "error_output?: bytes_or_text, attach?: bytes_or_text, pid?: int, after?: Dependency[]"},
    Schema{"JobState", "queued|held|starting|running|suspending|suspended|resuming|ending|done"},
    Schema{"Outcome", "|ok|failed|cancelled|timed out|lost|dependency failed"},
    Schema{"Reason", "|held|dependency|begin|gpu_memory|priority|user_limit|array_limit|drained|retry|paused|starting"},
    Schema{"Dependency", "job: int, need: ok|any"},
    Schema{"Submission",
           "arguments: bytes_or_text[], directory: bytes_or_text, environment: bytes_or_text[], gpus?: int, "
           "gpu_ids?: int[], memory_bytes?: int, time_limit_ns?: int, on_time_limit?: suspend|cancel, "
           "priority?: int, name?: bytes_or_text, setup_command?: bytes_or_text, output?: bytes_or_text, "
           "error_output?: bytes_or_text, append?: bool, exclusive?: bool, begin_unix_ns?: int, "
           "after?: Dependency[], array?: text, interactive?: bool, window?: Window, requeue?: bool, held?: bool, "
           "umask?: int, nice?: int, token?: text"},
    Schema{"Window", "rows: int, columns: int"},
    Schema{"Submitted", "id: int, count: int, priority_capped?: int"},
    Schema{"JobPatch",
           "cancel?: bool, held?: bool, suspended?: bool, run_again?: bool, signal?: text_or_number, "
           "priority?: int, time_limit_ns?: int, memory_bytes?: int, gpus?: int, gpu_ids?: int[]"},
    Schema{"ChangedJobs", "jobs: ChangedJob[]"},
    Schema{"ChangedJob", "id: int, changed: bool, error?: ErrorBody"},
    Schema{"Queue",
           "settings: QueueSettings, paused: bool, state: open|no_room|off|failed, unavailable: text, "
           "jobs: QueueCounts, gpus: QueueGpu[], "
           "reserved?: Reservation, users: QueueUser[]"},
    Schema{"QueueSettings",
           "order: fair|fifo, half_life_ns: int, oversubscribe: number, default_memory_bytes: int, "
           "max_job_time_ns: int, preempt: bool, privacy: open|limited|own, cancel_grace_ns: int, "
           "suspend_patience_ns: int, history_ns: int, max_bytes: int, ledger_hours_ns: int, ledger_history_ns: int, "
           "max_history: int, limits: Limits"},
    Schema{"Limits", "running?: int, queued?: int, gpus?: int, priority_cap?: int"},
    Schema{"QueueCounts", "queued: int, held: int, running: int, suspended: int"},
    Schema{"QueueGpu",
           "index: int, capacity_bytes: int, promised_bytes: int, outside_jobs_bytes: int, drained: bool, "
           "sick: bool, present: bool, jobs: QueueGpuJob[]"},
    Schema{"QueueGpuJob", "id: int, uid: int, user: text, name?: text"},
    Schema{"Reservation", "job: int, gpus: int[], starts_in_ns?: int"},
    Schema{"QueueUser",
           "uid: int, user: text, running: int, queued: int, gpus: int, used_gpu_ns: int, limits?: Limits"},
    Schema{"QueuePatch", "paused: bool"},
    Schema{"QueueGpuPatch", "drained: bool"},
    Schema{"QueueUserPatch",
           "running?: int_or_null, queued?: int_or_null, gpus?: int_or_null, priority_cap?: int_or_null, "
           "default?: bool"},
};

// The codes of base::Code, and no others: api_types.cc.
constexpr std::array kErrorCodes{
    ErrorCode{"invalid", "The request is wrong, and stays wrong."},
    ErrorCode{"not_found", "The request names something that does not exist."},
    ErrorCode{"exists", "The thing that the request makes is there already."},
    ErrorCode{"denied", "The caller may not do this."},
    ErrorCode{"exhausted", "A limit is reached."},
    ErrorCode{"unavailable", "Not now. Trying again may help."},
    ErrorCode{"timeout", "It was not done in time."},
    ErrorCode{"unsupported", "The address does not take this method, or this system cannot do it."},
    ErrorCode{"internal", "The daemon has failed; its log says why."},
};

}  // namespace

std::span<const Schema> schemas() { return kSchemas; }
std::span<const ErrorCode> error_codes() { return kErrorCodes; }

}  // namespace gpumux::daemon
