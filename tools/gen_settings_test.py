#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: the generator refuses a line that cannot be true, the documents list every setting, and some code reads it.
Method: small tables; the real one beside the real documents and the real code."""

import re
import unittest
from pathlib import Path

import gen_settings

ROOT = Path(__file__).resolve().parent.parent
# Where code reads a setting, by its column "where", and the file that only logs those of the lease core.
READING = {"core": ("src/sched",), "plugin": ("kubernetes",)}
READING_ELSEWHERE = ("src/daemon", "src/node", "src/jobs", "src/server")
LOG = ROOT / "src/sched/events.cc"


def read(line, section="gpu", meaning="It is a setting."):
    return gen_settings.read(f"[{section}]\n{line}\n  {meaning}\n")


def is_read(setting):
    """Whether code reads a field of that name. Tests do not count."""
    field = re.compile(rf"(\.|->|::){setting.name}\b(?!\()")
    for folder in READING.get(setting.where, READING_ELSEWHERE):
        for path in (ROOT / folder).rglob("*.[ch]*"):
            is_product = path != LOG and not re.search(r"_(test|bench|fuzz)\.cc$|\.gen\.", path.name)
            if is_product and field.search(path.read_text(encoding="utf-8")):
                return True
    return False


class TableTest(unittest.TestCase):

    def test_a_line_becomes_a_field(self):
        for line, field, default in (
                ("a | time 1ms..1h | 5ms | core |", "base::Duration", "base::Duration(5000000)"),
                ("a | time 1ms..1h auto unlimited | auto | core |", "Auto<Limit<base::Duration>>", "kAutomatic"),
                ("a | time 1ms..1h unlimited | unlimited | core |", "Limit<base::Duration>", "kUnlimited"),
                ("a | time 1ms..1h auto driver | auto | core |", "Auto<std::optional<base::Duration>>", "kAutomatic"),
                ("a | bytes 1.. whole | whole | core |", "std::optional<std::uint64_t>", "std::nullopt"),
                ("a | count 0..10 | 3 | core |", "std::uint32_t", "3"),
                ("a_b | word x_y z | z | core |", "AB", "AB::kZ"),
                ("a | bool | true | core |", "bool", "true")):
            setting, = read(line)
            self.assertEqual((setting.cpp_type(), setting.cpp_default()), (field, default), line)

    def test_allowed_has_range_and_words(self):
        for line, allowed in (("a | time 1ms..1h auto unlimited | auto | core |",
                               "a time from 1ms to 1h, auto, or unlimited"),
                              ("a | word x y z | x | core |", "x, y or z"), ("a | bool | true | core |", "true or false")):
            self.assertEqual(read(line)[0].type.allowed(), allowed)

    def test_what_cannot_be_true_is_refused(self):
        for line, why in (("a | speed 1..2 | 1 | core |", "no type"),
                          ("a | time 1ms..1h | 2h | core |", "out of its range"),
                          ("a | time 1..2 | 1ms | core |", "is no time"),
                          ("a | word x y | z | core |", "none of its words"),
                          ("a | time 1ms..1h | 5ms", "4 or 5 columns")):
            with self.assertRaisesRegex(gen_settings.Wrong, why):
                read(line)
        with self.assertRaisesRegex(gen_settings.Wrong, "is a sentence"):
            read("a | bool | true | core |", meaning="no full stop")
        with self.assertRaisesRegex(gen_settings.Wrong, "100 characters"):
            read("a | bool | true | core |", meaning="word " * 25 + "end.")
        with self.assertRaisesRegex(gen_settings.Wrong, "there twice"):
            gen_settings.read("[gpu]\n" + "a | bool | true | core |\n  It is.\n" * 2)


class DocumentsTest(unittest.TestCase):

    def test_every_line_is_listed(self):
        settings = gen_settings.read((ROOT / gen_settings.TABLE).read_text(encoding="utf-8"))
        configuration, environment, api, kubernetes = (
            (ROOT / path).read_text(encoding="utf-8") for path in gen_settings.DOCUMENTS)
        example = (ROOT / gen_settings.EXAMPLE).read_text(encoding="utf-8")
        self.assertGreater(len(settings), 80)
        for setting in settings:
            with self.subTest(setting.name):
                if setting.variable:
                    self.assertEqual(environment.count(f"| `{setting.variable}` |"), 1)
                if setting.alias:
                    self.assertIn(f"`{setting.alias}`", environment)
                if setting.section == "kubelet":
                    self.assertIn(f"- `{setting.name}`: {setting.type.in_documents()} (default: `{setting.default}`).",
                                  " ".join(kubernetes.split()))
                elif setting.section in gen_settings.SETTINGS:
                    self.assertIn(f"| `{setting.name}` | {setting.type.in_documents()} | `{setting.default}` |",
                                  configuration)
                # The plugin for the kubelet reads no file.
                if setting.section in gen_settings.SETTINGS and setting.section != "kubelet":
                    self.assertIn(f"\n#{setting.in_file()}\n", example)
                if setting.section == "gpu":
                    self.assertIn(f'"{setting.name}": ', api)

    def test_nothing_else_has_been_made(self):
        self.assertTrue(gen_settings.verify(ROOT, gen_settings.generate(ROOT)))


# The settings of the core that the simulator leaves as they come, and why.
NOT_DRAWN = {
    "idle_hold": "the simulator checks the rule of `auto`",
}


class CodeTest(unittest.TestCase):

    def test_every_setting_is_read(self):
        settings = gen_settings.read((ROOT / gen_settings.TABLE).read_text(encoding="utf-8"))
        fields = [setting for setting in settings if setting.section in gen_settings.SETTINGS]
        self.assertEqual([setting.name for setting in fields if not is_read(setting)], [], "no code reads these")

    def test_the_simulator_draws_every_setting_of_the_core(self):
        text = (ROOT / "sim/sched/world.cc").read_text(encoding="utf-8")
        drawn = set(re.findall(r"\bs\.(\w+) = ", text[text.index("World::any_settings()"):text.index("void World::at")]))
        settings = gen_settings.read((ROOT / gen_settings.TABLE).read_text(encoding="utf-8"))
        core = {setting.name for setting in settings if setting.section == "gpu" and setting.where.startswith("core")}
        self.assertEqual(core - drawn, set(NOT_DRAWN), "sim/sched/world.cc draws values of each but these")

    def test_a_setting_that_no_code_reads_is_found(self):
        for where in ("core", "daemon", "plugin"):
            self.assertFalse(is_read(*read(f"never_read | bool | true | {where} |")), where)


if __name__ == "__main__":
    unittest.main()
