#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks the driver for every entry of the table through dlsym and cuGetProcAddress and says what it got, as one JSON
object.

run.py starts it twice, natively and with libgpumux.so preloaded, and compares (see compare). Needs a driver, but no
initialisation of it and no free GPU.
"""
import collections
import ctypes
import json
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TABLE = os.path.join(HERE, "..", "..", "src", "cuda", "entries.table")
LOOKUPS = os.path.join(HERE, "..", "data", "pytorch-2.11-cu130-lookups.txt")

PER_THREAD = 2
FLAGS = (0, 1, 2)
# Versions that programs were built for, beside those at which an entry appeared.
COMMON_VERSIONS = (10000, 11000, 11040, 12000, 12080, 13000)

Entry = collections.namedtuple("Entry", "symbol name since variant action")


class DlInfo(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("symbol", ctypes.c_char_p),
                ("address", ctypes.c_void_p)]


def read_table():
    entries = []
    with open(TABLE) as file:
        for line in file:
            cells = [cell.strip() for cell in line.split("|")]
            if line.startswith("cu") and len(cells) >= 7:
                # "-" where cuGetProcAddress does not know the entry.
                name, since = (cells[1], int(cells[2])) if cells[2] != "-" else (None, 0)
                entries.append(Entry(cells[0], name, since, cells[3], cells[5]))
    if len(entries) < 500:
        sys.exit(f"{TABLE} has only {len(entries)} entries that could be read")
    return entries


def expected(entries, name, version, flags):
    """The symbol that the table says cuGetProcAddress gives: what find_versioned of src/cuda/entries.cc does, written
    again."""
    named = sorted((entry for entry in entries if entry.name == name), key=lambda entry: entry.since)
    threaded = [entry for entry in named if entry.variant in ("ptds", "ptsz")]
    pool = threaded if threaded and flags & PER_THREAD else [entry for entry in named if entry not in threaded]
    fitting = [entry.symbol for entry in pool if entry.since <= version]
    return fitting[-1] if fitting else None


def questions(entries):
    asked = set()
    for entry in entries:
        if entry.name is None:
            continue
        sinces = {other.since for other in entries if other.name == entry.name}
        for version in sinces | {since - 10 for since in sinces} | set(COMMON_VERSIONS):
            for flags in FLAGS:
                asked.add((entry.name, max(version, 0), flags))
    with open(LOOKUPS) as file:
        for line in file:
            found = re.match(r"cuGetProcAddress_v2 (cu\w+) v(\d+) fl(\d+) ", line)
            if found:
                asked.add((found[1], int(found[2]), int(found[3])))
    return sorted(asked)


def collect():
    entries = read_table()
    cuda = ctypes.CDLL("libcuda.so.1")
    libc = ctypes.CDLL(None)
    libc.dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(DlInfo)]

    def place(address):
        info = DlInfo()
        if not address or not libc.dladdr(address, ctypes.byref(info)) or not info.file:
            return None, None
        exact = info.symbol.decode() if info.symbol and info.address == address else None
        return os.path.basename(info.file.decode()), exact

    by_dlsym = {}
    names_at = collections.defaultdict(list)
    for entry in entries:
        try:
            address = ctypes.cast(getattr(cuda, entry.symbol), ctypes.c_void_p).value
        except AttributeError:
            by_dlsym[entry.symbol] = [None, None]
            continue
        by_dlsym[entry.symbol] = list(place(address))
        names_at[address].append(entry.symbol)

    ask = cuda.cuGetProcAddress_v2
    ask.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p]
    by_lookup = []
    for name, version, flags in questions(entries):
        found = ctypes.c_void_p()
        status = ctypes.c_int(-1)
        result = ask(name.encode(), ctypes.byref(found), version, flags, ctypes.byref(status))
        library, exact = place(found.value)
        # The symbol by the address that dlsym gave; what dladdr says only where that knows none (two names of one
        # function differ).
        symbols = names_at.get(found.value) or ([exact] if exact else [])
        by_lookup.append([name, version, flags, result, library, symbols])
    json.dump({"dlsym": by_dlsym, "lookup": by_lookup,
               "preloaded": any("libgpumux" in (at or "") for at, _ in by_dlsym.values())}, sys.stdout)


def compare(native, preloaded):
    """Lists of disagreements: the driver with our table, and the preloaded library with the driver."""
    entries = read_table()
    hooked = {entry.symbol for entry in entries if not entry.action.startswith("forward")}
    missing, table, doors, lookups = [], [], [], []
    for symbol, (library, _) in native["dlsym"].items():
        ours = (preloaded["dlsym"][symbol][0] or "").startswith("libgpumux")
        if library is None:
            missing.append(symbol)
        elif ours != (symbol in hooked):
            doors.append(f"dlsym {symbol}: {preloaded['dlsym'][symbol][0]}")
    for before, after in zip(native["lookup"], preloaded["lookup"]):
        name, version, flags, result, library, symbols = before
        question = f"{name} v{version} flags {flags}"
        want = expected(entries, name, version, flags)
        if library is None:
            if want is not None and want not in missing:
                table.append(f"{question}: the driver has none (result {result}), the table says {want}")
        elif want not in symbols:
            table.append(f"{question}: the driver gives {symbols}, the table says {want}")
        if after[:3] != before[:3] or after[3] != result or (after[4] is None) != (library is None):
            lookups.append(f"{question}: native {before[3:]}, preloaded {after[3:]}")
        elif library is not None:
            real = [symbol for symbol in symbols if symbol in hooked]
            if real and not (after[4].startswith("libgpumux") and set(after[5]) & set(symbols)):
                lookups.append(f"{question}: native {symbols}, preloaded {after[4]} {after[5]}")
            elif not real and after[4].startswith("libgpumux"):
                lookups.append(f"{question}: native {symbols} is not hooked, preloaded {after[5]}")
    return {"missing": missing, "table": table, "doors": doors, "lookups": lookups, "hooked": len(hooked),
            "symbols": len(native["dlsym"]), "questions": len(native["lookup"])}


if __name__ == "__main__":
    collect()
