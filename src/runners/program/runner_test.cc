// SPDX-License-Identifier: Apache-2.0
// Goal: the parts on which a job's safety rests hold by themselves. No file is opened through another user's link.
// Rights that were given up cannot be had again. A stranger is never signalled. The environment is joined as
// documented. Method: as root, in forked children of users that exist by number only; without root, only the parts that
// need none.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "os/durable_file.h"
#include "runners/program/cgroup.h"
#include "runners/program/child.h"
#include "runners/program/descendants.h"
#include "runners/program/job_log.h"
#include "runners/program/job_processes.h"
#include "runners/program/launch.h"
#include "runners/program/privileges.h"
#include "runners/program/report.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::runners {
namespace {

using wire::LogOpening;
using wire::SetHow;

constexpr std::uint32_t kAlice = 60001;
constexpr std::uint32_t kBob = 60002;

bool is_root() { return ::geteuid() == 0; }

constexpr int kMaxTestGroups = 1024;

// Runs `act` in a child process, and gives its result (below 100).
int in_child(const std::function<int()>& act) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(act());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

wire::RunnerSpec spec_of(std::uint32_t user) {
  wire::RunnerSpec spec;
  spec.uid = spec.gid = user;
  spec.groups = {user, 60100};
  return spec;
}

int as(std::uint32_t user, const std::function<int()>& act) {
  return in_child([&] {
    if (!become_user(spec_of(user))) return 99;
    return act();
  });
}

class RunnerParts : public ::testing::Test {
 protected:
  void SetUp() override {
    // As /tmp: every user may make files, and none may remove another's.
    ASSERT_EQ(::chmod(folder_.c_str(), 01777), 0);
  }
  static std::string text_of(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  static bool opens(const std::string& path, LogOpening opening) { return open_job_log(path, opening).has_value(); }

  const TemporaryDirectory directory_of_test_;
  const std::string& folder_ = directory_of_test_.path();
};

// ---- rights -----------------------------------------------------------------------------------------------

TEST_F(RunnerParts, RightsAreGoneForGood) {
  if (!is_root()) GTEST_SKIP() << "needs root";
  EXPECT_EQ(as(kAlice,
               [&] {
                 if (::getuid() != kAlice || ::geteuid() != kAlice || ::getgid() != kAlice) return 1;
                 if (::setuid(0) == 0 || ::setreuid(0, 0) == 0 || ::setgid(0) == 0) return 2;
                 if (::setuid(kBob) == 0 || ::setgid(kBob) == 0) return 3;
                 gid_t groups[16];
                 if (::getgroups(16, groups) != 2) return 4;
                 if (::open("/etc/shadow", O_RDONLY) >= 0) return 5;
                 if (::kill(1, 0) == 0) return 6;
                 return 0;
               }),
            0);
}

TEST_F(RunnerParts, InheritedCapabilitiesAreNot) {
  if (!is_root()) GTEST_SKIP() << "needs root";
  EXPECT_EQ(in_child([&] {
              // As a careless parent would have left it: inheritable and ambient, which survive a change of the user.
              __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
              __user_cap_data_struct data[2] = {};
              ::syscall(SYS_capget, &header, data);
              data[0].inheritable = data[0].permitted;
              if (::syscall(SYS_capset, &header, data) != 0) return 1;
              if (::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_KILL, 0, 0) != 0) return 2;
              if (::prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0) return 3;
              if (!become_user(spec_of(kAlice))) return 4;
              ::syscall(SYS_capget, &header, data);
              for (const auto& part : data) {
                if ((part.effective | part.permitted | part.inheritable) != 0) return 5;
              }
              if (::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, CAP_KILL, 0, 0) != 0) return 6;
              return ::kill(1, 0) == 0 ? 7 : 0;
            }),
            0);
}

TEST_F(RunnerParts, WithoutRootOnlyOnesOwnJobIsTaken) {
  const auto act = [] {
    wire::RunnerSpec own = spec_of(::geteuid());
    own.gid = ::getegid();
    own.groups.resize(kMaxTestGroups);
    own.groups.resize(static_cast<std::size_t>(::getgroups(kMaxTestGroups, own.groups.data())));
    if (!become_user(own)) return 1;
    wire::RunnerSpec other = own;
    other.uid = own.uid + 1;
    if (become_user(other)) return 2;
    // Its process would have a group that the one that submitted it did not have.
    other = own;
    other.groups.clear();
    other.gid = own.gid + 1;
    if (become_user(other)) return 3;
    // Less than the submitter had is no harm.
    other = own;
    other.groups.push_back(own.gid + 1);
    return become_user(other) ? 0 : 4;
  };
  EXPECT_EQ(is_root() ? as(kAlice, act) : in_child(act), 0);
}

TEST_F(RunnerParts, NoNewPrivilegesAreKept) {
  const auto act = [](std::uint32_t user) {
    wire::RunnerSpec spec = spec_of(user);
    spec.gid = is_root() ? user : ::getegid();
    if (!is_root()) {
      spec.groups.resize(kMaxTestGroups);
      spec.groups.resize(static_cast<std::size_t>(::getgroups(kMaxTestGroups, spec.groups.data())));
    }
    spec.no_new_privs = true;
    if (!become_user(spec)) return 1;
    return ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ? 0 : 2;
  };
  for (const std::uint32_t user : is_root() ? std::vector<std::uint32_t>{0, kAlice} : std::vector{::geteuid()})
    EXPECT_EQ(in_child([&] { return act(user); }), 0) << user;
}

TEST_F(RunnerParts, TheSupervisorKeepsSignallingOnly) {
  if (!is_root()) GTEST_SKIP() << "needs root";
  EXPECT_EQ(in_child([] {
              if (!keep_only_signalling(false)) return 1;
              __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
              __user_cap_data_struct data[2] = {};
              ::syscall(SYS_capget, &header, data);
              if (data[0].permitted != 1u << CAP_KILL || data[1].permitted != 0) return 2;
              return ::setuid(kAlice) == 0 ? 3 : 0;
            }),
            0);
}

TEST_F(RunnerParts, LimitsAreRaisedOnlySoFarAsTheyMayBe) {
  const auto act = [] {
    if (!apply_limits({{RLIMIT_NOFILE, 0, 64, 128}})) return 1;
    if (!apply_limits({{RLIMIT_NOFILE, 0, 256, 512}})) return 2;
    rlimit now{};
    ::getrlimit(RLIMIT_NOFILE, &now);
    return now.rlim_cur == 128 && now.rlim_max == 128 ? 0 : 3;
  };
  EXPECT_EQ(is_root() ? as(kAlice, act) : in_child(act), 0);
}

// ---- the log ----------------------------------------------------------------------------------------------

TEST_F(RunnerParts, OurLogsAreNeverOpenedThroughALink) {
  if (!is_root()) GTEST_SKIP() << "needs root to be several users";
  const std::string target = folder_ + "/target";
  ASSERT_EQ(as(kAlice,
               [&] {
                 std::ofstream(target) << "precious";
                 return 0;
               }),
            0);
  const std::string path = folder_ + "/1.log";
  for (const std::uint32_t owner : {kBob, kAlice}) {
    ASSERT_EQ(as(owner, [&] { return ::symlink(target.c_str(), path.c_str()) == 0 ? 0 : 1; }), 0);
    EXPECT_EQ(as(kAlice, [&] { return opens(path, LogOpening::kOurs) ? 1 : 0; }), 0) << owner;
    // A log that the user named: through the user's own link, and never through another's.
    EXPECT_EQ(as(kAlice, [&] { return opens(path, LogOpening::kUsersAppend) ? 1 : 0; }), owner == kAlice ? 1 : 0);
    EXPECT_EQ(text_of(target), "precious");
    std::filesystem::remove(path);
  }
  // A folder on the way: the user's own link, and never another's.
  ASSERT_EQ(as(kAlice, [&] { return ::mkdir((folder_ + "/alices").c_str(), 0700); }), 0);
  const std::string way = folder_ + "/way";
  for (const std::uint32_t owner : {kBob, kAlice}) {
    for (const std::string& to : {folder_ + "/alices", std::string("alices")}) {
      ASSERT_EQ(as(owner, [&] { return ::symlink(to.c_str(), way.c_str()); }), 0);
      for (const LogOpening opening : {LogOpening::kUsersAppend, LogOpening::kUsersTruncate, LogOpening::kOurs}) {
        EXPECT_EQ(as(kAlice, [&] { return opens(way + "/./../way/2.log", opening) ? 1 : 0; }), owner == kAlice ? 1 : 0);
        std::filesystem::remove(folder_ + "/alices/2.log");
      }
      std::filesystem::remove(way);
    }
  }
  ASSERT_EQ(as(kAlice, [&] { return ::symlink("way", way.c_str()); }), 0);
  EXPECT_EQ(as(kAlice, [&] { return opens(way + "/2.log", LogOpening::kUsersAppend) ? 1 : 0; }), 0) << "it is endless";
  std::filesystem::remove(way);
  // A hard link, another's file, a directory, a FIFO.
  ASSERT_EQ(::link(target.c_str(), path.c_str()), 0);
  EXPECT_EQ(as(kAlice, [&] { return opens(path, LogOpening::kOurs) ? 1 : 0; }), 0);
  EXPECT_EQ(text_of(target), "precious");
  std::filesystem::remove(path);
  ASSERT_EQ(as(kBob,
               [&] {
                 std::ofstream file(path);
                 return ::chmod(path.c_str(), 0666);
               }),
            0);
  EXPECT_EQ(as(kAlice, [&] { return opens(path, LogOpening::kOurs) ? 1 : 0; }), 0) << "another user would read it";
  std::filesystem::remove(path);
  ASSERT_EQ(as(kAlice, [&] { return ::mkfifo(path.c_str(), 0600); }), 0);
  EXPECT_EQ(as(kAlice, [&] { return opens(path, LogOpening::kOurs) ? 1 : 0; }), 0) << "and it did not wait";
  std::filesystem::remove(path);
  ASSERT_EQ(::mkdir(path.c_str(), 0777), 0);
  EXPECT_EQ(as(kAlice, [&] { return opens(path, LogOpening::kUsersAppend) ? 1 : 0; }), 0);
}

TEST_F(RunnerParts, ALogFolderThatChangesUnderUsGainsNothing) {
  if (!is_root()) GTEST_SKIP() << "needs root to be several users";
  // Bob exchanges the folder of Alice's log for a link to Bob's own folder and back, as fast as possible. Alice opens
  // every file with Alice's rights: no file of Alice's becomes Bob's, and none of Bob's is written to.
  const std::string shared = folder_ + "/shared";
  ASSERT_EQ(as(kBob,
               [&] {
                 ::umask(0);
                 return ::mkdir(shared.c_str(), 0777) | ::mkdir((folder_ + "/bobs").c_str(), 0755);
               }),
            0);
  const pid_t bob = ::fork();
  if (bob == 0) {
    if (!become_user(spec_of(kBob))) ::_exit(1);
    const std::string logs = shared + "/logs";
    for (;;) {
      ::symlink((folder_ + "/bobs").c_str(), logs.c_str());
      ::unlink(logs.c_str());
      ::mkdir(logs.c_str(), 0777);
      ::rmdir(logs.c_str());
    }
  }
  EXPECT_EQ(as(kAlice,
               [&] {
                 for (int i = 0; i < 2000; ++i) {
                   const auto file = open_job_log(shared + "/logs/1.log", LogOpening::kOurs);
                   struct stat status {};
                   if (file && (::fstat(file->get(), &status) != 0 || status.st_uid != kAlice)) return 1;
                 }
                 return 0;
               }),
            0);
  ::kill(bob, SIGKILL);
  ::waitpid(bob, nullptr, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/bobs"));
}

TEST_F(RunnerParts, LogsAreMadeAndContinued) {
  const std::string path = folder_ + "/a/b/1.log";
  const auto write = [&](LogOpening opening, const char* text) {
    const auto file = open_job_log(path, opening);
    ASSERT_TRUE(file) << file.error().message();
    ASSERT_EQ(::write(file->get(), text, 3), 3);
  };
  write(LogOpening::kOurs, "one");
  write(LogOpening::kOurs, "two");
  EXPECT_EQ(text_of(path), "onetwo") << "what is there already is never lost";
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  // The user's own: the user's umask, and no folders made for the user.
  EXPECT_FALSE(opens(folder_ + "/missing/1.log", LogOpening::kUsersTruncate));
  const mode_t old = ::umask(027);
  const std::string named = folder_ + "/his.log";
  std::ofstream(named) << "old";
  ASSERT_EQ(::chmod(named.c_str(), 0640), 0);
  EXPECT_TRUE(opens(named, LogOpening::kUsersAppend));
  EXPECT_EQ(text_of(named), "old");
  EXPECT_TRUE(opens(named, LogOpening::kUsersTruncate));
  EXPECT_EQ(text_of(named), "") << "the user has named this one";
  std::filesystem::remove(named);
  EXPECT_TRUE(opens(named, LogOpening::kUsersTruncate));
  ::umask(old);
  ASSERT_EQ(::stat((folder_ + "/his.log").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
  EXPECT_TRUE(opens("/dev/null", LogOpening::kUsersTruncate));
}

// ---- processes --------------------------------------------------------------------------------------------

TEST_F(RunnerParts, AStrangerIsNeverSignalled) {
  // Found once, ended since, and its number another's: the process of that look does not exist now.
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  auto found = find_descendants(0);
  const auto mine = [&] {
    for (const Descendant& process : found) {
      if (process.pid == child) return process;
    }
    return Descendant{};
  };
  Descendant process = mine();
  ASSERT_EQ(process.pid, child);
  Descendant reused = process;
  reused.start_ticks -= 1;  // as if it had begun at another time
  EXPECT_EQ(signal_descendant(reused, found, SIGKILL), Signalled::kGone);
  Descendant stranger;
  stranger.pid = ::getppid();  // not a descendant of ours
  stranger.start_ticks = start_ticks_of(stranger.pid);
  EXPECT_EQ(signal_descendant(stranger, found, 0), Signalled::kGone);
  EXPECT_EQ(signal_descendant(process, found, SIGSTOP), Signalled::kDone);
  for (int i = 0; i < 10'000 && !is_stopped(child); ++i) ::usleep(1000);
  EXPECT_TRUE(is_stopped(child));
  EXPECT_EQ(signal_descendant(process, found, SIGKILL), Signalled::kDone);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(signal_descendant(process, found, SIGKILL), Signalled::kGone);
  found = find_descendants(0);
  EXPECT_EQ(mine().pid, 0);
}

// As a sandbox of before Linux 5.3 does.
bool refuse_pidfds(int system_errno) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_send_signal, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(system_errno)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(filter), filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

constexpr unsigned kHangSeconds = 60;

// A tree of four under a process with such a filter: each step kills the children, whose children come to it.
int kill_tree_without_pidfds(int system_errno) {
  enum { kKilled, kNoFilter, kNoTree, kLeft };
  if (!refuse_pidfds(system_errno)) return kNoFilter;
  JobProcesses processes;
  int ends[2];
  if (::pipe(ends) != 0) return kNoTree;
  if (::fork() == 0) {
    for (int i = 0; i < 2; ++i) {
      if (::fork() == 0) ::setsid();
    }
    ::alarm(kHangSeconds);  // if it is not killed
    static_cast<void>(::write(ends[1], "x", 1));
    for (;;) ::pause();
  }
  char each[4];
  for (std::size_t got = 0; got < sizeof each;) {
    const ssize_t more = ::read(ends[0], each, sizeof each);
    if (more <= 0) return kNoTree;
    got += static_cast<std::size_t>(more);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(kHangSeconds);
  while (!processes.is_gone() && std::chrono::steady_clock::now() < deadline) {
    processes.kill_step();
    while (::waitpid(-1, nullptr, WNOHANG) > 0) continue;
    ::usleep(1000);
  }
  return processes.is_gone() ? kKilled : kLeft;
}

TEST_F(RunnerParts, AJobIsKilledWhereProcessesCannotBeOpened) {
  for (const int system_errno : {EPERM, ENOSYS}) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(kill_tree_without_pidfds(system_errno));
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) == 1) GTEST_SKIP() << "no filters for system calls here";
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
}

// ---- the environment --------------------------------------------------------------------------------------

TEST(RunnerCgroup, AChildIsBornInIt) {
  const std::string path = plan_cgroup("auto", 1, 1);
  if (path.empty()) GTEST_SKIP() << "no control group to divide here";
  const auto group = Cgroup::make(path);
  ASSERT_TRUE(group) << group.error().message();
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t pid = group->fork_into();
  if (pid == 0) {
    char byte;
    ::_exit(::read(ends[0], &byte, 1) == 1 ? 7 : 8);
  }
  const int why = errno;
  if (pid > 0) {
    const auto members = group->members();
    EXPECT_TRUE(members && *members == std::vector<pid_t>{pid});
    EXPECT_EQ(::write(ends[1], "x", 1), 1);
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
  }
  ::close(ends[0]);
  ::close(ends[1]);
  // A process that has just ended stays in the group until the kernel gets to it.
  while (!group->is_empty().value_or(true)) ::sched_yield();
  EXPECT_TRUE(group->remove());
  if (pid < 0) GTEST_SKIP() << "this kernel cannot: " << std::strerror(why);
}

TEST(RunnerEnvironment, IsJoinedAsDocumented) {
  using List = std::vector<std::string>;
  EXPECT_EQ(join_environment({"A=1", "B=2", "A=3"}, {{SetHow::kSet, "A=9"}}), (List{"A=9", "B=2"}));
  EXPECT_EQ(join_environment({"A="}, {{SetHow::kIfUnset, "A=9"}, {SetHow::kIfUnset, "B=1"}}), (List{"A=", "B=1"}));
  EXPECT_EQ(join_environment({"AB=1"}, {{SetHow::kSet, "A=9"}}), (List{"AB=1", "A=9"}));
  EXPECT_EQ(join_environment({}, {{SetHow::kPreload, "LD_PRELOAD=/x/libgpumux.so"}}),
            (List{"LD_PRELOAD=/x/libgpumux.so"}));
  EXPECT_EQ(join_environment({"LD_PRELOAD=libjemalloc.so /old/libgpumux.so:a"},
                             {{SetHow::kPreload, "LD_PRELOAD=/x/libgpumux.so"}}),
            (List{"LD_PRELOAD=libjemalloc.so:a:/x/libgpumux.so"}));
}

TEST(RunnerReports, AreBoundedAndHarmless) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
  send_report(ends[1], ReportKind::kFailed, 126, std::string(1000, 'x'));
  Report report;
  ASSERT_EQ(receive_report(ends[0], report), Received::kReport);
  EXPECT_EQ(report.code, 126u);
  EXPECT_EQ(std::string(report.text).size(), sizeof report.text - 1);
  // A set-up command may write anything there.
  const std::string garbage(700, '\xff');
  ASSERT_EQ(::write(ends[1], garbage.data(), garbage.size()), 700);
  for (int reads = 0; reads < 3; ++reads) EXPECT_EQ(receive_report(ends[0], report), Received::kSomethingElse);
  EXPECT_EQ(receive_report(ends[0], report), Received::kNothing);
  EXPECT_EQ(printable("a\033[2Jb\n\xc3"), "a?[2Jb??");
  // A sender goes on when the pipe has no reader.
  ::close(ends[0]);
  send_report(ends[1], ReportKind::kFailed, 126, "");
  ::close(ends[1]);
}

// ---- files that last --------------------------------------------------------------------------------------

TEST_F(RunnerParts, AClaimIsOnePersons) {
  const auto directory = os::open_directory(folder_);
  ASSERT_TRUE(directory);
  {
    const auto first = os::claim_file_at(directory->get(), "claim", "first");
    ASSERT_TRUE(first) << first.error().message();
    EXPECT_EQ(os::claim_file_at(directory->get(), "claim", "second").error().code, base::Code::kExists);
    EXPECT_TRUE(*os::is_claim_locked(directory->get(), "claim"));
    EXPECT_EQ(*os::read_file_at(directory->get(), "claim", 100), "first");
  }
  EXPECT_FALSE(*os::is_claim_locked(directory->get(), "claim"));
  EXPECT_EQ(os::claim_file_at(directory->get(), "claim", "third").error().code, base::Code::kExists);
  // No other file is left in the folder.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator()), 1);
}

TEST_F(RunnerParts, AReservedFileAppearsWhole) {
  const auto directory = os::open_directory(folder_);
  ASSERT_TRUE(directory);
  os::ReservedFile file;
  ASSERT_TRUE(file.reserve(directory->get(), "end", 4096));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/end"));
  ASSERT_TRUE(file.publish("the end"));
  EXPECT_EQ(text_of(folder_ + "/end"), "the end");
  ASSERT_TRUE(file.publish("once more"));
  EXPECT_EQ(text_of(folder_ + "/end"), "once more");
  EXPECT_FALSE(os::read_file_at(directory->get(), "end", 3));
  EXPECT_FALSE(os::write_new_file_at(directory->get(), "end", "x", 0600));
}

// A process in another pid namespace may have our pid, and a file here under it.
TEST_F(RunnerParts, FilesOfOthersWithOurPidStay) {
  const auto directory = os::open_directory(folder_);
  ASSERT_TRUE(directory);
  const std::string end = "/end." + std::to_string(::getpid());
  const std::string claim = "/claim." + std::to_string(::getpid());
  for (const std::string& name : {end, claim}) std::ofstream(folder_ + name) << "another's";
  EXPECT_TRUE(os::claim_file_at(directory->get(), "claim", "ours"));
  os::ReservedFile file;
  EXPECT_TRUE(file.reserve(directory->get(), "end", 100));
  EXPECT_TRUE(file.publish("ours"));
  for (const std::string& name : {end, claim}) EXPECT_EQ(text_of(folder_ + name), "another's") << name;
  EXPECT_EQ(text_of(folder_ + "/end"), "ours");
}

TEST_F(RunnerParts, FilesWithoutASizeAreReadToTheirEnd) {
  const auto status = os::read_unsized_at(AT_FDCWD, "/proc/self/status");
  ASSERT_TRUE(status);
  EXPECT_NE(status->find("\nPid:\t" + std::to_string(::getpid()) + "\n"), std::string::npos);
  EXPECT_EQ(os::read_unsized_at(AT_FDCWD, "/proc/self/status", 7), status->substr(0, 7));
  const std::string content(10'000, 'x');
  std::ofstream(folder_ + "/file") << content;
  const auto directory = os::open_directory(folder_);
  ASSERT_TRUE(directory);
  EXPECT_EQ(os::read_unsized_at(directory->get(), "file"), content);
  EXPECT_EQ(os::read_unsized_at(directory->get(), "none").error().code, base::Code::kNotFound);
}

}  // namespace
}  // namespace gpumux::runners
