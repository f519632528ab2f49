// SPDX-License-Identifier: Apache-2.0
// The messages of the WebSocket. The daemon's answers are in types.gen.ts.
import type { Daemon, Queue, Status, TraceEvent } from "./types.gen";

// `after`: the number of the event before those of this message.
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
