# SPDX-License-Identifier: Apache-2.0
"""The first process of a node (node.py): node_init.py WRITABLE DIRECTORY ALIVE_FD HIERARCHY...

It runs in mount, network, pid and cgroup namespaces of its own, which end with it. It makes them look like a machine
that nothing else uses, says `ready`, and ends when the other end of ALIVE_FD is closed.
"""

import fcntl
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys

# The kubelet writes these values to the machine, unless they are there. Here it finds a file with the value.
KERNEL_TUNABLES = {"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10",
                   "kernel/panic_on_oops": "1", "kernel/keys/root_maxkeys": "1000000",
                   "kernel/keys/root_maxbytes": "25000000"}

# The node's own address, and that of the API server as a service. Both are the loopback device's.
ADDRESSES = ("192.0.2.1", "10.96.0.1")


def mount(*arguments):
    subprocess.run(["mount", *(str(argument) for argument in arguments)], check=True)


def mount_tunables(directory):
    folder = directory / "tunables"
    folder.mkdir()
    mount("--bind", "-o", "ro", "/proc/sys", "/proc/sys")
    for name, value in KERNEL_TUNABLES.items():
        file = folder / name.replace("/", ".")
        file.write_text(value + "\n", encoding="ascii")
        mount("--bind", file, f"/proc/sys/{name}")


def mount_folders(writable, directory):
    """The kubelet's, containerd's and our pods' paths are fixed, so these folders are the node's own; the files of the
    machine's /var and /etc stay visible. Else the root file system is read-only, but for the test's folder."""
    for folder in ("/run", "/opt"):
        mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", folder)
    # As systemd has it: what a container mounts there reaches the node, if the container may do that.
    mount("--make-shared", "/run")
    (directory / "kubelet").mkdir()
    for name in ("var", "etc"):
        for folder in (name, name + "-work"):
            (directory / folder).mkdir()
        mount("-t", "overlay", "-o", f"lowerdir=/{name},upperdir={directory}/{name},workdir={directory}/{name}-work",
              "overlay", f"/{name}")
    # Sockets made through an overlay cannot be reached from outside of it.
    pathlib.Path("/var/lib/kubelet").mkdir(exist_ok=True)
    mount("--bind", directory / "kubelet", "/var/lib/kubelet")
    mount("--bind", writable, writable)
    mount("-o", "remount,bind,ro", "/")


def mount_hierarchies(hierarchies):
    """This node's cgroups only: the root of each hierarchy is the cgroup in which this process was started."""
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/sys/fs/cgroup")
    for controllers in hierarchies:
        place = pathlib.Path("/sys/fs/cgroup", controllers.removeprefix("name="))
        place.mkdir()
        mount("-t", "cgroup", "-o", f"none,{controllers}" if "=" in controllers else controllers, "cgroup", place)


def set_up_network():
    siocgifflags, siocsifflags, iff_up = 0x8913, 0x8914, 0x1
    siocsifaddr, siocsifnetmask = 0x8916, 0x891c
    with socket.socket() as control:
        name, flags = struct.unpack("16sh", fcntl.ioctl(control, siocgifflags, struct.pack("16sh", b"lo", 0)))
        fcntl.ioctl(control, siocsifflags, struct.pack("16sh", name, flags | iff_up))
        for number, address in enumerate(ADDRESSES):
            for request, value in ((siocsifaddr, address), (siocsifnetmask, "255.255.255.255")):
                fcntl.ioctl(control, request, struct.pack("16sHH4s8x", b"lo:%d" % number, socket.AF_INET, 0,
                                                          socket.inet_aton(value)))


def main():
    writable, directory, alive = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
    mount_tunables(directory)
    mount_hierarchies(sys.argv[4:])
    mount_folders(writable, directory)
    set_up_network()
    # As the first process it inherits all orphans of the node: the kernel reaps them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    os.read(alive, 1)


if __name__ == "__main__":
    main()
