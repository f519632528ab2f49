#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs that do unusual things with streams, threads, contexts and processes, while the GPU changes hands all
the time.

Method: each kind of program runs beside a plain worker under a quantum of a few milliseconds; results must be those
of a run without gpumux, nobody may be disturbed, and leases must be exclusive by the daemon's account and by the
programs' own.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework import paths  # noqa: E402
from framework.case import GpumuxTest, main  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402

CALLS = paths.ROOT / "tests" / "programs" / "driver_calls.py"
GRAPHS_MISSING = "the simulated driver has no graphs"


class Lifecycle(GpumuxTest):
    gpus = 2
    daemon_settings = {"mode": "serial", "quantum": "5ms"}

    def start_neighbour(self):
        neighbour = self.start("worker", name="neighbour", steps=100_000, step_us=500, sync_every=2, say_every=1)
        neighbour.wait_for_line("ready")
        return neighbour

    def expect_progress(self, neighbour):
        before = neighbour.count("step")
        wait_until(lambda: neighbour.count("step") > before + 3, HANG,
                   lambda: f"the neighbour gets on: {neighbour.tail(3)}")

    def beside_a_neighbour(self, switches=3, **options):
        """A worker with these options beside another; it must compute the same as natively, and the GPU must have
        changed hands meanwhile."""
        daemon = self.start_daemon()
        neighbour = self.start_neighbour()
        worker = self.start("worker", until=self.enough, **options)
        self.work_until(lambda: daemon.trace.switches(0).count(worker.pid) >= switches, f"{switches} turns", worker)
        self.expect_progress(neighbour)
        self.assertEqual(daemon.trace.check_exclusive(), [])

    def test_many_streams(self):
        self.beside_a_neighbour(steps=30, step_us=500, streams=12, sync_every=5)

    def test_many_threads_on_two_gpus(self):
        self.beside_a_neighbour(steps=30, step_us=500, streams=2, threads=5, gpu="0,1", sync_every=3)

    def test_legacy_default_stream(self):
        self.beside_a_neighbour(steps=50, step_us=500, legacy_stream=1, sync_every=7)

    def test_per_thread_default_streams(self):
        self.beside_a_neighbour(steps=50, step_us=500, per_thread_stream=1, threads=4, sync_every=7)

    def test_events_across_streams(self):
        self.beside_a_neighbour(steps=30, step_us=300, streams=4, cross_events=1, sync_every=5)

    def test_contexts_come_and_go(self):
        self.beside_a_neighbour(steps=8, step_us=500, contexts=6, threads=2, streams=2)

    def test_primary_contexts_come_and_go(self):
        self.beside_a_neighbour(steps=8, step_us=500, contexts=6, primary=1, streams=2)

    def test_a_context_for_opengl_needs_the_lease_of_its_own_gpu(self):
        daemon = self.start_daemon()
        program = self.start_process([sys.executable, CALLS], stdin=subprocess.PIPE)
        with program.popen.stdin as calls:
            calls.write("init\ncontext 0\nspin 0.01\nopengl 1\nspin 0.01\nsync\n")
        program.expect_success(timeout=HANG)
        self.assertEqual([line.split()[1] for line in program.lines], ["0"] * 6)
        self.assertEqual({event["gpu"] for event in daemon.trace.events(event="grant", pid=program.pid)}, {0, 1})

    def test_graphs_captured_and_launched(self):
        native = self.start("worker", name="native", preload=False, steps=1, graph=1)
        if native.wait() == 3 and native.field("code") == "801":
            self.skipTest(GRAPHS_MISSING)
        self.beside_a_neighbour(steps=30, step_us=500, graph=1, streams=2, threads=2, contexts=2)

    def test_nothing_drained_before_it_is_done(self):
        """Without overlap no two programs are ever at work at once, whatever streams the work is in."""
        daemon = self.start_daemon(overlap="false", quantum="3ms")
        kinds = [{"streams": 3}, {"per_thread_stream": 1, "threads": 3}, {"legacy_stream": 1}]
        logs, programs = {}, []
        for number, kind in enumerate(kinds):
            logs[number] = os.path.join(self.directory, f"log{number}")
            programs.append(self.start("worker", steps=60, step_us=700, sync_every=9, log=logs[number], **kind))
        for program in programs:
            program.expect_success()
        self.assertGreater(self.check_sure_intervals(logs), 100)
        self.assertEqual(daemon.trace.check_exclusive(overlap=False), [])

    def run_lifecycle(self, what, **options):
        daemon = self.start_daemon()
        neighbour = self.start_neighbour()
        program = self.start("lifecycle", name=what, what=what, **options).expect_success()
        self.expect_progress(neighbour)
        self.assertEqual(daemon.trace.check_exclusive(), [])
        self.assertEqual(program.errors, [])
        return daemon, neighbour, program

    def test_fork_before_use(self):
        daemon, _, program = self.run_lifecycle("fork-before", children=4)
        self.assertEqual(program.count("done what=child"), 4)
        self.assertEqual(len({event["pid"] for event in daemon.trace.events(event="connect")}), 6)

    def test_fork_of_workers_that_do_not_use_the_gpu(self):
        daemon, _, _ = self.run_lifecycle("fork-after", children=4)
        self.assertEqual(len(daemon.trace.events(event="connect")), 2, "a child came to the daemon")

    def test_fork_of_a_child_that_calls_the_driver(self):
        self.run_lifecycle("fork-use")

    def test_orphan_does_not_keep_the_lease(self):
        daemon, neighbour, program = self.run_lifecycle("orphan", hold=30)
        # The child has its parent's descriptors, but the parent is dead, and that counts.
        daemon.trace.wait_for(event="gone", pid=program.pid, timeout=HANG)
        os.kill(int(program.field("pid", "orphan")), 0)  # still alive
        self.expect_progress(neighbour)

    def test_exec(self):
        daemon, _, program = self.run_lifecycle("exec")
        self.assertEqual(program.count("done what=compute"), 1)
        connects = [event for event in daemon.trace.events(event="connect") if event["pid"] == program.pid]
        self.assertEqual(len(connects), 2, "the program and what it became are two tenants")

    def test_exit_from_another_thread(self):
        self.run_lifecycle("thread-exit")

    def test_threads_that_end(self):
        self.run_lifecycle("thread-gone", steps=40)

    def replace_descriptors(self, *names, said):
        daemon = self.start_daemon()
        neighbour = self.start_neighbour()
        log = os.path.join(self.directory, "log")
        pathlib.Path(log).touch()
        program = self.start("lifecycle", name="replace", what="replace", until=self.enough,
                             variables={"GPUMUX_LOG": log},
                             take=",".join(log if name == "log" else name for name in names))
        self.work_until(lambda: all(f"the program has closed {what}" in pathlib.Path(log).read_text(encoding="utf-8")
                                    for what in said), "the library says what it has lost", program)
        self.expect_progress(neighbour)
        return daemon, program

    def test_descriptors_that_the_program_has_replaced(self):
        daemon, program = self.replace_descriptors(
            "socket:", "anon_inode:[eventfd]", "log",
            said=("the connection to the daemon", "what wakes the library's thread", "what shares memory", "this log"))
        connects = [event for event in daemon.trace.events(event="connect") if event["pid"] == program.pid]
        self.assertEqual(len(connects), 2, "the connection is made anew")
        self.assertEqual(daemon.trace.check_exclusive(), [])
        self.assertEqual(program.errors, [])
        wait_until(lambda: "the program has closed the connection to the daemon" in daemon.log(), HANG,
                   "the daemon's log says so, too")

    def test_a_lease_page_that_the_program_has_replaced(self):
        _, program = self.replace_descriptors("socket:", "/memfd:gpumux-lease-page", said=("its lease page",))
        self.assertIn("running without gpumux: the program has closed its lease page", "\n".join(program.errors))

    def test_cancelled_threads(self):
        self.run_lifecycle("cancel", steps=10)

    def test_signals(self):
        self.run_lifecycle("signals", steps=60)

    def test_work_at_exit(self):
        self.run_lifecycle("atexit")

    def test_sticky_error_harms_only_its_program(self):
        daemon, neighbour, program = self.run_lifecycle("crash", hold=0)
        self.assertEqual(program.count("done what=crash"), 2)
        self.assertIsNone(neighbour.code)
        del daemon

    def test_a_poisoned_holder_that_lives_on_gives_way(self):
        daemon = self.start_daemon()
        crasher = self.start("lifecycle", what="crash", hold=30)
        crasher.wait_for_line("done")
        worker = self.start("worker", steps=20, step_us=500).expect_success()
        self.assertIsNone(crasher.code)
        self.assertIn(worker.pid, daemon.trace.switches(0))

    def test_a_stopped_holder_is_passed_over(self):
        daemon = self.start_daemon(silence_limit="100ms")
        holder = self.start("worker", name="holder", steps=100_000, step_us=300, sync_every=2, say_every=1)
        holder.wait_for_line("step")
        holder.send(signal.SIGSTOP)
        worker = self.start("worker", steps=20, step_us=500).expect_success()
        daemon.trace.wait_for(event="silent", pid=holder.pid)
        said = holder.count("step")
        holder.send(signal.SIGCONT)
        wait_until(lambda: holder.count("step") > said + 5, HANG, "the holder goes on after SIGCONT")
        del worker

    def test_a_kernel_that_never_ends_is_reported_and_ended_if_so_configured(self):
        # A program that is silent for long on a busy machine is not passed over: another one needs its GPU.
        daemon = self.start_daemon(quantum="5ms", overlap="false", stall_timeout="200ms", kill_stalled_after="1s",
                                   silence_limit="1h", interrupt="off")
        spinner = self.start("worker", name="spinner", steps=1, step_us=3_600_000_000)
        daemon.trace.wait_for(event="grant", pid=spinner.pid)
        # While the spinner is alone, the daemon lets it run. Then the worker wants the GPU.
        worker = self.start("worker", steps=20, step_us=500, until=self.enough)
        daemon.trace.wait_for(event="stall", pid=spinner.pid, timeout=HANG)
        self.assertEqual(spinner.wait(HANG), -signal.SIGKILL)
        pathlib.Path(self.enough).touch()
        worker.expect_success(HANG)
        kills = daemon.trace.events(event="kill")
        self.assertEqual([(event["pid"], event["detail"]) for event in kills], [(spinner.pid, "stalled")])
        self.assertIn("kill_stalled_after", daemon.log())


class Inert(GpumuxTest):
    """Preloaded into programs that do not use CUDA, nothing happens: no output, thread, descriptor or message."""

    def both(self, arguments):
        results = []
        for preload in (False, True):
            process = self.start_process(arguments, environment=self.environment(preload))
            process.wait()
            results.append((process.code, process.lines, process.errors))
        return results

    def test_tools(self):
        self.start_daemon()
        script = "import os; print(sorted(os.listdir('/proc/self/fd')), len(os.listdir('/proc/self/task')))"
        libraries = "import ctypes, ssl, json, sqlite3; print(ctypes.CDLL(None).dlsym is not None)"
        missing = "import ctypes\ntry: ctypes.CDLL('libnone.so')\nexcept OSError as e: print(e)"
        for arguments in (["/bin/true"], ["/bin/false"], ["/bin/ls", "/"],
                          ["/bin/bash", "-c", "exec 9>/dev/null; ls /proc/self/fd; echo $?"],
                          [sys.executable, "-c", script], [sys.executable, "-c", libraries],
                          [sys.executable, "-c", missing]):
            with self.subTest(arguments=arguments):
                native, preloaded = self.both(arguments)
                self.assertEqual(preloaded, native)

    def test_programs_with_sanitizers(self):
        """Also if the library is before the sanitizer's own, as /etc/ld.so.preload puts it."""
        compiler = shutil.which("cc")
        source = pathlib.Path(self.directory, "overflow.c")
        source.write_text("#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n"
                          "int main(int count, char** arguments) {\n"
                          "  char* volatile text = malloc(count);\n"
                          "  strcpy(text, arguments[count - 1]);\n"
                          "  return write(1, \"done\\n\", 5) != 5;\n}\n")
        built = 0
        for kind in ("address", "leak", "thread", "undefined"):
            program = os.path.join(self.directory, kind)
            command = [compiler, "-g", f"-fsanitize={kind}", source, "-o", program]
            if compiler is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
                continue
            built += 1
            for argument in ("", "longer than it may be"):
                with self.subTest(kind=kind, argument=argument):
                    native, preloaded = self.both([program, argument])
                    self.assertEqual(preloaded[:2], native[:2])
                    found = [any("heap-buffer-overflow" in line for line in errors) for _, _, errors in
                             (native, preloaded)]
                    self.assertEqual(found, [kind == "address" and argument != ""] * 2)
        if built == 0:
            self.skipTest("no compiler with sanitizers")

    def test_a_program_that_only_looks_is_no_tenant(self):
        daemon = self.start_daemon()
        self.start("probe", "--door", "dlsym").expect_success()
        self.assertEqual(daemon.trace.events(event="connect"), [])

    def test_library_is_where_the_build_put_it(self):
        self.assertTrue(paths.LIBRARY.exists())


if __name__ == "__main__":
    main()
