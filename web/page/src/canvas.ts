// SPDX-License-Identifier: Apache-2.0
// The pictures: who held a GPU when, and whose memory was on it. Each has a table with the same facts beside it, for
// readers who do not see it.
import type { Lanes, Row, SpanKind } from "./leases";
import type { MemorySample } from "./state";

export interface Colors {
  text: string;
  faint: string;
  line: string;
  ground: string;
  foreign: string;
  mark: string;
}

export function colors(): Colors {
  const style = getComputedStyle(document.documentElement);
  const value = (name: string) => style.getPropertyValue(name).trim();
  return {
    text: value("--text"),
    faint: value("--faint"),
    line: value("--line"),
    ground: value("--sunken"),
    foreign: value("--foreign"),
    mark: value("--mark"),
  };
}

// Sets the size for the screen's pixels; what is drawn counts in CSS pixels.
function begin(canvas: HTMLCanvasElement, height: number): [CanvasRenderingContext2D, number] | null {
  const width = canvas.clientWidth;
  const ratio = window.devicePixelRatio || 1;
  const context = canvas.getContext("2d");
  if (!context || width === 0) return null;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  canvas.style.height = `${height}px`;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return [context, width];
}

// The part of each column's time that spans of a kind cover.
function coverage(row: Row, kind: SpanKind, from: number, to: number, columns: number): Float32Array {
  const cover = new Float32Array(columns);
  const scale = columns / (to - from);
  for (const span of row.spans) {
    if (span.kind !== kind || span.end <= from || span.begin >= to) continue;
    const a = Math.max(0, (span.begin - from) * scale);
    const b = Math.min(columns, (span.end - from) * scale);
    const [first, last] = [Math.floor(a), Math.min(columns - 1, Math.floor(b))];
    if (first === last) {
      cover[first]! += b - a;
      continue;
    }
    cover[first]! += first + 1 - a;
    for (let i = first + 1; i < last; ++i) cover[i] = 1;
    cover[last]! += b - last;
  }
  return cover;
}

// Runs of full columns are one rectangle; others are as dense as they are covered.
function fill(context: CanvasRenderingContext2D, cover: Float32Array, y: number, height: number, color: string) {
  context.fillStyle = color;
  for (let i = 0; i < cover.length; ) {
    const here = Math.min(1, cover[i]!);
    let end = i + 1;
    while (end < cover.length && Math.abs(Math.min(1, cover[end]!) - here) < 0.02) ++end;
    if (here > 0.01) {
      context.globalAlpha = 0.15 + 0.85 * here;
      context.fillRect(i, y, end - i, height);
    }
    i = end;
  }
  context.globalAlpha = 1;
}

// Each column is divided among the programs by their parts of its time. So programs that run at once share it.
function divide(context: CanvasRenderingContext2D, covers: Float32Array[], colors: string[], height: number) {
  const columns = covers[0]?.length ?? 0;
  for (let i = 0; i < columns; ) {
    let end = i + 1;
    while (end < columns && covers.every((cover) => Math.abs(cover[i]! - cover[end]!) < 0.02)) ++end;
    const total = Math.max(1, covers.reduce((sum, cover) => sum + cover[i]!, 0));
    let y = 0;
    covers.forEach((cover, row) => {
      const part = (height * cover[i]!) / total;
      context.fillStyle = colors[row]!;
      context.fillRect(i, y, end - i, part);
      y += part;
    });
    i = end;
  }
}

const STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300];

function axis(context: CanvasRenderingContext2D, width: number, top: number, height: number, from: number, to: number,
              c: Colors) {
  const seconds = (to - from) / 1e9;
  const step = STEPS.find((s) => (s / seconds) * width >= 72) ?? 600;
  context.strokeStyle = c.line;
  context.fillStyle = c.faint;
  context.font = "12px system-ui, sans-serif";
  context.lineWidth = 1;
  for (let back = 0; back <= seconds; back += step) {
    const x = Math.round(width - (back / seconds) * width) - 0.5;
    context.beginPath();
    context.moveTo(x, top);
    context.lineTo(x, top + height);
    context.stroke();
    const text = back === 0 ? "" : step < 1 ? `−${Math.round(back * 1000)} ms` : `−${back} s`;
    if (text && x > 36) {
      context.textAlign = "center";
      context.fillText(text, x, top + height + 14);
    }
  }
}

const ROW = 22;
const HEAD = 30;
const AXIS = 20;

export function lanesHeight(lanes: Lanes | undefined, compact: boolean): number {
  return compact ? HEAD + AXIS : HEAD + 10 + ROW * rowsOf(lanes).length + AXIS;
}

export function rowsOf(lanes: Lanes | undefined): Row[] {
  return lanes ? [...lanes.rows.values()].sort((a, b) => a.id - b.id) : [];
}

// The strip on top shows all holders, with a tick for each switch; each row below shows one program: a bar while it held
// the GPU, a paler one while its last work ran out, a line while it waited, and one above while its memory moved.
export function drawLanes(canvas: HTMLCanvasElement, lanes: Lanes | undefined, from: number, to: number,
                          compact: boolean) {
  const height = lanesHeight(lanes, compact);
  const started = begin(canvas, height);
  if (!started) return;
  const [context, width] = started;
  const c = colors();
  const rows = rowsOf(lanes);
  context.fillStyle = c.ground;
  context.fillRect(0, 0, width, HEAD - 8);
  axis(context, width, 0, height - AXIS, from, to, c);
  divide(context, rows.map((row) => coverage(row, "hold", from, to, width)), rows.map((row) => row.color), HEAD - 8);
  if (lanes) {
    const visible = lanes.switches.filter((at) => at >= from && at <= to);
    context.fillStyle = c.mark;
    // Where ticks would touch each other they say nothing.
    if (visible.length * 4 < width) {
      for (const at of visible) context.fillRect(((at - from) / (to - from)) * width - 0.75, HEAD - 8, 1.5, 6);
    }
  }
  if (compact) return;
  rows.forEach((row, index) => {
    const y = HEAD + 10 + index * ROW;
    context.globalAlpha = 0.45;
    fill(context, coverage(row, "wait", from, to, width).map((part) => part * 0.8), y + 7, 2, c.faint);
    fill(context, coverage(row, "drain", from, to, width).map((part) => part * 0.4), y, 16, row.color);
    fill(context, coverage(row, "hold", from, to, width), y, 16, row.color);
    fill(context, coverage(row, "move", from, to, width), y + 17, 2, c.mark);
  });
}

// Memory on the GPU by program, stacked; then that of other programs and contexts; the frame's top is all of the GPU's.
export function drawMemory(canvas: HTMLCanvasElement, samples: MemorySample[], color: (id: number) => string,
                           from: number, to: number) {
  const height = 180;
  const started = begin(canvas, height);
  if (!started) return;
  const [context, width] = started;
  const c = colors();
  const bottom = height - AXIS;
  const total = Math.max(1, ...samples.map((sample) => sample.total));
  context.fillStyle = c.ground;
  context.fillRect(0, 0, width, bottom);
  const x = (at: number) => ((at - from) / (to - from)) * width;
  const visible = samples.filter((sample, i) => sample.at <= to && (samples[i + 1]?.at ?? Infinity) >= from);
  const ids = [...new Set(visible.flatMap((sample) => [...sample.seats.keys()]))].sort((a, b) => a - b);
  const base = new Float64Array(visible.length);
  const layer = (value: (sample: MemorySample) => number, fillColor: string) => {
    context.beginPath();
    const tops = visible.map((sample, i) => base[i]! + value(sample));
    // A sample counts until the next one: steps, not slopes.
    const outline = (heights: ArrayLike<number>, forward: boolean) => {
      for (let k = 0; k < visible.length; ++k) {
        const i = forward ? k : visible.length - 1 - k;
        const [left, right] = [Math.max(0, x(visible[i]!.at)), i + 1 < visible.length ? x(visible[i + 1]!.at) : width];
        const y = bottom - (heights[i]! / total) * bottom;
        context.lineTo(forward ? left : right, y);
        context.lineTo(forward ? right : left, y);
      }
    };
    outline(tops, true);
    outline(base, false);
    context.closePath();
    context.fillStyle = fillColor;
    context.fill();
    tops.forEach((top, i) => (base[i] = top));
  };
  for (const id of ids) layer((sample) => sample.seats.get(id) ?? 0, color(id));
  layer((sample) => sample.foreign, c.foreign);
  axis(context, width, 0, bottom, from, to, c);
}
