// SPDX-License-Identifier: Apache-2.0
// Goal: everything of a job can be stopped, continued and ended, whatever it does to escape. When its supervisor is
// killed at any moment, the job is either whole or gone. Its end is true or an honest "lost", and it never runs twice.
// Method: jobs that fork, orphan, change sessions, ignore signals and close descriptors. A control group (where one can
// be made here) holds each together, or /proc alone. Kills come at random moments, from a printed seed.
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <map>

#include "runners/runners_test_support.h"

namespace gpumux::runners {
namespace {

using wire::EndHow;

class RunnerKills : public RunnerTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    if (by_cgroup() && runners::plan_cgroup("auto", 1, 1).empty()) GTEST_SKIP() << "no control group to divide here";
    RunnerTest::SetUp();
    file_ = home_ + "/grown";
  }
  void TearDown() override {
    if (!folder_.empty()) RunnerTest::TearDown();
  }
  bool by_cgroup() const { return std::string(GetParam()) == "auto"; }
  std::string cgroup_parent() const override { return GetParam(); }

  // Starts it and waits until the command runs, held together as asked.
  os::FileDescriptor start_running(const wire::RunnerSpec& spec) {
    auto connection = start(spec);
    const auto state = wait_until_running(connection.get());
    EXPECT_TRUE(state);
    if (state) {
      EXPECT_EQ(state->uses_cgroup, by_cgroup() ? 1u : 0u);
      runner_pid_ = static_cast<pid_t>(state->runner_pid);
      main_pid_ = static_cast<pid_t>(state->main_pid);
    }
    return connection;
  }
  bool grows() {
    const std::uintmax_t size = size_of(file_);
    return eventually([&] { return size_of(file_) > size; });
  }
  std::size_t processes() const { return marked_processes(marker()).size(); }
  // The four of `job tree`, when the ones in between have ended: the main process and two orphans are the runner's.
  bool tree_stands() const {
    return eventually([&] {
      const std::string pid = std::to_string(runner_pid_);
      const std::string children = read_text("/proc/" + pid + "/task/" + pid + "/children");
      return processes() == 4 && std::count(children.begin(), children.end(), ' ') == 3;
    });
  }
  static wire::Terminate terminate_within(std::uint64_t grace_ms) { return {.grace_ms = grace_ms}; }

  std::string file_;
  pid_t runner_pid_ = 0;
  pid_t main_pid_ = 0;
};

INSTANTIATE_TEST_SUITE_P(HeldTogether, RunnerKills, ::testing::Values("none", "auto"),
                         [](const auto& how) { return std::string(how.param) == "auto" ? "ByCgroup" : "ByProc"; });

TEST_P(RunnerKills, AWholeTreeIsStoppedAndGoesOn) {
  const auto spec = make_spec({"tree", file_});
  const auto connection = start_running(spec);
  ASSERT_TRUE(tree_stands());
  for (std::uint64_t round = 1; round <= 3; ++round) {
    ASSERT_TRUE(grows());
    const auto frozen = suspend(connection.get(), 2 * round);
    ASSERT_TRUE(frozen);
    ASSERT_EQ(frozen->suspension, wire::Suspension::kFrozen);
    const std::uintmax_t size = size_of(file_);
    ::usleep(30'000);  // thirty times what one of its four processes needs for a byte
    EXPECT_EQ(size_of(file_), size) << "something still runs";
    EXPECT_EQ(processes(), 4u);
    const auto resumed = resume(connection.get(), 2 * round + 1);
    ASSERT_TRUE(resumed);
    EXPECT_GT(resumed->suspended_ns, 30'000'000u * round);
  }
  ASSERT_TRUE(grows());
  ASSERT_TRUE(send_to_runner(connection.get(), terminate_within(10'000)));
  const auto end = wait_for_end(connection.get());
  ASSERT_TRUE(end);
  EXPECT_EQ(end->code, static_cast<std::uint32_t>(SIGTERM));
  EXPECT_EQ(end->reason, wire::EndReason::kCancelled);
  EXPECT_EQ(processes(), 0u);
}

TEST_P(RunnerKills, WhatWasStoppedBeforeStaysStopped) {
  const auto spec = make_spec({"stopped", file_});
  const auto connection = start_running(spec);
  std::string log;
  ASSERT_TRUE(eventually([&] { return (log = read_text(spec.log_path)).ends_with("\n"); }));
  const pid_t stopped = std::stoi(log.substr(6));
  const auto state_of = [&] {
    const std::string stat = read_text("/proc/" + std::to_string(stopped) + "/stat");
    const std::size_t end = stat.rfind(')');
    return end == std::string::npos ? '?' : stat[end + 2];
  };
  ASSERT_EQ(state_of(), 'T');
  ASSERT_TRUE(suspend(connection.get(), 1));
  ASSERT_TRUE(resume(connection.get(), 2));
  ASSERT_TRUE(grows());
  EXPECT_EQ(state_of(), 'T');
  ASSERT_TRUE(send_to_runner(connection.get(), terminate_within(10'000)));
  ASSERT_TRUE(wait_for_end(connection.get()));
  EXPECT_EQ(processes(), 0u) << "a stopped process is ended too";
}

TEST_P(RunnerKills, WhoIgnoresTermIsKilledAfterTheGrace) {
  const auto spec = make_spec({"ignore"});
  const auto connection = start_running(spec);
  ASSERT_TRUE(eventually([&] { return read_text(spec.log_path) == "ready\n"; }));
  const auto began = std::chrono::steady_clock::now();
  ASSERT_TRUE(send_to_runner(connection.get(), terminate_within(60'000)));
  ASSERT_TRUE(wait_for_state(connection.get(), [](const auto& s) { return s.phase == wire::RunnerPhase::kStopping; }));
  // A later, shorter grace counts; a later, longer one does not.
  ASSERT_TRUE(send_to_runner(connection.get(), terminate_within(200)));
  ASSERT_TRUE(send_to_runner(connection.get(), terminate_within(60'000)));
  const auto end = wait_for_end(connection.get());
  ASSERT_TRUE(end);
  EXPECT_EQ(end->code, static_cast<std::uint32_t>(SIGKILL));
  const auto took = std::chrono::steady_clock::now() - began;
  EXPECT_GE(took, std::chrono::milliseconds(200));
  EXPECT_LT(took, kDeadline);
}

TEST_P(RunnerKills, AFrozenJobCanBeEnded) {
  for (const std::uint64_t grace : {std::uint64_t{0}, std::uint64_t{10'000}}) {
    const auto spec = make_spec({"tree", file_});
    const auto connection = start_running(spec);
    ASSERT_TRUE(tree_stands());
    ASSERT_TRUE(suspend(connection.get(), 1));
    ASSERT_TRUE(send_to_runner(connection.get(), terminate_within(grace)));
    const auto end = wait_for_end(connection.get());
    ASSERT_TRUE(end);
    EXPECT_EQ(end->code, static_cast<std::uint32_t>(grace == 0 ? SIGKILL : SIGTERM));
    EXPECT_EQ(processes(), 0u);
  }
}

TEST_P(RunnerKills, WhatTheMainProcessLeavesBehindIsEnded) {
  const auto spec = make_spec({"leave", file_});
  const auto connection = start(spec);
  // The end is durable while what is left still runs, and the job is not over before that has ended.
  ASSERT_TRUE(wait_for_state(connection.get(), [](const auto& s) { return s.phase == wire::RunnerPhase::kCleaning; }));
  const auto found = look_at_runner(directory(spec));
  ASSERT_TRUE(found && found->end);
  EXPECT_EQ(found->standing, RunnerStanding::kAlive);
  EXPECT_EQ(found->end->code, 5u);
  const auto end = wait_for_end(connection.get());
  ASSERT_TRUE(end);
  EXPECT_EQ(end->how, EndHow::kExited);
  EXPECT_EQ(end->code, 5u);
  EXPECT_EQ(end->leftovers, 1u);
  EXPECT_EQ(processes(), 0u);
  EXPECT_EQ(look_at_runner(directory(spec))->standing, RunnerStanding::kEnded);
}

TEST_P(RunnerKills, AStormOfProcessesIsStoppedAndEnded) {
  const auto spec = make_spec({"storm", file_, "100000"});
  const auto connection = start_running(spec);
  ::usleep(20'000);
  const auto frozen = suspend(connection.get(), 1);
  ASSERT_TRUE(frozen);
  EXPECT_EQ(frozen->suspension, wire::Suspension::kFrozen);
  const auto before = marked_processes(marker());
  ::usleep(20'000);
  // One that was ending may have gone since: nothing stops that.
  for (const pid_t pid : marked_processes(marker()))
    EXPECT_NE(std::find(before.begin(), before.end(), pid), before.end()) << "process " << pid << " has come since";
  ASSERT_TRUE(resume(connection.get(), 2));
  ASSERT_TRUE(send_to_runner(connection.get(), terminate_within(0)));
  const auto end = wait_for_end(connection.get());
  ASSERT_TRUE(end);
  EXPECT_EQ(processes(), 0u);
}

TEST_P(RunnerKills, WhoClosesEverythingIsStillHeld) {
  const auto spec = make_spec({"close"});
  const auto connection = start_running(spec);
  ASSERT_TRUE(send_to_runner(connection.get(), terminate_within(10'000)));
  const auto end = wait_for_end(connection.get());
  ASSERT_TRUE(end);
  EXPECT_EQ(end->code, static_cast<std::uint32_t>(SIGTERM));
}

TEST_P(RunnerKills, TheSetUpCommandCanBeStoppedAndEnded) {
  auto spec = make_spec({"exit", "0"});
  spec.setup_command = "echo began; sleep 1000";
  const auto connection = start(spec);
  ASSERT_TRUE(wait_for_state(connection.get(), [](const auto& s) { return s.phase == wire::RunnerPhase::kSetup; }));
  ASSERT_TRUE(eventually([&] { return read_text(spec.log_path) == "began\n"; }));
  ASSERT_TRUE(suspend(connection.get(), 1));
  ASSERT_TRUE(send_to_runner(connection.get(), terminate_within(10'000)));
  const auto end = wait_for_end(connection.get());
  ASSERT_TRUE(end);
  EXPECT_EQ(end->reason, wire::EndReason::kCancelled);
  EXPECT_EQ(processes(), 0u);
}

TEST_P(RunnerKills, TheDeathOfTheRunnerIsTheJobsDeath) {
  const auto spec = make_spec({"tree", file_});
  const auto connection = start_running(spec);
  ASSERT_TRUE(tree_stands());
  ASSERT_EQ(::kill(runner_pid_, SIGKILL), 0);
  while (receive(connection.get())) {
  }
  ASSERT_TRUE(eventually([&] { return look_at_runner(directory(spec))->standing == RunnerStanding::kLost; }));
  // The daemon ends the processes that the kernel has not ended with the runner.
  ASSERT_TRUE(eventually([&] {
    const auto left = kill_strays(directory(spec));
    return left && *left == 0;
  }));
  EXPECT_EQ(processes(), 0u);
  EXPECT_FALSE(std::filesystem::exists(look_at_runner(directory(spec))->claim->cgroup) && by_cgroup());
  EXPECT_TRUE(forget_runner(directory(spec)));
}

// On a kernel without cgroup.kill. Between two looks at the group a member may end, and its number may be used again.
TEST(RunnerKillsOneByOne, OnlyWhatIsInTheGroupStill) {
  const auto begin = [] {
    const pid_t pid = ::fork();
    if (pid == 0) {
      for (;;) ::pause();
    }
    return pid;
  };
  const pid_t member = begin();
  const pid_t stranger = begin();
  int looks = 0;
  EXPECT_TRUE(kill_one_by_one([&]() -> base::Result<std::string> {
    const std::string members = std::to_string(member) + "\n";
    return ++looks == 1 ? members + std::to_string(stranger) + "\n0\n" : members;
  }));
  int status = 0;
  EXPECT_EQ(::waitpid(member, &status, 0), member);
  // A process that was killed does not stop.
  ::kill(stranger, SIGSTOP);
  EXPECT_EQ(::waitpid(stranger, &status, WUNTRACED), stranger);
  EXPECT_TRUE(WIFSTOPPED(status)) << "it was killed, and is of no job";
  ::kill(stranger, SIGKILL);
  EXPECT_EQ(::waitpid(stranger, &status, 0), stranger);
}

TEST_P(RunnerKills, AtAnyMomentItIsWholeOrLost) {
  std::mt19937_64 random(make_seed());
#ifdef GPUMUX_SANITIZED
  int rounds = 10;  // each takes many times as long
#else
  int rounds = 40;
#endif
  if (const char* given = std::getenv("GPUMUX_TEST_KILLS")) rounds = std::atoi(given);
  std::map<RunnerStanding, int> outcomes;
  for (int round = 0; round < rounds; ++round) {
    const std::string ran = home_ + "/ran" + std::to_string(round);
    auto spec = make_spec({"once", ran});
    if (random() % 3 == 0) spec.setup_command = "true";
    ASSERT_TRUE(prepare_runner(places_, spec));
    auto connection = start_runner(places_, directory(spec));
    ASSERT_TRUE(connection);
    // At some moment after it has come so far: claimed, setting up, running, cleaning up.
    const auto target = static_cast<wire::RunnerPhase>(1 + random() % 5);
    pid_t pid = 0;
    bool told = false;
    while (const auto message = receive(connection->get())) {
      const auto* state = std::get_if<wire::RunnerState>(&*message);
      if (state != nullptr) pid = static_cast<pid_t>(state->runner_pid);
      told = told || std::holds_alternative<wire::RunnerEnded>(*message);
      if (told || (state != nullptr && state->phase >= target)) break;
    }
    ASSERT_NE(pid, 0);
    if (random() % 2 == 0) ::usleep(static_cast<unsigned>(random() % 5000));
    // Not a stranger's: the runner's number may be used again only once it is gone.
    if (const auto pidfd = os::open_pidfd(pid);
        pidfd && look_at_runner(directory(spec))->standing == RunnerStanding::kAlive)
      static_cast<void>(os::kill_process(pidfd->get()));
    while (const auto message = receive(connection->get())) {
      if (const auto* ended = std::get_if<wire::RunnerEnded>(&*message)) {
        told = true;
        EXPECT_EQ(ended->code, 3u);
      }
    }
    ASSERT_TRUE(eventually([&] { return look_at_runner(directory(spec))->standing != RunnerStanding::kAlive; }));
    const auto found = look_at_runner(directory(spec));
    ASSERT_TRUE(found);
    ++outcomes[found->standing];
    const std::string evidence = read_text(ran);
    if (found->standing == RunnerStanding::kEnded) {
      ASSERT_TRUE(found->end);
      EXPECT_EQ(found->end->how, EndHow::kExited);
      EXPECT_EQ(found->end->code, 3u);
      EXPECT_EQ(evidence, "ran\n");
    } else {
      EXPECT_EQ(found->standing, RunnerStanding::kLost);
      EXPECT_FALSE(told);
      EXPECT_TRUE(evidence.empty() || evidence == "ran\n");
    }
    ASSERT_TRUE(eventually([&] {
      const auto left = kill_strays(directory(spec));
      return left && *left == 0;
    }));
    // A process that was executing its program when its supervisor died shows its mark only now, and dies of that.
    EXPECT_TRUE(eventually([&] { return processes() == 0; }));
    EXPECT_TRUE(forget_runner(directory(spec)));
  }
  std::printf("ended %d, lost %d\n", outcomes[RunnerStanding::kEnded], outcomes[RunnerStanding::kLost]);
}

// No zombie, no descriptor: a runner that has lived through a lot is as it was.
TEST_P(RunnerKills, NothingPilesUpInARunner) {
  const auto spec = make_spec({"tree", file_});
  const auto connection = start_running(spec);
  ASSERT_TRUE(tree_stands());
  const auto descriptors = [&] {
    std::error_code error;
    const std::filesystem::directory_iterator entries("/proc/" + std::to_string(runner_pid_) + "/fd", error);
    return std::distance(begin(entries), end(entries));
  };
  ASSERT_TRUE(suspend(connection.get(), 1));
  ASSERT_TRUE(resume(connection.get(), 2));
  const auto before = descriptors();
  for (std::uint64_t round = 2; round < 20; ++round) {
    auto other = connect_runner(directory(spec));
    ASSERT_TRUE(other);
    ASSERT_TRUE(suspend(other->get(), 2 * round));
    ASSERT_TRUE(resume(connection.get(), 2 * round + 1));
  }
  EXPECT_TRUE(eventually([&] { return descriptors() == before; }));
  EXPECT_TRUE(tree_stands()) << "who has ended was waited for";
  ASSERT_TRUE(send_to_runner(connection.get(), terminate_within(0)));
  ASSERT_TRUE(wait_for_end(connection.get()));
}

}  // namespace
}  // namespace gpumux::runners
