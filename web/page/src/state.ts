// SPDX-License-Identifier: Apache-2.0
// Everything that the page knows, and the connection that keeps it so. A change is drawn at the next frame.
import { ApiError, get, getText, key, type Session, useLink } from "./api";
import { KEEP_NS, Leases } from "./leases";
import type { Message } from "./types";
import type { Daemon, Queue, Seat, Status, TraceEvent } from "./types.gen";

// What the page says of itself:
//   joining    no answer yet
//   no-link    `gpumux web` does not know this browser: the link was used, or there was none
//   live       news come each second
//   gone       the daemon does not answer, `why` says more
//   lost       `gpumux web` itself does not answer
export type Link = "joining" | "no-link" | "live" | "gone" | "lost";

export interface MemorySample {
  at: number; // monotonic ns
  total: number;
  foreign: number; // of other programs and contexts
  seats: Map<number, number>; // bytes on the GPU by process id
}

const RETRY_MS = 1000;
const SURELY_TOLD_NS = 2e9; // events are a second late
const HISTORY_EVENTS = 5000; // of the trace, from before the page was opened

// A seat's process; without one, its tenant.
export function idOf(seat: Seat): number {
  return seat.pid || -seat.tenant;
}

export function bytesOnGpu(seat: Seat): number {
  return seat.memory ? seat.memory.resident_bytes + seat.memory.unpageable_bytes : 0;
}

export class State {
  link: Link = "joining";
  why = "";
  session: Session | null = null;
  daemon: Daemon | null = null;
  status: Status | null = null;
  queue: Queue | null = null;
  jobEvents = 0; // grows with each change of a job
  readonly leases = new Leases();
  readonly memory = new Map<number, MemorySample[]>();

  private clockAt = 0; // performance.now() at the last news
  private clockNs = 0; // and the machine's monotonic clock then
  private unixNs = 0;
  private socket: WebSocket | null = null;
  private retry = 0;
  private isLoading = false; // the history
  private early: TraceEvent[] = []; // events that came meanwhile

  constructor(readonly draw: () => void) {}

  // The monotonic clock of the machine that is shown.
  now(): number {
    return this.link === "live" ? this.clockNs + (performance.now() - this.clockAt) * 1e6 : this.clockNs;
  }

  unixOf(monotonicNs: number): number {
    return this.unixNs + (monotonicNs - this.clockNs);
  }

  async begin(): Promise<void> {
    await useLink().catch(() => undefined);
    document.addEventListener("visibilitychange", () => this.connect());
    await this.connect();
  }

  // A page that nobody sees costs nothing: it has no connection.
  private async connect(): Promise<void> {
    clearTimeout(this.retry);
    if (document.hidden) {
      this.socket?.close();
      return;
    }
    if (this.socket !== null) return;
    try {
      this.session = await get<Session>("/session");
    } catch (error) {
      const refused = error instanceof ApiError && error.status === 401;
      this.set(refused ? "no-link" : "lost", "");
      this.again();
      return;
    }
    if (this.socket !== null) return;
    const socket = new WebSocket(`ws://${location.host}/live`, ["gpumux", key()]);
    this.socket = socket;
    socket.onmessage = (message) => this.take(JSON.parse(String(message.data)) as Message);
    socket.onclose = () => {
      if (this.socket !== socket) return;
      this.socket = null;
      if (document.hidden) return;
      this.set("lost", "");
      this.again();
    };
  }

  private again(): void {
    clearTimeout(this.retry);
    this.retry = window.setTimeout(() => void this.connect(), RETRY_MS);
  }

  private set(link: Link, why: string): void {
    this.link = link;
    this.why = why;
    this.draw();
  }

  private take(message: Message): void {
    if (message.kind === "gone") {
      this.set("gone", message.why);
      return;
    }
    const restarted = this.daemon !== null && this.daemon.started_unix_ns !== message.daemon.started_unix_ns;
    this.clockAt = performance.now();
    this.clockNs = message.now_ns;
    this.unixNs = message.unix_ns;
    if (restarted) this.leases.restart(message.now_ns);
    this.daemon = message.daemon;
    this.status = message.status;
    this.queue = message.queue;
    if (message.after >= this.leases.next && !this.isLoading) void this.loadHistory();
    if (this.isLoading) this.early.push(...message.events);
    else this.addEvents(message.events);
    this.remember(message.status, message.now_ns);
    this.set("live", "");
  }

  // The trace's events before those that the WebSocket brings. Events that are known already count once.
  private async loadHistory(): Promise<void> {
    this.isLoading = true;
    try {
      const answer = await getText(`/v1/trace?since=${this.leases.next}&limit=${HISTORY_EVENTS}`);
      const lines = (await answer.text()).split("\n");
      this.addEvents(lines.filter((line) => line !== "").map((line) => JSON.parse(line) as TraceEvent));
    } catch {
      // The timeline begins now.
    }
    this.isLoading = false;
    this.addEvents(this.early);
    this.early = [];
  }

  private addEvents(events: TraceEvent[]): void {
    for (const event of events) {
      this.leases.add(event);
      if (event.event === "job") ++this.jobEvents;
    }
    this.draw();
  }

  private remember(status: Status, now: number): void {
    for (const gpu of status.gpus) {
      let samples = this.memory.get(gpu.index);
      if (!samples) this.memory.set(gpu.index, (samples = []));
      const seats = new Map<number, number>();
      // By tenant, so that the first colours are those of the oldest programs.
      for (const seat of [...(gpu.seats ?? [])].sort((a, b) => a.tenant - b.tenant)) {
        const id = idOf(seat);
        this.leases.colors.see(gpu.index, id, now);
        // Younger states come with the trace. The gate of a draining seat is closed.
        const kind = seat.lease && seat.phase !== "draining" ? "hold" : seat.phase === "waiting" ? "wait" : null;
        if (kind && !this.isLoading && seat.since_ns > SURELY_TOLD_NS) {
          this.leases.assume(gpu.index, id, seat.program, kind, now - seat.since_ns);
        }
        seats.set(id, (seats.get(id) ?? 0) + bytesOnGpu(seat));
      }
      samples.push({ at: now, total: gpu.memory_total_bytes, foreign: gpu.memory?.foreign_bytes ?? 0, seats });
      while (samples.length > 0 && samples[0]!.at < now - KEEP_NS) samples.shift();
    }
    this.leases.forgetBefore(now - KEEP_NS);
  }
}
