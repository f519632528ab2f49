// SPDX-License-Identifier: Apache-2.0
// The session with `gpumux web`, and its requests. Two things prove a request: the cookie, which scripts cannot read,
// and the key, which pages of other ports cannot read.

export interface Session {
  user: string;
  host: string;
  version: string;
  read_only: boolean;
}

export class ApiError extends Error {
  constructor(readonly status: number, message: string) {
    super(message);
  }
}

const KEY = "gpumux-key";

export function key(): string {
  return localStorage.getItem(KEY) ?? "";
}

// The link's token is behind the #, which a browser sends nowhere. It leaves the address bar and the history first.
export function isLink(): boolean {
  return /^#[0-9a-f]{64}$/.test(location.hash);
}

export async function useLink(): Promise<void> {
  if (!isLink()) return;
  const token = location.hash.slice(1);
  history.replaceState(null, "", location.pathname);
  const answer = await fetch("/session", { method: "POST", body: token, headers: { "Content-Type": "text/plain" } });
  if (answer.ok) localStorage.setItem(KEY, ((await answer.json()) as { key: string }).key);
}

async function ask(method: string, target: string, body?: unknown): Promise<Response> {
  const headers: Record<string, string> = { "X-Gpumux-Key": key() };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(target, { method, headers, body: body === undefined ? null : JSON.stringify(body) });
  if (answer.ok) return answer;
  let message = `The answer was HTTP status ${answer.status}.`;
  try {
    message = ((await answer.json()) as { error: { message: string } }).error.message;
  } catch {
    // No sentence came along.
  }
  throw new ApiError(answer.status, message);
}

export async function get<T>(target: string): Promise<T> {
  return (await (await ask("GET", target)).json()) as T;
}

export async function getText(target: string): Promise<Response> {
  return ask("GET", target);
}

export async function patch<T>(target: string, body: unknown): Promise<T> {
  return (await (await ask("PATCH", target, body)).json()) as T;
}
