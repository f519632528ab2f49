# SPDX-License-Identifier: Apache-2.0
"""The driver says the same of addresses natively and under gpumux: attributes, and copies past the end."""

import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

from framework import paths
from framework.case import GpumuxTest, main
from framework.waiting import HANG

WORKLOAD = paths.ROOT / "tests" / "gpu" / "workloads" / "addresses.py"
# The simulated driver's pools tell sizes of whole blocks, and it does not refuse copies past the end of host memory.
KINDS = "malloc,pitch,managed,mapped,mapped for networks,mapped for export"


class Addresses(GpumuxTest):

    def answers(self, **options):
        program = self.start_process([sys.executable, "-B", WORKLOAD, "--kinds", KINDS],
                                     environment=self.environment(**options))
        program.expect_success(timeout=HANG)
        return json.loads(next(line for line in program.lines if line.startswith("RESULT ")).partition(" ")[2])

    def test_the_same_as_natively(self):
        self.start_daemon()
        native, ours = self.answers(preload=False), self.answers()
        self.assertEqual(native.keys(), ours.keys())
        differ = {f"{about}: {what}": (answer, ours[about].get(what)) for about, answers in native.items()
                  for what, answer in answers.items() if ours[about].get(what) != answer}
        self.assertFalse(differ, f"natively, and under gpumux: {json.dumps(differ, indent=1)}")
        # Copies past the end are compared only if the driver refuses them.
        refused = native["malloc, 262208, 1 past the end"]
        self.assertEqual({refused["HtoDAsync"], refused["D8"], refused["2D out"]}, {1})


if __name__ == "__main__":
    main()
