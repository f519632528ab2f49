// SPDX-License-Identifier: Apache-2.0
// A record says what specification, runtime and kernel say, or there is none and a reason.
#include "kubernetes/hook/container_record.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace gpumux::kubernetes {
namespace {

const std::string kId = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

base::Result<RecordOrder> parse(std::vector<std::string> words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  return parse_record_order(pointers);
}

std::string refusal(std::vector<std::string> words) {
  const auto order = parse(std::move(words));
  return order ? "" : order.error().message();
}

TEST(RecordOrderTest, SaysClaimAndQuotasInAnyOrder) {
  const auto order = parse({"/run/records", "--quota", "GPU-1=1", "--claim", "c-1", "--quota",
                            "MIG-2=18446744073709551615", "--share", "GPU-1=50", "--priority", "-5"});
  ASSERT_TRUE(order) << order.error().message();
  EXPECT_EQ(order->folder, "/run/records");
  EXPECT_EQ(order->claim, (containers::Claim{"c-1", {{"GPU-1", 1}, {"MIG-2", UINT64_MAX}}, {{"GPU-1", 50}}, -5}));
  EXPECT_TRUE(parse({"/run/records"}));
  EXPECT_TRUE(parse({"/run/records", "--claim", "c-1"}));
}

TEST(RecordOrderTest, RefusesWhatCouldMeanSomethingElse) {
  for (const char* bytes : {"", "0", "-1", "+1", " 1", "1 ", "1G", "0x10", "18446744073709551616", "1=1"}) {
    EXPECT_NE(refusal({"/f", "--claim", "c", "--quota", std::string("GPU-1=") + bytes}).find("a whole number of bytes"),
              std::string::npos)
        << bytes;
  }
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong{
      {{}, "--record needs an absolute path"},
      {{"records"}, "--record needs an absolute path"},
      {{""}, "--record needs an absolute path"},
      {{"/f", "/g"}, "'/g' is none of --claim, --quota, --share and --priority"},
      {{"/f", "--claim"}, "--claim needs a value"},
      {{"/f", "--claim", ""}, "--claim needs the claim's uid"},
      {{"/f", "--claim", "c", "--claim", "c"}, "--claim is given twice"},
      {{"/f", "--claim", "c", "--quota"}, "--quota needs a value"},
      {{"/f", "--claim", "c", "--quota", "GPU-1"}, "GPU_UUID=NUMBER is needed"},
      {{"/f", "--claim", "c", "--quota", "=1"}, "names no GPU by its UUID"},
      {{"/f", "--claim", "c", "--quota", "0=1"}, "names no GPU by its UUID"},
      {{"/f", "--claim", "c", "--quota", "GPU-1=1", "--quota", "GPU-1=1"}, "GPU-1 has two quotas"},
      {{"/f", "--quota", "GPU-1=1"}, "quotas need a claim"},
      {{"/f", "--share", "GPU-1=1"}, "shares need a claim"},
      {{"/f", "--claim", "c", "--share", "GPU-1"}, "GPU_UUID=NUMBER is needed"},
      {{"/f", "--claim", "c", "--share", "GPU-1=0"}, "a whole number of cores"},
      {{"/f", "--claim", "c", "--share", "GPU-1=10001"}, "has 10001 cores: 1 to 10000 are possible"},
      {{"/f", "--claim", "c", "--share", "0=1"}, "names no GPU by its UUID"},
      {{"/f", "--claim", "c", "--share", "GPU-1=1", "--share", "GPU-1=1"}, "GPU-1 has two shares"},
      {{"/f", "--priority", "1"}, "a priority needs a claim"},
      {{"/f", "--claim", "c", "--priority"}, "--priority needs a value"},
      {{"/f", "--claim", "c", "--priority", "1001"}, "--priority: "},
      {{"/f", "--claim", "c", "--priority", "1.5"}, "--priority: "},
      {{"/f", "--claim", "c", "--priority", ""}, "--priority: "},
  };
  for (const auto& [words, why] : wrong) EXPECT_NE(refusal(words).find(why), std::string::npos) << why;
}

TEST(ContainerRecordTest, HasTheNamesOfTheState) {
  const State state{kId, "/b", 7, "team-a", "train-0", "main"};
  const auto record = record_of(state, "/kubepods/" + kId);
  ASSERT_TRUE(record) << record.error().message();
  EXPECT_EQ(*record, (containers::Record{kId, "/kubepods/" + kId, "team-a", "train-0", "main"}));
}

TEST(ContainerRecordTest, ThereIsNoneThatTheDaemonWouldNotFind) {
  const State state{kId, "/b", 7};
  const auto why = [](const State& of, const std::string& group) {
    const auto record = record_of(of, group);
    return record ? "" : record.error().message();
  };
  EXPECT_NE(why(state, "").find("process 7 has ended"), std::string::npos);
  for (const std::string& group : {std::string("/"), std::string("/kubepods/other"), "/docker/" + std::string(64, 'a'),
                                   "/docker/" + std::string(64, 'a') + "/" + kId}) {
    EXPECT_NE(why(state, group).find("control group " + group + " is not named by"), std::string::npos) << group;
  }
  EXPECT_NE(why(State{"short", "/b", 7}, "/short"), "");
}

}  // namespace
}  // namespace gpumux::kubernetes
