#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: the layer check refuses each kind of edge that it is there to refuse, and nothing else.

Method: a small tree of files made for each case.
"""

import pathlib
import tempfile
import tomllib
import unittest

import check_layers

TABLE = """
[folders]
base = []
wire = ["base"]
sched = ["base"]
daemon = ["sched", "wire", "base"]
"sim/sched" = ["sched", "base"]
[[meet]]
pair = ["sched", "wire"]
inside = "daemon"
places = 1
"""

ALLOWED = {
    "src/base/a.h": "",
    "src/wire/m.h": '#include "base/a.h"\n',
    "src/sched/c.h": '#include <vector>\n#include "base/a.h"\n',
    "src/daemon/translate.h": '#include "sched/c.h"\n',
    "src/daemon/translate.cc": '#include "daemon/translate.h"\n#include "wire/m.h"\n',
    "src/daemon/loop.cc": '#include "daemon/translate.h"\n#include "wire/m.h"\n',
    "sim/sched/run.cc": '#include "sched/c.h"\n',
}


class LayersTest(unittest.TestCase):

    def check(self, files, table=TABLE):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")
            return check_layers.check(root, tomllib.loads(table))

    def refuses(self, files, *words, table=TABLE):
        problems = self.check({**ALLOWED, **files}, table)
        self.assertEqual(len(problems), 1, problems)
        for word in words:
            self.assertIn(word, problems[0])

    def test_allowed_tree_passes(self):
        self.assertEqual(self.check(ALLOWED), [])

    def test_document_that_shows_another_table(self):
        text = f"Layers\n\n{check_layers.BEGIN}\n\n| old |\n\n{check_layers.END}\nmore\n"
        self.refuses({"docs/architecture.md": text}, "--write")
        right = check_layers.shown(text, tomllib.loads(TABLE))
        self.assertIn("| `sim/sched` | `sched` `base` |", right)
        self.assertTrue(right.endswith("more\n"))
        self.assertEqual(self.check({**ALLOWED, "docs/architecture.md": right}), [])

    def test_rooms_of_a_folder(self):
        table = TABLE.replace("[[meet]]", '"daemon/loop" = ["base"]\n[[meet]]')
        self.refuses({"src/daemon/loop/t.cc": '#include "wire/m.h"\n'}, "daemon/loop may not include", table=table)
        self.refuses({"src/daemon/loop/t.cc": '#include "base/a.h"\n', "src/base/b.cc": '#include "daemon/loop/t.h"\n'},
                     "base may not include", table=table)

    def test_edge_that_goes_up(self):
        self.refuses({"src/base/b.cc": '\n#include "wire/m.h"\n'}, "src/base/b.cc:2", "base may not include")

    def test_edge_between_siblings(self):
        self.refuses({"src/sched/d.cc": '#  include "wire/m.h"  // no\n'}, "src/sched/d.cc:1", "sched may not include")

    def test_edge_from_the_simulation(self):
        self.refuses({"sim/sched/x.cc": '#include "wire/m.h"\n'}, "sim/sched/x.cc:1")

    def test_leaf_product(self):
        table = TABLE.replace("[[meet]]", 'slurm = ["base"]\n[[meet]]')
        good = {"slurm/job.cc": '#include "base/a.h"\n#include "slurm/job.h"\n', "slurm/job.h": ""}
        self.assertEqual(self.check({**ALLOWED, **good}, table), [])
        self.refuses({"slurm/job.cc": '#include "wire/m.h"\n'}, "slurm may not include", table=table)
        self.refuses({"src/base/b.cc": '#include "slurm/job.h"\n', **good}, "base may not include", table=table)
        problems = self.check({}, table.replace('daemon = [', 'daemon = ["slurm", '))
        self.assertEqual(problems, ["layers.toml: daemon may include slurm, which can be left out of a build"])

    def test_edge_into_the_simulation(self):
        self.refuses({"src/sched/d.cc": '#include "sim/sched/run.h"\n'}, "sched may not include")

    def test_tests_may_include_more(self):
        self.assertEqual(self.check({**ALLOWED, "src/base/a_test.cc": '#include "daemon/translate.h"\n'}), [])

    def test_name_that_only_looks_like_a_test_is_held(self):
        self.refuses({"src/base/testing.cc": '#include "wire/m.h"\n'}, "base may not include")

    def test_include_without_folder(self):
        self.refuses({"src/wire/n.cc": '#include "m.h"\n'}, "name the folder")

    def test_include_through_parent(self):
        self.refuses({"src/wire/n.cc": '#include "wire/../base/a.h"\n'}, "name the folder")

    def test_unknown_folder(self):
        self.refuses({"src/extra/n.cc": ""}, "src/extra/n.cc", "not in tools/layers.toml")

    def test_cycle_of_files(self):
        files = {"src/base/x.h": '#include "base/y.h"\n', "src/base/y.h": '#include "base/x.h"\n'}
        self.refuses(files, "base/x.h -> base/y.h -> base/x.h")

    def test_cycle_of_folders_in_the_table(self):
        table = TABLE.replace('wire = ["base"]', 'wire = ["sched"]')
        table = table.replace('sched = ["base"]\nd', 'sched = ["wire"]\nd')
        self.refuses({}, "cycle", "wire", "sched", table=table)

    def test_table_names_a_folder_that_is_not_there(self):
        self.refuses({}, "nowhere", table=TABLE.replace('wire = ["base"]', 'wire = ["base", "nowhere"]'))

    def test_second_meeting_place(self):
        files = {"src/daemon/other.cc": '#include "sched/c.h"\n#include "wire/m.h"\n'}
        self.refuses(files, "daemon/other", "daemon/translate")

    def test_header_and_source_of_one_name_are_one_place(self):
        files = {"src/daemon/other.h": '#include "sched/c.h"\n', "src/daemon/other.cc": '#include "wire/m.h"\n'}
        self.refuses(files, "meet in 2")

    def test_component_linked_with_what_it_may_not_include(self):
        files = {"src/sched/CMakeLists.txt": "gpumux_component(sched\n  SOURCES c.cc\n  DEPS base wire)\n"}
        self.refuses(files, "sched may not be linked with wire")

    def test_component_linked_as_allowed(self):
        files = {"src/wire/CMakeLists.txt": "gpumux_component(wire SOURCES m.cc DEPS base)\n"}
        self.assertEqual(self.check({**ALLOWED, **files}), [])


if __name__ == "__main__":
    unittest.main()
