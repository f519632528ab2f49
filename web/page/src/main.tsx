// SPDX-License-Identifier: Apache-2.0
// The page: its frame, which screen is shown, and keys.
import { render } from "preact";
import { GpusScreen } from "./gpus";
import { isLink } from "./api";
import { JobScreen, QueueScreen } from "./jobs";
import { ReportScreen } from "./report";
import { State } from "./state";
import { printable } from "./text";
import { MemoryScreen, TimelineScreen, Window } from "./timeline";
import "./style.css";

const SCREENS = [
  { path: "gpus", name: "GPUs" },
  { path: "timeline", name: "Timeline" },
  { path: "memory", name: "Memory" },
  { path: "queue", name: "Queue" },
  { path: "accounting", name: "Accounting" },
];

function route(): { path: string; id: string } {
  const [, path = "gpus", id = ""] = /^#\/(\w+)(?:\/([\d_]+))?/.exec(location.hash) ?? [];
  return { path, id };
}

let due = false;
function draw(): void {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    render(<App />, document.querySelector("#app")!);
  });
}

const state = new State(draw);
const view = new Window();

const LINK_WORDS = {
  joining: "Connecting",
  "no-link": "No session",
  live: "Live",
  gone: "The daemon does not answer",
  lost: "No connection",
};

function Notice() {
  switch (state.link) {
    case "gone":
      return <p class="notice" role="alert">The daemon does not answer: <bdi>{printable(state.why)}</bdi>. This page goes on by itself when it does.</p>;
    case "lost":
      return <p class="notice" role="alert"><code>gpumux web</code> does not answer: it has ended, or the way to it is cut. This page tries again each second.</p>;
    case "no-link":
      return (
        <div class="notice" role="alert">
          <p>This browser has no session. Each link works once.</p>
          <p>Press Enter in the terminal of <code>gpumux web</code>: it prints another link. Open that one. If a service runs it, the administrator of this machine has the link.</p>
        </div>
      );
    default:
      return null;
  }
}

function Screen() {
  const { path, id } = route();
  switch (path) {
    case "timeline": return <TimelineScreen state={state} window={view} />;
    case "memory": return <MemoryScreen state={state} window={view} />;
    case "queue": return <QueueScreen state={state} jobEvents={state.jobEvents} />;
    case "job": return <JobScreen key={id} id={id} state={state} jobEvents={state.jobEvents} />;
    case "accounting": return <ReportScreen />;
    default: return <GpusScreen state={state} />;
  }
}

function App() {
  const { path } = route();
  const here = path === "job" ? "queue" : path;
  const session = state.session;
  const daemon = state.daemon;
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.querySelector<HTMLElement>("main")?.focus(); }}>To the content</a>
      <header class="top">
        <h1>gpumux</h1>
        <nav aria-label="Screens">
          <ul>
            {SCREENS.map((screen) => (
              <li key={screen.path}><a href={`#/${screen.path}`} aria-current={here === screen.path ? "page" : undefined}>{screen.name}</a></li>
            ))}
          </ul>
        </nav>
        <p class={`link ${state.link}`} role="status" aria-live="polite">{LINK_WORDS[state.link]}</p>
      </header>
      <main id="main" tabIndex={-1} class={state.link === "live" ? "" : "stale"}>
        <Notice />
        {state.status && <Screen />}
      </main>
      <footer>
        <p>
          {session && <><bdi>{printable(session.user)}</bdi> on <bdi>{printable(session.host)}</bdi>{session.read_only && ", read-only"} · </>}
          {daemon && <>gpumuxd {printable(daemon.version)}{daemon.private && `, ${printable(daemon.owner)}'s own`}{daemon.driver.simulated && ", simulated GPUs"} · </>}
          <button type="button" class="plain" onClick={() => document.querySelector<HTMLDialogElement>("#keys")?.showModal()}>Keys</button>
        </p>
      </footer>
      <dialog id="keys" aria-labelledby="keys-title">
        <form method="dialog">
          <h2 id="keys-title">Keys</h2>
          <dl class="keys">
            <dt><kbd>1</kbd> to <kbd>5</kbd></dt><dd>GPUs, timeline, memory, queue, accounting</dd>
            <dt><kbd>p</kbd></dt><dd>pause the window of time, or let it go on</dd>
            <dt><kbd>+</kbd> <kbd>-</kbd></dt><dd>zoom in, zoom out</dd>
            <dt><kbd>&lt;</kbd> <kbd>&gt;</kbd></dt><dd>earlier, later</dd>
            <dt><kbd>?</kbd></dt><dd>this list</dd>
          </dl>
          <button autofocus>Close</button>
        </form>
      </dialog>
    </>
  );
}

function onKey(event: KeyboardEvent): void {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement) return;
  if (document.querySelector("dialog[open]")) return;
  const screen = SCREENS[Number(event.key) - 1];
  if (screen) location.hash = `#/${screen.path}`;
  else if (event.key === "p") view.pause(state);
  else if (event.key === "+" || event.key === "=") view.zoom(-1);
  else if (event.key === "-") view.zoom(1);
  else if (event.key === "<" || event.key === ",") view.move(state, -0.5);
  else if (event.key === ">" || event.key === ".") view.move(state, 0.5);
  else if (event.key === "?") document.querySelector<HTMLDialogElement>("#keys")?.showModal();
  else return;
  draw();
}

// Pictures move between two snapshots, too.
const FRAME_MS = 250;
setInterval(() => {
  if (state.link === "live" && !document.hidden && !view.isPaused() && ["gpus", "timeline", "memory"].includes(route().path)) draw();
}, FRAME_MS);

addEventListener("hashchange", () => {
  // A new link was opened in this tab.
  if (isLink()) location.reload();
  draw();
  scrollTo(0, 0);
  document.querySelector<HTMLElement>("main")?.focus({ preventScroll: true });
});
addEventListener("keydown", onKey);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
draw();
void state.begin();
