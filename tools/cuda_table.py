# SPDX-License-Identifier: Apache-2.0
"""The table of the driver's entry points (src/cuda/entries.table): how it is read, and what it is refused for.

docs/entries.md describes the columns. gen_cuda.py writes what follows from the table.
"""

import re
from dataclasses import dataclass, field

TABLE = "src/cuda/entries.table"
EXPORTS = "tests/data/libcuda-580.159.04-exports.txt"
ABI_HEADERS = ("src/cuda/abi_enums.h", "src/cuda/abi.h")

# memop: stream memory operations. external: external semaphores, and graphics resources mapped in stream order.
# callback: host functions in stream order. graph: building graphs. memory: allocation, mapping, pools, attributes, host
# memory. share: between processes, and with other interfaces.
CLASSES = (
    "launch graph_launch copy fill prefetch memop external callback sync query init lookup context stream capture "
    "event graph memory peer share module function texture interop debugger profiler checkpoint"
).split()

# Entries of these classes make the GPU work: forwarding one is a hole in the gate unless a reason says why it is none.
SUBMISSION_CLASSES = {"launch", "graph_launch", "copy", "fill", "prefetch", "memop", "external", "callback"}

# Entries of these classes have done nothing when they fail for lack of memory: asking for room and trying again is
# safe.
TRIED_AGAIN_CLASSES = {"launch", "graph_launch"}

PER_THREAD_VARIANTS = ("ptds", "ptsz")
VARIANTS = {"-": "kNone", "legacy": "kLegacy", "ptds": "kPtds", "ptsz": "kPtsz"}
ACTIONS = {
    "forward": "kForward",
    "gate": "kGate",
    "hold": "kHold",
    "sync": "kSync",
    "room": "kRoom",
    "hook": "kHook",
}
PLACED_ACTIONS = {"gate", "hold", "sync"}

# Parameters that tell a graph of work on addresses: the driver may look the addresses up at once.
ADDRESS_NODE_TYPES = {
    "const CUDA_MEMCPY3D*",
    "const CUDA_MEMSET_NODE_PARAMS*",
    "const CUDA_BATCH_MEM_OP_NODE_PARAMS*",
    "CUgraphNodeParams*",
}

# Types that name device memory or a stream. A structure that holds one of them counts too: those with a layout in abi.h
# are found there, the others are listed here.
SENSITIVE_TYPES = {"CUdeviceptr", "CUdeviceptr_v1", "CUstream"}
OPAQUE_SENSITIVE_TYPES = {"CUDA_RESOURCE_DESC", "CUarrayMapInfo"}

FIRST_PER_THREAD = 7000  # the CUDA version that brought per-thread default streams

# Entries in the table that the driver of tests/data does not export, with the reason.
NOT_EXPORTED = {}


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
    """The contents of abi.h: the structures with their members in order, and the enumerations with their values."""

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
    """Reads our own headers, which are written plainly: a member a line, nothing nested but unions without a name."""
    blocks = re.compile(r"^(struct|union|enum) (\w+)(?: : unsigned int)? \{\n(.*?)^\};", re.M | re.S)
    members = re.compile(r"^\s+([\w:]+(?: [\w:]+)*[\s*]+)(\w+)(?:\[[^\]]*\])?;", re.M)
    layouts = Layouts()
    for text in texts:
        text = re.sub(r"//[^\n]*", "", text)
        for kind, name, body in blocks.findall(text):
            if kind == "enum":
                layouts.enumerations[name] = re.findall(r"^\s+(\w+)\s*=", body, re.M)
                continue
            layouts.structures[name] = [(type_.strip(), member) for type_, member in members.findall(body)]
    return layouts


# Checking


def without_suffix(symbol):
    return re.sub(r"(_v\d+)?(_ptds|_ptsz)?$", "", symbol)


def check_where(entry, layouts):
    """Says what is wrong with an entry's place: every name in it is a parameter, of the type that its kind needs."""
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
            "upload": ("upload",),
        },
        "hold": {"context": (), "context_of": ("context",), "node": ("node",)},
        "sync": {"context": (), "context_of": ("context",), "stream": ("stream",), "event": ("event",)},
    }[entry.action]
    needed = {
        "stream": ("CUstream",),
        "context": ("CUcontext",),
        "event": ("CUevent",),
        "node": ("CUgraphNodeParams*", "const CUDA_BATCH_MEM_OP_NODE_PARAMS*"),
        "peer": ("const CUDA_MEMCPY3D_PEER*",),
        "upload": ("CUDA_GRAPH_INSTANTIATE_PARAMS*",),
    }
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
        if type_ not in needed[role]:
            yield f"place names '{name}' as {' or '.join(needed[role])}, but it is {type_}"
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
    if (suffix[1] if suffix else None) != (entry.variant if entry.variant in PER_THREAD_VARIANTS else None):
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
    if (entry.where is not None) != (entry.action in PLACED_ACTIONS):
        yield f"action {entry.action} {'needs a' if entry.where is None else 'takes no'} place"
        return
    if entry.entry_class in SUBMISSION_CLASSES and entry.action not in ("gate", "hook") and not entry.reason:
        yield f"class {entry.entry_class} makes the GPU work; it must be gated, or say why not"
    nodes = [p for p in entry.parameters if entry.entry_class == "graph" and p.type in ADDRESS_NODE_TYPES]
    if nodes and entry.action not in ("hold", "hook") and not entry.reason:
        yield f"takes '{nodes[0].type} {nodes[0].name}', whose addresses must be real; it must be held, or say why not"
    if (entry.entry_class == "sync") != (entry.action == "sync"):
        yield "class sync and action sync go together"
    if entry.action == "room" and (streams := [p.name for p in entry.parameters if p.type == "CUstream"]):
        yield f"takes stream '{streams[0]}'; what is submitted is gated, and not only tried again"
    if entry.where is not None:
        if entry.action == "gate" and entry.variant == "-":
            yield "is gated and so needs a stream variant: legacy, if it takes no stream"
        yield from check_where(entry, layouts)


def check_versions(entries):
    seen = {}
    for entry in entries:
        if not entry.api_name:
            continue
        per_thread = entry.variant in PER_THREAD_VARIANTS
        number = int((re.search(r"_v(\d+)", entry.symbol) or (0, 1))[1])
        for other_number, other in seen.setdefault((entry.api_name, per_thread), []):
            if entry.since == other.since or (number < other_number) != (entry.since < other.since):
                yield f"{entry.symbol}: its version {entry.since} and {other.symbol}'s {other.since} are not in order"
        seen[(entry.api_name, per_thread)].append((number, entry))


def check_per_thread(entries):
    """Since CUDA 7.0 whatever submits work has a second name, for a thread's own default stream."""
    symbols = {e.symbol for e in entries}
    for entry in entries:
        if entry.action != "gate" or entry.where is None or entry.variant != "legacy" or entry.since < FIRST_PER_THREAD:
            continue
        if any(name.startswith("*") for name in entry.where.names) or entry.reason:
            continue
        if not any(f"{entry.symbol}_{variant}" in symbols for variant in PER_THREAD_VARIANTS):
            yield (f"{entry.symbol}: its per-thread variant (_ptsz with a stream, else _ptds) is missing; if the "
                   "driver has none, say so in the last column")


def check(entries, layouts, exports):
    """Raises TableError with everything that is wrong."""
    problems = []
    symbols = [e.symbol for e in entries]
    for symbol in sorted({s for s in symbols if symbols.count(s) > 1}):
        problems.append(f"{symbol}: is in the table twice")
    for entry in entries:
        problems += [f"{entry.symbol} (line {entry.line}): {p}" for p in check_entry(entry, layouts)]
    problems += check_versions(entries)
    problems += check_per_thread(entries)
    for symbol in sorted(set(exports) - set(symbols)):
        problems.append(f"{symbol}: is exported by the driver ({EXPORTS}) and is not in the table")
    for symbol in sorted(set(symbols) - set(exports) - set(NOT_EXPORTED)):
        problems.append(
            f"{symbol}: is in the table and not exported by the driver: add it to {EXPORTS}, "
            "or to NOT_EXPORTED in tools/cuda_table.py if no driver exports it"
        )
    if problems:
        raise TableError("\n".join(problems))


def read_inputs(root):
    entries = parse_table((root / TABLE).read_text())
    layouts = parse_layouts(*((root / h).read_text() for h in ABI_HEADERS))
    exports = (root / EXPORTS).read_text().split()
    return entries, layouts, exports
