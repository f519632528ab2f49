// SPDX-License-Identifier: Apache-2.0
// Goal: the commands about jobs, as a user or a script meets them: what is sent, what is printed, the exit status.
// Method: the real executable; a scripted daemon behind it, and, for interactive jobs, a scripted runner, with the
// command on a pty of its own.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "api_client/scripted_server.h"
#include "jobs/commands/job_calls.h"
#include "os/file_descriptor.h"
#include "os/unix_socket.h"
#include "tests/unit/temporary_directory.h"
#include "wire/attach_messages.h"
#include "wire/runner_messages.h"

namespace gpumux::cli {
namespace {

using api_client::ScriptedRequest;
using api_client::ScriptedServer;
using nlohmann::json;

constexpr int kPatienceMs = 30'000;

struct Outcome {
  int exit_status = -1;
  int signal = 0;
  std::string out;
  std::string err;
};

class JobCommandTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* variable : {"PATH=/usr/bin:/bin", "TERM=xterm", "LC_ALL=C.UTF-8"})
      environment_.push_back(variable);
    environment_.push_back("GPUMUX_RUNTIME_DIR=" + dir_);
    environment_.push_back("ODD=\xff");
    answer("POST /v1/hold", 200, "{}");
  }

  void answer(const std::string& what, int status, const std::string& body) {
    const std::lock_guard lock(mutex_);
    answers_[what] = ScriptedServer::response(status, body);
  }
  void answer(const std::string& what, const json& body) { answer(what, 200, body.dump()); }

  // One whose beginning fits the request; else 404.
  void serve() {
    server_.emplace(dir_ + "/api.sock", [this](const ScriptedRequest& request, int connection) {
      std::string text =
          ScriptedServer::response(404, R"({"error": {"code": "not_found", "message": "there is no such job"}})");
      {
        const std::lock_guard lock(mutex_);
        std::size_t longest = 0;
        for (const auto& [what, response] : answers_) {
          if ((request.method + " " + request.target).starts_with(what) && what.size() >= longest) {
            longest = what.size();
            text = response;
          }
        }
      }
      ScriptedServer::send_all(connection, text);
    });
  }

  std::vector<ScriptedRequest> asked(const std::string& method, const std::string& begin) const {
    std::vector<ScriptedRequest> found;
    for (const ScriptedRequest& request : server_->requests()) {
      if (request.method == method && request.target.starts_with(begin)) found.push_back(request);
    }
    return found;
  }

  [[noreturn]] void become(const char* program, const std::vector<std::string>& arguments) {
    std::vector<std::string> words{program};
    words.insert(words.end(), arguments.begin(), arguments.end());
    const auto pointers = [](std::vector<std::string>& list) {
      std::vector<char*> result;
      for (std::string& word : list) result.push_back(word.data());
      result.push_back(nullptr);
      return result;
    };
    auto argv = pointers(words);
    auto envp = pointers(environment_);
    ::execve(program, argv.data(), envp.data());
    ::_exit(99);
  }

  Outcome run(const std::vector<std::string>& arguments, const char* program = GPUMUX) {
    const std::string out = dir_ + "/out";
    const std::string err = dir_ + "/err";
    const pid_t child = ::fork();
    if (child == 0) {
      ::dup2(::open("/dev/null", O_RDONLY), 0);
      ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
      ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
      become(program, arguments);
    }
    Outcome outcome = finish(child);
    outcome.out = read_file(out);
    outcome.err = read_file(err);
    return outcome;
  }

  static Outcome finish(pid_t child) {
    int status = 0;
    ::waitpid(child, &status, 0);
    Outcome outcome;
    if (WIFEXITED(status)) outcome.exit_status = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
    return outcome;
  }
  static std::string read_file(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  static json job(const char* state) {
    return {{"id", 17},
            {"name", "x"},
            {"user", "eva"},
            {"state", state},
            {"interactive", true},
            {"attempt", 1},
            {"arguments", {"x"}},
            {"gpus", {0}},
            {"gpus_wanted", 1},
            {"started_unix_ns", state == std::string("queued") ? 0 : 2},
            {"submitted_unix_ns", 1}};
  }
  static json done(const char* outcome, int exit_status) {
    json result = job("done");
    result["outcome"] = outcome;
    result["exit_status"] = exit_status;
    return result;
  }

  const TemporaryDirectory folder_;
  const std::string& dir_ = folder_.path();
  std::vector<std::string> environment_;
  std::optional<ScriptedServer> server_;
  std::mutex mutex_;
  std::map<std::string, std::string> answers_;
};

TEST_F(JobCommandTest, SubmitSendsEverythingAndPrintsTheId) {
  answer("POST /v1/jobs", 201, R"({"id": 17, "count": 1})");
  serve();
  const auto outcome = run({"submit", "--gpu-ids", "1,0", "--mem", "20G", "--after", "ok:5", "--after", "any:6",
                            "--name", "n", "--", "sh", "-c", "a \xff", ""});
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "Submitted job 17\n");
  EXPECT_EQ(outcome.err, "");
  const auto requests = asked("POST", "/v1/jobs");
  ASSERT_EQ(requests.size(), 1u);
  const json body = json::parse(requests[0].body);
  EXPECT_EQ(body["arguments"], (json{"sh", "-c", {{"base64", "YSD/"}}, ""}));
  EXPECT_EQ(body["gpu_ids"], (json{1, 0}));
  EXPECT_EQ(body["memory_bytes"], 20ull << 30);
  EXPECT_EQ(body["after"].size(), 2u);
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
  EXPECT_EQ(outcome.out, "Submitted array 17 (10 jobs: 17 to 26)\n");
}

TEST_F(JobCommandTest, WrongUsageAsksNobody) {
  serve();
  for (const std::vector<std::string>& words : {std::vector<std::string>{"submit"},
                                                {"submit", "--"},
                                                {"submit", "--mem", "x", "sh"},
                                                {"submit", "--gpus", "1", "--gpu-ids", "0", "sh"},
                                                {"submit", "--after", "17", "sh"},
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
    EXPECT_NE(outcome.err.find("job 17 is bob's: how it ended is not for you to see"), std::string::npos)
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
  queued["why"] = "others go first";
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
            "ID: 18 | User: eva | GPUs: 2,1 | Mem: 8000 MB | CMD: x | Status: queued (others go first)\n");
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

// A command on a terminal of its own, and the runner of its job.
class InteractiveTest : public JobCommandTest {
 protected:
  void SetUp() override {
    JobCommandTest::SetUp();
    listener_ = os::listen_seqpacket(dir_ + "/attach.sock", 0600, 4).value();
  }

  void start(const std::vector<std::string>& arguments) {
    int terminal = -1;
    const winsize size{30, 90, 0, 0};
    child_ = ::forkpty(&terminal, nullptr, nullptr, &size);
    if (child_ == 0) become(GPUMUX, arguments);
    terminal_ = os::FileDescriptor(terminal);
  }
  // Reads what the terminal shows until it has shown `text`.
  // False: it cannot come any more, or `instead` has come.
  bool see(const std::string& text, const std::string& instead = "") {
    while (shown_.find(text) == std::string::npos) {
      if (!instead.empty() && shown_.find(instead) != std::string::npos) return false;
      pollfd item{terminal_.get(), POLLIN, 0};
      char buffer[1024];
      if (::poll(&item, 1, kPatienceMs) <= 0) return false;
      const ssize_t got = ::read(terminal_.get(), buffer, sizeof buffer);
      if (got <= 0) return false;
      shown_.append(buffer, static_cast<std::size_t>(got));
    }
    return true;
  }
  void type(std::string_view keys) {
    ASSERT_EQ(::write(terminal_.get(), keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  void accept() {
    pollfd item{listener_.get(), POLLIN, 0};
    ASSERT_GT(::poll(&item, 1, kPatienceMs), 0) << shown_;
    socket_ = os::FileDescriptor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    ASSERT_TRUE(std::holds_alternative<wire::AttachHello>(hear()));
    send(wire::AttachWelcome{});
  }
  wire::FromAttached hear() {
    pollfd item{socket_.get(), POLLIN, 0};
    std::array<std::byte, wire::kMaxAttachInputBytes + 64> buffer;
    if (::poll(&item, 1, kPatienceMs) <= 0) return {};
    const auto received = os::receive_message(socket_.get(), buffer);
    if (!received || received->bytes == 0) return {};
    auto message = wire::decode_from_attached(std::span(buffer.data(), received->bytes)).value();
    if (const auto* input = std::get_if<wire::AttachInput>(&message)) typed_ += input->bytes;
    return message;
  }
  template <class Message>
  void send(const Message& message) {
    ASSERT_TRUE(os::send_message(socket_.get(), wire::encode(message).bytes()));
  }
  void print(std::string_view bytes) {
    const wire::Header header = wire::attach_header(wire::AttachType::kOutput, bytes.size());
    std::string message(reinterpret_cast<const char*>(&header), sizeof header);
    message += bytes;
    ASSERT_TRUE(os::send_message(socket_.get(), std::as_bytes(std::span(message))));
  }
  void end(std::uint32_t code) { send(wire::AttachEnded{static_cast<std::uint32_t>(wire::EndHow::kExited), code}); }
  json running() {
    json result = job("running");
    result["attach"] = dir_ + "/attach.sock";
    return result;
  }

  os::FileDescriptor listener_;
  os::FileDescriptor socket_;
  os::FileDescriptor terminal_;
  pid_t child_ = -1;
  std::string shown_;
  std::string typed_;
};

TEST_F(InteractiveTest, FromTheQueueToTheExitStatus) {
  json queued = job("queued");
  queued["place"] = 3;
  queued["why"] = "others go first";
  queued["gpus"] = json::array();
  answer("POST /v1/jobs", 201, R"({"id": 17, "count": 1})");
  answer("GET /v1/jobs/17/wait", queued);
  serve();
  start({"submit", "--interactive", "--", "sh"});
  ASSERT_TRUE(see("job 17 waits: place 3; others go first")) << shown_;
  answer("GET /v1/jobs/17/wait", running());
  accept();
  print("hello");
  ASSERT_TRUE(see("hello")) << shown_;
  type("exit 3\r");
  hear();
  EXPECT_EQ(typed_, "exit 3\r");
  answer("GET /v1/jobs/17/wait", done("failed", 3));
  end(3);
  EXPECT_EQ(finish(child_).exit_status, 3) << shown_;
  const json body = json::parse(asked("POST", "/v1/jobs").at(0).body);
  EXPECT_EQ(body["interactive"], true);
  EXPECT_EQ(body["window"], (json{{"rows", 30}, {"columns", 90}}));
}

TEST_F(InteractiveTest, SubmitNamesTheLogOfAnArraysElement) {
  json first = job("running");
  first["array"] = 17;
  first["array_index"] = 5;
  first["log"] = "/logs/5.log";
  answer("POST /v1/jobs", 201, R"({"id": 17, "count": 2})");
  answer("GET /v1/jobs/17", first);
  serve();
  start({"submit", "--array", "5-6", "--", "sh"});
  EXPECT_TRUE(see("Output of 17_5: /logs/5.log  (gpumux logs -f 17_5)")) << shown_;
  EXPECT_EQ(finish(child_).exit_status, 0);
}

TEST_F(InteractiveTest, EverybodysJobsAreChangedAfterAYes) {
  answer("PATCH /v1/jobs/all", json{{"jobs", json::array()}});
  serve();
  start({"cancel", "--everybody"});
  ASSERT_TRUE(see("[y/N]")) << shown_;
  type("n\r");
  EXPECT_EQ(finish(child_).exit_status, 1);
  EXPECT_TRUE(asked("PATCH", "").empty());
  shown_.clear();
  start({"cancel", "--everybody"});
  ASSERT_TRUE(see("[y/N]")) << shown_;
  type("y\r");
  EXPECT_EQ(finish(child_).exit_status, 0);
  EXPECT_EQ(asked("PATCH", "/v1/jobs/all").size(), 1u);
}

TEST_F(InteractiveTest, WhoWaitsIsToldWhy) {
  json queued = job("queued");
  queued["place"] = 3;
  queued["why"] = "others go first";
  answer("POST /v1/jobs", 201, R"({"id": 17, "count": 1})");
  answer("GET /v1/jobs/17", queued);
  serve();
  for (const std::vector<std::string>& words : {std::vector<std::string>{"wait", "17"}, {"submit", "--wait", "sh"}}) {
    shown_.clear();
    answer("GET /v1/jobs/17/wait", queued);
    start(words);
    ASSERT_TRUE(see("job 17 waits: place 3; others go first")) << shown_;
    answer("GET /v1/jobs/17/wait", job("running"));
    ASSERT_TRUE(see("job 17 is running")) << shown_;
    answer("GET /v1/jobs/17/wait", done("failed", 3));
    EXPECT_EQ(finish(child_).exit_status, 3);
  }
  EXPECT_EQ(run({"wait", "17"}).err, "") << "no terminal, nobody who looks on";
}

TEST_F(InteractiveTest, CtrlCLeavesAndSaysHowToComeBack) {
  answer("GET /v1/jobs/17/wait", running());
  serve();
  start({"attach", "17"});
  accept();
  type("\x03");
  ASSERT_TRUE(see(std::string("`") + GPUMUX + " attach 17`")) << "it is not in PATH: " << shown_;
  EXPECT_EQ(finish(child_).exit_status, 130);
  EXPECT_TRUE(asked("PATCH", "").empty());
  shown_.clear();
  environment_.push_back("PATH=" + std::filesystem::path(GPUMUX).parent_path().string());
  std::erase(environment_, "PATH=/usr/bin:/bin");
  start({"attach", "17"});
  accept();
  type("\x03");
  ASSERT_TRUE(see("`gpumux attach 17`")) << shown_;
  EXPECT_EQ(finish(child_).exit_status, 130);
}

TEST_F(InteractiveTest, CtrlCTwiceCancels) {
  answer("GET /v1/jobs/17/wait", running());
  answer("PATCH /v1/jobs/17", 200, R"({"jobs": [{"id": 17, "changed": true}]})");
  serve();
  start({"attach", "17"});
  accept();
  type("\x03\x03");
  ASSERT_TRUE(see("is being cancelled")) << shown_;
  EXPECT_EQ(asked("PATCH", "/v1/jobs/17").at(0).body, R"({"cancel":true})");
  answer("GET /v1/jobs/17/wait", done("cancelled", 143));
  end(143);
  EXPECT_EQ(finish(child_).exit_status, 143);
}

TEST_F(InteractiveTest, CtrlCTwiceCancelsWhatStillWaits) {
  answer("GET /v1/jobs/17/wait", job("queued"));
  answer("PATCH /v1/jobs/17", 200, R"({"jobs": [{"id": 17, "changed": true}]})");
  serve();
  // A press is a signal, and two that come at once are one: so the second waits for the first's answer. On a machine
  // that is so busy that this takes a second, the command has left instead, and is asked again.
  bool cancelled = false;
  for (int attempt = 0; attempt < 5 && !cancelled; ++attempt) {
    shown_.clear();
    start({"attach", "17"});
    ASSERT_TRUE(see("job 17 waits")) << shown_;
    type("\x03");
    ASSERT_TRUE(see("once more within a second")) << shown_;
    type("\x03");
    cancelled = see("is being cancelled", "[left job 17");
    if (!cancelled) finish(child_);
  }
  ASSERT_TRUE(cancelled) << shown_;
  json ended = job("done");
  ended["outcome"] = "cancelled";
  answer("GET /v1/jobs/17/wait", ended);
  EXPECT_EQ(finish(child_).exit_status, 1) << "it never had one of its own";
}

TEST_F(InteractiveTest, TheDaemonMayGoMeanwhile) {
  answer("GET /v1/jobs/17/wait", running());
  serve();
  start({"attach", "17"});
  accept();
  print("before");
  ASSERT_TRUE(see("before"));
  server_.reset();
  print("after");
  ASSERT_TRUE(see("after")) << "the runner does not need it";
  end(6);
  EXPECT_EQ(finish(child_).exit_status, 6) << shown_;
}

TEST_F(InteractiveTest, ARunnerThatDoesNotKnowTheEndLeavesItToTheDaemon) {
  answer("GET /v1/jobs/17/wait", running());
  serve();
  start({"attach", "17"});
  accept();
  json lost = job("done");
  lost["outcome"] = "lost";
  answer("GET /v1/jobs/17/wait", lost);
  send(wire::AttachEnded{0, 0});
  EXPECT_EQ(finish(child_).exit_status, 1);
}

TEST_F(InteractiveTest, ASignalEndsItWithTheTerminalAsItWas) {
  answer("GET /v1/jobs/17/wait", running());
  serve();
  start({"attach", "17"});
  termios before{};
  ASSERT_EQ(::tcgetattr(terminal_.get(), &before), 0);
  accept();
  print("x");
  ASSERT_TRUE(see("x"));
  ::kill(child_, SIGTERM);
  EXPECT_TRUE(see("left job 17"));
  EXPECT_EQ(finish(child_).signal, SIGTERM);
  termios after{};
  ASSERT_EQ(::tcgetattr(terminal_.get(), &after), 0);
  EXPECT_EQ(after.c_lflag & (ICANON | ECHO | ISIG), tcflag_t{ICANON | ECHO | ISIG});
}

TEST_F(InteractiveTest, WhatHasNoTerminalOrIsAnothersSaysSo) {
  json plain = running();
  plain["interactive"] = false;
  answer("GET /v1/jobs/17/wait", plain);
  answer("GET /v1/jobs/18/wait", json{{"id", 18}, {"user", "bob"}, {"state", "running"}});
  serve();
  const auto without = run({"attach", "17"});
  EXPECT_EQ(without.exit_status, 1);
  EXPECT_NE(without.err.find("gpumux logs -f 17"), std::string::npos);
  EXPECT_EQ(run({"attach", "18"}).exit_status, 4);
  EXPECT_EQ(run({"attach", "19"}).exit_status, 1);
}

}  // namespace
}  // namespace gpumux::cli
