# SPDX-License-Identifier: Apache-2.0
"""A failure of one program, or of the daemon, does not hurt the other programs."""
import os
import signal
import time

from parts_same import START_S, arguments_of, check_digest, environment_of
from support import SKIP, Daemon, Failed, Group, review

LIMIT_S = 1.0  # within which the others go on
# Work that is done again and again until the time is over, so that a victim is never done before it is hurt.
BUSY = ["--launches", "8", "--spin-us", "2000"]


def worker(session, *more):
    return [session.program("gpumux_gpu_worker")] + BUSY + list(more)


def next_grant(daemon, gpu, after_ns, among, seconds):
    """When the first of `among` was granted the GPU after that moment."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for event in daemon.trace():
            if (event["event"] == "grant" and event.get("gpu") == gpu and event["time_ns"] > after_ns and
                    event.get("pid") in among):
                return event["time_ns"]
        time.sleep(0.02)
    return None


def check_finish(session, title, members):
    for member in members:
        result = member.result()
        session.check(result is not None and result.get("wrong") == 0,
                      f"{title}: {member.name.split('-')[-1]} finishes, data right",
                      result["digest"] if result else member.why())


def kill_holders(session):
    kills = 3 if session.quick else 6
    with Daemon(session, "kill", mode="serial", quantum="20ms") as daemon, Group(session, "kill", daemon) as group:
        for i in range(kills + 2):
            group.add(f"worker{i}", worker(session, "--seconds", str(4 + kills * 0.5)))
        group.wait_ready()
        group.go()
        time.sleep(1)
        gaps, alive = [], {member.pid: member for member in group.members}
        for _ in range(kills):
            pid = daemon.holder(0, set(alive), 5)
            if pid is None:
                raise Failed("nobody held the GPU for 5 s")
            moment = time.monotonic_ns()
            alive[pid].process.kill()
            alive.pop(pid).process.wait()
            granted = next_grant(daemon, 0, moment, set(alive), 5)
            gaps.append(((granted or moment + 5_000_000_000) - moment) / 1e6)
            time.sleep(0.2)
        group.wait(60)
        session.check(max(gaps) <= LIMIT_S * 1000, "SIGKILL of a holder: others go on",
                      f"next grant after {', '.join(f'{gap:.1f}' for gap in gaps)} ms")
        check_finish(session, "SIGKILL of a holder", alive.values())
        wrong = review(daemon.trace())["wrong"]
        session.check(not wrong, "SIGKILL of a holder: leases were exclusive", wrong[0] if wrong else "")


def kill_training(session):
    if "transformer" not in session.natives:
        return session.add(SKIP, "SIGKILL of a training", "no PyTorch")
    with Daemon(session, "kill-training", mode="serial", quantum="50ms") as daemon, Group(session, "kill-training",
                                                                                          daemon) as group:
        victim = group.add("transformer", session.workload("transformer") + ["--steps", "100000"])
        others = [group.add(f"worker{i}", worker(session, "--seconds", "5")) for i in range(2)]
        group.wait_ready()
        group.go()
        time.sleep(1)
        if daemon.holder(0, {victim.pid}, 10) is None:
            raise Failed("the training never held the GPU")
        moment = time.monotonic_ns()
        victim.end()
        granted = next_grant(daemon, 0, moment, {member.pid for member in others}, 5)
        session.check(granted is not None and granted - moment <= LIMIT_S * 1e9,
                      "SIGKILL of a training that holds: others go on",
                      f"next grant after {(granted - moment) / 1e6:.1f} ms" if granted else "no grant in 5 s")
        for member in others:
            member.wait(60)
        check_finish(session, "SIGKILL of a training", others)


def stop_holder(session):
    with Daemon(session, "stop", mode="serial", quantum="20ms") as daemon, Group(session, "stop", daemon) as group:
        members = [group.add(f"worker{i}", worker(session, "--seconds", "6")) for i in range(3)]
        group.wait_ready()
        group.go()
        time.sleep(1)
        pids = {member.pid for member in members}
        pid = daemon.holder(0, pids, 5)
        if pid is None:
            raise Failed("nobody held the GPU for 5 s")
        os.kill(pid, signal.SIGSTOP)
        moment = time.monotonic_ns()
        try:
            granted = next_grant(daemon, 0, moment, pids - {pid}, 5)
            # The silence limit (500 ms) and the quantum that was running are part of it.
            session.check(granted is not None and granted - moment <= LIMIT_S * 1e9,
                          "SIGSTOP of a holder: others go on",
                          f"next grant after {(granted - moment) / 1e6:.1f} ms" if granted else "no grant in 5 s")
            time.sleep(1)
            phases = {seat["pid"]: seat["phase"] for seat in daemon.status()["gpus"][0]["seats"]}
            session.check(phases.get(pid) == "silent", "SIGSTOP of a holder: shown as silent",
                          f"shown as {phases.get(pid)}")
        finally:
            os.kill(pid, signal.SIGCONT)
        group.wait(60)
        check_finish(session, "SIGSTOP of a holder, continued", members)


def sticky_error(session):
    with Daemon(session, "sticky", mode="serial", quantum="20ms") as daemon, Group(session, "sticky", daemon) as group:
        faulty = group.add("faulty", worker(session, "--steps", "1000", "--fault-at", "30"))
        others = [group.add(f"worker{i}", worker(session, "--seconds", "5")) for i in range(2)]
        group.wait_ready()
        group.go()
        group.wait(60)
        result = faulty.result()
        if not session.check(result is not None and result.get("fault") == 700,
                             "sticky error: its program gets the driver's error",
                             f"CUresult {result['fault']}" if result else faulty.why()):
            return
        granted = next_grant(daemon, 0, result["at_ns"] - 1, {member.pid for member in others}, 2)
        gap = (granted - result["at_ns"]) / 1e6 if granted else None
        session.check(gap is not None and gap <= LIMIT_S * 1000, "sticky error: others go on",
                      f"next grant after {gap:.1f} ms" if granted else "no grant after it")
        check_finish(session, "sticky error", others)


def restart_daemon(session):
    names = [name for name in ("transformer", "resnet", "graphs") if name in session.natives][:2] or \
        [name for name in ("driver_api",) if name in session.natives] * 2
    if len(names) < 2:
        return session.add(SKIP, "daemon killed and started again", "no two workloads can run here")
    with Daemon(session, "restart", mode="serial", quantum="50ms") as daemon, Group(session, "restart",
                                                                                    daemon) as group:
        members = [(name, group.add(name, arguments_of(session, name, session.natives[name].get("steps")),
                                    **environment_of(session, name))) for name in names]
        group.wait_ready()
        group.go()
        time.sleep(0.5)
        daemon.kill()
        time.sleep(0.5)
        running = sum(member.process.poll() is None for _, member in members)
        begin = time.monotonic_ns()
        daemon.start()
        back = None
        while time.monotonic_ns() - begin < 10e9 and back is None:
            seats = {seat["pid"] for seat in daemon.status()["gpus"][0]["seats"]}
            if all(member.pid in seats or member.process.poll() is not None for _, member in members):
                back = (time.monotonic_ns() - begin) / 1e6
            time.sleep(0.02)
        session.check(running == len(members) and back is not None, "daemon killed: programs live on and come back",
                      f"{running} of {len(members)} ran on; all back {back:.0f} ms after the start" if back
                      else "they did not come back")
        group.wait(START_S)
        for name, member in members:
            check_digest(session, f"daemon killed and started again: {name}", name, member)
        wrong = review(daemon.trace())["wrong"]
        session.check(not wrong, "daemon started again: leases were exclusive", wrong[0] if wrong else "")


def run_robustness(session):
    if not os.path.exists(session.program("gpumux_gpu_worker")):
        raise Failed("gpumux_gpu_worker is not in " + session.programs + ": run tests/gpu/bundle.sh")
    session.run_parts((kill_holders, stop_holder, sticky_error, restart_daemon, kill_training), seconds=30)
