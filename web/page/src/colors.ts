// SPDX-License-Identifier: Apache-2.0
// Which colour each program has on each GPU. Programs of one GPU have different colours. A program keeps its colour while
// the page knows it, and when the page is loaded again. On other GPUs it has the same colour if that is free there.

// Hues that lie a golden angle apart differ well, however many there are. After each eight the lightness changes.
const FIRST_HUE = 262;
const GOLDEN_ANGLE = 137.508;
const LIGHTNESS = [0.62, 0.75, 0.5];

export function colorOf(number: number): string {
  const hue = (FIRST_HUE + number * GOLDEN_ANGLE) % 360;
  return `oklch(${LIGHTNESS[Math.floor(number / 8) % LIGHTNESS.length]} 0.15 ${hue.toFixed(1)})`;
}

interface Place {
  number: number;
  seen: number;
}

const STORED = "gpumux-colors";

export class ProgramColors {
  private readonly gpus = new Map<number, Map<number, Place>>();

  // What an earlier page has left. forgetBefore() drops programs that do not show up.
  constructor() {
    try {
      const stored = JSON.parse(localStorage.getItem(STORED) ?? "[]") as [number, number, number][];
      for (const [gpu, id, number] of stored) this.on(gpu).set(id, { number, seen: 0 });
    } catch {
      // It is another version's.
    }
    addEventListener("pagehide", () => {
      const all = [...this.gpus].flatMap(([gpu, places]) => [...places].map(([id, place]) => [gpu, id, place.number]));
      localStorage.setItem(STORED, JSON.stringify(all));
    });
  }

  of(gpu: number, id: number): string {
    return colorOf(this.place(gpu, id).number);
  }

  // The program has a seat or an event at this time.
  see(gpu: number, id: number, at: number): void {
    const place = this.place(gpu, id);
    place.seen = Math.max(place.seen, at);
  }

  forgetBefore(time: number): void {
    for (const places of this.gpus.values()) {
      for (const [id, place] of places) if (place.seen < time) places.delete(id);
    }
  }

  private place(gpu: number, id: number): Place {
    let place = this.on(gpu).get(id);
    if (!place) this.on(gpu).set(id, (place = { number: this.choose(gpu, id), seen: 0 }));
    return place;
  }

  private on(gpu: number): Map<number, Place> {
    let places = this.gpus.get(gpu);
    if (!places) this.gpus.set(gpu, (places = new Map()));
    return places;
  }

  private choose(gpu: number, id: number): number {
    const taken = new Set([...this.on(gpu).values()].map((place) => place.number));
    for (const places of this.gpus.values()) {
      const own = places.get(id)?.number;
      if (own !== undefined && !taken.has(own)) return own;
    }
    let number = 0;
    while (taken.has(number)) ++number;
    return number;
  }
}
