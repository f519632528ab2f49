#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: the site is built without a warning, is whole, and needs neither network nor server to be read and searched.

Method: the repository's own site is built once, with the pages that programs write, and every page is read; small
repositories show what is refused. The argument is the folder of the programs.
"""

import html.parser
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.parse

import make_site

ROOT = make_site.ROOT
BIN = sys.argv.pop()


class Page(html.parser.HTMLParser):
    """A page's references, apart those that a browser loads by itself, and its anchors."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loaded, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if "id" in attributes:
            self.anchors.add(attributes["id"])
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        for name in ("src", "srcset", "data", "poster"):
            if attributes.get(name) and tag != "a":
                self.loaded.append(attributes[name])
        if tag == "link" and attributes.get("rel") not in ("canonical", "index", "search", "next", "prev"):
            self.loaded.append(attributes["href"])


class SiteTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.site = pathlib.Path(cls.folder.name) / "site"
        generated = pathlib.Path(cls.folder.name) / "reference"
        subprocess.run([sys.executable, "-B", "make_reference.py", "--bin", BIN, "--out", generated], check=True)
        cls.generated = sorted(generated.glob("*.md"))
        if make_site.build(ROOT, cls.site, cls.generated) != 0:
            raise AssertionError("the site is not built; see Sphinx's words above")
        cls.pages = {path: Page(path.read_text(encoding="utf-8")) for path in cls.site.rglob("*.html")}

    def test_the_same_pages_give_the_same_bytes(self):
        again = pathlib.Path(self.folder.name) / "again"
        self.assertEqual(make_site.build(ROOT, again, self.generated), 0)
        files = [{path.relative_to(site): path.read_bytes() for path in site.rglob("*") if path.is_file()}
                 for site in (self.site, again)]
        self.assertEqual(files[0].keys(), files[1].keys())
        self.assertEqual([path for path in files[0] if files[0][path] != files[1][path]], [])

    def test_nothing_is_loaded_from_the_network(self):
        for path, page in self.pages.items():
            for reference in page.loaded:
                self.assertNotRegex(reference, r"^(https?:)?//", path)
        for path in self.site.rglob("*.css"):
            text = path.read_text(encoding="utf-8")
            self.assertNotRegex(text, r"(url\(\s*[\"']?|@import\s+[\"'])(https?:)?//", path)

    def test_every_reference_leads_somewhere(self):
        for path, page in self.pages.items():
            for reference in page.loaded + page.links:
                parts = urllib.parse.urlsplit(reference)
                if parts.scheme:
                    continue
                target = path if not parts.path else (path.parent / urllib.parse.unquote(parts.path)).resolve()
                self.assertTrue(target.is_file(), f"{path.relative_to(self.site)}: {reference}")
                if parts.fragment and target in self.pages:
                    anchor = urllib.parse.unquote(parts.fragment)
                    self.assertIn(anchor, self.pages[target].anchors, f"{path.relative_to(self.site)}: {reference}")

    def test_search_finds_pages_without_a_server(self):
        # A script, which a browser loads from a disk, too, and not a file that the page must fetch.
        index = (self.site / "searchindex.js").read_text(encoding="utf-8")
        self.assertTrue(index.startswith("Search.setIndex("))
        for page in ("docs/cli", "docs/jobs", "generated/commands", "generated/addresses"):
            self.assertIn(f'"{page}"', index)

    def test_navigation(self):
        text = (self.site / "index.html").read_text(encoding="utf-8")
        captions = re.findall(r'<span class="caption-text">([^<]*)</span>', text)
        self.assertEqual(captions, ["Tutorial", "How-to", "Reference", "Explanation", "Project"])
        self.assertIn('href="generated/commands.html"', text)

    def test_sources_are_named_and_not_linked(self):
        text = (self.site / "docs" / "life-of-a-launch.html").read_text(encoding="utf-8")
        self.assertIn("gate/gate.h", text)
        self.assertNotIn('href="../src', text)


class RefusalsTest(unittest.TestCase):

    def build(self, text):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder) / "root"
            (root / "docs").mkdir(parents=True)
            subprocess.run(["git", "init", "-q", str(root)], check=True)
            (root / "README.md").write_text("# Front\n\n[a](docs/a.md)\n", encoding="utf-8")
            (root / "docs" / "a.md").write_text(text, encoding="utf-8")
            (root / "docs" / "site.toml").write_text('[[section]]\ntitle = "One"\npages = ["docs/a.md"]\n',
                                                     encoding="utf-8")
            out = pathlib.Path(folder) / "site"
            return make_site.build(root, out, warnings=subprocess.DEVNULL), out.exists()

    def test_a_warning_fails_the_build(self):
        self.assertEqual(self.build("# A\n\n## B\n\n[b](#b) [front](../README.md#front)\n"), (0, True))
        self.assertEqual(self.build("# A\n\n[b](#c)\n"), (1, False))


class LinksTest(unittest.TestCase):

    def test_links_are_rewritten(self):
        pages = {"README.md", "docs/a.md", "docs/b/README.md"}
        for name, text, written in (
                ("README.md", "[x](docs/a.md#b)", "[x](docs/a.md#b)"),
                ("docs/b/README.md", "[x](../../README.md)", "[x](../../index.md)"),
                ("docs/a.md", "[the gate](../src/gate.h)", "the gate (`src/gate.h`)"),
                ("docs/a.md", "[`gate.h`](../src/gate.h) [y](#z)", "`gate.h` [y](#z)")):
            pictures = set()
            self.assertEqual(make_site.with_links(name, text, pages, pictures), written)
            self.assertEqual(pictures, set())
        make_site.with_links("docs/a.md", "![x](p/q.svg)", pages, pictures)
        self.assertEqual(pictures, {"docs/p/q.svg"})


if __name__ == "__main__":
    unittest.main()
