// SPDX-License-Identifier: Apache-2.0
// Who held each GPU, as a timeline that can be paused, moved and zoomed; and memory by program over the same time.
import { Component } from "preact";
import { drawLanes, drawMemory, rowsOf } from "./canvas";
import { colorOf } from "./colors";
import { KEEP_NS, type Lanes, shares, type Span } from "./leases";
import { Name, Picture, Swatch, Table } from "./parts";
import { idOf, type State } from "./state";
import { bytes, clock, duration, OTHERS, percent, plural, printable } from "./text";

const WINDOWS = [0.2e9, 0.5e9, 1e9, 2e9, 5e9, 10e9, 30e9, 60e9, 120e9, 300e9, 600e9];

// The window of time that timeline and memory show. null: its end is now.
export class Window {
  span = 30e9;
  end: number | null = null;

  isPaused(): boolean {
    return this.end !== null;
  }
  endAt(state: State): number {
    return this.end ?? state.now();
  }
  pause(state: State): void {
    this.end = this.end === null ? state.now() : null;
  }
  zoom(step: number): void {
    const at = WINDOWS.reduce((best, w, i) => (Math.abs(w - this.span) < Math.abs(WINDOWS[best]! - this.span) ? i : best), 0);
    const next = WINDOWS[Math.max(0, Math.min(WINDOWS.length - 1, at + step))]!;
    // The middle stays where it is.
    if (this.end !== null) this.end += (next - this.span) / 2;
    this.span = next;
  }
  move(state: State, part: number): void {
    const end = this.endAt(state) + part * this.span;
    this.end = end >= state.now() ? null : Math.max(end, state.now() - KEEP_NS + this.span);
  }
}

export function WindowControls({ state, window: view }: { state: State; window: Window }) {
  const does = (action: () => void) => () => {
    action();
    state.draw();
  };
  return (
    <div class="controls" role="group" aria-label="Window of time">
      <button type="button" class="primary" aria-pressed={view.isPaused()} onClick={does(() => view.pause(state))}>
        {view.isPaused() ? "Go on" : "Pause"}
      </button>
      <button type="button" onClick={does(() => view.move(state, -0.5))} aria-label="Earlier">←</button>
      <button type="button" onClick={does(() => view.move(state, 0.5))} aria-label="Later" disabled={!view.isPaused()}>→</button>
      <button type="button" onClick={does(() => view.zoom(-1))} aria-label="Zoom in">+</button>
      <button type="button" onClick={does(() => view.zoom(1))} aria-label="Zoom out">−</button>
      <output>
        {duration(view.span)}{view.isPaused() ? `, until ${clock(state.unixOf(view.endAt(state)))}` : ", until now"}
      </output>
    </div>
  );
}

const WORDS = { hold: "held the GPU", drain: "let its last work run out", wait: "waited", move: "memory moved" };

function tell(state: State, program: string, span: Span): string {
  const end = Math.min(span.end, state.now());
  const why = span.kind === "hold" && span.why ? `, revoked: ${printable(span.why)}` : "";
  return `${clock(state.unixOf(span.begin))} ${program} ${WORDS[span.kind]} for ${duration(end - span.begin)}${why}`;
}

class Lane extends Component<{ state: State; window: Window; index: number }, { said: string }> {
  override state = { said: "" };
  private dragged: number | null = null;

  private timeAt(event: PointerEvent): number {
    const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const view = this.props.window;
    return view.endAt(this.props.state) - (1 - (event.clientX - box.left) / box.width) * view.span;
  }

  private readonly events = {
    onPointerDown: (event: PointerEvent) => {
      if (event.pointerType === "touch") return; // a finger scrolls the page
      (event.currentTarget as HTMLElement).setPointerCapture(event.pointerId);
      this.dragged = event.clientX;
    },
    onPointerUp: () => (this.dragged = null),
    onPointerLeave: () => this.setState({ said: "" }),
    onPointerMove: (event: PointerEvent) => {
      const { state, window: view, index } = this.props;
      const canvas = event.currentTarget as HTMLElement;
      if (this.dragged !== null) {
        view.move(state, (this.dragged - event.clientX) / canvas.clientWidth);
        this.dragged = event.clientX;
        state.draw();
        return;
      }
      const lanes = state.leases.gpus.get(index);
      const time = this.timeAt(event);
      const y = event.clientY - canvas.getBoundingClientRect().top;
      const rows = rowsOf(lanes);
      const row = y < 30 ? undefined : rows[Math.floor((y - 40) / 22)];
      const found = (row ? [row] : rows).flatMap((one) => one.spans
        .filter((span) => span.begin <= time && time < span.end && (row || span.kind === "hold"))
        .map((span) => tell(state, one.program, span)));
      this.setState({ said: found.join("; ") });
    },
    onWheel: (event: WheelEvent) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      this.props.window.zoom(event.deltaY > 0 ? 1 : -1);
      this.props.state.draw();
    },
  };

  override render() {
    const { state, window: view, index } = this.props;
    const end = view.endAt(state);
    const lanes: Lanes | undefined = state.leases.gpus.get(index);
    const rows = rowsOf(lanes);
    const had = lanes ? shares(lanes, end - view.span, end) : [];
    const switches = lanes ? lanes.switches.filter((at) => at >= end - view.span && at <= end).length : 0;
    return (
      <section class="lane" aria-labelledby={`lane${index}`}>
        <h3 id={`lane${index}`}>GPU {index} <span class="soft">{plural(switches, "switch", "switches")}</span></h3>
        <div class="drawn">
          <ul class="rows" aria-hidden="true">
            <li class="all">all</li>
            {rows.map((row) => <li key={row.id}><Name text={row.program} /></li>)}
          </ul>
          <Picture
            label={`Timeline of GPU ${index}. The table below has its sums.`}
            draw={(canvas) => drawLanes(canvas, lanes, end - view.span, end, false)}
            events={this.events}
          />
        </div>
        <p class="said">{this.state.said || "Point at a bar for its times; drag to move; Ctrl and the wheel zoom."}</p>
        <Table
          caption={`GPU ${index}, in this window`}
          columns={[{ head: "Program", wide: true }, { head: "Held", right: true }, { head: "Part", right: true },
                    { head: "Turns", right: true }, { head: "Waited", right: true }, { head: "Longest wait", right: true }]}
          lines={had.map((share) => ({
            key: share.row.id,
            cells: [
              <><Swatch color={share.row.color} /><Name text={share.row.program} /> <span class="soft">{share.row.id > 0 ? share.row.id : ""}</span></>,
              duration(share.held), percent(share.held, view.span), share.grants, duration(share.waited), duration(share.longestWait),
            ],
          }))}
          empty="No program held this GPU or waited for it."
        />
      </section>
    );
  }
}

export function TimelineScreen({ state, window: view }: { state: State; window: Window }) {
  return (
    <>
      <h2>Timeline</h2>
      <WindowControls state={state} window={view} />
      <ul class="key legend">
        <li><Swatch color={colorOf(0)} />holds the GPU</li>
        <li><Swatch color={colorOf(0)} pale />its last work runs out</li>
        <li><span class="swatch thin" aria-hidden="true" />waits</li>
        <li><span class="swatch thin moves" aria-hidden="true" />its memory moves</li>
        <li><span class="swatch tick" aria-hidden="true" />a switch</li>
      </ul>
      {state.status?.gpus.map((gpu) => <Lane key={gpu.uuid} state={state} window={view} index={gpu.index} />)}
    </>
  );
}

export function MemoryScreen({ state, window: view }: { state: State; window: Window }) {
  const end = view.endAt(state);
  return (
    <>
      <h2>Memory</h2>
      <WindowControls state={state} window={view} />
      <p class="soft">The picture begins when this page was opened, for the daemon keeps no history of memory.</p>
      {state.status?.gpus.map((gpu) => (
        <section key={gpu.uuid} class="lane" aria-labelledby={`memory${gpu.index}`}>
          <h3 id={`memory${gpu.index}`}>GPU {gpu.index} <span class="soft">{bytes(gpu.memory_used_bytes)} of {bytes(gpu.memory_total_bytes)}</span></h3>
          <Picture
            label={`Memory of GPU ${gpu.index} by program over time. The table below has what it is now.`}
            draw={(canvas) => drawMemory(canvas, state.memory.get(gpu.index) ?? [], (id) => state.leases.colors.of(gpu.index, id), end - view.span, end)}
          />
          <Table
            caption={`Memory of GPU ${gpu.index}, now`}
            columns={[{ head: "Program", wide: true }, { head: "On the GPU", right: true }, { head: "Evicted", right: true },
                      { head: "Cannot leave", right: true }, { head: "Room", right: true }, { head: "Moved out", right: true },
                      { head: "Moved in", right: true }]}
            lines={[...(gpu.seats ?? []).map((seat) => {
              const m = seat.memory;
              return {
                key: seat.tenant,
                cells: [
                  <><Swatch color={state.leases.colors.of(gpu.index, idOf(seat))} /><Name text={printable(seat.program)} /> <span class="soft">{seat.pid}</span></>,
                  ...(m ? [m.resident_bytes, m.evicted_bytes, m.unpageable_bytes, m.room_bytes, m.moved_out_bytes, m.moved_in_bytes].map(bytes)
                        : ["left to the driver", "", "", "", "", ""]),
                ],
              };
            }), ...(gpu.memory && gpu.memory.foreign_bytes > 0 ? [{
              key: "others",
              cells: [<><span class="swatch foreign" aria-hidden="true" />{OTHERS}</>, bytes(gpu.memory.foreign_bytes), "", "", "", "", ""],
            }] : [])]}
            empty="No program has memory on this GPU."
          />
        </section>
      ))}
    </>
  );
}
