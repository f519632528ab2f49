// SPDX-License-Identifier: Apache-2.0
// Goal: a job gets the part of its GPUs that Slurm has given and its user has asked for, and never more.
#include <gtest/gtest.h>

#include <string>

#include "slurm/request.h"

namespace gpumux::slurm {
namespace {

using containers::Part;

TEST(Options, APercentageIsOneToHundred) {
  for (const auto& [text, percent] : {std::pair{"1", 1u}, std::pair{"25%", 25u}, std::pair{"100", 100u}})
    EXPECT_EQ(parse_percent(text).value_or(0), percent) << text;
  for (const char* text : {"", "%", "0", "101", "-1", "1.5", "25%%", "half", "99999999999"}) {
    const auto percent = parse_percent(text);
    ASSERT_FALSE(percent) << text;
    EXPECT_NE(percent.error().message().find("1 to 100 percent"), std::string::npos);
  }
}

TEST(Options, MemoryHasAUnit) {
  EXPECT_EQ(parse_memory("20G").value_or(0), std::uint64_t{20} << 30);
  EXPECT_EQ(parse_memory("512MiB").value_or(0), std::uint64_t{512} << 20);
  for (const char* text : {"", "20", "G", "0G", "-1G", "20 %"}) EXPECT_FALSE(parse_memory(text)) << text;
}

constexpr char kNode[] = "gpu:h100:2(S:0-1),shard:20(S:0-1)";

Allocation given(std::string_view gres) { return allocation_of(1, gres, kNode).value(); }

TEST(Gres, OfAJobAreRead) {
  const auto expect = [](std::string_view gres, std::uint64_t gpus, std::uint64_t shards) {
    EXPECT_EQ(given(gres).gpus, gpus) << gres;
    EXPECT_EQ(given(gres).shards, shards) << gres;
  };
  expect("", 0, 0);
  expect("gpu:1", 1, 0);
  expect("gpu:h100:2(IDX:0-1)", 2, 0);
  expect("gpu:a:1(IDX:0),gpu:b:2(IDX:1,3)", 3, 0);
  expect("nic:4(IDX:0-3),gpu:2(IDX:0-1)", 2, 0);
  expect("shard:3(IDX:0)", 1, 3);
  expect("shard:h100:3(IDX:1)", 1, 3);
  expect("shard:12(IDX:0-1)", 2, 12);
  expect("shard:3(0/10,3/10)", 1, 3);
  expect("shard:3", 1, 3);
  for (const char* broken : {"(", ")", "shard", "shard:x(", "gpu:(IDX:", ",,:", "shard:1(IDX:5-1)"})
    (void)allocation_of(1, broken, kNode);
}

TEST(Gres, OfANodeSayHowManyShardsAGpuHas) {
  EXPECT_EQ(given("shard:3(IDX:0)").shards_per_gpu, 10u);
  EXPECT_FALSE(allocation_of(1, "shard:3(IDX:0)", "shard:20"));
  EXPECT_FALSE(allocation_of(1, "shard:3(IDX:0)", "gpu:2"));
  EXPECT_FALSE(allocation_of(1, "shard:3(IDX:0)", ""));
  EXPECT_TRUE(allocation_of(1, "gpu:1", ""));
}

TEST(Parts, ShardsAreAPartOfTimeAndMemory) {
  EXPECT_EQ(part_of({}, given("shard:2(IDX:0)")), (Part{20, 200, 0}));
  EXPECT_EQ(part_of({}, given("shard:10(IDX:0)")), std::nullopt);
  EXPECT_EQ(part_of({}, given("shard:10(IDX:0-1)")), (Part{50, 500, 0}));
  EXPECT_EQ(part_of({}, allocation_of(1, "shard:1(IDX:0)", "gpu:1,shard:3").value()), (Part{33, 333, 0}));
  EXPECT_EQ(part_of({}, allocation_of(1, "shard:1(IDX:0)", "gpu:1,shard:5000").value()), (Part{1, 1, 0}));
}

TEST(Parts, AWholeGpuIsLimitedByItsUserAlone) {
  EXPECT_EQ(part_of({}, given("gpu:1")), std::nullopt);
  EXPECT_EQ(part_of({.percent = 100}, given("gpu:1")), std::nullopt);
  EXPECT_EQ(part_of({.percent = 25}, given("gpu:1")), (Part{25, 250, 0}));
  EXPECT_EQ(part_of({.bytes = 7}, given("gpu:1")), (Part{100, 1000, 7}));
}

TEST(Parts, AUserCannotAskForMoreThanSlurmHasGiven) {
  EXPECT_EQ(part_of({.percent = 90}, given("shard:2(IDX:0)")), (Part{20, 200, 0}));
  EXPECT_EQ(part_of({.percent = 10}, given("shard:2(IDX:0)")), (Part{10, 100, 0}));
  // The daemon takes the smaller one of part and bytes.
  EXPECT_EQ(part_of({.bytes = UINT64_MAX}, given("shard:2(IDX:0)")), (Part{20, 200, UINT64_MAX}));
}

TEST(Refusals, ShardsAreOfOneNode) {
  EXPECT_EQ(refusal(given("shard:2(IDX:0)")), "");
  EXPECT_EQ(refusal(allocation_of(4, "gpu:2(IDX:0-1)", kNode).value()), "");
  EXPECT_NE(refusal(allocation_of(2, "shard:2(IDX:0)", kNode).value()).find("on 2 nodes is refused"),
            std::string::npos);
}

const Step kStep{
    .job = 42, .tasks = 1, .library = "/lib/libgpumux.so", .runtime_dir = "/run/gpumux", .preload = "/a.so"};

std::string value_of(const std::vector<Variable>& all, std::string_view name) {
  for (const Variable& one : all) {
    if (one.name == name) return one.value;
  }
  return "not there";
}

TEST(Variables, MakeAJobsProgramsTenants) {
  const auto all = variables(kStep, {.is_made = true, .bytes = 4096, .priority = -3}, given("shard:2(IDX:0)"));
  EXPECT_EQ(value_of(all, "LD_PRELOAD"), "/a.so:/lib/libgpumux.so");
  EXPECT_EQ(value_of(all, "GPUMUX_RUNTIME_DIR"), "/run/gpumux");
  EXPECT_EQ(value_of(all, "GPUMUX_RUN_ID"), "slurm-42");
  EXPECT_EQ(value_of(all, "GPUMUX_PRIORITY"), "-3");
  EXPECT_EQ(value_of(all, "GPUMUX_SHARE"), "0.2");
  EXPECT_EQ(value_of(all, "GPUMUX_MEM_LIMIT"), "4096");
  EXPECT_EQ(value_of(all, "GPUMUX_GANG"), "not there");
}

TEST(Variables, AreTheSameOnceMore) {
  Step step = kStep;
  const auto first = variables(step, {}, given("shard:2(IDX:0)"));
  step.preload = value_of(first, "LD_PRELOAD");
  EXPECT_EQ(variables(step, {}, given("shard:2(IDX:0)")), first);
}

TEST(Variables, ProgramsThatMayWaitForEachOtherAreAGang) {
  Step two = kStep;
  two.tasks = 2;
  EXPECT_EQ(value_of(variables(two, {}, given("gpu:1")), "GPUMUX_GANG"), "slurm-42");
  EXPECT_EQ(value_of(variables(kStep, {}, given("gpu:2")), "GPUMUX_GANG"), "slurm-42");
  EXPECT_EQ(value_of(variables(kStep, {}, allocation_of(2, "gpu:1", "").value()), "GPUMUX_GANG"), "slurm-42");
  EXPECT_EQ(value_of(variables(kStep, {}, given("gpu:1")), "GPUMUX_GANG"), "not there");
}

TEST(Variables, ALoaderThatPreloadsAnywayIsToldNothing) {
  Step step = kStep;
  step.library.clear();
  EXPECT_EQ(value_of(variables(step, {}, given("gpu:1")), "LD_PRELOAD"), "not there");
}

}  // namespace
}  // namespace gpumux::slurm
