#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A container's programs become tenants, whatever the image has; and no image reaches the host by the hook.

Method: real runc, with images made from files of this machine and specifications that the shipped writer has written.
Needs root, runc, and for one test musl.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import resource
import select
import shutil
import socket
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
from framework import paths  # noqa: E402
from framework.case import main  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402
from kube.containers import LOADER, MUSL_LOADER, ContainersTest  # noqa: E402


class Held:
    """Each process that opens the file waits, until it is killed or this ends: a file system that does not answer."""

    FAN_CLASS_CONTENT, FAN_CLOEXEC, FAN_MARK_ADD, FAN_OPEN_PERM = 0x4, 0x1, 0x1, 0x10000

    def __init__(self, path):
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.fanotify_init(self.FAN_CLASS_CONTENT | self.FAN_CLOEXEC, os.O_RDONLY)
        if self.fd < 0 or libc.fanotify_mark(self.fd, self.FAN_MARK_ADD, ctypes.c_uint64(self.FAN_OPEN_PERM), -1,
                                             os.fsencode(path)) != 0:
            raise unittest.SkipTest(f"needs fanotify with permissions: {os.strerror(ctypes.get_errno())}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.fd)

    def wait(self):
        """Until the first process waits."""
        if not select.select([self.fd], [], [], 5)[0]:
            raise TimeoutError("no process opens the file")


class Tenants(ContainersTest):
    """Programs of the driver API in containers, with a daemon on the host."""

    def worker(self, edits=None, **options):
        command = ["/bin/worker", "--until", "/shared/enough", "--steps", 20, "--step-us", 500]
        return self.run_container(self.image("worker"), *command, edits=edits, **options)

    def wait_until_known(self, daemon, containers):
        """Returns their pids of the host. A container's process is one tenant, and no stranger beside it."""
        pids = [container.pid_on_the_host() for container in containers]

        def known():
            gpu = daemon.api.status()["gpus"][0]
            return sorted(seat["pid"] for seat in gpu["seats"]) == sorted(pids) and gpu["foreign"] == []

        wait_until(known, HANG, lambda: f"the daemon knows {pids}: {daemon.api.status()['gpus'][0]}")
        return pids

    def expect_native_result(self, container):
        words = next(line.split()[1:] for line in container.process.lines if line.startswith("again "))
        native = self.start_process([paths.PROGRAMS / "worker", "--steps", "20", "--step-us", "0", *words],
                                    environment=self.environment(preload=False)).expect_success()
        self.assertEqual(container.process.field("digest"), native.field("digest"))

    def take_turns(self, *containers):
        daemon = self.daemons[-1]
        pids = self.wait_until_known(daemon, containers)
        wait_until(lambda: all(daemon.trace.switches(0).count(pid) >= 3 for pid in pids), HANG,
                   lambda: f"they take turns: {daemon.trace.switches(0)[-20:]}")
        pathlib.Path(self.enough).touch()
        for container in containers:
            container.lines()
            self.expect_native_result(container)

    def test_two_containers_take_turns(self):
        self.start_system_daemon()
        self.take_turns(self.worker(), self.worker(user=65534, read_only=True))
        self.assertEqual(self.daemons[-1].trace.check_exclusive(), [])

    def test_without_cdi(self):
        self.start_system_daemon()
        self.take_turns(self.worker(edits=self.plain_edits()), self.worker(edits=self.plain_edits(), user=65534))

    def test_a_new_daemon_finds_them(self):
        daemon = self.start_system_daemon()
        containers = [self.worker(), self.worker()]
        self.wait_until_known(daemon, containers)
        daemon.restart()
        self.take_turns(*containers)


class Images(ContainersTest):
    """The hook's effect on images, seen by a program that prints what the loader gave to it."""

    def expect_loaded(self, container, *more):
        lines = container.lines()
        self.assertIn(self.library, lines)
        for path in more:
            self.assertIn(path, lines)
        self.assertEqual(container.process.errors, [])
        return lines

    def expect_not_loaded(self, container):
        self.assertNotIn(self.library, container.lines())

    def test_the_images_own_preloads_stay(self):
        image = self.image("maps")
        image.add(paths.PROGRAMS / "intruder.so", "/opt/listed.so")
        image.add(paths.PROGRAMS / "intruder.so", "/opt/preloaded.so")
        image.path("/etc/ld.so.preload").write_text("# the image's own\n/opt/listed.so")
        for _ in range(2):  # a container that starts again on the root that it had
            self.expect_loaded(self.run_container(image, "/bin/maps", env=["LD_PRELOAD=/opt/preloaded.so"]),
                               "/opt/listed.so", "/opt/preloaded.so")
            self.assertEqual(self.listed(image), f"# the image's own\n/opt/listed.so\n{self.library}\n")

    def test_the_hook_reads_lists_as_the_loader_does(self):
        own = "/opt/libgpumux.so"
        for text, is_loaded in ((f"{own}", True), (f"/x.so:{own}\t/y.so\n", True), (f"{own}# a comment\n", True),
                                (f"/x.so#{own}\n", False), (f"# {own}\n", False), (f"{own}\r\n", False),
                                (f"/x.so #\n{own}", True), ("/opt/gone/libgpumux.so\n", False),
                                # glibc looks for the second comment in a part of the file that is too short.
                                (f"# {'one' * 20}\n# {own}\n", True), (f"# 1\n# {own}\n# {'three' * 20}", False)):
            with self.subTest(text=text):
                image = self.image("maps")
                image.add(paths.LIBRARY, own)
                image.path("/etc/ld.so.preload").write_text(text, newline="")
                edits = self.specification()
                loaded = self.run_container(image, "/bin/maps", edits={**edits, "hooks": []}).lines()
                self.assertEqual(own in loaded, is_loaded)
                loaded = self.run_container(image, "/bin/maps", edits=edits).lines()
                self.assertEqual((own in loaded, self.library in loaded), (is_loaded, not is_loaded))

    def test_a_read_only_root(self):
        self.expect_loaded(self.run_container(self.image("maps"), "/bin/maps", read_only=True))

    def test_a_root_that_is_read_only_before_the_hook(self):
        # crun makes it read-only then; runc, here, by a hook that comes before ours.
        for folder in ("etc", None):
            with self.subTest(folder=folder):
                image = self.image("maps")
                if folder is None:
                    image.path("/etc").rmdir()
                make_read_only = {"path": "/bin/mount", "args": ["mount", "-o", "remount,bind,ro", str(image.root)]}
                self.expect_loaded(self.run_container(image, "/bin/maps", read_only=True, hooks=[make_read_only]))

    def image_with_mount_points(self):
        """Its root may be read-only when the runtime makes the mounts."""
        image = self.image("maps")
        for folder in ("shared", "run/gpumux/tenants", "run/gpumux-sim", "usr/lib/gpumux/sim",
                       "usr/lib/gpumux/containers"):
            image.path(folder).mkdir(parents=True)
        return image

    def mount(self, *arguments):
        """The last argument is the place."""
        subprocess.run(["mount", *arguments], check=True)
        self.addCleanup(subprocess.run, ["umount", "--lazy", arguments[-1]], check=True)

    def test_a_read_only_file_system(self):
        image = self.image_with_mount_points()
        source = image.root
        image.root = pathlib.Path(self.directory) / "read-only"
        image.root.mkdir()
        self.mount("-t", "tmpfs", "tmpfs", image.root)
        shutil.copytree(source, image.root, dirs_exist_ok=True)
        subprocess.run(["mount", "-o", "remount,ro", image.root], check=True)
        self.expect_not_loaded(self.run_container(image, "/bin/maps", read_only=True))

    def test_a_root_that_an_operator_has_made_read_only(self):
        for read_only, options in ((False, "ro"), (True, "ro"), (False, "rw")):
            with self.subTest(read_only=read_only, options=options):
                image = self.image_with_mount_points()
                self.mount("--bind", image.root, image.root)
                subprocess.run(["mount", "-o", "remount,bind,ro", image.root], check=True)
                # crun makes it writable for the container, if it is not to be read-only.
                remount = {"path": "/bin/mount", "args": ["mount", "-o", f"remount,bind,{options}", str(image.root)]}
                self.expect_not_loaded(self.run_container(image, "/bin/maps", read_only=read_only, hooks=[remount]))
                self.assertFalse(image.path("/etc/ld.so.preload").exists())

    def test_a_root_that_became_read_only_unasked(self):
        image = self.image("maps")
        make_read_only = {"path": "/bin/mount", "args": ["mount", "-o", "remount,bind,ro", str(image.root)]}
        self.expect_not_loaded(self.run_container(image, "/bin/maps", hooks=[make_read_only]))
        self.assertFalse(image.path("/etc/ld.so.preload").exists())

    def test_another_user_without_capabilities(self):
        lines = self.expect_loaded(self.run_container(self.image("maps"), "/bin/maps", user=65534, read_only=True))
        self.assertIn("uid=65534 euid=65534", lines)

    def test_a_set_user_id_program(self):
        image = self.image("maps")
        image.path("/bin/maps").chmod(0o4755)
        # By a variable the loader gives it nothing.
        self.expect_not_loaded(self.run_container(image, "/bin/maps", user=65534, edits=self.plain_edits()))
        lines = self.expect_loaded(self.run_container(image, "/bin/maps", user=65534))
        self.assertIn("uid=65534 euid=0", lines)

    def test_a_static_program(self):
        image = self.image()
        program = image.add(paths.PROGRAMS / "maps_static")
        self.expect_not_loaded(self.run_container(image, program))
        image.add(LOADER, LOADER)  # beside dynamic ones
        self.expect_not_loaded(self.run_container(image, program))
        self.assertEqual(self.listed(image), self.library + "\n")

    @unittest.skipUnless((paths.PROGRAMS / "maps_musl").exists(), "needs musl-gcc when the tests are built")
    def test_an_image_with_musl(self):
        image = self.image()
        program = image.add(paths.PROGRAMS / "maps_musl")
        image.add(MUSL_LOADER, MUSL_LOADER)
        self.expect_not_loaded(self.run_container(image, program))
        self.assertFalse(image.path("/etc/ld.so.preload").exists())
        # This is what the hook is for: by a variable, no program of the image starts.
        by_variable = self.run_container(image, program, edits=self.plain_edits())
        self.assertEqual(by_variable.process.wait(), 127, by_variable.process.tail())

    def test_links_to_the_host_are_not_followed(self):
        host = pathlib.Path(self.directory) / "host"
        host.mkdir()
        (host / "ld.so.preload").write_text("# the host's\n")
        for link, target in (("/etc/ld.so.preload", host / "ld.so.preload"), ("/etc/ld.so.preload", host / "new"),
                             ("/etc", host), ("/etc", "../host"), ("/etc", "/proc/self/cwd")):
            with self.subTest(link=link, target=target):
                image = self.image("maps")
                if link == "/etc":
                    image.path("/etc").rmdir()
                image.path(link).symlink_to(target)
                self.expect_not_loaded(self.run_container(image, "/bin/maps"))
                self.assertEqual((host / "ld.so.preload").read_text(), "# the host's\n")
                self.assertEqual([path.name for path in host.iterdir()], ["ld.so.preload"])

    def test_volumes_stay_as_they_are(self):
        volume = pathlib.Path(self.directory) / "volume"
        for inside, file in (("/etc", "/volume/other"), ("/etc", "/volume/ld.so.preload"),
                             ("/etc/ld.so.preload", "/file")):
            with self.subTest(inside=inside, file=file):
                path = pathlib.Path(self.directory + file)
                path.parent.mkdir(exist_ok=True)
                path.write_text("# others have it, too\n")
                source = path if inside == "/etc/ld.so.preload" else volume
                self.expect_not_loaded(self.run_container(self.image("maps"), "/bin/maps", volumes=[(source, inside)]))
                self.assertEqual(path.read_text(), "# others have it, too\n")
        self.assertEqual(sorted(os.listdir(volume)), ["ld.so.preload", "other"])

    def test_a_volume_in_place_of_the_root(self):
        # runc before November 2025 takes the volume for the container's root.
        for inside in ("/", "/.", "/etc/.."):
            with self.subTest(inside=inside):
                image, volume = self.image("maps"), self.image("maps")
                self.run_container(image, "/bin/maps", volumes=[(volume.root, inside)]).process.wait()
                for root in (image, volume):
                    self.assertFalse(root.path("/etc/ld.so.preload").exists())

    def test_a_user_namespace(self):
        image = self.image("maps")
        lines = self.expect_loaded(self.run_container(image, "/bin/maps", first_uid=100000))
        self.assertIn("uid=0 euid=0", lines)
        self.assertEqual(image.path("/etc/ld.so.preload").stat().st_uid, 100000)

    def test_a_list_that_is_no_file_keeps_no_container(self):
        image = self.image("maps")
        os.mkfifo(image.path("/etc/ld.so.preload"))
        # The loader of every program in it would wait for the FIFO.
        program = image.add(paths.PROGRAMS / "maps_static")
        self.expect_not_loaded(self.run_container(image, program))

    def test_the_images_variables_do_not_reach_the_hook(self):
        intruder = paths.PROGRAMS / "intruder.so"
        traces = pathlib.Path(self.directory) / "traces"
        traces.mkdir()
        env = [f"LD_PRELOAD={intruder}", f"INTRUDER_FOLDER={traces}", "GLIBC_TUNABLES=glibc.malloc.check=3"]
        edits = self.specification()
        # runc hands them to hooks: a hook with a loader is the image's.
        victim = {"path": str(paths.PROGRAMS / "maps")}
        for hooks in ([victim], []):
            container = self.run_container(self.image("maps"), "/bin/maps", edits=edits, env=env, hooks=hooks)
            self.assertIn(self.library, container.lines())
            self.assertEqual(len(list(traces.iterdir())), 1)


class Hook(ContainersTest):
    """The program by itself, as a runtime starts it: it succeeds, in time, and takes no advice from its environment."""

    def bundle(self):
        image = self.image("maps")
        image.add(paths.LIBRARY, "/opt/libgpumux.so")
        (image.root / "config.json").write_text('{"root": {"path": "."}}')
        return image

    def state(self, image, name="c1"):
        return json.dumps({"id": name, "bundle": str(image.root)})

    def start_hook(self, before=(), **popen):
        popen = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        hook = subprocess.Popen([*before, paths.HOOK, "--library", "/opt/libgpumux.so"], text=True, env={}, **popen)
        self.addCleanup(hook.communicate)
        self.addCleanup(hook.kill)
        return hook

    @staticmethod
    def say(hook, text):
        hook.stdin.write(text)
        hook.stdin.close()
        hook.stdin = None  # communicate() would use it

    def run_hook(self, text, **popen):
        hook = self.start_hook(**popen)
        _, said = hook.communicate(text, timeout=HANG)
        self.assertEqual(hook.returncode, 0, said)
        return said

    def test_it_says_why_a_container_goes_without(self):
        image = self.bundle()
        self.assertEqual(self.run_hook(self.state(image)), "")
        self.assertEqual(self.listed(image), "/opt/libgpumux.so\n")
        image.path("/etc/ld.so.preload").unlink()
        image.path("/etc/ld.so.preload").mkdir()
        said = self.run_hook(self.state(image, "c\n1"))
        self.assertEqual(said, "gpumux-cdi-hook: container c?1 runs without gpumux: "
                               "/etc/ld.so.preload is not a regular file\n")
        self.assertIn("no container state", self.run_hook("{}"))
        (image.root / "config.json").unlink()
        self.assertIn("cannot open config.json", self.run_hook(self.state(image)))

    def test_it_says_so_in_the_systems_log(self):
        # In a mount namespace of its own, with a folder that has our socket in place of /dev.
        devices = os.path.join(self.directory, "dev")
        os.mkdir(devices)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
            log.bind(f"{devices}/log")
            log.settimeout(20)
            image = self.bundle()
            image.path("/opt/libgpumux.so").unlink()
            said = self.run_hook(self.state(image), before=[
                "/usr/bin/unshare", "--mount", "/bin/sh", "-c", f'/bin/mount --bind {devices} /dev && exec "$@"', "sh"])
            self.assertIn("container c1 runs without gpumux: cannot open /opt/libgpumux.so", said)
            self.assertEqual(log.recv(4096).decode(), "<28>" + said.rstrip("\n"))

    def run_hook_after(self, commands, text):
        """In a mount namespace of its own, when these shell commands have run."""
        return self.run_hook(text, before=["/usr/bin/unshare", "--mount", "/bin/sh", "-e", "-c",
                                           f'PATH=/bin:/usr/bin; {commands}; exec "$@"', "sh"])

    def test_it_says_why_it_leaves_a_root_alone(self):
        image, volume = self.bundle(), self.bundle()
        bind = f"mount --bind {image.root} {image.root}"
        read_only = f"{bind}; mount -o remount,bind,ro {image.root}"
        for commands, reason in (("mount -t tmpfs tmpfs /proc", "cannot tell the mounts at the container's root"),
                                 (f"{bind}; mount --bind {volume.root} {image.root}", "a volume lies on the"),
                                 (read_only, "read-only, and not by the runtime"),
                                 (f"{read_only}; {bind}; mount -o remount,bind,ro {image.root}",
                                  "read-only, and not by the runtime")):
            with self.subTest(commands=commands):
                said = self.run_hook_after(commands, self.state(image))
                self.assertIn("container c1 runs without gpumux: ", said)
                self.assertIn(reason, said)
                for root in (image, volume):
                    self.assertFalse(root.path("/etc/ld.so.preload").exists())
        self.assertEqual(self.run_hook_after(bind, self.state(image)), "")
        self.assertEqual(self.listed(image), "/opt/libgpumux.so\n")

    def test_a_list_with_an_entry_that_the_hook_cannot_look_up(self):
        for entry in ("libgpumux.so", "opt/libgpumux.so", "/$LIB/libgpumux.so"):
            with self.subTest(entry=entry):
                image = self.bundle()
                image.path("/etc/ld.so.preload").write_text(entry)
                self.assertIn(f"names {entry}, which is no absolute path", self.run_hook(self.state(image)))
                self.assertEqual(self.listed(image), entry)

    def stick(self, image):
        """Lets a hook stick in the image. Returns its worker's files; None if the machine is too busy to see them."""
        with Held(image.path("/etc/ld.so.preload")) as held:
            leaked = os.open("/", os.O_RDONLY)
            hook = self.start_hook(pass_fds=[leaked], cwd="/tmp")
            os.close(leaked)
            self.say(hook, self.state(image))
            try:
                held.wait()
                worker = int(pathlib.Path(f"/proc/{hook.pid}/task/{hook.pid}/children").read_text())
                process = pathlib.Path(f"/proc/{worker}")
                links = [process / "cwd", process / "root", *(process / "fd").iterdir()]
                files = {os.readlink(link) for link in links}
            except (OSError, ValueError):
                return None
            finally:
                self.assertEqual(hook.wait(HANG), 0)
        try:
            os.waitpid(worker, 0)
        except ChildProcessError:
            return files
        return None  # the guard has not waited for it: it came to this process

    def test_a_stuck_worker_has_nothing_of_the_host(self):
        image = self.bundle()
        image.path("/etc/ld.so.preload").touch()
        PR_SET_CHILD_SUBREAPER = 36
        self.assertEqual(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0)
        for file in wait_until(lambda: self.stick(image), HANG, "the guard has waited for a worker that sticks"):
            self.assertTrue(file.startswith("pipe:") or pathlib.Path(file).is_relative_to(image.root), file)

    def test_a_state_that_the_worker_does_not_survive(self):
        # The address space is too small for what the parser makes of it.
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (32 << 20, 32 << 20))

        def worker_is_ended():
            hook = self.start_hook(preexec_fn=limit)
            _, said = hook.communicate('{"bundle": [' + "1," * 900_000 + "1]}", timeout=HANG)
            self.assertEqual(hook.returncode, 0)
            self.assertIn("gpumux-cdi-hook: container (no id) runs without gpumux: ", said)
            return said.endswith(": the worker was ended by signal 6\n")

        # On a busy machine the hook's own time may be over before that.
        wait_until(worker_is_ended, HANG, "the worker does not survive")

    def test_it_reads_whatever_the_runtime_says(self):
        # crun starts no container if a hook leaves before it has written the whole state.
        for arguments, text in ((["--wrong"], "x" * (1 << 20)), (["--library", "/x"], "x" * (4 << 20)),
                                (["--library", "/x"], "{}")):
            with self.subTest(arguments=arguments, size=len(text)):
                hook = subprocess.Popen([paths.HOOK, *arguments], stdin=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, env={})
                self.addCleanup(hook.communicate)
                self.addCleanup(hook.kill)
                self.say(hook, text)
                self.assertEqual(hook.wait(HANG), 0)
                self.assertIn("container (no id) runs without gpumux: ", hook.stderr.read())

    def test_it_ends_in_time(self):
        # Whatever it waits for: a state that does not end, an image that does not answer, a reader that does not.
        held = self.bundle()
        with Held(held.root / "config.json"):
            endless = self.start_hook()
            stuck = self.start_hook()
            self.say(stuck, self.state(held))
            reading, writing = os.pipe()
            os.set_blocking(writing, False)
            with contextlib.suppress(BlockingIOError):
                while os.write(writing, b"x" * 4096):
                    pass
            os.set_blocking(writing, True)
            unheard = self.start_hook(stderr=writing)
            self.say(unheard, "{}")
            # kLongestSeconds is 2; the rest is for a busy machine.
            for hook in (endless, stuck, unheard):
                self.assertEqual(hook.wait(HANG), 0)
            os.close(reading)
            os.close(writing)
            self.assertIn("container (no id) runs without gpumux: the container's state on standard input did not end",
                          endless.stderr.read())
            self.assertIn("container c1 runs without gpumux: the image could not be changed in time",
                          stuck.stderr.read())
        self.assertFalse(held.path("/etc/ld.so.preload").exists())

    def test_it_ends_in_time_with_signals_blocked(self):
        # crun blocks all signals while hooks run. The hook inherits that, and has to be stopped by one.
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while os.write(writing, b"x" * 4096):
                pass
        os.set_blocking(writing, True)
        blocked = lambda: signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        unheard = self.start_hook(stderr=writing, preexec_fn=blocked)
        self.say(unheard, "{}")
        self.assertEqual(unheard.wait(HANG), 0)
        os.close(reading)
        os.close(writing)

    def test_closed_descriptors_harm_nothing(self):
        image = self.bundle()
        (image.root / "state").write_text(self.state(image))
        subprocess.run(["/bin/sh", "-c", 'exec "$0" --library /opt/libgpumux.so <"$1" >&- 2>&-', paths.HOOK,
                        image.root / "state"], check=True, env={})
        self.assertEqual(self.listed(image), "/opt/libgpumux.so\n")
        subprocess.run(["/bin/sh", "-c", 'exec "$0" --library /opt/libgpumux.so <&- >&- 2>&-', paths.HOOK], check=True,
                       env={})

    @unittest.skipUnless(os.uname().machine == "x86_64", "elsewhere the environment is emptied at the start of main")
    def test_its_c_library_sees_no_variable(self):
        environment = {"GLIBC_TUNABLES": "glibc.malloc.perturb=85", "A": "1", "B": ""}
        for program, expected in (("first_allocation", "byte=170 variables=3 arguments=3 last=b page=1"),
                                  ("first_allocation_emptied", "byte=0 variables=0 arguments=3 last=b page=1")):
            for variables in (environment, {}):
                done = subprocess.run([paths.PROGRAMS / program, "a", "b"], env=variables, capture_output=True,
                                      text=True, check=True)
                if variables:
                    self.assertEqual(done.stdout.strip(), expected)
                else:
                    self.assertIn("variables=0 arguments=3 last=b page=1", done.stdout)


if __name__ == "__main__":
    main()
