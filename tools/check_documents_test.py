#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: the check finds links and blocks of commands that do not work, and nothing else.

Method: small documents made for each case.
"""

import unittest

import check_documents
import documents


class LinksTest(unittest.TestCase):

    def faults(self, text, **others):
        texts = {"docs/a.md": text, **{f"docs/{name}.md": other for name, other in others.items()}}
        return [(line, what) for name, line, what in check_documents.check_links(texts, set(texts) | {"src/x.h"})
                if name == "docs/a.md"]

    def test_links_that_lead_somewhere(self):
        text = "# One\n[a](b.md#a-b--c) [b](../src/x.h) [c](#one) <b@c.d> [d](https://e.f/g#h) ![p](b.md)\n"
        self.assertEqual(self.faults(text, b="## `A` b & c\n"), [])

    def test_code_is_no_link(self):
        self.assertEqual(self.faults("`[a](none.md)`\n```text\n[b](none.md)\n```\n"), [])

    def test_missing_files_and_anchors(self):
        self.assertEqual(self.faults("x\n[a](none.md)\n"), [(2, "the link leads to docs/none.md, which is not there")])
        self.assertEqual(len(self.faults("[a](b.md#two)\n", b="# One\n")), 1)
        self.assertEqual(len(self.faults("[a](#two)\n# One\n")), 1)

    def test_a_heading_that_comes_again_has_a_number(self):
        self.assertEqual(documents.anchors("# One\n# One\n```sh\n# Two\n```\n"), {"one", "one-1"})

    def test_anchors_of_headings(self):
        for heading, anchor in (("Status, and `auto`", "status-and-auto"), ("What it is not", "what-it-is-not"),
                                ("[Life](life.md) of a *job*", "life-of-a-job"), ("A_b: c-d (e)", "a_b-c-d-e")):
            self.assertEqual(documents.slug(heading), anchor)


class CommandsTest(unittest.TestCase):

    def check(self, text):
        faults, marked = check_documents.check_commands({"a.md": text})
        return [(line, what) for _, line, what in faults], marked

    def refuses(self, text, *words):
        faults, _ = self.check(text)
        self.assertEqual(len(faults), 1, faults)
        for word in words:
            self.assertIn(word, faults[0][1])

    def test_blocks_that_are_run_and_marked(self):
        faults, marked = self.check("```sh\necho a\n```\n\n1. x\n\n   <!-- needs: gpu, root -->\n   ```console\n"
                                    "   # a \\\n   b\n   out ( put\n   ```\n")
        self.assertEqual(faults, [])
        self.assertEqual([(block.line, sorted(block.needs)) for _, block in marked], [(8, ["gpu", "root"])])
        self.assertEqual(documents.commands(marked[0][1]), [("a \\\nb", ["out ( put"])])

    def test_exit_status(self):
        block = documents.blocks("<!-- exits: 3 -->\n```sh\na\n```\n")[0]
        self.assertEqual(block.exits, 3)

    def test_what_bash_cannot_parse(self):
        self.refuses("```sh\nif true; then\n```\n", "cannot parse")
        self.refuses("<!-- needs: gpu -->\n```console\n$ a |\n```\n", "cannot parse")

    def test_marks(self):
        self.refuses("<!-- needs: gpus -->\n```sh\na\n```\n", "gpus", "cluster")
        self.refuses("<!-- needs: gpu -->\n\n```sh\na\n```\n", "fence must follow")
        self.refuses("<!-- needs: gpu -->\n```toml\na = 1\n```\n", "not run")
        self.refuses("<!-- exits: 256 -->\n```sh\na\n```\n", "from 1 to 255")

    def test_commands_have_a_language(self):
        self.refuses("```\n$ gpumux status\n```\n", "fenced as")
        self.refuses("```console\ngpumux status\n```\n", "begins with")
        self.assertEqual(self.check("```\n+--+\n```\n")[0], [])


class NavigationTest(unittest.TestCase):

    def faults(self, pages, names):
        return [what for _, _, what in
                check_documents.check_navigation({"section": [{"title": "A", "pages": pages}]}, names)]

    def test_each_page_once(self):
        names = {"README.md", "docs/a.md", "docs/b/README.md", "docs/b/c.md"}
        self.assertEqual(self.faults(["docs/a.md", "docs/b/README.md"], names), [])
        self.assertEqual(self.faults(["docs/b/README.md"], names), ["docs/a.md is in no section"])
        self.assertEqual(self.faults(["docs/a.md", "docs/a.md", "docs/b/README.md"], names),
                         ["docs/a.md is in the navigation 2 times"])
        self.assertEqual(self.faults(["docs/a.md", "docs/d.md", "docs/b/README.md"], names),
                         ["docs/d.md is not there"])


if __name__ == "__main__":
    unittest.main()
