# SPDX-License-Identifier: Apache-2.0
"""Goal: gen_cuda.py refuses every table that would leave a hole, and names the entry and the parameter; and what it
writes is well formed.

Method: small tables with one fault each, checked against a small list of exports; then the real table, broken in one
place at a time.
"""

import contextlib
import io
import re
import tempfile
import unittest
from pathlib import Path

import cuda_table
import gen_cuda

ROOT = Path(__file__).resolve().parent.parent

LAYOUTS = cuda_table.parse_layouts(
    """
enum CUresult : unsigned int {
  CUDA_SUCCESS = 0,
};
struct CUinner {
  CUdeviceptr address;
};
struct CUouter {
  int number;  // CUstream is only named in this comment
  CUinner inner;
};
struct CUharmless {
  int number;
};
struct CUlaunchConfig {
  unsigned int gridDimX;
  CUstream hStream;
};
"""
)

GOOD = (
    "cuLaunchThing | cuLaunchThing | 4000 | legacy | launch | gate(stream=stream) | "
    "CUresult(CUfunction function, CUstream stream)"
)


def thing(columns):
    """A line for an entry that takes no stream variant: the class, the action and what follows."""
    return f"cuThing | cuThing | 4000 | - | {columns}"


def refusal(*lines, exports=None):
    """The error that the checks give for a table of these lines; empty if it is accepted."""
    try:
        entries = cuda_table.parse_table("\n".join(lines))
        cuda_table.check(entries, LAYOUTS, exports if exports is not None else [e.symbol for e in entries])
    except cuda_table.TableError as error:
        return str(error)
    return ""


class Refusals(unittest.TestCase):
    def assert_refused(self, line, *words, also=()):
        said = refusal(line, *also)
        self.assertTrue(said, f"accepted: {line}")
        for word in words:
            self.assertIn(word, said)

    def test_a_sound_line_is_accepted(self):
        self.assertEqual(refusal(GOOD), "")
        self.assertEqual(refusal("# a comment", "", GOOD), "")

    def test_device_pointer_without_class(self):
        line = thing("- | forward | CUresult(CUdeviceptr where)")
        self.assert_refused(line, "cuThing", "'CUdeviceptr where'", "no class")

    def test_stream_without_action(self):
        line = thing("memory | - | CUresult(int a, CUstream stream)")
        self.assert_refused(line, "cuThing", "'CUstream stream'", "no action")

    def test_pointer_to_device_pointer_without_class(self):
        self.assert_refused(thing("- | - | CUresult(const CUdeviceptr* where)"), "'const CUdeviceptr* where'")

    def test_old_device_pointer_without_class(self):
        self.assert_refused(thing("- | forward | CUresult(CUdeviceptr_v1 where)"), "'CUdeviceptr_v1 where'", "no class")

    def test_structure_that_holds_a_device_pointer_without_class(self):
        self.assert_refused(thing("- | forward | CUresult(const CUouter* what)"), "'const CUouter* what'", "no class")
        line = thing("- | forward | CUresult(CUDA_RESOURCE_DESC* what)")
        self.assert_refused(line, "'CUDA_RESOURCE_DESC* what'", "no class")

    def test_anything_without_class(self):
        said = refusal(thing("- | forward | CUresult(const CUharmless* what)"))
        self.assertIn("has no class", said)
        self.assertNotIn("device pointer", said)

    def test_unknown_class_action_and_variant(self):
        self.assert_refused(thing("lunch | forward | CUresult()"), "unknown class 'lunch'")
        self.assert_refused(thing("query | drop | CUresult()"), "unknown action 'drop'")
        self.assert_refused(GOOD.replace("legacy", "pts"), "unknown stream variant 'pts'")

    def test_submission_that_is_forwarded_needs_a_reason(self):
        line = "cuThing | cuThing | 4000 | legacy | copy | forward | CUresult(CUdeviceptr where, CUstream stream)"
        self.assert_refused(line, "must be gated")
        self.assertEqual(refusal(line + " | it only reads a number"), "")

    def test_place_that_names_no_parameter(self):
        line = GOOD.replace("gate(stream=stream)", "gate(stream=hStream)")
        self.assert_refused(line, "cuLaunchThing", "'hStream'", "does not exist")

    def test_place_that_names_a_parameter_of_another_type(self):
        line = GOOD.replace("gate(stream=stream)", "gate(stream=function)")
        self.assert_refused(line, "'function' as CUstream, but it is CUfunction")

    def test_place_that_leaves_the_stream_out(self):
        self.assert_refused(GOOD.replace("gate(stream=stream)", "gate(default)"), "takes stream 'stream'")

    def test_place_of_an_unknown_kind_or_count(self):
        self.assert_refused(GOOD.replace("gate(stream=stream)", "gate(somewhere)"), "unknown place 'somewhere'")
        self.assert_refused(GOOD.replace("gate(stream=stream)", "gate(stream)"), "takes 1 parameters, not 0")
        self.assert_refused(GOOD.replace("gate(stream=stream)", "gate"), "needs a place")
        self.assert_refused(thing("query | forward(default) | CUresult()"), "takes no place")

    def test_places_within_parameters(self):
        line = "cuEx | cuEx | 4000 | legacy | launch | gate(stream=config->hStream) | CUresult(CUlaunchConfig* config)"
        self.assertEqual(refusal(line), "")
        self.assert_refused(line.replace("hStream", "gridDimX"), "but it is unsigned int")
        self.assert_refused(line.replace("hStream", "nothing"), "no member nothing")
        line = "cuFrame | cuFrame | 4000 | legacy | external | gate(stream=*stream) | CUresult(CUstream* stream)"
        self.assertEqual(refusal(line), "")
        self.assert_refused(line.replace("CUresult(CUstream*", "CUresult(CUevent*"), "but it is CUevent")
        line = "cuMake | cuMake | 4000 | legacy | graph | gate(upload=p) | CUresult(CUDA_GRAPH_INSTANTIATE_PARAMS* p)"
        self.assertEqual(refusal(line), "")
        self.assert_refused(line.replace("CUDA_GRAPH_INSTANTIATE_PARAMS*", "int"), "but it is int")

    def test_gate_without_stream_variant(self):
        self.assert_refused(GOOD.replace("legacy", "-"), "needs a stream variant")

    def test_nodes_whose_addresses_are_looked_up_are_held(self):
        for type_ in ("const CUDA_MEMCPY3D*", "CUgraphNodeParams*", "const CUDA_BATCH_MEM_OP_NODE_PARAMS*"):
            line = thing(f"graph | forward | CUresult({type_} what, CUcontext context)")
            self.assert_refused(line, f"'{type_} what'", "must be held")
            self.assertEqual(refusal(line + " | it is never looked at"), "")
            self.assertEqual(refusal(line.replace("forward", "hold(context_of=context)")), "")
            self.assertEqual(refusal(line.replace("forward", "hold(context)")), "")
        self.assertEqual(refusal(thing("graph | hold(node=what) | CUresult(CUgraphNodeParams* what)")), "")
        self.assert_refused(thing("graph | hold(node=what) | CUresult(int what)"), "but it is int")
        self.assert_refused(thing("graph | hold(stream=s) | CUresult(CUstream s)"), "unknown place 'stream' for hold")
        self.assert_refused(thing("graph | hold | CUresult()"), "needs a place")
        # A function that only asks for the parameters need not hold anything.
        self.assertEqual(refusal(thing("graph | forward | CUresult(CUDA_MEMCPY3D* what)")), "")

    def test_sync_class_and_action_go_together(self):
        self.assert_refused("cuWait | cuWait | 4000 | - | sync | forward | CUresult()", "go together")
        self.assert_refused("cuWait | cuWait | 4000 | - | query | sync(context) | CUresult()", "go together")
        self.assertEqual(refusal("cuWait | cuWait | 4000 | - | sync | sync(context) | CUresult()"), "")

    def test_duplicates(self):
        self.assert_refused(GOOD, "cuLaunchThing: is in the table twice", also=(GOOD,))
        self.assert_refused(thing("query | forward | CUresult(int a, int a)"), "two parameters 'a'")

    def test_versions_out_of_order_or_equal(self):
        plain = thing("query | forward | CUresult()")
        for since in (3020, 4000):
            line = f"cuThing_v2 | cuThing | {since} | - | query | forward | CUresult()"
            self.assert_refused(line, "not in order", also=(plain,))

    def test_names_that_do_not_fit(self):
        self.assert_refused("cuThing_v2 | cuOther | 4000 | - | query | forward | CUresult()", "asked for as 'cuOther'")
        self.assert_refused("cuThing | cuThing | - | - | query | forward | CUresult()", "without a version")
        line = GOOD.replace("cuLaunchThing |", "cuLaunchThing_ptsz |", 1)
        self.assert_refused(line, "does not fit the symbol's name")

    def test_missing_prototype(self):
        self.assert_refused("cuThing | - | - | - | query | hook | ?", "no prototype")
        self.assert_refused("cuThing | - | - | - | query | forward | ?", "no prototype")
        self.assertEqual(refusal("cuThing | - | - | - | query | forward | ? | undocumented"), "")

    def test_exports_that_the_table_lacks_and_the_other_way_round(self):
        self.assertIn("cuNew: is exported", refusal(GOOD, exports=["cuLaunchThing", "cuNew"]))
        self.assertIn("cuLaunchThing: is in the table and not exported", refusal(GOOD, exports=[]))

    def test_submission_without_a_per_thread_variant(self):
        new = GOOD.replace("4000", "7000")
        other = new.replace("cuLaunchThing |", "cuLaunchThing_ptsz |", 1).replace("legacy", "ptsz")
        self.assert_refused(new, "cuLaunchThing: its per-thread variant")
        self.assertEqual(refusal(new, other), "")
        self.assertEqual(refusal(new + " | it has one variant only"), "")

    def test_what_goes_to_a_stream_is_not_only_tried_again(self):
        line = "cuThing | cuThing | 4000 | legacy | event | room | CUresult(CUevent event, CUstream stream)"
        self.assert_refused(line, "takes stream 'stream'", "gated")

    def test_lines_that_cannot_be_read(self):
        self.assertIn("line 1: 2 columns", refusal("cuThing | cuThing"))
        self.assertIn("line 2", refusal(GOOD, thing("query | forward | CUresult(int)")))
        self.assertIn("line 1", refusal(thing("query | forward | nonsense")))
        self.assertIn("line 1", refusal("cuThing | cuThing | new | - | query | forward | CUresult()"))

    def test_everything_wrong_is_said_at_once(self):
        first, second = thing("lunch | forward | CUresult()"), thing("query | drop | CUresult()")
        said = refusal(first, second.replace("cuThing", "cuOther"))
        self.assertIn("lunch", said)
        self.assertIn("drop", said)


class TheRealTable(unittest.TestCase):
    """The program as it is called, on a copy of the repository's inputs."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = Path(directory.name)
        for path in (cuda_table.TABLE, cuda_table.EXPORTS, *cuda_table.ABI_HEADERS):
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text((ROOT / path).read_text())

    def run_program(self, *arguments):
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            code = gen_cuda.main([*arguments, "--root", str(self.root)])
        return code, errors.getvalue()

    def test_is_generated_and_then_verified(self):
        self.assertEqual(self.run_program("--verify")[0], 1)
        self.assertEqual(self.run_program(), (0, ""))
        self.assertEqual(self.run_program("--verify"), (0, ""))

    def test_an_edited_output_is_found_and_shown(self):
        self.run_program()
        output = self.root / "src/shim/doors/exports.gen.cc"
        output.write_text(output.read_text().replace("driver().cuLaunchKernel,", "driver().cuLaunch,"))
        code, said = self.run_program("--verify")
        self.assertEqual(code, 1)
        self.assertIn("src/shim/doors/exports.gen.cc is not what", said)
        self.assertRegex(said, r"\+  const CUresult result = submit_with_room\(.*driver\(\).cuLaunchKernel,")

    def test_copies_to_the_programs_memory_wait_outside_the_gate(self):
        self.run_program()
        exports = (self.root / "src/shim/doors/exports.gen.cc").read_text()
        found = dict(re.findall(r"(\w+)\(void.*\) \{\n.*submit_copy_out\(.*, bytes, CopyWait::Blocks::(\w+), ", exports))
        self.assertEqual((found["cuMemcpyDtoH_v2"], found["cuMemcpyDtoHAsync_v2_ptsz"]), ("kAlways", "kIfPageable"))
        self.assertEqual({re.sub(r"(Async)?(_v2)?(_pt[ds][sz])?$", "", name) for name in found},
                         {"cuMemcpyDtoH", "cuMemcpyAtoH"})

    def test_what_may_lack_memory_is_tried_again(self):
        self.run_program()
        exports = (self.root / "src/shim/doors/exports.gen.cc").read_text()
        self.assertIn("result = make(driver().cuEventCreate, event, flags);", exports)
        # Copies and fills take no memory, and may have begun.
        self.assertRegex(exports, r"result = submit\(.*driver\(\).cuMemcpyHtoD_v2,")
        self.assertRegex(exports, r"result = submit_with_room\(.*driver\(\).cuGraphLaunch_ptsz,")
        # It builds a graph, and launches nothing.
        self.assertIn("result = !uploads ? make(driver().cuGraphInstantiateWithParams,", exports)

    def test_a_line_taken_out_is_missed(self):
        table = self.root / cuda_table.TABLE
        table.write_text(re.sub(r"^cuMemsetD8Async_ptsz .*\n", "", table.read_text(), flags=re.M))
        code, said = self.run_program()
        self.assertEqual(code, 1)
        self.assertIn("cuMemsetD8Async_ptsz: is exported", said)
        self.assertFalse((self.root / "src/cuda/entries.gen.h").exists())

    def test_a_submission_forwarded_is_refused(self):
        table = self.root / cuda_table.TABLE
        gated = re.compile(r"^(cuGraphLaunch_ptsz .*)gate\(stream=stream\)", re.M)
        table.write_text(gated.sub(r"\1forward", table.read_text()))
        code, said = self.run_program("--verify")
        self.assertEqual(code, 1)
        self.assertIn("cuGraphLaunch_ptsz", said)

    def test_no_table_is_said(self):
        (self.root / cuda_table.TABLE).unlink()
        code, said = self.run_program()
        self.assertEqual(code, 1)
        self.assertIn("entries.table", said)

    def test_layouts_are_read_from_the_real_headers(self):
        _, layouts, _ = cuda_table.read_inputs(self.root)
        for type_ in (
            "CUDA_MEMCPY3D*",
            "const CUlaunchConfig*",
            "CUgraphNodeParams*",
            "CUDA_LAUNCH_PARAMS*",
            "CUDA_MEMCPY3D_BATCH_OP*",
            "CUstreamBatchMemOpParams*",
        ):
            self.assertTrue(layouts.holds_sensitive(type_), type_)
        for type_ in ("CUmemLocation", "CUuuid*", "CUDA_KERNEL_NODE_PARAMS*", "unsigned int"):
            self.assertFalse(layouts.holds_sensitive(type_), type_)

    def test_every_output_says_that_it_is_generated(self):
        entries, layouts, _ = cuda_table.read_inputs(self.root)
        for path, text in gen_cuda.generate(entries, layouts).items():
            first_line = text.splitlines()[0]
            self.assertRegex(first_line, r"^(//|#) GENERATED by tools/gen_cuda.py from src/cuda/entries.table", path)

    def test_every_gated_call_passes_its_own_function(self):
        entries, layouts, _ = cuda_table.read_inputs(self.root)
        exports = gen_cuda.generate(entries, layouts)["src/shim/doors/exports.gen.cc"]
        function = r"^GPUMUX_EXPORT CUresult (\w+)\(.*\) \{\n"
        call = r"  const CUresult result = (?:submit|synchronise)\w*\(.*driver\(\)\.(\w+)"
        calls = re.findall(function + call, exports, re.M)
        self.assertGreater(len(calls), 150)
        for symbol, called in calls:
            self.assertEqual(symbol, called)
        self.assertIn("at_stream(uploads ? instantiate_params->hUploadStream : nullptr, StreamVariant::kPtsz)", exports)
        self.assertIn("at_stream(config == nullptr ? nullptr : config->hStream, StreamVariant::kPtsz)", exports)


if __name__ == "__main__":
    unittest.main()
