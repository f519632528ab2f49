#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes everything that follows from src/cuda/entries.table, and refuses a table that would let a submission past the gate.

    tools/gen_cuda.py             writes the generated files
    tools/gen_cuda.py --verify    writes nothing; fails if a committed file is not what the table says

Why a table: a program reaches the driver by linked symbol, dlsym and cuGetProcAddress, in several versions and two stream variants of each
function. One forgotten combination is a hole in the gate that no test of ours would notice, because tests use the functions that their author
thought of. So the list comes from a real driver (tests/data), every line must say what is done with it, and this program checks that what it
says can be true: a stream taker is gated at that stream, a name's versions grow, a per-thread variant is named as the driver names it.

docs/entries.md describes the columns. Only the Python standard library is used, so that a build needs nothing more.
"""

import argparse
import difflib
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

TABLE = "src/cuda/entries.table"
EXPORTS = "tests/data/libcuda-580.159.04-exports.txt"
ABI_HEADERS = ("src/cuda/abi_enums.h", "src/cuda/abi.h")

CLASSES = (
    "launch graph_launch copy fill prefetch memop external callback sync query init lookup context stream capture event graph memory peer share "
    "module function texture interop debugger profiler checkpoint"
).split()

# Entries of these classes make the GPU work: forwarding one is a hole in the gate unless a reason says why it is none.
SUBMISSION_CLASSES = {"launch", "graph_launch", "copy", "fill", "prefetch", "memop", "external", "callback"}

VARIANTS = {"-": "kNone", "legacy": "kLegacy", "ptds": "kPtds", "ptsz": "kPtsz"}
ACTIONS = {"forward": "kForward", "gate": "kGate", "sync": "kSync", "hook": "kHook"}

# Types that name device memory or a stream. A structure that holds one of them counts too; those with a layout in abi.h are found there, and
# these are the ones without.
SENSITIVE_TYPES = {"CUdeviceptr", "CUdeviceptr_v1", "CUstream"}
OPAQUE_SENSITIVE_TYPES = {"CUDA_RESOURCE_DESC", "CUarrayMapInfo"}

# Entries in the table that the driver of tests/data does not export, with the reason.
NOT_EXPORTED = {}

PEER_PARAMS = "const CUDA_MEMCPY3D_PEER*"


class TableError(Exception):
    """One or more reasons why the table is refused, one a line."""


@dataclass(frozen=True)
class Parameter:
    type: str
    name: str


@dataclass
class Where:
    """Which seat a call belongs to: an expression over the call's parameters."""

    kind: str
    names: tuple = ()


@dataclass
class Entry:
    line: int
    symbol: str
    api_name: str
    since: int
    variant: str
    entry_class: str
    action: str
    where: Where | None
    result: str
    parameters: list | None  # None: the prototype is not known
    reason: str = ""

    @property
    def hooked(self):
        return self.action != "forward"

    def declaration(self, name=None):
        """The function's declaration, without a semicolon."""
        listed = ", ".join(f"{spell(p.type)} {p.name}" for p in self.parameters)
        return f"{self.result} {name or self.symbol}({listed})"


@dataclass
class Layouts:
    """What abi.h says: the structures with their members in order, and the enumerations with their values."""

    structures: dict = field(default_factory=dict)  # name -> [(type, member)]
    enumerations: dict = field(default_factory=dict)  # name -> [enumerator]

    def member(self, structure, name):
        for type_, member in self.structures.get(structure, []):
            if member == name:
                return type_
        return None

    def holds_sensitive(self, type_):
        base = base_type(type_)
        if base in SENSITIVE_TYPES or base in OPAQUE_SENSITIVE_TYPES:
            return True
        return any(self.holds_sensitive(t) for t, _ in self.structures.get(base, []) if base_type(t) != base)


def base_type(type_):
    return re.sub(r"\bconst\b|\bstd::|[*&\s]", "", type_)


def spell(type_):
    return re.sub(r"\b(size_t|uint32_t|uint64_t)\b", r"std::\1", type_)


# Reading


def parse_where(text):
    kind, _, names = text.partition("=")
    return Where(kind, tuple(n.strip() for n in names.split(",")) if names else ())


def parse_prototype(text):
    match = re.fullmatch(r"(\w+)\((.*)\)", text)
    if not match:
        raise ValueError(f"prototype '{text}' is not of the form result(type name, ...)")
    parameters = []
    for part in filter(None, (p.strip() for p in match[2].split(","))):
        piece = re.fullmatch(r"(.+?[\s*])(\w+)", part)
        if not piece:
            raise ValueError(f"parameter '{part}' is not of the form 'type name'")
        parameters.append(Parameter(piece[1].strip(), piece[2]))
    return match[1], parameters


def parse_line(number, line):
    columns = [c.strip() for c in line.split("|")]
    if len(columns) not in (7, 8):
        raise ValueError(f"{len(columns)} columns where 7 or 8 are expected")
    symbol, api_name, since, variant, entry_class, action, prototype = columns[:7]
    action_match = re.fullmatch(r"(\w+|-)(?:\((.*)\))?", action)
    if not action_match:
        raise ValueError(f"{symbol}: action '{action}' is not of the form name or name(where)")
    result, parameters = ("CUresult", None) if prototype == "?" else parse_prototype(prototype)
    return Entry(
        line=number,
        symbol=symbol,
        api_name="" if api_name == "-" else api_name,
        since=0 if since == "-" else int(since),
        variant=variant,
        entry_class=entry_class,
        action=action_match[1],
        where=parse_where(action_match[2]) if action_match[2] is not None else None,
        result=result,
        parameters=parameters,
        reason=columns[7] if len(columns) == 8 else "",
    )


def parse_table(text):
    entries, problems = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            entries.append(parse_line(number, line))
        except ValueError as error:
            problems.append(f"line {number}: {error}")
    if problems:
        raise TableError("\n".join(problems))
    return sorted(entries, key=lambda e: e.symbol.encode())


def parse_layouts(*texts):
    """Reads our own headers, which are written plainly: one member a line, nested structures named on their own."""
    layouts = Layouts()
    for text in texts:
        text = re.sub(r"//[^\n]*", "", text)
        for kind, name, body in re.findall(r"^(struct|union|enum) (\w+)(?: : unsigned int)? \{\n(.*?)^\};", text, re.M | re.S):
            if kind == "enum":
                layouts.enumerations[name] = re.findall(r"^\s+(\w+)\s*=", body, re.M)
                continue
            body = re.sub(r"union \{[^}]*\} (\w+);", r"union \1;", body)
            layouts.structures[name] = [
                (type_.strip(), member) for type_, member in re.findall(r"^\s+([\w:]+(?: [\w:]+)*[\s*]+)(\w+)(?:\[[^\]]*\])?;", body, re.M)
            ]
    return layouts


# Checking


def without_suffix(symbol):
    return re.sub(r"(_v\d+)?(_ptds|_ptsz)?$", "", symbol)


def check_where(entry, layouts):
    """Says what is wrong with an entry's `where`: every name in it is a parameter, and of the type that its kind needs."""
    by_name = {p.name: p.type for p in entry.parameters}
    kind, names = entry.where.kind, entry.where.names
    shapes = {
        "gate": {
            "default": (),
            "stream": ("stream",),
            "contexts": ("context", "context"),
            "contexts_stream": ("context", "context", "stream"),
            "peer_params": ("peer",),
            "peer_params_stream": ("peer", "stream"),
        },
        "sync": {"context": (), "context_of": ("context",), "stream": ("stream",), "event": ("event",)},
    }[entry.action]
    needed = {"stream": "CUstream", "context": "CUcontext", "event": "CUevent", "peer": PEER_PARAMS}
    if kind not in shapes:
        yield f"unknown place '{kind}' for {entry.action}; known are {', '.join(shapes)}"
        return
    if len(names) != len(shapes[kind]):
        yield f"place '{kind}' takes {len(shapes[kind])} parameters, not {len(names)}"
        return
    for name, role in zip(names, shapes[kind]):
        pointed, _, member = name.partition("->")
        plain = pointed.lstrip("*")
        if plain not in by_name:
            yield f"place names parameter '{plain}', which does not exist"
            continue
        type_ = by_name[plain]
        if name.startswith("*"):
            type_ = type_.removesuffix("*").strip() if type_.endswith("*") else f"what is no pointer ({type_})"
        elif member:
            type_ = layouts.member(base_type(type_), member) or f"no member {member} of {base_type(type_)}"
        if type_ != needed[role]:
            yield f"place names '{name}' as {needed[role]}, but it is {type_}"
    streams = [p.name for p in entry.parameters if p.type == "CUstream"]
    if streams and entry.action == "gate" and not any(s in names for s in streams):
        yield f"takes stream '{streams[0]}', but its place does not name it"


def check_entry(entry, layouts):
    sensitive = [p for p in entry.parameters or [] if layouts.holds_sensitive(p.type)]
    if entry.entry_class in ("", "-") or entry.action in ("", "-"):
        missing = "class" if entry.entry_class in ("", "-") else "action"
        if sensitive:
            yield f"takes '{sensitive[0].type} {sensitive[0].name}', a device pointer or stream, and has no {missing}"
        else:
            yield f"has no {missing}"
        return
    if entry.entry_class not in CLASSES:
        yield f"unknown class '{entry.entry_class}'"
    if entry.action not in ACTIONS:
        yield f"unknown action '{entry.action}'"
        return
    if entry.variant not in VARIANTS:
        yield f"unknown stream variant '{entry.variant}'"
    suffix = re.search(r"_(ptds|ptsz)$", entry.symbol)
    if (suffix[1] if suffix else None) != (entry.variant if entry.variant in ("ptds", "ptsz") else None):
        yield f"stream variant '{entry.variant}' does not fit the symbol's name"
    if entry.api_name and entry.api_name != without_suffix(entry.symbol):
        yield f"is asked for as '{entry.api_name}', but the symbol is a version of '{without_suffix(entry.symbol)}'"
    if bool(entry.api_name) != bool(entry.since):
        yield "has a name for cuGetProcAddress without a version, or a version without a name"
    if entry.parameters is None:
        if entry.action != "forward" or not entry.reason:
            yield "has no prototype; only a forwarded entry with a stated reason may"
        return
    names = [p.name for p in entry.parameters]
    for name in sorted({n for n in names if names.count(n) > 1}):
        yield f"has two parameters '{name}'"
    if (entry.where is not None) != (entry.action in ("gate", "sync")):
        yield f"action {entry.action} {'needs a' if entry.where is None else 'takes no'} place"
        return
    if entry.entry_class in SUBMISSION_CLASSES and entry.action not in ("gate", "hook") and not entry.reason:
        yield f"class {entry.entry_class} makes the GPU work; it must be gated, or say why not"
    if (entry.entry_class == "sync") != (entry.action == "sync"):
        yield "class sync and action sync go together"
    if entry.where is not None:
        if entry.action == "gate" and entry.variant == "-":
            yield "is gated and so needs a stream variant"
        yield from check_where(entry, layouts)


def check_versions(entries):
    seen = {}
    for entry in entries:
        if not entry.api_name:
            continue
        per_thread = entry.variant in ("ptds", "ptsz")
        number = int((re.search(r"_v(\d+)", entry.symbol) or (0, 1))[1])
        for other_number, other in seen.setdefault((entry.api_name, per_thread), []):
            if (number < other_number) != (entry.since < other.since):
                yield f"{entry.symbol}: its version {entry.since} and {other.symbol}'s {other.since} are not in order"
        seen[(entry.api_name, per_thread)].append((number, entry))


def check(entries, layouts, exports):
    """Raises TableError with everything that is wrong."""
    problems = []
    symbols = [e.symbol for e in entries]
    for symbol in sorted({s for s in symbols if symbols.count(s) > 1}):
        problems.append(f"{symbol}: is in the table twice")
    for entry in entries:
        problems += [f"{entry.symbol} (line {entry.line}): {p}" for p in check_entry(entry, layouts)]
    problems += check_versions(entries)
    for symbol in sorted(set(exports) - set(symbols)):
        problems.append(f"{symbol}: is exported by the driver ({EXPORTS}) and is not in the table")
    for symbol in sorted(set(symbols) - set(exports) - set(NOT_EXPORTED)):
        problems.append(f"{symbol}: is in the table and not exported by the driver ({EXPORTS}); if that is right, list it in NOT_EXPORTED")
    if problems:
        raise TableError("\n".join(problems))


# Writing


def banner(comment="//"):
    return f"{comment} GENERATED by tools/gen_cuda.py from {TABLE}. Do not edit.\n"


def source(what, includes, body):
    """A generated C++ source: what it is, its includes, its body."""
    lines = [banner().rstrip(), "// SPDX-License-Identifier: Apache-2.0", f"// {what}"]
    if what.endswith("(header)"):
        lines[-1] = lines[-1].removesuffix(" (header)")
        lines.append("#pragma once")
    lines += ["// clang-format off", "// NOLINTBEGIN", ""]
    lines += [f"#include {i}" if i else "" for i in includes]
    return "\n".join(lines + ["", body.strip("\n"), "", "// NOLINTEND", "// clang-format on"]) + "\n"


def camel(word):
    return "k" + "".join(part.capitalize() for part in word.split("_"))


def entries_header(entries):
    index = {e.symbol: e for e in entries}
    rows = [
        f'    {{"{e.symbol}", "{e.api_name}", {e.since}, StreamVariant::{VARIANTS[e.variant]}, EntryClass::{camel(e.entry_class)}, '
        f"Action::{ACTIONS[e.action]}}},"
        for e in entries
    ]
    versioned = sorted((e for e in entries if e.api_name), key=lambda e: (e.api_name.encode(), e.variant in ("ptds", "ptsz"), e.since))
    assert len(index) == len(entries)
    body = "\n".join(
        ["namespace gpumux::cuda {", "", "// In the byte order of the symbols.", "enum class Entry : std::uint16_t {"]
        + [f"  {e.symbol}," for e in entries]
        + ["  kCount,", "};", "", "inline constexpr std::size_t kEntryCount = static_cast<std::size_t>(Entry::kCount);", ""]
        + ["// Indexed by Entry.", "inline constexpr std::array<EntryInfo, kEntryCount> kEntries = {{"]
        + rows
        + ["}};", ""]
        + ["// By name asked of cuGetProcAddress, then per-thread stream variants last, then version."]
        + [f"inline constexpr std::array<Entry, {len(versioned)}> kVersionedEntries = {{{{"]
        + [f"    Entry::{e.symbol}," for e in versioned]
        + ["}};", "", "}  // namespace gpumux::cuda"]
    )
    return source("The driver's entry points as numbers, and what the table says of each. (header)",
                  ["<array>", "<cstddef>", "<cstdint>", "", '"cuda/entry_types.h"'], body)


def typed(entries):
    return [e for e in entries if e.parameters is not None]


def driver_header(entries):
    slots = [
        f"    offsetof(Driver, {e.symbol})," if e.parameters is not None else f"    kNoDriverSlot,  // {e.symbol}" for e in entries
    ]
    body = "\n".join(
        ["namespace gpumux::cuda {", "", "// One typed pointer for every entry point whose prototype is known; null where the driver lacks it.", "struct Driver {"]
        + [f"  {e.declaration(f'(*{e.symbol})')} = nullptr;" for e in typed(entries)]
        + ["};", "", "inline constexpr std::size_t kNoDriverSlot = static_cast<std::size_t>(-1);", ""]
        + ["// Where each entry's pointer lies in Driver. Indexed by Entry.", "inline constexpr std::array<std::size_t, kEntryCount> kDriverSlots = {{"]
        + slots
        + ["}};", "", "}  // namespace gpumux::cuda"]
    )
    return source("The driver's entry points as typed pointers. (header)", ["<array>", "<cstddef>", "", '"cuda/abi.h"', '"cuda/entries.h"'], body)


def prototypes_header(entries):
    body = "\n".join(
        ["namespace gpumux::cuda {", 'extern "C" {', ""] + [f"{e.declaration()};" for e in typed(entries)] + ["", '}  // extern "C"', "}  // namespace gpumux::cuda"]
    )
    return source("The driver's entry points as functions, for who defines them or links to them. (header)", ['"cuda/abi.h"'], body)


def place_expression(entry):
    """The C++ expression of the seat that a call belongs to."""
    variant = f"StreamVariant::{VARIANTS[entry.variant]}"
    names = []
    for name in entry.where.names:
        pointer, _, member = name.partition("->")
        if name.startswith("*"):
            names.append(f"{name[1:]} == nullptr ? nullptr : {name}")
        elif member:
            names.append(f"{pointer} == nullptr ? nullptr : {name}")
        else:
            names.append(name)
    kind = entry.where.kind
    if entry.action == "sync" and kind in ("context", "context_of", "event"):
        return f"at_{kind.removesuffix('_of')}({', '.join(names)})"
    return f"at_{kind}({', '.join(names + [variant])})"


def shim_exports(entries):
    lines = ["namespace gpumux::shim {", "", "using namespace cuda;", "", "// Seats that cannot be mistaken: each function says where its work goes, and the gate does the rest."]
    lines += ['extern "C" {', ""]
    for e in entries:
        if not e.hooked:
            continue
        arguments = [p.name for p in e.parameters]
        if e.action == "hook":
            call = f"hooks::{e.symbol}({', '.join(arguments)})"
        else:
            function = {"gate": "submit", "sync": "synchronise"}[e.action]
            call = f"{function}({', '.join([f'Entry::{e.symbol}', place_expression(e), f'driver().{e.symbol}'] + arguments)})"
        lines += [f"GPUMUX_EXPORT {e.declaration()} {{", f"  return {call};", "}", ""]
    lines += ['}  // extern "C"', "", "}  // namespace gpumux::shim"]
    includes = ['"cuda/driver.gen.h"', '"cuda/entries.h"', '"cuda/prototypes.gen.h"', '"shim/hooks.gen.h"', '"shim/submit.h"']
    body = '#define GPUMUX_EXPORT __attribute__((visibility("default")))\n\n' + "\n".join(lines)
    return source("What programs find in place of the driver's functions: submissions, waits, and the way to hand-written hooks.", includes, body)


def hooks_header(entries):
    body = "\n".join(
        ["namespace gpumux::shim {", "", "using namespace cuda;", "", "// Written by hand, one for each entry that the table hooks.", "namespace hooks {", ""]
        + [f"{e.declaration()};" for e in entries if e.action == "hook"]
        + ["", "}  // namespace hooks", "", "// The address of our function for an entry, or null where the driver's own is used.", "const void* export_of(Entry entry);"]
        + ["", "}  // namespace gpumux::shim"]
    )
    return source("The entry points that the library handles by hand. (header)", ['"cuda/abi.h"', '"cuda/entries.h"'], body)


def export_table(entries):
    rows = [f"    reinterpret_cast<const void*>(&cuda::{e.symbol})," if e.hooked else f"    nullptr,  // {e.symbol}" for e in entries]
    body = "\n".join(
        ["namespace gpumux::shim {", "namespace {", "", "// Indexed by Entry.", "const std::array<const void*, cuda::kEntryCount> kExports = {{"]
        + rows
        + ["}};", "", "}  // namespace", "", "const void* export_of(Entry entry) {"]
        + ["  const auto index = static_cast<std::size_t>(entry);", "  return index < kExports.size() ? kExports[index] : nullptr;", "}"]
        + ["", "}  // namespace gpumux::shim"]
    )
    return source("The addresses of the library's own functions.", ["<array>", "<cstddef>", "", '"cuda/prototypes.gen.h"', '"shim/hooks.gen.h"'], body)


def version_script(what, symbols):
    lines = [banner("#").rstrip(), "# SPDX-License-Identifier: Apache-2.0"] + [f"# {w}" for w in what] + ["# NOLINT clang-format off", "{", "  global:"]
    return "\n".join(lines + [f"    {s};" for s in symbols] + ["  local:", "    *;", "};"]) + "\n"


SHIM_MAP = (
    "What libgpumux.so shows to others: every entry that is not forwarded, and dlsym and dlopen, which src/shim writes by hand.",
    "",
    "No version nodes, on purpose: a reference to dlsym@GLIBC_2.2.5, dlsym@GLIBC_2.34 or any other version binds to a library that defines the",
    "symbol without version information, so one definition stands before every version that any platform has. Nodes named after the C library's",
    "versions would have to be listed for each platform, and a reference to one that was forgotten would go past us.",
)
SIM_MAP = ("What the simulated libcuda.so.1 exports: all that the real one does, but the debugger's interface, which holds variables of unknown types.",)


def simulated(entries):
    return [e for e in entries if not e.symbol.startswith("cudbg")]


def sim_exports(entries):
    lines = ["namespace gpumux::sim {", "", "// Counts a call to an entry that is not simulated, so that a test can say what it would have needed.", "void unsupported(cuda::Entry entry);", ""]
    lines += ["}  // namespace gpumux::sim", "", "namespace gpumux::cuda {", 'extern "C" {', ""]
    for e in simulated(entries):
        types = ", ".join(spell(p.type) for p in e.parameters or [])
        lines += [f"GPUMUX_WEAK CUresult {e.symbol}({types}) {{", f"  sim::unsupported(Entry::{e.symbol});", "  return CUDA_ERROR_NOT_SUPPORTED;", "}", ""]
    lines += ['}  // extern "C"', "}  // namespace gpumux::cuda"]
    body = '#define GPUMUX_WEAK __attribute__((weak, visibility("default")))\n\n' + "\n".join(lines)
    what = (
        "Every entry point of the driver as a weak function that says \"not supported\". A definition elsewhere in the same library wins, as long as its\n"
        "// object is linked by name: from an archive it would not even be looked for, since the weak one satisfies every reference."
    )
    return source(what, ['"cuda/entries.h"', '"cuda/prototypes.gen.h"'], body)


def abi_check(entries, layouts):
    """Static assertions that our declarations are the vendor's; compiled only where there is a cuda.h."""
    lines = []
    for e in typed(entries):
        if e.entry_class in ("interop", "external") and re.match(r"cu(GL|EGL|VDPAU|Graphics(EGL|GL|VDPAU)|GraphicsResourceGetMappedEglFrame)", e.symbol):
            continue
        lines.append(f"#undef {e.symbol}")
        lines.append(f"GPUMUX_SAME_PROTOTYPE({e.symbol});")
    for name, enumerators in layouts.enumerations.items():
        lines.append(f"GPUMUX_SAME_SIZE({name});")
        lines += [f"GPUMUX_SAME_VALUE({enumerator});" for enumerator in enumerators]
    for name, members in layouts.structures.items():
        if name in OURS_ONLY_STRUCTURES:
            continue
        lines.append(f"GPUMUX_SAME_SIZE({name});")
        lines += [f"GPUMUX_SAME_MEMBER({name}, {member});" for _, member in members]
    return source("Our declarations against the vendor's. Included by abi_test.cc only.", [], "\n".join(lines))


# Structures that the vendor nests without a name or under another; abi_test.cc compares them by hand, within what they are members of.
OURS_ONLY_STRUCTURES = {
    "CUmemAllocationFlags",
    "CUmemcpy3DPointer",
    "CUmemcpy3DArray",
    "CUstreamMemOpValueParams",
    "CUstreamMemOpFlagParams",
    "CUlaunchDimensions",
    "CUlaunchProgrammaticEvent",
    "CUlaunchCompletionEvent",
    "CUeglFrame",
}


def generate(entries, layouts):
    """All generated files: path within the repository -> text."""
    hooked = [e.symbol for e in entries if e.hooked]
    return {
        "src/cuda/entries.gen.h": entries_header(entries),
        "src/cuda/driver.gen.h": driver_header(entries),
        "src/cuda/prototypes.gen.h": prototypes_header(entries),
        "src/cuda/abi_check.gen.inc": abi_check(entries, layouts),
        "src/shim/exports.gen.cc": shim_exports(entries),
        "src/shim/hooks.gen.h": hooks_header(entries),
        "src/shim/export_table.gen.cc": export_table(entries),
        "src/shim/libgpumux.gen.map": version_script(SHIM_MAP, hooked + ["dlopen", "dlsym"]),
        "sim/cuda/exports.gen.cc": sim_exports(entries),
        "sim/cuda/libcuda.gen.map": version_script(SIM_MAP, [e.symbol for e in simulated(entries)]),
    }


def read_inputs(root):
    entries = parse_table((root / TABLE).read_text())
    layouts = parse_layouts(*((root / h).read_text() for h in ABI_HEADERS))
    exports = (root / EXPORTS).read_text().split()
    return entries, layouts, exports


def verify(root, files):
    """Prints where a committed file differs from what the table says; true if none does."""
    same = True
    for path, text in files.items():
        committed = (root / path).read_text() if (root / path).exists() else ""
        if committed == text:
            continue
        same = False
        print(f"{path} is not what {TABLE} says; run tools/gen_cuda.py and commit the result. The first differences:", file=sys.stderr)
        difference = list(difflib.unified_diff(committed.splitlines(), text.splitlines(), "committed", "generated", lineterm="", n=1))
        print("\n".join(difference[:12]), file=sys.stderr)
    return same


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verify", action="store_true", help="write nothing; fail if a committed file differs")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent, help="the repository (default: the one this file is in)")
    options = parser.parse_args(arguments)
    try:
        entries, layouts, exports = read_inputs(options.root)
        check(entries, layouts, exports)
    except TableError as error:
        print(f"{TABLE} is refused:\n{error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"cannot read the table's inputs: {error}", file=sys.stderr)
        return 1
    files = generate(entries, layouts)
    if options.verify:
        return 0 if verify(options.root, files) else 1
    for path, text in files.items():
        (options.root / path).parent.mkdir(parents=True, exist_ok=True)
        (options.root / path).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
