// SPDX-License-Identifier: Apache-2.0
// The API server has the node's slices, and no other one of ours for it, whatever happens to them.
#include "kubernetes/dra/publisher.h"

#include <gtest/gtest.h>

#include <thread>

#include "kubernetes/api_server/test_api_server.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::kubernetes {
namespace {

using nlohmann::json;

constexpr char kPath[] = "/apis/resource.k8s.io/v1/resourceslices/node-1-gpumux.io";

class PublisherTest : public ::testing::Test {
 protected:
  json slice(const std::string& path = kPath) { return server_.object(path); }
  std::int64_t generation() { return slice()["spec"]["pool"]["generation"]; }
  void look() {
    const base::Status looked = publisher_.look(gpus_);
    ASSERT_TRUE(looked) << looked.error().message();
  }
  std::size_t writes() {
    std::size_t count = 0;
    for (const std::string& call : server_.calls()) count += call.starts_with("GET ") ? 0u : 1u;
    return count;
  }

  TemporaryDirectory temporary_;
  TestApiServer server_{temporary_.path()};
  std::vector<DraGpu> gpus_{{"GPU-a", "", "", "", "", "", 1 << 30, ""}};
  std::vector<std::string> reports_;
  SlicePublisher publisher_{
      server_.settings(), {"node-1"}, [this](const std::string& sentence) { reports_.push_back(sentence); }};
};

TEST_F(PublisherTest, WritesTheSliceOnceAndAgainWhenTheGpusChange) {
  look();
  EXPECT_EQ(slice()["spec"]["devices"][0]["name"], "gpu-a");
  EXPECT_EQ(generation(), 1);
  look();
  look();
  EXPECT_EQ(writes(), 1u);
  gpus_[0].sick = "it needs a reset";
  look();
  EXPECT_TRUE(slice()["spec"]["devices"][0].contains("taints"));
  EXPECT_EQ(generation(), 2);
}

TEST_F(PublisherTest, ASliceThatVanishesOrIsChangedIsWrittenAgain) {
  look();
  server_.erase(kPath);
  look();
  EXPECT_EQ(slice()["spec"]["devices"][0]["name"], "gpu-a");
  json spoilt = slice();
  spoilt["spec"]["devices"] = json::array();
  server_.put(kPath, spoilt);
  look();
  EXPECT_EQ(slice()["spec"]["devices"].size(), 1u);
  EXPECT_EQ(generation(), 2);
}

TEST_F(PublisherTest, SeveralSlicesAreOfOneGeneration) {
  const std::string second = std::string(kPath) + "-2";
  for (std::size_t i = 0; i < kMostDevices; ++i) {
    gpus_.push_back(gpus_[0]);
    gpus_.back().id += "-" + std::to_string(i);
  }
  look();
  look();
  EXPECT_EQ(writes(), 2u);
  server_.erase(second);
  look();
  for (const std::string& path : {std::string(kPath), second}) {
    EXPECT_EQ(slice(path)["spec"]["pool"]["generation"], 2) << path;
    EXPECT_EQ(slice(path)["spec"]["pool"]["resourceSliceCount"], 2) << path;
  }
  EXPECT_EQ(slice(second)["spec"]["devices"].size(), 1u);
  gpus_.pop_back();
  look();
  EXPECT_TRUE(slice(second).is_null());
  EXPECT_EQ(slice()["spec"]["pool"]["resourceSliceCount"], 1);
}

TEST_F(PublisherTest, TheNodeOwnsItsSlices) {
  look();
  EXPECT_FALSE(slice()["metadata"].contains("ownerReferences")) << "the server has no such node";
  EXPECT_EQ(reports_.size(), 1u);
  server_.put("/api/v1/nodes/node-1", {{"metadata", {{"name", "node-1"}, {"uid", "first"}}}});
  server_.erase(kPath);
  look();
  EXPECT_EQ(slice()["metadata"]["ownerReferences"][0]["uid"], "first");
  // The node is made anew. Its slices go with the old one.
  server_.put("/api/v1/nodes/node-1", {{"metadata", {{"name", "node-1"}, {"uid", "second"}}}});
  server_.erase(kPath);
  look();
  EXPECT_EQ(slice()["metadata"]["ownerReferences"][0]["uid"], "second");
  EXPECT_EQ(reports_.size(), 1u);
}

TEST_F(PublisherTest, APluginThatStartsTakesItsSliceOver) {
  look();
  SlicePublisher next(server_.settings(), {"node-1"}, [](const std::string&) {});
  gpus_.clear();
  ASSERT_TRUE(next.look(gpus_));
  EXPECT_EQ(slice()["spec"]["devices"].size(), 0u);
  EXPECT_EQ(generation(), 2);
}

TEST_F(PublisherTest, RemovesOtherSlicesOfOursAndNobodyElses) {
  const std::string slices = "/apis/resource.k8s.io/v1/resourceslices/";
  const auto other = [&](const char* name, const char* driver, const char* node, int generation) {
    server_.put(slices + name,
                {{"metadata", {{"name", name}}},
                 {"spec", {{"driver", driver}, {"nodeName", node}, {"pool", {{"generation", generation}}}}}});
  };
  other("old", "gpumux.io", "node-1", 9);
  other("nvidias", "gpu.nvidia.com", "node-1", 1);
  other("neighbours", "gpumux.io", "node-2", 1);
  look();
  EXPECT_TRUE(slice(slices + "old").is_null());
  EXPECT_FALSE(slice(slices + "nvidias").is_null());
  EXPECT_FALSE(slice(slices + "neighbours").is_null());
  EXPECT_EQ(generation(), 10) << "above all of the pool";
}

TEST_F(PublisherTest, SpeaksTheNewestVersionThatBothKnow) {
  server_.serve_versions({"v1alpha3", "v1beta1", "v9"});
  look();
  const json old = slice("/apis/resource.k8s.io/v1beta1/resourceslices/node-1-gpumux.io");
  EXPECT_EQ(old["apiVersion"], "resource.k8s.io/v1beta1");
  EXPECT_TRUE(old["spec"]["devices"][0].contains("basic"));
  server_.serve_versions({"v1alpha3"});
  SlicePublisher none(server_.settings(), {"node-1"}, [](const std::string&) {});
  const base::Status looked = none.look(gpus_);
  ASSERT_FALSE(looked);
  EXPECT_EQ(looked.error().code, base::Code::kUnsupported);
}

TEST_F(PublisherTest, RunsUntilItIsStoppedAndReportsAFailureOnce) {
  std::mutex mutex;
  std::condition_variable reported;
  std::vector<std::string> reports;
  server_.put("/api/v1/nodes/node-1", {{"metadata", {{"name", "node-1"}, {"uid", "n1"}}}});
  SlicePublisher publisher(server_.settings(), {"node-1"}, [&](const std::string& sentence) {
    const std::lock_guard lock(mutex);
    reports.push_back(sentence);
    reported.notify_all();
  });
  server_.refuse(true);
  publisher.set_gpus(gpus_);
  std::thread thread([&] { publisher.run(); });
  const auto wait_for_reports = [&](std::size_t count) {
    std::unique_lock lock(mutex);
    return reported.wait_for(lock, std::chrono::seconds(60), [&] { return reports.size() >= count; });
  };
  ASSERT_TRUE(wait_for_reports(1));
  server_.refuse(false);
  ASSERT_TRUE(wait_for_reports(2));
  publisher.stop();
  thread.join();
  EXPECT_EQ(reports.size(), 2u);
  EXPECT_FALSE(slice().is_null());
}

}  // namespace
}  // namespace gpumux::kubernetes
