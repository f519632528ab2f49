# SPDX-License-Identifier: Apache-2.0
"""Two GPUs: each is leased on its own, and programs with collectives on the same two never wait for each other for
ever."""
from parts_same import START_S
from support import INFO, SKIP, Daemon, Failed, Group, grants_between, review, run


def seeds_scenario(session, quantum):
    """A and C on GPU 0, B on GPU 1."""
    title = f"A, C on GPU 0, B on GPU 1, {quantum}"
    short = "scenario-" + quantum
    with Daemon(session, short, mode="serial", quantum=quantum) as daemon, Group(session, short, daemon) as group:
        a = group.add("a", session.workload("matmul") + ["--seconds", "16", "--device", "0"])
        b = group.add("b", session.workload("matmul") + ["--seconds", "20", "--device", "1"])
        group.wait_ready()
        # The last one is started only when A holds the GPU, so with an unlimited quantum A comes first. A runs for
        # longer than C needs to import PyTorch, so that C does ask while A holds.
        group.go()
        if daemon.holder(0, {a.pid}, 10) is None:
            raise Failed("A never held GPU 0")
        c = group.add("c", session.workload("matmul") + ["--seconds", "4", "--device", "0"], waits=False)
        group.wait(90)
        events = daemon.trace()
        results = [member.result() for member in (a, b, c)]
        for name, member, result in zip("ABC", (a, b, c), results):
            if result is None:
                raise Failed(f"{name}: {member.why()}")
        for gpu in (0, 1):
            wrong = review(events, gpu)["wrong"]
            session.check(not wrong, f"{title}: leases of GPU {gpu} were exclusive", wrong[0] if wrong else "")
        turns_a = grants_between(events, 0, a.pid, results[0]["start_ns"], results[0]["end_ns"])
        turns_c = grants_between(events, 0, c.pid, 0, 1 << 62)
        asked_c = min((event["time_ns"] for event in events
                       if event["event"] == "request" and event.get("pid") == c.pid), default=1 << 62)
        session.check(asked_c < results[0]["end_ns"], f"{title}: C asks while A runs",
                      f"{(results[0]['end_ns'] - asked_c) / 1e9:.1f} s before A's end")
        pids_on_1 = {event.get("pid") for event in events if event["event"] == "grant" and event.get("gpu") == 1}
        session.check(pids_on_1 == {b.pid}, f"{title}: only B on GPU 1", f"{len(pids_on_1)} programs were granted it")
        if quantum == "unlimited":
            first = min(turns_c) if turns_c else None
            end = results[0]["end_ns"]
            session.check(first is not None and first >= end - 5_000_000, f"{title}: C waits until A is done",
                          f"C's first grant {(first - end) / 1e6:+.1f} ms from A's end" if first
                          else "C was never granted")
        else:
            both = [moment for moment in turns_c if results[0]["start_ns"] < moment < results[0]["end_ns"]]
            session.check(len(both) >= 3 and len(turns_a) >= 3, f"{title}: A and C take turns",
                          f"A {len(turns_a)}, C {len(both)} grants while A ran")
        before = sum(1 for event in events if event["event"] == "revoke" and event.get("gpu") == 1)
        session.check(before == 0, f"{title}: B runs meanwhile", f"{results[1]['products']} products, never revoked"
                      if not before
                      else f"revoked {before} times")


# Of each GPU, of each of two programs: together more than there is.
BALLAST = ["--ballast", "0.6"]
NAMES = ("scenario", "ddp", "peers", "ddp_laden", "peers_laden", "nogang")


def native_of(session, name, argv):
    native = run(session, f"native.{name}", argv, seconds=START_S)
    result = native.result()
    if result is None:
        raise Failed(f"native {name}: {native.why()}")
    session.natives[name] = result
    session.add(INFO, f"native {name}", f"{result['digest'][:16]}, {result['steady_s']:.2f} s")
    return result


def twice_at_once(session, name, argv, quantum, limit, pages=False, mps="off", **variables):
    title = f"{name} twice at once, {quantum}" + (", gangs off" if variables else "") + (", MPS" if mps == "on" else "")
    short = title.replace(",", "").replace(" ", "-").replace("%", "percent")
    with Daemon(session, short, mode="serial", quantum=quantum, mps=mps) as daemon, \
            Group(session, short, daemon) as group:
        for i in range(2):
            group.add(f"{name}{i}", argv, **variables)
        try:
            group.wait_ready(limit)
            begin = group.go()
            group.wait(limit)
        except Failed as error:
            if not variables:
                raise
            return session.add(INFO, title, f"not even ready in {limit} s: {error}")
        events = daemon.trace()
        stalls = sum(1 for event in events if event["event"] == "stall")
        opened = sum(1 for event in events if event["event"] == "grant" and event.get("detail") == "again")
        turns = [sum(1 for event in events if event["event"] == "grant" and event.get("gpu") == gpu
                     and event["time_ns"] > begin) for gpu in (0, 1)]
        figure = f"{turns} grants, {opened} of them to gangs that stayed half drained, {stalls} stalls"
        results = [member.result() for member in group.members]
        if all(results):
            span = (max(result["end_ns"] for result in results) - min(result["start_ns"] for result in results)) / 1e9
            figure += f"; {span:.2f} s, alone {session.natives[name]['steady_s']:.2f} s each"
        if variables:
            ends = ["to the end" if result else member.why() for member, result in zip(group.members, results)]
            return session.add(INFO, title, f"{ends[0]}; {ends[1]}; {figure}")
        for i, member in enumerate(group.members):
            check_digest_of(session, f"{title}: job {i}", name, member)
        session.check(min(turns) >= (2 if pages else 4), f"{title}: took turns", figure)
        if pages:
            session.check(stalls == 0, f"{title}: no revocation stalled", figure)
        for gpu in (0, 1):
            wrong = review(events, gpu)["wrong"]
            session.check(not wrong, f"{title}: leases of GPU {gpu} were exclusive", wrong[0] if wrong else "")
            if pages:
                evicted = sum(1 for event in events if event["event"] == "evicted" and event.get("gpu") == gpu
                              and event["time_ns"] > begin)
                session.check(evicted >= 1, f"{title}: memory of GPU {gpu} was evicted", f"{evicted} times")


def check_digest_of(session, label, name, member):
    result = member.result()
    if result is None:
        return session.check(False, label, member.why())
    return session.check(result["digest"] == session.natives[name]["digest"], label,
                         "same result" if result["digest"] == session.natives[name]["digest"]
                         else "ANOTHER RESULT than native")


def run_two_gpus(session):
    if session.gpus < 2:
        return session.add(SKIP, "two GPUs", "--gpus 2 was not given")
    if run(session, "import.two", [session.python, "-c", "import torch, sys; sys.exit(torch.cuda.device_count() < 2)"],
           seconds=START_S).code != 0:
        raise Failed("PyTorch does not see two GPUs")
    ddp = session.workload("ddp") + ["--steps", "100" if session.quick else "200"]
    def attempt(part, name, function):
        if not session.wants(part):
            return None
        if session.left() < 40:
            return session.add(SKIP, name, "out of time")
        try:
            return function()
        except Failed as error:
            return session.give_up(name, error)

    attempt("scenario", "A, C and B, 50 ms", lambda: seeds_scenario(session, "50ms"))
    attempt("scenario", "A, C and B, unlimited", lambda: seeds_scenario(session, "unlimited"))
    if attempt("ddp", "native ddp", lambda: native_of(session, "ddp", ddp)):
        attempt("ddp", "ddp twice, 50 ms", lambda: twice_at_once(session, "ddp", ddp, "50ms", 100))
        if not session.quick:
            attempt("ddp", "ddp twice, 10 ms", lambda: twice_at_once(session, "ddp", ddp, "10ms", 100))
    peers = session.workload("peers")
    measured = peers + ["--seconds", str(session.seconds)]
    if attempt("peers", "native peers", lambda: native_of(session, "peers", measured)):
        same = peers + ["--steps", str(session.natives["peers"]["steps"])]
        attempt("peers", "peers twice", lambda: twice_at_once(session, "peers", same, "20ms", 80))
    for name, argv in (("ddp", ddp), ("peers", peers + ["--steps", "2000"])):
        laden = f"{name} of 60 %"
        part = f"{name}_laden"
        if attempt(part, f"native {laden}", lambda n=laden, a=argv: native_of(session, n, a + BALLAST)):
            attempt(part, f"{laden} twice",
                    lambda n=laden, a=argv: twice_at_once(session, n, a + BALLAST, "500ms", 150, pages=True))
    if "ddp" in session.natives:
        attempt("nogang", "ddp twice, gangs off",
                lambda: twice_at_once(session, "ddp", ddp, "50ms", 30, GPUMUX_GANG="none"))
