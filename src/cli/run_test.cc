// SPDX-License-Identifier: Apache-2.0
// Goal: `gpumux run` becomes exactly the program that was named, under one daemon, whatever goes wrong on the way.
// Method: the real executable, with a fake gpumuxd, an empty libgpumux.so and a program that prints what it was given.
// Its output comes through a pipe, so a daemon that kept our stdout open would make every one of these tests hang.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "api_client/scripted_server.h"
#include "os/file_descriptor.h"
#include "tests/unit/temporary_directory.h"
#include "tests/unit/unfolded.h"

namespace gpumux::cli {
namespace {

struct Outcome {
  int exit_status = -1;
  int signal = 0;
  pid_t pid = 0;
  std::string out;
  std::string err;
  std::vector<std::string> arguments;            // ARG lines, decoded
  std::map<std::string, std::string> variables;  // NAME=value lines
};

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class RunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    set("GPUMUX_RUNTIME_DIR", dir_ + "/run");
    set("GPUMUX_LIBRARY", FAKE_LIBRARY);
    set("GPUMUX_DAEMON", FAKE_DAEMON);
    set("FAKE_DIR", dir_);
    set("FAKE_BEHAVIOUR", "serve");
    set("PATH", "/usr/bin:/bin");
    // A sanitized gpumux that is itself started with a library preloaded does not object to it.
    set("ASAN_OPTIONS", "verify_asan_link_order=0");
  }

  void TearDown() override {
    std::ofstream(dir_ + "/stop") << "stop";
    for (const std::string& line : started()) {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      const pid_t pid = std::atoi(line.c_str());
      while (::kill(pid, 0) == 0 && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        if (read_file("/proc/" + std::to_string(pid) + "/stat").find(" Z ") != std::string::npos) break;
      }
    }
  }

  void set(const std::string& name, const std::string& value) { environment_[name] = value; }

  // Starts gpumux with these arguments; its output goes to files' pipes.
  pid_t start(const std::vector<std::string>& arguments, int out, int err) {
    std::vector<std::string> words{GPUMUX};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    std::vector<std::string> variables;
    for (const auto& [name, value] : environment_) variables.push_back(name + "=" + value);
    std::vector<char*> envp;
    for (std::string& variable : variables) envp.push_back(variable.data());
    envp.push_back(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
      ::dup2(out, 1);
      ::dup2(err, 2);
      // Descriptors that this test was started with must not be counted as gpumux's.
      ::close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
      ::execve(GPUMUX, argv.data(), envp.data());
      ::_exit(99);
    }
    return child;
  }

  Outcome finish(pid_t child, int out, int err) {
    Outcome outcome;
    outcome.pid = child;
    std::thread errors([&] { outcome.err = unfolded(drain(err)); });
    outcome.out = drain(out);
    errors.join();
    int status = 0;
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status)) outcome.exit_status = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("ARG ")) {
        std::string text;
        for (std::size_t i = 4; i + 1 < line.size(); i += 2) {
          text += static_cast<char>(std::stoi(line.substr(i, 2), nullptr, 16));
        }
        outcome.arguments.push_back(text);
      } else if (const std::size_t equals = line.find('='); equals != std::string::npos) {
        outcome.variables[line.substr(0, equals)] = line.substr(equals + 1);
      }
    }
    return outcome;
  }

  struct Pipes {
    os::FileDescriptor out_read, out_write, err_read, err_write;
    Pipes() {
      int ends[2];
      if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
      out_read = os::FileDescriptor(ends[0]);
      out_write = os::FileDescriptor(ends[1]);
      if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
      err_read = os::FileDescriptor(ends[0]);
      err_write = os::FileDescriptor(ends[1]);
    }
  };

  Outcome run(const std::vector<std::string>& arguments) {
    Pipes pipes;
    const pid_t child = start(arguments, pipes.out_write.get(), pipes.err_write.get());
    pipes.out_write.reset();
    pipes.err_write.reset();
    return finish(child, pipes.out_read.get(), pipes.err_read.get());
  }

  std::vector<std::string> started() const {
    std::vector<std::string> lines;
    std::istringstream text(read_file(dir_ + "/started"));
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }

  const TemporaryDirectory folder_;
  const std::string& dir_ = folder_.path();
  std::map<std::string, std::string> environment_;

 private:
  static std::string drain(int fd) {
    std::string text;
    char buffer[4096];
    for (ssize_t got; (got = ::read(fd, buffer, sizeof buffer)) != 0;) {
      if (got < 0) break;
      text.append(buffer, static_cast<std::size_t>(got));
    }
    return text;
  }
};

#ifndef GPUMUX_SANITIZED
// One file, which runs wherever glibc is new enough.
TEST_F(RunTest, TheCommandNeedsOnlyGlibc) {
  set("LD_TRACE_LOADED_OBJECTS", "1");  // the dynamic loader lists what it would load, and starts nothing
  const Outcome outcome = run({});
  ASSERT_EQ(outcome.exit_status, 0) << outcome.err;
  const std::set<std::string> allowed{"linux-vdso.so.1", "libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2",
                                      "ld-linux-aarch64.so.1"};
  std::set<std::string> names;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    std::string library;
    std::istringstream(line) >> library;
    names.insert(library.substr(library.rfind('/') + 1));
  }
  EXPECT_TRUE(names.contains("libc.so.6")) << outcome.out;
  for (const std::string& name : names) EXPECT_TRUE(allowed.contains(name)) << name;
}
#endif

TEST_F(RunTest, BecomesTheProgramWithItsArgumentsByteForByte) {
  const std::vector<std::string> odd{"--help", "--", "", "a b", "-x", "\x01\xff\n", "--name", "$HOME"};
  std::vector<std::string> arguments{"run", "--", PRINT_SELF};
  arguments.insert(arguments.end(), odd.begin(), odd.end());
  const Outcome outcome = run(arguments);
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  std::vector<std::string> expected{PRINT_SELF};
  expected.insert(expected.end(), odd.begin(), odd.end());
  EXPECT_EQ(outcome.arguments, expected);
  EXPECT_EQ(outcome.variables.at("pid"), std::to_string(outcome.pid))
      << "the program is not a child but the process itself";
  EXPECT_EQ(outcome.variables.at("children"), "none");
  EXPECT_EQ(outcome.variables.at("descriptors"), "0");
  EXPECT_EQ(outcome.variables.at("mapped"), "1");
  EXPECT_EQ(outcome.err, "") << "nothing is said when nothing is wrong";
}

TEST_F(RunTest, TheProgramMayFollowWithoutDashes) {
  const Outcome outcome = run({"run", "--name", "nightly", PRINT_SELF, "--name", "x"});
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_EQ(outcome.arguments, (std::vector<std::string>{PRINT_SELF, "--name", "x"}));
  EXPECT_EQ(outcome.variables.at("GPUMUX_NAME"), "nightly");
}

TEST_F(RunTest, ExitStatusAndSignalAreThePrograms) {
  set("PRINT_STATUS", "37");
  EXPECT_EQ(run({"run", "--", PRINT_SELF}).exit_status, 37);
  set("PRINT_STATUS", "kill");
  EXPECT_EQ(run({"run", "--", PRINT_SELF}).signal, SIGKILL);
}

TEST_F(RunTest, AProgramThatCannotBeExecutedStartsNoDaemon) {
  EXPECT_EQ(run({"run", "--", "no-such-program"}).exit_status, 127);
  EXPECT_EQ(run({"run", "--", "/no/such/program"}).exit_status, 127);
  EXPECT_EQ(run({"run", "--", ""}).exit_status, 127);
  EXPECT_EQ(run({"run", "--", "/etc/passwd"}).exit_status, 126);
  EXPECT_EQ(run({"run", "--", "/tmp"}).exit_status, 126);
  EXPECT_TRUE(started().empty());
}

TEST_F(RunTest, WrongUsageIsTwo) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"run"},
                                                    {"run", "--"},
                                                    {"run", "--nmae", "x"},
                                                    {"run", "--gang", "none", "--", "true"},
                                                    {"run", "--no-gang", "--gang", "k", "--", "true"},
                                                    {"run", "--mem", "20", "--", "true"},
                                                    {"run", "--mem", "much", "--", "true"},
                                                    {"run", "--name", std::string(64, 'x'), "--", "true"}}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_status, 2) << arguments.back();
    EXPECT_NE(outcome.err.find("--help"), std::string::npos) << outcome.err;
  }
  EXPECT_TRUE(started().empty());
}

TEST_F(RunTest, TheEnvironmentIsAsDocumented) {
  set("LD_PRELOAD", "");
  const Outcome first = run({"run", "--", PRINT_SELF});
  const Outcome second = run({"run", "--gang", "ring", "--", PRINT_SELF});
  EXPECT_EQ(first.variables.at("LD_PRELOAD"), FAKE_LIBRARY);
  EXPECT_EQ(first.variables.at("GPUMUX_RUNTIME_DIR"), dir_ + "/run");
  EXPECT_EQ(first.variables.count("GPUMUX_GANG"), 0u);
  EXPECT_EQ(second.variables.at("GPUMUX_GANG"), "ring");
  EXPECT_EQ(first.variables.count("GPUMUX_MEM_LIMIT"), 0u);
  EXPECT_EQ(run({"run", "--mem", "20G", PRINT_SELF}).variables.at("GPUMUX_MEM_LIMIT"), "20G");
  EXPECT_EQ(first.variables.at("GPUMUX_RUN_ID").size(), 16u);
  EXPECT_NE(first.variables.at("GPUMUX_RUN_ID"), second.variables.at("GPUMUX_RUN_ID"));
  set("GPUMUX_RUN_ID", "outer");
  const Outcome inner = run({"run", "--no-gang", "--", PRINT_SELF});
  EXPECT_EQ(inner.variables.at("GPUMUX_RUN_ID"), "outer") << "a run inside a run belongs to it";
  EXPECT_EQ(inner.variables.at("GPUMUX_GANG"), "none");
}

TEST_F(RunTest, WhatWasPreloadedStays) {
  set("LD_PRELOAD", OTHER_LIBRARY);
  const Outcome outcome = run({"run", "--", PRINT_SELF});
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_EQ(outcome.variables.at("LD_PRELOAD"), OTHER_LIBRARY ":" FAKE_LIBRARY);
}

TEST_F(RunTest, RootIsToldThatThereIsNoMps) {
  const auto says = [&](const char* flag) {
    const Outcome outcome = run({"run", flag, "--", PRINT_SELF});
    EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
    return outcome.err.find("--mps has no effect") != std::string::npos;
  };
  EXPECT_EQ(says("--mps"), ::geteuid() == 0);
  EXPECT_FALSE(says("--no-mps"));
}

TEST_F(RunTest, TheDaemonIsNobodysAndKeepsNothing) {
  const Outcome outcome = run({"run", "--", PRINT_SELF});
  ASSERT_EQ(outcome.exit_status, 0) << outcome.err;
  ASSERT_EQ(started().size(), 1u);
  std::istringstream line(started()[0]);
  pid_t pid = 0, session = 0, parent = 0;
  line >> pid >> session >> parent;
  EXPECT_NE(session, ::getsid(0));
  EXPECT_NE(parent, outcome.pid);
  std::string rest;
  std::getline(line, rest);
  // The directory that it lists its descriptors in is not open: they are read one by one.
  EXPECT_EQ(rest, " --private --exit-when-unused 10s --restart-on-failure --notify-fd 3 fds 0 1 2 3");
  struct stat status {};
  ASSERT_EQ(::stat((dir_ + "/run/gpumuxd.log").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  ASSERT_EQ(::stat((dir_ + "/run").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST_F(RunTest, ManyAtOnceStartOneDaemon) {
  constexpr int kAtOnce = 8;
  std::vector<Pipes> pipes(kAtOnce);
  std::vector<pid_t> children;
  for (Pipes& pipe : pipes) {
    children.push_back(start({"run", "--", PRINT_SELF}, pipe.out_write.get(), pipe.err_write.get()));
    pipe.out_write.reset();
    pipe.err_write.reset();
  }
  for (std::size_t i = 0; i < children.size(); ++i) {
    const Outcome outcome = finish(children[i], pipes[i].out_read.get(), pipes[i].err_read.get());
    EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  }
  EXPECT_EQ(started().size(), 1u);
}

TEST_F(RunTest, ADaemonThatRunsIsUsedAndToldWhoUsesIt) {
  std::filesystem::create_directory(dir_ + "/run");
  const api_client::ScriptedServer server(
      dir_ + "/run/api.sock", [](const api_client::ScriptedRequest&, int connection) {
        // An older daemon that does not know the request is as good.
        api_client::ScriptedServer::send_all(connection, api_client::ScriptedServer::response(404, "{}"));
      });
  EXPECT_EQ(run({"run", "--", PRINT_SELF}).exit_status, 0);
  EXPECT_TRUE(started().empty());
  ASSERT_EQ(server.requests().size(), 1u);
  EXPECT_EQ(server.requests()[0].method + " " + server.requests()[0].target, "POST /v1/hold");
}

TEST_F(RunTest, WhoAsksAboutJobsStartsTheDaemonThatHasHadThem) {
  const std::vector<std::vector<std::string>> commands{
      {"queue", "--json"}, {"history", "--json"}, {"show", "17"}, {"logs", "17"}, {"cancel", "17"}};
  set("XDG_STATE_HOME", dir_ + "/state");
  for (const auto& words : commands) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.exit_status, 3) << words[0];
    EXPECT_NE(outcome.err.find("no gpumux daemon is running"), std::string::npos) << outcome.err;
  }
  EXPECT_TRUE(started().empty()) << "there has never been a job";
  std::filesystem::create_directories(dir_ + "/state/gpumux/queue");
  auto named = commands.front();
  named.insert(named.end(), {"--runtime-dir", dir_ + "/elsewhere"});
  EXPECT_EQ(run(named).exit_status, 3);
  EXPECT_TRUE(started().empty()) << "another daemon was asked for";
  for (const auto& words : commands) EXPECT_NE(run(words).exit_status, 3) << words[0];
  EXPECT_EQ(started().size(), 1u);
}

// As every job of the system's daemon names it. Root could start one there, and the system's could not come back.
TEST_F(RunTest, NobodyStartsADaemonInTheSystemsPlace) {
  if (std::filesystem::exists("/run/gpumux")) GTEST_SKIP() << "there is a daemon of the system's, or has been";
  set("GPUMUX_RUNTIME_DIR", "/run/gpumux/");
  const Outcome outcome = run({"run", "--", PRINT_SELF});
  EXPECT_EQ(outcome.exit_status, 3);
  EXPECT_NE(outcome.err.find("Only the system's daemon has its place there"), std::string::npos) << outcome.err;
  EXPECT_TRUE(started().empty());
  EXPECT_FALSE(std::filesystem::exists("/run/gpumux"));
}

TEST_F(RunTest, ADaemonThatRefusesIsNotReplaced) {
  std::filesystem::create_directory(dir_ + "/run");
  const api_client::ScriptedServer server(
      dir_ + "/run/api.sock", [](const api_client::ScriptedRequest&, int connection) {
        api_client::ScriptedServer::send_all(
            connection,
            api_client::ScriptedServer::response(403, R"({"error": {"code": "denied", "message": "not for you"}})"));
      });
  const Outcome outcome = run({"run", "--", PRINT_SELF});
  EXPECT_EQ(outcome.exit_status, 4);
  EXPECT_NE(outcome.err.find("not for you"), std::string::npos) << outcome.err;
  EXPECT_TRUE(started().empty());
}

TEST_F(RunTest, ADaemonThatFailsIsQuoted) {
  set("FAKE_BEHAVIOUR", "fail");
  for (int attempt = 0; attempt < 2; ++attempt) {
    const Outcome outcome = run({"run", "--", PRINT_SELF});
    EXPECT_EQ(outcome.exit_status, 3);
    EXPECT_TRUE(outcome.arguments.empty()) << "the program was started";
    EXPECT_NE(outcome.err.find("no GPU was found: ?[31mthe driver"), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find("no GPU"), outcome.err.rfind("no GPU"))
        << "an earlier attempt's message was shown: " << outcome.err;
    EXPECT_NE(outcome.err.find("--allow-ungated"), std::string::npos);
  }
}

TEST_F(RunTest, AllowUngatedRunsWithoutTheLibraryAndSaysSo) {
  set("FAKE_BEHAVIOUR", "fail");
  const Outcome outcome = run({"run", "--allow-ungated", "--", PRINT_SELF});
  EXPECT_EQ(outcome.exit_status, 0);
  EXPECT_EQ(outcome.variables.at("mapped"), "0");
  EXPECT_NE(outcome.err.find("without gpumux"), std::string::npos) << outcome.err;
}

TEST_F(RunTest, ADaemonThatServesNobodyIsAnError) {
  set("FAKE_BEHAVIOUR", "absent");
  const Outcome outcome = run({"run", "--", PRINT_SELF});
  EXPECT_EQ(outcome.exit_status, 3);
  EXPECT_NE(outcome.err.find("does not answer"), std::string::npos) << outcome.err;
}

TEST_F(RunTest, ADaemonThatCannotBeExecutedIsSaid) {
  set("GPUMUX_DAEMON", "/no/such/gpumuxd");
  EXPECT_EQ(run({"run", "--", PRINT_SELF}).exit_status, 3);
  const std::string broken = dir_ + "/broken";
  std::ofstream(broken) << "#!/no/such/interpreter\n";
  ::chmod(broken.c_str(), 0755);
  set("GPUMUX_DAEMON", broken);
  const Outcome outcome = run({"run", "--", PRINT_SELF});
  EXPECT_EQ(outcome.exit_status, 3);
  EXPECT_NE(outcome.err.find("cannot be executed"), std::string::npos) << outcome.err;
}

TEST_F(RunTest, ALibraryThatTheLoaderWouldRefuseIsSaidBeforeAnythingStarts) {
  const std::string text = dir_ + "/libgpumux.so";
  std::ofstream(text) << "not a library";
  set("GPUMUX_LIBRARY", text);
  Outcome outcome = run({"run", "--", PRINT_SELF});
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_NE(outcome.err.find("not an ELF file"), std::string::npos) << outcome.err;
  const std::string spaced = dir_ + "/a dir";
  std::filesystem::create_directory(spaced);
  std::filesystem::copy_file(FAKE_LIBRARY, spaced + "/libgpumux.so");
  set("GPUMUX_LIBRARY", spaced + "/libgpumux.so");
  outcome = run({"run", "--", PRINT_SELF});
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_NE(outcome.err.find("a space or a colon"), std::string::npos) << outcome.err;
  EXPECT_TRUE(started().empty());
}

}  // namespace
}  // namespace gpumux::cli
