#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the documents as a static site with search: tools/make_site.py [--out DIR] [--generated DIR]

README.md is the front page; docs/site.toml has the navigation. Sphinx and MyST, both Debian's, turn the same Markdown
that GitHub shows into pages that need no network, and no server: open DIR/index.html. Any warning fails the build.

Links to files that are not pages, such as sources, become their text and the file's path. --generated DIR adds every
page DIR/*.md to the reference; a program of the build may write such pages.
"""

import argparse
import pathlib
import posixpath
import shutil
import subprocess
import sys
import tempfile
import tomllib

import documents

ROOT = pathlib.Path(__file__).resolve().parents[1]
FRONT = "README.md"
GENERATED_INTO = "Reference"


def page_path(name):
    """Where a document's page stands: as in the repository, but the front page is the site's index."""
    return "index.md" if name == FRONT else name


def path_from(name, target):
    return posixpath.relpath(page_path(target), posixpath.dirname(page_path(name)) or ".")


def with_links(name, text, pages, pictures):
    """The document with its links as the site needs them. Adds the pictures that it shows to `pictures`."""
    parts, end = [], 0
    for link in documents.links(text):
        if "://" in link.target or link.target.startswith(("mailto:", "#")):
            continue
        path, _, anchor = link.target.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
        if link.is_image:
            pictures.add(target)
            written = None
        elif target in pages:
            written = f"[{link.text}]({path_from(name, target)}{'#' + anchor if anchor else ''})"
        elif posixpath.basename(target) in link.text or target in link.text:
            written = link.text
        else:
            written = f"{link.text} (`{target}`)"
        if written is not None:
            parts += [text[end:link.start], written]
            end = link.end
    return "".join(parts) + text[end:]


def contents(entries, caption=None):
    """A table of contents that the navigation shows and the page does not; entries: paths without .md."""
    options = ["```{toctree}", ":hidden:"] + ([f":caption: {caption}"] if caption else [])
    return "\n".join(["", *options, "", *entries, "```", ""])


def stage(root, folder, generated):
    """Copies the pages into `folder` as Sphinx reads them."""
    names = documents.names(root, "*.md")
    navigation = tomllib.loads((root / "docs" / "site.toml").read_text(encoding="utf-8"))
    sections = documents.sections(navigation, names)
    below = {FRONT: []}
    for _, pages in sections:
        below.update(pages)
    pages = set(below) | {page for under in below.values() for page in under}
    pictures = set()
    for name in sorted(pages):
        text = with_links(name, (root / name).read_text(encoding="utf-8"), pages, pictures)
        here = posixpath.dirname(name)
        if below.get(name):
            text += contents(posixpath.relpath(page, here).removesuffix(".md") for page in below[name])
        if name == FRONT:
            for title, entries in sections:
                more = []
                if title == GENERATED_INTO:
                    more = sorted(f"generated/{page.stem}" for page in generated)
                text += contents([page.removesuffix(".md") for page, _ in entries] + more, title)
        path = folder / page_path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for page in generated:
        (folder / "generated").mkdir(exist_ok=True)
        shutil.copy(page, folder / "generated" / page.name)
    for picture in pictures:
        (folder / picture).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / picture, folder / picture)


def build(root, out, generated=(), warnings=None):
    """Builds the site into `out`, which it replaces. Gives Sphinx's exit status; `warnings`: where it writes them."""
    with tempfile.TemporaryDirectory(prefix="gpumux-site-") as temporary:
        folder = pathlib.Path(temporary)
        stage(root, folder / "pages", generated)
        # One process: several give the search's index the order in which they happen to end.
        command = ["sphinx-build", "-W", "--keep-going", "-q", "-b", "html", "-c", str(ROOT / "tools" / "site"), "-d",
                   str(folder / "trees"), str(folder / "pages"), str(folder / "site")]
        status = subprocess.run(command, check=False, stderr=warnings).returncode
        if status == 0:
            shutil.rmtree(folder / "site" / "_sources", ignore_errors=True)
            shutil.rmtree(out, ignore_errors=True)
            out.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(folder / "site", out)
        return status


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "site")
    parser.add_argument("--generated", type=pathlib.Path, help="a folder with more pages for the reference")
    arguments = parser.parse_args()
    if shutil.which("sphinx-build") is None:
        print("make_site: sphinx-build is missing; tools/setup.sh installs it", file=sys.stderr)
        return 1
    status = build(ROOT, arguments.out, sorted(arguments.generated.glob("*.md")) if arguments.generated else ())
    if status == 0:
        print(f"{arguments.out / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
