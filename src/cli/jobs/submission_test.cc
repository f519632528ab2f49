// SPDX-License-Identifier: Apache-2.0
// Goal: the command line becomes the submitted job, byte for byte, and exactly once. Method: the functions by
// themselves; and a scripted server that breaks connections before it answers.
#include "cli/jobs/submission.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "api_client/scripted_server.h"
#include "cli/jobs/job_view.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::cli {
namespace {

using api_client::ScriptedRequest;
using api_client::ScriptedServer;
using base::Code;
using namespace std::chrono_literals;

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> result;
  for (std::string& word : words) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

base::Result<api_client::Submission> make(const SubmitWishes& wishes) {
  std::vector<std::string> words{"python", "a b", "", "\xff"};
  return make_submission(wishes, pointers(words));
}

TEST(MakeSubmissionTest, TakesEverythingAlong) {
  ::setenv("GPUMUX_TEST_ODD", "\xff=\n", 1);
  const mode_t before = ::umask(027);
  SubmitWishes wishes;
  wishes.gpu_ids = "2,0";
  wishes.memory = "8000M";
  wishes.time_limit = "1:30:00";
  wishes.priority = "-3";
  wishes.array = "0-9%2";
  const auto submission = make(wishes);
  ::umask(before);
  ASSERT_TRUE(submission) << submission.error().message();
  EXPECT_EQ(submission->arguments, (std::vector<std::string>{"python", "a b", "", "\xff"}));
  EXPECT_EQ(submission->gpu_ids, (std::vector<std::uint32_t>{2, 0}));
  EXPECT_EQ(submission->memory_bytes, 8000ull << 20);
  EXPECT_EQ(submission->time_limit, 90min);
  EXPECT_EQ(submission->priority, -3);
  EXPECT_EQ(submission->array, "0-9%2") << "what the daemon reads is not ours to change";
  EXPECT_EQ(submission->umask, 027u);
  EXPECT_EQ(submission->directory, std::filesystem::current_path().string());
  EXPECT_EQ(std::count(submission->environment.begin(), submission->environment.end(), "GPUMUX_TEST_ODD=\xff=\n"), 1);
  EXPECT_EQ(submission->token.size(), 32u);
  EXPECT_NE(make(wishes)->token, submission->token);
}

TEST(MakeSubmissionTest, WhatIsWrongIsNamedWithItsOption) {
  struct Case {
    std::string SubmitWishes::*member;
    const char* value;
    const char* said;
  };
  for (const Case& wrong :
       {Case{&SubmitWishes::gpus, "0", "--gpus"}, Case{&SubmitWishes::gpus, "two", "--gpus"},
        Case{&SubmitWishes::gpu_ids, "0,,1", "--gpu-ids"}, Case{&SubmitWishes::gpu_ids, "1,1", "named twice"},
        Case{&SubmitWishes::gpu_ids, "0-3", "--gpu-ids"}, Case{&SubmitWishes::memory, "0", "--mem"},
        Case{&SubmitWishes::memory, "lots", "--mem"}, Case{&SubmitWishes::time_limit, "1:99", "--time-limit"},
        Case{&SubmitWishes::on_time_limit, "explode", "neither suspend nor cancel"},
        Case{&SubmitWishes::priority, "5000", "--priority"}}) {
    SubmitWishes wishes;
    wishes.*wrong.member = wrong.value;
    const auto submission = make(wishes);
    ASSERT_FALSE(submission) << wrong.value;
    EXPECT_EQ(submission.error().code, Code::kInvalid);
    EXPECT_NE(submission.error().what.find(wrong.said), std::string::npos) << submission.error().what;
  }
  std::vector<std::string> none;
  EXPECT_EQ(make_submission({}, pointers(none)).error().code, Code::kInvalid);
  std::vector<std::string> empty{""};
  EXPECT_EQ(make_submission({}, pointers(empty)).error().code, Code::kInvalid);
  SubmitWishes both;
  both.interactive = true;
  both.array = "0-1";
  EXPECT_FALSE(make(both));
}

TEST(MakeSubmissionTest, ADirectoryThatIsGoneIsSaid) {
  const TemporaryDirectory directory;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(directory.path());
  std::filesystem::remove(directory.path());
  const auto submission = make({});
  std::filesystem::current_path(before);
  ASSERT_FALSE(submission);
  EXPECT_NE(submission.error().message().find("--home"), std::string::npos) << submission.error().message();
}

// "ok:17 any:18": the conditions that the job waits for.
std::string dependencies(const char* text) {
  std::string all;
  for (const NamedDependency& one : parse_dependencies(text).value_or(std::vector<NamedDependency>()))
    all += (all.empty() ? "" : " ") + one.need + ":" + one.job;
  return all;
}

TEST(DependencyTest, OkAndAny) {
  EXPECT_EQ(dependencies("ok:17"), "ok:17");
  EXPECT_EQ(dependencies("any:17_3"), "any:17_3");
  EXPECT_EQ(dependencies("17"), "ok:17") << "a user who names a job minds if it fails";
  EXPECT_EQ(dependencies("17_3"), "ok:17_3");
  for (const char* text : {"", "ok", "ok:", "OK:17", "after:17", "ok:x", "ok :17", "17x", "ok:17,", "17:", ":17"})
    EXPECT_FALSE(parse_dependencies(text)) << text;
}

TEST(DependencyTest, AsSlurmWritesThem) {
  EXPECT_EQ(dependencies("afterok:17"), "ok:17");
  EXPECT_EQ(dependencies("afterany:17:18_2"), "any:17 any:18_2");
  EXPECT_EQ(dependencies("afterok:17:18,afterany:19,20"), "ok:17 ok:18 any:19 ok:20");
  const auto refused = parse_dependencies("afternotok:17");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("ok:ID"), std::string::npos) << refused.error().what;
}

// "A=1 B=2"
std::string exported(const char* text) {
  std::string all;
  for (const std::string& variable :
       exported_environment(text, {"PATH=/bin", "A=1", "B=2", "ODD"}).value_or(std::vector<std::string>()))
    all += (all.empty() ? "" : " ") + variable;
  return all;
}

TEST(ExportTest, SaysWhatGoesAlong) {
  EXPECT_EQ(exported("ALL"), "PATH=/bin A=1 B=2 ODD");
  EXPECT_EQ(exported("NONE"), "PATH=/bin") << "programs are found all the same";
  EXPECT_EQ(exported("B,C=a=b,MISSING"), "PATH=/bin B=2 C=a=b");
  EXPECT_EQ(exported("ALL,A=5"), "PATH=/bin B=2 ODD A=5");
  for (const char* wrong : {"", "A,", "=1", ",A"}) EXPECT_FALSE(exported_environment(wrong, {})) << wrong;
}

TEST(MakeSubmissionTest, TakesSlurmsOptions) {
  SubmitWishes wishes;
  wishes.minutes_limit = "10";
  wishes.directory = "sub/folder";
  wishes.exported = "GPUMUX_TEST_ONE=1";
  wishes.error = "run.err";
  wishes.begin = "now+1hour";
  const auto submission = make(wishes);
  ASSERT_TRUE(submission) << submission.error().message();
  EXPECT_EQ(submission->time_limit, 10min) << "Slurm's -t counts minutes";
  EXPECT_EQ(submission->directory, std::filesystem::current_path().string() + "/sub/folder");
  EXPECT_EQ(std::count(submission->environment.begin(), submission->environment.end(), "GPUMUX_TEST_ONE=1"), 1);
  EXPECT_LT(submission->environment.size(), 7u);
  EXPECT_EQ(submission->error_output, "run.err");
  EXPECT_GT(submission->begin_unix_ns, now_unix_ns() + std::int64_t{59} * 60 * 1'000'000'000);
  wishes.minutes_limit = "1:30:00";
  EXPECT_EQ(make(wishes)->time_limit, 90min);
  wishes.directory = "/";
  EXPECT_EQ(make(wishes)->directory, "/");
  wishes.array = "0-3";
  EXPECT_NE(make(wishes).error().what.find("--error"), std::string::npos) << "they would write over each other's";
  wishes.array.clear();
  wishes.interactive = true;
  EXPECT_NE(make(wishes).error().what.find("--error"), std::string::npos);
}

// All of them as one text.
std::string doubts(const api_client::Submission& submission) {
  std::string text;
  for (const std::string& doubt : doubts_about(submission)) text += doubt + "\n";
  return text;
}

TEST(DoubtsTest, OnlyWhatIsPlainIsDoubted) {
  api_client::Submission submission;
  submission.arguments = {"no-such-program-at-all"};
  submission.directory = "/";
  EXPECT_NE(doubts(submission).find("no such program"), std::string::npos);
  submission.setup_command = "source venv/bin/activate";
  EXPECT_EQ(doubts(submission), "") << "it may come into PATH";
  submission.setup_command.clear();
  submission.arguments = {"bin/sh"};
  EXPECT_EQ(doubts(submission), "") << "found from the job's directory";
  submission.directory = "/proc";
  EXPECT_NE(doubts(submission), "");
}

TEST(DoubtsTest, ALogWithoutAPlace) {
  api_client::Submission submission;
  submission.arguments = {"sh"};
  submission.environment = {"XDG_STATE_HOME=/etc/passwd/state"};
  EXPECT_EQ(doubts(submission),
            "the job's log has no place, because /etc/passwd/state does not exist: name a file with --output\n");
  submission.output = "/dev/null";
  EXPECT_EQ(doubts(submission), "");
  submission.output.clear();
  submission.environment = {"XDG_STATE_HOME=/tmp/not/there/yet"};
  EXPECT_EQ(doubts(submission), "") << "folders are made";
}

TEST(DoubtsTest, AScriptByItsNameAloneAndAFolderThatIsMissing) {
  const TemporaryDirectory directory;
  const std::string& dir = directory.path();
  api_client::Submission submission;
  submission.directory = dir;
  submission.arguments = {"gpumux-test-job.sh"};
  EXPECT_EQ(doubts(submission).find("write"), std::string::npos) << "there is none";
  const std::string script = dir + "/gpumux-test-job.sh";
  std::ofstream(script) << "#!/bin/sh\n";
  ::chmod(script.c_str(), 0600);
  for (const char* words : {"gpumux-test-job.sh", "./gpumux-test-job.sh"}) {
    submission.arguments = {words};
    EXPECT_NE(doubts(submission).find(std::string("write bash ") + words), std::string::npos) << doubts(submission);
  }
  ::chmod(script.c_str(), 0700);
  EXPECT_EQ(doubts(submission), "");
  submission.arguments = {"gpumux-test-job.sh"};
  EXPECT_NE(doubts(submission).find("write ./gpumux-test-job.sh, or bash gpumux-test-job.sh"), std::string::npos);

  submission.arguments = {"sh"};
  for (const std::string& good :
       {std::string("%j.log"), std::string("logs-%n/x"), std::string("/tmp/%j"), dir + "/x"}) {
    submission.output = good;
    EXPECT_EQ(doubts(submission), "") << good;
  }
  submission.output = "logs/%j.log";
  EXPECT_NE(doubts(submission).find("logs/ does not exist"), std::string::npos) << doubts(submission);
  std::filesystem::create_directory(dir + "/logs");
  EXPECT_EQ(doubts(submission), "");
  std::filesystem::remove_all(dir);
}

TEST(MakeSubmissionTest, TheJobsOfAnArrayDoNotShareALog) {
  SubmitWishes wishes;
  wishes.array = "0-9";
  EXPECT_TRUE(make(wishes)) << "each has its own";
  for (const char* shared : {"run.log", "run-%n.log", "run-%%a.log", "100%"}) {
    wishes.output = shared;
    const auto submission = make(wishes);
    ASSERT_FALSE(submission) << shared;
    EXPECT_EQ(submission.error().code, Code::kInvalid);
    EXPECT_NE(submission.error().what.find("run-%a.log"), std::string::npos) << submission.error().what;
  }
  for (const char* own : {"run-%a.log", "%j", "%%%n%a"}) {
    wishes.output = own;
    EXPECT_TRUE(make(wishes)) << own;
  }
  wishes.output = "run.log";
  wishes.append = true;
  EXPECT_TRUE(make(wishes)) << "they write behind each other";
  wishes.append = false;
  wishes.array.clear();
  EXPECT_TRUE(make(wishes));
}

TEST(DescribeTest, AnArraySaysItsElements) {
  EXPECT_EQ(describe_submitted({.id = 17, .count = 1, .text = ""}), "job 17");
  EXPECT_EQ(describe_submitted({.id = 17, .count = 10, .array = "0-9%2", .text = ""}), "array 17_[0-9%2] (10 jobs)");
}

class PersistenceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    submission_.arguments = {"x"};
    submission_.token = "the-token";
  }

  FindClient find() {
    return [this] {
      ++finds_;
      return api_client::Client::connect({.runtime_dir = dir_});
    };
  }

  const TemporaryDirectory folder_;
  const std::string& dir_ = folder_.path();
  api_client::Submission submission_;
  int finds_ = 0;
  Persistence quick_{.limit = 30s, .first_pause = 1ms, .longest_pause = 2ms};
};

TEST_F(PersistenceTest, IsSentAgainWithTheSameTokenUntilItIsAnswered) {
  std::atomic<int> asked = 0;
  const ScriptedServer server(dir_ + "/api.sock", [&](const ScriptedRequest&, int connection) {
    // Once nothing, once half an answer, then the answer.
    const int time = ++asked;
    const std::string answer = ScriptedServer::response(201, R"({"id": 17, "count": 1})");
    if (time == 2) ScriptedServer::send_all(connection, answer.substr(0, answer.size() - 5));
    if (time >= 3) ScriptedServer::send_all(connection, answer);
  });
  const auto submitted = submit_persistently(submission_, find(), quick_);
  ASSERT_TRUE(submitted) << submitted.error().message();
  EXPECT_EQ(submitted->id, 17u);
  const auto requests = server.requests();
  ASSERT_EQ(requests.size(), 3u);
  for (const ScriptedRequest& request : requests) {
    EXPECT_EQ(request.body, requests[0].body);
    EXPECT_EQ(nlohmann::json::parse(request.body)["token"], "the-token");
  }
}

TEST_F(PersistenceTest, ADaemonThatIsAwayForAMomentIsWaitedFor) {
  std::optional<ScriptedServer> server;
  server.emplace(dir_ + "/api.sock", [&](const ScriptedRequest&, int) {});
  const auto looking = [&]() -> base::Result<api_client::Client> {
    ++finds_;
    if (finds_ == 2) {
      server.reset();  // it dies between two attempts, and its socket stays behind
    } else if (finds_ == 5) {
      server.emplace(dir_ + "/api.sock", [&](const ScriptedRequest&, int connection) {
        ScriptedServer::send_all(connection, ScriptedServer::response(200, R"({"id": 3, "count": 1})"));
      });
    }
    return api_client::Client::connect({.runtime_dir = dir_});
  };
  const auto submitted = submit_persistently(submission_, looking, quick_);
  ASSERT_TRUE(submitted) << submitted.error().message();
  EXPECT_EQ(submitted->id, 3u);
  EXPECT_GE(finds_, 5);
}

TEST_F(PersistenceTest, ARefusalIsNotTriedAgain) {
  const ScriptedServer server(dir_ + "/api.sock", [&](const ScriptedRequest&, int connection) {
    ScriptedServer::send_all(
        connection,
        ScriptedServer::response(503, R"({"error": {"code": "unavailable", "message": "the disk is full"}})"));
  });
  const auto submitted = submit_persistently(submission_, find(), quick_);
  ASSERT_FALSE(submitted);
  EXPECT_EQ(submitted.error().what, "the disk is full");
  EXPECT_EQ(server.requests().size(), 1u);
}

TEST_F(PersistenceTest, WithoutADaemonNothingIsTriedAgain) {
  const auto submitted = submit_persistently(submission_, find(), quick_);
  ASSERT_FALSE(submitted);
  EXPECT_EQ(submitted.error().code, Code::kUnavailable);
  EXPECT_EQ(finds_, 1);
  EXPECT_EQ(submitted.error().what.find("may have been accepted"), std::string::npos);
}

TEST_F(PersistenceTest, GivingUpSaysThatTheJobMayBeThere) {
  const ScriptedServer server(dir_ + "/api.sock", [&](const ScriptedRequest&, int) {});
  const auto submitted =
      submit_persistently(submission_, find(), {.limit = 50ms, .first_pause = 10ms, .longest_pause = 10ms});
  ASSERT_FALSE(submitted);
  EXPECT_EQ(submitted.error().code, Code::kUnavailable);
  EXPECT_NE(submitted.error().what.find("may have been accepted or not"), std::string::npos);
}

}  // namespace
}  // namespace gpumux::cli
