# SPDX-License-Identifier: Apache-2.0
"""Starts a program in a sandbox that refuses system calls, as container runtimes do.

sandbox.py ERRNO CALL,CALL... COMMAND ARGUMENT...
"""

import ctypes
import errno
import os
import platform
import struct
import sys

# Of x86-64 and of arm64.
CALLS = {"close_range": (436, 436), "futex_waitv": (449, 449), "membarrier": (324, 283), "memfd_create": (319, 279),
         "pidfd_getfd": (438, 438), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "statx": (332, 291),
         "userfaultfd": (323, 282)}
LOAD_NUMBER, IF_EQUAL, RETURN = 0x20, 0x15, 0x06
REFUSE, ALLOW = 0x00050000, 0x7fff0000
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, MODE_FILTER = 22, 38, 2


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def sandbox(number, *calls):
    """The beginning of a command that is to run in it."""
    return ["/usr/bin/python3", os.path.abspath(__file__), errno.errorcode[number], ",".join(calls)]


def enter(number, calls):
    column = 1 if platform.machine() == "aarch64" else 0
    instructions = [(LOAD_NUMBER, 0, 0, 0)]
    for call in calls:
        instructions += [(IF_EQUAL, 0, 1, CALLS[call][column]), (RETURN, 0, 0, REFUSE | number)]
    instructions.append((RETURN, 0, 0, ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in instructions))
    program = Program(len(instructions), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for option, arguments in ((PR_SET_NO_NEW_PRIVS, (1, 0, 0, 0)),
                              (PR_SET_SECCOMP, (MODE_FILTER, ctypes.byref(program), 0, 0))):
        if libc.prctl(option, *arguments) != 0:
            raise OSError(ctypes.get_errno(), "no filter for system calls")


if __name__ == "__main__":
    enter(getattr(errno, sys.argv[1]), sys.argv[2].split(","))
    os.execvp(sys.argv[3], sys.argv[3:])
