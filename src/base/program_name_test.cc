// SPDX-License-Identifier: Apache-2.0
// Goal: a program is called as people call it, whatever runs it.
#include "base/program_name.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace gpumux::base {
namespace {

std::string name_of(const std::vector<std::string_view>& words) { return std::string(program_name(words)); }

TEST(ProgramName, IsTheBaseNameOfTheExecutable) {
  EXPECT_EQ(name_of({"/usr/bin/worker", "a.py"}), "worker");
  EXPECT_EQ(name_of({"./run.sh"}), "run.sh");
  EXPECT_EQ(name_of({"dir/"}), "dir");
  EXPECT_EQ(name_of({"/"}), "/");
  EXPECT_EQ(name_of({""}), "");
  EXPECT_EQ(name_of({}), "");
}

TEST(ProgramName, OfAnInterpreterIsTheScripts) {
  EXPECT_EQ(name_of({"python3", "-u", "dir/train.py", "x.py"}), "train.py");
  EXPECT_EQ(name_of({"/opt/venv/bin/python3.11", "-W", "ignore", "-Xtracemalloc", "a.py"}), "a.py");
  EXPECT_EQ(name_of({"python", "-m", "pkg.mod", "--flag"}), "pkg.mod");
  EXPECT_EQ(name_of({"python", "-um", "pkg.mod"}), "pkg.mod");
  EXPECT_EQ(name_of({"bash", "job.sh"}), "job.sh");
  EXPECT_EQ(name_of({"bash", "-eo", "pipefail", "--rcfile", "x", "run/job"}), "job");
  EXPECT_EQ(name_of({"torchrun", "--nproc_per_node=2", "train.py"}), "train.py");
  EXPECT_EQ(name_of({"torchrun", "--nproc_per_node", "2", "--standalone", "--rdzv-id", "7", "train.py"}), "train.py");
  EXPECT_EQ(name_of({"torchrun", "--nproc-per-node", "2", "-m", "pkg.mod"}), "pkg.mod");
}

TEST(ProgramName, OfAnInterpreterOfAnInterpreterIsTheLastOnesScript) {
  EXPECT_EQ(name_of({"/usr/bin/python3", "/usr/local/bin/torchrun", "--nnodes", "2", "dir/train.py"}), "train.py");
  EXPECT_EQ(name_of({"python", "-m", "torch.distributed.run", "--nproc_per_node", "2", "train.py"}), "train.py");
}

TEST(ProgramName, AScriptWithoutANameLeavesTheInterpreters) {
  EXPECT_EQ(name_of({"sh", "-c", "a; b"}), "sh");
  EXPECT_EQ(name_of({"bash", "-lc", "python train.py"}), "bash");
  EXPECT_EQ(name_of({"python3", "-c", "print(1)", "x.py"}), "python3");
  EXPECT_EQ(name_of({"python3", "-", "x"}), "python3");
  EXPECT_EQ(name_of({"python3"}), "python3");
  EXPECT_EQ(name_of({"python3", "-W"}), "python3");
  EXPECT_EQ(name_of({"python-config", "x"}), "python-config");
}

}  // namespace
}  // namespace gpumux::base
