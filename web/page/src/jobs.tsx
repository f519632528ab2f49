// SPDX-License-Identifier: Apache-2.0
// The queue, and one job with the end of its log.
import { Component, createRef } from "preact";
import { ApiError, get, getText, patch } from "./api";
import { Fact, Name, Table } from "./parts";
import type { State } from "./state";
import { bytes, clock, duration, printableLog, textOf } from "./text";
import type { ChangedJobs, Job, JobPage } from "./types.gen";

const DONE_JOBS = 30;
// A change of a job comes with the trace. Times in the answer go on without one.
const REFRESH_MS = 5000;
const LOG_MS = 2000;

export function label(job: Job): string {
  return job.array !== undefined && job.array_index !== undefined ? `${job.array}_${job.array_index}` : String(job.id);
}

// Asks again after each change of a job, and every REFRESH_MS.
abstract class Asking<P extends { state: State; jobEvents: number }, S> extends Component<P, S> {
  private timer = 0;
  protected abstract look(): Promise<void>;

  protected again = () => {
    clearTimeout(this.timer);
    void this.look().finally(() => (this.timer = window.setTimeout(this.again, REFRESH_MS)));
  };
  override componentDidMount() {
    this.again();
  }
  override componentDidUpdate(before: P) {
    if (before.jobEvents !== this.props.jobEvents) this.again();
  }
  override componentWillUnmount() {
    clearTimeout(this.timer);
    this.timer = -1;
  }
}

interface QueueState {
  jobs: Job[] | null;
  done: Job[];
  more: boolean;
  error: string;
  user: string;
}

export class QueueScreen extends Asking<{ state: State; jobEvents: number }, QueueState> {
  override state: QueueState = { jobs: null, done: [], more: false, error: "", user: "" };

  protected async look() {
    try {
      const [now, done] = await Promise.all([
        get<JobPage>("/v1/jobs"),
        get<JobPage>(`/v1/jobs?state=done&order=ended&limit=${DONE_JOBS}`),
      ]);
      this.setState({ jobs: now.jobs, more: now.more, done: done.jobs, error: "" });
    } catch (error) {
      this.setState({ error: (error as Error).message });
    }
  }

  override render() {
    const { jobs, done, more, error, user } = this.state;
    const queue = this.props.state.queue;
    const chosen = (list: Job[]) => list.filter((job) => user === "" || job.user === user);
    const users = [...new Set([...(jobs ?? []), ...done].map((job) => job.user))].sort();
    const runs = chosen(jobs ?? []).filter((job) => job.state !== "queued" && job.state !== "held");
    const waits = chosen(jobs ?? []).filter((job) => job.state === "queued")
      .sort((a, b) => (a.place ?? Infinity) - (b.place ?? Infinity) || a.id - b.id);
    const held = chosen(jobs ?? []).filter((job) => job.state === "held");
    return (
      <>
        <h2>Queue</h2>
        {error && <p class="notice" role="status">{error}</p>}
        {queue?.paused && <p class="notice plain">The queue is paused: no job starts.</p>}
        {queue?.gpus.some((gpu) => gpu.drained) &&
          <p class="notice plain">Drained, so no job starts there: GPU {queue.gpus.filter((gpu) => gpu.drained).map((gpu) => gpu.index).join(", ")}.</p>}
        {users.length > 1 && (
          <label class="choice">User{" "}
            <select value={user} onChange={(event) => this.setState({ user: event.currentTarget.value })}>
              <option value="">all</option>
              {users.map((one) => <option key={one} value={one}>{textOf(one)}</option>)}
            </select>
          </label>
        )}
        {jobs && (
          <>
            <JobTable caption="Running" jobs={runs} empty="No job runs." when="runs" />
            <JobTable caption="Waiting, in this order" jobs={waits} empty="No job waits." when="waits" />
            {held.length > 0 && <JobTable caption="Held" jobs={held} empty="" when="waits" />}
            {more && <p class="soft">These are the first 1,000 jobs. `gpumux queue` shows all.</p>}
            <JobTable caption="Done, the latest first" jobs={chosen(done)} empty="No job has ended." when="done" />
          </>
        )}
      </>
    );
  }
}

function ending(job: Job): string {
  return job.exit_status !== undefined && job.outcome === "failed" ? `failed (${job.exit_status})` : job.outcome ?? job.state;
}

function JobTable({ caption, jobs, empty, when }: { caption: string; jobs: Job[]; empty: string; when: "runs" | "waits" | "done" }) {
  const middle = {
    runs: { columns: [{ head: "State" }, { head: "For", right: true }, { head: "Left", right: true }],
            cells: (job: Job) => [<Phase text={job.state} />, since(job.started_unix_ns), job.limit_in_ns === undefined ? "–" : duration(job.limit_in_ns)] },
    waits: { columns: [{ head: "Place", right: true }, { head: "Starts", right: true }, { head: "Why", wide: true }],
             cells: (job: Job) => [job.place ?? "–", job.starts_in_ns === undefined ? "–" : `within ${duration(job.starts_in_ns)}`,
                                   <bdi>{textOf(job.why) || (job.reason ?? "")}</bdi>] },
    done: { columns: [{ head: "Outcome" }, { head: "Ended", right: true }, { head: "GPU time", right: true }],
            cells: (job: Job) => [<Phase text={ending(job)} />, clock(job.ended_unix_ns), duration(job.gpu_seconds * 1e9)] },
  }[when];
  return (
    <Table
      caption={caption}
      columns={[{ head: "Job" }, { head: "Name", wide: true }, { head: "User" }, { head: "GPUs", right: true }, { head: "Memory", right: true }, ...middle.columns]}
      lines={jobs.map((job) => ({
        key: job.id,
        cells: [
          <a href={`#/job/${label(job)}`}>{label(job)}</a>, <Name text={textOf(job.name)} />, <bdi>{textOf(job.user)}</bdi>,
          job.gpus.length > 0 ? job.gpus.join(", ") : `any ${job.gpus_wanted}`,
          job.memory_bytes > 0 ? bytes(job.memory_bytes) : "whole",
          ...middle.cells(job),
        ],
      }))}
      empty={empty}
    />
  );
}

function Phase({ text }: { text: string }) {
  return <span class={`phase ${text.split(" ")[0]}`}>{text}</span>;
}

function since(unixNs: number): string {
  return unixNs > 0 ? duration(Date.now() * 1e6 - unixNs) : "–";
}

interface JobState {
  job: Job | null;
  error: string;
  said: string;
  log: string;
  logSize: number;
  logError: string;
}

export class JobScreen extends Asking<{ state: State; jobEvents: number; id: string }, JobState> {
  override state: JobState = { job: null, error: "", said: "", log: "", logSize: 0, logError: "" };
  private logTimer = 0;
  private atEnd = true;
  private readonly logBox = createRef<HTMLPreElement>();

  protected async look() {
    try {
      this.setState({ job: await get<Job>(`/v1/jobs/${this.props.id}`), error: "" });
    } catch (error) {
      this.setState({ error: (error as Error).message });
    }
  }

  override componentDidMount() {
    super.componentDidMount();
    void this.readLog();
  }
  override componentWillUnmount() {
    super.componentWillUnmount();
    clearTimeout(this.logTimer);
  }

  private async readLog() {
    try {
      const answer = await getText(`/log/${this.props.id}`);
      const text = printableLog(await answer.text());
      const size = Number(answer.headers.get("X-Gpumux-Log-Bytes"));
      this.setState({ log: text, logSize: size, logError: "" });
    } catch (error) {
      this.setState({ logError: error instanceof ApiError ? error.message : "The log cannot be read now." });
    }
    this.logTimer = window.setTimeout(() => void this.readLog(), LOG_MS);
  }

  private async change(change: object, doing: string) {
    try {
      const answer = await patch<ChangedJobs>(`/v1/jobs/${this.props.id}`, change);
      const refused = answer.jobs.find((one) => one.error);
      this.setState({ said: refused ? textOf(refused.error!.message) : doing });
    } catch (error) {
      this.setState({ said: textOf((error as Error).message) });
    }
    this.again();
  }

  private readonly setPriority = (event: SubmitEvent) => {
    event.preventDefault();
    const input = (event.currentTarget as HTMLFormElement).elements.namedItem("priority") as HTMLInputElement;
    void this.change({ priority: input.valueAsNumber }, `The priority is ${input.valueAsNumber}.`);
  };

  private actions(job: Job) {
    if (job.state === "done") return null;
    if (this.props.state.session?.read_only) return <p class="soft">This view is read-only.</p>;
    return (
      <div class="controls">
        {job.state === "queued" && <button type="button" onClick={() => void this.change({ held: true }, "The job is held.")}>Hold</button>}
        {job.state === "held" && <button type="button" onClick={() => void this.change({ held: false }, "The job is released.")}>Release</button>}
        {job.state === "running" && <button type="button" onClick={() => void this.change({ suspended: true }, "The job is to be suspended.")}>Suspend</button>}
        {job.state === "suspended" && <button type="button" onClick={() => void this.change({ suspended: false }, "The job is to go on.")}>Resume</button>}
        <button type="button" class="danger" onClick={() => document.querySelector<HTMLDialogElement>("#cancel")?.showModal()}>Cancel the job …</button>
        <form onSubmit={this.setPriority}>
          <label>Priority <input name="priority" type="number" min={-1000} max={1000} step={1} required defaultValue={String(job.priority)} /></label>
          <button type="submit">Set</button>
        </form>
        <dialog id="cancel" aria-labelledby="cancel-title">
          <form method="dialog">
            <h3 id="cancel-title">Cancel job {label(job)}?</h3>
            <p><Name text={textOf(job.name)} /> is told to end. What it has not written is lost.</p>
            <div class="controls">
              <button class="danger" onClick={() => void this.change({ cancel: true }, "The job is told to end.")}>Cancel the job</button>
              <button autofocus>Keep it</button>
            </div>
          </form>
        </dialog>
      </div>
    );
  }

  // The end stays in view, unless the reader has scrolled away from it.
  override componentDidUpdate(before: { state: State; jobEvents: number; id: string }) {
    super.componentDidUpdate(before);
    const pre = this.logBox.current;
    if (pre && this.atEnd) pre.scrollTop = pre.scrollHeight;
  }

  override render() {
    const { job, error, said, log, logSize, logError } = this.state;
    if (!job) return <><h2>Job {this.props.id}</h2>{error && <p class="notice" role="status">{error}</p>}</>;
    const why = textOf(job.why);
    const note = textOf(job.note);
    return (
      <>
        <p><a href="#/queue">← Queue</a></p>
        <h2>Job {label(job)} <Name text={textOf(job.name)} /> <Phase text={job.state === "done" ? ending(job) : job.state} /></h2>
        {error && <p class="notice" role="status">{error}</p>}
        {why && <p class="notice plain"><bdi>{why}</bdi></p>}
        {note && <p class="notice"><bdi>{note}</bdi></p>}
        {this.actions(job)}
        <p class="said" role="status" aria-live="polite">{said && <bdi>{said}</bdi>}</p>
        <dl class="facts">
          <Fact name="User"><bdi>{textOf(job.user)}</bdi></Fact>
          <Fact name="GPUs">{job.gpus.length > 0 ? job.gpus.join(", ") : `any ${job.gpus_wanted}`}</Fact>
          <Fact name="Memory on each GPU">{job.memory_bytes > 0 ? bytes(job.memory_bytes) : "the whole GPU"}</Fact>
          <Fact name="Time limit">{job.time_limit_ns > 0 ? duration(job.time_limit_ns) : "none"}</Fact>
          <Fact name="Priority">{job.priority}</Fact>
          <Fact name="Submitted">{clock(job.submitted_unix_ns)}</Fact>
          {job.started_unix_ns > 0 && <Fact name="Started">{clock(job.started_unix_ns)}</Fact>}
          {job.ended_unix_ns > 0 && <Fact name="Ended">{clock(job.ended_unix_ns)}</Fact>}
          <Fact name="GPU time">{duration(job.gpu_seconds * 1e9)}</Fact>
          {job.peak_memory_bytes > 0 && <Fact name="Peak memory">{bytes(job.peak_memory_bytes)}</Fact>}
          {textOf(job.command) && <Fact name="Command" long><code><bdi>{textOf(job.command)}</bdi></code></Fact>}
          {textOf(job.directory) && <Fact name="Directory" long><code><bdi>{textOf(job.directory)}</bdi></code></Fact>}
          {textOf(job.log) && <Fact name="Log" long><code><bdi>{textOf(job.log)}</bdi></code></Fact>}
        </dl>
        <h3 id="log-title">Log {logSize > 0 && <span class="soft">{logSize > 65536 ? `the last 64 KiB of ${bytes(logSize)}` : bytes(logSize)}</span>}</h3>
        {logError ? <p class="empty">{textOf(logError)}</p>
          : <pre class="log" tabIndex={0} aria-labelledby="log-title" ref={this.logBox}
              onScroll={(event) => {
                const pre = event.currentTarget;
                this.atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 8;
              }}>{log || "The job has printed nothing yet."}</pre>}
      </>
    );
  }
}
