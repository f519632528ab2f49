// SPDX-License-Identifier: Apache-2.0
// What several screens are made of.
import { type ComponentChildren, createRef, Component } from "preact";

export function Swatch({ color, pale }: { color: string; pale?: boolean }) {
  return <span class={pale ? "swatch pale" : "swatch"} style={{ background: color }} aria-hidden="true" />;
}

export function Name({ text }: { text: string }) {
  return <bdi class="name" title={text}>{text || "(no name)"}</bdi>;
}

export interface Column {
  head: string;
  right?: boolean;
  wide?: boolean; // words: gets the room that is left
}

export interface Line {
  key: string | number;
  cells: ComponentChildren[];
}

// On a narrow screen each row becomes a card, and each cell says its column's name. The roles keep it a table there.
export function Table({ caption, columns, lines, empty }:
    { caption: string; columns: Column[]; lines: Line[]; empty: string }) {
  if (lines.length === 0) return <p class="empty">{empty}</p>;
  const classOf = (column: Column | undefined) => (column?.right ? "right" : column?.wide ? "wide" : undefined);
  return (
    <table role="table">
      <caption>{caption}</caption>
      <thead role="rowgroup">
        <tr role="row">
          {columns.map((column) => <th key={column.head} role="columnheader" scope="col" class={classOf(column)}>{column.head}</th>)}
        </tr>
      </thead>
      <tbody role="rowgroup">
        {lines.map((line) => (
          <tr key={line.key} role="row">
            {line.cells.map((cell, i) => (
              <td key={i} role="cell" data-head={columns[i]?.head} class={classOf(columns[i])}><div>{cell}</div></td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

// A canvas that is drawn again after each change and when its width changes. `label` says in words what it shows.
export class Picture extends Component<{ draw: (canvas: HTMLCanvasElement) => void; label: string; class?: string;
                                         events?: Record<string, (event: any) => void> }> {
  private readonly canvas = createRef<HTMLCanvasElement>();
  private watch: ResizeObserver | null = null;

  private paint() {
    if (this.canvas.current) this.props.draw(this.canvas.current);
  }
  override componentDidMount() {
    this.watch = new ResizeObserver(() => this.paint());
    this.watch.observe(this.canvas.current!);
    this.paint();
  }
  override componentDidUpdate() {
    this.paint();
  }
  override componentWillUnmount() {
    this.watch?.disconnect();
  }
  override render() {
    return <canvas ref={this.canvas} role="img" aria-label={this.props.label} class={this.props.class} {...this.props.events} />;
  }
}

export function Track({ value, most, label }: { value: number; most: number; label: string }) {
  const part = most > 0 ? Math.min(100, (100 * value) / most) : 0;
  return (
    <span class="track" role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(part)}>
      <span style={{ width: `${part}%` }} />
    </span>
  );
}

export function Fact({ name, children, long }: { name: string; children: ComponentChildren; long?: boolean }) {
  return (
    <div class={long ? "fact long" : "fact"}>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}
