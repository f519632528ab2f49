// SPDX-License-Identifier: Apache-2.0
// The first screen: each GPU with its load, its memory, the programs that hold it and those that wait.
import { drawLanes } from "./canvas";
import { Name, Picture, Swatch, Track } from "./parts";
import { bytesOnGpu, idOf, type State } from "./state";
import { bytes, duration, OTHERS, percent, plural, printable } from "./text";
import type { Gpu, Seat } from "./types.gen";

const STRIP_NS = 30e9;

const HOLDS = new Set(["holding", "revoked", "draining"]);

function Meter({ label, value, text }: { label: string; value: number; text: string }) {
  return (
    <div class="meter">
      <span>{label}</span>
      <Track value={value} most={100} label={label} />
      <strong>{text}</strong>
    </div>
  );
}

interface Part {
  key: string;
  cls?: string;
  color?: string;
  name: string;
  size: number;
}

function memoryParts(state: State, gpu: Gpu): Part[] {
  const parts: Part[] = [];
  for (const seat of gpu.seats ?? []) {
    const size = bytesOnGpu(seat);
    if (size > 0) {
      parts.push({ key: `s${seat.tenant}`, color: state.leases.colors.of(gpu.index, idOf(seat)), name: printable(seat.program), size });
    }
  }
  const foreign = gpu.memory?.foreign_bytes ?? 0;
  const returning = gpu.memory?.returning_bytes ?? 0;
  if (foreign > 0) parts.push({ key: "foreign", cls: "foreign", name: OTHERS, size: foreign });
  if (returning > 0) parts.push({ key: "returning", cls: "returning", name: "of ended programs", size: returning });
  return parts;
}

function Memory({ state, gpu }: { state: State; gpu: Gpu }) {
  const parts = memoryParts(state, gpu);
  const used = Math.max(gpu.memory_used_bytes, parts.reduce((sum, part) => sum + part.size, 0));
  const evicted = (gpu.seats ?? []).reduce((sum, seat) => sum + (seat.memory?.evicted_bytes ?? 0), 0);
  return (
    <div class="memory">
      <h4>Memory <span class="soft">{bytes(used)} of {bytes(gpu.memory_total_bytes)}</span></h4>
      <div class="bar" aria-hidden="true">
        {parts.map((part) => (
          <span key={part.key} class={part.cls} style={{ background: part.color, width: `${(100 * part.size) / gpu.memory_total_bytes}%` }} />
        ))}
      </div>
      <ul class="legend">
        {parts.map((part) => (
          <li key={part.key}><span class={`swatch ${part.cls ?? ""}`} style={{ background: part.color }} aria-hidden="true" /><Name text={part.name} /> {bytes(part.size)}</li>
        ))}
        <li><span class="swatch free" aria-hidden="true" />free {bytes(Math.max(0, gpu.memory_total_bytes - used))}</li>
        {evicted > 0 && <li><span class="swatch evicted" aria-hidden="true" />evicted to host memory {bytes(evicted)}</li>}
      </ul>
    </div>
  );
}

// The daemon's scheduler knows tenants by number; people know them by name. The tenant may be on another GPU.
function namingTenants(state: State, text: string): string {
  return text.replace(/\btenant (\d+)\b/g, (words, tenant: string) => {
    const seats = (state.status?.gpus ?? []).flatMap((gpu) => gpu.seats ?? []);
    const seat = seats.find((one) => one.tenant === Number(tenant));
    return seat ? `${seat.program} (${seat.pid})` : words;
  });
}

function why(state: State, seat: Seat): string {
  return printable(namingTenants(state, [seat.waits_for, seat.note].filter((text) => text !== "").join("; ")));
}

function SeatLine({ state, gpu, seat, recent }: { state: State; gpu: number; seat: Seat; recent: number }) {
  const pod = seat.container?.pod ? `${seat.container.namespace ?? ""}/${seat.container.pod}` : "";
  return (
    <li>
      <Swatch color={state.leases.colors.of(gpu, idOf(seat))} />
      <div class="seat">
        <div class="first">
          <Name text={printable(seat.program)} />
          <span class="soft"><bdi>{printable(seat.user)}</bdi> · {seat.pid}{pod && <> · <bdi>{printable(pod)}</bdi></>}</span>
        </div>
        <div class="second">
          <span class={`phase ${HOLDS.has(seat.phase) ? "holds" : seat.phase}`}>
            {seat.phase}{seat.lease === "shared" ? " with others" : ""}
          </span>{" "}
          {duration(seat.since_ns)}
          {why(state, seat) && <> · <bdi>{why(state, seat)}</bdi></>}
        </div>
      </div>
      <div class="recent" title="The part of the last five seconds for which the program had the GPU">
        {percent(seat.recent_gpu_time_ns, recent)}
      </div>
    </li>
  );
}

function Seats({ title, seats, gpu, state, recent, empty, ordered }:
    { title: string; seats: Seat[]; gpu: number; state: State; recent: number; empty: string; ordered?: boolean }) {
  const items = seats.map((seat) => <SeatLine key={seat.tenant} state={state} gpu={gpu} seat={seat} recent={recent} />);
  return (
    <section class="seats">
      <h4>{title}{seats.length > 1 && <span class="soft"> {seats.length}</span>}</h4>
      {items.length === 0 ? <p class="empty">{empty}</p> : ordered ? <ol>{items}</ol> : <ul>{items}</ul>}
    </section>
  );
}

function Card({ state, gpu, recent }: { state: State; gpu: Gpu; recent: number }) {
  const seats = gpu.seats ?? [];
  const holders = seats.filter((seat) => HOLDS.has(seat.phase));
  const waiters = seats.filter((seat) => seat.phase === "waiting").sort((a, b) => a.queue_place - b.queue_place);
  const others = seats.filter((seat) => !HOLDS.has(seat.phase) && seat.phase !== "waiting");
  const load = gpu.load ?? {};
  const now = state.now();
  const bad = [gpu.refused, gpu.sick].filter((text): text is string => !!text);
  const names = holders.map((seat) => printable(seat.program)).join(", ") || "no program";
  return (
    <article class="card" aria-labelledby={`gpu${gpu.index}`}>
      <header>
        <h3 id={`gpu${gpu.index}`}>GPU {gpu.index}</h3>
        <span class="soft model"><bdi>{printable(gpu.name)}</bdi></span>
        {gpu.mode_now && <span class="badge" title={printable(gpu.mode_why ?? "")}>{gpu.mode_now === "serial" ? "by turns" : "at once"}</span>}
      </header>
      {bad.map((text) => <p key={text} class="notice">{printable(text)}</p>)}
      {gpu.remark && <p class="notice plain">{printable(gpu.remark)}</p>}
      <div class="meters">
        {load.utilization_percent !== undefined &&
          <Meter label="Utilisation" value={load.utilization_percent} text={`${load.utilization_percent} %`} />}
        {(load.temperature_celsius !== undefined || load.power_milliwatts !== undefined) && (
          <p class="soft">
            {load.temperature_celsius !== undefined && `${load.temperature_celsius} °C`}
            {load.power_milliwatts !== undefined && ` · ${Math.round(load.power_milliwatts / 1000)} W`}
          </p>
        )}
      </div>
      <Memory state={state} gpu={gpu} />
      <Picture
        class="strip"
        label={`GPU ${gpu.index} in the last 30 seconds. Now held by ${names}.`}
        draw={(canvas) => drawLanes(canvas, state.leases.gpus.get(gpu.index), now - STRIP_NS, now, true)}
      />
      <Seats title="Holds the GPU" seats={holders} gpu={gpu.index} state={state} recent={recent} empty="No program." />
      <Seats title="Waits, in this order" seats={waiters} gpu={gpu.index} state={state} recent={recent} empty="No program." ordered />
      {others.length > 0 && <Seats title="Wants nothing now" seats={others} gpu={gpu.index} state={state} recent={recent} empty="" />}
      {(gpu.foreign?.length ?? 0) > 0 && (
        <section class="seats">
          <h4>Not under gpumux</h4>
          <ul class="legend">
            {gpu.foreign!.map((one) => (
              <li key={one.pid}><span class="swatch foreign" aria-hidden="true" /><Name text={printable(one.name)} /> {one.pid} · {bytes(one.memory_bytes)}</li>
            ))}
          </ul>
        </section>
      )}
    </article>
  );
}

export function GpusScreen({ state }: { state: State }) {
  const status = state.status;
  if (!status) return null;
  const seats = status.gpus.flatMap((gpu) => gpu.seats ?? []);
  const waiting = seats.filter((seat) => seat.phase === "waiting").length;
  const host = status.host_memory;
  return (
    <>
      <h2>GPUs</h2>
      <p class="soft">
        {plural(status.gpus.length, "GPU")}, {plural(seats.length, "seat")}, {waiting} waiting
        {host.lent_bytes > 0 && <>. Host memory: {bytes(host.lent_bytes)} of {bytes(host.budget_bytes)} lent</>}
      </p>
      <div class="cards">
        {status.gpus.map((gpu) => <Card key={gpu.uuid} state={state} gpu={gpu} recent={status.recent_ns} />)}
      </div>
    </>
  );
}
