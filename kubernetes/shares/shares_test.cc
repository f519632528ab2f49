// SPDX-License-Identifier: Apache-2.0
// A container that asks for several shares gets different GPUs, the least loaded ones, whatever the kubelet offers.
//
// Method: cases by hand; then a node on which pods come and go at random, with the kubelet's part played by the test.
#include "kubernetes/shares/shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace gpumux::kubernetes {
namespace {

using Ids = std::vector<std::string>;

Ids shares_of(const std::string& gpu, std::uint32_t count) {
  Ids ids;
  for (std::uint32_t number = 0; number < count; ++number) ids.push_back(share_id({gpu, number}));
  return ids;
}

Ids joined(const std::vector<Ids>& lists) {
  Ids all;
  for (const Ids& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

Ids chosen(const Ids& available, std::size_t size, const Ids& must_include = {},
           Placement placement = Placement::kSpread, const Seats& seats = {}) {
  const auto answer = preferred_shares({available, must_include, size}, placement, seats);
  EXPECT_TRUE(answer) << (answer ? "" : answer.error().message());
  return answer.value_or(Ids{});
}

Ids gpus_of(const Ids& ids) {
  Ids gpus;
  for (const std::string& id : ids) gpus.push_back(parse_share(id).value_or(Share{}).gpu);
  return gpus;
}

TEST(ShareIdTest, ComesBackAsItWas) {
  const std::string uuid = "GPU-4d7b2a1c-93f0-4c0e-8a57-5b1f2e6d7c8a";
  EXPECT_EQ(share_id({uuid, 7}), uuid + "::7");
  EXPECT_LE(share_id({"MIG-" + uuid.substr(4), kMaxSharesPerGpu - 1}).size(), kMaxShareIdBytes);
  for (const Share& share : {Share{uuid, 0}, Share{uuid, 10}, Share{"MIG-a", 999}, Share{"GPU-a::b", 1}}) {
    const auto parsed = parse_share(share_id(share));
    ASSERT_TRUE(parsed) << share_id(share);
    EXPECT_EQ(*parsed, share);
  }
}

TEST(ShareIdTest, AnythingElseIsNoShare) {
  for (const char* id : {"", "::", "::1", "GPU-a", "GPU-a:1", "GPU-a::", "GPU-a::x", "GPU-a::1x", "GPU-a::-1",
                         "GPU-a::+1", "GPU-a::01", "GPU-a:: 1", "GPU-a::1000", "GPU-a::4294967297",
                         "GPU-0123456789-0123456789-0123456789-0123456789-0123456789-01::1"}) {
    EXPECT_FALSE(parse_share(id)) << id;
  }
}

TEST(PreferredTest, SeveralSharesAreDifferentGpus) {
  // GPU c has most that is free, and is taken once all the same.
  const Ids available = joined({shares_of("a", 1), shares_of("b", 2), shares_of("c", 9)});
  for (const Placement placement : {Placement::kSpread, Placement::kPacked}) {
    Ids gpus = gpus_of(chosen(available, 3, {}, placement));
    std::sort(gpus.begin(), gpus.end());
    EXPECT_EQ(gpus, (Ids{"a", "b", "c"}));
  }
}

TEST(PreferredTest, TheLeastLoadedGpuComesFirst) {
  const Ids available = joined({shares_of("a", 2), shares_of("b", 5), shares_of("c", 4)});
  EXPECT_EQ(chosen(available, 2), (Ids{"b::0", "c::0"}));
  EXPECT_EQ(chosen(available, 2, {}, Placement::kPacked), (Ids{"a::0", "c::0"}));
}

TEST(PreferredTest, SeatsDecideBetweenGpusWithAsManyFreeShares) {
  const Ids available = joined({shares_of("a", 4), shares_of("b", 4), shares_of("c", 3)});
  EXPECT_EQ(chosen(available, 1), Ids{"a::0"});
  EXPECT_EQ(chosen(available, 1, {}, Placement::kSpread, {{"a", 2}, {"b", 1}}), Ids{"b::0"});
  EXPECT_EQ(chosen(available, 1, {}, Placement::kSpread, {{"a", 2}}), Ids{"b::0"});
}

TEST(PreferredTest, WhatMustBeIncludedCountsAsTheContainers) {
  const Ids available = joined({shares_of("a", 9), shares_of("b", 2)});
  EXPECT_EQ(chosen(available, 2, {"a::5"}), (Ids{"a::5", "b::0"}));
  EXPECT_EQ(chosen(available, 2, {"a::5", "a::0"}), (Ids{"a::5", "a::0"}));
  EXPECT_EQ(chosen(available, 4, {"a::5", "a::0"}), (Ids{"a::5", "a::0", "b::0", "b::1"}));
}

TEST(PreferredTest, MoreSharesThanGpusAreSpreadEvenly) {
  const Ids gpus = gpus_of(chosen(joined({shares_of("a", 9), shares_of("b", 9)}), 5));
  EXPECT_EQ(std::count(gpus.begin(), gpus.end(), "a"), 3);
  EXPECT_EQ(chosen(shares_of("a", 3), 3), shares_of("a", 3));
  EXPECT_TRUE(chosen(shares_of("a", 3), 0).empty());
}

TEST(PreferredTest, RequestsThatContradictThemselvesAreRefused) {
  const Ids available = shares_of("a", 3);
  for (const PreferredRequest& request :
       {PreferredRequest{available, {}, 4}, PreferredRequest{available, {"a::0", "a::1"}, 1},
        PreferredRequest{available, {"a::3"}, 1}, PreferredRequest{available, {"b::0"}, 1},
        PreferredRequest{available, {"a::0", "a::0"}, 2}, PreferredRequest{available, {"x"}, 1},
        PreferredRequest{{"a::0", "a::0"}, {}, 1}, PreferredRequest{{"a::0", "nvidia"}, {}, 1}}) {
    const auto answer = preferred_shares(request, Placement::kSpread);
    ASSERT_FALSE(answer) << answer->size();
    EXPECT_EQ(answer.error().code, base::Code::kInvalid);
  }
}

TEST(AllocatedTest, EachGpuIsNamedOnce) {
  const auto two = shares_by_gpu({"b::1", "a::7"}, SameGpu::kRefuse);
  ASSERT_TRUE(two);
  EXPECT_EQ(*two, (std::vector<std::pair<std::string, std::uint32_t>>{{"b", 1}, {"a", 1}}));
  const auto same = shares_by_gpu({"b::1", "a::7", "b::0"}, SameGpu::kAllow);
  ASSERT_TRUE(same);
  EXPECT_EQ(*same, (std::vector<std::pair<std::string, std::uint32_t>>{{"b", 2}, {"a", 1}}));
}

TEST(AllocatedTest, SeveralSharesOfOneGpuAreRefusedWithItsName) {
  const auto refused = shares_by_gpu({"b::1", "a::7", "b::0"}, SameGpu::kRefuse);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, base::Code::kExhausted);
  EXPECT_EQ(refused.error().message(),
            "the container asks for 3 shares, each of a GPU of its own, and would get 2 of b; ask for no more shares "
            "than GPUs of a node have free ones, or set same_gpu = allow to take several shares of one GPU");
  for (const Ids& ids : {Ids{"a::1", "a::1"}, Ids{"a"}}) {
    for (const SameGpu same_gpu : {SameGpu::kRefuse, SameGpu::kAllow}) {
      const auto invalid = shares_by_gpu(ids, same_gpu);
      ASSERT_FALSE(invalid);
      EXPECT_EQ(invalid.error().code, base::Code::kInvalid);
    }
  }
}

// A kubelet that knows which shares are free, and pods that come and go.
class NodeOfPods {
 public:
  NodeOfPods(std::size_t gpus, std::uint32_t shares, std::mt19937_64& random) : random_(random) {
    for (std::size_t gpu = 0; gpu < gpus; ++gpu) {
      const Ids ids = shares_of("GPU-" + std::to_string(gpu), shares);
      free_.insert(free_.end(), ids.begin(), ids.end());
    }
  }

  std::size_t gpus_with_a_free_share() const {
    const Ids gpus = gpus_of(free_);
    return std::set<std::string>(gpus.begin(), gpus.end()).size();
  }

  void start_pod(std::size_t size, Placement placement) {
    std::shuffle(free_.begin(), free_.end(), random_);
    const std::size_t possible = gpus_with_a_free_share();
    const Ids before = sorted(free_);
    const Ids ids = chosen(free_, size, {}, placement);
    ASSERT_EQ(ids.size(), size);
    const Ids again = chosen(before, size, {}, placement);
    EXPECT_EQ(ids, again) << "the order of the request decides";
    for (const std::string& id : ids) {
      const auto found = std::find(free_.begin(), free_.end(), id);
      ASSERT_NE(found, free_.end()) << id;
      free_.erase(found);
    }
    const Ids gpus = gpus_of(ids);
    EXPECT_EQ(std::set<std::string>(gpus.begin(), gpus.end()).size(), std::min(size, possible));
    EXPECT_EQ(shares_by_gpu(ids, SameGpu::kRefuse).has_value(), size <= possible);
    pods_.push_back(ids);
  }

  void end_some_pod() {
    const std::size_t pod = random_() % pods_.size();
    free_.insert(free_.end(), pods_[pod].begin(), pods_[pod].end());
    pods_.erase(pods_.begin() + static_cast<std::ptrdiff_t>(pod));
  }

  std::size_t free_shares() const { return free_.size(); }
  bool has_pods() const { return !pods_.empty(); }

  // Free shares of the GPU with most, and of the one with fewest.
  std::pair<std::size_t, std::size_t> most_and_fewest(std::size_t gpus) const {
    std::map<std::string, std::size_t> count;
    for (std::size_t gpu = 0; gpu < gpus; ++gpu) count["GPU-" + std::to_string(gpu)] = 0;
    for (const std::string& gpu : gpus_of(free_)) ++count[gpu];
    const auto [fewest, most] = std::minmax_element(count.begin(), count.end(),
                                                    [](const auto& a, const auto& b) { return a.second < b.second; });
    return {most->second, fewest->second};
  }

 private:
  static Ids sorted(Ids ids) {
    std::sort(ids.begin(), ids.end());
    return ids;
  }

  std::mt19937_64& random_;
  Ids free_;
  std::vector<Ids> pods_;
};

TEST(NodeTest, PodsThatComeAndGoGetDifferentGpus) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (const Placement placement : {Placement::kSpread, Placement::kPacked}) {
    NodeOfPods node(4, 6, random);
    for (int step = 0; step < 500; ++step) {
      const std::size_t size = 1 + random() % 5;
      if (random() % 2 == 0 && size <= node.free_shares()) {
        node.start_pod(size, placement);
      } else if (node.has_pods()) {
        node.end_some_pod();
      }
      if (HasFatalFailure()) return;
    }
  }
}

TEST(NodeTest, PodsThatOnlyComeLoadAllGpusAlike) {
  std::mt19937_64 random(1);
  NodeOfPods node(5, 8, random);
  while (node.free_shares() >= 3) {
    node.start_pod(1 + random() % 3, Placement::kSpread);
    const auto [most, fewest] = node.most_and_fewest(5);
    EXPECT_LE(most - fewest, 1u);
  }
}

TEST(NodeTest, PackedPodsLeaveWholeGpusFree) {
  std::mt19937_64 random(1);
  NodeOfPods node(4, 8, random);
  for (int pod = 0; pod < 8; ++pod) node.start_pod(1, Placement::kPacked);
  EXPECT_EQ(node.most_and_fewest(4), std::make_pair(std::size_t{8}, std::size_t{0}));
  EXPECT_EQ(node.gpus_with_a_free_share(), 3u);
}

}  // namespace
}  // namespace gpumux::kubernetes
