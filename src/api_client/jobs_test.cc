// SPDX-License-Identifier: Apache-2.0
// Goal: jobs are handed in byte for byte, read as the daemon shows them, and no answer is taken for another.
// Method: the JSON of docs/api.md, broken copies of it, and a scripted server on a unix socket.
#include "api_client/jobs.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "api_client/client.h"
#include "api_client/scripted_server.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::api_client {
namespace {

using base::Code;
using nlohmann::json;
using namespace std::chrono_literals;

constexpr char kJob[] = R"({"id": 17, "array": 17, "array_index": 0, "name": "train", "uid": 1000, "user": "eva",
 "state": "queued", "outcome": "", "exit_status": 3, "reason": "gpu_memory", "why": "waits for 20.0 GiB on GPU 0",
 "place": 1, "priority": -2, "gpus": [0], "gpus_wanted": 1, "gpu_ids": [0, 2], "memory_bytes": 8, "exclusive": true,
 "time_limit_ns": 600000000000, "on_time_limit": "suspend", "limit_in_ns": -5, "requeue": true, "attempt": 2,
 "interactive": true, "state_since_unix_ns": 4,
 "submitted_unix_ns": 1, "started_unix_ns": 2, "ended_unix_ns": 3, "note": "n",
 "arguments": ["python3", {"base64": "/w=="}], "directory": "/data", "log": "/log", "attach": "/a.sock", "pid": 9,
 "setup_command": "x", "after": [{"job": 5, "need": "ok"}], "environment": ["A=b"]})";

TEST(JobTypesTest, AJobIsReadWhole) {
  const auto job = parse_job(kJob);
  ASSERT_TRUE(job) << job.error().message();
  EXPECT_EQ(job->id, 17u);
  EXPECT_EQ(job->array, 17u);
  EXPECT_EQ(job->array_index, 0u);
  EXPECT_EQ(job->exit_status, 3);
  EXPECT_EQ(job->why, "waits for 20.0 GiB on GPU 0");
  EXPECT_EQ(job->priority, -2);
  EXPECT_EQ(job->gpu_ids, (std::vector<std::uint32_t>{0, 2}));
  EXPECT_EQ(job->time_limit, 600s);
  EXPECT_EQ(job->limit_in, -5ns);
  EXPECT_EQ(job->arguments, (std::vector<std::string>{"python3", "\xff"})) << "bytes that are no text";
  EXPECT_EQ(job->after.at(0).job, 5u);
  EXPECT_EQ(job->environment.at(0), "A=b");
  EXPECT_TRUE(job->waits());
}

TEST(JobTypesTest, OfOthersJobsLittleIsThere) {
  const auto page = parse_job_page(R"({"jobs": [{"id": 3, "user": "bob", "state": "running", "gpus": [1]}],
    "more": true})");
  ASSERT_TRUE(page) << page.error().message();
  EXPECT_TRUE(page->more);
  const Job& job = page->jobs.at(0);
  EXPECT_EQ(job.name, "");
  EXPECT_FALSE(job.exit_status);
  EXPECT_FALSE(job.place);
  EXPECT_FALSE(job.array);
  EXPECT_FALSE(job.is_done());
}

TEST(JobTypesTest, WrongTypesAreRefusedAndNamed) {
  const json good = json::parse(kJob);
  for (const auto& [name, value] : good.items()) {
    json broken = good;
    broken[name] = value.is_object() ? json(1) : json::object();
    const auto job = parse_job(broken.dump());
    ASSERT_FALSE(job) << name;
    EXPECT_EQ(job.error().code, Code::kProtocol);
    EXPECT_NE(job.error().what.find(name), std::string::npos) << job.error().what;
  }
  EXPECT_FALSE(parse_job("not json"));
  EXPECT_FALSE(parse_job_page("[]"));
  EXPECT_FALSE(parse_job(R"({"arguments": [{"base64": "%"}]})"));
  EXPECT_FALSE(parse_submitted("{}")) << "no id, no job";
}

TEST(JobTypesTest, TheQueueIsRead) {
  const auto queue = parse_queue(R"({"settings": {"order": "fair", "half_life_ns": 5, "oversubscribe": 1.5,
    "max_job_time_ns": 3600000000000, "preempt": true, "privacy": "open", "limits": {"running": 8, "priority_cap": -1}},
    "paused": true, "unavailable": "", "jobs": {"queued": 3, "running": 2},
    "gpus": [{"index": 1, "capacity_bytes": 5, "promised_bytes": 4, "outside_jobs_bytes": 1,
     "drained": true, "sick": true, "present": false,
     "jobs": [{"id": 17, "uid": 1000, "user": "eva", "name": "train"}]}],
    "reserved": {"job": 19, "gpus": [0], "starts_in_ns": 7},
    "users": [{"uid": 1000, "user": "eva", "running": 1, "queued": 2, "gpus": 1, "used_gpu_ns": 9,
     "limits": {"gpus": 2}}]})");
  ASSERT_TRUE(queue) << queue.error().message();
  EXPECT_EQ(queue->settings.oversubscribe, 1.5);
  EXPECT_EQ(queue->settings.limits.running, 8u);
  EXPECT_EQ(queue->settings.limits.priority_cap, -1);
  EXPECT_FALSE(queue->settings.limits.queued);
  EXPECT_EQ(queue->jobs.at("queued"), 3u);
  EXPECT_TRUE(queue->gpus.at(0).drained);
  EXPECT_TRUE(queue->gpus.at(0).sick);
  EXPECT_FALSE(queue->gpus.at(0).present);
  ASSERT_EQ(queue->gpus.at(0).jobs.size(), 1u);
  EXPECT_EQ(queue->gpus.at(0).jobs.at(0).id, 17u);
  EXPECT_EQ(queue->gpus.at(0).jobs.at(0).user, "eva");
  EXPECT_EQ(queue->gpus.at(0).jobs.at(0).name, "train");
  EXPECT_EQ(queue->reserved->job, 19u);
  ASSERT_TRUE(queue->users.at(0).limits);
  EXPECT_EQ(queue->users.at(0).limits->gpus, 2u);
  EXPECT_FALSE(parse_queue(R"({"settings": {"oversubscribe": "x"}})"));
}

TEST(JobTypesTest, IdsAreCheckedBeforeTheyAreInAUrl) {
  for (const char* id : {"17", "17_3", "0"}) EXPECT_TRUE(check_job_id(id)) << id;
  for (const char* id : {"", "x", "17_", "_3", "17_3_4", "-1", "17/../18", "1 ", "17,18", "99999999999999999999"})
    EXPECT_FALSE(check_job_id(id)) << id;
  EXPECT_EQ(url_encoded("eva"), "eva");
  EXPECT_EQ(url_encoded("DOM\\e v/a?%"), "DOM%5Ce%20v%2Fa%3F%25");
}

TEST(JobTypesTest, ASubmissionSaysWhatWasSetAndNothingElse) {
  Submission submission;
  submission.arguments = {"a", "b c", "", "\xff\xfe"};
  submission.directory = "/data";
  submission.environment = {"A=1"};
  auto body = json::parse(submission_body(submission).value());
  EXPECT_EQ(body, (json{{"arguments", {"a", "b c", "", {{"base64", "//4="}}}},
                        {"directory", "/data"},
                        {"environment", {"A=1"}},
                        {"umask", 18},
                        {"nice", 0}}));
  submission.gpu_ids = {2, 0};
  submission.memory_bytes = 5;
  submission.time_limit = 600s;
  submission.priority = 0;
  submission.after = {{5, "ok"}, {6, "any"}};
  submission.array = "0-9%2";
  submission.interactive = true;
  submission.window = {24, 80};
  submission.token = "t";
  body = json::parse(submission_body(submission).value());
  EXPECT_EQ(body["gpu_ids"], (json{2, 0})) << "in this order";
  EXPECT_EQ(body["priority"], 0) << "an explicit 0 is said";
  EXPECT_EQ(body["time_limit_ns"], 600000000000);
  EXPECT_EQ(body["after"], (json{{{"job", 5}, {"need", "ok"}}, {{"job", 6}, {"need", "any"}}}));
  EXPECT_EQ(body["window"], (json{{"rows", 24}, {"columns", 80}}));
}

TEST(JobTypesTest, WhatIsTooLongIsSaidBeforeItIsSent) {
  Submission submission;
  submission.arguments = {std::string(kMaxSubmissionBytes, 'x')};
  const auto body = submission_body(submission);
  ASSERT_FALSE(body);
  EXPECT_EQ(body.error().code, Code::kInvalid);
  EXPECT_NE(body.error().what.find("16.0 MiB of arguments"), std::string::npos) << body.error().what;
  submission.arguments = {std::string(10 << 20, 'x')};
  EXPECT_TRUE(submission_body(submission));
}

class JobsCallTest : public ::testing::Test {
 protected:
  ScriptedServer::Answer always(int status, const std::string& body) {
    return [=](const ScriptedRequest&, int connection) {
      ScriptedServer::send_all(connection, ScriptedServer::response(status, body));
    };
  }
  Client connect(base::Duration timeout = 30s) {
    auto client = Client::connect({.runtime_dir = dir_, .timeout = timeout});
    EXPECT_TRUE(client);
    return *client;
  }

  const TemporaryDirectory folder_;
  const std::string& dir_ = folder_.path();
};

TEST_F(JobsCallTest, EachCallAsksWhatTheApiSays) {
  const ScriptedServer server(dir_ + "/api.sock",
                              always(200, R"({"id": 17, "count": 2, "jobs": [], "state": "done"})"));
  const Client client = connect();
  EXPECT_EQ(client.submit({})->count, 2u);
  EXPECT_TRUE(client.jobs({.state = JobsState::kDone,
                           .user = "e/a",
                           .array = 4,
                           .latest_end_first = true,
                           .limit = 5,
                           .beyond = 6,
                           .beyond_ended = 7}));
  EXPECT_TRUE(client.job_text("17_3", true));
  EXPECT_TRUE(client.wait_for_job("17", JobMoment::kStarted, 2s));
  EXPECT_TRUE(client.change_jobs("17,18_2", R"({"cancel":true})"));
  EXPECT_FALSE(client.job("17/x"));
  const auto requests = server.requests();
  ASSERT_EQ(requests.size(), 5u);
  EXPECT_EQ(requests[0].method + " " + requests[0].target, "POST /v1/jobs");
  EXPECT_EQ(requests[1].target, "/v1/jobs?state=done&user=e%2Fa&array=4&order=ended&limit=5&beyond=6&beyond_ended=7");
  EXPECT_EQ(requests[2].target, "/v1/jobs/17_3?environment=1");
  EXPECT_EQ(requests[3].target, "/v1/jobs/17/wait?until=started&timeout_ns=2000000000");
  EXPECT_EQ(requests[4].method + " " + requests[4].target, "PATCH /v1/jobs/17,18_2");
}

TEST_F(JobsCallTest, OnlyAMissingAnswerLeavesASubmissionOpen) {
  {
    const ScriptedServer server(dir_ + "/api.sock", [](const ScriptedRequest&, int) {});
    EXPECT_EQ(connect().submit({}).error().code, Code::kUnavailable) << "closed without an answer";
  }
  {
    const ScriptedServer server(dir_ + "/api.sock",
                                always(503, R"({"error": {"code": "unavailable", "message": "the disk is full"}})"));
    const auto submitted = connect().submit({});
    ASSERT_FALSE(submitted);
    EXPECT_EQ(submitted.error().code, Code::kExhausted);
    EXPECT_EQ(submitted.error().what, "the disk is full");
  }
}

TEST_F(JobsCallTest, AWaitMayTakeLongerThanOtherCalls) {
  const ScriptedServer server(dir_ + "/api.sock", [](const ScriptedRequest&, int connection) {
    std::this_thread::sleep_for(300ms);  // the answer's own time, not another machine's guess
    ScriptedServer::send_all(connection, ScriptedServer::response(200, R"({"id": 1, "state": "done"})"));
  });
  const auto job = connect(100ms).wait_for_job("1", JobMoment::kDone, 20s);
  ASSERT_TRUE(job) << job.error().message();
  EXPECT_TRUE(job->is_done());
}

TEST_F(JobsCallTest, TenThousandJobsAreReadAtOnce) {
  std::string body = R"({"jobs": [)";
  for (int i = 1; i <= 10000; ++i) body += (i > 1 ? "," : "") + std::string(kJob);
  body += "]}";
  const ScriptedServer server(dir_ + "/api.sock", always(200, body));
  const auto page = connect().jobs({});
  ASSERT_TRUE(page) << page.error().message();
  EXPECT_EQ(page->jobs.size(), 10000u);
}

TEST_F(JobsCallTest, ChangesThatWereRefusedSayWhy) {
  const ScriptedServer server(dir_ + "/api.sock", always(200, R"({"jobs": [{"id": 17, "changed": true},
     {"id": 18, "changed": false, "error": {"code": "denied", "message": "job 18 is bob's"}}]})"));
  const auto changes = connect().change_jobs("17,18", "{}");
  ASSERT_TRUE(changes) << changes.error().message();
  EXPECT_TRUE(changes->at(0).changed);
  EXPECT_FALSE(changes->at(0).error);
  EXPECT_EQ(changes->at(1).error->code, Code::kDenied);
  EXPECT_EQ(changes->at(1).error->what, "job 18 is bob's");
}

}  // namespace
}  // namespace gpumux::api_client
