// SPDX-License-Identifier: Apache-2.0
// Goal: a link opens one session, and a request needs both secrets of one session. Method: plain calls.
#include "web/secrets.h"

#include <gtest/gtest.h>

namespace gpumux::web {
namespace {

Session open(Secrets& secrets) { return *secrets.open_session(*secrets.new_token()); }

TEST(Secrets, ATokenWorksOnce) {
  Secrets secrets;
  const std::string token = *secrets.new_token();
  EXPECT_EQ(token.size(), 2 * kSecretBytes);
  EXPECT_TRUE(secrets.open_session(token));
  const auto again = secrets.open_session(token);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, base::Code::kDenied);
}

TEST(Secrets, OnlyTheNewestTokenWorks) {
  Secrets secrets;
  const std::string first = *secrets.new_token();
  const std::string second = *secrets.new_token();
  EXPECT_NE(first, second);
  EXPECT_FALSE(secrets.open_session(first));
  EXPECT_TRUE(secrets.open_session(second));
}

TEST(Secrets, AWrongTokenOpensNothingAndSpendsNothing) {
  Secrets secrets;
  EXPECT_FALSE(secrets.open_session(""));
  const std::string token = *secrets.new_token();
  std::string other = token;
  other.back() = other.back() == '0' ? '1' : '0';
  for (const std::string& wrong : {std::string(), other, token.substr(1), token + "0"})
    EXPECT_FALSE(secrets.open_session(wrong)) << wrong;
  EXPECT_TRUE(secrets.open_session(token));
}

TEST(Secrets, ASessionNeedsItsCookieAndItsKey) {
  Secrets secrets;
  const Session one = open(secrets);
  const Session other = open(secrets);
  EXPECT_TRUE(secrets.is_session({one.cookie}, one.key));
  EXPECT_TRUE(secrets.is_session({"made up", one.cookie}, one.key));
  EXPECT_FALSE(secrets.is_session({one.cookie}, ""));
  EXPECT_FALSE(secrets.is_session({one.cookie}, other.key));
  EXPECT_FALSE(secrets.is_session({}, one.key));
  EXPECT_FALSE(secrets.is_session({""}, ""));
  EXPECT_FALSE(secrets.is_session({one.key}, one.cookie));
}

TEST(Secrets, TheOldestSessionEndsFirst) {
  Secrets secrets;
  const Session first = open(secrets);
  const Session second = open(secrets);
  for (std::size_t i = 2; i < kMaxSessions; ++i) open(secrets);
  EXPECT_TRUE(secrets.is_session({first.cookie}, first.key));
  const Session newest = open(secrets);
  EXPECT_FALSE(secrets.is_session({first.cookie}, first.key));
  EXPECT_TRUE(secrets.is_session({second.cookie}, second.key));
  EXPECT_TRUE(secrets.is_session({newest.cookie}, newest.key));
}

}  // namespace
}  // namespace gpumux::web
