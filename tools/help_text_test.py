#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: what a program says of itself is read whole, or not at all. Method: a help text, and broken copies of it."""

import unittest

import help_text

TEXT = """\
Does a thing.
Usage: thing do [OPTIONS] [WHAT...]

Positionals:
  WHAT                      What to do

Options:
  -h,--help                 Print this help message and exit
  --mode-of-the-thing-done MODE
                            How it is done: fast or well
  -t,--time TIME            For how long: a time from 1ms to 24h, auto, or unlimited
  --times VALUE             How often. (once or twice)
  --name NAME               A name: yours

More is to be said,
in two lines.

Examples:
  thing do it   # now

Exit status: 0 done.
"""


class HelpTest(unittest.TestCase):

    def test_is_read_whole(self):
        found = help_text.parse("thing do", TEXT)
        self.assertEqual((found.summary, found.usage), ("Does a thing.", "thing do [OPTIONS] [WHAT...]"))
        self.assertEqual([(option.flags, option.placeholder, option.values()) for option in found.options()],
                         [(["-h", "--help"], "", []),
                          (["--mode-of-the-thing-done"], "MODE", ["fast", "well"]),
                          (["-t", "--time"], "TIME", ["auto", "unlimited"]),
                          (["--times"], "VALUE", ["once", "twice"]),
                          (["--name"], "NAME", ["yours"])])
        self.assertEqual([block.header for block in found.blocks], ["Positionals", "Options", "", "Examples", ""])
        self.assertEqual(found.blocks[0].items, [("WHAT", "What to do")])
        self.assertEqual(found.blocks[2].text, "More is to be said, in two lines.")
        self.assertEqual(found.blocks[3].lines, ["  thing do it   # now"])

    def test_what_is_not_understood_is_an_error(self):
        for broken in (TEXT.replace("Usage:", "Use:"), TEXT.replace("  -t,--time", "  -t/--time"),
                       TEXT.replace("in two lines.", "  in two lines."), "", "Does a thing.\n"):
            with self.subTest(broken=broken), self.assertRaises(ValueError):
                help_text.parse("thing do", broken)


if __name__ == "__main__":
    unittest.main()
