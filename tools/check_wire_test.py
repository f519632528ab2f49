#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: the layout check sees every change that an earlier library would misread. Method: small headers."""

import unittest

import check_wire

HEADER = """
enum class Kind : std::uint32_t { kNone = 0, kSome = 1 };
enum class Other : std::uint32_t {
  kFirst = 0,   // a comment, with a comma
  kSecond = 2,
};
struct Header {
  std::uint32_t type = 0;
};
struct NoMessage {
  int odd() { return 1; }
};
struct Wish {
  static constexpr Type kType = Type::kWish;
  static constexpr std::size_t kMinimumBytes = 24;
  std::uint64_t room = 0;        // bytes; in all
  std::uint64_t commitment = 0;
  char name[base::kMaxNameBytes] = {};
  Kind kind = Kind::kNone;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(Wish) == 24);
"""


class WireTest(unittest.TestCase):

    def check(self, old, new):
        now = check_wire.layout(HEADER.replace(old, new))
        released = check_wire.layout(HEADER)
        return check_wire.check(now, released), [name for name, _ in check_wire.missing(now, released)]

    def test_what_is_read(self):
        found = check_wire.layout(HEADER)
        self.assertEqual(sorted(found), ["Header", "Kind", "Other", "Wish"])
        self.assertEqual(found["Wish"], [("Wish.room", "std::uint64_t"), ("Wish.commitment", "std::uint64_t"),
                                         ("Wish.name", "char[base::kMaxNameBytes]"), ("Wish.kind", "Kind"),
                                         ("Wish.reserved", "std::uint32_t")])
        self.assertEqual(found["Other"], [("Other::kFirst", "0"), ("Other::kSecond", "2")])

    def test_equal(self):
        self.assertEqual(self.check("", ""), ([], []))

    def test_fields_that_change_places(self):
        problems, _ = self.check("std::uint64_t room = 0;        // bytes; in all\n  std::uint64_t commitment = 0;",
                                 "std::uint64_t commitment = 0;\n  std::uint64_t room = 0;")
        self.assertEqual(len(problems), 1, problems)
        self.assertIn("Wish.room (std::uint64_t) was released where Wish.commitment", problems[0])

    def test_a_field_in_the_middle(self):
        problems, _ = self.check("  Kind kind", "  std::uint32_t more = 0;\n  Kind kind")
        self.assertEqual(len(problems), 1, problems)

    def test_another_type(self):
        self.assertEqual(len(self.check("std::uint64_t room", "std::int64_t room")[0]), 1)

    def test_fields_and_messages_that_are_gone(self):
        self.assertEqual(self.check("  std::uint32_t reserved = 0;\n", "")[0],
                         ["Wish.reserved was released and is gone"])
        self.assertEqual(len(self.check("struct Wish", "struct Want")[0]), 5)

    def test_another_value(self):
        self.assertEqual(self.check("kSecond = 2", "kSecond = 1")[0], ["Other::kSecond was released as 2 and is 1"])
        self.assertEqual(self.check("kSome = 1", "kNow = 1")[0], ["Kind::kSome was released as 1 and is gone"])

    def test_growth(self):
        more = "  std::uint32_t flags = 0;\n  std::uint64_t more = 0;"
        self.assertEqual(self.check("  std::uint32_t reserved = 0;", more), ([], ["Wish.flags", "Wish.more"]))
        self.assertEqual(self.check("kSecond = 2,", "kSecond = 2,\n  kThird = 3,"), ([], ["Other::kThird"]))

    def test_what_cannot_be_read(self):
        with self.assertRaises(check_wire.CannotRead):
            check_wire.layout(HEADER.replace("Kind kind", "Kind* kind[2][2], other"))


if __name__ == "__main__":
    unittest.main()
