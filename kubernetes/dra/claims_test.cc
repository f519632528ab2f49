// SPDX-License-Identifier: Apache-2.0
// Claims are prepared and unprepared whole, whatever is repeated, comes late, is killed or is spoilt.
#include "kubernetes/dra/claims.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "kubernetes/dra/claim_fixture.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::kubernetes {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

ClaimName name_of(const std::string& uid) { return {"default", "claim-" + uid, uid}; }

class ClaimsTest : public ::testing::Test {
 protected:
  ClaimsTest() {
    allocate("u1", {a_share("a", "gpu-a", "1Gi", "10")});
    allocate("u2", {a_share("a", "gpu-a", "2Gi", "20"), a_share("b", "gpu-b", "2Gi", "20")});
  }

  void allocate(const std::string& uid, std::vector<json> shares) {
    server_["claim-" + uid] = a_claim(uid, std::move(shares)).dump();
  }

  std::unique_ptr<Claims> open() {
    auto claims = Claims::open(
        {records_, specifications_, "/usr/libexec/gpumux/gpumux-cdi-hook", "node-1"},
        [this](const ClaimName& claim) -> base::Result<std::string> {
          ++fetched_;
          if (!is_up_) return base::fail(base::Code::kUnavailable, "the API server is down");
          const auto found = server_.find(claim.name);
          if (found == server_.end()) return base::fail(base::Code::kNotFound, "there is none");
          return found->second;
        },
        [](const Grant& grant) -> base::Result<Claims::Given> {
          auto injection = make_injection({"/usr/lib/gpumux/containers", "1", "/run/gpumux", {}}, variables_of(grant));
          if (!injection) return tl::unexpected(injection.error());
          Claims::Given given{*injection, {}};
          for (const GrantedShare& share : grant.shares)
            given.cdi_devices.push_back({"nvidia.com/gpu=" + share.device});
          return given;
        },
        [this](const std::string& sentence) { reports_.push_back(sentence); });
    if (!claims) ADD_FAILURE() << claims.error().message();
    return std::move(*claims);
  }

  static std::set<std::string> files(const std::string& folder) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
    return names;
  }
  static std::set<std::string> specifications_of(const std::set<std::string>& uids) {
    std::set<std::string> names;
    for (const std::string& uid : uids) names.insert("gpumux.io-claim_" + uid + ".json");
    return names;
  }
  static std::set<std::string> records_of(const std::set<std::string>& uids) {
    std::set<std::string> names;
    for (const std::string& uid : uids) names.insert(uid + ".json");
    return names;
  }
  void expect_only(const std::set<std::string>& uids) {
    EXPECT_EQ(files(specifications_), specifications_of(uids));
    EXPECT_EQ(files(records_), records_of(uids));
  }

  TemporaryDirectory temporary_;
  const std::string records_ = temporary_.file("plugins/claims");
  const std::string specifications_ = temporary_.file("cdi");
  std::map<std::string, std::string> server_;
  bool is_up_ = true;
  int fetched_ = 0;
  std::vector<std::string> reports_;
};

TEST_F(ClaimsTest, AClaimsFilesComeAndGoWithIt) {
  const auto claims = open();
  const auto prepared = claims->prepare(name_of("u2"));
  ASSERT_TRUE(prepared) << prepared.error().message();
  EXPECT_EQ(*prepared, (std::vector<PreparedDevice>{
                           {"a", "node-1", "gpu-a", {"nvidia.com/gpu=gpu-a", "gpumux.io/claim=id-u2"}, kShareId},
                           {"b", "node-1", "gpu-b", {"nvidia.com/gpu=gpu-b", "gpumux.io/claim=id-u2"}, kShareId}}));
  ASSERT_TRUE(claims->prepare(name_of("u1"))) << "two claims have a share of gpu-a";
  expect_only({"u1", "u2"});
  ASSERT_TRUE(claims->unprepare(name_of("u2")));
  expect_only({"u1"});
  ASSERT_TRUE(claims->unprepare(name_of("u2")));
  ASSERT_TRUE(claims->unprepare(name_of("never-seen")));
  expect_only({"u1"});
}

// A pod names "main", whichever of its alternatives the scheduler took. The kubelet compares whole names.
TEST_F(ClaimsTest, AnAlternativeIsOfThePodsRequest) {
  json whole = a_share("main/whole", "gpu-a", "1Gi", "10");
  whole.erase("shareID");
  allocate("u3", {whole});
  const auto prepared = open()->prepare(name_of("u3"));
  ASSERT_TRUE(prepared);
  EXPECT_EQ(prepared->at(0).request, "main");
  EXPECT_EQ(prepared->at(0).share_id, "");
}

TEST_F(ClaimsTest, APreparedClaimNeedsNoServer) {
  const auto first = open()->prepare(name_of("u1"));
  ASSERT_TRUE(first);
  is_up_ = false;
  fs::remove_all(specifications_);  // the machine has started again
  const auto claims = open();
  const auto again = claims->prepare(name_of("u1"));
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(*again, *first);
  EXPECT_EQ(fetched_, 1);
  expect_only({"u1"});
  const auto unknown = claims->prepare(name_of("u2"));
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().message(), "the API server is down");
  expect_only({"u1"});
}

TEST_F(ClaimsTest, AClaimThatCannotBePreparedLeavesNothing) {
  const auto claims = open();
  EXPECT_FALSE(claims->prepare(name_of("u3")));
  server_["claim-u1"] = a_claim("another", {a_share("a", "gpu-a", "1Gi", "10")}).dump();
  const auto other = claims->prepare(name_of("u1"));
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message().find("uid another"), std::string::npos);
  for (const char* uid : {"", "../u1", "u1/", "-", "a.json"}) {
    EXPECT_FALSE(claims->prepare({"default", "claim-u2", uid})) << uid;
    EXPECT_FALSE(claims->unprepare({"default", "claim-u2", uid})) << uid;
  }
  expect_only({});
}

TEST_F(ClaimsTest, ASpoiltRecordIsPutAsideAndSaid) {
  ASSERT_TRUE(open()->prepare(name_of("u1")));
  ASSERT_TRUE(open()->prepare(name_of("u2")));
  fs::resize_file(records_ + "/u1.json", 20);
  const auto claims = open();
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_NE(reports_[0].find("u1.json"), std::string::npos) << reports_[0];
  EXPECT_EQ(claims->uids(), std::vector<std::string>{"u2"});
  EXPECT_EQ(files(specifications_), specifications_of({"u1", "u2"})) << "a container of u1 may still start";
  ASSERT_TRUE(claims->prepare(name_of("u1")));
  EXPECT_EQ(claims->uids().size(), 2u);
  ASSERT_TRUE(claims->unprepare(name_of("u1")));
  EXPECT_EQ(files(specifications_), specifications_of({"u2"}));
}

TEST_F(ClaimsTest, AClaimWhoseRecordIsLostIsUnprepared) {
  ASSERT_TRUE(open()->prepare(name_of("u1")));
  fs::remove(records_ + "/u1.json");
  const auto claims = open();
  claims->remove_gone();
  EXPECT_EQ(files(specifications_), specifications_of({"u1"})) << "nothing says that it is gone";
  ASSERT_TRUE(claims->unprepare(name_of("u1")));
  expect_only({});
}

TEST_F(ClaimsTest, OnlyClaimsThatAreKnownToBeGoneAreRemoved) {
  {
    const auto claims = open();
    for (const char* uid : {"u1", "u2"}) ASSERT_TRUE(claims->prepare(name_of(uid)));
    allocate("u3", {a_share("a", "gpu-a", "1Gi", "10")});
    ASSERT_TRUE(claims->prepare(name_of("u3")));
  }
  is_up_ = false;
  open()->remove_gone();
  expect_only({"u1", "u2", "u3"});
  is_up_ = true;
  server_.erase("claim-u1");
  server_["claim-u2"] = a_claim("newer", {}).dump();
  open()->remove_gone();
  expect_only({"u3"});
  server_["claim-u3"] = "[]";
  open()->remove_gone();
  expect_only({"u3"});
}

// Whenever the plugin is killed, each specification has a record, and the kubelet's next call ends what was begun.
TEST_F(ClaimsTest, IsKilledAtAnyMoment) {
  for (int round = 0; round < 10; ++round) {
    const pid_t plugin = ::fork();
    ASSERT_GE(plugin, 0);
    if (plugin == 0) {
      const auto claims = open();
      for (int i = 0;; ++i) {
        const ClaimName claim = name_of(i % 2 == 0 ? "u1" : "u2");
        if (!claims->prepare(claim) || !claims->unprepare(claim)) ::_exit(1);
      }
    }
    // As long as it takes to see something of it.
    while (!fs::exists(specifications_) || files(specifications_).empty()) {
      int status = 0;
      ASSERT_EQ(::waitpid(plugin, &status, WNOHANG), 0) << "the plugin failed";
    }
    ::kill(plugin, SIGKILL);
    ASSERT_EQ(::waitpid(plugin, nullptr, 0), plugin);
    const auto claims = open();
    const std::vector<std::string> uids = claims->uids();
    for (const std::string& file : files(specifications_))
      EXPECT_TRUE(std::any_of(uids.begin(), uids.end(), [&](const std::string& uid) {
        return specifications_of({uid}).count(file) != 0;
      })) << file;
    for (const char* uid : {"u1", "u2"}) ASSERT_TRUE(claims->unprepare(name_of(uid)));
    expect_only({});
  }
  EXPECT_TRUE(reports_.empty());
}

// Calls in any order, with restarts of the plugin between them: the files are those of the claims whose last call was
// prepare.
TEST_F(ClaimsTest, AnyOrderOfCalls) {
  for (std::uint32_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::set<std::string> uids;
    auto claims = open();
    for (int step = 0; step < 60; ++step) {
      const std::string uid = "s" + std::to_string(random() % 6);
      server_.emplace("claim-" + uid, a_claim(uid, {a_share("a", "gpu-a", "1Gi", "10")}).dump());
      switch (random() % 5) {
        case 0:
        case 1:
          ASSERT_TRUE(claims->prepare(name_of(uid)));
          uids.insert(uid);
          break;
        case 2:
        case 3:
          ASSERT_TRUE(claims->unprepare(name_of(uid)));
          uids.erase(uid);
          break;
        default:
          claims.reset();
          claims = open();
          claims->remove_gone();
      }
      if (step % 10 == 9) expect_only(uids);
    }
    for (const std::string& uid : uids) ASSERT_TRUE(claims->unprepare(name_of(uid)));
  }
}

}  // namespace
}  // namespace gpumux::kubernetes
