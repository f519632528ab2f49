# SPDX-License-Identifier: Apache-2.0
"""Memory that the driver never has, although the program has room for it.

Goal: the program gets an error, and is not left waiting at the gate. Method: the simulated driver refuses each of its
own allocations, by a script or because it lacks descriptors. These tests see a bound of the product's pass
(Mover::kGiveUpAfter).
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

from framework import paths
from framework.case import main
from framework.memory import LARGE, MemoryTest
from framework.waiting import HANG, wait_until


class Never(MemoryTest):
    gpus = 5  # one for each program, so that they wait at the same time

    def test_memory_that_never_comes_is_not_waited_for_at_the_gate(self):
        """Each allocation is made all the same, for the room is there. The work on it gets the driver's error."""
        daemon = self.start_daemon()
        # The library's own memory comes first.
        programs = [self.start("large", name=f"without cuMemCreate {calls}",
                               variables={"GPUMUX_SIM_FAULTS": f"cuMemCreate:{calls}=CUDA_ERROR_OUT_OF_MEMORY"},
                               gpu=gpu, **LARGE)
                    for gpu, calls in enumerate(("1+", "3+"))]
        for program in programs:
            self.assertEqual(program.wait(timeout=HANG), 3)
            self.assertEqual(program.field("code"), "2")
        wait_until(lambda: "the driver has no memory" in daemon.log(), HANG, "the daemon's log says so")
        self.start("large", **LARGE).expect_success(timeout=HANG)

    def test_programs_with_few_descriptors_end(self):
        """The driver needs descriptors, too, and says that it has no memory."""
        self.start_daemon()
        options = [text for key, value in LARGE.items() for text in ("--" + key.replace("_", "-"), str(value))]
        few = [self.start_process(["/bin/sh", "-c", f'ulimit -n {most}; exec "$@"', "sh",
                                   str(paths.PROGRAMS / "large"), "--gpu", str(gpu), *options],
                                  name=f"large with {most} descriptors",
                                  environment=self.environment(GPUMUX_CONNECT_TIMEOUT="1s"))
               for gpu, most in enumerate(range(6, 11))]
        for program in few:
            self.assertIn(program.wait(timeout=HANG), (0, 3))


if __name__ == "__main__":
    main()
