# SPDX-License-Identifier: Apache-2.0
"""The figures of a real GPU, each beside its baseline of the same run. tests/gpu/run.py calls run_figures.

Whatever is compared is run in pairs that follow each other, each time the other one first, and the median of the
pairs' differences or ratios is the figure: clocks and temperatures drift more slowly than that.
"""
import os
import time

from parts_same import START_S, environment_of
from support import FAIL, INFO, SKIP, Daemon, Failed, Group, median, percentile, run

LAUNCH_LIMIT_NS = 15
THROUGHPUT_LIMIT = 0.995
HAND_OVER_MEDIAN_US = 50
HAND_OVER_P99_US = 200
PLAIN_START_LIMIT_MS = 1
CUDA_START_LIMIT_MS = 20
FIRST_WORK_LIMIT_MS = 2


def pairs(session, count, native, gpumux, seconds=20):
    """Results of `count` pairs, as far as there are so many seconds left for each; a pair with a failed half is left
    out."""
    done = []
    for i in range(count):
        if session.left() < seconds:
            break
        halves = {}
        for which in (("native", "gpumux") if i % 2 == 0 else ("gpumux", "native")):
            halves[which] = (native if which == "native" else gpumux)(i)
        if halves["native"] is not None and halves["gpumux"] is not None:
            done.append((halves["native"], halves["gpumux"]))
    if not done:
        raise Failed("no pair of runs could be made")
    return done


def launch_cost(session):
    count = 3 if session.quick else 5
    program = [session.program("gpumux_gpu_launch"), "--batches", "100" if session.quick else "200"]
    with Daemon(session, "launch", mode="serial") as daemon:
        done = pairs(session, count, lambda i: run(session, f"launch.native.{i}", program).result(),
                     lambda i: run(session, f"launch.gpumux.{i}", program, daemon).result())
    if not all(gpumux["preloaded"] and not native["preloaded"] for native, gpumux in done):
        raise Failed("the launch benchmark was not preloaded as it should have been")
    for stream in ("null", "created", "per_thread"):
        added = median([gpumux[stream]["added_ns"] for _, gpumux in done])
        noise = median([native[stream]["added_ns"] for native, _ in done])
        alone = median([native[stream]["offered_ns"] for native, _ in done])
        across = median([gpumux[stream]["offered_ns"] - native[stream]["offered_ns"] for native, gpumux in done])
        session.check(added <= LAUNCH_LIMIT_NS, f"launch, {stream} stream: added at most {LAUNCH_LIMIT_NS} ns",
                      f"{added:+.1f} ns on {alone:.0f} ns within one process (noise {noise:+.1f}); "
                      f"{across:+.1f} ns between processes",
                      pairs=len(done))
    ratio = median([gpumux["rate_of_direct"] for _, gpumux in done])
    noise = median([native["rate_of_direct"] for native, _ in done])
    across = median([gpumux["launches_per_s"] / native["launches_per_s"] for native, gpumux in done])
    session.check(ratio >= THROUGHPUT_LIMIT, "launch throughput, driver API: within 0.5 %",
                  f"{100 * ratio:.2f} % of direct calls in the same process (native, where both are the same function: "
                  f"{100 * noise:.2f} %); {100 * across:.2f} % of native's "
                  f"{median([native['launches_per_s'] for native, _ in done]):.0f}/s between processes",
                  pairs=len(done))
    for part in ("open_ms", "init_ms", "context_ms", "first_launch_ms"):
        session.facts[f"start of a CUDA program, {part}, native / gpumux"] = \
            f"{median([native[part] for native, _ in done]):.2f} / {median([gpumux[part] for _, gpumux in done]):.2f}"
    start = [sum(half[part] for part in ("open_ms", "init_ms", "context_ms", "first_launch_ms")) for pair in done
             for half in pair]
    added = median([b - a for a, b in zip(start[::2], start[1::2])])
    session.check(added <= CUDA_START_LIMIT_MS, f"start of a CUDA program: added under {CUDA_START_LIMIT_MS} ms",
                  f"{added:+.1f} ms on {median(start[::2]):.0f} ms, {len(done)} pairs")


def first_work(session):
    """How soon a program has its first memory and work, natively and beside no other program."""
    count = 10 if session.quick else 150
    program = session.workload("first_use")
    with Daemon(session, "first-work", mode="auto") as daemon:
        done = pairs(session, count, lambda i: run(session, f"first-work.native.{i}", program).result(),
                     lambda i: run(session, f"first-work.gpumux.{i}", program, daemon).result())
    native, gpumux = ([sum(pair[side]["first"]) / 1e3 for pair in done] for side in (0, 1))

    def shown(values):
        return f"median {median(values):.2f}, p99 {percentile(values, 0.99):.2f}, most {max(values):.2f} ms"

    added = percentile(gpumux, 0.99) - percentile(native, 0.99)
    session.check(added <= FIRST_WORK_LIMIT_MS, f"first memory and work: p99 within {FIRST_WORK_LIMIT_MS} ms of native",
                  f"{shown(gpumux)}; natively {shown(native)}", pairs=len(done))


def torch_throughput(session):
    if "transformer" not in session.available:
        return session.add(SKIP, "launch throughput, PyTorch", "no PyTorch")
    program = session.workload("small_ops") + (["--windows", "6"] if session.quick else [])
    with Daemon(session, "small-ops", mode="serial") as daemon:
        done = pairs(session, 2 if session.quick else 5,
                     lambda i: run(session, f"small-ops.native.{i}", program, seconds=START_S).result(),
                     lambda i: run(session, f"small-ops.gpumux.{i}", program, daemon, START_S).result())
    ratio = median([gpumux["median_per_s"] / native["median_per_s"] for native, gpumux in done])
    noise = [native["median_per_s"] for native, _ in done]
    return session.check(ratio >= THROUGHPUT_LIMIT, "launch throughput, PyTorch small operations: within 0.5 %",
                         f"{100 * ratio:.2f} % of native's {median(noise):.0f}/s, {len(done)} pairs; "
                         f"native alone varies by {100 * (max(noise) - min(noise)) / median(noise):.1f} %")


def hand_over_samples(events, pid, log):
    """For each launch that waited for a grant: from the other's release to the grant, and to the launch's return, in
    microseconds."""
    grants = [event["time_ns"] for event in events if event["event"] == "grant" and event.get("pid") == pid]
    releases = sorted(event["time_ns"] for event in events
                      if event["event"] in ("drained", "gate_closed") and event.get("pid") not in (pid, None))
    samples, next_grant, next_release = [], 0, 0
    for before, after in log:
        while next_grant < len(grants) and grants[next_grant] <= before:
            next_grant += 1
        if next_grant == len(grants):
            break
        granted = grants[next_grant]
        if granted >= after:
            continue
        while next_release + 1 < len(releases) and releases[next_release + 1] <= granted:
            next_release += 1
        # Only where the release came while this launch was waiting already: otherwise it was not what the grant waited
        # for.
        if releases and before < releases[next_release] <= granted:
            samples.append(((granted - releases[next_release]) / 1e3, (after - releases[next_release]) / 1e3))
    return samples


def hand_over(session):
    for label, settings, options in (
            ("idle release", {"quantum": "50ms", "idle_hold": "20us"},
             ["--launches", "2", "--spin-us", "300", "--pause-us", "700"]),
            ("end of a quantum", {"quantum": "5ms"}, ["--launches", "2", "--spin-us", "100", "--pause-us", "0"])):
        with Daemon(session, "hand-over-" + label.split()[0], mode="serial", **settings) as daemon, \
                Group(session, "hand-over-" + label.split()[0], daemon) as group:
            for i in range(2):
                log = os.path.join(session.raw, f"hand-over-{label.split()[0]}.{i}.log")
                group.add(f"worker{i}", [session.program("gpumux_gpu_worker"), "--seconds", "3" if session.quick
                                         else "5", "--elements", "1024",
                                         "--log", log] + options).log = log
            group.wait_ready()
            group.go()
            group.wait(60)
            events, samples = daemon.trace(), []
            for member in group.members:
                if member.result() is None:
                    raise Failed(f"{member.name}: {member.why()}")
                with open(member.log) as file:
                    samples += hand_over_samples(events, member.pid, [tuple(map(int, line.split())) for line in file])
        if len(samples) < 20:
            session.add(FAIL, f"hand-over, {label}", f"only {len(samples)} of them were seen")
            continue
        to_grant, to_launch = [a for a, _ in samples], [b for _, b in samples]
        figure = f"median {median(to_launch):.1f} us, p99 {percentile(to_launch, 0.99):.1f} us " \
                 f"(to the grant {median(to_grant):.1f} / {percentile(to_grant, 0.99):.1f}), {len(samples)} of them"
        session.check(median(to_launch) <= HAND_OVER_MEDIAN_US and percentile(to_launch, 0.99) <= HAND_OVER_P99_US,
                      f"hand-over, {label}: {HAND_OVER_MEDIAN_US} us median, {HAND_OVER_P99_US} us p99", figure)


def timed_start(argv, environment):
    begin = time.perf_counter()
    _, status = os.waitpid(os.posix_spawn(argv[0], argv, environment), 0)
    if status != 0:
        raise Failed(f"{argv} ended with {status}")
    return (time.perf_counter() - begin) * 1e3


def preload_cost(session):
    plain = dict(session.environment)
    preloaded = dict(plain, LD_PRELOAD=session.library)
    for name, argv in (("/bin/true", ["/bin/true"]), ("python3 -c pass", [session.python, "-c", "pass"])):
        timed_start(argv, plain), timed_start(argv, preloaded)
        differences, natives = [], []
        for i in range(30 if session.quick else 100):
            times = {}
            for which in ((0, 1) if i % 2 == 0 else (1, 0)):
                times[which] = timed_start(argv, preloaded if which else plain)
            differences.append(times[1] - times[0])
            natives.append(times[0])
        session.check(median(differences) < PLAIN_START_LIMIT_MS,
                      f"preloaded into {name}: under {PLAIN_START_LIMIT_MS} ms",
                      f"{median(differences):+.3f} ms on {median(natives):.2f} ms, {len(differences)} pairs")


def together(session, name, label, daemon):
    """How much of three programs' own speed is kept when they run at once: the sum of their times alone by the time of
    all."""
    argv = session.workload(name) + ["--steps", str(session.natives[name]["steps"])]
    with Group(session, "throughput-" + label.replace(" ", "-"), daemon) as group:
        for i in range(3):
            group.add(f"{name}{i}", argv, **environment_of(session, name))
        group.wait_ready()
        group.go()
        group.wait(START_S)
        results = [member.result() for member in group.members]
        if not all(results):
            failed = next(member for member in group.members if member.result() is None)
            raise Failed(f"three times {name}, {label}: {failed.why()}")
        wrong = [result for result in results if result["digest"] != session.natives[name]["digest"]]
        span = (max(result["end_ns"] for result in results) - min(result["start_ns"] for result in results)) / 1e9
    kept = 3 * session.natives[name]["steady_s"] / span
    if wrong:
        session.add(FAIL, f"three times {name}, {label}: same results", f"{len(wrong)} of 3 differ")
    return kept


def throughput(session):
    for name in ("transformer", "graphs"):
        if name not in session.natives:
            session.add(SKIP, f"three times {name}", "it does not run natively here")
            continue
        kept = {"the driver's time slicing": together(session, name, "native", None)}
        for label, settings in (("serial, auto quantum", {"mode": "serial", "quantum": "auto"}),
                                ("concurrent", {"mode": "concurrent"})):
            if session.left() < 40:
                break
            with Daemon(session, f"throughput-{name}-{label.split(',')[0]}", **settings) as daemon:
                kept[label] = together(session, name, f"{name}-{label.split(',')[0]}", daemon)
        session.add(INFO, f"three times {name} at once, throughput kept",
                    "; ".join(f"{label} {100 * share:.1f} %" for label, share in kept.items()))
        if session.quick:
            break


def run_figures(session):
    for program in ("gpumux_gpu_worker", "gpumux_gpu_launch"):
        if not os.path.exists(session.program(program)):
            raise Failed(f"{program} is not in {session.programs}: run tests/gpu/bundle.sh")
    session.run_parts((preload_cost, launch_cost, first_work, hand_over, torch_throughput, throughput), seconds=40)
