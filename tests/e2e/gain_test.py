#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mode auto, where all memory fits: at once or by turns, whichever gives more.

Method: a simulated GPU that loses two thirds of its time to changes between processes when it slices its time among
them, and a sixth by turns; programs that always have work, and programs with pauses, which lose nothing either way.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework import paths  # noqa: E402
from framework.case import GpumuxTest, main  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402

# A choice takes some 4 s; a busy machine makes it measure again, and for longer.
PATIENCE_S = 90


class Gain(GpumuxTest):
    machine_settings = {"slice": "2ms", "switch_cost": "4ms"}
    daemon_settings = {"mode": "auto", "quantum": "20ms"}

    def start_several(self, name, **options):
        return [self.start("worker", name=f"{name}{i}", steps=10_000_000, **options) for i in range(3)]

    def choose(self, daemon, what):
        """Waits until that has been chosen for what it gives."""
        def is_chosen():
            why = daemon.api.gpu(0)["mode_why"]
            return why.endswith(f": they {what}") and "for a moment" not in why

        wait_until(is_chosen, PATIENCE_S, lambda: f"a choice: {what}; but {daemon.api.gpu(0)['mode_why']}")

    def test_it_follows_the_load_and_says_why(self):
        daemon = self.start_daemon()
        busy = self.start_several("busy", step_us=500)
        wait_until(lambda: "they run at once" in daemon.api.gpu(0)["mode_why"], HANG, "all to fit together")
        self.choose(daemon, "take turns")
        gpu = daemon.api.gpu(0)
        self.assertGreater(gpu["measured"]["by_turns_permille"], 1100)
        self.assertTrue(all(seat["submissions"] > 0 for seat in gpu["seats"]))
        wait_until(lambda: daemon.api.gpu(0)["mode_now"] == "serial", HANG, "turns")
        status = self.start_process([paths.COMMAND, "status"], environment=self.environment(preload=False))
        status.expect_success()
        self.assertIn("auto: by turns its programs had", " ".join(status.lines))
        # Others, that use the GPU for moments only, come, and these go.
        pausing = self.start_several("pausing", step_us=200, sync_every=1, pause_us=20_000)
        for program in busy:
            program.end()
        there = {program.pid for program in pausing}
        wait_until(lambda: {seat["pid"] for seat in daemon.api.gpu(0)["seats"]} == there, HANG,
                   "only these to be there")
        self.choose(daemon, "run at once")
        wait_until(lambda: daemon.api.gpu(0)["mode_now"] == "concurrent", HANG, "all to run at once")
        # One that is alone has nothing to choose.
        for program in self.programs[-2:]:
            program.end()
        wait_until(lambda: daemon.api.gpu(0)["mode_why"] == "", HANG, "nothing to choose")


if __name__ == "__main__":
    main()
