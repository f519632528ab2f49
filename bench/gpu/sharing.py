# SPDX-License-Identifier: Apache-2.0
"""The costs and gains of sharing a real GPU where memory fits: alone, two at once, drains, shares, idleness.
tests/gpu/run.py calls run_sharing. Everything is compared in pairs, as in figures.py, or read from the lease trace."""
import contextlib
import time

from figures import pairs
from framework.spans import Standing, spans
from parts_same import START_S, environment_of
from support import FAIL, INFO, SKIP, Daemon, Failed, Group, median, percentile, run

ALONE_LIMIT = 0.995
SHARE_LIMIT = 0.03
IDLE_LIMIT = 0.02
DRAIN_MEDIAN_MS, DRAIN_P99_MS = 5, 15
WINDOW_S = 10
SHARES = (1, 2, 4)
# Saturating work that waits for its results seldom: what a training does.
QUEUED = ["--launches", "20", "--spin-us", "2000"]


# A training for which the GPU needs several times what the host needs to submit it: what it gets done does not depend
# on how fast the host happens to be.
BUSY = ["--width", "1024", "--layers", "12", "--length", "512"]
ALONE_S, FIT_S = 5, 12  # the second one: alone, so twice as long for two
START_UP_S = 15  # of a Python program that imports PyTorch, and its first steps


def training(session, times):
    """The transformer for `times` its native number of steps."""
    return session.workload("transformer") + ["--steps", str(times * session.natives["transformer"]["steps"])]


def busy_training(session, seconds):
    """One that takes so long alone."""
    if "busy_s" not in session.facts:
        measured = run(session, "busy", session.workload("transformer") + BUSY + ["--seconds", "3"], seconds=START_S)
        if measured.result() is None:
            raise Failed(measured.why())
        session.facts["busy_s"] = measured.result()["steady_s"] / measured.result()["steps"]
    return session.workload("transformer") + BUSY + ["--steps", str(round(seconds / session.facts["busy_s"]))]


def alone(session):
    argv, variables = busy_training(session, ALONE_S), environment_of(session, "transformer")
    with Daemon(session, "alone-figure") as daemon:
        done = pairs(session, 2 if session.quick else 5,
                     lambda i: run(session, f"alone.native.{i}", argv, seconds=START_S, **variables).result(),
                     lambda i: run(session, f"alone.gpumux.{i}", argv, daemon, START_S, **variables).result())
    ratio = median([native["steady_s"] / gpumux["steady_s"] for native, gpumux in done])
    natives = [native["steady_s"] for native, _ in done]
    session.check(ratio >= ALONE_LIMIT, "a training alone: within 0.5 % of native's speed",
                  f"{100 * ratio:.2f} %, {len(done)} pairs of {median(natives):.1f} s; native alone varies by "
                  f"{100 * (max(natives) - min(natives)) / median(natives):.1f} %")


def host_costs(session):
    """The host's time for each kind of call, alone: natively, under gpumux, and with memory left to the driver."""
    argv = session.workload("host_cost") + (["--windows", "5"] if session.quick else [])
    seen = {"native": [], "gpumux": [], "paging off": []}
    with Daemon(session, "host-costs") as daemon:
        for i in range(2 if session.quick else 3):
            for name, at, variables in (("native", None, {}), ("gpumux", daemon, {}),
                                        ("paging off", daemon, {"GPUMUX_PAGING": "off"})):
                short = f"host-cost.{name}.{i}".replace(" ", "-")
                result = run(session, short, argv, at, START_S, **variables).result()
                if result:
                    seen[name].append(result["kinds"])
    if not all(seen.values()):
        raise Failed("host_cost.py failed")
    for kind in seen["native"][0]:
        least = {name: min(one[kind]["least_us"] for one in all_of) for name, all_of in seen.items()}
        middle = {name: median([one[kind]["median_us"] for one in all_of]) for name, all_of in seen.items()}
        cpu = {name: median([one[kind]["cpu_us"] for one in all_of]) for name, all_of in seen.items()}
        session.add(INFO, f"host time alone, {kind}", "; ".join(
            f"{name} {least[name]:.2f}, median {middle[name]:.2f}, processor {cpu[name]:.2f} us" for name in seen))


def at_once(session, label, daemon, argv, count=2):
    """How long `count` trainings take that run at once."""
    with Group(session, label, daemon) as group:
        for i in range(count):
            group.add(f"transformer{i}", argv, **environment_of(session, "transformer"))
        group.wait_ready()
        group.go()
        group.wait(START_S)
        results = [member.result() for member in group.members]
        if not all(results):
            return None
        return (max(result["end_ns"] for result in results) - min(result["start_ns"] for result in results)) / 1e9


def two_that_fit(session):
    """Beginning when they come, so with the trials by which it is found out what is best for them."""
    if session.left() < 2 * (2 * FIT_S + START_UP_S):
        return session.add(SKIP, "two trainings that fit", "out of time")
    argv = busy_training(session, FIT_S)
    with Daemon(session, "two-fit", mode="auto") as daemon:
        done = pairs(session, 2 if session.quick else 3, lambda i: at_once(session, f"two-fit.native.{i}", None, argv),
                     lambda i: at_once(session, f"two-fit.gpumux.{i}", daemon, argv), 2 * (2 * FIT_S + START_UP_S))
        modes = {gpu["mode_now"] for gpu in daemon.status()["gpus"][:1]}
    ratio = median([native / gpumux for native, gpumux in done])
    natives = [native for native, _ in done]
    session.check(ratio >= ALONE_LIMIT, "two trainings that fit, mode auto: no slower than without gpumux",
                  f"{100 * ratio:.1f} % of native's speed, {len(done)} pairs of {median(natives):.1f} s; native varies "
                  f"by {100 * (max(natives) - min(natives)) / median(natives):.1f} %; {', '.join(modes)}")
    return None


def drains_of(events, gpu=0):
    """Times in ns from each revocation to its drain."""
    asked, drains = {}, []
    for event in events:
        if event.get("gpu") != gpu:
            continue
        if event["event"] == "revoke":
            asked.setdefault(event["tenant"], event["time_ns"])
        elif event["event"] == "drained" and event["tenant"] in asked:
            drains.append(event["time_ns"] - asked.pop(event["tenant"]))
        elif event["event"] == "reopen":
            asked.pop(event["tenant"], None)
    return drains


def drains(session):
    for bound in ("4ms", "unlimited"):
        with Daemon(session, f"drains-{bound}", mode="serial", quantum="50ms", in_flight=bound) as daemon:
            span = at_once(session, f"drains-{bound}", daemon, training(session, 2))
            times = [time / 1e6 for time in drains_of(daemon.trace())]
        if span is None or len(times) < 10:
            session.add(FAIL, f"revocation to drained, in_flight={bound}", f"{len(times)} drains")
            continue
        figure = f"median {median(times):.2f} ms, p99 {percentile(times, 0.99):.2f} ms, {len(times)} drains; " \
                 f"both trainings in {span:.2f} s"
        if bound == "unlimited":
            session.add(INFO, "revocation to drained, nothing bounded", figure)
        else:
            session.check(median(times) <= DRAIN_MEDIAN_MS and percentile(times, 0.99) <= DRAIN_P99_MS,
                          "revocation to drained, training in flight: 5 ms, p99 15 ms", figure)


def held_in(events, begin_ns, end_ns, gpu=0):
    """The time that each pid held the GPU within a window, or drained."""
    held = {}
    for span in spans(events, gpu):
        if span.kind != "waits":
            held[span.pid] = held.get(span.pid, 0) + span.within(begin_ns, end_ns)
    return held


def shares(session):
    program = [session.program("gpumux_gpu_worker")] + QUEUED + ["--seconds", str(WINDOW_S + 4)]
    with Daemon(session, "shares", mode="auto", quantum="10ms", overlap=False) as daemon, \
            Group(session, "shares", daemon) as group:
        for share in SHARES:
            group.add(f"share{share}", program, GPUMUX_SHARE=str(share))
        group.wait_ready()
        begin = group.go() + 2_000_000_000
        group.wait(WINDOW_S + 30)
        held = held_in(daemon.trace(), begin, begin + WINDOW_S * 1_000_000_000)
        parts = [held.get(member.pid, 0) for member in group.members]
    if not sum(parts):
        return session.add(FAIL, "shares 1:2:4 over 10 s: within 3 %", "nobody held the GPU")
    off = [part / sum(parts) / (share / sum(SHARES)) - 1 for part, share in zip(parts, SHARES)]
    return session.check(max(map(abs, off)) <= SHARE_LIMIT, "shares 1:2:4 over 10 s: within 3 %",
                         ", ".join(f"{100 * part / sum(parts):.2f} % ({100 * error:+.1f} %)"
                                   for part, error in zip(parts, off)))


def idle_of(events, begin_ns, end_ns, gpu=0):
    """The part of a window in which somebody waited and nobody held or drained."""
    standing, idle, last = Standing(gpu), 0, begin_ns
    for event in standing.through(events):
        at = event["time_ns"]
        if begin_ns <= at <= end_ns:
            idle += at - last if standing.waits and not standing.holds and not standing.drains else 0
            last = at
    return idle / (end_ns - begin_ns)


def idleness(session):
    """Four programs in bursts of 2 ms of work and 3 ms of something else, each an idle holder again and again."""
    program = [session.program("gpumux_gpu_worker"), "--launches", "4", "--spin-us", "2000", "--pause-us", "3000",
               "--seconds", "8"]
    with Daemon(session, "idle", mode="serial") as daemon, Group(session, "idle", daemon) as group:
        for i in range(4):
            group.add(f"bursty{i}", program)
        group.wait_ready()
        begin = group.go() + 1_000_000_000
        group.wait(40)
        events = daemon.trace()
        end = begin + 5_000_000_000
        results = [member.result() for member in group.members]
        if not all(results):
            raise Failed("a bursty program failed")
        worked = sum(result["steps"] / result["steady_s"] for result in results) * 0.002
        idle = idle_of(events, begin, end)
    session.check(idle <= IDLE_LIMIT, "four bursty programs: idle while somebody waits at most 2 %",
                  f"{100 * idle:.2f} % between leases; {100 * worked:.1f} % of the time the GPU worked")


# Saturating work in steps that each program waits for. `large` writes and reads a GiB in each of its kernels.
KERNELS = {"small": ["--elements", "1048576", "--launches", "10", "--spin-us", "0"],
           "large": ["--elements", "268435456", "--launches", "4", "--spin-us", "0"]}
MATMULS = {"matmuls of 8192": ["--side", "8192", "--sync-every", "2"],
           "matmuls of 1024": ["--side", "1024", "--sync-every", "10"]}
GAIN_LIMIT = 0.98
SATURATING_S = 6
# `auto` has chosen some 4 s after the last program has come; of eight, whose windows have four rounds of all their
# turns, after 10; where the ways differ by a few percent it looks for longer.
SETTLED_S = {2: 9, 4: 9, 8: 14}
SETTLED_MATMULS_S = {2: 40, 4: 40}
MATMULS_LEAD_S = 5  # as warm as it gets soon
MATMULS_START_S = 15
VARIES = 0.01  # from run to run


def saturated(session, label, argv, count, daemon=None, lead=1, seconds=SATURATING_S, **variables):
    """(rate of `count` programs together, per second; the daemon's reason for its mode, halfway)."""
    with Group(session, label, daemon) as group:
        for i in range(count):
            group.add(f"program{i}", argv + ["--lead", str(lead), "--seconds", str(seconds)], **variables)
        group.wait_ready()
        group.go()
        time.sleep(lead + seconds / 2)
        why = daemon.status()["gpus"][0].get("mode_why", "") if daemon else ""
        group.wait(seconds + START_S)
        results = [member.result() for member in group.members]
        if not all(results):
            failed = next(member for member in group.members if member.result() is None)
            raise Failed(f"{failed.name}: {failed.why()}")
    return sum(result["per_s"] for result in results), why


def saturating_kind(session, kind, argv, settled_s, start_s):
    """Against one program alone: under the driver's own time slicing, in mode auto, and by turns. `settled_s`: of each
    number of programs, after how many seconds `auto` has chosen."""
    name = kind.replace(" ", "-")
    alone_per_s, _ = saturated(session, f"saturating-{name}-alone", argv, 1)
    for count, settled in settled_s.items():
        if session.left() < 3 * (SATURATING_S + start_s) + settled:
            session.add(SKIP, f"{count} saturating programs, {kind}", "out of time")
            continue
        label = f"saturating-{name}-{count}"
        kept = {"native": saturated(session, label + "-native", argv, count)[0] / alone_per_s}
        with Daemon(session, label + "-auto", mode="auto") as daemon:
            per_s, why = saturated(session, label + "-auto", argv, count, daemon, settled)
        kept["auto"] = per_s / alone_per_s
        with Daemon(session, label + "-serial", mode="serial") as daemon:
            kept["serial"] = saturated(session, label + "-serial", argv, count, daemon)[0] / alone_per_s
        check_gain(session, count, kind, kept, why)


def check_gain(session, count, kind, kept, why):
    session.check(kept["auto"] >= GAIN_LIMIT and kept["auto"] >= kept["native"] - VARIES,
                  f"{count} saturating programs, {kind}: 98 % of one alone",
                  "; ".join(f"{way} {100 * part:.1f} %" for way, part in kept.items()) + f"; auto: {why}")


# Settings of turns that may cost what programs get done.
TURNS = ({"quantum": "5ms"}, {"quantum": "20ms"}, {"quantum": "50ms"}, {"quantum": "200ms"},
         {"quantum": "50ms", "in_flight": "unlimited"})


def turn_lengths(session):
    """The part of one program's lone rate that two programs reach together, for turns of different lengths."""
    for kind, options in KERNELS.items():
        argv = [session.program("gpumux_gpu_worker")] + options
        alone_per_s, _ = saturated(session, f"turns-{kind}-alone", argv, 1, seconds=3)
        with Daemon(session, f"turns-{kind}-one", mode="serial") as daemon:
            kept = {"alone under gpumux": saturated(session, f"turns-{kind}-one", argv, 1, daemon, seconds=3)[0]}
        for settings in TURNS:
            label = f"turns-{kind}-" + "-".join(settings.values())
            with Daemon(session, label, mode="serial", **settings) as daemon:
                name = " ".join(f"{setting} {value}" for setting, value in settings.items())
                kept[name] = saturated(session, label, argv, 2, daemon, seconds=3)[0]
        session.add(INFO, f"two by turns, {kind} kernels, against one alone",
                    "; ".join(f"{name} {100 * per_s / alone_per_s:.1f} %" for name, per_s in kept.items()))


def saturating_kernels(session, counts=(2, 4)):
    """Programs that always have kernels to launch: what they get done together."""
    for kind, options in KERNELS.items():
        saturating_kind(session, kind + " kernels", [session.program("gpumux_gpu_worker")] + options,
                        {count: SETTLED_S[count] for count in counts}, 3)


def saturating_eights(session):
    """The same of eight programs."""
    saturating_kernels(session, (8,))


def saturating_matmuls(session):
    """The same of PyTorch's matrix products, with which a GPU is at its power limit, and its speed another one every
    few seconds: one program alone, the plain driver and turns in the same seconds; `auto`, whose load must be steady,
    between two runs of one alone."""
    if run(session, "import.torch", [session.python, "-c", "import torch"], seconds=START_S).code != 0:
        return session.add(SKIP, "saturating matmuls", "no PyTorch")
    for kind, options in MATMULS.items():
        argv = session.workload("matmul_rate") + options
        for count, settled in SETTLED_MATMULS_S.items():
            label = f"saturating-{kind.replace(' ', '-')}-{count}"
            if session.left() < IN_TURNS_S + 3 * (SATURATING_S + MATMULS_LEAD_S) + settled + 4 * MATMULS_START_S:
                session.add(SKIP, f"{count} saturating programs, {kind}", "out of time")
                continue
            with Daemon(session, label + "-turns", mode="serial") as daemon:
                alone, native, serial = in_turns(session, label + "-turns", argv,
                                                 [(None, 1), (None, count), (daemon, count)], IN_TURNS_S, LONG_TURN_S)
            before, _ = saturated(session, label + "-before", argv, 1, lead=MATMULS_LEAD_S)
            with Daemon(session, label + "-auto", mode="auto") as daemon:
                per_s, why = saturated(session, label + "-auto", argv, count, daemon, settled)
            after, _ = saturated(session, label + "-after", argv, 1, lead=MATMULS_LEAD_S)
            kept = {"native": native / alone, "auto": 2 * per_s / (before + after), "serial": serial / alone}
            check_gain(session, count, kind, kept, f"{why} (alone before {before:.0f} a second, after {after:.0f})")
    return None


TURN_S = 0.25
# Of programs that take turns under gpumux meanwhile: many of their turns.
LONG_TURN_S = 1.5
IN_TURNS_S = 27


def in_turns(session, label, argv, turns, seconds, turn_s=TURN_S):
    """The rates of programs that work in turns of `turn_s`, per second. `turns`: of each its daemon, or None for native
    programs, and how many programs work at once in it. Of each the medians over its windows."""
    with contextlib.ExitStack() as stack:
        groups = []
        for turn, (daemon, count) in enumerate(turns):
            name = f"{label}.{turn}-{'gpumux' if daemon else 'native'}"
            groups.append(group := stack.enter_context(Group(session, name, daemon)))
            for i in range(count):
                group.add(f"program{i}", argv + ["--window", str(turn_s), "--turn", str(turn), "--turns",
                                                 str(len(turns)), "--seconds", str(seconds)])
        for group in groups:
            group.wait_ready()
        for group in groups:
            group.go()
        for group in groups:
            group.wait(seconds + START_S)
        rates = [list(rates_by_window(group).values()) for group in groups]
    if min(map(len, rates)) < 3:
        raise Failed("too few whole turns")
    return [median(of) for of in rates]


def rates_by_window(group):
    """The summed rates of a group's programs, by window, of the windows in which all of them worked throughout."""
    rates, worked = {}, {}
    for member in group.members:
        result = member.result()
        if result is None:
            raise Failed(f"{member.name}: {member.why()}")
        for window, per_s in result["windows"][1:-1]:
            rates[window] = rates.get(window, 0) + per_s
            worked[window] = worked.get(window, 0) + 1
    return {window: rate for window, rate in rates.items() if worked[window] == len(group.members)}


def host_bound(session):
    """Matrix products that take the host longer than the GPU, natively and under gpumux. How fast such a program is
    depends on the moment and on the process by more than what is looked for: so many of them, in turns."""
    if run(session, "import.torch", [session.python, "-c", "import torch"], seconds=START_S).code != 0:
        return session.add(SKIP, "host-bound programs", "no PyTorch")
    argv = session.workload("matmul_rate") + MATMULS["matmuls of 1024"]
    for count, pairs_of_turns in ((1, 6), (4, 2)):
        if session.left() < 60:
            session.add(SKIP, f"{count} host-bound at once", "out of time")
            continue
        with Daemon(session, f"host-bound-{count}", mode="concurrent") as daemon:
            rates = in_turns(session, f"host-bound-{count}", argv, [(None, count), (daemon, count)] * pairs_of_turns,
                             15 if session.quick else 24)
        native, gpumux = rates[::2], rates[1::2]
        session.add(INFO, f"host-bound programs, {count} at once, products a second", "; ".join(
            f"{name} {', '.join(f'{rate:.0f}' for rate in sorted(of))}, median {median(of):.0f}"
            for name, of in (("native", native), ("gpumux", gpumux))) +
            f"; {100 * median(gpumux) / median(native):.1f} %")
    return None


def run_saturating(session):
    eights = () if session.quick else (saturating_eights,)
    parts = (saturating_kernels, *eights, saturating_matmuls, host_bound, turn_lengths)
    return session.run_parts(parts, seconds=60)


def run_sharing(session):
    if "transformer" not in session.natives:
        session.add(SKIP, "drains, alone, two that fit", "no PyTorch")
        return session.run_parts((shares, idleness), seconds=40)
    return session.run_parts((drains, shares, idleness, alone, host_costs, two_that_fit), seconds=40)
