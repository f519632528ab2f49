// SPDX-License-Identifier: Apache-2.0
// What the daemon says becomes devices, and each change of it one line of the log.
#include "kubernetes/kubelet_plugin/node_gpus.h"

#include <gtest/gtest.h>

namespace gpumux::kubernetes {
namespace {

api_client::Gpu a_gpu(const std::string& uuid, const std::string& pci) {
  api_client::Gpu gpu;
  gpu.uuid = uuid;
  gpu.pci_bus_id = pci;
  return gpu;
}

class NodeGpusTest : public ::testing::Test {
 protected:
  NodeGpusTest() { said_.gpus = {a_gpu("GPU-a", "0000:01:00.0"), a_gpu("MIG-b", "0000:02:00.0")}; }

  NodeGpusTracker tracker(std::set<std::string> whole = {}) {
    return {
        std::move(whole),
        [](const std::string& pci) { return pci == "0000:02:00.0" ? std::optional<std::int64_t>(1) : std::nullopt; },
        [this](LogLevel, const std::string& sentence) { log_.push_back(sentence); }};
  }

  api_client::Snapshot said_;
  const base::Result<api_client::Snapshot> silence_ = base::fail(base::Code::kUnavailable, "no daemon answers");
  std::vector<std::string> log_;
};

TEST_F(NodeGpusTest, EachGpuIsSharedUnlessItIsServedWhole) {
  auto all = tracker();
  EXPECT_EQ(all.update(said_, false).shared,
            (std::vector<SharedGpu>{{"GPU-a", true, std::nullopt}, {"MIG-b", true, 1}}));
  auto some = tracker({"GPU-a"});
  const NodeGpus& gpus = some.update(said_, true);
  EXPECT_EQ(gpus.shared, (std::vector<SharedGpu>{{"MIG-b", true, 1}}));
  EXPECT_EQ(gpus.whole, (std::vector<SharedGpu>{{"GPU-a", true, std::nullopt}}));
  EXPECT_TRUE(gpus.is_simulated);
  EXPECT_TRUE(log_.empty());
}

TEST_F(NodeGpusTest, AGpuWithoutTheDaemonIsNotHealthy) {
  auto gpus = tracker();
  EXPECT_TRUE(gpus.update(silence_, false).shared.empty());
  EXPECT_TRUE(gpus.update(said_, false).shared[0].is_healthy);
  for (int time = 0; time < 3; ++time) {
    const NodeGpus& now = gpus.update(silence_, false);
    ASSERT_EQ(now.shared.size(), 2u);
    EXPECT_FALSE(now.shared[0].is_healthy || now.shared[1].is_healthy);
  }
  EXPECT_TRUE(gpus.update(said_, false).shared[1].is_healthy);
  ASSERT_EQ(log_.size(), 4u);  // silent, answers, silent, answers
  EXPECT_NE(log_[2].find("no daemon answers"), std::string::npos);
}

TEST_F(NodeGpusTest, SickAndRefusedGpusAreNotHealthyUntilThatIsOver) {
  auto gpus = tracker();
  said_.gpus[0].sick = "it needs a reset";
  said_.gpus[1].refused = "another daemon has it";
  for (int time = 0; time < 2; ++time) {
    const NodeGpus& now = gpus.update(said_, false);
    EXPECT_FALSE(now.shared[0].is_healthy || now.shared[1].is_healthy);
  }
  said_.gpus[0].sick = said_.gpus[1].refused = "";
  EXPECT_TRUE(gpus.update(said_, false).shared[0].is_healthy);
  ASSERT_EQ(log_.size(), 4u);
  EXPECT_EQ(log_[0], "GPU-a is not healthy: it needs a reset");
  EXPECT_EQ(log_[3], "MIG-b is healthy again");
}

TEST_F(NodeGpusTest, CountsTheTenantsOfEachGpu) {
  auto gpus = tracker();
  said_.gpus[1].seats.resize(3);
  EXPECT_EQ(gpus.update(said_, false).seats, (Seats{{"GPU-a", 0}, {"MIG-b", 3}}));
}

TEST_F(NodeGpusTest, SaysOnceThatAWholeGpuIsNotThere) {
  auto gpus = tracker({"GPU-lost"});
  for (int time = 0; time < 3; ++time) gpus.update(said_, false);
  ASSERT_EQ(log_.size(), 1u);
  EXPECT_NE(log_[0].find("GPU-lost"), std::string::npos);
}

}  // namespace
}  // namespace gpumux::kubernetes
