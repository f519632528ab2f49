// SPDX-License-Identifier: Apache-2.0
// Goal: a program is taken to see a GPU whenever it may see it. Method: a table.
#include "daemon/mps/visible_gpus.h"

#include <gtest/gtest.h>

namespace gpumux::daemon {
namespace {

struct Case {
  const char* list;
  std::vector<bool> visible;
};

TEST(VisibleGpus, AreThoseThatTheListMayMean) {
  const std::vector<std::string> uuids{"GPU-11aa-0", "GPU-11ab-0", "GPU-22aa-0"};
  const std::vector<bool> all{true, true, true};
  const std::vector<bool> none{false, false, false};
  const std::vector<Case> cases{
      {"", all},
      {"0", all},
      {"1,0", all},
      {"GPU-22aa-0", {false, false, true}},
      {"GPU-22", {false, false, true}},
      {"GPU-11aa-0,GPU-22aa-0", {true, false, true}},
      {" GPU-11aa-0 , GPU-22aa-0 ", {true, false, true}},
      {"GPU-22,0", all},
      {"GPU-11aa-0,GPU-99,GPU-22aa-0", {true, false, false}},  // CUDA reads no further
      {"GPU-11", {true, true, false}},                         // CUDA takes no name of two; so it may be either
      {"MIG-1", none},
      {"-1", none},
      {"none", none},
      {",GPU-11aa-0", none},
  };
  for (const Case& one : cases) EXPECT_EQ(visible_gpus(one.list, uuids), one.visible) << one.list;
}

TEST(VisibleGpus, AreNoneOfAMachineWithout) { EXPECT_TRUE(visible_gpus("", {}).empty()); }

}  // namespace
}  // namespace gpumux::daemon
