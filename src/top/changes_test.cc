// SPDX-License-Identifier: Apache-2.0
// Goal: each change asks the daemon for what its question says, and its answer is told in words.
// Method: requests and answers as text.
#include "top/changes.h"

#include <gtest/gtest.h>

namespace gpumux::top {
namespace {

api_client::Job job(std::string state) {
  api_client::Job one;
  one.id = 17;
  one.name = "train";
  one.user = "eva";
  one.state = std::move(state);
  one.priority = 2;
  return one;
}

TEST(Changes, CancelNamesTheJob) {
  const Change change = cancel(job("running"));
  EXPECT_EQ(change.request.method, "PATCH");
  EXPECT_EQ(change.request.target, "/v1/jobs/17");
  EXPECT_EQ(change.request.body, R"({"cancel":true})");
  EXPECT_EQ(change.question, "Cancel job 17 (train) of eva?");
  EXPECT_EQ(cancel(9).question, "Cancel job 9?");
}

TEST(Changes, AJobThatWaitsIsHeldAndAHeldOneReleased) {
  EXPECT_EQ(hold_or_release(job("queued"))->request.body, R"({"held":true})");
  EXPECT_EQ(hold_or_release(job("held"))->request.body, R"({"held":false})");
  EXPECT_FALSE(hold_or_release(job("running")));
}

TEST(Changes, PriorityIsANumber) {
  const auto change = change_priority(priority_of(job("queued")), "-5");
  ASSERT_TRUE(change);
  EXPECT_EQ(change->request.target, "/v1/jobs/17");
  EXPECT_EQ(change->request.body, R"({"priority":-5})");
  EXPECT_EQ(change->question, "Change the priority of job 17 (train) of eva from 2 to -5?");
  for (const char* text : {"", "high", "5,\"held\":true", "99999"})
    EXPECT_FALSE(change_priority(priority_of(job("queued")), text)) << text;
  api_client::Seat seat;
  seat.tenant = 3;
  seat.pid = 4711;
  seat.program = "train.py";
  seat.user = "eva";
  EXPECT_EQ(change_priority(priority_of(seat), "1")->request.target, "/v1/tenants/3");
}

TEST(Changes, AnAnswerIsTold) {
  const Change change = cancel(job("running"));
  EXPECT_EQ(outcome_of(change, std::string(R"({"jobs":[{"id":17,"changed":true}]})")).text,
            "job 17 (train) is told to end");
  EXPECT_FALSE(outcome_of(change, std::string(R"({"jobs":[{"id":17,"changed":false}]})")).is_error);
  const Message refused = outcome_of(
      change, std::string(R"({"jobs":[{"id":17,"changed":false,"error":{"code":"denied","message":"it is eva's"}}]})"));
  EXPECT_TRUE(refused.is_error);
  EXPECT_EQ(refused.text, "Not done: it is eva's");
  EXPECT_EQ(outcome_of(change, base::fail(base::Code::kDenied, "no")).text, "Not done: no");
  EXPECT_EQ(outcome_of(change, base::fail(base::Code::kTimeout, "late")).text,
            "Done or not, there was no answer: late");
}

}  // namespace
}  // namespace gpumux::top
