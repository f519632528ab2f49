// SPDX-License-Identifier: Apache-2.0
// Which program had each GPU when, from the trace's events, by the rule of src/api_client/holds.h. tests/leases_test.mjs
// compares the two by one table. A process is known by its id, so that it keeps its row and its colour when it connects
// again to a restarted daemon.
//
// The page reads events itself, for it alone keeps the past: `gpumux web` asks for a trace while a page is open, and
// forgets it. A list of spans from there would be a second protocol, with beginnings and ends to put together here.
import { ProgramColors } from "./colors";
import type { TraceEvent } from "./types.gen";
import { printable } from "./text";

export const KEEP_NS = 600e9; // the longest window of the timeline
const MAX_SPANS = 40_000; // of one GPU: about 10 minutes of turns of 50 ms, with their waits

export type SpanKind = "hold" | "drain" | "wait" | "move";

export interface Span {
  kind: SpanKind;
  begin: number;
  end: number; // Infinity: it goes on
  why: string;
}

export interface Row {
  id: number;
  program: string;
  color: string;
  spans: Span[]; // in order of their begin
}

export interface Lanes {
  rows: Map<number, Row>;
  switches: number[]; // when another program got the GPU than the one before
  last: number | null; // the row that had the last exclusive lease
}

export class Leases {
  readonly gpus = new Map<number, Lanes>();
  readonly colors = new ProgramColors();
  private sequence = 0;

  get next(): number {
    return this.sequence + 1;
  }

  // A restarted daemon counts its events from 1, and says anew what its tenants have.
  restart(now: number): void {
    this.sequence = 0;
    for (const lanes of this.gpus.values()) {
      for (const row of lanes.rows.values()) this.closeAll(row, now);
      lanes.last = null;
    }
  }

  add(event: TraceEvent): void {
    if (event.sequence <= this.sequence) return;
    this.sequence = event.sequence;
    const id = event.pid || -(event.tenant ?? 0);
    if (id === 0) return;
    if (event.gpu !== undefined) {
      this.take(event.gpu, id, event);
    } else if (event.event === "gone") {
      for (const lanes of this.gpus.values()) {
        const row = lanes.rows.get(id);
        if (row) this.closeAll(row, event.time_ns);
      }
    }
  }

  // From a snapshot: the program holds the GPU, or waits for it, since a time that the history does not reach.
  assume(gpu: number, id: number, program: string, kind: "hold" | "wait", since: number): void {
    const lanes = this.lanesOf(gpu);
    let row = lanes.rows.get(id);
    if (row && (this.openSpan(row, "hold") || this.openSpan(row, "wait"))) return;
    if (!row) lanes.rows.set(id, (row = { id, program: printable(program), color: this.colors.of(gpu, id), spans: [] }));
    row.spans.push({ kind, begin: since, end: Infinity, why: "" });
  }

  forgetBefore(time: number): void {
    this.colors.forgetBefore(time);
    for (const lanes of this.gpus.values()) {
      let spans = 0;
      for (const row of lanes.rows.values()) spans += row.spans.length;
      const excess = spans > MAX_SPANS ? (spans - MAX_SPANS) / spans : 0;
      for (const [id, row] of lanes.rows) {
        const least = Math.floor(row.spans.length * excess);
        row.spans = row.spans.filter((span, index) => span.end === Infinity || (index >= least && span.end >= time));
        if (row.spans.length === 0) lanes.rows.delete(id);
      }
      lanes.switches = lanes.switches.filter((at) => at >= time);
    }
  }

  private lanesOf(gpu: number): Lanes {
    let lanes = this.gpus.get(gpu);
    if (!lanes) this.gpus.set(gpu, (lanes = { rows: new Map(), switches: [], last: null }));
    return lanes;
  }

  private take(gpu: number, id: number, event: TraceEvent): void {
    this.colors.see(gpu, id, event.time_ns);
    const lanes = this.lanesOf(gpu);
    let row = lanes.rows.get(id);
    if (!row) {
      row = { id, program: "", color: this.colors.of(gpu, id), spans: [] };
      lanes.rows.set(id, row);
    }
    if (event.program) row.program = printable(event.program);
    const now = event.time_ns;
    const detail = event.detail ?? "";
    switch (event.event) {
      case "request":
        this.open(row, "wait", now);
        break;
      case "claim":
        if (detail === "waiting") this.open(row, "wait", now);
        if (detail === "holding") this.open(row, "hold", now);
        if (detail === "draining") this.open(row, "drain", now);
        break;
      case "grant":
        this.close(row, "wait", now);
        this.close(row, "drain", now);
        this.open(row, "hold", now);
        if (event.lease !== "shared") {
          if (lanes.last !== null && lanes.last !== id) lanes.switches.push(now);
          lanes.last = id;
        }
        break;
      case "revoke":
        this.explain(row, detail);
        break;
      case "gate_closed":
        this.close(row, "hold", now);
        this.open(row, "drain", now);
        break;
      case "drained":
      case "stall":
        this.close(row, "hold", now);
        this.close(row, "drain", now);
        break;
      case "moves":
        if (detail === "nowhere") this.close(row, "move", now);
        else this.open(row, "move", now, detail);
        break;
      case "complete":
        this.close(row, "move", now);
        break;
      case "close":
      case "gone":
        this.closeAll(row, now);
        break;
    }
  }

  private openSpan(row: Row, kind: SpanKind): Span | undefined {
    // Open spans are among the newest: a row has at most one of each kind.
    for (let i = row.spans.length - 1; i >= 0 && i >= row.spans.length - 16; --i) {
      const span = row.spans[i]!;
      if (span.kind === kind && span.end === Infinity) return span;
    }
    return undefined;
  }

  private open(row: Row, kind: SpanKind, begin: number, why = ""): void {
    if (!this.openSpan(row, kind)) row.spans.push({ kind, begin, end: Infinity, why });
  }

  private explain(row: Row, why: string): void {
    const span = this.openSpan(row, "hold");
    if (span) span.why = why;
  }

  private close(row: Row, kind: SpanKind, now: number): void {
    const span = this.openSpan(row, kind);
    if (span) span.end = now;
  }

  private closeAll(row: Row, now: number): void {
    for (const span of row.spans) if (span.end === Infinity) span.end = now;
  }
}

export interface Share {
  row: Row;
  held: number;
  waited: number;
  grants: number;
  longestWait: number;
}

// What each program had of a GPU from `begin` to `end`, the most first.
export function shares(lanes: Lanes, begin: number, end: number): Share[] {
  const found: Share[] = [];
  for (const row of lanes.rows.values()) {
    const share: Share = { row, held: 0, waited: 0, grants: 0, longestWait: 0 };
    for (const span of row.spans) {
      const part = Math.min(span.end, end) - Math.max(span.begin, begin);
      if (part <= 0) continue;
      if (span.kind === "hold") {
        share.held += part;
        if (span.begin >= begin) ++share.grants;
      } else if (span.kind === "wait") {
        share.waited += part;
        share.longestWait = Math.max(share.longestWait, Math.min(span.end, end) - span.begin);
      }
    }
    if (share.held > 0 || share.waited > 0) found.push(share);
  }
  return found.sort((a, b) => b.held - a.held || a.row.id - b.row.id);
}
