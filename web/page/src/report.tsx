// SPDX-License-Identifier: Apache-2.0
// What users, jobs, pods and programs have had of GPUs.
import { Component } from "preact";
import { get } from "./api";
import { Name, Table, Track } from "./parts";
import { bytes, duration, percent, textOf } from "./text";
import type { Report, ReportRow, Sums } from "./types.gen";

const PERIODS: [string, number][] = [["the last hour", 3600], ["the last day", 86400], ["the last 7 days", 604800], ["the last 30 days", 2592000]];
const KINDS = ["user", "job", "pod", "program"];
const ROWS = 100;
const REFRESH_MS = 30_000;

function nameOf(row: ReportRow, by: string): string {
  const others = row.others ? "others" : "";
  if (by === "job") return row.job !== undefined ? `${row.job} ${textOf(row.name)}` : others || "in no job";
  if (by === "pod") return row.pod ? `${textOf(row.namespace)}/${textOf(row.pod)}` : others || "in no pod";
  if (by === "program") return textOf(row.program) || others;
  return textOf(row.user) || (row.uid !== undefined ? String(row.uid) : others || "containers");
}

export class ReportScreen extends Component<object, { by: string; period: number; report: Report | null; error: string }> {
  override state = { by: "user", period: 86400, report: null as Report | null, error: "" };
  private timer = 0;

  private look = async () => {
    clearTimeout(this.timer);
    const { by, period } = this.state;
    // To the minute, so that many views ask the same question.
    const since = (Math.floor(Date.now() / 60_000) * 60 - period) * 1_000_000_000;
    try {
      const report = await get<Report>(`/v1/report?by=${by}&since_unix_ns=${since}&limit=${ROWS}`);
      if (by === this.state.by && period === this.state.period) this.setState({ report, error: "" });
    } catch (error) {
      this.setState({ error: textOf((error as Error).message) });
    }
    this.timer = window.setTimeout(() => void this.look(), REFRESH_MS);
  };

  override componentDidMount() {
    void this.look();
  }
  override componentWillUnmount() {
    clearTimeout(this.timer);
  }

  override render() {
    const { by, period, report, error } = this.state;
    const rows = report?.rows ?? [];
    const all = [...rows, ...(report?.rest ? [report.rest] : [])].reduce((sum, row) => sum + row.held_seconds, 0);
    const cells = (name: string, row: Sums) => [
      <Name text={name} />,
      <span class="part"><Track value={row.held_seconds} most={all} label="Part of all held time" />{percent(row.held_seconds, all)}</span>,
      duration(row.held_seconds * 1e9), duration(row.gpu_seconds * 1e9), duration(row.waited_seconds * 1e9),
      `${bytes(row.resident_byte_seconds / 3600)} h`, row.switches,
    ];
    return (
      <>
        <h2>Accounting</h2>
        <div class="controls">
          <label class="choice">By{" "}
            <select value={by} onChange={(e) => this.setState({ by: e.currentTarget.value, report: null }, () => void this.look())}>
              {KINDS.map((kind) => <option key={kind} value={kind}>{kind}</option>)}
            </select>
          </label>
          <label class="choice">In{" "}
            <select value={period} onChange={(e) => this.setState({ period: Number(e.currentTarget.value), report: null }, () => void this.look())}>
              {PERIODS.map(([name, seconds]) => <option key={seconds} value={seconds}>{name}</option>)}
            </select>
          </label>
        </div>
        {error && <p class="notice" role="status">{error}</p>}
        {report && (
          <Table
            caption={`What each ${by} has had of GPUs`}
            columns={[{ head: by[0]!.toUpperCase() + by.slice(1), wide: true }, { head: "Part", right: true }, { head: "Held", right: true },
                      { head: "Used", right: true }, { head: "Waited", right: true }, { head: "Memory × time", right: true }, { head: "Switches", right: true }]}
            lines={[
              ...rows.map((row, i) => ({ key: i, cells: cells(nameOf(row, by), row) })),
              ...(report.rest ? [{ key: "rest", cells: cells("all others", report.rest) }] : []),
            ]}
            empty="No program has had a GPU in this time."
          />
        )}
      </>
    );
  }
}
