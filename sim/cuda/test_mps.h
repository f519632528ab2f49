// SPDX-License-Identifier: Apache-2.0
// For tests of MPS: directories of a control daemon, and the program that starts it and sends it commands.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "sim/cuda/test_machine.h"

extern char** environ;

namespace gpumux::sim {

// Also before its parent has waited for it.
inline bool has_ended(pid_t pid) {
  std::string number, name, state;
  std::ifstream("/proc/" + std::to_string(pid) + "/stat") >> number >> name >> state;
  return state.empty() || state == "Z";
}

// While it lives, this process and the processes that it starts look for MPS in its directories.
class MpsControl {
 public:
  MpsControl() {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
    ::setenv("CUDA_MPS_PIPE_DIRECTORY", pipe_directory().c_str(), 1);
    ::setenv("CUDA_MPS_LOG_DIRECTORY", (directory_ + "/log").c_str(), 1);
  }
  ~MpsControl() {
    if (const pid_t left = pid(); left > 0) ::kill(left, SIGKILL);
    ::unsetenv("CUDA_MPS_PIPE_DIRECTORY");
    ::unsetenv("CUDA_MPS_LOG_DIRECTORY");
    std::filesystem::remove_all(directory_);
  }
  MpsControl(const MpsControl&) = delete;
  MpsControl& operator=(const MpsControl&) = delete;

  struct Answer {
    int code = 0;
    std::string text;  // standard output and standard error
  };
  // The program with an option, if any; `commands` is its standard input.
  Answer run(const char* option, const std::string& commands = "") {
    int to[2];
    int from[2];
    EXPECT_EQ(::pipe2(to, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(from, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, to[0], 0);
    ::posix_spawn_file_actions_adddup2(&actions, from[1], 1);
    ::posix_spawn_file_actions_adddup2(&actions, from[1], 2);
    const char* arguments[] = {GPUMUX_MPS_CONTROL, option, nullptr};
    pid_t child = -1;
    const int failed = ::posix_spawn(&child, arguments[0], &actions, nullptr, const_cast<char**>(arguments), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    EXPECT_EQ(failed, 0) << std::strerror(failed);
    ::close(to[0]);
    ::close(from[1]);
    EXPECT_EQ(::write(to[1], commands.data(), commands.size()), static_cast<ssize_t>(commands.size()));
    ::close(to[1]);
    Answer answer;
    char buffer[256];
    ssize_t got = 0;
    while ((got = ::read(from[0], buffer, sizeof buffer)) > 0)
      answer.text.append(buffer, static_cast<std::size_t>(got));
    ::close(from[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    answer.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return answer;
  }
  // Starts the control daemon.
  void start() {
    const Answer started = run("-d");
    ASSERT_EQ(started.code, 0) << started.text;
    ASSERT_GT(pid(), 0);
  }
  // The output of a command, without the end of its last line.
  std::string ask(const std::string& command) {
    Answer answer = run(nullptr, command + "\n");
    EXPECT_EQ(answer.code, 0) << answer.text;
    if (!answer.text.empty() && answer.text.back() == '\n') answer.text.pop_back();
    return answer.text;
  }
  std::string server() { return ask("get_server_list"); }

  std::string pipe_directory() const { return directory_ + "/pipe"; }
  // 0: there is none.
  pid_t pid() const {
    pid_t found = 0;
    std::ifstream(pipe_directory() + "/nvidia-cuda-mps-control.pid") >> found;
    return found;
  }
  std::string log() const {
    std::ostringstream text;
    text << std::ifstream(directory_ + "/log/control.log").rdbuf();
    return text.str();
  }

 private:
  const std::string directory_ = "/dev/shm/gpumux-sim-mps-" + std::to_string(::getpid());
};

}  // namespace gpumux::sim
