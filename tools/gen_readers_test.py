#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: gen_readers.py refuses every field and every member that would be lost, and names both sides.
Method: small schemas, structs and tables, each with one fault.
"""

import unittest

import gen_readers
from gen_readers import Struct

INTEGER = {"type": "integer"}
TEXT = {"type": "string"}
HEADER = """
struct Inner {
  double sum = 0;  // in all
};

// A comment.
struct Outer {
  std::uint64_t id = 0;
  std::optional<base::Duration> age{};
  std::uint64_t size = 0;
  std::string pod_namespace;
  std::vector<Inner> parts;

  bool is_old() const { return age.has_value(); }
};
"""


def schemas(**fields):
    outer = {"id": INTEGER, "age_ns": INTEGER, "size_bytes": INTEGER, "namespace": TEXT,
             "parts": {"type": "array", "items": {"$ref": "#/components/schemas/InnerSchema"}}}
    return {"InnerSchema": {"properties": {"sum": {"type": "number"}}}, "OuterSchema": {"properties": outer | fields}}


def lines(header=HEADER, fields=None, **more):
    table = {"Inner": Struct("InnerSchema", "a part"), "Outer": Struct("OuterSchema", "the whole", **more)}
    objects = gen_readers.Objects(schemas(**(fields or {})), gen_readers.structs_of(header), table)
    return list(gen_readers.reader(objects, "Outer"))


class ReadersTest(unittest.TestCase):

    def refuses(self, why, *arguments, **more):
        with self.assertRaisesRegex(gen_readers.Wrong, why):
            lines(*arguments, **more)

    def test_a_field_is_in_the_member_of_its_name(self):
        self.assertEqual(lines(), [
            "inline void outer_fields(Reader& reader, Outer& target) {",
            '  reader.read("id", target.id);',
            '  reader.read("age_ns", target.age);',
            '  reader.read("size_bytes", target.size);',
            '  reader.read("namespace", target.pod_namespace);',
            '  reader.read("parts", target.parts, "a part", inner_fields);',
            "}"])

    def test_nothing_is_lost_on_either_side(self):
        self.refuses("Outer has no member for 'new' of OuterSchema", fields={"new": INTEGER})
        self.refuses("Outer::extra is no fields", HEADER.replace("  std::vector", "  bool extra = false;\n  std::vector"))
        self.refuses("Outer::age is 2 fields", fields={"age": INTEGER})
        self.assertNotIn("new", "".join(lines(fields={"new": INTEGER}, unused="new")))
        self.assertIn('  reader.read("new", target.size);',
                      lines(fields={"new": INTEGER}, names={"new": "size"}, unused="size_bytes"))

    def test_the_table_names_only_fields_that_there_are(self):
        self.refuses("OuterSchema has no field 'old'", unused="old")
        self.refuses("OuterSchema has no field 'old'", by_hand="old")

    def test_a_member_is_a_place_for_its_field(self):
        self.refuses("Outer::id is a std::uint64_t: that is no place for 'id'", fields={"id": TEXT})
        self.refuses("Outer::parts is a std::vector<Inner>", fields={"parts": {"type": "array", "items": INTEGER}})

    def test_a_line_that_it_cannot_read_is_no_member_that_is_forgotten(self):
        self.refuses("cannot read the line 'int a, b;'", HEADER.replace("  double sum = 0;", "  int a, b;"))


if __name__ == "__main__":
    unittest.main()
