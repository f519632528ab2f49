// SPDX-License-Identifier: Apache-2.0
// What a person does with the page, in Debian's chromium: node cases.mjs CASE LINK. page_test.py starts this, and has
// the daemon: a case asks it for something by say("WORD ...") and goes on when it has answered.
import assert from "node:assert/strict";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const [name, link, ...more] = process.argv.slice(2);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

async function say(words) {
  console.log(words);
  return (await lines.next()).value;
}

// A defect, not a slow machine, lets a condition of the page wait so long.
const PATIENCE = 60_000;

const browser = await chromium.launch({ executablePath: process.env.GPUMUX_CHROMIUM, chromiumSandbox: true });

async function open(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  const faults = [];
  page.on("pageerror", (error) => faults.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => {
    faults.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  // A refusal of the content security policy is said here, too. That a request failed is no fault: daemons go.
  page.on("console", (message) => {
    if (message.type() === "error" && !message.text().includes("Failed to load resource") &&
        !message.text().includes("WebSocket connection")) faults.push(message.text());
  });
  await page.goto(link);
  page.faults = faults;
  return page;
}

const live = (page) => page.getByText("Live", { exact: true }).waitFor();

async function go(page, screen) {
  await page.getByRole("navigation").getByRole("link", { name: screen }).click();
  await page.getByRole("heading", { name: screen, exact: true, level: 2 }).waitFor();
}

// No screen is wider than the window, and no part of it wider than its place.
async function fits(page, part = "html") {
  const wide = await page.evaluate((name) => {
    const found = document.querySelector(name);
    return found.scrollWidth - found.clientWidth;
  }, part);
  assert.equal(wide, 0, `${part} of ${page.url()} at ${page.viewportSize().width}`);
}

// The parts of an open dialog are one below the other, and its buttons are side by side.
async function isDialog(page) {
  const parts = await page.locator("dialog[open] form > *").evaluateAll((all) => all.map((one) => one.getBoundingClientRect()));
  assert.ok(parts.length > 1);
  parts.slice(1).forEach((part, i) => assert.ok(part.top >= parts[i].bottom, JSON.stringify(parts)));
}

// The colour of each program of a GPU, by name.
async function colorsOf(page, gpu) {
  return Object.fromEntries(await page.getByRole("article", { name: gpu }).locator(".seats li:has(.seat)").evaluateAll((seats) =>
    seats.map((seat) => [seat.querySelector(".name").textContent, getComputedStyle(seat.querySelector(".swatch")).backgroundColor])));
}

const cases = {
  // A running scenario is shown as it is: two programs that take turns, and a job.
  async shows() {
    const page = await open();
    await live(page);
    assert.equal(new URL(page.url()).hash, "", "the token has left the address bar");
    const card = page.getByRole("article", { name: "GPU 0" });
    await card.getByText("one", { exact: true }).first().waitFor();
    await card.getByText("two", { exact: true }).first().waitFor();
    await card.getByText("by turns").waitFor();
    await card.getByText("waiting").first().waitFor();
    await card.getByText(/quantum of (one|two) \(\d+\)/).first().waitFor();
    await card.getByText("other programs and contexts").waitFor();
    await page.getByRole("article", { name: "GPU 1" }).waitFor();
    await go(page, "Timeline");
    const table = page.getByRole("table", { name: "GPU 0, in this window" });
    await table.getByRole("cell", { name: /^one/ }).waitFor();
    await table.getByRole("cell", { name: /^two/ }).waitFor();
    await page.getByRole("button", { name: "Pause" }).click();
    const before = await page.locator(".controls output").textContent();
    await page.keyboard.press("+");
    await page.waitForFunction((text) => document.querySelector(".controls output").textContent !== text, before);
    await page.getByRole("button", { name: "Go on" }).click();
    // The picture has the colours of both programs.
    await page.waitForFunction(() => {
      const canvas = document.querySelector("canvas");
      const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, 22).data;
      const seen = new Set();
      for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) seen.add(`${data[i]},${data[i + 1]},${data[i + 2]}`);
      return seen.size >= 3;
    });
    await go(page, "Memory");
    const memory = page.getByRole("table", { name: "Memory of GPU 0, now" });
    await memory.getByRole("cell", { name: /^one/ }).waitFor();
    await memory.getByRole("cell", { name: "other programs and contexts" }).waitFor();
    await go(page, "Accounting");
    await page.getByRole("table").getByRole("row").nth(1).waitFor();
    await page.keyboard.press("4");
    await page.getByRole("heading", { name: "Queue", level: 2 }).waitFor();
    await page.getByRole("table", { name: "Running" }).getByRole("row").nth(1).waitFor();
    await page.keyboard.press("?");
    await isDialog(page);
    await page.getByRole("dialog").getByRole("button", { name: "Close" }).click();
    return page;
  },

  // The timeline has every turn of before the page was opened, those of a program that holds the GPU for long, too.
  async history() {
    const page = await open();
    await live(page);
    await go(page, "Timeline");
    const turns = JSON.parse(await say("turns"));
    await page.getByRole("button", { name: "Pause" }).click();
    await page.waitForFunction((all) => Object.entries(all).every(([name, count]) =>
      [...document.querySelectorAll("tbody tr")].some((row) => row.cells[0].textContent.startsWith(name) &&
        Number(row.cells[3].textContent) >= count)), turns);
    return page;
  },

  // Programs of one GPU have different colours, and keep them when others end, the page is loaded again, or a daemon
  // comes back.
  async colors() {
    const page = await open();
    await live(page);
    const names = await say("names").then((words) => words.split(","));
    const shown = (all) => page.waitForFunction((count) => document.querySelectorAll("article:first-child .seat").length === count,
                                                all.length);
    await shown(names);
    const before = await colorsOf(page, "GPU 0");
    assert.deepEqual(Object.keys(before).sort(), names);
    assert.equal(new Set(Object.values(before)).size, names.length, JSON.stringify(before));
    const left = await say("end").then((words) => words.split(","));
    await shown(left);
    const kept = Object.fromEntries(left.map((one) => [one, before[one]]));
    assert.deepEqual(await colorsOf(page, "GPU 0"), kept);
    await page.reload();
    await live(page);
    await shown(left);
    assert.deepEqual(await colorsOf(page, "GPU 0"), kept);
    await say("stop");
    await page.getByRole("alert").waitFor();
    await say("start");
    await live(page);
    await shown(left);
    assert.deepEqual(await colorsOf(page, "GPU 0"), kept);
    return page;
  },

  // Every screen on a phone: nothing is cut off, and rows are still a table for a screen reader.
  async phone() {
    const page = await open({ viewport: { width: 390, height: 844 }, hasTouch: true, colorScheme: "dark" });
    await live(page);
    await page.getByText("one", { exact: true }).first().waitFor();
    for (const screen of ["GPUs", "Timeline", "Memory", "Queue", "Accounting"]) {
      await go(page, screen);
      if (screen !== "GPUs") await page.getByRole("table").first().getByRole("cell").first().waitFor();
      await fits(page);
    }
    await page.setViewportSize({ width: 360, height: 740 });
    await fits(page);
    return page;
  },

  // A daemon that goes is told, and the page goes on by itself when there is another.
  async restart() {
    const page = await open();
    await live(page);
    await say("stop");
    await page.getByRole("alert").getByText("The daemon does not answer").waitFor();
    await say("start");
    await live(page);
    await page.getByRole("alert").waitFor({ state: "detached" });
    await say("work");
    await page.getByText("after", { exact: true }).first().waitFor();
    await go(page, "Timeline");
    await page.getByRole("table", { name: "GPU 0, in this window" }).getByRole("cell", { name: /^after/ }).waitFor();
    return page;
  },

  async cancel() {
    const page = await open();
    await go(page, "Queue");
    const id = await say("submit");
    await page.getByRole("link", { name: id, exact: true }).click();
    await page.getByRole("heading", { name: `Job ${id}` }).waitFor();
    await page.locator("pre.log").getByText("line 2 of the log").waitFor();
    await page.getByRole("button", { name: "Cancel the job …" }).click();
    await isDialog(page);
    await page.getByRole("dialog").getByRole("button", { name: "Keep it" }).click();
    assert.equal(await say("state"), "running");
    await page.getByRole("button", { name: "Cancel the job …" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Cancel the job" }).click();
    await page.getByRole("heading", { name: "cancelled" }).waitFor();
    assert.equal(await say("state"), "done");
    return page;
  },

  // Without a mouse: every step is a key, and the focus is where the next key needs it.
  async keyboard() {
    const page = await open();
    await live(page);
    const id = await say("submit");
    const focused = (what) => page.waitForFunction((text) => document.activeElement?.textContent === text, what);
    const tabTo = async (what) => {
      for (let i = 0; i < 60; ++i) {
        if ((await page.evaluate(() => document.activeElement?.textContent)) === what) return;
        await page.keyboard.press("Tab");
      }
      assert.fail(`Tab does not reach ${what}`);
    };
    await page.keyboard.press("Tab");
    await focused("To the content");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.activeElement?.id === "main");
    await page.keyboard.press("4");
    await page.getByRole("heading", { name: "Queue", level: 2 }).waitFor();
    await page.getByRole("link", { name: id, exact: true }).waitFor();
    await tabTo(id);
    const ring = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
    assert.notEqual(ring, "none", "the focus is seen");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: `Job ${id}` }).waitFor();
    await page.getByRole("button", { name: "Cancel the job …" }).waitFor();
    await tabTo("Cancel the job …");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.activeElement?.closest("dialog[open]") !== null);
    await page.keyboard.press("Escape");
    await focused("Cancel the job …");
    assert.equal(await say("state"), "running");
    await page.keyboard.press("Enter");
    await tabTo("Cancel the job");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "cancelled" }).waitFor();
    return page;
  },

  // A screen reader: each picture has a name, and each control; a table or a list has a picture's facts; the connection is
  // announced.
  async reader() {
    const page = await open();
    await live(page);
    await page.getByText("one", { exact: true }).first().waitFor();
    assert.equal(await page.getByRole("status").textContent(), "Live");
    for (const screen of ["GPUs", "Timeline", "Memory", "Queue", "Accounting"]) {
      await go(page, screen);
      // The facts of the first screen's pictures are in lists.
      if (screen !== "GPUs") await page.getByRole("table").first().getByRole("cell").first().waitFor();
      assert.equal(await page.getByRole("main").count(), 1);
      assert.equal(await page.getByRole("heading", { level: 1 }).count(), 1);
      assert.equal(await page.getByRole("navigation").locator("[aria-current=page]").textContent(), screen);
      const nameless = await page.evaluate(() => [...document.querySelectorAll("canvas, button, select, input, [role=meter], table")]
        .filter((one) => !(one.ariaLabel || one.textContent || one.labels?.length)).map((one) => one.outerHTML));
      assert.deepEqual(nameless, [], screen);
      assert.equal(await page.locator("canvas:not([role=img])").count(), 0);
    }
    await say("stop");
    await page.getByRole("alert").getByText("The daemon does not answer").waitFor();
    assert.equal(await page.getByRole("status").textContent(), "The daemon does not answer");
    return page;
  },

  // Names, reasons and a log with markup and codes of terminals: text, every character of it.
  async hostile() {
    const page = await open();
    await live(page);
    const marked = "<img src=x onerror=alert(1)>";
    await page.getByText(marked).first().waitFor();
    await go(page, "Timeline");
    await page.getByText(marked).first().waitFor();
    await go(page, "Memory");
    await page.getByText(marked).first().waitFor();
    await go(page, "Queue");
    const id = await say("job");
    const row = page.getByRole("row").filter({ has: page.getByRole("link", { name: id, exact: true }) });
    await row.getByText("<script>alert(2)</script>\\x1b]0;title\\x07\\u202egpj").waitFor();
    // The name stands in another job's reason, too.
    const waiting = await say("waiting");
    await page.getByRole("row").filter({ has: page.getByRole("link", { name: waiting, exact: true }) })
      .getByText(/<script>alert\(2\)<\/script>\\x1b/).first().waitFor();
    await row.getByRole("link", { name: id, exact: true }).click();
    const log = page.locator("pre.log");
    await log.getByText("the end of the log").waitFor();
    const text = await log.textContent();
    assert.ok(text.includes("<script>alert(3)</script>"), text);
    assert.ok(text.includes("red and bell \\x07 and \\u202eturned"), text);
    assert.ok(text.includes("100 %") && !text.includes("50 %"), text);
    assert.ok(!text.includes("\u001b"), text);
    assert.equal(await page.locator("main img, main script, pre.log *").count(), 0);
    return page;
  },

  async readonly() {
    const page = await open();
    await live(page);
    await page.goto(new URL(`/#/job/${more[0]}`, link).href);
    await page.getByText("This view is read-only.").waitFor();
    assert.equal(await page.getByRole("button", { name: /Cancel|Hold|Set/ }).count(), 0);
    const status = await page.evaluate((id) => fetch(`/v1/jobs/${id}`, {
      method: "PATCH", body: '{"cancel":true}', headers: { "X-Gpumux-Key": localStorage.getItem("gpumux-key") },
    }).then((answer) => answer.status), more[0]);
    assert.equal(status, 403);
    return page;
  },

  // Another user's job: the daemon refuses, and the page says so.
  async denied() {
    const page = await open();
    await live(page);
    await page.goto(new URL(`/#/job/${more[0]}`, link).href);
    await page.getByText("only the job's user and administrators may see its log").waitFor();
    await page.getByRole("button", { name: "Cancel the job …" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Cancel the job" }).click();
    await page.locator("p.said").getByText(/./).waitFor();
    assert.notEqual(await say("state"), "done");
    return page;
  },

  async hidden() {
    const page = await open();
    await go(page, "Queue");
    const row = page.getByRole("row").filter({ has: page.getByRole("link", { name: more[0], exact: true }) });
    await row.getByText("done", { exact: true }).waitFor();
    await row.getByRole("link").click();
    await page.getByRole("heading", { name: `Job ${more[0]}` }).getByText("done", { exact: true }).waitFor();
    return page;
  },

  // A link that was used says what to do; so does a browser that never had one. A session outlives a reload.
  async links() {
    const page = await open();
    await live(page);
    await page.reload();
    await live(page);
    const other = await open();
    await other.getByRole("alert").getByText("Each link works once.").waitFor();
    assert.equal(await other.getByRole("article").count(), 0);
    const stored = await page.evaluate(() => document.cookie);
    assert.equal(stored, "", "a script cannot read the cookie");
    return page;
  },

  // Not a test: every screen as a picture, in three sizes, light and dark, into the folder `more[0]`. make_pictures.py.
  async pictures() {
    const sizes = { phone: [390, 844], laptop: [1280, 800], desk: [1920, 1080] };
    const first = await open();
    await live(first);
    const session = await first.context().storageState();
    for (const [size, [width, height]] of Object.entries(sizes)) {
      for (const colorScheme of ["light", "dark"]) {
        const page = await open({ viewport: { width, height }, colorScheme, storageState: session });
        await live(page);
        for (const screen of ["GPUs", "Timeline", "Memory", "Queue", "Accounting"]) {
          await go(page, screen);
          if (screen !== "GPUs") await page.getByRole("table").first().waitFor();
          await page.screenshot({ path: `${more[0]}/${screen.toLowerCase()}-${size}-${colorScheme}.png`, fullPage: size === "phone" });
        }
        await go(page, "Queue");
        await page.getByRole("table", { name: "Running" }).getByRole("link").first().click();
        await page.locator("pre.log").getByText(/epoch/).waitFor();
        await page.screenshot({ path: `${more[0]}/job-${size}-${colorScheme}.png`, fullPage: size === "phone" });
        await page.context().close();
      }
    }
    return first;
  },

  // The site of the documents: dark where the system is, as wide as the window, and a search leads users to what they can
  // do.
  async site() {
    for (const colorScheme of ["light", "dark"]) {
      const page = await open({ colorScheme });
      const grounds = await page.evaluate(() => ["body", ".sidebar-drawer", ".highlight"].map((part) =>
        getComputedStyle(document.querySelector(part)).backgroundColor.match(/\d+/g).slice(0, 3).reduce((sum, one) => sum + +one, 0)));
      for (const ground of grounds) assert.equal(ground < 384, colorScheme === "dark", `${colorScheme}: ${grounds}`);
      await page.context().close();
    }
    const page = await open();
    // The button changes it, too.
    await page.locator(".theme-toggle:visible").click();
    assert.match(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), /^rgb\(\d\d, \d\d, \d\d\)$/);
    assert.equal(await page.evaluate(() => document.querySelector(".sidebar-drawer").getBoundingClientRect().left), 0);
    for (const path of ["index.html", "docs/cli.html", "docs/architecture.html", "docs/troubleshooting.html"]) {
      await page.goto(new URL(path, link).href);
      for (let width = 320; width <= 2000; width += 40) {
        await page.setViewportSize({ width, height: 800 });
        await fits(page);
        await fits(page, ".content");
      }
    }
    await page.goto(new URL("search.html?q=out+of+memory", link).href);
    await page.getByText(/^Search finished/).waitFor();
    const found = await page.locator("#search-results ul.search > li > a").evaluateAll((all) => all.map((one) => one.getAttribute("href")));
    assert.match(found[0], /^docs\/how-to\/out-of-memory.html/);
    const isProjects = found.map((one) => /^(docs\/decisions|experiments|bench|CHANGELOG|CONTRIBUTING)/.test(one));
    assert.ok(isProjects.includes(true));
    assert.ok(!isProjects.slice(isProjects.indexOf(true)).includes(false), found.join("\n"));
    return page;
  },

  // A page of another site, in a browser that has a session, gets nothing: no WebSocket, no answer, no frame.
  async crosssite() {
    const page = await open();
    await live(page);
    const evil = await page.context().newPage();
    const here = new URL(link);
    await evil.goto(more[0]);
    const got = await evil.evaluate(async (origin) => {
      const socket = await new Promise((resolve) => {
        const made = new WebSocket(`${origin.replace("http", "ws")}/live`, ["gpumux", "x"]);
        made.onopen = () => resolve("open");
        made.onerror = () => resolve("refused");
      });
      const read = await fetch(`${origin}/v1/status`, { credentials: "include" }).then((a) => a.text(), () => "refused");
      const posted = await fetch(`${origin}/v1/jobs/1`, { method: "POST", body: "{}", mode: "no-cors", credentials: "include" })
        .then((answer) => (answer.type === "opaque" ? "unread" : "read"), () => "refused");
      return { socket, read, posted };
    }, here.origin);
    assert.equal(got.socket, "refused");
    assert.equal(got.read, "refused");
    assert.notEqual(got.posted, "read");
    return page;
  },
};

let failed = null;
try {
  const page = await cases[name]();
  assert.deepEqual(page.faults, []);
} catch (error) {
  failed = error;
}
await browser.close();
if (failed) {
  console.error(failed);
  process.exit(1);
}
console.log("good");
process.exit(0);
