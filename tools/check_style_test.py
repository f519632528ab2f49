#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: the style check refuses what style.toml names, where it names it, and leaves lawful code alone.

Method: one small text for each rule and for what only looks like a breach of it.
"""

import pathlib
import tomllib
import unittest

import check_style

HERE = pathlib.Path(__file__).resolve().parent
HEAD = "// SPDX-License-Identifier: Apache-2.0\n"


class StyleTest(unittest.TestCase):

    def setUp(self):
        folders = tomllib.loads((HERE / "layers.toml").read_text(encoding="utf-8"))["folders"]
        self.style = check_style.Style(tomllib.loads((HERE / "style.toml").read_text(encoding="utf-8")), folders)

    def passes(self, name, text):
        self.assertEqual(self.style.check_file(name, text), [])

    def refuses(self, name, text, *words):
        problems = self.style.check_file(name, text)
        self.assertEqual(len(problems), 1, problems)
        for word in words:
            self.assertIn(word, problems[0])

    def test_licence_line(self):
        self.refuses("src/base/a.cc", "int a;\n", "SPDX")
        self.refuses("tools/run", "#!/bin/sh\necho\n", "SPDX")
        self.passes("tools/run", "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n")

    def test_pragma_once(self):
        self.refuses("src/base/a.h", HEAD, "#pragma once")
        self.passes("src/base/a.h", HEAD + "#pragma once\n")

    def test_lengths(self):
        self.refuses("src/base/a.cc", HEAD + "// " + "x" * 118 + "\n", "a.cc:2", "121 columns")
        self.passes("src/base/a.cc", HEAD + "// " + "x" * 117 + "\n")
        self.passes("src/base/a.cc", HEAD + "// " + "é" * 117 + "\n")
        longest = self.style.table["max_lines"]
        self.passes("src/base/a.cc", HEAD + "int a;\n" * (longest - 1))
        self.refuses("src/base/a.cc", HEAD + "int a;\n" * longest, f"{longest + 1} lines")
        self.passes("src/cuda/a.gen.cc", HEAD + "int a;\n" * longest)
        self.passes("src/cuda/abi.h", HEAD + "#pragma once\n" * longest)

    def test_the_core_is_pure(self):
        for text in ("auto t = std::chrono::steady_clock::now();", "double share = 0;", "int r = rand();",
                     "std::mutex m;", 'auto* v = getenv("A");', "#include <random>",
                     "static thread_local int x;"):
            self.refuses("src/sched/a.cc", HEAD + text + "\n", "src/sched/a.cc:2", "pure")
            self.passes("src/sched/a_test.cc", HEAD + text + "\n")
            self.passes("src/daemon/a.cc", HEAD + text + "\n")

    def test_the_core_iterates_nothing_unordered(self):
        self.refuses("src/sched/a.cc", HEAD + "std::unordered_map<int, int> m;\n", "a.cc:2", "order")
        self.passes("src/sched/a.cc", HEAD + "std::unordered_map<int, int> m;  // looked up, never iterated\n")

    def test_the_core_may_use_words_that_only_look_alike(self):
        text = "// a double quantum, at random\nint doubled = 2; int operand(int); int timeout(int);\n"
        self.passes("src/sched/a.cc", HEAD + text)

    def test_nothing_ends_the_host_program(self):
        for text in ("abort();", "std::abort();", "::_exit(1);", "exit(0);", "std::terminate();", "throw 1;",
                     "#include <iostream>", "std::thread t;"):
            self.refuses("src/gate/a.cc", HEAD + "\n" + text + "\n", "src/gate/a.cc:3", "programs that are not ours")
            self.passes("src/cli/a.cc", HEAD + text + "\n")
        self.passes("src/gate/a.cc", HEAD + "on_exit(); thread.exit(); hooks->exit(); gate::exit(1); at_exit(f);\n")

    def test_unbounded_calls_are_refused_everywhere(self):
        for name in ("src/cli/a.cc", "src/cli/a_test.cc", "sim/cuda/a.cc", "tests/demo/a.cc"):
            self.refuses(name, HEAD + "strcpy(a, b);\n", "strcpy")
            self.refuses(name, HEAD + 'std::system("ls");\n', "system")
            self.passes(name, HEAD + "snprintf(a, 1, b); file_system(1); x.system(); filesystem::system(2);\n")

    def test_comments_and_strings_are_not_code(self):
        text = '// abort() and throw\n/* exit(1)\n exit(2) */ auto s = "exit(0) \\" throw";\n'
        text += "auto c = '\"'; int n = 1'000; auto d = '\\'';\n"
        self.passes("src/gate/a.cc", HEAD + text)
        self.passes("src/gate/a.cc", HEAD + 'auto s = R"x(throw " )" exit(1))x"; int a;\n')
        self.refuses("src/shim/hooks/a.cc", HEAD + 'auto s = "//"; throw 1;\n', "throw")

    def test_leftovers_and_foreign_words(self):
        self.refuses("docs/a.md", "TODO: write\n", "finish it")
        self.refuses("src/base/a.cc", HEAD + "// FIXME\n", "a.cc:2")
        self.refuses("docs/a.md", "\n\nsee /home/eva/gpumux\n", "a.md:3", "itself only")
        self.passes("docs/a.md", "/usr/lib and https://example.org/work/x are fine\n".replace("/work/", "/works/"))
        self.passes("LICENSE", "TODO\n")

    def test_an_integer_type_needs_its_header(self):
        for text, good in (("", False), ("#include <cstdint>", True), ('#include "base/b.h"', True),
                           ('#include "base/c.h"', False)):
            texts = {"src/base/a.h": text + "\nstd::uint64_t a;", "src/base/b.h": "#include <cstdint>",
                     "src/base/c.h": '#include "base/a.h"\n// std::int32_t'}
            self.assertEqual(len(check_style.Includes(texts).problems()), 0 if good else 1, text)


if __name__ == "__main__":
    unittest.main()
