# SPDX-License-Identifier: Apache-2.0
"""Work that is taken off the GPU in the middle computes the right result, whatever kind of work it is.

Each case of programs/frozen.cu runs for some seconds, with kernels that are longer than a turn. A partner, the case
`atomic`, wants the GPU all the time. In the part `moved` their memory does not fit together, and the node's mover takes
it away in the middle of kernels.
"""
import dataclasses
import os
import re
import time

from parts_jobs import JobsDaemon, log_of, spans_in_trace, told
from parts_same import find_nvcc
from support import HERE, INFO, SKIP, Daemon, Failed, Process

QUANTUM = "10ms"
NATIVE_S = 0.3  # of each program without gpumux
CASE_S, QUICK_CASE_S = 3.0, 1.5
LIMIT_S = 25  # of a program, from its start to its end
PART_S = 180  # after which no further case starts
LEAST_FREEZES = 3
NOT_HERE = 77  # the exit status of frozen.cu if the machine lacks a feature
PARTNER_S = 600  # the part tells the partner to end before that
LOOK_S = 0.1  # between two looks at the status

FREEZES, DRAINS, MAY_FREEZE = "freezes", "drains", "may freeze"
# Each case, and how gpumux ends a turn in the middle of its kernels.
CASES = {"atomic": FREEZES, "cooperative": FREEZES, "clusters": FREEZES, "conditional": FREEZES,
         "devicelaunch": FREEZES, "callback": FREEZES, "contexts": FREEZES, "green": FREEZES, "copies": FREEZES,
         "streams": FREEZES, "async-alloc": FREEZES, "fork": FREEZES, "managed": DRAINS, "gpus": MAY_FREEZE,
         "ipc": MAY_FREEZE, "hmm": MAY_FREEZE}
NAMES = tuple(CASES) + ("long",)
# Of these, which can have memory before they begin, and which are frozen.
MOVED = tuple(name for name, how in CASES.items() if how == FREEZES and name != "fork")
# Two programs with so much memory each do not fit in what another one leaves of the GPU.
MOVED_GIB, LEFT_GIB = 4, 9
MOVED_QUANTUM = "50ms"
HOG_S = 8  # until it has its memory
SUSPENSIONS = 5
DRAINS_BECAUSE = "unified memory"  # of a seat with managed memory


@dataclasses.dataclass
class Said:
    """The figures in a program's one line."""
    rounds: int
    wrong: int
    round_ms: float

    @property
    def is_right(self):
        return self.wrong == 0 and self.rounds > 0


def said_by(process):
    """None: the program failed, was not done in time or said nothing."""
    if process.timed_out or process.code not in (0, 1):
        return None
    found = re.search(r"rounds=(\d+) wrong=(\d+) ms=([\d.]+)", first_line(process))
    return Said(int(found[1]), int(found[2]), float(found[3])) if found else None


def first_line(process):
    with open(process.out, errors="replace") as file:
        return file.readline().strip()


def why_wrong(process):
    said = said_by(process)
    return f"{said.wrong} wrong in {said.rounds} rounds; {process.why()}" if said else process.why()


def build(session):
    """The program's path. None: there is no compiler."""
    nvcc = find_nvcc()
    if nvcc is None:
        session.add(SKIP, "interrupt: build frozen", "no nvcc")
        return None
    program = os.path.join(session.built, "frozen")
    built = Process(session, "build.frozen", [nvcc, "-std=c++17", "-O2", "-rdc=true", "-arch=sm_90",
                                              os.path.join(HERE, "programs", "frozen.cu"), "-lcudadevrt", "-lcuda",
                                              "-o", program]).wait(120)
    return program if session.check(built.code == 0, "interrupt: build frozen",
                                    "" if built.code == 0 else built.why()) else None


def is_shown_here(session, program, name):
    """Whether the case works without gpumux. Otherwise it shows nothing."""
    native = Process(session, f"interrupt.{name}.native", [program, name, str(NATIVE_S)]).wait(LIMIT_S)
    if native.code == NOT_HERE:
        session.add(SKIP, f"interrupt {name}", first_line(native))
        return False
    said = said_by(native)
    if said is None or not said.is_right:
        session.add(SKIP, f"interrupt {name}", f"does not work without gpumux either: {why_wrong(native)}")
        return False
    session.facts[f"ms of a round of {name}, natively"] = said.round_ms
    return True


def wait_and_watch(daemon, process, partner, seconds):
    """Waits for the program. Returns the reasons that the status gives why its seats drain."""
    reasons = set()
    end = time.monotonic() + seconds
    while process.process.poll() is None and time.monotonic() < end:
        for gpu in daemon.status()["gpus"]:
            reasons |= {seat["not_interrupted"] for seat in gpu["seats"] if seat["pid"] != partner.pid}
        time.sleep(LOOK_S)
    process.wait(end - time.monotonic())
    return sorted(reasons - {""})


def freezes(events, pids=None, besides=(), since_ns=0):
    """How often work was frozen: that of `pids`, or of all processes except `besides`."""
    return sum(1 for event in events
               if event["event"] == "drained" and event.get("detail") == "frozen" and event["time_ns"] >= since_ns and
               event.get("pid") not in besides and (pids is None or event.get("pid") in pids))


def try_case(session, daemon, program, partner, name, part="interrupt", more=(), how=None):
    title = f"{part} {name}"
    how = how or CASES[name]
    begin = time.monotonic_ns()
    seconds = QUICK_CASE_S if session.quick else CASE_S
    process = Process(session, f"{part}.{name}", [program, name, str(seconds), *more], daemon)
    try:
        reasons = wait_and_watch(daemon, process, partner, LIMIT_S)
    finally:
        if process.process.poll() is None:
            process.end()
    # A case may have several processes.
    count = freezes(daemon.trace(), besides={partner.pid}, since_ns=begin)
    drained = f"; drains: {', '.join(reasons)}" if reasons else ""
    said = said_by(process)
    if said is None or not said.is_right:
        return session.check(False, f"{title}: right result", f"{why_wrong(process)}; frozen {count} times{drained}")
    figure = f"{said.rounds} rounds of {said.round_ms:.0f} ms, frozen {count} times{drained}"
    if how == FREEZES:
        return session.check(count >= LEAST_FREEZES, f"{title}: right result, frozen", figure)
    if how == DRAINS:
        is_told = any(DRAINS_BECAUSE in reason for reason in reasons)
        return session.check(count == 0 and is_told, f"{title}: right result, drained, status says why", figure)
    session.check(True, f"{title}: right result", f"{said.rounds} rounds of {said.round_ms:.0f} ms")
    return session.add(INFO, f"{title}: freezes", f"{count}{drained}")


def start_partner(session, daemon, program, number, part="interrupt", more=()):
    partner = Process(session, f"{part}.partner-{number}", [program, "atomic", str(PARTNER_S), *more], daemon)
    if daemon.holder(0, {partner.pid}, LIMIT_S) is None:
        partner.end()
        raise Failed(f"the partner never held the GPU: {partner.why()}")
    return partner


def end_partner(session, daemon, partner):
    partner.process.terminate()
    partner.wait(LIMIT_S)
    said = said_by(partner)
    count = freezes(daemon.trace(), pids={partner.pid})
    session.check(said is not None and said.is_right, "interrupt: the partner's result is right",
                  f"{said.rounds} rounds of {said.round_ms:.0f} ms, frozen {count} times"
                  if said is not None and said.is_right else why_wrong(partner))


def moved_bytes(daemon):
    return daemon.status()["gpus"][0]["memory"]["moved_out_bytes"]


def run_moved(session):
    """A program without gpumux has most of the GPU. So little has to move for the others."""
    program = build(session)
    if program is None:
        return
    names = [name for name in MOVED if not session.options.within or name in session.options.within]
    more = [str(MOVED_GIB)]
    with Daemon(session, "moved", mode="auto", quantum=MOVED_QUANTUM, interrupt="auto") as daemon:
        total = daemon.status()["gpus"][0]["memory_total_bytes"] / 2**30
        hog = Process(session, "moved.hog", [program, "hold", str(PARTNER_S), f"{total - LEFT_GIB:.1f}"])
        time.sleep(HOG_S)
        partner = start_partner(session, daemon, program, 0, "moved", more)
        try:
            for name in names:
                if session.left() < LIMIT_S:
                    session.add(SKIP, f"moved {name}", "out of time")
                    continue
                if partner.process.poll() is not None:
                    session.check(False, f"moved: the partner lives on before {name}", why_wrong(partner))
                    break
                before = moved_bytes(daemon)
                # The host prepares copies for longer than the GPU makes them: turns may end by idleness.
                try_case(session, daemon, program, partner, name, "moved", more,
                         MAY_FREEZE if name == "copies" else None)
                moved = (moved_bytes(daemon) - before) / 2**30
                session.check(moved > 1, f"moved {name}: memory moved", f"{moved:.1f} GiB out")
            end_partner(session, daemon, partner)
        finally:
            for process in (partner, hog):
                if process.process.poll() is None:
                    process.end()
    if not session.options.within or "long" in session.options.within:
        suspended_in_a_kernel(session, program)


def wait_for(session, what, is_so, seconds=LIMIT_S):
    end = time.monotonic() + min(seconds, session.left())
    while not is_so():
        if time.monotonic() > end:
            raise Failed(f"not in time: {what}")
        time.sleep(0.005)


def suspended_in_a_kernel(session, program):
    """A job whose kernel lasts 20 s is suspended a few times, and gives up its memory each time."""
    title = "moved: a job in a kernel of 20 s"
    with JobsDaemon(session, "moved-jobs", mode="serial", interrupt="auto") as daemon:
        job = daemon.submit("long", [program, "long", "1", str(MOVED_GIB)])

        def grants():
            return sum(event["event"] in ("grant", "complete") for event in daemon.trace())

        def is_in_state(state):
            return lambda: daemon.job(job.id)["state"] == state

        wait_for(session, "it has its memory",
                 lambda: any((seat.get("memory") or {}).get("allocated_bytes", 0) > MOVED_GIB << 30
                             for seat in daemon.status()["gpus"][0]["seats"]))
        time.sleep(1)
        for _ in range(SUSPENSIONS):
            daemon.command("suspend", job.id)
            wait_for(session, "it is suspended", is_in_state("suspended"))
            before = grants()
            daemon.command("resume", job.id)
            wait_for(session, "it goes on", lambda: grants() > before)
            time.sleep(0.5)
        job.wait(LIMIT_S + 20)
        with open(log_of(daemon, "long"), errors="replace") as file:
            said = file.read().strip()
        session.check("rounds=1 wrong=0" in said, f"{title}: right result", said[-100:])
        events = daemon.trace()
        pids = {event.get("pid") for event in events} - {None}
        frozen = [event for event in events if event["event"] == "drained" and event.get("detail") == "frozen"]
        session.check(len(frozen) >= SUSPENSIONS, f"{title}: frozen at each suspension", f"{len(frozen)} times")
        session.add(INFO, f"{title}: from suspend to frozen", told(spans_in_trace(events, pids, "suspend", "drained")))
        session.add(INFO, f"{title}: from suspend to evicted", told(spans_in_trace(events, pids, "suspend", "evicted")))


def run_interrupt(session):
    program = build(session)
    if program is None:
        return
    end = time.monotonic() + PART_S
    names = [name for name in CASES if not session.options.within or name in session.options.within]
    shown = [name for name in names if is_shown_here(session, program, name)]
    if not shown:
        return
    with Daemon(session, "interrupt", mode="serial", quantum=QUANTUM, interrupt="auto") as daemon:
        partner = start_partner(session, daemon, program, 0)
        try:
            for number, name in enumerate(shown, 1):
                if session.left() < LIMIT_S or time.monotonic() > end:
                    session.add(SKIP, f"interrupt {name}", "out of time")
                    continue
                if partner.process.poll() is not None:
                    session.check(False, f"interrupt: the partner lives on before {name}", why_wrong(partner))
                    partner = start_partner(session, daemon, program, number)
                try_case(session, daemon, program, partner, name)
            end_partner(session, daemon, partner)
        finally:
            if partner.process.poll() is None:
                partner.end()
