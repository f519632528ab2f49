# SPDX-License-Identifier: Apache-2.0
"""The description of the HTTP API as the generators read it: docs/openapi.gen.json."""

import argparse
import json
import pathlib
import sys
import textwrap

DESCRIPTION = "docs/openapi.gen.json"
MAX_COLUMNS = 120


def read(root):
    return json.loads((root / DESCRIPTION).read_text(encoding="utf-8"))


def name_of(reference):
    return reference.rpartition("/")[2]


def references(value):
    """The names of all schemas that a part of the description refers to."""
    if isinstance(value, dict):
        if "$ref" in value:
            yield name_of(value["$ref"])
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def used(description):
    """The schemas of bodies and of answers that are no errors, and those that they refer to."""
    operations = [operation for methods in description["paths"].values() for operation in methods.values()]
    waiting = [name for operation in operations for name in references(
        [operation.get("requestBody"), {status: answer for status, answer in operation["responses"].items()
                                        if status != "default"}])]
    found = set()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += references(description["components"]["schemas"][name])
    return found


def objects(description):
    """(name, schema) of each body and answer that has fields, and of the objects within them."""
    wanted = used(description)
    return [(name, schema) for name, schema in description["components"]["schemas"].items()
            if name in wanted and schema.get("properties")]


class Types:
    """The types of fields in a language. {} in a pattern stands for the type within."""

    def __init__(self, schemas, scalars, array, mapping, union, text_or_bytes):
        self.schemas = schemas
        self.scalars = scalars
        self.array = array
        self.mapping = mapping
        self.union = union
        self.text_or_bytes = text_or_bytes

    def of(self, schema):
        """(the type, the words that a string has today)."""
        if "$ref" in schema:
            name = name_of(schema["$ref"])
            return (name, []) if "properties" in self.schemas[name] else self.of(self.schemas[name])
        if "oneOf" in schema:
            return self.text_or_bytes, []
        kind = schema["type"]
        if isinstance(kind, list):
            return self.union([self.scalars[each] for each in kind]), []
        if kind == "array":
            inner, words = self.of(schema["items"])
            return self.array.format(inner), words
        if kind == "object":
            inner, words = self.of(schema["additionalProperties"])
            return self.mapping.format(inner), words
        return self.scalars[kind], [word for word in schema.get("x-extensible-enum", ()) if word]


def comment(text, begin):
    return textwrap.wrap(text, width=MAX_COLUMNS, initial_indent=begin, subsequent_indent=begin)


def main(about, generate):
    """Writes the files that `generate` makes from a root, as {path: text}. With --verify it compares them."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--verify", action="store_true", help="write nothing; fail if a committed file differs")
    options = parser.parse_args()
    status = 0
    for name, text in generate(options.root).items():
        path = options.root / name
        if not options.verify:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{name} is not what {DESCRIPTION} says", file=sys.stderr)
            status = 1
    return status
