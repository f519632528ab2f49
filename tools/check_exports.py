#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what a finished libgpumux.so shows to and wants from the programs that it is preloaded into.

    tools/check_exports.py LIBRARY --map VERSION_SCRIPT [--glibc 2.28]

The exports are exactly the version script's: one name too few is a way past the gate, one too many can take the place
of a program's own function. It needs nothing but the C library, in no newer version than the oldest supported
platform's. Its stack is not executable, it carries no search path and needs no relocation of its code. On x86-64 its
entries begin with instructions that tools which patch functions (UCX) can copy elsewhere. And it destroys no object
when the program ends, for the driver and other libraries go on calling it (seen where it is not stripped).
"""

import argparse
import pathlib
import re
import subprocess
import sys

ALLOWED_LIBRARIES = {"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def readelf(library, *options):
    result = subprocess.run(["readelf", "-W", *options, str(library)], capture_output=True, text=True, check=False,
                            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"})
    if result.returncode != 0 or "Error" in result.stderr:
        raise SystemExit(f"exports: cannot read {library}: {result.stderr.strip()}")
    return result.stdout


def listed_exports(script):
    """The names in the `global:` parts of a version script. Patterns are refused: the list is to be exact."""
    text = re.sub(r"/\*.*?\*/|#[^\n]*", "", script, flags=re.DOTALL)
    names = set()
    for part in re.findall(r"global\s*:(.*?)(?=local\s*:|\})", text, re.DOTALL):
        names |= {name.strip() for name in part.split(";") if name.strip()}
    patterns = sorted(name for name in names if not re.fullmatch(r"\w+", name))
    return names, patterns


def dynamic_symbols(library):
    """(defined names, undefined names with their versions) of the dynamic symbol table."""
    defined, undefined = set(), {}
    for line in readelf(library, "--dyn-syms").splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].rstrip(":").isdigit():
            continue
        name, _, version = fields[7].partition("@")
        if fields[6] == "UND":
            undefined[name] = version.lstrip("@")
        elif fields[4] in ("GLOBAL", "WEAK", "UNIQUE"):
            defined.add(name)
    return defined, undefined


# As long as a jump to anywhere.
PATCHED_BYTES = 12
MOVABLE = re.compile(r"push +%r\w+|mov +%rsp,%rbp|sub +\$0x[0-9a-f]+,%rsp")


def functions(library):
    """The disassembled functions, each as text."""
    result = subprocess.run(["objdump", "-d", "--no-addresses", "-w", str(library)], capture_output=True, text=True,
                            check=True, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"})
    return result.stdout.split("\n\n")


def static_destructors(blocks):
    """Functions that have an object destroyed at the end of the program."""
    found = set()
    for block in blocks:
        name = re.match(r"<([^>]+)>:\n", block)
        if name and name.group(1) not in ("atexit", "__cxa_atexit@plt") and "<__cxa_atexit@plt>" in block:
            found.add(name.group(1))
    return found


def fixed_beginnings(blocks):
    """{entry of the driver's: the first instruction within PATCHED_BYTES that no patching tool can copy}"""
    found = {}
    for block in blocks:
        name = re.match(r"<(cu\w+)(?:@@\w+)?>:\n", block)
        done = 0
        for line in block.splitlines()[1:] if name else ():
            code, _, instruction = line.strip().partition("\t")
            if done >= PATCHED_BYTES:
                break
            if not MOVABLE.fullmatch(instruction.strip()):
                found[name.group(1)] = instruction.strip()
                break
            done += len(code.split())
    return found


def version_of(text):
    return tuple(int(number) for number in text.split("."))


def check(library, script, oldest):
    names, patterns = listed_exports(script)
    problems = [f"the version script has a pattern, {pattern}: list the names" for pattern in patterns]
    defined, undefined = dynamic_symbols(library)
    for name in sorted(names - defined):
        problems.append(f"{name} is in the list and not exported: programs would get the driver's own")
    problems += [f"{name} is exported and not in the list" for name in sorted(defined - names)]
    for name, version in sorted(undefined.items()):
        match = re.fullmatch(r"GLIBC_([0-9.]+)", version)
        if match and version_of(match.group(1)) > version_of(oldest):
            problems.append(f"{name} is wanted in version {version}; the oldest platform has GLIBC_{oldest}")
        elif version and not match:
            problems.append(f"{name} is wanted in version {version}, which is not the C library's")
    dynamic = readelf(library, "-d")
    for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
        if needed not in ALLOWED_LIBRARIES:
            problems.append(f"needs {needed}: it would be loaded into every program")
    for tag in ("RPATH", "RUNPATH", "TEXTREL"):
        if f"({tag})" in dynamic:
            problems.append(f"has {tag}")
    stack = re.search(r"^\s*GNU_STACK\s+(?:0x\w+\s+){5}(\S+(?: \S+)?)\s+0x", readelf(library, "-l"), re.MULTILINE)
    if stack is None or "E" in stack.group(1):
        problems.append("its stack is executable: an assembly file lacks its .note.GNU-stack section")
    if "X86-64" in readelf(library, "-h"):
        blocks, sections = functions(library), readelf(library, "-S")
        problems += [f"{name} begins with \"{instruction}\", which cannot be copied elsewhere"
                     for name, instruction in sorted(fixed_beginnings(blocks).items())]
        problems += [f"{name} has an object destroyed when the program ends: other libraries still call us then"
                     for name in sorted(static_destructors(blocks) if ".symtab" in sections else ())]
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("--map", type=pathlib.Path, required=True)
    parser.add_argument("--glibc", default="2.28")
    arguments = parser.parse_args()
    problems = check(arguments.library, arguments.map.read_text(encoding="utf-8"), arguments.glibc)
    for problem in problems:
        print(f"exports: {arguments.library.name}: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
