// SPDX-License-Identifier: Apache-2.0
// Goal: an administrator's words become exactly the change that they say, or none.
// Method: the words of `gpumux admin --help`, and near misses.
#include "cli/jobs/admin_change.h"

#include <gtest/gtest.h>

namespace gpumux::cli {
namespace {

TEST(AdminWordsTest, EachActionIsItsRequest) {
  EXPECT_TRUE(parse_admin_words({"show"})->empty());
  EXPECT_EQ(parse_admin_words({"pause"})->at(0).body, R"({"paused":true})");
  EXPECT_EQ(parse_admin_words({"unpause"})->at(0).body, R"({"paused":false})");
  const auto drain = parse_admin_words({"drain", "3", "GPU-01ab", "../queue"});
  ASSERT_TRUE(drain) << drain.error().message();
  ASSERT_EQ(drain->size(), 3u);
  EXPECT_EQ(drain->at(0).what, "gpus/3");
  EXPECT_EQ(drain->at(1).what, "gpus/GPU-01ab");
  EXPECT_EQ(drain->at(2).what, "gpus/..%2Fqueue");
  EXPECT_EQ(drain->at(1).body, R"({"drained":true})");
  EXPECT_EQ(parse_admin_words({"resume", "all"})->at(0).body, R"({"drained":false})");
  const auto limits = parse_admin_words({"limits", "DOM\\eva", "running=2", "queued=unlimited", "priority_cap=-5"});
  ASSERT_TRUE(limits) << limits.error().message();
  EXPECT_EQ(limits->at(0).what, "users/DOM%5Ceva");
  EXPECT_EQ(limits->at(0).body, R"({"priority_cap":-5,"queued":null,"running":2})");
  EXPECT_EQ(parse_admin_words({"limits", "eva", "default"})->at(0).body, R"({"default":true})");
}

TEST(AdminWordsTest, NearMissesChangeNothing) {
  const std::vector<std::vector<std::string>> wrong{{},
                                                    {"stop"},
                                                    {"show", "0"},
                                                    {"pause", "all"},
                                                    {"drain"},
                                                    {"limits"},
                                                    {"limits", "eva"},
                                                    {"limits", "eva", "running"},
                                                    {"limits", "eva", "running="},
                                                    {"limits", "eva", "running=-1"},
                                                    {"limits", "eva", "runing=1"},
                                                    {"limits", "eva", "running=1", "running=2"},
                                                    {"limits", "eva", "default", "running=2"},
                                                    {"limits", "", "running=1"}};
  for (const auto& words : wrong) EXPECT_FALSE(parse_admin_words(words)) << (words.empty() ? "" : words.back());
  EXPECT_NE(parse_admin_words({"limits", "eva", "runing=1"}).error().what.find("did you mean running?"),
            std::string::npos);
  EXPECT_NE(parse_admin_words({"drian", "1"}).error().what.find("did you mean drain?"), std::string::npos);
}

}  // namespace
}  // namespace gpumux::cli
