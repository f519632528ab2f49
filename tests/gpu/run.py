#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows on real GPUs what gpumux promises, and measures its figures there. Needs the built files only
(tests/gpu/bundle.sh).

    tests/gpu/run.py --dist dist --out DIR [--gpus 1|2] [--quick] [--only PART...] [--budget SECONDS]

DIR gets table.txt, summary.json (both after every line) and raw.tar.gz (every program's output, the daemons' logs and
traces). A check that cannot run here is SKIP with its reason. A part that fails or takes too long is FAIL, and the next
one goes on. Exit status: 0 no FAIL, 1 some, 2 wrong usage.

Parts: doors, same, robust, tools, memory, jobs, mps, figures, sharing, saturating, interrupt, moved on one GPU; two on
two.
`same` runs first natively, which others compare with. `mps` needs an ordinary user. Part samples runs only if it is
named, with --samples FOLDER.
"""
import argparse
import os
import platform
import signal
import sys
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "..", "..", "bench", "gpu"))
sys.dont_write_bytecode = True

import figures  # noqa: E402
import parts_interrupt  # noqa: E402
import parts_jobs  # noqa: E402
import parts_memory  # noqa: E402
import parts_mps  # noqa: E402
import parts_robust  # noqa: E402
import parts_samples  # noqa: E402
import parts_same  # noqa: E402
import parts_tools  # noqa: E402
import parts_two  # noqa: E402
import sharing  # noqa: E402
from support import FAIL, SKIP, Daemon, Failed, Session, run  # noqa: E402

ONE_GPU_PARTS = ("doors", "same", "robust", "tools", "memory", "jobs", "mps", "figures", "sharing", "saturating",
                 "interrupt", "moved")
# Only where they are asked for: they need what this repository does not have.
OTHER_PARTS = ("samples",)
# The workloads that each part runs natively first, to compare with.
WORKLOADS_OF = {"doors": (), "same": tuple(parts_same.PYTHON_WORKLOADS), "robust": ("transformer", "resnet"),
                "tools": (), "memory": (), "jobs": (), "mps": (), "figures": ("transformer", "graphs"),
                "sharing": ("transformer",), "saturating": (), "interrupt": (), "moved": (), "samples": (),
                "two": ()}
ONE_GPU_BUDGET_S, TWO_GPU_BUDGET_S, QUICK_BUDGET_S = 540, 360, 180


def look_around(session):
    """The machine, the driver, and whether what was built starts here at all."""
    session.facts["kernel"] = platform.release()
    session.facts["cores"] = os.cpu_count()
    for name, argv in (("gpumux", [session.command, "--version"]), ("gpumuxd", [session.daemon_binary, "--version"])):
        if not os.access(argv[0], os.X_OK):
            raise Failed(f"{argv[0]} is not there or cannot be executed: build with tests/gpu/bundle.sh and name dist "
                         "with --dist")
        process = run(session, name + ".version", argv, seconds=20)
        if process.code != 0:
            raise Failed(f"{name} does not start here: {process.why()}")
        with open(process.out) as file:
            session.facts[name] = file.read().strip().splitlines()[0] if os.path.getsize(process.out) else "?"
    if not os.path.exists(session.library):
        raise Failed(f"{session.library} is not there")
    with Daemon(session, "look", mode="serial", quantum="50ms") as daemon:
        about, gpus = daemon.about(), daemon.status()["gpus"]
        session.facts["driver"] = about.get("driver")
        session.facts["GPUs"] = "; ".join(f"{gpu['index']}: {gpu['name']} {gpu.get('uuid', '')}" for gpu in gpus)
        refused = [gpu["refused"] for gpu in gpus if gpu.get("refused")]
        if not gpus or refused:
            raise Failed(f"the daemon serves no GPU: {refused}")
        if session.gpus > len(gpus):
            raise Failed(f"--gpus {session.gpus}, but the daemon sees {len(gpus)}")
        shown = run(session, "gpumux-status", [session.command, "status", "--json"], seconds=20,
                    GPUMUX_RUNTIME_DIR=daemon.dir)
        session.check(shown.code == 0, "gpumux status --json", "" if shown.code == 0 else shown.why())
        probe = run(session, "gpumux-run", ["/bin/true"], daemon, 30)
        if not session.check(probe.code == 0, "gpumux run -- true", "" if probe.code == 0
                             else probe.why() + "; going on by LD_PRELOAD"):
            session.via_run = False


def run_same(session):
    parts_same.run_alone(session)
    parts_same.run_together(session)
    if not session.quick:
        parts_same.run_together(session, "auto", parts_same.GROUPS[1:2])


def prepare(session):
    parts_same.build_programs(session)
    parts_same.run_natives(session)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", default=os.path.join(HERE, "..", "..", "dist"))
    parser.add_argument("--out", required=True)
    parser.add_argument("--gpus", type=int, choices=(1, 2), default=1)
    parser.add_argument("--quick", action="store_true", help="three minutes: fewer steps and pairs")
    parser.add_argument("--only", nargs="+", choices=ONE_GPU_PARTS + OTHER_PARTS + ("two",),
                        help="these parts; default: all for that many GPUs")
    parser.add_argument("--samples", metavar="FOLDER", help="of part samples: where the programs of "
                        "NVIDIA/cuda-samples were built")
    parser.add_argument("--workloads", nargs="+", help="of part same, and what others compare with: these only")
    parser.add_argument("--memory-seconds", type=float, default=20, help="of part memory: of each program, alone")
    parser.add_argument("--within", nargs="+", metavar="NAME", help="within these parts only what is so named: of "
                        "memory " + ", ".join(parts_memory.PARTS) + "; of jobs " +
                        ", ".join(part.__name__ for part in parts_jobs.PARTS) +
                        "; of mps " + ", ".join(parts_mps.NAMES) +
                        "; of interrupt and moved " + ", ".join(parts_interrupt.NAMES) +
                        "; of samples " + ", ".join(parts_samples.NAMES) +
                        "; of two " + ", ".join(parts_two.NAMES) +
                        "; of figures and sharing the functions of bench/gpu")
    parser.add_argument("--memory-quantum", default="auto", help="of part memory, where three programs take turns")
    parser.add_argument("--budget", type=float, help="seconds after which nothing more is started")
    arguments = parser.parse_args()
    if arguments.budget is None:
        whole = TWO_GPU_BUDGET_S if arguments.gpus == 2 else ONE_GPU_BUDGET_S
        arguments.budget = QUICK_BUDGET_S if arguments.quick else whole
    chosen = arguments.only or (("two",) if arguments.gpus == 2 else ONE_GPU_PARTS)
    session = Session(arguments)

    def attempt(name, part):
        if session.left() < 15:
            return session.add(SKIP, name, "out of time")
        begin = session.left()
        try:
            part(session)
        except Failed as error:
            session.give_up(name, error)
        except Exception as error:  # a mistake in one part must not cost the others their time on the machine
            session.keep(f"{name}.traceback", traceback.format_exc())
            session.add(FAIL, name, f"{type(error).__name__}: {error}")
        session.facts[f"seconds for {name}"] = round(begin - session.left(), 1)
        return None

    def interrupted(number, _):
        raise SystemExit(f"interrupted by signal {number}")

    signal.signal(signal.SIGTERM, interrupted)
    try:
        attempt("look around", look_around)
        if not any(row["name"] == "look around" for row in session.rows):
            if "doors" in chosen:
                attempt("doors", parts_same.test_doors)
                attempt("addresses", parts_same.test_addresses)
            if {"same", "robust", "figures", "sharing"} & set(chosen):
                wanted = arguments.workloads or sorted(set().union(*(WORKLOADS_OF[part] for part in chosen)))
                parts_same.PYTHON_WORKLOADS = {name: module for name, module in parts_same.PYTHON_WORKLOADS.items()
                                               if name in wanted}
                session.compiles = "same" in chosen
                attempt("prepare", prepare)
            for name, part in (("same", run_same), ("robust", parts_robust.run_robustness),
                               ("tools", parts_tools.run_tools),
                               ("memory", parts_memory.run_memory),
                               ("jobs", parts_jobs.run_jobs),
                               ("mps", parts_mps.run_mps),
                               ("figures", figures.run_figures), ("sharing", sharing.run_sharing),
                               ("saturating", sharing.run_saturating),
                               ("interrupt", parts_interrupt.run_interrupt),
                               ("moved", parts_interrupt.run_moved),
                               ("samples", parts_samples.run_samples),
                               ("two", parts_two.run_two_gpus)):
                if name in chosen:
                    attempt(name, part)
    finally:
        session.write()
        print("\n" + session.table(), flush=True)
        session.pack()
    return 1 if any(row["status"] == FAIL for row in session.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
