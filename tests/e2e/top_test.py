#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`gpumux top` on real terminals: sizes, colours, hostile names, changes, and a daemon that goes and comes back.

Method: the command runs in tmux, against a real daemon with programs on simulated GPUs. The screen is read as text, and
each step waits for what it shows.
"""

import os
import re
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from framework import paths  # noqa: E402
from framework.case import main  # noqa: E402
from framework.jobs import JobsTest  # noqa: E402
from framework.terminal import Terminal, width  # noqa: E402
from framework.users import UsersTest  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402

SIZES = [(80, 24), (120, 40), (200, 60)]
HOSTILE = "\x1b[2J\x1b]2;owned\x07<b>&lt;\n\u202eevil"


class TopCase:
    """The parts that tests with both kinds of daemon share."""

    def top(self, columns=80, rows=24, command=None, **variables):
        environment = {"PATH": os.environ["PATH"], "HOME": self.directory, "GPUMUX_RUNTIME_DIR": self.runtime_dir,
                       "TERM": "screen-256color", "LANG": "C.UTF-8", **variables}
        environment = {name: value for name, value in environment.items() if value is not None}
        terminal = Terminal(self.directory, command or [paths.COMMAND, "top"], environment, columns, rows)
        self.addCleanup(terminal.end)
        return terminal

    def worker_named(self, name, gpu=0, **options):
        return self.start("worker", name="worker", gpu=gpu, steps=1_000_000, step_us=2000, sync_every=1,
                          until=self.enough, variables={"GPUMUX_NAME": name}, **options)


class Top(TopCase, JobsTest):

    def two_programs(self):
        alpha = self.worker_named("alpha")
        alpha.wait_for_line("ready")
        beta = self.worker_named("beta")
        self.daemon.trace.wait_for(event="grant", pid=beta.pid)
        return alpha, beta

    def check_frame(self, terminal, columns, rows):
        """Every line is within the terminal; the head and the keys are where they belong."""
        terminal.wait_for(r"^gpumux top ")
        wait_until(lambda: terminal.lines()[-1].startswith("q Quit ? Help"), HANG,
                   lambda: f"the keys are on the last line:\n{terminal.text()}")
        lines = terminal.lines()
        self.assertEqual(len(lines), rows)
        for line in lines:
            self.assertLessEqual(width(line), columns, line)

    def test_three_sizes(self):
        alpha, _ = self.two_programs()
        self.submit("sh", "-c", "sleep 1000", name="held-job", hold=True)
        for columns, rows in SIZES:
            with self.top(columns, rows) as terminal:
                terminal.wait_for(rf"alpha +{alpha.pid} ")
                terminal.wait_for(r"\bbeta\b")
                terminal.wait_for(r"held by . (alpha|beta) ")
                terminal.wait_for(r"next . (alpha|beta) |at once")
                terminal.wait_for(r"busy +\[.*\]")
                terminal.wait_for(r"memory \[.*\] .* of 1.00? GiB")
                terminal.wait_for(r"\[.*▏. (alpha|beta|al|be)|▒")
                terminal.wait_for(r"held-job .* held ")
                self.check_frame(terminal, columns, rows)
                self.assertIn("\x1b[", terminal.coloured())
                terminal.press("q")
                self.assertEqual(terminal.exit_status(), 0)

    def test_a_resize(self):
        self.two_programs()
        terminal = self.top(80, 24)
        terminal.wait_for(r"\balpha\b")
        self.check_frame(terminal, 80, 24)
        for columns, rows in [(200, 60), (120, 40), (40, 12), (10, 3), (1, 1), (80, 24)]:
            terminal.resize(columns, rows)
            if columns >= 80:
                wait_until(lambda size=(columns, rows): self.fills(terminal, *size), HANG,
                           lambda: f"the screen has the new size:\n{terminal.text()}")
                self.check_frame(terminal, columns, rows)
                terminal.wait_for(r"\balpha\b")
        terminal.press("C-c")
        self.assertEqual(terminal.exit_status(), 0)

    @staticmethod
    def fills(terminal, columns, rows):
        lines = terminal.lines()
        return len(lines) == rows and any(width(line) == columns and "[" in line for line in lines) and \
            lines[-1].startswith("q Quit")

    def test_a_terminal_without_colours_or_unicode(self):
        self.two_programs()
        terminal = self.top(TERM="vt100", LANG="C")
        terminal.wait_for(r"memory \[a+\|?b+")
        terminal.wait_for(r"1m +\[.*[ab]\|[ab]|1m +\[.*\*")
        self.check_frame(terminal, 80, 24)
        self.assertTrue(terminal.text().isascii(), terminal.text())
        self.assertNotRegex(terminal.coloured(), r"\x1b\[[0-9;]*3[0-7]")
        terminal.press("q")
        self.assertEqual(terminal.exit_status(), 0)

    def test_no_color(self):
        self.two_programs()
        terminal = self.top(NO_COLOR="1")
        terminal.wait_for(r"memory \[a+\|?b+")
        self.assertNotRegex(terminal.coloured(), r"\x1b\[[0-9;]*3[0-7]")

    def test_hostile_names_are_shown_and_not_obeyed(self):
        self.worker_named(HOSTILE).wait_for_line("ready")
        self.submit("sh", "-c", "sleep 1000", name="漢字漢字", hold=True)
        self.submit("sh", "-c", "sleep 1000", name="שלום", hold=True)
        self.submit("sh", "-c", "sleep 1000", name="plain", hold=True)
        terminal = self.top(120, 40)
        line = terminal.wait_for(r"holding|idle")
        self.assertRegex(line, r"\?\[2J\?\]2;owned\?<b>")
        self.assertNotIn("owned", terminal.title())
        terminal.wait_for(r"שלום")
        wide, plain = terminal.wait_for(r"漢字"), terminal.wait_for(r" plain ")
        # The columns after a wide name are where they are after any other.
        self.assertEqual(width(wide[:wide.index(" held ")]), width(plain[:plain.index(" held ")]), terminal.text())
        self.check_frame(terminal, 120, 40)

    def test_filter_sort_and_help(self):
        alpha, beta = self.two_programs()
        terminal = self.top()
        terminal.wait_for(rf"\balpha +{alpha.pid}")
        terminal.wait_for(rf"\bbeta +{beta.pid}")
        terminal.type("/bet")
        terminal.wait_until_gone(rf"\balpha +{alpha.pid}")
        terminal.press("Enter")
        terminal.wait_for(r'Only "bet"')
        terminal.press("Escape")
        terminal.wait_for(rf"\balpha +{alpha.pid}")
        terminal.press("s")
        terminal.wait_for("Sort programs by")
        for _ in range(5):
            terminal.press("Down")
        terminal.wait_for("> program")
        terminal.press("Enter")
        terminal.wait_for("by program")
        rows = [line for line in terminal.lines() if re.search(r"\b(alpha|beta) +\d+ ", line) and "held by" not in line]
        self.assertEqual([re.search("alpha|beta", row).group(0) for row in rows], ["alpha", "beta"])
        terminal.press("F1")
        terminal.wait_for("A change is asked about before it is made")
        terminal.press("Escape")
        terminal.wait_for(r"^gpumux top ")

    def test_a_job_is_cancelled_held_and_moved(self):
        runs = self.submit("sh", "-c", "sleep 1000", name="runs")
        self.wait_state(runs, "running")
        waits = self.submit("sh", "-c", "sleep 1000", name="waits", hold=True)
        terminal = self.top()
        terminal.wait_for(r"\bruns\b.* running")
        terminal.press("Tab")
        terminal.press("c")
        terminal.wait_for(rf"Cancel job {runs} \(runs\).*y/N")
        terminal.press("n")
        terminal.wait_for("nothing was changed")
        self.assertEqual(self.job(runs)["state"], "running")
        terminal.press("F9")
        terminal.wait_for(rf"Cancel job {runs} \(runs\).*y/N")
        terminal.press("y")
        terminal.wait_for(rf"job {runs} \(runs\) is told to end")
        self.wait_done(runs, "cancelled")
        terminal.wait_until_gone(r"\bruns\b.* (running|ending)")

        terminal.press("p")
        terminal.wait_for(rf"New priority of job {waits} \(waits\)")
        terminal.type("-7")
        terminal.press("Enter")
        terminal.wait_for("from 0 to -7")
        terminal.press("y")
        wait_until(lambda: self.job(waits)["priority"] == -7, HANG, "the job has another priority")
        terminal.wait_for(r"waits .* held ")
        terminal.press("H")
        terminal.wait_for(rf"Release job {waits}")
        terminal.press("y")
        self.wait_state(waits, "running")

    def test_the_priority_of_a_program(self):
        alpha, _ = self.two_programs()
        terminal = self.top()
        terminal.wait_for(r"\balpha\b")
        terminal.type("/alpha")
        terminal.press("Enter")
        terminal.wait_for('Only "alpha"')
        terminal.press("p")
        terminal.wait_for("New priority of alpha")
        terminal.type("-3")
        terminal.press("Enter")
        terminal.wait_for("from 0 to -3")
        terminal.press("y")
        terminal.wait_for("the priority of alpha.* is -3")
        seat = next(seat for seat in self.daemon.api.seats() if seat["pid"] == alpha.pid)
        self.assertEqual(seat["priority"], -3)

    def test_a_daemon_that_goes_and_comes_back(self):
        self.two_programs()
        terminal = self.top()
        terminal.wait_for(r"\balpha\b.* (holding|waiting)")
        letters = self.letters(terminal)
        self.daemon.kill()
        terminal.wait_for("The daemon is gone since ")
        # The screen keeps the last answer, and keys work.
        terminal.wait_for(r"\balpha\b")
        terminal.press("?")
        terminal.wait_for("A change is asked about")
        terminal.press("Escape")
        terminal.wait_for("The daemon is gone since ")
        self.daemon.start()
        terminal.wait_until_gone("The daemon is gone")
        terminal.wait_for(r"\balpha\b.* (holding|waiting)")
        terminal.wait_for(r"\[.*▏?. (alpha|beta|al|be)|▒")
        self.assertEqual(self.letters(terminal), letters)

    @staticmethod
    def letters(terminal):
        return [terminal.wait_for(rf"^\w .*\b{name} +\d+ ")[0] for name in ("alpha", "beta")]

    def test_a_daemon_that_hangs_delays_no_key(self):
        self.two_programs()
        terminal = self.top()
        terminal.wait_for(r"\balpha\b.* (holding|waiting)")
        self.daemon.process.send(signal.SIGSTOP)
        try:
            terminal.wait_for("The daemon gives no answer since ")
            terminal.press("?")
            terminal.wait_for("A change is asked about")
            terminal.press("Escape")
            terminal.wait_for("The daemon gives no answer since ")
        finally:
            self.daemon.process.send(signal.SIGCONT)
        terminal.wait_until_gone("The daemon gives no answer")
        self.daemon.process.send(signal.SIGSTOP)
        try:
            terminal.press("q")
            self.assertEqual(terminal.exit_status(), 0)
        finally:
            self.daemon.process.send(signal.SIGCONT)

    def test_a_terminal_that_cannot_show_it(self):
        _, errors = self.ask("top", code=1)
        self.assertIn("standard input is not a terminal", errors)
        for term, text in [(None, "the variable TERM is not set"), ("dumb", "cannot move its cursor"),
                           ("nonesuch", "no description of the terminal 'nonesuch'")]:
            with self.top(120, 24, TERM=term) as terminal:
                self.assertEqual(terminal.exit_status(), 1)
                terminal.wait_for(re.escape(text))

    def test_without_a_daemon(self):
        _, errors = self.ask("top", "--runtime-dir", f"{self.directory}/none", code=3)
        self.assertIn("no gpumux daemon is running", errors)

    def test_a_signal_gives_the_terminal_back(self):
        terminal = self.top(command=["sh", "-c", f"{paths.COMMAND} top; echo it was $?; stty -a"])
        terminal.wait_for(r"^gpumux top ")
        with open(f"/proc/{terminal.pid}/task/{terminal.pid}/children", encoding="ascii") as children:
            os.kill(int(children.read().split()[0]), signal.SIGTERM)
        terminal.wait_for("it was 143")
        terminal.wait_for(r"[ ;]echo[ ;]")


class OtherUsers(TopCase, UsersTest):

    def test_another_users_job_is_not_ones_own(self):
        job = self.submit_as(self.news, "sleep", "1000", name="theirs", gpus=1)
        command = self.hand_out(paths.COMMAND)
        os.chmod(command, 0o755)
        terminal = self.top(command=["setpriv", f"--reuid={self.games.pw_uid}", f"--regid={self.games.pw_gid}",
                                     "--clear-groups", command, "top"])
        terminal.wait_for(r"\btheirs\b.* running")
        terminal.press("Tab")
        terminal.press("c")
        terminal.wait_for(rf"Cancel job {job} \(theirs\) of news\?")
        terminal.press("y")
        terminal.wait_for("Not done: ")
        self.assertEqual(self.job(job)["state"], "running")


if __name__ == "__main__":
    main()
