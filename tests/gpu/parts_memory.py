# SPDX-License-Identifier: Apache-2.0
"""Programs whose memory does not fit together: same results as natively, and how much of the time is theirs."""
import json
import math
import os
import signal
import statistics
import subprocess
import time

from parts_same import START_S, XLA_FLAGS
from support import INFO, SKIP, Daemon, Failed, Group, lost_by_second, review, run

# Of the GPU, each of three: 180 % in all, or as much as the host memory that the daemon lends allows.
SHARE = 0.6
# Of a program that preallocates more than it uses: what moves each time, of what it uses.
MOVED_LIMIT = 1.1
# Three programs from a cold start: of the GPU, each; what they get done together, of one alone; and the least that each
# gets done, of a third of that.
COLD_SHARE, COLD_SECONDS = 0.4, 45
COLD_LIMIT, COLD_EACH_LIMIT = 0.93, 0.8
# The bytes that contexts and the reserve take.
SPARED_BYTES = 5 << 30


def native_of(session, name, argv, **variables):
    native = run(session, f"native.{name}", argv, seconds=START_S, **variables)
    result = native.result()
    if result is None:
        raise Failed(f"native {name}: {native.why()}")
    session.natives[name] = result
    session.add(INFO, f"native {name}", f"{result['digest'][:16]}, {result['steps']} steps in "
                f"{result['steady_s']:.2f} s, {result['peak_bytes'] / 2**30:.1f} GiB")
    return result


def same(session, label, name, member):
    result = member.result()
    if result is None:
        return session.check(False, label, member.why())
    native = session.natives[name]
    return session.check(result["digest"] == native["digest"], label,
                         "same result" if result["digest"] == native["digest"] else "ANOTHER RESULT than native")


def moved(status):
    """The memory figures of the daemon's status, summed over the seats of the first GPU, in GiB."""
    found = {}
    for seat in status["gpus"][0]["seats"]:
        for key, value in (seat.get("memory") or {}).items():
            if isinstance(value, int):
                found[key] = found.get(key, 0) + value
    return ", ".join(f"{key.removesuffix('_bytes')} {value / 2**30:.1f}" for key, value in found.items()
                     if key.endswith("_bytes"))


class HostMemory:
    """The most of the daemon's host memory that was taken and in use, of the statuses that it looked at. Programs
    may say that they use more than is lent: each says it at another moment, while chunks change hands."""

    def __init__(self):
        self.budget = self.taken = self.used = 0

    def look(self, status):
        host = status["host_memory"]
        self.budget = host["budget_bytes"]
        self.taken = max(self.taken, host["lent_bytes"] + host["ready_bytes"])
        seats = [seat.get("memory") or {} for gpu in status["gpus"] for seat in gpu["seats"]]
        self.used = max(self.used, sum(memory.get("host_used_bytes", 0) for memory in seats))

    def check(self, session, title):
        session.check(0 < self.taken <= self.budget, f"{title}: host memory within its budget",
                      f"at most {self.taken / 2**30:.1f} GiB lent or ready; budget {self.budget / 2**30:.1f} "
                      f"GiB. Programs said that {self.used / 2**30:.1f} had evicted data or clean copies")


def restored_after(events, begin):
    """How long each grant since `begin` (ns) waited for its memory, in seconds."""
    waits, evicted, granted = [], set(), {}
    for event in events:
        kind, who = event["event"], event.get("tenant")
        if kind == "evicted":
            evicted.add(who)
        elif kind == "grant" and who in evicted and event["time_ns"] >= begin:
            granted[who] = event["time_ns"]
        elif kind == "complete":
            evicted.discard(who)
            if who in granted:
                waits.append((event["time_ns"] - granted.pop(who)) / 1e9)
        elif kind in ("drained", "gone"):
            granted.pop(who, None)
    return waits


def at_once(session, title, members, limit, seen=None, **settings):
    """Starts `members` (label, name in natives, argv, variables), lets them begin together, and compares. Returns the
    time by which all had ended, from the beginning. `seen` gets how often memory was evicted since then, and how
    many bytes of it moved to host memory."""
    with Daemon(session, title, **settings) as daemon, Group(session, title, daemon) as group:
        for label, _, argv, variables in members:
            group.add(label, argv, **variables)
        try:
            group.wait_ready(limit)
        finally:
            session.keep(title + ".ready-status.json", daemon.ask("GET", "/v1/status"))
        before = daemon.status()["gpus"][0]["memory"]["moved_out_bytes"]
        begin = group.go()
        status, host = None, HostMemory()
        for member in group.members:
            while member.process.poll() is None and session.left() > 5:
                try:
                    member.process.wait(0.25)
                except subprocess.TimeoutExpired:
                    now = daemon.status()
                    host.look(now)
                    # The status that is shown is of a moment at which all programs ran.
                    status = now if all(m.process.poll() is None for m in group.members) else status
        group.wait(limit)
        events = daemon.trace()
        totals = daemon.status()["gpus"][0]["memory"]
        handed_over = totals["handed_over_bytes"]
        if seen is not None:
            seen["evictions"] = sum(event["event"] == "evicted" and event["time_ns"] >= begin for event in events)
            seen["moved_out_bytes"] = totals["moved_out_bytes"] - before
        good = [same(session, f"{title}: {label}", name, member)
                for (label, name, _, _), member in zip(members, group.members)]
        wrong = review(events, among={member.pid for member in group.members})["wrong"]
        session.check(not wrong, f"{title}: leases were exclusive", wrong[0] if wrong else "")
        session.add(INFO, f"{title}: memory, GiB", moved(status) if status else "not seen")
        host.check(session, title)
        waits = restored_after(events, begin)
        said = "nothing was moved"
        if waits:
            said = f"{len(waits)} switches, median {statistics.median(waits):.2f} s, most {max(waits):.2f} s"
        session.add(INFO, f"{title}: from grant to complete", said)
        if settings.get("hand_over"):
            session.check(handed_over > 0, f"{title}: memory was handed over", f"{handed_over / 2**30:.1f} GiB")
        if not all(good):
            return None
        if seen is not None:
            seen["begin_ns"], seen["results"] = begin, [member.result() for member in group.members]
        return (max(member.result()["done_ns"] for member in group.members) - begin) / 1e9


def large(session, *more):
    return session.workload("large") + list(more)


def share_of_each(session, programs, most=SHARE):
    """Of the GPU, so that GPU and host memory hold so many programs."""
    with Daemon(session, "budget") as daemon:
        status = daemon.status()
    gpu = status["gpus"][0]["memory_total_bytes"]
    host = status["host_memory"]["budget_bytes"]
    return min(most, math.floor(100 * (gpu + host - SPARED_BYTES) / programs / gpu) / 100)


def three_programs(session):
    each = share_of_each(session, 3)
    share = ["--share", f"{each:.2f}"]
    # Long enough for each to have the GPU a few times: a switch moves tens of gigabytes.
    native_of(session, "large", large(session, *share, "--seconds", str(session.options.memory_seconds)))
    argv = large(session, *share, "--steps", str(session.natives["large"]["steps"]))
    title = f"three of {each:.0%}, quantum {session.options.memory_quantum}"
    members = [(f"large{i}", "large", argv, {}) for i in range(3)]
    seen = {}
    took = at_once(session, title.replace(" ", "-").replace("%", "").replace(",", ""), members, 250, seen, mode="auto",
                   quantum=session.options.memory_quantum)
    if not took:
        return
    # Alone before and after: a GPU at its power limit is slower by a percent or two when it has become warm. The digest
    # takes a second of the GPU's time, alone as together.
    cold = session.natives["large"]
    warm = run(session, "native.large-warm", argv, seconds=START_S).result()
    if warm is None:
        raise Failed("native large failed the second time")
    each_s = [(one["done_ns"] - one["start_ns"]) / 1e9 for one in (cold, warm)]
    alone = 3 * statistics.mean(each_s)
    session.add(INFO, f"{title}: throughput kept",
                f"{100 * alone / took:.1f} % ({took:.1f} s, one after the other {alone:.1f} s: alone before "
                f"{each_s[0]:.1f} s, after {each_s[1]:.1f} s)")
    step_s = statistics.mean(one["steady_s"] / one["steps"] for one in (cold, warm))
    lost = lost_by_second(seen["results"], step_s, seen["begin_ns"])
    session.add(INFO, f"{title}: lost in each second", " ".join(f"{one:.2f}" for one in lost))


def watch_host(daemon, group, seconds):
    """A status' "host_memory" four times a second, until all members have ended."""
    begin, looks = time.monotonic(), []
    while time.monotonic() < begin + seconds and any(member.process.poll() is None for member in group.members):
        looks.append({"after_s": time.monotonic() - begin, **daemon.status()["host_memory"]})
        time.sleep(0.25)
    return looks


def made_by_second(looks):
    """(second, GiB made until then): each second in which some was made."""
    points = []
    for look in looks:
        made = look["made_bytes"] / 2**30
        if not points or (look["after_s"] >= points[-1][0] + 1 and made > points[-1][1]):
            points.append((look["after_s"], made))
    return points


def host_line(host):
    """Where host memory came from, and how long seats waited for it, in a status' "host_memory"."""
    gib = {key.removesuffix("_bytes"): value / 2**30 for key, value in host.items() if key.endswith("_bytes")}
    return (f"{host['kind']}, budget {gib['budget']:.1f} GiB, {gib['made']:.1f} GiB made at "
            f"{host['made_bytes'] / max(host['made_ns'], 1):.1f} GB/s a thread; {host['loans']} loans, "
            f"{host['waits']} loans waited, {host['waited_ns'] / 1e9:.1f} s of all together"
            f"{'; short' if host['is_short'] else ''} {host['why_no_tmpfs']}").rstrip()


def cold_start(session):
    """Three programs that begin to fill their memory at once, with a daemon that has just been started: no host memory
    is ready, and none registered. Measured is their work in the seconds from then on."""
    seconds = COLD_SECONDS
    argv = session.workload("from_go") + ["--share", f"{min(COLD_SHARE, share_of_each(session, 3)):.2f}"]
    # Alone a third of the time says as much: it does the same all the time once it has filled its memory.
    alone = run(session, "native.from-go", argv + ["--seconds", str(seconds / 3)], seconds=START_S).result()
    if alone is None:
        raise Failed("the native program failed")
    each_s = (seconds / 3 - alone["filled_s"]) / alone["steps"]
    whole = (seconds - alone["filled_s"]) / each_s
    title = f"three of {COLD_SHARE:.0%} from a cold start, {seconds} s"
    with Daemon(session, "cold", mode="auto") as daemon, Group(session, "cold", daemon) as group:
        for i in range(3):
            group.add(f"from-go{i}", argv + ["--seconds", str(seconds)])
        group.wait_ready()
        begin = group.go()
        looks = watch_host(daemon, group, seconds + 90)
        group.wait(1)
        host = daemon.status()["host_memory"]
        session.keep("cold.host-memory.jsonl", "".join(json.dumps(look) + "\n" for look in looks))
        events = daemon.trace()
        results = [member.result() for member in group.members]
        for member, result in zip(group.members, results):
            if result is None:
                raise Failed(f"{member.name}: {member.why()}")
    waits = restored_after(events, begin)
    session.add(INFO, f"{title}: host memory", host_line(host))
    session.add(INFO, f"{title}: host memory, GiB made by second",
                ", ".join(f"{at:.0f}: {made:.0f}" for at, made in made_by_second(looks)))
    session.add(INFO, f"{title}: filled after", ", ".join(f"{result['filled_s']:.1f}" for result in results) +
                f" s; alone {alone['filled_s']:.1f} s")
    if waits:
        session.add(INFO, f"{title}: from grant to complete", f"{len(waits)} switches, median "
                    f"{statistics.median(waits):.2f} s, most {max(waits):.2f} s")
    done = sum(result["steps"] for result in results)
    session.check(done >= COLD_LIMIT * whole, f"{title}: together {COLD_LIMIT:.0%} of one alone",
                  f"{100 * done / whole:.1f} % ({done} steps, alone {whole:.0f})")
    parts = [3 * result["steps"] / whole for result in results]
    session.check(min(parts) >= COLD_EACH_LIMIT, f"{title}: each {COLD_EACH_LIMIT:.0%} of a third of that",
                  ", ".join(f"{100 * part:.1f} %" for part in parts))


def handed_over(session):
    """Two programs that change hands, with what one evicts freed and made anew, and handed over, in turn."""
    if "large-handed" not in session.natives:
        native_of(session, "large-handed", large(session, "--share", "0.6", "--seconds", "5"))
    argv = large(session, "--share", "0.6", "--steps", str(session.natives["large-handed"]["steps"]))
    members = [(f"large{i}", "large-handed", argv, {}) for i in range(2)]
    for turn in range(2):
        for hand_over in (False, True):
            title = f"two-of-60-{'handed-over' if hand_over else 'freed'}-{turn + 1}"
            took = at_once(session, title, members, 120, mode="auto", quantum="1s", hand_over=hand_over)
            if took:
                session.add(INFO, f"{title}: until both have ended", f"{took:.2f} s")


def children(pid, name):
    """The processes called `name` that `pid` started, in /proc."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as file:
                before, after = file.read().rsplit(")", 1)
        except OSError:
            continue
        if int(after.split()[1]) == pid and before.split("(", 1)[1] == name[:15]:
            found.append(int(entry))
    return found


def by_mover(session):
    """Two programs that change hands. Then the same while the process that moves their memory is killed again and
    again."""
    if "large-moved" not in session.natives:
        native_of(session, "large-moved", large(session, "--share", "0.6", "--seconds", "5"))
    alone = session.natives["large-moved"]["steady_s"]
    argv = large(session, "--share", "0.6", "--steps", str(session.natives["large-moved"]["steps"]))
    members = [(f"large{i}", "large-moved", argv, {}) for i in range(2)]
    for turn in range(2):
        title = f"two-of-60-{turn + 1}"
        took = at_once(session, title, members, 120, mode="auto", quantum="1s")
        if took:
            session.add(INFO, f"{title}: until both have ended", f"{took:.2f} s; alone twice {2 * alone:.2f} s")
    mover_killed(session, argv)


def mover_killed(session, argv):
    title = "mover killed in a switch"
    with Daemon(session, "mover-killed", mode="auto", quantum="500ms") as daemon, \
            Group(session, "mover-killed", daemon) as group:
        for i in range(2):
            group.add(f"large{i}", argv)
        group.wait_ready()
        group.go()
        kills = 0
        pids = {member.pid for member in group.members}
        while all(member.process.poll() is None for member in group.members) and kills < 5 and session.left() > 20:
            time.sleep(0.7)
            try:
                switch_under_way(daemon, pids, 5)
            except Failed:
                break
            for pid in children(daemon.process.pid, "gpumux-mover"):
                os.kill(pid, signal.SIGKILL)
                kills += 1
        group.wait(90)
        for member in group.members:
            same(session, f"{title}: {member.name.split('-')[-1]}", "large-moved", member)
        session.check(kills > 0, f"{title}: it was", f"{kills} times")


def switch_under_way(daemon, pids, seconds):
    """(who gives memory up, who gets it) of `pids`, while memory moves; none moved in time: Failed.

    A seat gives memory up while more of it is on the GPU than it has room for. A seat gets memory while it lacks some
    and has room for more. Whether one of them holds the GPU does not matter: memory may come before the grant.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        seats = [(seat["pid"], seat["memory"]) for seat in daemon.status()["gpus"][0]["seats"] if seat["pid"] in pids]
        gives = [pid for pid, memory in seats if memory["resident_bytes"] > memory["room_bytes"]]
        gets = [pid for pid, memory in seats
                if memory["evicted_bytes"] > 0 and memory["room_bytes"] > memory["resident_bytes"]]
        if gives and gets:
            return gives[0], gets[0]
        time.sleep(0.01)
    raise Failed(f"no memory moved for {seconds} s")


def killed(session):
    """Of four programs that hand memory over to each other one is killed that gives, and one that gets: the other two
    go on with what came from them."""
    share = ["--share", f"{share_of_each(session, 4, 0.45):.2f}"]
    native_of(session, "large-killed", large(session, *share, "--seconds", "3"))
    argv = large(session, *share, "--steps", str(session.natives["large-killed"]["steps"]))
    title = "killed in a switch"
    with Daemon(session, "killed", mode="auto", quantum="500ms", hand_over=True) as daemon, \
            Group(session, "killed", daemon) as group:
        for i in range(4):
            group.add(f"large{i}", argv)
        group.wait_ready()
        group.go()
        alive = {member.pid: member for member in group.members}
        for whom in range(2):
            time.sleep(1)
            pid = switch_under_way(daemon, set(alive), 10)[whom]
            alive.pop(pid).end()
        group.wait(60)
        for pid, member in alive.items():
            same(session, f"{title}: {member.name.split('-')[-1]}", "large-killed", member)
        gone = daemon.status()["gpus"][0]["memory"]
        session.check(gone["handed_over_bytes"] > 0, f"{title}: memory was handed over",
                      f"{gone['handed_over_bytes'] / 2**30:.1f} GiB")
        wrong = review(daemon.trace(), among=set(alive))["wrong"]
        session.check(not wrong, f"{title}: leases were exclusive", wrong[0] if wrong else "")


def allocators(session):
    """PyTorch's ways to allocate, each beside a program that needs the rest of the GPU and more."""
    if "large" not in session.natives:
        native_of(session, "large", large(session, "--share", "0.3", "--seconds", "10"))
    crowd = large(session, "--share", "0.75", "--steps", str(max(10, session.natives["large"]["steps"] // 2)))
    native = run(session, "native.crowd", crowd, seconds=START_S).result()
    if native is None:
        raise Failed("the native crowd failed")
    session.natives["crowd"] = native
    members = [("crowd", "crowd", crowd, {})]
    for label, setting in (("expandable", "expandable_segments:True"), ("async", "backend:cudaMallocAsync")):
        name = f"large-{label}"
        variables = {"PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting}
        argv = large(session, "--share", "0.2", "--seconds", "3")
        native_of(session, name, argv, **variables)
        argv = large(session, "--share", "0.2", "--steps", str(session.natives[name]["steps"]))
        members.append((label, name, argv, variables))
    at_once(session, "allocators", members, 150, mode="auto", quantum="500ms")


def jax_variables(session, preallocated):
    return {"XLA_PYTHON_CLIENT_PREALLOCATE": "true", "XLA_PYTHON_CLIENT_MEM_FRACTION": str(preallocated),
            "GPUMUX_TEST_XLA_FLAGS": session.facts.get("xla_flags", XLA_FLAGS[0])}


def jax_preallocated(session):
    """Two programs that preallocate 75 % and use 2 GB: no more than that moves each time that one is evicted."""
    variables = jax_variables(session, 0.75)
    used = session.workload("jax_mlp") + ["--state-gib", "1.8"]
    native = native_of(session, "jax", used + ["--seconds", "3"], **variables)
    argv = used + ["--steps", str(native["steps"])]
    seen = {}
    at_once(session, "two-jax-of-75", [(f"jax{i}", "jax", argv, variables) for i in range(2)], 150, seen, mode="auto",
            quantum="500ms")
    in_use = native["peak_bytes"] * seen["evictions"]
    moved_out = seen["moved_out_bytes"]
    session.check(0 < moved_out <= MOVED_LIMIT * in_use, "two JAX: moved at most 1.1 times what is in use",
                  f"{moved_out / 2**30:.2f} GiB in {seen['evictions']} evictions of "
                  f"{native['peak_bytes'] / 2**30:.2f} GiB in use: {moved_out / max(in_use, 1):.3f}")


def five_trainings(session):
    """Three PyTorch trainings of 40 % and two JAX programs that preallocate 30 %: 181 % of an H100 together."""
    variables = jax_variables(session, 0.3)
    members = []
    for name, argv, own, count in (("torch", session.workload("transformer") + ["--ballast", "0.39"], {}, 3),
                                   ("jax-of-30", session.workload("jax_mlp"), variables, 2)):
        native = native_of(session, name, argv + ["--seconds", "3"], **own)
        members += [(f"{name}{i}", name, argv + ["--steps", str(native["steps"])], own) for i in range(count)]
    at_once(session, "five", members, 200, mode="auto", quantum="2s")


def kinds(session):
    """CUDA graphs, torch.compile, and a tensor that two processes share by CUDA IPC: 140 % of the GPU together."""
    members = []
    for name, share in (("graphs", 0.5), ("compiled", 0.45), ("shared", 0.45)):
        laden = session.workload(name) + ["--ballast", str(share)]
        native_of(session, name, laden + ["--seconds", "3"])
        members.append((name, name, laden + ["--steps", str(session.natives[name]["steps"])], {}))
    at_once(session, "kinds", members, 150, mode="auto", quantum="500ms")


def told(session):
    """Memory that cuMemGetInfo calls free can be allocated, less one chunk: alone, without paging, beside memory that
    makes way, and beside a program of the same run whose quota both share."""
    argv = session.workload("told")
    native = run(session, "native.told", argv, seconds=60).result()
    if native is None:
        raise Failed("the native program failed")
    quota = 20 << 30
    run_of_both = ["env", "GPUMUX_RUN_ID=told", f"GPUMUX_MEM_LIMIT={quota}"]
    cases = {
        "alone": (["env"], None),
        "without paging": (["env", "GPUMUX_PAGING=off"], None),
        "beside 40 GiB that make way": (["env"], (["env"], 40 << 10)),
        "beside 12 of a quota of 20 GiB": (run_of_both, (run_of_both, 12 << 10)),
    }
    for title, (prefix, other) in cases.items():
        with Daemon(session, "told-" + title.split()[-1], mode="auto") as daemon, \
                Group(session, "told", daemon) as group:
            if other:
                group.add("keeps", other[0] + argv + ["--keep-mib", str(other[1])])
            fills = group.add("fills", prefix + argv)
            group.wait_ready()
            group.go()
            group.wait(90)
            result = fills.result()
            if result is None:
                session.check(False, f"memory that is called free, {title}", fills.why())
                continue
        text = ", ".join(f"{name} {result[name] / 2**30:.3f} (native {native[name] / 2**30:.3f})" for name in native)
        session.check(result["block"] > 0 and result["pieces"] >= result["told_then"] - (2 << 20) and
                      result["told_then"] <= result["told"],
                      f"memory that is called free, {title}, can be had", text + " GiB")


PARTS = {"told": told, "three": three_programs, "jax": jax_preallocated, "allocators": allocators, "kinds": kinds,
         "killed": killed, "handed": handed_over, "mover": by_mover, "five": five_trainings, "cold": cold_start}


def run_memory(session):
    for name, part in PARTS.items():
        if not session.wants(name):
            continue
        if session.left() < 60:
            session.add(SKIP, name, "out of time")
            continue
        try:
            part(session)
        except Failed as error:
            session.give_up(name, error)
