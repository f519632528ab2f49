// SPDX-License-Identifier: Apache-2.0
// Goal: the page reads from a trace what the commands read. Method: the table of src/api_client/holds_cases.json, and
// page/src/leases.ts outside a browser: node leases_test.mjs. tools/web.sh test runs it.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { fileURLToPath } from "node:url";
import { build } from "../page/node_modules/esbuild/lib/main.js";

const path = (relative) => fileURLToPath(new URL(relative, import.meta.url));
const made = await build({ entryPoints: [path("../page/src/leases.ts")], bundle: true, format: "esm", write: false });
globalThis.addEventListener = () => undefined; // no page is ever hidden here
const { Leases } = await import(`data:text/javascript;base64,${Buffer.from(made.outputFiles[0].text).toString("base64")}`);

// "4 grant a0 shared" is an event of program a on GPU 0 at 4; "4 gone a" one of no GPU.
function eventOf(line, index) {
  const [at, event, program, detail = ""] = line.split(" ");
  const tenant = "abc".indexOf(program[0]) + 1;
  return { sequence: index + 1, time_ns: Number(at), event, tenant, pid: 10 + tenant, program: program[0], detail,
           lease: detail === "shared" ? "shared" : "exclusive",
           ...(program.length > 1 ? { gpu: Number(program[1]) } : {}) };
}

const WORDS = { wait: "waits", hold: "holds", drain: "drains" };

for (const { rule, events, spans, switches } of JSON.parse(readFileSync(path("../../src/api_client/holds_cases.json")))) {
  test(rule, () => {
    const leases = new Leases();
    events.map(eventOf).forEach((event) => leases.add(event));
    const found = [];
    const ticks = [];
    for (const [gpu, lanes] of leases.gpus) {
      ticks.push(...lanes.switches.map(String));
      for (const row of lanes.rows.values()) {
        for (const { kind, begin, end } of row.spans)
          found.push(`${row.program}${gpu} ${WORDS[kind]} ${begin}-${end === Infinity ? "" : end}`);
      }
    }
    assert.deepEqual(found.sort(), [...spans].sort());
    assert.deepEqual(ticks, switches);
  });
}
