// SPDX-License-Identifier: Apache-2.0
// What the page reads of the daemon's answers: docs/api.md is the contract.

export interface SeatMemory {
  allocated_bytes: number;
  resident_bytes: number;
  evicted_bytes: number;
  unpageable_bytes: number;
  room_bytes: number;
  quota_bytes: number;
  host_used_bytes: number;
  moved_out_bytes: number;
  moved_in_bytes: number;
}

export interface Seat {
  tenant: number;
  pid: number;
  user: string;
  program: string;
  phase: string;
  lease?: string;
  since_ns: number;
  queue_place: number;
  waits_for: string;
  held_ns: number;
  recent_gpu_time_ns: number;
  waited_ns: number;
  wait_p50_ns: number;
  wait_p99_ns: number;
  grants: number;
  gang: string;
  priority: number;
  note: string;
  container?: { namespace?: string; pod?: string };
  memory?: SeatMemory;
}

export interface Gpu {
  index: number;
  uuid: string;
  name: string;
  memory_total_bytes: number;
  memory_used_bytes: number;
  mode?: string;
  mode_now?: string;
  mode_why?: string;
  policy?: string;
  quantum?: string;
  quantum_ns?: number;
  switches?: number;
  load?: { utilization_percent?: number; power_milliwatts?: number; temperature_celsius?: number };
  memory?: { tenants_bytes: number; foreign_bytes: number; returning_bytes: number; reserve_bytes: number };
  remark?: string;
  refused?: string;
  sick?: string;
  foreign?: { pid: number; name: string; memory_bytes: number }[];
  seats?: Seat[];
}

export interface Status {
  gpus: Gpu[];
  recent_ns: number;
  host_memory: { budget_bytes: number; lent_bytes: number };
}

export interface Queue {
  paused: boolean;
  unavailable: string;
  jobs: Record<string, number>;
  gpus: { index: number; drained: boolean }[];
}

export interface Daemon {
  version: string;
  owner: string;
  private: boolean;
  started_unix_ns: number;
  driver: { version: string; nvml_version: string; simulated: boolean };
}

export interface TraceEvent {
  sequence: number;
  time_ns: number;
  gpu?: number;
  event: string;
  tenant?: number;
  pid?: number;
  program?: string;
  lease?: string;
  detail?: string;
  job?: number;
}

export interface Job {
  id: number;
  array?: number;
  array_index?: number;
  name?: unknown;
  user: string;
  state: string;
  outcome: string;
  exit_status?: number;
  reason?: string;
  why?: unknown;
  place?: number;
  starts_in_ns?: number;
  priority: number;
  gpus: number[];
  gpus_wanted: number;
  memory_bytes: number;
  time_limit_ns: number;
  limit_in_ns?: number;
  attempt: number;
  submitted_unix_ns: number;
  started_unix_ns: number;
  ended_unix_ns: number;
  gpu_seconds: number;
  peak_memory_bytes: number;
  note?: unknown;
  command?: unknown;
  directory?: unknown;
  log?: unknown;
}

export interface ReportSums {
  held_seconds: number;
  gpu_seconds: number;
  waited_seconds: number;
  resident_byte_seconds: number;
  evicted_byte_seconds: number;
  switches: number;
}

export interface ReportRow extends ReportSums {
  uid?: number;
  user?: string;
  job?: number;
  name?: unknown;
  namespace?: string;
  pod?: string;
  program?: unknown;
  others?: unknown;
}

export interface Report {
  by: string;
  rows: ReportRow[];
  rest?: ReportSums;
}

// What the WebSocket brings. `after`: the number of the event before those of this message.
export interface News {
  kind: "news";
  now_ns: number;
  unix_ns: number;
  daemon: Daemon;
  status: Status;
  queue: Queue | null;
  after: number;
  events: TraceEvent[];
}

export type Message = News | { kind: "gone"; why: string };
