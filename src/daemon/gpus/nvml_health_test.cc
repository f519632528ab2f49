// SPDX-License-Identifier: Apache-2.0
// A GPU is sick while its driver says so, and by an Xid only if the driver cannot say more. Method: an NVML of the
// test's own, with what drivers of different ages have.
#include "daemon/gpus/nvml_health.h"

#include <gtest/gtest.h>

#include <deque>

namespace gpumux::daemon {
namespace {

using namespace cuda;

const nvmlDevice_t kFirst = reinterpret_cast<nvmlDevice_t>(1);
const nvmlDevice_t kSecond = reinterpret_cast<nvmlDevice_t>(2);

std::deque<nvmlEventData_t> g_events;
nvmlReturn_t g_field_result = NVML_SUCCESS;
unsigned int g_action = 0;

Nvml driver_with_events() {
  Nvml nvml;
  nvml.nvmlEventSetCreate = [](nvmlEventSet_t* set) {
    *set = reinterpret_cast<nvmlEventSet_t>(1);
    return NVML_SUCCESS;
  };
  nvml.nvmlEventSetFree = [](nvmlEventSet_t) { return NVML_SUCCESS; };
  nvml.nvmlDeviceRegisterEvents = [](nvmlDevice_t, unsigned long long, nvmlEventSet_t) { return NVML_SUCCESS; };
  nvml.nvmlEventSetWait_v2 = [](nvmlEventSet_t, nvmlEventData_t* event, unsigned int) {
    if (g_events.empty()) return NVML_ERROR_TIMEOUT;
    *event = g_events.front();
    g_events.pop_front();
    return NVML_SUCCESS;
  };
  return nvml;
}

Nvml driver_with_actions() {
  Nvml nvml = driver_with_events();
  nvml.nvmlDeviceGetFieldValues = [](nvmlDevice_t, int, nvmlFieldValue_t* field) {
    field->nvmlReturn = g_field_result;
    field->value.uiVal = g_action;
    return NVML_SUCCESS;
  };
  return nvml;
}

class NvmlHealthTest : public ::testing::Test {
 protected:
  NvmlHealthTest() {
    g_events.clear();
    g_field_result = NVML_SUCCESS;
    g_action = 0;
  }
  static void happen(nvmlDevice_t gpu, unsigned long long xid) { g_events.push_back({gpu, kNvmlEventXid, xid, 0, 0}); }
};

TEST_F(NvmlHealthTest, TheDriversActionDecides) {
  const Nvml nvml = driver_with_actions();
  NvmlHealth health(nvml);
  health.watch(kFirst);
  EXPECT_EQ(health.why_sick(kFirst), "");
  for (const unsigned int action : {1u, 2u, 3u, 4u, 9u}) {
    g_action = action;
    EXPECT_NE(health.why_sick(kFirst), "") << action;
  }
  g_action = 0;
  happen(kFirst, 79);
  health.look();
  EXPECT_EQ(health.why_sick(kFirst), "") << "it needs no action";
  g_field_result = NVML_ERROR_GPU_IS_LOST;
  EXPECT_NE(health.why_sick(kFirst), "");
}

TEST_F(NvmlHealthTest, OfAnOlderDriverXidsCountUnlessTheyAreAPrograms) {
  for (const bool has_fields : {false, true}) {
    g_field_result = NVML_ERROR_NOT_SUPPORTED;
    const Nvml nvml = has_fields ? driver_with_actions() : driver_with_events();
    NvmlHealth health(nvml);
    health.watch(kFirst);
    health.watch(kSecond);
    for (const auto xid : {13ull, 31ull, 43ull, 45ull, 68ull, 109ull}) happen(kFirst, xid);
    health.look();
    EXPECT_EQ(health.why_sick(kFirst), "");
    happen(kFirst, 79);
    happen(kFirst, 31);
    health.look();
    EXPECT_NE(health.why_sick(kFirst).find("Xid 79"), std::string::npos) << health.why_sick(kFirst);
    EXPECT_EQ(health.why_sick(kSecond), "");
  }
}

TEST_F(NvmlHealthTest, ADriverWithoutAnyOfItHasHealthyGpus) {
  const Nvml nvml;
  NvmlHealth health(nvml);
  health.watch(kFirst);
  health.look();
  EXPECT_EQ(health.why_sick(kFirst), "");
}

}  // namespace
}  // namespace gpumux::daemon
