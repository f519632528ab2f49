// SPDX-License-Identifier: Apache-2.0
// Goal: a request that is not this page's own, or that the page does not need, is refused. Method: tables.
#include "web/request_rules.h"

#include <gtest/gtest.h>

namespace gpumux::web {
namespace {

using Values = std::vector<std::string_view>;

TEST(RequestRules, AHostIsTheLoopbackWithOurPort) {
  for (const char* host : {"localhost:9841", "127.0.0.1:9841", "[::1]:9841"})
    EXPECT_TRUE(is_own_host(host, 9841)) << host;
  for (const char* host : {"", "localhost", "localhost:98410", "localhost:984", "localhost:80", "evil.example:9841",
                           "localhost.evil.example:9841", "evil-localhost:9841", "127.0.0.2:9841", "127.0.0.1.:9841",
                           "::1:9841", "LOCALHOST:9841@evil.example", "127.0.0.1:9841 ", "0.0.0.0:9841"})
    EXPECT_FALSE(is_own_host(host, 9841)) << host;
}

TEST(RequestRules, AnOriginIsThePageOfTheSameHost) {
  EXPECT_TRUE(is_own_origin("http://127.0.0.1:9841", "127.0.0.1:9841"));
  for (const char* origin : {"", "null", "http://localhost:9841", "https://127.0.0.1:9841", "http://127.0.0.1:9842",
                             "http://127.0.0.1:98411", "http://evil.example", "127.0.0.1:9841"})
    EXPECT_FALSE(is_own_origin(origin, "127.0.0.1:9841")) << origin;
}

TEST(RequestRules, ASiteIsOursOrNotSaid) {
  for (const char* site : {"", "none", "same-origin"}) EXPECT_TRUE(is_own_site(site)) << site;
  // Another port of this host is the same site.
  for (const char* site : {"same-site", "cross-site", "anything"}) EXPECT_FALSE(is_own_site(site)) << site;
}

TEST(RequestRules, CookiesOfAName) {
  EXPECT_EQ(cookies_named("gpumux-9841=abc", "gpumux-9841"), Values{"abc"});
  EXPECT_EQ(cookies_named("a=1; gpumux-9841=abc; gpumux-9841=def;b=2", "gpumux-9841"), (Values{"abc", "def"}));
  EXPECT_EQ(cookies_named("xgpumux-9841=abc; gpumux-98410=d; gpumux-9841", "gpumux-9841"), Values{});
  EXPECT_EQ(cookies_named("gpumux-9841=", "gpumux-9841"), Values{""});
  EXPECT_EQ(cookies_named(";;; ;", "gpumux-9841"), Values{});
}

TEST(RequestRules, ReadsThatThePageNeeds) {
  for (const char* target :
       {"/v1/daemon", "/v1/status", "/v1/queue", "/v1/jobs", "/v1/jobs?state=done&order=ended&limit=30", "/v1/jobs/17",
        "/v1/jobs/17_3", "/v1/report?by=user&since_unix_ns=5", "/v1/trace?since=1&limit=5000", "/v1/trace?limit=10000",
        "/v1/jobs?user=eva%20b"})
    EXPECT_TRUE(check_read(target)) << target;
}

TEST(RequestRules, AnyOtherReadIsRefused) {
  for (const char* target :
       {"", "/", "/v1", "/v1/", "/metrics", "/v1/hold", "/v1/tenants", "/v1/openapi.json", "/v1/gpus/0",
        // a job's environment may hold passwords
        "/v1/jobs/17?environment=1", "/v1/jobs?environment=1", "/v1/jobs/17/wait?until=done", "/v1/jobs/all",
        "/v1/jobs/user:eva", "/v1/jobs/1,2", "/v1/jobs/../status", "/v1/jobs/", "/v1/status?x=1", "/v1/status/",
        "/v1//status", "//v1/status", "http://gpumux/v1/status", "/v1/status#x", "/v1/jobs?state=done?x",
        "/v1/jobs?\r\n", "/v1/trace", "/v1/trace?since=5", "/v1/trace?follow=1&limit=1", "/v1/trace?limit=10001",
        "/v1/trace?limit=-1", "/v1/trace?limit=", "/v1/trace?limit=1e3", "/v1/trace?limit=5&limit=99999",
        "/v1/report?by=user&names=1"})
    EXPECT_FALSE(check_read(target)) << target;
}

TEST(RequestRules, AJobOfATarget) {
  EXPECT_EQ(*job_of("/log/17", "/log/"), "17");
  EXPECT_EQ(*job_of("/v1/jobs/17_3", "/v1/jobs/"), "17_3");
  for (const char* target :
       {"/log/", "/log/17/", "/log/all", "/log/17,18", "/log/../etc/passwd", "/log/%31", "/logs/17"})
    EXPECT_FALSE(job_of(target, "/log/")) << target;
}

TEST(RequestRules, ChangesOfAJob) {
  EXPECT_EQ(*job_change(R"( {"cancel" : true} )"), R"({"cancel":true})");
  EXPECT_EQ(*job_change(R"({"held":false})"), R"({"held":false})");
  EXPECT_EQ(*job_change(R"({"suspended":true})"), R"({"suspended":true})");
  EXPECT_EQ(*job_change(R"({"priority":-5})"), R"({"priority":-5})");
  // The daemon reads what we have read: the last of two.
  EXPECT_EQ(*job_change(R"({"priority":1,"priority":2})"), R"({"priority":2})");
  for (const char* body : {"", "null", "[]", "{}", "true", "{", R"({"cancel":false})", R"({"cancel":1})",
                           R"({"held":"true"})", R"({"priority":1.5})", R"({"priority":"1"})", R"({"signal":"KILL"})",
                           R"({"run_again":true})", R"({"time_limit_ns":0})", R"({"cancel":true,"held":true})"})
    EXPECT_FALSE(job_change(body)) << body;
}

}  // namespace
}  // namespace gpumux::web
