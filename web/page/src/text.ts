// SPDX-License-Identifier: Apache-2.0
// Texts for people. Names, reasons and logs come from other people's programs and may hold anything: printable() and
// printableLog() make every character of them visible, so that none of them changes how the page looks.

// Control characters, and characters that turn the direction of text, hide or join what is around them.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb]/g;

// As a programmer types it.
function picture(character: string): string {
  const code = character.charCodeAt(0).toString(16);
  return code.length <= 2 ? `\\x${code.padStart(2, "0")}` : `\\u${code.padStart(4, "0")}`;
}

// A name or a sentence, on one line.
export function printable(text: string): string {
  return text.replace(HIDDEN, picture);
}

// What a terminal does with these is colour and cursor movement: they are left out. ESC [ ... letter, and ESC ] ... BEL.
const ESCAPES = /\u001b\[[0-?]*[ -/]*[@-~]|\u001b\][^\u0007\u001b\n]{0,4096}(?:\u0007|\u001b\\)/g;

// The lines of a log as a terminal leaves them: after a carriage return a line begins anew.
export function printableLog(text: string): string {
  return text
    .replace(ESCAPES, "")
    .split(/\r?\n/)
    .map((line) => {
      const last = line.replace(/\r+$/, "");
      return last.slice(last.lastIndexOf("\r") + 1).replace(/\t/g, "    ").replace(HIDDEN, picture);
    })
    .join("\n");
}

// The API writes text that is not UTF-8 as {"base64": "..."}.
export function textOf(value: unknown): string {
  if (typeof value === "string") return printable(value);
  if (typeof value === "object" && value !== null && "base64" in value && typeof value.base64 === "string") {
    const bytes = Uint8Array.from(atob(value.base64), (c) => c.charCodeAt(0));
    return printable(new TextDecoder().decode(bytes));
  }
  return "";
}

// Of memory that is not a program's under gpumux, as `gpumux status` calls it.
export const OTHERS = "other programs and contexts";

export function bytes(value: number): string {
  if (value <= 0) return "0";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    ++unit;
  }
  return `${value < 10 && unit > 0 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export function duration(ns: number): string {
  const seconds = ns / 1e9;
  if (seconds <= 0) return "0 s";
  if (seconds < 0.0995) return `${(seconds * 1e3).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 59.5) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${String(minutes % 60).padStart(2, "0")}`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

// As a clock of the machine that looks shows it.
export function clock(unixNs: number): string {
  const date = new Date(unixNs / 1e6);
  const today = new Date().toDateString() === date.toDateString();
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  return today ? time : `${date.toLocaleDateString([], { month: "short", day: "numeric" })} ${time}`;
}

export function percent(part: number, whole: number): string {
  return whole > 0 ? `${Math.round((100 * part) / whole)} %` : "-";
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${count} ${count === 1 ? one : many}`;
}
