#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: the export check refuses each kind of library that would hurt a program, and passes a good one.

Method: small libraries, compiled for each case.
"""

import pathlib
import platform
import subprocess
import tempfile
import unittest

import check_exports

MAP = "{\n  global:\n    cuInit;  # a comment; with a semicolon\n    cuLaunch;\n  local: *;\n};\n"
FUNCTION = 'extern "C" __attribute__((visibility("default"))) int {}() {{ {} return 0; }}\n'
BEGIN = 'asm volatile("" : : : "rbx", "r12", "r13", "r14", "r15");'
GOOD = FUNCTION.format("cuInit", BEGIN) + FUNCTION.format("cuLaunch", BEGIN)


class ExportsTest(unittest.TestCase):

    def problems(self, source, script=MAP, link_map=None, flags=()):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "a.cc").write_text(source, encoding="utf-8")
            (root / "link.map").write_text(link_map or script, encoding="utf-8")
            subprocess.run(["g++", "-shared", "-fPIC", "-nostdlib", "-o", root / "liba.so", root / "a.cc",
                            f"-Wl,--version-script={root / 'link.map'}", *flags, "-Wl,--as-needed", "-lc"], check=True)
            return check_exports.check(root / "liba.so", script, "2.28")

    def refuses(self, words, *arguments, **options):
        problems = self.problems(*arguments, **options)
        self.assertEqual(len(problems), 1, problems)
        self.assertIn(words, problems[0])

    def test_good_library(self):
        self.assertEqual(self.problems(GOOD), [])

    def test_export_too_few(self):
        self.refuses("cuLaunch is in the list and not exported", GOOD.split("\n", maxsplit=1)[0])

    @unittest.skipUnless(platform.machine() == "x86_64", "only there a jump takes the place of several instructions")
    def test_entry_that_cannot_be_patched(self):
        self.refuses('cuLaunch begins with "', FUNCTION.format("cuInit", BEGIN) + FUNCTION.format("cuLaunch", ""),
                     flags=("-O2", "-fno-omit-frame-pointer"))

    def test_export_too_many(self):
        extra = 'extern "C" __attribute__((visibility("default"))) int malloc_usable() { return 0; }\n'
        self.refuses("malloc_usable is exported and not in the list", GOOD + extra, link_map="{ global: *; };")

    def test_weak_export_too_many(self):
        extra = 'extern "C" __attribute__((visibility("default"), weak)) int inlined() { return 0; }\n'
        self.refuses("inlined is exported", GOOD + extra, link_map="{ global: *; };")

    def test_pattern_in_the_list(self):
        problems = self.problems(GOOD, script=MAP.replace("cuLaunch;", "cuLaunch*;"))
        self.assertTrue(any("pattern, cuLaunch*" in problem for problem in problems), problems)

    def test_library_beyond_libc(self):
        source = GOOD + 'extern "C" double cos(double); double f(double x) { return cos(x); }\n'
        self.refuses("needs libm.so.6", source, flags=("-Wl,--no-as-needed", "-lm"))

    def test_symbol_of_a_newer_c_library(self):
        # clock_gettime moved to libc in 2.17 and pthread_cond_clockwait came in 2.30: too new for the oldest platform.
        source = GOOD + 'extern "C" int pthread_cond_clockwait(void*, void*, int, void*);\n' \
                        'int f() { return pthread_cond_clockwait(0, 0, 0, 0); }\n'
        problems = self.problems(source)
        self.assertEqual(len(problems), 1, problems)
        self.assertRegex(problems[0], r"pthread_cond_clockwait is wanted in version GLIBC_2\.3\d")

    def test_search_path(self):
        self.refuses("has RUNPATH", GOOD, flags=("-Wl,--enable-new-dtags,-rpath,/opt",))

    @unittest.skipUnless(platform.machine() == "x86_64", "the check reads x86-64's instructions")
    def test_object_that_is_destroyed_at_the_end(self):
        source = GOOD + 'extern "C" __attribute__((visibility("hidden"))) void* __dso_handle = 0;\n' \
                        'extern "C" int puts(const char*);\nstruct Last { ~Last() { puts("end"); } } last;\n'
        self.refuses("has an object destroyed", source)

    def test_executable_stack(self):
        self.refuses("stack is executable", GOOD, flags=("-Wl,-z,execstack",))


if __name__ == "__main__":
    unittest.main()
