#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the manual pages in the build: gpumux(1), one page for each command (gpumux-submit(1)), one for each command of
an older scheduler (mgpu_srun(1)), gpumuxd(8), gpumux-kubelet-plugin(8), and gpumux.toml(5).

    tools/make_manuals.py --bin DIR --out DIR     --out is laid out like /usr/share

Nothing is written twice: options and examples come from the programs' --help, everything else from docs/*.md and the
example configuration. Text that cannot be converted is an error. The same sources give the same bytes.
"""

import argparse
import pathlib
import re
import subprocess
import sys

import help_text

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Links to these documents are references to these pages; the others are named as installed.
PAGE_OF = {"cli.md": "gpumux(1)", "configuration.md": "gpumux.toml(5)"}
DOCUMENTS = "/usr/share/doc/gpumux"


def escape(text):
    """Text as it is, with nothing in it or at its begin that means something to the formatter."""
    text = text.replace("\\", r"\(rs").replace("-", r"\-").replace("…", "...")
    return re.sub(r"^(?=[.'])", r"\\&", text)


def inline(text):
    """Markdown inside a paragraph: `code` and **strong** are bold, *emphasis* is italic, links are what they name."""

    def link(match):
        file = match.group(2).partition("#")[0].rpartition("/")[2]
        page = PAGE_OF.get(file)
        if page:
            return page
        return match.group(1) if match.group(1) != file else f"{DOCUMENTS}/{file}"

    text = re.sub(r"\[([^]]*)\]\(([^)]*)\)", link, text.replace(r"\|", "|"))
    parts = re.split(r"(`[^`]+`|\*\*[^*]+\*\*|(?<!\w)\*[^*\s][^*]*\*(?!\w))", text)
    out = []
    for part in parts:
        if part.startswith("`"):
            out.append(rf"\fB{escape(part[1:-1])}\fP")
        elif part.startswith("**"):
            out.append(rf"\fB{escape(part[2:-2])}\fP")
        elif re.fullmatch(r"\*.+\*", part):
            out.append(rf"\fI{escape(part[1:-1])}\fP")
        else:
            out.append(escape(part))
    return re.sub(r"^(?=[.'])", r"\\&", "".join(out))


def verbatim(lines):
    return [".PP", ".RS 4", ".nf", *map(escape, lines), ".fi", ".RE"]


def table(lines):
    """Each row is an entry: its first cell, then the others as sentences, named where the header names them."""
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))] for line in lines]
    header, rows = rows[0], rows[2:]
    out = []
    for row in rows:
        *middle, last = row[1:]
        named = [f"{name}: {cell}" for name, cell in zip(header[1:], middle) if cell]
        told = ". ".join(filter(None, ["; ".join(named), last[:1].upper() + last[1:] if named else last]))
        out += [".TP", inline(row[0]), inline(told) or r"\&"]
    return out


def markdown(text):
    """Paragraphs, lists, tables, fenced code and headings of the third level, which is what our documents have."""
    out = []
    fence = None
    for part in re.split(r"\n\s*\n", text.strip("\n")):
        lines = part.split("\n")
        if fence is not None or lines[0].startswith("```"):
            fence = (fence or []) + lines + [""]
            if lines[-1].strip() == "```":
                out += verbatim(fence[1:-2])
                fence = None
        elif lines[0].startswith("### "):
            out += [f".SS {escape(lines[0][4:])}"]
            if lines[1:]:
                out += markdown("\n".join(lines[1:]))
        elif lines[0].startswith("|"):
            out += table(lines)
        elif re.match(r"(\d+\.|-) ", lines[0]):
            for item in re.split(r"\n(?=\d+\. |- )", part):
                mark, _, words = item.partition(" ")
                out += [f".IP {mark if mark != '-' else chr(92) + '(bu'} 4", inline(" ".join(words.split()))]
        elif lines[0].startswith("#") or lines[0].startswith("<"):
            raise ValueError(f"not converted: {lines[0]!r}")
        else:
            out += [".PP", inline(" ".join(line.strip() for line in lines))]
    if fence is not None:
        raise ValueError("a block of code does not end")
    return out


def sections(path):
    """{heading: text} of a document's second level, without the generator's markers; the introduction under ''."""
    text = re.sub(r"^<!-- .* -->\n", "", path.read_text(encoding="utf-8"), flags=re.M)
    parts = re.split(r"^## (.*)\n", text, flags=re.M)
    found = {"": re.sub(r"^# .*\n", "", parts[0])}
    found.update(zip(parts[1::2], parts[2::2]))
    return found


def options(items):
    out = []
    for item in items:
        if isinstance(item, help_text.Option):
            term = ", ".join(rf"\fB{escape(flag)}\fP" for flag in item.flags)
            if item.placeholder:
                term += rf" \fI{escape(item.placeholder)}\fP"
            out += [".TP", term, inline(item.text + ".") if not item.text.endswith((".", ")")) else inline(item.text)]
        else:
            out += [".TP", rf"\fB{escape(item[0])}\fP", inline(item[1]) or r"\&"]
    return out


# Blocks of --help that are sections of a page.
SECTIONS = {"Options": "OPTIONS", "Example": "EXAMPLES", "Examples": "EXAMPLES", "Exit status": "EXIT STATUS"}


def of_help(found):
    """All that a program says, but its summary, which is said in the page's description."""
    out = []
    for block in found.blocks:
        status = block.text.startswith("Exit status: ")
        if block.header in SECTIONS or status:
            out += [f".SH {SECTIONS[block.header] if block.header else 'EXIT STATUS'}"]
            block.text = block.text.removeprefix("Exit status: ")
        elif block.header:
            out += [".PP", inline(block.header + ":")]
        out += options(block.items)
        if block.lines:
            out += verbatim([line[2:] for line in block.lines])
        if block.text:
            out += [".PP", inline(block.text[:1].upper() + block.text[1:])]
    return out


def environment(readers):
    """The rows of docs/environment.md for these readers."""
    out = []
    for line in (ROOT / "docs/environment.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 5 or not cells[0].startswith("`") or not readers & set(cells[2].split(", ")):
            continue
        name, default, _, alias, meaning = cells
        told = f"{meaning[:1].upper()}{meaning[1:]}. Default: {default}." + (f" Alias: {alias}." if alias else "")
        out += [".TP", inline(name), inline(told)]
    return out


def page(title, number, manual, version, name, body):
    head = ['.\\" Made by tools/make_manuals.py from --help and docs/. Do not edit.',
            f'.TH {title.upper()} {number} "" "gpumux {version}" "{manual}"', ".SH NAME", name]
    return "\n".join(head + body) + "\n"


def see_also(*pages):
    return [".SH SEE ALSO", ", ".join(rf"\fB{name}\fP({number})" for name, number in pages) + ",",
            f"the documents in {DOCUMENTS}"]


def lower_first(text):
    """The first sentence of a summary, as the line of names has it."""
    text = text.partition(". ")[0].rstrip(".")
    return text[:1].lower() + text[1:]


def summaries_of(whole):
    """{command: what it does} of the help of gpumux."""
    return dict(next(block.items for block in whole.blocks if block.header == "Commands"))


def gpumux_page(program, version):
    """The overview: what the commands are and share."""
    whole, commands = help_text.ask_gpumux(program)
    told = sections(ROOT / "docs/cli.md")
    body = [".SH SYNOPSIS", r"\fBgpumux\fP \fICOMMAND\fP [\fIOPTIONS\fP]",
            ".SH DESCRIPTION", inline(whole.summary), *markdown(told[""].partition("|")[0]),
            *markdown(told[""].rpartition("|\n")[2]), ".SH COMMANDS", "Each command has a page of its own."]
    summaries = summaries_of(whole)
    for command, _ in commands:
        body += [".TP", rf"\fBgpumux\-{escape(command)}\fP(1)", inline(summaries[command] + ".")]
    for block in whole.blocks:
        if block.lines:
            body += [".SH EXAMPLES", *verbatim([line[2:] for line in block.lines])]
    body += [".SH EXIT STATUS", *markdown(told["Exit statuses"]),
             ".SH COMING FROM SLURM", *markdown(told["Coming from Slurm"]),
             ".SH NAMES OF AN OLDER SCHEDULER", *markdown(told["Names of an older scheduler"]),
             ".SH ENVIRONMENT", *environment({"command", "library", "job", "none"}),
             *see_also(*[(f"gpumux-{command}", 1) for command, _ in commands], *[(name, 1) for name in OLD_COMMANDS],
                       ("gpumuxd", 8), ("gpumux.toml", 5))]
    return page("gpumux", 1, "User Commands", version, r"gpumux \- share GPUs between unmodified CUDA programs", body)


def told_of(command):
    """The part of docs/cli.md about a command, which may share it with others: "gpumux cancel, hold, release"."""
    for heading, text in sections(ROOT / "docs/cli.md").items():
        if heading.startswith("gpumux ") and command in heading.removeprefix("gpumux ").split(", "):
            return markdown(text)
    return []


def command_page(name, summary, found, version, more=(), related=()):
    body = [".SH SYNOPSIS", escape(found.usage), ".SH DESCRIPTION", inline(found.summary), *of_help(found)]
    body += [".SH NOTES", *more] if more else []
    return page(name, 1, "User Commands", version, rf"{escape(name)} \- {inline(lower_first(summary))}",
                body + see_also(*related, ("gpumux", 1), ("gpumuxd", 8)))


def command_pages(program, version):
    """{name: page} of every command."""
    whole, commands = help_text.ask_gpumux(program)
    summaries = summaries_of(whole)
    return {f"gpumux-{command}": command_page(f"gpumux-{command}", summaries[command], found, version, told_of(command))
            for command, found in commands}


# Links to gpumux, and the commands whose pages say more.
OLD_COMMANDS = {"mgpu_srun": ["submit"], "mgpu_queue": ["queue"], "mgpu_cancel": ["cancel"],
                "mgpu_scheduler_server": []}


def old_command_pages(folder, version):
    pages = {}
    for name, others in OLD_COMMANDS.items():
        found = help_text.ask(folder / name, name)
        related = [(f"gpumux-{command}", 1) for command in others]
        pages[name] = command_page(name, found.summary, found, version, related=related)
    return pages


def gpumuxd_page(program, version):
    found = help_text.ask(program, "gpumuxd")
    told = sections(ROOT / "docs/configuration.md")
    body = [".SH SYNOPSIS", escape(found.usage), ".SH DESCRIPTION", inline(found.summary), *of_help(found)]
    for heading in ("The runtime directory", "Stopping, restarting, reloading", "One daemon for a GPU",
                    "What a tenant can and cannot do to the daemon"):
        body += [f".SH {heading.upper()}", *markdown(told[heading])]
    body += [".SH ENVIRONMENT", *environment({"daemon"}), *see_also(("gpumux", 1), ("gpumux.toml", 5))]
    return page("gpumuxd", 8, "System Administration", version,
                r"gpumuxd \- decide which program may use which GPU", body)


def plugin_page(program, version):
    found = help_text.ask(program, "gpumux-kubelet-plugin")
    told = sections(ROOT / "docs/kubernetes.md")
    body = [".SH SYNOPSIS", escape(found.usage), ".SH DESCRIPTION", inline(found.summary), *of_help(found)]
    for heading in ("The plugin", "Settings of the plugin"):
        body += [f".SH {heading.upper()}", *markdown(told[heading])]
    body += [".SH ENVIRONMENT", *environment({"plugin"}), *see_also(("gpumux", 1), ("gpumuxd", 8))]
    return page("gpumux-kubelet-plugin", 8, "System Administration", version,
                r"gpumux\-kubelet\-plugin \- serve shares of a node's GPUs to the kubelet", body)


def toml_page(version):
    told = sections(ROOT / "docs/configuration.md")
    example = (ROOT / "packaging/gpumux.toml.example").read_text(encoding="utf-8").splitlines()
    body = [".SH DESCRIPTION", *markdown(told[""]),
            ".SH WHERE SETTINGS COME FROM", *markdown(told["Where settings come from"]),
            ".SH KEYS", *markdown(told["Keys of the file"]), ".SH EXAMPLE", *verbatim(example),
            *see_also(("gpumux", 1), ("gpumuxd", 8))]
    return page("gpumux.toml", 5, "File Formats", version, r"gpumux.toml \- configuration of gpumuxd", body)


def version_of(program):
    """As `gpumuxd --version` says."""
    said = subprocess.run([program, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return said.split()[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="where gpumux and gpumuxd are")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="laid out like /usr/share")
    arguments = parser.parse_args()
    version = version_of(arguments.bin / "gpumuxd")
    commands = command_pages(arguments.bin / "gpumux", version)
    commands |= old_command_pages(arguments.bin, version)
    pages = {
        **{f"man/man1/{name}.1": text for name, text in commands.items()},
        "man/man1/gpumux.1": gpumux_page(arguments.bin / "gpumux", version),
        "man/man5/gpumux.toml.5": toml_page(version),
        "man/man8/gpumuxd.8": gpumuxd_page(arguments.bin / "gpumuxd", version),
    }
    plugin = arguments.bin / "gpumux-kubelet-plugin"
    if plugin.exists():  # a build may leave it out
        pages["man/man8/gpumux-kubelet-plugin.8"] = plugin_page(plugin, version)
    for name, text in pages.items():
        (arguments.out / name).parent.mkdir(parents=True, exist_ok=True)
        (arguments.out / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
