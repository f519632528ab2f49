// SPDX-License-Identifier: Apache-2.0
// For tests of several processes: a process that does what the test says (test_process.cc).
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "sim/cuda/machine.h"

extern char** environ;

namespace gpumux::sim {

// A helper process. Its first answer is cuInit's result.
class Helper {
 public:
  explicit Helper(std::vector<std::string> variables = {}) {
    int to[2];
    int from[2];
    EXPECT_EQ(::pipe2(to, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(from, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, to[0], 0);
    ::posix_spawn_file_actions_adddup2(&actions, from[1], 1);
    std::vector<char*> environment;
    for (std::string& variable : variables) environment.push_back(variable.data());
    for (char** each = environ; *each != nullptr; ++each) {
      const std::string_view name(*each, std::strcspn(*each, "=") + 1);
      const auto is_given = [name](const std::string& variable) { return variable.starts_with(name); };
      if (std::none_of(variables.begin(), variables.end(), is_given)) environment.push_back(*each);
    }
    environment.push_back(nullptr);
    char path[] = GPUMUX_TEST_PROCESS;
    char* arguments[] = {path, nullptr};
    const int failed = ::posix_spawn(&pid_, path, &actions, nullptr, arguments, environment.data());
    EXPECT_EQ(failed, 0) << std::strerror(failed);
    if (failed != 0) pid_ = -1;
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(to[0]);
    ::close(from[1]);
    input_ = to[1];
    output_ = from[0];
    initialised_ = answer();
  }
  ~Helper() {
    if (input_ >= 0) ::close(input_);
    ::close(output_);
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;

  void tell(const std::string& line) {
    const std::string whole = line + "\n";
    EXPECT_EQ(::write(output_ < 0 ? -1 : input_, whole.data(), whole.size()), static_cast<ssize_t>(whole.size()));
  }
  // The next line that it answers; empty if none comes in 20 s.
  std::string answer() {
    std::string line;
    for (;;) {
      pollfd ready{output_, POLLIN, 0};
      if (::poll(&ready, 1, 20'000) <= 0) return "";
      char c = 0;
      if (::read(output_, &c, 1) != 1) return "";
      if (c == '\n') return line;
      line += c;
    }
  }
  std::string ask(const std::string& line) {
    tell(line);
    return answer();
  }
  // Expects success; returns the rest of the answer.
  std::string get(const std::string& line) {
    const std::string whole = ask(line);
    EXPECT_EQ(whole.substr(0, whole.find(' ')), "0") << line;
    const std::size_t space = whole.find(' ');
    return space == std::string::npos ? "" : whole.substr(space + 1);
  }
  std::uint64_t number(const std::string& line) { return std::strtoull(get(line).c_str(), nullptr, 10); }

  // A signal to process -1 would go to every process.
  void signal(int number) {
    ASSERT_GT(pid_, 0);
    ::kill(pid_, number);
  }
  void kill_and_wait() {
    ASSERT_GT(pid_, 0);
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  void end_and_wait() {
    ASSERT_GT(pid_, 0);
    ::close(input_);
    input_ = -1;
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  const std::string& initialised() const { return initialised_; }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
  std::string initialised_;
};

// Each round kills one of `count` helpers at work, at a random instant, and stops some of them before. This process's
// own `work` must go on, whatever the helpers held. GPUMUX_TEST_KILLS overrides `rounds`.
inline void kill_at_random(std::mt19937& random, int rounds, std::size_t count,
                           std::vector<std::unique_ptr<Helper>>& helpers,
                           const std::function<std::unique_ptr<Helper>()>& make,
                           const std::function<void(std::uint64_t nanoseconds)>& work) {
  if (const char* text = std::getenv("GPUMUX_TEST_KILLS")) rounds = std::atoi(text);
  for (int round = 0; round < rounds; ++round) {
    while (helpers.size() < count) {
      helpers.push_back(make());
      ASSERT_EQ(helpers.back()->initialised(), "0");
      helpers.back()->tell("context 0");
      helpers.back()->tell("churn");
    }
    Helper& victim = *helpers[random() % helpers.size()];
    work(random() % 1'000'000);
    if (random() % 4 == 0) victim.signal(SIGSTOP);
    if (random() % 2 == 0) {
      const base::TimePoint start = now();
      work(100'000);
      ASSERT_LT((now() - start).count(), 5'000'000'000) << "wedged in round " << round;
    }
    victim.kill_and_wait();
    std::erase_if(helpers, [](const auto& helper) { return helper->pid() < 0; });
  }
}

}  // namespace gpumux::sim
