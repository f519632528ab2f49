# SPDX-License-Identifier: Apache-2.0
"""A terminal of one test's own: tmux, with a server that nothing else uses and that ends with the test."""

import itertools
import re
import subprocess
import unicodedata

from .waiting import HANG, wait_until

CONFIGURATION = """
set -g status off
set -s escape-time 20
"""

# tmux by itself may lose the status of a command that ends, so a shell says it, and keeps the screen.
KEEPER = 'trap : INT; "$@"; echo "ended with $?"; exec cat'


def width(text):
    """The columns that a text takes."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


class Terminal:
    """A command on a terminal. Its screen is read, its keys are pressed, its size is changed."""

    numbers = itertools.count(1)

    def __init__(self, directory, command, environment, columns=80, rows=24):
        self.socket = f"{directory}/tmux.{next(self.numbers)}"
        configuration = f"{self.socket}.conf"
        with open(configuration, "w", encoding="utf-8") as file:
            file.write(CONFIGURATION)
        words = ["env", "-i", *(f"{name}={value}" for name, value in environment.items()), "sh", "-c", KEEPER, "sh",
                 *map(str, command)]
        self._tmux("-f", configuration, "new-session", "-d", "-x", str(columns), "-y", str(rows), *words)

    def _tmux(self, *words, check=True):
        return subprocess.run(["tmux", "-u", "-S", self.socket, *words], check=check, capture_output=True, text=True,
                              timeout=HANG, stdin=subprocess.DEVNULL).stdout

    def lines(self):
        return self._tmux("capture-pane", "-p").split("\n")[:-1]

    def text(self):
        return "\n".join(self.lines())

    def coloured(self):
        """The lines with the sequences for colours in them."""
        return self._tmux("capture-pane", "-p", "-e", "-N")

    def title(self):
        return self._tmux("display-message", "-p", "#{pane_title}").rstrip("\n")

    def press(self, *keys):
        """Keys by tmux's names: Tab, F9, Escape, x."""
        self._tmux("send-keys", *keys)

    def type(self, text):
        self._tmux("send-keys", "-l", "--", text)

    def resize(self, columns, rows):
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def wait_for(self, pattern, timeout=HANG):
        """The first line in which the regular expression is found."""
        wanted = re.compile(pattern)

        def look():
            return next((line for line in self.lines() if wanted.search(line)), None)

        return wait_until(look, timeout, lambda: f"{pattern!r} is on the screen:\n{self.text()}", poll=0.05)

    def wait_until_gone(self, pattern, timeout=HANG):
        wanted = re.compile(pattern)
        wait_until(lambda: not wanted.search(self.text()), timeout,
                   lambda: f"{pattern!r} is not on the screen any more:\n{self.text()}", poll=0.05)

    def exit_status(self):
        return int(self.wait_for("^ended with ").rpartition(" ")[2])

    @property
    def pid(self):
        """The command's, which the shell has started."""
        shell = int(self._tmux("display-message", "-p", "#{pane_pid}"))
        with open(f"/proc/{shell}/task/{shell}/children", encoding="ascii") as children:
            return int(children.read().split()[0])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        self._tmux("kill-server", check=False)
