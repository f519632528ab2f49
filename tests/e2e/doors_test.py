#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every hooked entry is reached by a linked symbol, by dlsym and by cuGetProcAddress, in every version and variant.

Method: `probe` asks for each entry of the table by one door, says which library answers, and calls what is hooked
with nothing but zeros. The table decides which library must answer. The codes must be those of a run without the
library. With a fault scripted for each entry, its code must come back: so the call reached exactly that entry of the
driver.
"""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework import paths  # noqa: E402
from framework.case import GpumuxTest, main  # noqa: E402

OURS = "libgpumux.so"
DRIVERS = "libcuda.so.1"
DOORS = (("linked", "probe_linked"), ("dlsym", "probe"), ("procaddr", "probe"))
# Asking for a function needs these, so they are not made to fail.
LOOKUPS = ("cuInit", "cuGetProcAddress", "cuGetProcAddress_v2")
FAULT = "CUDA_ERROR_HARDWARE_STACK_ERROR"
FAULT_CODE = "714"


def read_table():
    """Symbol -> what the library does with it."""
    actions = {}
    with open(paths.ROOT / "src" / "cuda" / "entries.table", encoding="utf-8") as table:
        for line in table:
            columns = [column.strip() for column in line.split("|")]
            if not line.startswith("#") and len(columns) > 5 and not columns[0].startswith("cudbg"):
                actions[columns[0]] = columns[5].split("(")[0]
    return actions


class Doors(GpumuxTest):

    def probe(self, door, program, *arguments, preload=True, **variables):
        """(symbol, door with version) -> (library, code or None)"""
        process = self.start(program, "--door", door, *arguments, preload=preload, variables=variables)
        process.expect_success()
        self.assertEqual(process.lines[-1], "end", "the probe did not come to its end")
        answers = {}
        for line in process.lines:
            words = line.split()
            if len(words) >= 3:
                answers[words[0], words[1]] = (words[2], words[3] if len(words) > 3 else None)
        return answers

    def test_each_door_leads_to_the_hook(self):
        self.start_daemon()
        actions = read_table()
        for door, program in DOORS:
            with self.subTest(door=door):
                answers = self.probe(door, program)
                seen = {symbol for symbol, _ in answers}
                for (symbol, how), (library, _) in answers.items():
                    if library == "none":
                        continue
                    want = DRIVERS if actions[symbol] == "forward" else OURS
                    self.assertEqual(library, want, f"{symbol} by {how}")
                hooked = {symbol for symbol, action in actions.items() if action != "forward"}
                if door != "procaddr":
                    self.assertEqual(hooked - seen, set(), "hooked entries that the probe did not ask for")
                else:
                    # Each name and variant, by both lookups; what the driver does not offer by name is "none".
                    self.assertGreater(len(answers), 1200)

    def test_calls_give_the_drivers_codes(self):
        self.start_daemon()
        for door, program in DOORS:
            for context in ((), ("--context",)):
                with self.subTest(door=door, context=context):
                    call = ("--call", *context)
                    native = self.probe(door, program, *call, preload=False)
                    ours = self.probe(door, program, *call)
                    self.assertEqual({key: code for key, (_, code) in ours.items()},
                                     {key: code for key, (_, code) in native.items()})

    def test_calls_reach_exactly_their_entry(self):
        self.start_daemon()
        actions = read_table()
        hooked = [symbol for symbol, action in actions.items() if action != "forward" and symbol not in LOOKUPS]
        native = self.probe("dlsym", "probe", "--call", preload=False,
                            GPUMUX_SIM_FAULTS=self.faults(hooked))
        # Entries that the simulated driver does not have fail natively by another code, fault or not.
        scriptable = [symbol for symbol in hooked if native.get((symbol, "dlsym"), (None, None))[1] == FAULT_CODE]
        self.assertGreater(len(scriptable), 60, "the simulated driver has hardly any entry")
        for door, program in DOORS:
            with self.subTest(door=door):
                answers = self.probe(door, program, "--call",
                                     GPUMUX_SIM_FAULTS=self.faults(scriptable))
                for (symbol, how), (library, code) in answers.items():
                    if symbol in scriptable and library != "none":
                        self.assertEqual(code, FAULT_CODE, f"{symbol} by {how}")
                # A fault of one entry only: its neighbours (another version, another variant) are other entries.
                for alone in ("cuMemcpyDtoH_v2", "cuLaunchKernel_ptsz", "cuStreamSynchronize"):
                    answers = self.probe(door, program, "--call", GPUMUX_SIM_FAULTS=self.faults([alone]))
                    failed = {symbol for (symbol, _), (_, code) in answers.items() if code == FAULT_CODE}
                    self.assertEqual(failed, {alone})

    @staticmethod
    def faults(symbols):
        return ";".join(f"{symbol}:1+={FAULT_CODE}" for symbol in symbols)

    def test_the_loader_sees_the_caller(self):
        """The answers of dlsym and dlopen depend on the library that calls them (callers.cc)."""
        native = self.start("callers", preload=False).expect_success()
        self.assertEqual(native.lines, ["next none", "beside own"])
        # RTLD_DEEPBIND is dropped: such a library would see the driver behind the hooks.
        self.assertEqual(self.start("callers").expect_success().lines, ["next none", "beside program"])

    def test_a_plugin_loaded_with_deepbind_is_reached(self):
        daemon = self.start_daemon()
        process = self.start("deepbind", paths.PROGRAMS / "plugin.so").expect_success()
        self.assertIn("done what=plugin", process.lines)
        self.assertTrue(process.field("linked").endswith(OURS), process.lines)
        self.assertTrue(process.field("dlsym").endswith(OURS), process.lines)
        self.assertEqual(daemon.trace.switches(0), [process.pid])

    def test_programs_work_through_each_door(self):
        daemon = self.start_daemon(quantum="5ms")
        want = self.native_digest(steps=30, step_us=0)
        programs = [self.start("worker", door=door, steps=30, step_us=500) for door in ("linked", "dlsym", "procaddr")]
        for program in programs:
            program.expect_success()
            self.assertEqual(program.field("digest"), want)
        self.assertEqual(set(daemon.trace.switches(0)), {program.pid for program in programs})


class Table(unittest.TestCase):

    def test_is_read(self):
        actions = read_table()
        self.assertGreater(sum(action == "gate" for action in actions.values()), 150)
        self.assertEqual(actions["cuLaunchKernel"], "gate")
        self.assertEqual(actions["cuMemAllocHost_v2"], "forward")


if __name__ == "__main__":
    main()
