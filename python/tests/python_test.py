#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python client tells what the daemon tells, and finds the daemon that the command finds.

Method: a daemon with programs and jobs on simulated GPUs. Most tests use the sources of the client in this process, as
a program of the daemon's user. Others run programs with the wheel, which is installed into a virtual environment
without the network, and IPython with the magic. Errors are compared with those of the command.
"""

import datetime
import os
import pathlib
import pickle
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ROOT / "python" / "src"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools"), str(SOURCES)]
import build_python  # noqa: E402
import documents  # noqa: E402
import gpumux  # noqa: E402
from framework import paths  # noqa: E402
from framework.case import GpumuxTest, main  # noqa: E402
from framework.jobs import JobsTest  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402
from gpumux import client, connection, log_file, notebook  # noqa: E402

# Debian's: it has venv, IPython and no packages of anybody else's.
PYTHON = "/usr/bin/python3"
USES_A_GPU = "import gpu\ng = gpu.Gpu(16)\ng.spin(0.001)\ng.wait()\n"


class ClientTest(JobsTest):

    def setUp(self):
        super().setUp()
        self.client = gpumux.Client(self.runtime_dir)

    def hand_in(self, *command, **options):
        """As a user of the module, with the log in the test's folder."""
        options = {"output": os.path.join(self.directory, "%j.log"), **options}
        return self.client.submit([str(word) for word in command], **options)

    def go(self, job):
        """Ends the job of `waiting`."""
        self.release(job)

    def waiting(self, before="true", after="true", **options):
        """A job that runs `before`, waits for go(), and runs `after`."""
        gate = shlex.quote(self.directory) + "/go.$GPUMUX_JOB_ID"
        return self.hand_in("sh", "-c", f"{before}; while [ ! -e {gate} ]; do sleep 0.01; done; {after}", **options)

    def fails(self, code, call, *arguments, **options):
        """The text of the error."""
        with self.assertRaises(gpumux.Error) as caught:
            call(*arguments, **options)
        self.assertEqual(caught.exception.code, code, caught.exception)
        return str(caught.exception)


class Gpus(ClientTest):

    def test_status_tenants_and_settings(self):
        worker = self.start("worker", name="holder", steps=1_000_000, step_us=500, say_every=1)
        worker.wait_for_line("step")
        seat, = self.client.status()["gpus"][0]["seats"]
        self.assertEqual((seat["pid"], seat["user"]), (worker.pid, self.client.daemon()["owner"]))
        tenant, = self.client.tenants()
        self.assertEqual((tenant["pid"], [each["gpu"] for each in tenant["seats"]]), (worker.pid, [0]))
        changed, = self.client.set(1, quantum="50ms", overlap=False)
        self.assertEqual(self.client.status()["gpus"][1]["settings"]["quantum"], "50ms")
        self.assertEqual(changed["index"], 1)
        self.assertEqual(len(self.client.set(quantum="60ms")), self.gpus)
        self.assertEqual(self.client.set_program(worker.pid, priority=-3)["priority"], -3)
        self.assertEqual(self.client.tenants()[0]["priority"], -3)
        self.assertIn(str(os.getpid()), self.fails("not_found", self.client.set_program, os.getpid(), priority=1))
        self.assertIn("quantum", self.fails("invalid", self.client.set, quantum="soon"))
        self.assertIn("7", self.fails("not_found", self.client.set, 7, quantum="50ms"))
        self.assertIn("by", self.fails("invalid", self.client.report, "colour"))

    def test_report(self):
        now = datetime.datetime.now()
        self.start("worker", steps=3, step_us=500).expect_success()
        report = wait_until(lambda: (found := self.client.report("program", since=now))["rows"] and found, HANG,
                            "the report has the program")
        self.assertGreater(sum(row["held_seconds"] for row in report["rows"]), 0)
        later = now + datetime.timedelta(days=400)
        self.assertEqual(self.client.report(since=later, until=later)["rows"], [])


class Jobs(ClientTest):

    def test_a_job_from_its_submission_to_its_end(self):
        folder = os.path.join(self.directory, "folder")
        os.mkdir(folder)
        job = self.hand_in("sh", "-c", "pwd; echo $WORD; echo no-end-of-line; printf rest; exit 3", gpus=2, mem="20M",
                           time_limit=600, on_time_limit="cancel", priority=-2, name="named", directory=folder,
                           environment={"WORD": "word", "PATH": os.environ["PATH"]}, requeue=False)
        done = self.client.wait(job)
        self.assertEqual((done["id"], done["state"], done["outcome"], done["exit_status"]), (job, "done", "failed", 3))
        shown = self.client.job(job)
        for field, value in {"name": "named", "gpus_wanted": 2, "memory_bytes": 20 << 20, "priority": -2,
                             "time_limit_ns": 600 * 10**9, "on_time_limit": "cancel"}.items():
            self.assertEqual(shown[field], value, field)
        lines = [f"{folder}\n", "word\n", "no-end-of-line\n", "rest"]
        self.assertEqual(list(self.client.logs(job)), lines)
        self.assertEqual(list(self.client.logs(job, follow=True)), lines)
        self.assertEqual(list(self.client.logs(str(job), tail=2)), lines[-2:])
        self.assertEqual(list(self.client.logs(job, tail=0)), [])

    def test_what_the_job_inherits(self):
        mask = os.umask(0o027)
        try:
            job = self.hand_in("sh", "-c", "umask; pwd; env")
        finally:
            os.umask(mask)
        self.client.wait(job)
        said = list(self.client.logs(job))
        self.assertEqual(said[:2], ["0027\n", os.getcwd() + "\n"])
        self.assertIn(f"PATH={os.environ['PATH']}\n", said)

    def test_changes(self):
        held = self.waiting(held=True)
        self.assertEqual(self.client.job(held)["state"], "held")
        self.assertEqual(self.client.change(held, priority=-1), [{"id": held, "changed": True}])
        self.assertEqual(self.client.job(held)["priority"], -1)
        self.client.release(held)
        self.wait_state(held, "running")
        self.client.suspend(held)
        self.wait_state(held, "suspended")
        self.client.resume(held)
        self.wait_state(held, "running")
        other = self.hand_in("true", held=True)
        self.client.cancel(held, other)
        self.assertEqual([job["outcome"] for job in self.client.wait_all(held, other)], ["cancelled", "cancelled"])
        again = self.hand_in("true", held=True)
        self.assertEqual(self.client.hold(again), [{"id": again, "changed": False}])
        self.assertIn("999", self.fails("not_found", self.client.cancel, 999))
        # All are tried, and the refusal is told.
        self.assertIn("999", self.fails("not_found", self.client.cancel, again, 999))
        self.assertEqual(self.client.wait(again)["outcome"], "cancelled")

    def test_arrays_and_dependencies(self):
        array = self.hand_in("sh", "-c", 'echo "element $GPUMUX_ARRAY_INDEX"; [ $GPUMUX_ARRAY_INDEX != 1 ]',
                             array="0-2%1")
        after = self.hand_in("true", after=[array])
        after_any = self.hand_in("true", after_any=[array, f"{array}_1"])
        self.assertEqual([job["outcome"] for job in self.client.wait_all(array)], ["ok", "failed", "ok"])
        self.assertEqual(self.client.wait(f"{array}_0")["id"], array)
        self.assertEqual(list(self.client.logs(f"{array}_2")), ["element 2\n"])
        self.assertEqual([job["array_index"] for job in self.client.jobs("all", array=array)], [0, 1, 2])
        for call in (self.client.wait, self.client.logs):
            self.assertIn(f"{array}_0", self.fails("invalid", call, array))
        self.assertEqual(self.client.wait(after)["outcome"], "dependency failed")
        self.assertEqual(self.client.wait(after_any)["outcome"], "ok")

    def test_pages(self):
        count = client.PAGE + 7
        array = self.hand_in("true", array=f"0-{count - 1}", held=True)
        self.assertEqual([job["id"] for job in self.client.jobs()], list(range(array, array + count)))
        self.assertEqual(len(self.client.jobs(limit=client.PAGE + 2)), client.PAGE + 2)
        self.assertEqual(self.client.jobs(order="newest", limit=1)[0]["id"], array + count - 1)
        ids = list(range(array, array + count))
        # The array's id alone would stand for all of them.
        changed = self.client.cancel(*[f"{array}_{index}" for index in range(count)])
        self.assertEqual([each["id"] for each in changed], ids)
        wait_until(lambda: not self.client.jobs(), HANG, "all jobs are cancelled")
        ended = self.client.jobs("done", order="ended", outcome="cancelled", ended_since=datetime.datetime(2020, 1, 1))
        self.assertEqual(sorted(job["id"] for job in ended), ids)
        self.assertEqual(sorted(ended, key=lambda job: -job["ended_unix_ns"]), ended)

    def test_text_that_is_no_text(self):
        name = os.fsdecode(b"job-\xff")
        job = self.hand_in("sh", "-c", 'printf "%s" "$1"', "sh", os.fsdecode(b"\xfe"), name=name)
        self.client.wait(job)
        self.assertEqual(self.client.job(job)["name"], name)
        with open(self.client.job(job)["log"], "rb") as log:
            self.assertEqual(log.read(), b"\xfe")
        self.assertEqual(list(self.client.logs(job)), ["\N{REPLACEMENT CHARACTER}"])

    def test_memory_as_the_command_reads_it(self):
        for text in ("20M", "20m", "1.5M", "2048KiB", "3000000B", "8MB"):
            ours = self.client.submit(["true"], mem=text, held=True)
            theirs = self.submit("true", mem=text, hold=True)
            self.assertEqual(self.client.job(ours)["memory_bytes"], self.client.job(theirs)["memory_bytes"], text)
            self.client.cancel(ours, theirs)
        for text in ("20", "x", "", "-1G", "1e3M", "20 G B"):
            self.fails("invalid", self.client.submit, ["true"], mem=text)

    def test_what_is_refused(self):
        self.assertRaises(TypeError, self.client.submit, "true")
        with self.assertRaisesRegex(TypeError, "time_limit is a number of seconds"):
            self.client.submit(["true"], time_limit="1h")
        with self.assertRaisesRegex(gpumux.Error, "start gpumuxd, or name the folder of one that runs"):
            gpumux.Client("/nowhere").status()
        for wrong in ("x", "17_", "1/2", "", -1, "17?x=1"):
            self.assertIn("no job's id", self.fails("invalid", self.client.job, wrong))
        self.assertIn("gpus", self.fails("invalid", self.client.submit, ["true"], gpus=99).lower())
        self.fails("invalid", self.client.jobs, "asleep")
        self.assertIn("999", self.fails("not_found", self.client.submit, ["true"], after=["999"]))
        self.fails("not_found", self.client.logs, 999)
        held = self.hand_in("true", held=True)
        self.assertIn("held", self.fails("not_found", self.client.logs, held))
        error = pickle.loads(pickle.dumps(gpumux.Error("denied", "no")))
        self.assertEqual((error.code, str(error)), ("denied", "no"))

    def test_time_limits_of_wait(self):
        job = self.waiting()
        for limit in (0, 0.05):
            self.assertIn("not done", self.fails("timeout", self.client.wait, job, timeout=limit))
        self.fails("timeout", self.client.wait_all, job, timeout=0.01)
        self.go(job)
        self.assertEqual(self.client.wait(job, timeout=60)["outcome"], "ok")
        self.assertEqual(self.client.wait(job, timeout=0)["outcome"], "ok")

    def test_a_log_is_followed(self):
        job = self.waiting("echo first; printf sec", "echo ond; echo last", held=True)
        lines = self.client.logs(job, follow=True)
        self.client.release(job)
        self.assertEqual(next(lines), "first\n")
        self.go(job)
        self.assertEqual(list(lines), ["second\n", "last\n"])

    def test_a_daemon_that_restarts_is_waited_for(self):
        job = self.waiting("echo first", "echo last")
        results, waits = {}, threading.Event()

        class Client(gpumux.Client):
            def _wait(self, *arguments):
                waits.set()
                return super()._wait(*arguments)

        waiting = Client(self.runtime_dir)
        lines = self.client.logs(job, follow=True)
        self.assertEqual(next(lines), "first\n")
        threads = [threading.Thread(target=lambda: results.update(job=waiting.wait(job))),
                   threading.Thread(target=lambda: results.update(log=list(lines)))]
        for thread in threads:
            thread.start()
        waits.wait(60)
        self.daemon.kill()
        self.assertIn("no daemon answers", self.fails("unavailable", self.client.wait, job))
        self.daemon.start()
        self.go(job)
        for thread in threads:
            thread.join(60)
        self.assertEqual((results["job"]["outcome"], results["log"]), ("ok", ["last\n"]))


class LogFiles(GpumuxTest):
    """A log that is changed while it is read."""

    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.directory, "log")
        self.log = log_file.LogFile(self.path)
        self.addCleanup(self.log.close)

    def write(self, text, mode="a"):
        with open(self.path, mode, encoding="utf-8") as file:
            file.write(text)

    def new(self):
        return list(self.log.new_lines())

    def test_it_grows_is_emptied_and_replaced(self):
        self.assertEqual(self.new(), [])
        self.write("one\ntw")
        self.assertEqual(self.new(), ["one\n"])
        self.write("o\n")
        self.assertEqual(self.new(), ["two\n"])
        self.write("rest")
        self.assertEqual(self.new(), [])
        self.write("new\n", "w")
        self.assertEqual(self.new(), ["rest", "new\n"])
        os.unlink(self.path)
        self.assertEqual(self.new(), [])
        self.write("replaced\n")
        self.assertEqual(self.new(), ["replaced\n"])
        self.assertEqual(list(self.log.rest()), [])

    def test_its_last_lines(self):
        self.write("".join(f"{number}\n" for number in range(100_000)) + "rest")
        self.assertEqual(list(self.log.last_lines(2)) + list(self.log.rest()), ["99999\n", "rest"])
        self.write("ed\nmore\n")
        self.assertEqual(self.new(), ["ed\n", "more\n"])

    def test_what_is_no_file(self):
        os.mkfifo(self.path)
        with self.assertRaisesRegex(gpumux.Error, "not a regular file"):
            self.new()


class FindingTheDaemon(GpumuxTest):
    """Without a daemon: the command and the client say where they have looked."""

    def both(self, **variables):
        """The words of the command, and of the client."""
        environment = self.environment(preload=False, **{"GPUMUX_RUNTIME_DIR": None, **variables})
        command = self.start_process([paths.COMMAND, "status"], environment=environment)
        command.wait()
        script = "import gpumux\ntry: gpumux.status()\nexcept gpumux.Error as error: print(error)"
        python = self.start_process([PYTHON, "-c", script], environment={**environment, "PYTHONPATH": str(SOURCES)})
        python.expect_success()
        return " ".join(" ".join(command.errors).split()), " ".join(" ".join(python.lines).split())

    def test_as_the_command(self):
        private = os.path.join(self.directory, "private")
        for name in ("private/gpumux", "own", "open/gpumux"):
            os.makedirs(os.path.join(self.directory, name), 0o700)
        os.chmod(os.path.join(self.directory, "open/gpumux"), 0o755)
        os.symlink(private, os.path.join(self.directory, "link"))
        container = os.path.join(self.directory, "container")
        os.makedirs(os.path.join(container, "tenants"))
        with socket.socket(socket.AF_UNIX) as tenants:
            tenants.bind(os.path.join(container, "tenants/tenants.sock"))
            for variables, seen in (
                    ({"GPUMUX_RUNTIME_DIR": f"{self.directory}/own"}, f"{self.directory}/own/api.sock"),
                    ({"XDG_RUNTIME_DIR": private}, f"{private}/gpumux/api.sock"),
                    ({"XDG_RUNTIME_DIR": f"{self.directory}/own"}, f"{self.directory}/own/gpumux/api.sock"),
                    ({"XDG_RUNTIME_DIR": "own"}, f"/tmp/gpumux-{os.geteuid()}"),
                    ({"XDG_RUNTIME_DIR": f"{self.directory}/link"}, f"/tmp/gpumux-{os.geteuid()}"),
                    ({"XDG_RUNTIME_DIR": f"{self.directory}/open"}, "is not a directory that only user"),
                    ({"GPUMUX_RUNTIME_DIR": container}, "its API is not in this container"),
                    ({"GPUMUX_RUNTIME_DIR": self.directory + "/" + "long" * 40}, "long")):
                with self.subTest(variables=variables):
                    command, python = self.both(**variables)
                    self.assertIn(seen, python)
                    self.assertIn(seen, command)
                    if "long" not in seen:
                        self.assertIn(python, command)

    def test_roots_socket(self):
        """Root asks over its own socket, if there is one."""
        for name, expected in (("api.sock", "api.sock"), ("root/api.sock", "root/api.sock")):
            path = pathlib.Path(self.runtime_dir) / name
            path.parent.mkdir(exist_ok=True)
            path.touch()
            used = connection.api_socket(self.runtime_dir)
            self.assertEqual(used, f"{self.runtime_dir}/{expected if os.geteuid() == 0 else 'api.sock'}")


class Answers(GpumuxTest):
    """A server that is no daemon."""

    def answer(self, said):
        """The code of the client's error if a server answers so."""
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.path.join(self.runtime_dir, "api.sock"))
            listener.listen()

            def serve():
                peer, _ = listener.accept()
                with peer:
                    if said is not None:
                        peer.sendall(said)
                        peer.shutdown(socket.SHUT_WR)
                    while peer.recv(65536):
                        pass

            thread = threading.Thread(target=serve)
            thread.start()
            try:
                gpumux.Client(self.runtime_dir, timeout=0.2 if said is None else 20).status()
            except gpumux.Error as error:
                return error.code
            finally:
                thread.join()
                os.unlink(os.path.join(self.runtime_dir, "api.sock"))
        return "no error"

    def test_answers_that_make_no_sense(self):
        def http(status, body, length=None):
            return f"HTTP/1.1 {status} X\r\nContent-Length: {length or len(body)}\r\n\r\n{body}".encode()

        for said, code in ((b"", "unavailable"), (None, "timeout"), (http(200, "{}", 50), "unavailable"),
                           (http(200, "{"), "internal"), (http(500, "[]"), "internal"), (http(503, "x"), "internal"),
                           (http(403, '{"error": {"code": "denied", "message": "no"}}'), "denied"),
                           (http(200, "{}"), "no error")):
            self.assertEqual(self.answer(said), code, said)


class Notebook(ClientTest):

    def test_holder_and_waiter(self):
        holder = self.start("worker", name="holder", steps=1_000_000, step_us=500, hold=1, say_every=1)
        holder.wait_for_line("step")
        waiter = self.start("worker", name="waiter", steps=1_000_000, step_us=500, say_every=1)
        self.client.set(quantum="unlimited", max_runtime="unlimited")
        self.shows(holder.pid, r"^GPU 0: holding \(exclusive\) for \d+\.\d s; .* on the GPU, ")
        self.shows(waiter.pid, rf"^GPU 0: waiting for \d+\.\d s; place 1 behind \S+ \(process {holder.pid}\)")

    def shows(self, pid, shape):
        """The magic of this process shows that."""
        def said():
            return notebook.describe(self.client.status(), pid, True)

        wait_until(lambda: re.search(shape, said()), HANG, said)

    def ipython(self, *lines, preload=False):
        environment = self.environment(preload=preload, PYTHONPATH=f"{SOURCES}:{ROOT / 'tests' / 'documents'}",
                                       IPYTHONDIR=os.path.join(self.directory, "ipython"))
        process = self.start_process([PYTHON, "-m", "IPython", "--no-banner", "--colors=NoColor", "-c",
                                      "\n".join(lines)], name="ipython", environment=environment)
        process.expect_success(timeout=HANG)
        return "\n".join(process.lines)

    def test_in_ipython(self):
        self.assertIn("is not under gpumux", self.ipython("%load_ext gpumux", "%gpumux"))
        self.assertIn("has no seat yet", self.ipython("%load_ext gpumux", "%gpumux", preload=True))
        # The library tells of memory that nothing waits for four times a second.
        said = self.ipython(*USES_A_GPU.splitlines(), "%load_ext gpumux", "import time", "for _ in range(30):",
                            "    get_ipython().run_line_magic('gpumux', '')", "    time.sleep(0.1)", preload=True)
        self.assertRegex(said, r"GPU 0: (holding|idle).*; 16\.0 MiB on the GPU, 0 B in host memory")


class Documents(JobsTest):
    """The blocks of Python that documents show, one after the other."""
    machine_settings = {"memory": "80GiB"}  # documents speak of memory as GPUs have it

    def run_blocks(self, name):
        folder = pathlib.Path(self.directory) / "folder"
        shutil.copytree(ROOT / "tests" / "documents", folder)
        (folder / "python").symlink_to(PYTHON)
        text = (ROOT / name).read_text(encoding="utf-8")
        shown = [block for block in documents.blocks(text) if block.language == "python"]
        self.assertGreater(len(shown), 0)
        script = "\n".join(line for block in shown for line in block.lines)
        environment = self.environment(preload=False, PYTHONPATH=SOURCES, PATH=f"{folder}:{os.environ['PATH']}")
        process = self.start_process([PYTHON, "-c", script], name=name, environment=environment, cwd=folder)
        process.expect_success(timeout=HANG)
        return process.lines

    def test_the_page(self):
        said = self.run_blocks("docs/python.md")
        self.assertRegex(said[0], r"^\d+ steps$")
        self.assertEqual(said[1:3], ["ok 0", str(["ok"] * 5)])

    def test_the_readme(self):
        self.assertEqual(self.run_blocks("python/README.md")[-1], "ok")


class Wheel(JobsTest):
    """The wheel, as a user installs it."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpumux-wheel-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.made = build_python.build(cls.folder / "made")
        subprocess.run([PYTHON, "-m", "venv", cls.folder / "venv"], check=True)
        pip = [cls.folder / "venv" / "bin" / "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--no-index", *cls.folder.glob("made/*.whl")], check=True)

    def run_in_environment(self, script):
        python = self.folder / "venv" / "bin" / "python"
        process = self.start_process([python, "-I", "-c", script], name="python",
                                     environment=self.environment(preload=False))
        process.expect_success(timeout=HANG)
        return process.lines

    def test_it_is_used(self):
        script = ("import gpumux, os\n"
                  "print(gpumux.__file__, gpumux.__version__)\n"
                  "job = gpumux.submit(['echo', 'from the wheel'], output='%s/%%j.log')\n"
                  "print(*gpumux.logs(job, follow=True), gpumux.wait(job)['outcome'])\n" % self.directory)
        first, *others = self.run_in_environment(script)
        path, version = first.split()
        self.assertTrue(path.startswith(str(self.folder)), path)
        self.assertEqual(version, build_python.version_and_time()[0])
        self.assertEqual(others, ["from the wheel", " ok"])

    def test_it_brings_its_types(self):
        found, = self.folder.glob("venv/lib/python3*/site-packages/gpumux/py.typed")
        self.assertTrue(found.is_file())
        checked = self.folder / "checked.py"
        checked.write_text("import gpumux\nreveal_type(gpumux.jobs())\ngpumux.submit(['true'], gpus='2')\n")
        done = subprocess.run(["/usr/bin/mypy", "--strict", "--cache-dir", self.folder / "cache", "--python-executable",
                               self.folder / "venv" / "bin" / "python", checked], capture_output=True, text=True)
        self.assertIn('list[TypedDict(\'gpumux.answers_gen.Job\'', done.stdout)
        self.assertIn('Argument "gpus" has incompatible type "str"', done.stdout)
        self.assertIn("Found 1 error", done.stdout)

    def test_it_is_the_same_from_another_folder(self):
        """The same sources give the same bytes: from a folder of another name, with another umask, at another time."""
        other = self.folder / "another name"
        shutil.copytree(ROOT / "tools", other / "tools")
        shutil.copytree(ROOT / "python", other / "python", ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run(["git", "-C", other, "init", "--quiet"], check=True)
        (other / "packaging").mkdir()
        shutil.copy(ROOT / "packaging" / "source.txt", other / "packaging")
        version, time = build_python.version_and_time()
        command = [sys.executable, other / "tools" / "build_python.py", self.folder / "again", version]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, umask=0o077,
                       env={**os.environ, "SOURCE_DATE_EPOCH": str(time)})
        for path in self.made:
            self.assertEqual(path.read_bytes(), (self.folder / "again" / path.name).read_bytes(), path.name)


if __name__ == "__main__":
    main()
