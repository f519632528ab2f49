// SPDX-License-Identifier: Apache-2.0
// Goal: the commands about jobs, as a user or a script meets them: their requests, their output, their exit status.
// Method: the real executable; a scripted daemon behind it. (interactive_test.cc has the jobs with a terminal.)
#include <sys/stat.h>

#include <filesystem>
#include <thread>

#include "cli/jobs/commands_test_support.h"
#include "cli/jobs/job_calls.h"

namespace gpumux::cli {
namespace {

TEST_F(JobCommandTest, SubmitSendsEverythingAndPrintsTheId) {
  answer("POST /v1/jobs", 201, R"({"id": 17, "count": 1})");
  answer("GET /v1/jobs/5", json{{"id", 5}});
  answer("GET /v1/jobs/6", json{{"id", 6}});
  serve();
  const auto outcome = run({"submit", "--gpu-ids", "1,0", "--mem", "20G", "--after", "5", "--after", "any:6", "--name",
                            "n", "--", "sh", "-c", "a \xff", ""});
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "Submitted job 17\n");
  EXPECT_EQ(outcome.err, "");
  const auto requests = asked("POST", "/v1/jobs");
  ASSERT_EQ(requests.size(), 1u);
  const json body = json::parse(requests[0].body);
  EXPECT_EQ(body["arguments"], (json{"sh", "-c", {{"base64", "YSD/"}}, ""}));
  EXPECT_EQ(body["gpu_ids"], (json{1, 0}));
  EXPECT_EQ(body["memory_bytes"], 20ull << 30);
  EXPECT_EQ(body["after"], json::parse(R"([{"job": 5, "need": "ok"}, {"job": 6, "need": "any"}])"));
  bool odd = false;
  for (const auto& variable : body["environment"]) odd = odd || variable == json{{"base64", "T0REPf8="}};
  EXPECT_TRUE(odd) << "the environment goes along, byte for byte";
  EXPECT_EQ(body["directory"], std::filesystem::current_path().string());

  EXPECT_EQ(run({"submit", "--quiet", "sh"}).out, "17\n");
  EXPECT_EQ(run({"submit", "--json", "sh"}).out, "{\"id\": 17, \"count\": 1}\n");
}

TEST_F(JobCommandTest, SubmitWarnsOfWhatIsPlainAndHandsItInAllTheSame) {
  answer("POST /v1/jobs", 201, R"({"id": 17, "count": 10})");
  serve();
  const auto outcome = run({"submit", "--array", "0-9%2", "no-such-program"});
  EXPECT_EQ(outcome.exit_status, 0);
  EXPECT_NE(outcome.err.find("warning: no-such-program: no such program"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.out, "Submitted array 17_[0-9%2] (10 jobs)\n");
}

TEST_F(JobCommandTest, WrongUsageAsksNobody) {
  serve();
  for (const std::vector<std::string>& words : {std::vector<std::string>{"submit"},
                                                {"submit", "--"},
                                                {"submit", "--mem", "x", "sh"},
                                                {"submit", "--gpus", "1", "--gpu-ids", "0", "sh"},
                                                {"submit", "--after", "17x", "sh"},
                                                {"cancel"},
                                                {"cancel", "x"},
                                                {"cancel", "--all", "17"},
                                                {"logs"},
                                                {"wait", "17,18"},
                                                {"queue", "--format", "ids"},
                                                {"admin"},
                                                {"admin", "drian", "0"},
                                                {"logs", "--lines", "-1", "17"},
                                                {"history", "--limit", "0"},
                                                {"attach", "../17"}}) {
    const auto outcome = run(words);
    EXPECT_EQ(outcome.exit_status, 2) << words.back() << ": " << outcome.err;
    EXPECT_NE(outcome.err, "");
    EXPECT_LT(outcome.err.size(), 400u) << outcome.err;
  }
  // A variable with nothing in it is no wish for any GPU, all memory, or one job instead of an array.
  for (const char* option : {"--gpus", "--gpu-ids", "--mem", "--time-limit", "--priority", "--array", "--output"}) {
    const auto outcome = run({"submit", option, "", "sh"});
    EXPECT_EQ(outcome.exit_status, 2) << option;
    EXPECT_NE(outcome.err.find(option), std::string::npos) << outcome.err;
  }
  EXPECT_EQ(
      run({"--gpu-ids", "", "sh"}, (std::string(std::filesystem::path(GPUMUX).parent_path()) + "/mgpu_srun").c_str())
          .exit_status,
      2);
  EXPECT_TRUE(server_->requests().empty());
}

TEST_F(JobCommandTest, TheDaemonsReasonIsShownAndNothingIsTriedAgain) {
  answer("POST /v1/jobs", 400, R"({"error": {"code": "invalid", "message": "GPU 9 is not there"}})");
  serve();
  const auto outcome = run({"submit", "--gpu-ids", "9", "sh"});
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_EQ(outcome.err, "gpumux submit: GPU 9 is not there\n");
  EXPECT_EQ(asked("POST", "/v1/jobs").size(), 1u);
}

TEST_F(JobCommandTest, ADependencyThatIsNotThereIsNamed) {
  serve();
  for (const char* option : {"--after", "--dependency"}) {
    const auto outcome = run({"submit", option, "afterok:999", "sh"});
    EXPECT_EQ(outcome.exit_status, 1);
    EXPECT_EQ(outcome.err, "gpumux submit: --after afterok:999: there is no job 999\n");
  }
  EXPECT_TRUE(asked("POST", "/v1/jobs").empty());
}

TEST_F(JobCommandTest, WaitExitsAsTheJobsDid) {
  answer("GET /v1/jobs/17", done("ok", 0));
  json second = job("running");
  second["id"] = 18;
  answer("GET /v1/jobs/18", second);
  json failed = done("failed", 7);
  failed["id"] = 18;
  answer("GET /v1/jobs/18/wait", failed);
  answer("GET /v1/jobs/19", done("cancelled", 0));
  serve();
  EXPECT_EQ(run({"wait", "17"}).exit_status, 0);
  EXPECT_EQ(run({"wait", "17", "18", "19"}).exit_status, 7) << "the first that is not 0";
  const auto cancelled = run({"wait", "19"});
  EXPECT_EQ(cancelled.exit_status, 1) << "cancelled is not done, whatever it exited with";
  EXPECT_NE(cancelled.err.find("cancelled"), std::string::npos);
  EXPECT_EQ(run({"wait", "20"}).exit_status, 1);
}

TEST_F(JobCommandTest, AnEndThatIsNotForOnesEyesIsCalledThat) {
  answer("GET /v1/jobs/17", json{{"id", 17}, {"user", "bob"}, {"state", "done"}});
  serve();
  for (const char* command : {"wait", "attach"}) {
    const auto outcome = run({command, "17"});
    EXPECT_EQ(outcome.exit_status, 4) << command;
    EXPECT_NE(outcome.err.find("job 17 is bob's: only that user and administrators may see how it ended"),
              std::string::npos)
        << outcome.err;
  }
}

TEST_F(JobCommandTest, WhoAttachesTooLateIsToldOfTheLog) {
  json ended = done("failed", 3);
  ended["log"] = dir_ + "/17.log";
  ended["started_unix_ns"] = 1;
  answer("GET /v1/jobs/17", ended);
  serve();
  const auto outcome = run({"attach", "17"});
  EXPECT_EQ(outcome.exit_status, 3);
  EXPECT_NE(outcome.err.find("gpumux logs 17"), std::string::npos) << outcome.err;
}

TEST_F(JobCommandTest, SubmitWaitWaitsForEveryElement) {
  answer("POST /v1/jobs", 201, R"({"id": 17, "count": 2})");
  json first = job("running");
  first["array"] = 17;
  first["array_index"] = 0;
  json second = first;
  second["id"] = 18;
  second["array_index"] = 1;
  answer("GET /v1/jobs/17", first);
  answer("GET /v1/jobs?state=all&array=17", json{{"jobs", {first, second}}, {"more", false}});
  answer("GET /v1/jobs/17/wait", done("ok", 0));
  answer("GET /v1/jobs/18/wait", done("failed", 4));
  serve();
  EXPECT_EQ(run({"submit", "--array", "0-1", "--wait", "sh"}).exit_status, 4);
}

TEST_F(JobCommandTest, CancelTellsOfEach) {
  answer("PATCH /v1/jobs/17,18", 200, R"({"jobs": [{"id": 17, "changed": true}, {"id": 18, "changed": false,
      "error": {"code": "denied", "message": "job 18 is bob's"}}]})");
  answer("PATCH /v1/jobs/user:eva", 200, R"({"jobs": [{"id": 17, "changed": false}]})");
  json element = job("ending");
  element["array"] = 5;
  element["array_index"] = 3;
  answer("GET /v1/jobs/17", element);
  serve();
  const auto outcome = run({"cancel", "17", "18"});
  EXPECT_EQ(outcome.exit_status, 4);
  EXPECT_EQ(outcome.out, "job 5_3 is told to end\n") << "it ran, and has not ended yet";
  EXPECT_EQ(outcome.err, "gpumux cancel: job 18 is bob's\n");
  EXPECT_EQ(asked("PATCH", "/v1/jobs")[0].body, R"({"cancel":true})");
  EXPECT_EQ(run({"cancel", "--user", "eva"}).exit_status, 0);
  EXPECT_EQ(run({"cancel", "99"}).exit_status, 1);
  answer("PATCH /v1/jobs/17", 200, R"({"jobs": [{"id": 17, "changed": true}]})");
  answer("GET /v1/jobs/17", done("cancelled", 143));
  EXPECT_EQ(run({"cancel", "17"}).out, "job 17 is cancelled\n");
}

TEST_F(JobCommandTest, AJobThatHasEndedCannotBeChanged) {
  answer("PATCH /v1/jobs/17", 200, R"({"jobs": [{"id": 17, "changed": false}]})");
  answer("PATCH /v1/jobs/user:eva", 200, R"({"jobs": [{"id": 17, "changed": false}]})");
  answer("GET /v1/jobs/17", done("failed", 3));
  serve();
  for (const char* command : {"cancel", "hold", "release"}) {
    const auto outcome = run({command, "17"});
    EXPECT_EQ(outcome.exit_status, 1) << command;
    EXPECT_EQ(outcome.out, "") << command;
    EXPECT_EQ(outcome.err, std::string("gpumux ") + command + ": job 17 has ended already (failed, exit status 3)\n");
  }
  const std::string old_cancel = std::filesystem::path(GPUMUX).parent_path().string() + "/mgpu_cancel";
  EXPECT_EQ(run({"17"}, old_cancel.c_str()).err, "mgpu_cancel: job 17 has ended already (failed, exit status 3)\n");
  EXPECT_EQ(run({"cancel", "--user", "eva"}).exit_status, 0) << "it was not named";
  answer("GET /v1/jobs/17", job("running"));
  const auto held = run({"hold", "17"});
  EXPECT_EQ(held.exit_status, 1);
  EXPECT_EQ(held.err, "gpumux hold: job 17 is running: only a job that waits can be held\n");
  EXPECT_EQ(run({"release", "17"}).out, "job 17 is not held\n");
  answer("GET /v1/jobs/17", job("held"));
  EXPECT_EQ(run({"hold", "17"}).out, "job 17 is held already\n");
  answer("GET /v1/jobs/17", job("ending"));
  const auto again = run({"cancel", "17"});
  EXPECT_EQ(again.exit_status, 0) << "it has what it asked for";
  EXPECT_EQ(again.out, "job 17 is ending already\n");
}

TEST_F(JobCommandTest, ManyElementsAreToldInOneLine) {
  std::vector<json> elements;
  json changes = json::array();
  for (int i = 0; i < 200; ++i) {
    json element = i < 2 ? job("running") : done("cancelled", 0);
    element["id"] = 51 + i;
    element["array"] = 51;
    element["array_index"] = i;
    element["array_limit"] = 2;
    elements.push_back(element);
    changes.push_back({{"id", 51 + i}, {"changed", true}});
  }
  elements[0]["state"] = elements[1]["state"] = "ending";
  answer("GET /v1/jobs/51", elements[0]);
  answer("GET /v1/jobs?state=all&array=51", json{{"jobs", elements}, {"more", false}});
  answer("PATCH /v1/jobs/51", json{{"jobs", changes}});
  serve();
  const auto outcome = run({"cancel", "51"});
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "array 51_[0-199%2]: 2 told to end, 198 cancelled\n");
  EXPECT_EQ(asked("GET", "/v1/jobs").size(), 2u) << "not one question for each";
  for (json& change : changes) change["changed"] = false;
  elements[0]["state"] = elements[1]["state"] = "running";
  answer("GET /v1/jobs?state=all&array=51", json{{"jobs", {elements[0], elements[1]}}, {"more", false}});
  answer("PATCH /v1/jobs/51", json{{"jobs", {changes[0], changes[1]}}});
  const auto held = run({"hold", "51"});
  EXPECT_EQ(held.exit_status, 1);
  EXPECT_EQ(held.err, "gpumux hold: array 51_[0-1%2]: 2 running (only a job that waits can be held)\n");
}

TEST_F(JobCommandTest, AllIsOnesOwnAndEverybodyIsEverybody) {
  answer("PATCH /v1/jobs/", json{{"jobs", json::array()}});
  serve();
  EXPECT_EQ(run({"hold", "--all"}).exit_status, 0);
  EXPECT_EQ(run({"hold", "--everybody"}).exit_status, 0) << "no terminal, no question";
  const auto patches = asked("PATCH", "/v1/jobs/");
  ASSERT_EQ(patches.size(), 2u);
  EXPECT_EQ(patches[0].target, "/v1/jobs/user:" + api_client::url_encoded(own_user_name()));
  EXPECT_EQ(patches[1].target, "/v1/jobs/all");
  for (const char* other : {"--all", "--user=eva", "17"})
    EXPECT_EQ(run({"cancel", "--everybody", other}).exit_status, 2) << other;
}

TEST_F(JobCommandTest, LogsFollowsUntilTheJobIsDone) {
  const std::string log = dir_ + "/17.log";
  json running = job("running");
  running["log"] = log;
  answer("GET /v1/jobs/17", running);
  serve();
  std::ofstream(log) << "first\n";
  std::thread end([&] {
    // Only after it has been asked what has become of the job.
    while (asked("GET", "/v1/jobs/17/wait").empty()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::ofstream(log, std::ios::app) << "last\n";
    json ended = done("ok", 0);
    ended["log"] = log;
    answer("GET /v1/jobs/17", ended);
  });
  const auto outcome = run({"logs", "-f", "17"});
  end.join();
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "first\nlast\n");
  EXPECT_EQ(run({"logs", "-n", "1", "17"}).out, "last\n");
  json queued = job("queued");
  queued["log"] = log;
  answer("GET /v1/jobs/17", queued);
  const auto early = run({"logs", "17"});
  EXPECT_EQ(early.exit_status, 1);
  EXPECT_EQ(early.out, "") << "what is there is another job's";
  answer("GET /v1/jobs/17", running);
  ::unlink(log.c_str());
  EXPECT_EQ(run({"logs", "17"}).exit_status, 1);
  answer("GET /v1/jobs/17", json{{"id", 17}, {"user", "bob"}, {"state", "running"}});
  EXPECT_EQ(run({"logs", "17"}).exit_status, 4) << "another user's";
}

TEST_F(JobCommandTest, AnArraysIdIsAllItsElements) {
  std::vector<json> elements;
  for (int i = 0; i < 5; ++i) {
    json element = job("running");
    element["id"] = 17 + i;
    element["array"] = 17;
    element["array_index"] = 2 * i;
    element["log"] = dir_ + "/" + std::to_string(i);
    elements.push_back(element);
    answer("GET /v1/jobs/" + std::to_string(17 + i), element);
  }
  answer("GET /v1/jobs/17_8", elements[4]);
  answer("GET /v1/jobs?state=all&array=17", json{{"jobs", elements}, {"more", false}});
  serve();
  std::ofstream(dir_ + "/0") << "the first's\n";
  std::ofstream(dir_ + "/4") << "the last's\n";
  const auto whole = run({"logs", "17"});
  EXPECT_EQ(whole.exit_status, 1);
  EXPECT_EQ(whole.out, "") << "the first's is not the array's";
  EXPECT_NE(whole.err.find("name one of 17_0, 17_2, 17_4 ... 17_8"), std::string::npos) << whole.err;
  EXPECT_EQ(run({"logs", "17_8"}).out, "the last's\n");
  const auto shown = run({"show", "17"});
  for (const char* label : {"(17_0)", "(17_2)", "(17_4)", "(17_6)", "(17_8)"})
    EXPECT_NE(shown.out.find(label), std::string::npos) << shown.out;
  EXPECT_EQ(run({"show", "17_8"}).out.find("(17_0)"), std::string::npos);

  answer("GET /v1/jobs?state=all&array=17", json{{"jobs", {elements[0]}}, {"more", false}});
  EXPECT_EQ(run({"logs", "17"}).out, "the first's\n") << "an array of one";
}

TEST_F(JobCommandTest, AHistoryHasSoManyLinesWhateverArraysThereAre) {
  std::vector<json> elements;
  for (int i = 0; i < 30; ++i) {
    json element = done("ok", 0);
    element["id"] = 51 + i;
    element["array"] = 51;
    element["array_index"] = i;
    elements.push_back(element);
  }
  json single = done("ok", 0);
  json page = elements;
  page.erase(29);
  page.push_back(single);
  answer("GET /v1/jobs?state=done&order=ended", json{{"jobs", page}, {"more", true}});
  answer("GET /v1/jobs?state=done&order=ended&limit=1000&beyond", json{{"jobs", {elements[29]}}, {"more", true}});
  answer("GET /v1/jobs?state=done&array=51", json{{"jobs", elements}, {"more", false}});
  serve();
  const auto outcome = run({"history", "--limit", "2"});
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("51_[0-29]"), std::string::npos) << "with elements beyond the page\n" << outcome.out;
  EXPECT_NE(outcome.out.find("30 done"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("\n17 "), std::string::npos) << outcome.out;
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 3);
  const auto apart = run({"history", "--limit", "2", "--elements"});
  EXPECT_NE(apart.out.find("\n51_0 "), std::string::npos) << apart.out;
}

TEST_F(JobCommandTest, PagesAreReadToTheEnd) {
  json first = job("running");
  json second = job("queued");
  second["id"] = 18;
  answer("GET /v1/jobs?state=unfinished", json{{"jobs", {first}}, {"more", true}});
  answer("GET /v1/jobs?state=unfinished&limit=1000&beyond=17", json{{"jobs", {second}}, {"more", false}});
  serve();
  EXPECT_EQ(run({"queue", "--format", "id,state"}).out, "17\trunning\n18\tqueued\n");
  const json all = json::parse(run({"queue", "--json"}).out);
  EXPECT_EQ(all["jobs"].size(), 2u);
  EXPECT_EQ(all["more"], false);
}

TEST_F(JobCommandTest, TheOldNamesPrintTheOldLines) {
  json queued = job("queued");
  queued["id"] = 18;
  queued["gpu_ids"] = {1, 2};
  queued["gpus"] = json::array();
  queued["arguments"] = json::array();
  queued["memory_bytes"] = 8000ull << 20;
  queued["why"] = "other jobs go first";
  json whole = job("running");
  whole["arguments"] = {"python", "train.py"};
  answer("POST /v1/jobs", 201, R"({"id": 17, "count": 1})");
  json in_its_order = queued;
  in_its_order["gpu_ids"] = {2, 1};
  answer("GET /v1/jobs/18", in_its_order);
  answer("GET /v1/jobs?", json{{"jobs", {queued, job("running")}}, {"more", false}});
  answer("GET /v1/jobs/17", whole);
  answer("PATCH /v1/jobs/17", 200, R"({"jobs": [{"id": 17, "changed": true}]})");
  serve();
  const std::string bin = std::filesystem::path(GPUMUX).parent_path();
  const auto srun =
      run({"--gpu-ids", "1,2", "--mem", "8000", "--time-limit", "600", "--priority", "10", "--env-setup-cmd",
           "source venv/bin/activate", "--background", "--", "torchrun", "--nproc_per_node=2", "train.py"},
          (bin + "/mgpu_srun").c_str());
  EXPECT_EQ(srun.exit_status, 0) << srun.err;
  EXPECT_EQ(srun.out, "Job submitted. ID: 17 (priority=10)\n");
  const json body = json::parse(asked("POST", "/v1/jobs").at(0).body);
  EXPECT_EQ(body["memory_bytes"], 8000ull << 20);
  EXPECT_EQ(body["time_limit_ns"], 600'000'000'000);
  EXPECT_EQ(body["arguments"], (json{"torchrun", "--nproc_per_node=2", "train.py"}));
  EXPECT_EQ(body["setup_command"], "source venv/bin/activate");
  EXPECT_NE(body["directory"], std::filesystem::current_path().string()) << "the home directory";
  EXPECT_EQ(run({"--", "x"}, (bin + "/mgpu_srun").c_str()).exit_status, 2);
  EXPECT_EQ(run({}, (bin + "/mgpu_queue").c_str()).out,
            "--- Running Jobs ---\n"
            "ID: 17 | User: eva | GPUs: 0 | Mem: all | CMD: python train.py | Status: running\n"
            "--- Queue ---\n"
            "ID: 18 | User: eva | GPUs: 2,1 | Mem: 8000 MB | CMD: x | Status: queued (other jobs go first)\n");
  EXPECT_EQ(run({"17"}, (bin + "/mgpu_cancel").c_str()).out, "Job cancelled.\n");
  const auto failed = run({"99"}, (bin + "/mgpu_cancel").c_str());
  EXPECT_EQ(failed.out, "Cancel failed.\n");
  EXPECT_EQ(failed.exit_status, 1);
}

TEST_F(JobCommandTest, TheOldServerBecomesTheDaemon) {
  const std::string daemon = dir_ + "/daemon";
  std::ofstream(daemon) << "#!/bin/sh\necho \"$@\"\nexit 5\n";
  ::chmod(daemon.c_str(), 0700);
  environment_.push_back("GPUMUX_DAEMON=" + daemon);
  const std::string server = std::filesystem::path(GPUMUX).parent_path().string() + "/mgpu_scheduler_server";
  const auto outcome = run({"--max-job-time", "3600"}, server.c_str());
  EXPECT_EQ(outcome.out, "--max-job-time 3600\n");
  EXPECT_EQ(outcome.exit_status, 5);
  EXPECT_EQ(run({}, server.c_str()).out, "\n");
  EXPECT_EQ(run({"--max-job-time", "x"}, server.c_str()).exit_status, 2);
}

}  // namespace
}  // namespace gpumux::cli
