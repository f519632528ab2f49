// SPDX-License-Identifier: Apache-2.0
// For the tests of runners: real runners in a folder of their own, and jobs. As root the jobs belong to users that
// exist by number only, otherwise to the test's user.
#pragma once

#include <fcntl.h>
#include <ftw.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "os/pidfd.h"
#include "runners/program/cgroup.h"
#include "runners/runners.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::runners {

// Generous: they bound a failure, not a speed.
inline constexpr auto kDeadline = std::chrono::seconds(20);

inline bool is_root() { return ::geteuid() == 0; }
inline constexpr std::uint32_t kAlice = 60001;
inline constexpr std::uint32_t kBob = 60002;

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline bool eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    ::usleep(1000);
  }
  return true;
}

inline std::uint64_t make_seed() {
  const char* given = std::getenv("GPUMUX_TEST_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 0) : std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

// The processes that have this in their environment, other than zombies.
inline std::vector<pid_t> marked_processes(const std::string& marker) {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string text = std::string(1, '\0') + read_text(entry.path() / "environ");
    if (text.find(std::string(1, '\0') + marker + '\0') != std::string::npos) found.push_back(std::stoi(name));
  }
  return found;
}

class RunnerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
    places_.jobs_dir = folder_ + "/jobs";
    places_.runner_program = GPUMUX_RUNNER;
    ASSERT_EQ(::mkdir(places_.jobs_dir.c_str(), 0700), 0);
    // Where the users can reach them, wherever the build is.
    job_ = folder_ + "/job";
    std::filesystem::copy_file(GPUMUX_TEST_JOB, job_);
    home_ = make_home("alice", user());
    run_id_ = "test-" + std::to_string(::getpid()) + "-" + std::to_string(std::random_device()());
  }

  void TearDown() override {
    // Nothing of any job is left, however it ended.
    EXPECT_TRUE(eventually([&] { return marked_processes(marker()).empty(); }))
        << "process " << marked_processes(marker())[0] << " is left";
    for (const pid_t pid : marked_processes(marker())) ::kill(pid, SIGKILL);
  }

  static std::uint32_t user() { return is_root() ? kAlice : ::geteuid(); }
  static std::uint32_t group() { return is_root() ? kAlice : ::getegid(); }
  std::string marker() const { return "GPUMUX_RUN_ID=" + run_id_; }

  std::string make_home(const std::string& name, std::uint32_t owner) {
    const std::string path = folder_ + "/" + name;
    EXPECT_EQ(::mkdir(path.c_str(), 0700), 0);
    if (is_root()) {
      EXPECT_EQ(::chown(path.c_str(), owner, owner), 0);
    }
    return path;
  }

  wire::RunnerSpec make_spec(std::vector<std::string> arguments) {
    wire::RunnerSpec spec;
    spec.job = ++jobs_;
    spec.attempt = 1;
    spec.uid = user();
    spec.gid = group();
    spec.groups = {kAlice, 60100};
    if (!is_root()) {
      spec.groups.resize(1024);
      spec.groups.resize(static_cast<std::size_t>(::getgroups(1024, spec.groups.data())));
    }
    spec.directory = home_;
    spec.arguments = std::move(arguments);
    spec.arguments.insert(spec.arguments.begin(), job_);
    spec.environment = {"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + home_};
    spec.late_environment = {{wire::SetHow::kSet, marker()}};
    spec.log_path = home_ + "/state/logs/" + std::to_string(spec.job) + ".log";
    spec.cgroup_parent = cgroup_parent();
    spec.leftover_grace_ms = 300;
    return spec;
  }
  virtual std::string cgroup_parent() const { return "none"; }

  std::string directory(const wire::RunnerSpec& spec) const {
    return runner_directory(places_, spec.job, spec.attempt);
  }

  os::FileDescriptor start(const wire::RunnerSpec& spec) {
    const auto prepared = prepare_runner(places_, spec);
    EXPECT_TRUE(prepared) << prepared.error().message();
    auto connection = start_runner(places_, directory(spec));
    EXPECT_TRUE(connection) << connection.error().message();
    return connection ? std::move(*connection) : os::FileDescriptor();
  }

  // The next message; none: the runner has closed, or the deadline is over.
  static std::optional<wire::FromRunner> receive(int connection) {
    pollfd polled{connection, POLLIN, 0};
    if (::poll(&polled, 1, static_cast<int>(std::chrono::milliseconds(kDeadline).count())) != 1) {
      ADD_FAILURE() << "no message of the runner in time";
      return std::nullopt;
    }
    auto message = receive_from_runner(connection);
    return message ? std::optional(*message) : std::nullopt;
  }

  // Messages up to the first state that is wanted.
  static std::optional<wire::RunnerState> wait_for_state(int connection,
                                                         const std::function<bool(const wire::RunnerState&)>& wanted) {
    while (const auto message = receive(connection)) {
      const auto* state = std::get_if<wire::RunnerState>(&*message);
      if (state != nullptr && wanted(*state)) return *state;
    }
    ADD_FAILURE() << "the runner has closed before the state that was waited for";
    return std::nullopt;
  }
  static std::optional<wire::RunnerState> wait_until_running(int connection) {
    return wait_for_state(connection,
                          [](const wire::RunnerState& s) { return s.phase == wire::RunnerPhase::kRunning; });
  }
  static std::optional<wire::RunnerState> suspend(int connection, std::uint64_t sequence) {
    EXPECT_TRUE(send_to_runner(connection, wire::Suspend{.sequence = sequence}));
    return wait_for_state(connection, [&](const wire::RunnerState& s) {
      return s.sequence == sequence && s.suspension != wire::Suspension::kFreezing;
    });
  }
  static std::optional<wire::RunnerState> resume(int connection, std::uint64_t sequence) {
    EXPECT_TRUE(send_to_runner(connection, wire::Resume{.sequence = sequence}));
    return wait_for_state(connection, [&](const wire::RunnerState& s) {
      return s.sequence == sequence && s.suspension == wire::Suspension::kNone;
    });
  }

  static std::optional<wire::RunnerEnded> wait_for_end(int connection) {
    while (const auto message = receive(connection)) {
      if (const auto* ended = std::get_if<wire::RunnerEnded>(&*message)) return *ended;
      if (const auto* refused = std::get_if<wire::RunnerRefused>(&*message)) {
        ADD_FAILURE() << "refused: " << wire::text_of(refused->text);
        return std::nullopt;
      }
    }
    ADD_FAILURE() << "the runner has closed without an end";
    return std::nullopt;
  }

  wire::RunnerEnded run(const wire::RunnerSpec& spec) {
    const auto connection = start(spec);
    if (!connection) return {};
    const auto ended = wait_for_end(connection.get());
    if (!ended) return {};
    // The end that the runner told is the end that it wrote.
    const auto found = look_at_runner(directory(spec));
    EXPECT_TRUE(found && found->standing == RunnerStanding::kEnded && found->end);
    if (found && found->end) {
      EXPECT_EQ(found->end->how, ended->how);
      EXPECT_EQ(found->end->code, ended->code);
      EXPECT_EQ(wire::text_of(found->end->text), wire::text_of(ended->text));
    }
    return *ended;
  }

  static std::uintmax_t size_of(const std::string& path) {
    std::error_code error;
    const std::uintmax_t size = std::filesystem::file_size(path, error);
    return error ? 0 : size;
  }

  const TemporaryDirectory directory_of_test_;
  const std::string& folder_ = directory_of_test_.path();
  std::string home_;
  std::string job_;
  std::string run_id_;
  RunnerPlaces places_;
  std::uint64_t jobs_ = 0;
};

}  // namespace gpumux::runners
