// SPDX-License-Identifier: Apache-2.0
// Goal: a process's slices are what is asked for, whatever contexts come and go, and what libcuda chose comes back.
// Method: a kernel module that is a table; the test makes libcuda's calls.
#include "shim/process/time_slices.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <vector>

#include "cuda/resource_manager_abi.h"

namespace gpumux::shim {
namespace {

using namespace std::chrono_literals;
using cuda::NVOS54_PARAMETERS;

constexpr int kDescriptor = 17;
constexpr std::uint32_t kClient = 0xc1d0001c;
constexpr std::uint64_t kLibcudas = 2048;

// What the module knows: the slices of groups that exist, in microseconds.
std::map<std::uint32_t, std::uint64_t> g_groups;
std::size_t g_calls = 0;
bool g_refuses = false;

int module(int descriptor, unsigned long request, void* argument) {
  ++g_calls;
  EXPECT_EQ(descriptor, kDescriptor);
  EXPECT_EQ(request, cuda::kRmControl);
  auto& control = *static_cast<NVOS54_PARAMETERS*>(argument);
  EXPECT_EQ(control.hClient, kClient);
  EXPECT_EQ(control.cmd, cuda::NVA06C_CTRL_CMD_SET_TIMESLICE);
  EXPECT_EQ(control.paramsSize, sizeof(std::uint64_t));
  const auto group = g_groups.find(control.hObject);
  control.status = g_refuses ? 0x1b : group == g_groups.end() ? 0x57 : cuda::NV_OK;
  if (control.status == cuda::NV_OK) group->second = *reinterpret_cast<const std::uint64_t*>(control.params);
  return 0;
}

class TimeSlicesTest : public testing::Test {
 protected:
  void SetUp() override {
    g_groups.clear();
    g_calls = 0;
    g_refuses = false;
  }

  // As libcuda does when it has made a group: the module has done it already when it is seen.
  void make(std::uint32_t object, std::uint64_t slice_us = kLibcudas) {
    g_groups[object] = slice_us;
    auto control = control_of(object, slice_us);
    slices.seen(kDescriptor, cuda::kRmControl, &control, 0);
  }

  static NVOS54_PARAMETERS control_of(std::uint32_t object, const std::uint64_t& slice_us) {
    return {.hClient = kClient,
            .hObject = object,
            .cmd = cuda::NVA06C_CTRL_CMD_SET_TIMESLICE,
            .flags = 0,
            .params = reinterpret_cast<std::uintptr_t>(&slice_us),
            .paramsSize = sizeof slice_us,
            .status = cuda::NV_OK};
  }

  TimeSlices slices{module};
};

TEST_F(TimeSlicesTest, AreSetAndComeBackAsLibcudaChoseThem) {
  make(1);
  make(2, 4096);
  EXPECT_EQ(g_calls, 0u) << "nothing is asked for";
  EXPECT_EQ(slices.set(200us), 2u);
  EXPECT_EQ(g_groups, (std::map<std::uint32_t, std::uint64_t>{{1, 200}, {2, 200}}));
  EXPECT_EQ(slices.set(200us), 0u);
  EXPECT_EQ(g_calls, 2u) << "what is so already is not asked for again";
  EXPECT_EQ(slices.set(10ms), 2u);
  EXPECT_EQ(g_groups[1], 10'000u);
  EXPECT_EQ(slices.set(0us), 2u);
  EXPECT_EQ(g_groups, (std::map<std::uint32_t, std::uint64_t>{{1, kLibcudas}, {2, 4096}}));
}

TEST_F(TimeSlicesTest, OfContextsYetToComeAreTheSame) {
  EXPECT_EQ(slices.set(200us), 0u);
  make(1);
  EXPECT_EQ(g_groups[1], 200u);
  EXPECT_EQ(slices.set(0us), 1u);
  EXPECT_EQ(g_groups[1], kLibcudas);
  make(2);
  EXPECT_EQ(g_groups[2], kLibcudas);
}

TEST_F(TimeSlicesTest, WhatIsGoneIsForgottenAndItsNumberMayBeUsedAgain) {
  make(1);
  make(2);
  EXPECT_TRUE(slices.have_been_seen());
  g_groups.erase(1);
  EXPECT_EQ(slices.set(200us), 1u);
  EXPECT_EQ(g_calls, 2u);
  EXPECT_EQ(slices.set(300us), 1u);
  EXPECT_EQ(g_calls, 3u) << "only the one that is left";
  g_groups.erase(2);
  make(2, 1024);
  EXPECT_EQ(g_groups[2], 300u);
  slices.set(0us);
  EXPECT_EQ(g_groups[2], 1024u);
}

TEST_F(TimeSlicesTest, ARefusalIsNotAskedForAgain) {
  make(1);
  g_refuses = true;
  EXPECT_EQ(slices.set(200us), 0u);
  EXPECT_EQ(slices.set(300us), 0u);
  EXPECT_EQ(g_calls, 1u);
  EXPECT_EQ(g_groups[1], kLibcudas);
}

TEST_F(TimeSlicesTest, OtherCallsAreNotTakenForOne) {
  g_groups[1] = kLibcudas;
  const std::uint64_t slice_us = kLibcudas;
  const auto see = [&](auto change, unsigned long request = cuda::kRmControl, int result = 0) {
    auto control = control_of(1, slice_us);
    change(control);
    slices.seen(kDescriptor, request, &control, result);
  };
  see([](auto&) {}, cuda::kRmControl + 1);
  see([](auto&) {}, cuda::kRmControl, -1);
  see([](auto& control) { control.cmd += 1; });
  see([](auto& control) { control.status = 0x1b; });
  see([](auto& control) { control.paramsSize = 4; });
  see([](auto& control) { control.params = 0; });
  slices.seen(kDescriptor, cuda::kRmControl, nullptr, 0);
  EXPECT_EQ(slices.set(200us), 0u);
  EXPECT_EQ(g_calls, 0u);
  EXPECT_FALSE(slices.have_been_seen());
}

TEST_F(TimeSlicesTest, MoreThanThereIsRoomForKeepTheDriversSlice) {
  for (std::uint32_t object = 1; object <= 100; ++object) make(object);
  EXPECT_EQ(slices.set(200us), 64u);
  std::size_t set = 0;
  for (const auto& [object, slice_us] : g_groups) set += slice_us == 200 ? 1 : 0;
  EXPECT_EQ(set, 64u);
}

TEST_F(TimeSlicesTest, WhatIsGoneTakesNoRoom) {
  for (std::uint32_t object = 1; object <= 1000; ++object) {
    make(object);
    if (object > 3) g_groups.erase(object - 3);
  }
  EXPECT_EQ(slices.set(200us), 3u);
  EXPECT_EQ(g_groups, (std::map<std::uint32_t, std::uint64_t>{{998, 200}, {999, 200}, {1000, 200}}));
}

TEST_F(TimeSlicesTest, AChildHasNothingOfItsParents) {
  make(1);
  slices.set(200us);
  slices.forget();
  EXPECT_EQ(slices.set(300us), 0u);
  EXPECT_EQ(g_groups[1], 200u);
  make(1);  // its own, by the same number
  EXPECT_EQ(g_groups[1], 300u);
}

}  // namespace
}  // namespace gpumux::shim
