# SPDX-License-Identifier: Apache-2.0
"""MPS that gpumux starts: who shares it, what a fault and a death do to whom, and that memory pages under it.

gpumux starts MPS for ordinary users only, so the script has to run as one.
"""
import os
import shutil
import signal
import tempfile
import time

import parts_two
from figures import pairs
from parts_memory import at_once, large, native_of
from parts_robust import check_finish, worker
from plain_mps import plain_mps
from sharing import KERNELS, MATMULS, SATURATING_S, SETTLED_S, saturated
from support import INFO, MPS_CONTROL, SKIP, Daemon, Failed, Group, Process, median

NEW_LIMIT_S = 2.0  # within which a new program runs after a fault
WAIT_S = 15
MINUTE_S = 60
CHOOSING_LIMIT = 0.02
OUTSIDE = {"GPUMUX_USE_MPS": "off"}
PLAIN_PART = 0.97  # of what plain MPS gets done


def until(condition, seconds=WAIT_S):
    """The condition's value as soon as it is true, or at the end."""
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def servers(daemon):
    return daemon.status()["mps_servers"]


def server_of(daemon, member):
    return next((it for it in servers(daemon) if member.pid in it["programs"]), None)


def check_new_program(session, title, daemon, since):
    """A program that starts after `since` (of time.monotonic()) works soon. One that was too early is started again."""
    refused = []
    while True:
        name = f"{title.replace(' ', '-')}.new{len(refused)}"
        new = Process(session, name, worker(session, "--steps", "1"), daemon).wait(WAIT_S)
        took = time.monotonic() - since
        if new.result() or took > NEW_LIMIT_S:
            break
        refused.append(new.why())
    session.check(new.result() is not None and took <= NEW_LIMIT_S,
                  f"{title}: a new program is done within {NEW_LIMIT_S:.0f} s",
                  (f"{took:.2f} s after it" if new.result() else new.why()) +
                  "".join(f"; one before it: {why}" for why in refused))


def under_mps(session):
    """Programs are under it or not, and it ends with the last one."""
    with Daemon(session, "mps", mode="auto", mps="on") as daemon, Group(session, "mps", daemon) as group:
        inside = [group.add(f"worker{i}", worker(session, "--seconds", "4")) for i in range(2)]
        outside = group.add("outside", worker(session, "--seconds", "4"), **OUTSIDE)
        group.wait_ready()
        group.go()
        time.sleep(1.5)  # the driver's list of processes is read once a second
        status = daemon.status()
        seats = {seat["pid"]: seat for seat in status["gpus"][0]["seats"]}
        found = [it for it in status["mps_servers"] if set(it["programs"]) == {member.pid for member in inside}]
        session.check(len(found) == 1 and len(status["mps_servers"]) == 1, "MPS: programs of a user share one server",
                      str(status["mps_servers"]))
        session.check(all("mps" in seats[member.pid] for member in inside) and "mps" not in seats[outside.pid],
                      "MPS: status says who is under it")
        if found:
            session.check(os.stat(f"/proc/{found[0]['pid']}").st_uid == os.geteuid(), "MPS: it runs as the user")
        session.check(status["gpus"][0]["foreign"] == [], "MPS: its server is no program of others",
                      str(status["gpus"][0]["foreign"]))
        group.wait(60)
        check_finish(session, "MPS", group.members)
        session.check(until(lambda: not servers(daemon)), "MPS: it ends with its last program", str(servers(daemon)))


def fault(session):
    """One program faults: those under the same server get the error, one beside it and new ones do not."""
    with Daemon(session, "mps-fault", mode="concurrent", mps="on") as daemon, \
            Group(session, "mps-fault", daemon) as group:
        faulty = group.add("faulty", worker(session, "--steps", "1000", "--fault-at", "30"))
        victim = group.add("victim", worker(session, "--seconds", "6"))
        outside = group.add("outside", worker(session, "--seconds", "6"), **OUTSIDE)
        group.wait_ready()
        group.go()
        faulty.wait(60)
        result = faulty.result()
        if not session.check(result is not None and result.get("fault") == 700,
                             "fault under MPS: its program gets the driver's error",
                             f"CUresult {result['fault']}" if result else faulty.why()):
            return
        check_new_program(session, "fault under MPS", daemon, result["at_ns"] / 1e9)
        victim.wait(60)
        session.check(victim.result() is None and "CUresult 700" in victim.why(),
                      "fault under MPS: programs of that server get it, too", victim.why())
        group.wait(60)
        check_finish(session, "fault under MPS", [outside])
        session.check(until(lambda: not servers(daemon)), "fault under MPS: no server is left", str(servers(daemon)))


def deaths(session):
    """A client, the server and the control daemon are killed."""
    with Daemon(session, "mps-deaths", mode="concurrent", mps="on") as daemon, \
            Group(session, "mps-deaths", daemon) as group:
        killed = group.add("killed", worker(session, "--seconds", "60"))
        others = [group.add(f"worker{i}", worker(session, "--seconds", "3")) for i in range(2)]
        group.wait_ready()
        group.go()
        time.sleep(1)
        os.kill(killed.pid, signal.SIGKILL)
        for member in others:
            member.wait(60)
        check_finish(session, "a program under MPS is killed", others)
    for who in ("server", "control daemon"):
        title = f"MPS's {who} is killed"
        with Daemon(session, f"mps-{who.replace(' ', '-')}", mode="concurrent", mps="on") as daemon, \
                Group(session, f"mps-{who.replace(' ', '-')}", daemon) as group:
            victim = group.add("victim", worker(session, "--seconds", "8"))
            outside = group.add("outside", worker(session, "--seconds", "3"), **OUTSIDE)
            group.wait_ready()
            group.go()
            time.sleep(1)
            control = server_of(daemon, victim)["pid"]
            os.kill(child_of(control) if who == "server" else control, signal.SIGKILL)
            check_new_program(session, title, daemon, time.monotonic())
            victim.wait(60)
            session.check(victim.result() is None, f"{title}: its programs fail", victim.why())
            outside.wait(60)
            check_finish(session, title, [outside])


def child_of(pid):
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8") as file:
                if int(file.read().rpartition(")")[2].split()[1]) == pid:
                    return int(name)
        except OSError:
            continue  # it has ended
    raise Failed(f"process {pid} has no child")


def daemon_restarts(session):
    """gpumuxd is killed: programs go on under the same server, and the next daemon knows them."""
    with Daemon(session, "mps-restart", mode="serial", quantum="20ms", mps="on") as daemon, \
            Group(session, "mps-restart", daemon) as group:
        members = [group.add(f"worker{i}", worker(session, "--seconds", "5")) for i in range(2)]
        group.wait_ready()
        group.go()
        time.sleep(1)
        before = servers(daemon)
        daemon.kill()
        time.sleep(0.3)
        daemon.start()
        pids = {member.pid for member in members}
        after = until(lambda: [it for it in servers(daemon) if set(it["programs"]) == pids])
        session.check(bool(after) and after[0]["pid"] == before[0]["pid"],
                      "gpumuxd is killed: the next one knows MPS and its programs", str(servers(daemon)))
        group.wait(60)
        check_finish(session, "gpumuxd is killed", members)
        session.check(until(lambda: not servers(daemon)), "gpumuxd is killed: MPS ends with its last program")


def memory(session):
    """Two programs of 60 % under MPS, with what one evicts handed over: the results of a native run."""
    native_of(session, "large-mps", large(session, "--share", "0.6", "--seconds", "5"))
    argv = large(session, "--share", "0.6", "--steps", str(session.natives["large-mps"]["steps"]))
    seen = {}
    took = at_once(session, "two-of-60-under-mps", [(f"large{i}", "large-mps", argv, {}) for i in range(2)], 120, seen,
                   mode="auto", quantum="1s", hand_over=True, mps="on")
    if took:
        session.add(INFO, "two-of-60-under-mps: until both have ended", f"{took:.2f} s, {seen['evictions']} evictions")


def choosing(session):
    """The trials of mode auto cost two programs of small kernels little in their first minute."""
    argv = [session.program("gpumux_gpu_worker")] + KERNELS["small"]
    rates = {}
    for mode in ("concurrent", "auto"):
        with Daemon(session, f"mps-{mode}", mode=mode, mps="on") as daemon:
            rates[mode], _ = saturated(session, f"mps-choosing-{mode}", argv, 2, daemon, lead=0, seconds=MINUTE_S)
    lost = 1 - rates["auto"] / rates["concurrent"]
    session.check(lost <= CHOOSING_LIMIT, f"mode auto under MPS loses at most {CHOOSING_LIMIT:.0%} of the first minute",
                  f"{100 * lost:.2f} %: {rates['auto']:.0f} and {rates['concurrent']:.0f} steps a second")


def beside_plain_mps(session):
    """The kinds of experiment 008 together, under plain MPS and in mode auto with gpumux's."""
    worked = {kind + " kernels": [session.program("gpumux_gpu_worker")] + options for kind, options in KERNELS.items()}
    worked["matmuls of 8192"] = session.workload("matmul_rate") + MATMULS["matmuls of 8192"]
    for kind, argv in worked.items():
        for count, settled in SETTLED_S.items():
            label = f"beside-plain-{kind.replace(' ', '-')}-{count}"

            def plain(i, label=f"{label}-plain", argv=argv, count=count):
                log = os.path.join(session.raw, f"{label}-{i}.mps.log")
                with tempfile.TemporaryDirectory(prefix="gpumux-mps-") as folder, \
                        plain_mps(session.environment, os.path.join(folder, "mps"), log) as variables:
                    return saturated(session, f"{label}-{i}", argv, count, **variables)[0]

            def gpumux(i, label=f"{label}-gpumux", argv=argv, count=count, settled=settled):
                with Daemon(session, f"{label}-{i}", mode="auto", mps="on") as daemon:
                    return saturated(session, f"{label}-{i}", argv, count, daemon, settled)[0]

            done = pairs(session, 1 if session.quick else 3, plain, gpumux, 2 * (SATURATING_S + 4) + settled)
            part = median([ours / theirs for theirs, ours in done])
            session.check(part >= PLAIN_PART, f"{count} programs, {kind}, MPS: {PLAIN_PART:.0%} of plain MPS",
                          f"{part:.1%}, {len(done)} pairs; plain MPS {median([it[0] for it in done]):.0f} a second")


def two_gpus(session):
    """A user's programs on two GPUs share one server: turns of each GPU, collectives, and whom a fault reaches."""
    if session.gpus < 2:
        return session.add(SKIP, "MPS on two GPUs", "--gpus 2 was not given")
    with Daemon(session, "mps-two", mode="serial", quantum="20ms", mps="on") as daemon, \
            Group(session, "mps-two", daemon) as group:
        members = [group.add(f"on{gpu}-{i}", worker(session, "--seconds", "4", "--device", str(gpu)))
                   for gpu in (0, 1) for i in range(2)]
        group.wait_ready()
        group.go()
        time.sleep(1.5)
        found = servers(daemon)
        session.check(len(found) == 1 and set(found[0]["programs"]) == {member.pid for member in members},
                      "MPS on two GPUs: programs of both share a server", str(found))
        group.wait(60)
        check_finish(session, "MPS on two GPUs", members)
        for gpu in (0, 1):
            wrong = parts_two.review(daemon.trace(), gpu)["wrong"]
            session.check(not wrong, f"MPS on two GPUs: leases of GPU {gpu} were exclusive", wrong[0] if wrong else "")
    with Daemon(session, "mps-two-fault", mode="concurrent", mps="on") as daemon, \
            Group(session, "mps-two-fault", daemon) as group:
        faulty = group.add("faulty", worker(session, "--steps", "1000", "--fault-at", "30", "--device", "0"))
        same, other = (group.add(f"on{gpu}", worker(session, "--seconds", "5", "--device", str(gpu))) for gpu in (0, 1))
        group.wait_ready()
        group.go()
        faulty.wait(60)
        if not session.check(bool(faulty.result()), "MPS on two GPUs: a program faults", faulty.why()):
            return None
        check_new_program(session, "fault under MPS on two GPUs", daemon, faulty.result()["at_ns"] / 1e9)
        group.wait(60)
        for name, member in (("the same GPU", same), ("the other GPU", other)):
            session.add(INFO, f"fault under MPS on two GPUs: a program on {name}",
                        "goes on" if member.result() else member.why())
    ddp = session.workload("ddp") + ["--steps", "100"]
    parts_two.native_of(session, "ddp", ddp)
    return parts_two.twice_at_once(session, "ddp", ddp, "50ms", 100, mps="on")


PARTS = (under_mps, fault, deaths, daemon_restarts, memory, choosing, beside_plain_mps, two_gpus)
NAMES = tuple(part.__name__ for part in PARTS)


def run_mps(session):
    if os.geteuid() == 0:
        return session.add(SKIP, "MPS", "gpumux starts MPS for ordinary users only: run this as one")
    if shutil.which(MPS_CONTROL) is None:
        return session.add(SKIP, "MPS", f"there is no {MPS_CONTROL} here")
    return session.run_parts(PARTS, seconds=30)
