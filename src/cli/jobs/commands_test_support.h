// SPDX-License-Identifier: Apache-2.0
// For the tests of the commands about jobs: the real executable, and a scripted daemon behind it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "api_client/scripted_server.h"
#include "tests/unit/temporary_directory.h"
#include "tests/unit/unfolded.h"

namespace gpumux::cli {

using api_client::ScriptedRequest;
using api_client::ScriptedServer;
using nlohmann::json;

struct Outcome {
  int exit_status = -1;
  int signal = 0;
  std::string out;
  std::string err;
};

class JobCommandTest : public ::testing::Test {
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
    outcome.err = unfolded(read_file(err));
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

}  // namespace gpumux::cli
