#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the pictures of README.md and of other documents: tools/make_pictures.py [--build DIR] [--only NAME...]

`overview` is drawn. The others are screens: the script runs the programs that the tutorial runs, on a simulated machine
of its own, and draws what the commands print on a terminal. `top` needs tmux. Run it again when a screen has changed.
DIR is build/dev by default and may be dist.
"""

import argparse
import fcntl
import html
import os
import pathlib
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass, replace

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from framework.terminal import Terminal  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
COLUMNS = 120

# ---- screens

FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
GLYPH, LEADING, MARGIN = 7.8, 19, 14
BACK, FORE, PROMPT = "#10151c", "#d7dde5", "#8fa3b8"
COLOURS = {"30": "#5c6773", "31": "#f2777a", "32": "#8fd18f", "33": "#f5c76a", "34": "#7aa6f0", "35": "#cc99cd",
           "36": "#6fc9c9", "37": "#c5ccd6", "90": "#7d8b99"}
# How much of a cell the shades of a timeline fill.
SHADES = {"\u2591": 0.3, "\u2592": 0.6, "\u2588": 1.0}
DRAWN = re.compile("[\u2591\u2592\u2588\u258f]")
SGR = re.compile(r"\x1b\[([0-9;]*)m")


@dataclass(frozen=True)
class Style:
    colour: str = ""
    bold: bool = False
    reversed: bool = False

    def after(self, code):
        """The style that follows a code of a terminal."""
        if code in ("", "0"):
            return Style()
        if code == "1":
            return replace(self, bold=True)
        if code == "2":
            return replace(self, colour=COLOURS["90"])
        if code == "7":
            return replace(self, reversed=True)
        if code == "39":
            return replace(self, colour="")
        return replace(self, colour=COLOURS[code]) if code in COLOURS else self


def spans(line):
    """(text, style) of each part of a line with the colours of a terminal."""
    style, end, found = Style(), 0, []
    for match in SGR.finditer(line):
        found.append((line[end:match.start()], style))
        end = match.end()
        for code in match.group(1).split(";"):
            style = style.after(code)
    found.append((line[end:], style))
    return [span for span in found if span[0]]


def box(column, row, width, fill, opacity=1.0):
    """A part of a line in one colour."""
    return (f'<rect x="{MARGIN + column * GLYPH:.1f}" y="{MARGIN + row * LEADING}" width="{width * GLYPH:.1f}" '
            f'height="{LEADING}" fill="{fill}"' + (f' fill-opacity="{opacity}"' if opacity < 1 else "") + "/>")


def blocks(text, column, row, colour):
    """The characters of `text` that are shades and lines, drawn, for fonts differ in them."""
    for index, character in enumerate(text):
        if character in SHADES:
            yield box(column + index, row, 1, colour, SHADES[character])
        elif character == "\u258f":
            yield box(column + index, row, 0.15, colour)


def screen_svg(title, lines):
    """A terminal with these lines as a picture."""
    width = int(COLUMNS * GLYPH + 2 * MARGIN)
    height = len(lines) * LEADING + 2 * MARGIN
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
             f'height="{height}" role="img">', f"<title>{html.escape(title)}</title>",
             f'<rect width="{width}" height="{height}" rx="6" fill="{BACK}"/>',
             f'<g font-family="{html.escape(FONT)}" font-size="13" fill="{FORE}">']
    for number, line in enumerate(lines):
        column, y = 0, MARGIN + number * LEADING + 13
        for text, look in spans(line):
            colour = BACK if look.reversed else look.colour
            if look.reversed:
                parts.append(box(column, number, len(text), look.colour or FORE))
            style = (f' fill="{colour}"' if colour else "") + (' font-weight="bold"' if look.bold else "")
            parts += blocks(text, column, number, colour or FORE)
            text = DRAWN.sub(" ", text)
            # Browsers take several spaces for one, so what stands between them has a place of its own. textLength keeps
            # columns aligned whatever font a browser finds.
            for part in re.finditer(r"\S+(?: \S+)*", text):
                x = MARGIN + (column + part.start()) * GLYPH
                parts.append(f'<text x="{x:.1f}" y="{y}" textLength="{len(part.group(0)) * GLYPH:.1f}"'
                             f'{style}>{html.escape(part.group(0))}</text>')
            column += len(text)
    parts += ["</g>", "</svg>", ""]
    return "\n".join(parts)


class Machine:
    """A simulated machine, a home and the built programs: what the tutorial sets up."""

    def __init__(self, build):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpumux-pictures-"))
        is_dist = (build / "sim" / "libcuda.so.1").exists()
        simulator = build / "sim" if is_dist else build / "lib" / "sim"
        self.demo = build / "demo" / "gpumux_demo" if is_dist else build / "bin" / "gpumux_demo"
        for name in ("run", "home"):
            (self.folder / name).mkdir(mode=0o700)
        self.environment = {
            "PATH": f"{build / 'bin'}:{os.environ['PATH']}", "HOME": str(self.folder / "home"),
            "LD_LIBRARY_PATH": str(simulator), "GPUMUX_RUNTIME_DIR": str(self.folder / "run"),
            "GPUMUX_STATE_DIR": str(self.folder / "state"), "GPUMUX_SIM_DIR": str(self.folder / "machine"),
            "GPUMUX_SIM_GPUS": "1", "GPUMUX_SIM_MEMORY": "8G", "TERM": "xterm-256color", "USER": "eva",
            "COLUMNS": str(COLUMNS)}
        self.started = []

    def start_daemon(self):
        self.start(["gpumuxd", "--private"])
        self.wait_for(lambda: self.run(["gpumux", "status", "--json"]).returncode == 0, "the daemon serves")

    def start(self, command):
        process = subprocess.Popen([str(word) for word in command], env=self.environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder / "home")
        self.started.append(process)
        return process

    def run(self, command):
        return subprocess.run([str(word) for word in command], env=self.environment, check=False, capture_output=True,
                              text=True, cwd=self.folder / "home", stdin=subprocess.DEVNULL)

    def wait_for(self, condition, what):
        deadline = time.monotonic() + 60
        while not condition():
            if time.monotonic() > deadline:
                sys.exit(f"make_pictures: not within a minute: {what}")
            time.sleep(0.1)

    def screen(self, command):
        """The lines that a command prints on a terminal, below its own line."""
        controller, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
        process = subprocess.Popen(command, env=self.environment, stdin=terminal, stdout=terminal, stderr=terminal,
                                   cwd=self.folder / "home")
        os.close(terminal)
        printed = b""
        while True:
            try:
                part = os.read(controller, 65536)
            except OSError:  # the terminal's other side is closed
                break
            if not part:
                break
            printed += part
        os.close(controller)
        process.wait()
        text = re.sub(r"\x1b\[(?![0-9;]*m)[0-9;?]*[A-Za-z]", "", printed.decode(errors="replace"))
        lines = [line.rstrip() for line in text.replace("\r", "").rstrip("\n").split("\n")]
        return [f"\x1b[90m$ \x1b[0m\x1b[1m{' '.join(command)}\x1b[0m", *lines]

    def remove(self):
        self.run(["gpumux", "cancel", "--all"])
        for process in reversed(self.started):
            process.terminate()
        for process in self.started:
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def screens(build):
    """Every screen of the tutorial, as (name, title, lines)."""
    machine = Machine(build)
    try:
        machine.start_daemon()
        run = ["gpumux", "run", "--name"]
        machine.start([*run, "alpha", "--", machine.demo, "--seconds", 40])
        machine.start([*run, "beta", "--", machine.demo, "--seconds", 40])
        machine.wait_for(lambda: "beta" in machine.run(["gpumux", "status"]).stdout and
                         "alpha" in machine.run(["gpumux", "status"]).stdout, "both programs share the GPU")
        time.sleep(6)  # until mode auto has made its trial
        yield "status", "gpumux status: two programs share a GPU", machine.screen(["gpumux", "status"])
        machine.run(["gpumux", "set", "0", "--mode", "serial", "--quantum", "200ms"])
        time.sleep(2)
        yield "turns", "gpumux status: two programs take turns", machine.screen(["gpumux", "status"])
        program = pathlib.Path("dist", "demo", "gpumux_demo")
        (machine.folder / "home" / program.parent).mkdir(parents=True)
        (machine.folder / "home" / program).symlink_to(machine.demo)
        submit = ["gpumux", "submit", "--mem", "2G", "--name"]
        machine.run([*submit, "first", "--", program, "--seconds", 10])
        machine.run([*submit, "second", "--after", "ok:1", "--", program, "--seconds", 1])
        machine.wait_for(lambda: "running" in machine.run(["gpumux", "queue"]).stdout, "the first job runs")
        yield "queue", "gpumux queue: a job runs and one waits for it", machine.screen(["gpumux", "queue"])
    finally:
        machine.remove()


def with_their_styles(lines):
    """Each line begins with the style that the one before has left."""
    left = ""
    for line in lines:
        yield left + line
        left = "".join(match.group(0) for match in SGR.finditer(left + line)).rpartition("\x1b[0m")[2]


def top_screen(build):
    """`gpumux top` while three programs take turns, as (name, title, lines)."""
    machine = Machine(build)
    try:
        machine.start_daemon()
        machine.run(["gpumux", "set", "0", "--mode", "serial", "--quantum", "3s"])
        for name, memory in (("train.py", "3G"), ("tune.py", "2G"), ("serve.py", "1G")):
            machine.start(["gpumux", "run", "--name", name, "--", machine.demo, "--seconds", 200])
            machine.run(["gpumux", "submit", "--mem", memory, "--name", f"job-{name[:-3]}", "sleep", "1000"])
        machine.run(["gpumux", "submit", "--mem", "8G", "--name", "whole", "sleep", "1000"])
        time.sleep(70)  # until the timeline is full
        terminal = Terminal(machine.folder, [build / "bin" / "gpumux", "top"],
                            {**machine.environment, "TERM": "screen-256color", "LANG": "C.UTF-8"}, COLUMNS, 24)
        try:
            terminal.wait_for("^gpumux top")
            terminal.wait_for("next .* serve|then .* serve|held by .* serve")
            time.sleep(3)
            lines = terminal.coloured().rstrip("\n").split("\n")
        finally:
            terminal.end()
        usual = "/run/gpumux"
        here = machine.environment["GPUMUX_RUNTIME_DIR"]
        lines[0] = lines[0].replace(here, usual + " " * (len(here) - len(usual)))
        yield "top", "gpumux top: three programs take turns", list(with_their_styles(lines))
    finally:
        machine.remove()


# ---- the overview

BLUE, GREEN, ORANGE, GREY, INK, PAPER = "#3b6fb6", "#3f9a6b", "#d9822b", "#8a94a3", "#26313d", "#ffffff"
TURNS = [(0, 96, BLUE), (96, 52, ORANGE), (148, 96, GREEN), (244, 96, BLUE), (340, 52, ORANGE), (392, 88, GREEN)]


class Drawing:

    def __init__(self, width, height, title):
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                      f'height="{height}" role="img" font-family="system-ui, sans-serif" font-size="14">',
                      f"<title>{html.escape(title)}</title>",
                      f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>']

    def box(self, x, y, width, height, fill, stroke="none", radius=5):
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{radius}" fill="{fill}" '
                          f'stroke="{stroke}"/>')

    def text(self, x, y, words, fill=INK, size=14, anchor="middle", weight="normal"):
        self.parts.append(f'<text x="{x}" y="{y}" fill="{fill}" font-size="{size}" text-anchor="{anchor}" '
                          f'font-weight="{weight}">{html.escape(words)}</text>')

    def arrow(self, x1, y1, x2, y2, dashed=False):
        """An arrow to (x2, y2), horizontal or vertical."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f'<path d="M{x1} {y1} L{x2} {y2}" stroke="{GREY}" stroke-width="2" fill="none"{dash}/>')
        sign = 1 if (x2 > x1 or y2 > y1) else -1
        head = (f"M{x2 - 8 * sign} {y2 - 5} L{x2} {y2} L{x2 - 8 * sign} {y2 + 5}" if y1 == y2 else
                f"M{x2 - 5} {y2 - 8 * sign} L{x2} {y2} L{x2 + 5} {y2 - 8 * sign}")
        self.parts.append(f'<path d="{head}" stroke="{GREY}" stroke-width="2" fill="none"/>')

    def svg(self):
        return "\n".join([*self.parts, "</svg>", ""])


def overview():
    """Programs, their gates, the daemon, the GPU's turns and host memory."""
    drawing = Drawing(860, 384, "gpumux: programs take turns on one GPU")
    for number, (name, colour) in enumerate((("train.py", BLUE), ("serve.py", ORANGE), ("a notebook", GREEN))):
        y = 24 + number * 72
        drawing.box(24, y, 132, 52, colour)
        drawing.text(90, y + 31, name, PAPER, weight="bold")
        drawing.box(160, y, 108, 52, "#eef2f7", GREY)
        drawing.text(214, y + 23, "libgpumux.so", size=12)
        drawing.text(214, y + 40, "gate: open" if number == 0 else "gate: closed", GREY, 12)
    drawing.arrow(272, 50, 350, 50)
    drawing.text(311, 42, "kernels", GREY, 12)
    drawing.box(354, 24, 482, 92, "#eef2f7", GREY)
    drawing.text(595, 44, "GPU: one program at a time, or all at once where that gives more", size=13)
    for x, width, colour in TURNS:
        drawing.box(355 + x, 58, width - 2, 42, colour, radius=2)
    drawing.arrow(272, 194, 350, 194)
    drawing.text(311, 186, "may I?", GREY, 12)
    drawing.box(354, 150, 230, 88, INK)
    drawing.text(469, 180, "gpumuxd", PAPER, 16, weight="bold")
    drawing.text(469, 202, "whose turn, how long,", PAPER, 12)
    drawing.text(469, 219, "whose memory is on the GPU", PAPER, 12)
    drawing.arrow(469, 148, 469, 120)
    drawing.box(640, 150, 196, 88, "#eef2f7", GREY)
    drawing.text(738, 172, "host memory", size=13)
    drawing.text(738, 189, "data of programs that wait", GREY, 12)
    drawing.box(656, 200, 104, 26, ORANGE, radius=2)
    drawing.box(764, 200, 56, 26, GREEN, radius=2)
    drawing.arrow(738, 118, 738, 146)
    drawing.arrow(700, 148, 700, 120)
    drawing.text(24, 272, "Two programs of small kernels that always have work, on one H100:", anchor="start",
                 weight="bold")
    for number, (name, percent, colour) in enumerate((("plain driver", 32, GREY), ("gpumux", 94, BLUE))):
        y = 288 + number * 40
        drawing.text(24, y + 19, name, anchor="start")
        drawing.box(130, y, 560, 28, "#eef2f7", radius=2)
        drawing.box(130, y, 5.6 * percent, 28, colour, radius=2)
        drawing.text(130 + 5.6 * percent - 8, y + 19, f"{percent} %", PAPER, 13, "end", "bold")
    drawing.text(700, 307, "of the work that one", GREY, 12, "start")
    drawing.text(700, 323, "of them does alone", GREY, 12, "start")
    return drawing.svg()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "dev")
    parser.add_argument("--only", nargs="*", help="names of pictures")
    arguments = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    wanted = set(arguments.only or [])
    if not wanted or "overview" in wanted:
        (PICTURES / "overview.svg").write_text(overview(), encoding="utf-8")
    for makes, names in ((screens, {"status", "turns", "queue"}), (top_screen, {"top"})):
        if wanted and not wanted & names:
            continue
        for name, title, lines in makes(arguments.build.resolve()):
            if not wanted or name in wanted:
                (PICTURES / f"{name}.svg").write_text(screen_svg(title, lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
