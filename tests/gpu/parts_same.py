# SPDX-License-Identifier: Apache-2.0
"""Real programs, unmodified: the same results natively, alone under gpumux and three at once, and every door leads
through us."""
import glob
import json
import os
import shutil

import doors
from support import (FAIL, HERE, INFO, SKIP, Daemon, Failed, Group, OutOfTime, Process, grants_between,
                     kept_from_others, least_turns, review, run)

PYTHON_WORKLOADS = {"resnet": "torchvision", "transformer": "torch", "compiled": "torch", "graphs": "torch",
                    "jax_mlp": "jax",
                    "cupy_fft_sort": "cupy"}
GROUPS = (("resnet", "transformer", "jax_mlp"), ("compiled", "graphs", "cupy_fft_sort"),
          ("linked", "runtime_static", "driver_api"),
          ("linked_per_thread", "runtime_per_thread", "runtime_shared"))
XLA_FLAGS = ("--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0", "--xla_gpu_deterministic_ops=true",
             "--xla_gpu_exclude_nondeterministic_ops=true", "")
START_S = 150  # a framework's first import on a cold disk, and its compiler


def environment_of(session, name):
    return {"GPUMUX_TEST_XLA_FLAGS": session.facts.get("xla_flags", "")} if name == "jax_mlp" else {}


def arguments_of(session, name, steps=None):
    """A workload's command. Fixed work for the programs; for the others as many steps as the first native run took."""
    rounds = "150" if session.quick else "400"
    ptx = os.path.join(HERE, "programs", "kernels.ptx")
    if name == "driver_api":
        return [session.program("gpumux_gpu_worker"), "--steps", rounds, "--launches", "8", "--spin-us", "2000"]
    if name.startswith("linked"):
        return [os.path.join(session.built, name), ptx, rounds]
    if name.startswith("runtime"):
        return [os.path.join(session.built, name), rounds]
    return session.workload(name) + (["--steps", str(steps)] if steps else ["--seconds", str(session.seconds)])


def test_doors(session):
    """Rows 3 and 4: the table against this driver, and the preloaded library against both."""
    native = run(session, "doors.native", [session.python, os.path.join(HERE, "doors.py")], seconds=60)
    with Daemon(session, "doors") as daemon:
        hooked = run(session, "doors.preloaded", [session.python, os.path.join(HERE, "doors.py")], seconds=60,
                     LD_PRELOAD=session.library, GPUMUX_RUNTIME_DIR=daemon.dir)
    answers = []
    for process in (native, hooked):
        if process.code != 0:
            raise Failed(f"{process.name}: {process.why()}")
        with open(process.out) as file:
            answers.append(json.load(file))
    if answers[0]["preloaded"] or not answers[1]["preloaded"]:
        raise Failed("doors.py was not preloaded as it should have been")
    found = doors.compare(*answers)
    session.keep("doors.differences.json", json.dumps(found, indent=1))
    first = lambda listed: f": {listed[0]}" if listed else ""  # noqa: E731
    session.check(not found["table"], "doors: the table agrees with the driver",
                  f"{len(found['table'])} of {found['questions']} answers differ{first(found['table'])}")
    session.check(not found["doors"], "doors: dlsym gives ours for hooked entries, only",
                  f"{len(found['doors'])} of {found['symbols']} differ ({found['hooked']} hooked)"
                  f"{first(found['doors'])}")
    session.check(not found["lookups"], "doors: cuGetProcAddress gives ours, same result",
                  f"{len(found['lookups'])} of {found['questions']} differ{first(found['lookups'])}")
    assumed = run(session, "assumptions", [session.program("gpumux_gpu_assumptions")], seconds=60).result()
    for name, holds in assumed.items():
        session.check(holds, f"driver: {name}")
    if found["missing"]:
        session.add(INFO, "doors: entries that this driver lacks", f"{len(found['missing'])}{first(found['missing'])}")


def test_addresses(session):
    """Attributes of each kind of memory, and copies and fills past its end."""
    native = run(session, "addresses.native", session.workload("addresses"), seconds=60)
    with Daemon(session, "addresses") as daemon:
        ours = run(session, "addresses.preloaded", session.workload("addresses"), daemon, 60)
    answers = []
    for process in (native, ours):
        if process.code != 0 or process.result() is None:
            raise Failed(f"{process.name}: {process.why()}")
        answers.append(process.result())
    asked = [(about, what) for about, told in answers[0].items() for what in told]
    differ = {f"{about}: {what}": [one[about].get(what) for one in answers] for about, what in asked
              if answers[0][about][what] != answers[1][about].get(what)}
    session.keep("addresses.differences.json", json.dumps(differ, indent=1))
    first = f": {next(iter(differ.items()))}" if differ else ""
    session.check(not differ, "addresses: attributes and refusals as natively",
                  f"{len(differ)} of {len(asked)} answers differ{first}")


def find_toolkit():
    return next((path for path in (os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda")
                 if path and os.path.exists(os.path.join(path, "include", "cuda.h"))), None)


def find_nvcc():
    cuda = find_toolkit()
    return shutil.which("nvcc") or (cuda and shutil.which(os.path.join(cuda, "bin", "nvcc")))


def build_programs(session):
    """The programs that have to be compiled with the vendor's headers and runtime."""
    session.available = {"driver_api"} if os.path.exists(session.program("gpumux_gpu_worker")) else set()
    cuda, nvcc = find_toolkit(), find_nvcc()
    source = os.path.join(HERE, "programs")
    drivers = [os.path.dirname(path) for pattern in ("/usr/local/nvidia/lib64/libcuda.so.1",
                                                     "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
                                                     "/usr/lib64/libcuda.so.1", "/usr/local/cuda*/compat/libcuda.so.1")
               for path in glob.glob(pattern)]
    folders = [part for part in os.environ.get("LD_LIBRARY_PATH", "").split(":")
               if part and os.path.exists(os.path.join(part, "libcuda.so.1"))] + drivers
    commands = {}
    compiler = shutil.which("g++") or shutil.which("c++")
    if cuda and compiler and folders:
        base = [compiler, "-std=c++17", "-O2", "-pthread", f"-I{cuda}/include", os.path.join(source, "linked.cc")]
        link = [f"-L{folders[0]}", "-l:libcuda.so.1", "-Wl,--allow-shlib-undefined"]
        commands["linked"] = base + ["-o", os.path.join(session.built, "linked")] + link
        commands["linked_per_thread"] = base + ["-DCUDA_API_PER_THREAD_DEFAULT_STREAM", "-o",
                                                os.path.join(session.built, "linked_per_thread")] + link
    if nvcc:
        base = [nvcc, "-std=c++17", "-O2", "-gencode=arch=compute_75,code=[sm_90,compute_75]",
                os.path.join(source, "runtime.cu")]
        commands["runtime_static"] = base + ["-cudart", "static", "-o", os.path.join(session.built, "runtime_static")]
        # By run path: in LD_LIBRARY_PATH the toolkit's libraries would replace those that the frameworks bring.
        library = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(nvcc))), "lib64")
        commands["runtime_shared"] = base + ["-cudart", "shared", "-Xlinker", "-rpath", "-Xlinker", library, "-o",
                                             os.path.join(session.built, "runtime_shared")]
        commands["runtime_per_thread"] = base + ["-cudart", "static", "--default-stream", "per-thread", "-o",
                                                 os.path.join(session.built, "runtime_per_thread")]
    if not session.compiles:
        commands = {}
    started = {name: Process(session, f"build.{name}", command) for name, command in commands.items()}
    for name in ("linked", "linked_per_thread", "runtime_static", "runtime_shared", "runtime_per_thread"):
        if not session.compiles:
            break
        if name not in commands:
            session.add(SKIP, f"build {name}", "no cuda.h, compiler or libcuda.so.1" if "linked" in name else "no nvcc")
            continue
        built = started[name].wait(120)
        if session.check(built.code == 0, f"build {name}", "" if built.code == 0 else built.why()):
            session.available.add(name)
    imported = {module: run(session, f"import.{module}", [session.python, "-c", f"import {module}"],
                            seconds=START_S).code
                for module in sorted(set(PYTHON_WORKLOADS.values()))}
    for name, module in PYTHON_WORKLOADS.items():
        if imported[module] == 0:
            session.available.add(name)
        else:
            session.add(SKIP, f"{name}", f"{module} cannot be imported")


def run_natives(session):
    """Digests and times to compare with. The first runs fill disk caches; what is compared is each run's own steady
    time."""
    for name in sorted(session.available):
        if name == "jax_mlp":
            for flags in XLA_FLAGS:
                session.facts["xla_flags"] = flags
                process = run(session, f"native.{name}", arguments_of(session, name), seconds=START_S,
                              **environment_of(session, name))
                if process.result():
                    break
        else:
            process = run(session, f"native.{name}", arguments_of(session, name), seconds=START_S)
        result = process.result()
        if result is None:
            session.add(FAIL, f"native {name}", process.why())
            continue
        session.natives[name] = result
        steady = f", {result['steps']} steps in {result['steady_s']:.2f} s" if "steady_s" in result else ""
        session.add(INFO, f"native {name}", f"{result['digest'][:16]}{steady}")


def is_stable(session, name):
    """Whether two native runs agree: asked only when one under gpumux does not."""
    try:
        again = run(session, f"native-again.{name}", arguments_of(session, name, session.natives[name].get("steps")),
                    seconds=START_S, **environment_of(session, name))
    except OutOfTime:
        return True  # it did not show that it differs from itself
    return again.result() is None or again.result()["digest"] == session.natives[name]["digest"]


def check_digest(session, label, name, process, figure=""):
    result = process.result()
    if result is None:
        return session.check(False, label, process.why())
    if result["digest"] == session.natives[name]["digest"]:
        return session.check(True, label, f"same result{figure}")
    if not is_stable(session, name):
        session.add(SKIP, label, "natively not the same from run to run")
        return False
    return session.check(False, label, "ANOTHER RESULT than native")


def run_alone(session):
    with Daemon(session, "alone", mode="serial", quantum="50ms") as daemon:
        for name in session.natives:
            native = session.natives[name]
            process = run(session, f"alone.{name}", arguments_of(session, name, native.get("steps")), daemon, START_S,
                          **environment_of(session, name))
            result = process.result()
            figure = ""
            if result:
                session.alone[name] = result
                if native.get("steady_s") and name != "driver_api":
                    figure = f", {100 * native['steady_s'] / result['steady_s']:.1f} % of native's speed"
            if result and grants_between(daemon.trace(), 0, process.pid, 0, 1 << 62) == []:
                session.add(FAIL, f"alone {name}: went through the gate", "no lease was ever granted to it")
            check_digest(session, f"alone {name}", name, process, figure)


def run_together(session, quantum="50ms", groups=GROUPS):
    for number, names in enumerate(groups, 1):
        names = [name for name in names if name in session.natives]
        title = f"together-{quantum}-{number}"
        if len(names) < 2:
            session.add(SKIP, title, f"only {names} can run here")
            continue
        if session.left() < 60:
            session.add(SKIP, title, "out of time")
            continue
        try:
            run_group(session, title, names, quantum)
        except Failed as error:
            session.give_up(title, error)


def run_group(session, title, names, quantum):
    with Daemon(session, title, mode="serial", quantum=quantum) as daemon, Group(session, title, daemon) as group:
        for name in names:
            # The compiled programs have no files to meet at: they start with the others' steady steps.
            if name in PYTHON_WORKLOADS or name == "driver_api":
                group.add(name, arguments_of(session, name, session.natives[name].get("steps")),
                          **environment_of(session, name))
        group.wait_ready()
        begin = group.go()
        for name in names:
            if name not in PYTHON_WORKLOADS and name != "driver_api":
                group.add(name, arguments_of(session, name), waits=False)
        group.wait(START_S)
        events, status = daemon.trace(), daemon.status()
        seen = review(events)
        for member in group.members:
            name = member.name.split("-")[-1]
            check_digest(session, f"{title} {name}", name, member)
        gpu = status["gpus"][0]
        session.check(not seen["wrong"], f"{title}: leases were exclusive", seen["wrong"][0] if seen["wrong"] else
                      f"{gpu.get('switches', 0)} switches, held {gpu.get('held_ns', 0) / 1e9:.2f} s")
        pids = {member.pid for member in group.members}
        kept = kept_from_others(events, 0, pids)
        turns = {member: len(grants_between(events, 0, member.pid, 0, 1 << 62)) for member in group.members}
        session.check(all(count >= least_turns(kept[member.pid], gpu["quantum_ns"]) for member, count in turns.items()),
                      f"{title}: none kept the GPU to itself", ", ".join(
                          f"{member.name.split('-')[-1]} {count} grants, kept it from others for "
                          f"{kept[member.pid] / 1e9:.2f} s, waited {seen['waited_ns'][member.pid] / 1e9:.2f} s"
                          for member, count in turns.items()))
