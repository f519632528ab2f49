#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a C++ file that refers to every symbol of the entry table: make_links.py entries.table OUTPUT."""

import sys


def main(table, output):
    symbols = []
    with open(table, encoding="utf-8") as lines:
        for line in lines:
            # The debugger's variables are no entry points.
            if line.strip() and not line.startswith(("#", "cudbg")):
                symbols.append(line.split("|")[0].strip())
    with open(output, "w", encoding="utf-8") as out:
        out.write('extern "C" {\n')
        for symbol in symbols:
            out.write(f"void {symbol}();\n")
        out.write("struct LinkedEntry {\n  const char* symbol;\n  void (*function)();\n};\n")
        out.write("extern const LinkedEntry gpumux_linked_entries[];\n")
        out.write("extern const unsigned long gpumux_linked_entry_count;\n")
        out.write("const LinkedEntry gpumux_linked_entries[] = {\n")
        for symbol in symbols:
            out.write(f'  {{"{symbol}", {symbol}}},\n')
        out.write("};\n")
        out.write(f"const unsigned long gpumux_linked_entry_count = {len(symbols)};\n}}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
