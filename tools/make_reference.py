#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the pages of the reference that programs write: tools/make_reference.py --bin DIR --out DIR

commands.md is what each command's --help says. addresses.md is what `gpumuxd --print-api` says: every address of the
API, and every structure. tools/make_site.py --generated DIR puts the pages into the site.
"""

import argparse
import json
import pathlib
import subprocess
import sys

PROGRAMS = ("gpumux", "gpumuxd", "gpumux-kubelet-plugin", "mgpu_srun", "mgpu_queue", "mgpu_cancel",
            "mgpu_scheduler_server")


def help_of(program, *arguments):
    return subprocess.run([program, *arguments, "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60, check=True).stdout.strip("\n")


def names_of_commands(text):
    """The first words of the list `Commands:` in `gpumux --help`."""
    lines = text.split("\n")
    begin = lines.index("Commands:") + 1
    block = lines[begin:lines.index("", begin)]
    return [line.split()[0] for line in block if line.startswith("  ") and not line.startswith("   ")]


def commands(folder):
    parts = ["# Every command and its options", "",
             "Each program's own `--help`. [The command](../docs/cli.md) explains what they have in common.", ""]
    for program in PROGRAMS:
        path = folder / program
        if not path.exists():  # a build may leave out the kubelet's plugin
            continue
        texts = {program: help_of(path)}
        if program == "gpumux":
            texts |= {f"gpumux {name}": help_of(path, name) for name in names_of_commands(texts[program])}
        for name, text in texts.items():
            parts += [f"## {name}", "", "```text", text, "```", ""]
    return "\n".join(parts)


def escaped(text):
    return text.replace("|", "\\|").replace("<", "\\<")


def type_text(schema):
    """The values that are allowed: words, numbers, lists of something, or another structure."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema or "oneOf" in schema:
        return " or ".join(type_text(one) for one in schema.get("anyOf", schema.get("oneOf")))
    words = schema.get("enum", schema.get("x-extensible-enum"))
    if words:
        return ", ".join(f"`{word}`" for word in words) + (" or others" if "x-extensible-enum" in schema else "")
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of: {type_text(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"by name: {type_text(schema['additionalProperties'])}"
    return " or ".join(kind) if isinstance(kind, list) else kind


def answer_of(operation):
    for status in sorted(operation["responses"]):
        for content in operation["responses"][status].get("content", {}).values():
            if status.startswith("2"):
                return type_text(content.get("schema", {}))
    return ""


def addresses(text):
    api = json.loads(text)
    parts = ["# Every address of the API", "",
             "The daemon's own list: `gpumuxd --print-api`. [The API](../docs/api.md) has more, with examples.", ""]
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            parts += [f"## {method.upper()} {path}", "", f"{operation['summary']}.", ""]
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            if body:
                parts += [f"Body: {type_text(body)}.", ""]
            if answer_of(operation):
                parts += [f"Answer: {answer_of(operation)}.", ""]
            asked = [one for one in operation.get("parameters", []) if one["in"] == "query"]
            if asked:
                parts += ["| parameter | value | meaning |", "|---|---|---|"]
                parts += [f"| `{one['name']}` | {type_text(one['schema'])} | {escaped(one.get('description', ''))} |"
                          for one in asked]
                parts.append("")
    for name, schema in api["components"]["schemas"].items():
        parts += [f"## {name}", ""]
        required = set(schema.get("required", ()))
        rows = schema.get("properties", {})
        if not rows:
            parts += [f"{type_text(schema)}.", ""]
            continue
        parts += ["| field | value | always there |", "|---|---|---|"]
        parts += [f"| `{field}` | {type_text(value)} | {'yes' if field in required else ''} |"
                  for field, value in rows.items()]
        parts.append("")
    return "\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="where gpumux and gpumuxd are")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    api = subprocess.run([arguments.bin / "gpumuxd", "--print-api"], capture_output=True, text=True, timeout=60,
                         check=True).stdout
    for name, text in (("addresses.md", addresses(api)), ("commands.md", commands(arguments.bin))):
        (arguments.out / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
