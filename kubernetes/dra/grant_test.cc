// SPDX-License-Identifier: Apache-2.0
// A claim's allocation becomes the right shares, and wrong parameters become words for the pod's author.
#include "kubernetes/dra/grant.h"

#include <gtest/gtest.h>

#include "kubernetes/dra/claim_fixture.h"

namespace gpumux::kubernetes {
namespace {

using nlohmann::json;

base::Result<Grant> grant(const json& claim) { return grant_of(claim.dump(), "node-1"); }

std::string variable(const Grant& grant, const std::string& name) {
  for (const Variable& variable : variables_of(grant)) {
    if (variable.name == name) return variable.value;
  }
  return {};
}

json configuration(const char* source, json parameters, std::vector<std::string> requests = {}) {
  parameters["apiVersion"] = "gpumux.io/v1alpha1";
  parameters["kind"] = "Sharing";
  return {
      {"source", source}, {"requests", requests}, {"opaque", {{"driver", "gpumux.io"}, {"parameters", parameters}}}};
}

TEST(GrantTest, HasTheSharesOfThisNodesPool) {
  json other = a_share("r", "gpu-x", "1Gi", "1"), nvidias = other;
  other["pool"] = "node-2";
  nvidias["driver"] = "gpu.nvidia.com";
  const auto made = grant(a_claim("u1", {other, a_share("a", "gpu-a", "20Gi", "25"), nvidias}));
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_EQ(*made, (Grant{"u1", "default", "claim-u1", {{"a", "node-1", "gpu-a", 20ull << 30, 25, kShareId}}, 0}));
  EXPECT_EQ(variable(*made, "GPUMUX_MEM_LIMIT"), std::to_string(20ull << 30));
  EXPECT_EQ(variable(*made, "GPUMUX_RUN_ID"), "claim-u1");
  EXPECT_EQ(variable(*made, "GPUMUX_SHARE"), "0.25");
  EXPECT_EQ(variable(*made, "GPUMUX_PRIORITY"), "");
}

TEST(GrantTest, SharesOfOneGpuAddUpAndTheSmallestGpuCounts) {
  const auto made = grant(a_claim("u1", {a_share("a", "gpu-a", "3Gi", "10"), a_share("b", "gpu-b", "5Gi", "15"),
                                         a_share("c", "gpu-a", "1Gi", "10")}));
  ASSERT_TRUE(made);
  EXPECT_EQ(made->shares.size(), 3u);
  EXPECT_EQ(variable(*made, "GPUMUX_MEM_LIMIT"), std::to_string(4ull << 30));
  EXPECT_EQ(variable(*made, "GPUMUX_SHARE"), "0.15");
}

TEST(GrantTest, TheDaemonIsToldOfEachGpu) {
  json whole = a_share("c", "gpu-b", "1", "1");
  whole.erase("consumedCapacity");
  const auto made = grant(a_claim("u1", {a_share("a", "gpu-a", "1Gi", "10"), a_share("b", "gpu-a", "2Gi", "10"),
                                         a_share("d", "gpu-c", "5", "1"), a_share("e", "gpu-b", "7Gi", "1"), whole}));
  ASSERT_TRUE(made);
  EXPECT_EQ(memory_of(*made), (std::map<std::string, std::uint64_t>{{"gpu-a", std::uint64_t{3} << 30}, {"gpu-c", 5}}));
  EXPECT_EQ(cores_of(*made), (std::map<std::string, std::uint64_t>{{"gpu-a", 20}, {"gpu-c", 1}}));
}

TEST(GrantTest, AWholeDeviceHasNoBounds) {
  json share = a_share("a", "gpu-a", "", "");
  share.erase("consumedCapacity");
  const auto made = grant(a_claim("u1", {share}));
  ASSERT_TRUE(made);
  EXPECT_EQ(variable(*made, "GPUMUX_MEM_LIMIT"), "");
  EXPECT_EQ(variable(*made, "GPUMUX_SHARE"), "");
}

TEST(GrantTest, AClaimCanOnlyLowerThePriorityOfItsClass) {
  const json share = a_share("main/big", "gpu-a", "1Gi", "10");
  const auto priority = [&](std::vector<json> configurations) {
    const auto made = grant(a_claim("u1", {share}, configurations));
    return made ? variable(*made, "GPUMUX_PRIORITY") : made.error().message();
  };
  const auto from_class = [](int is) { return configuration("FromClass", {{"priority", is}}); };
  const auto from_claim = [](int is, std::vector<std::string> requests = {}) {
    return configuration("FromClaim", {{"priority", is}}, std::move(requests));
  };
  EXPECT_EQ(priority({from_class(5)}), "5");
  EXPECT_EQ(priority({from_class(-2)}), "-2");
  EXPECT_EQ(priority({from_class(5), from_class(7)}), "7");
  EXPECT_EQ(priority({from_class(5), from_claim(5)}), "5");
  EXPECT_EQ(priority({from_claim(3), from_class(5)}), "3");
  EXPECT_EQ(priority({from_class(5), from_claim(-3)}), "-3");
  EXPECT_EQ(priority({from_class(5), from_claim(0)}), "");
  EXPECT_EQ(priority({from_claim(-3)}), "-3");
  EXPECT_EQ(priority({from_claim(-3, {"main"})}), "-3");
  EXPECT_EQ(priority({from_claim(-3, {"main/big"})}), "-3");
  EXPECT_EQ(priority({from_claim(-3, {"other", "mai"})}), "");
  const auto refused = [&](std::vector<json> configurations, const std::string& why) {
    EXPECT_EQ(priority(std::move(configurations)),
              "ResourceClaim default/claim-u1: " + why +
                  " of its DeviceClass: a claim can only lower it; ask for a class with a higher priority");
  };
  refused({from_claim(5)}, "priority 5 is above the 0");
  refused({from_class(5), from_claim(6)}, "priority 6 is above the 5");
  refused({from_class(-2), from_claim(0)}, "priority 0 is above the -2");
  // The class and the claim name themselves; nothing else is a source.
  EXPECT_EQ(priority({configuration("", {{"priority", 5}})}), "");
}

TEST(GrantTest, RefusesWhatMeansNothing) {
  const json share = a_share("a", "gpu-a", "1Gi", "10");
  const auto error = [](const json& claim) {
    const auto made = grant(claim);
    EXPECT_FALSE(made) << claim.dump();
    return made ? "" : made.error().message();
  };
  for (const json& parameters : std::vector<json>{
           {{"priorty", 1}}, {{"priority", "1"}}, {{"priority", 1.5}}, {{"priority", 100000}}, {{"mode", "serial"}}}) {
    EXPECT_NE(error(a_claim("u1", {share}, {configuration("FromClaim", parameters)})).find("default/claim-u1"),
              std::string::npos);
  }
  EXPECT_NE(error(a_claim("u1", {share}, {configuration("FromClaim", {{"mode", "serial"}})})).find("gpumux set"),
            std::string::npos);
  json strange = configuration("FromClaim", {});
  strange["opaque"]["parameters"]["kind"] = "GpuConfig";
  error(a_claim("u1", {share}, {strange}));
  error(a_claim("u1", {share, a_share("b", "gpu-b", "1Gi", "10")},
                {configuration("FromClass", {{"priority", 1}}, {"b"})}));
  error(a_claim("u1", {a_share("a", "gpu-a", "much", "10")}));
  error(a_claim("u1", {a_share("a", "", "1Gi", "10")}));
  error(a_claim("u1", {}));
  json waiting = a_claim("u1", {share});
  waiting["status"] = json::object();
  error(waiting);
  for (const char* text : {"", "[]", "{", "null", R"({"metadata": 3, "status": []})"})
    EXPECT_FALSE(grant_of(text, "node-1")) << text;
}

TEST(GrantTest, IsReadAsItWasWritten) {
  json whole = a_share("b", "gpu-b", "1", "1");
  whole.erase("consumedCapacity");
  const auto made = grant(
      a_claim("u1", {a_share("a", "gpu-a", "1Gi", "10"), whole}, {configuration("FromClass", {{"priority", 3}})}));
  ASSERT_TRUE(made);
  const std::string record = to_json(*made).dump();
  const auto read = grant_from_json(record);
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, *made);
  for (std::size_t length = 0; length < record.size(); ++length)
    EXPECT_FALSE(grant_from_json(record.substr(0, length))) << length;
  for (const char* field : {"version", "uid", "name", "shares", "priority"}) {
    json spoilt = to_json(*made);
    spoilt[field] = nullptr;
    EXPECT_FALSE(grant_from_json(spoilt.dump())) << field;
  }
}

}  // namespace
}  // namespace gpumux::kubernetes
