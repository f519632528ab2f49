// SPDX-License-Identifier: Apache-2.0
// Goal: a job runs once, exactly as it was given, as its user with nothing inherited, and its end is true and durable.
// A job that cannot be started says why with the right status. A daemon that comes back finds everything. Method: real
// runners, started as the daemon starts them, with jobs that print their inputs. As root they belong to users that
// exist by number only, so nothing can come from a database.
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <thread>

#include "os/unix_socket.h"
#include "runners/runners_test_support.h"

namespace gpumux::runners {
namespace {

using wire::EndHow;

class Runners : public RunnerTest {
 protected:
  std::string log_of(const wire::RunnerSpec& spec) { return read_text(spec.log_path); }
  // The value of a line that `job describe` has written.
  static std::string said(const std::string& log, const std::string& key) {
    std::istringstream lines(log);
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind(key + " ", 0) == 0) return line.substr(key.size() + 1);
    }
    return "(not said)";
  }
};

TEST_F(Runners, GiveTheCommandExactlyWhatWasAsked) {
  auto spec = make_spec({"describe"});
  spec.umask = 027;
  spec.nice = 3;
  spec.oom_score_adj = 200;
  spec.limits = {{RLIMIT_NOFILE, 0, 100, 200}};
  spec.environment.push_back("EMPTY=");
  spec.environment.push_back("CUDA_VISIBLE_DEVICES=7");
  spec.late_environment.push_back({wire::SetHow::kSet, "CUDA_VISIBLE_DEVICES=1,0"});
  spec.late_environment.push_back({wire::SetHow::kIfUnset, "PYTHONUNBUFFERED=1"});
  const auto end = run(spec);
  EXPECT_EQ(end.how, EndHow::kExited);
  EXPECT_EQ(end.code, 0u);
  EXPECT_EQ(end.reason, wire::EndReason::kNone);
  EXPECT_GT(end.peak_rss_kib, 0u);
  const std::string log = log_of(spec);
  const std::string uid = std::to_string(user());
  const std::string gid = std::to_string(group());
  EXPECT_EQ(said(log, "ids"), uid + " " + uid + " " + uid + " " + gid + " " + gid + " " + gid);
  if (is_root()) {
    EXPECT_EQ(said(log, "groups"), "60001 60100");

    EXPECT_NE(log.find("status CapPrm:\t0000000000000000\n"), std::string::npos) << log;
    EXPECT_NE(log.find("status CapEff:\t0000000000000000\n"), std::string::npos) << log;
    EXPECT_NE(log.find("status CapInh:\t0000000000000000\n"), std::string::npos) << log;
    EXPECT_NE(log.find("status NoNewPrivs:\t0\n"), std::string::npos) << log;
  }
  EXPECT_EQ(said(log, "cwd"), home_);
  EXPECT_EQ(said(log, "umask"), std::to_string(027));
  EXPECT_EQ(said(log, "nice"), "3");
  EXPECT_EQ(said(log, "oom"), "200");
  EXPECT_EQ(said(log, "nofile"), "100 200");
  EXPECT_EQ(said(log, "leads_session"), "1");
  EXPECT_EQ(said(log, "tty"), "0");
  EXPECT_EQ(said(log, "open"), "0 1 2");
  EXPECT_EQ(said(log, "stdin"), "/dev/null");
  EXPECT_NE(log.find("status SigBlk:\t0000000000000000\n"), std::string::npos) << log;
  EXPECT_NE(log.find("status SigIgn:\t0000000000000000\n"), std::string::npos) << log;
  // The environment: in the given order, the late ones joined, and nothing of ours or of the daemon's.
  std::string environment;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("env ", 0) == 0) environment += line.substr(4) + "\n";
  }
  EXPECT_EQ(environment, "PATH=/usr/local/bin:/usr/bin:/bin\nHOME=" + home_ + "\nEMPTY=\nCUDA_VISIBLE_DEVICES=1,0\n" +
                             marker() + "\nPYTHONUNBUFFERED=1\n");
  struct stat status {};
  ASSERT_EQ(::stat(spec.log_path.c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, user());
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  ASSERT_EQ(::stat((home_ + "/state/logs").c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, user());
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST_F(Runners, KeepAJobFromNewPrivileges) {
  auto spec = make_spec({"describe"});
  spec.no_new_privs = true;
  EXPECT_EQ(run(spec).code, 0u);
  const std::string log = log_of(spec);
  EXPECT_NE(log.find("status NoNewPrivs:\t1\n"), std::string::npos) << log;
}

TEST_F(Runners, KeepEveryByteOfTheArguments) {
  std::string odd;
  for (int byte = 1; byte < 256; ++byte) odd += static_cast<char>(byte);
  const std::vector<std::string> arguments = {"arguments", "", " ", "a b", "'\"", "$(id)", "`id`", "*", "-- -x", odd};
  const auto spec = make_spec(arguments);
  EXPECT_EQ(run(spec).code, 0u);
  std::string expected;
  for (std::size_t i = 1; i < arguments.size(); ++i) expected += "[" + arguments[i] + "]\n";
  EXPECT_EQ(log_of(spec), expected);
  // After a set-up command just as well: the arguments never pass through its shell.
  auto with_setup = make_spec(arguments);
  with_setup.setup_command = "true";
  EXPECT_EQ(run(with_setup).code, 0u);
  EXPECT_EQ(log_of(with_setup), expected);
}

TEST_F(Runners, TellTheTrueStatus) {
  for (const int code : {0, 1, 2, 77, 125, 126, 127, 128, 255}) {
    const auto end = run(make_spec({"exit", std::to_string(code)}));
    EXPECT_EQ(end.how, EndHow::kExited) << code;
    EXPECT_EQ(end.code, static_cast<std::uint32_t>(code));
  }
  for (const int signal : {SIGKILL, SIGTERM, SIGSEGV, SIGABRT, SIGHUP}) {
    const auto end = run(make_spec({"signal", std::to_string(signal)}));
    EXPECT_EQ(end.how, EndHow::kSignaled) << signal;
    EXPECT_EQ(end.code, static_cast<std::uint32_t>(signal));
  }
}

TEST_F(Runners, SayWhyNothingWasStarted) {
  const auto fails = [&](wire::RunnerSpec spec, std::uint32_t code, const std::string& why) {
    const auto end = run(spec);
    EXPECT_EQ(end.how, EndHow::kNotStarted) << why;
    EXPECT_EQ(end.code, code) << why;
    EXPECT_NE(std::string(wire::text_of(end.text)).find(why), std::string::npos) << wire::text_of(end.text);
    return spec;
  };
  const auto with_command = [&](std::vector<std::string> command) {
    auto spec = make_spec({});
    spec.arguments = std::move(command);
    return spec;
  };
  const auto missing = fails(with_command({"no-such-program-anywhere"}), 127, "no such program (see PATH)");
  EXPECT_NE(log_of(missing).find("no such program"), std::string::npos) << "the log says it too";
  fails(with_command({"/no/such/program"}), 127, "no such program");
  fails(with_command({"/etc/passwd"}), 126, "Permission denied");
  fails(with_command({"/tmp"}), 126, "Permission denied");
  const std::string script = folder_ + "/script";
  std::ofstream(script) << "#!/no/such/interpreter\n";
  ::chmod(script.c_str(), 0755);
  fails(with_command({script}), 127, "interpreter");

  auto spec = make_spec({"exit", "0"});
  spec.directory = home_ + "/vanished";
  fails(spec, 125, "cannot enter the job's directory");
  if (is_root()) {
    spec = make_spec({"exit", "0"});
    spec.directory = places_.jobs_dir;
    fails(spec, 125, "Permission denied");
    spec = make_spec({"exit", "0"});
    spec.log_path = places_.jobs_dir + "/mine.log";
    fails(spec, 125, "cannot open the log");
    EXPECT_FALSE(std::filesystem::exists(spec.log_path));
  }
  spec = make_spec({"exit", "0"});
  spec.log_path = home_ + "/fifo";
  spec.log_opening = wire::LogOpening::kUsersAppend;
  ASSERT_EQ(::mkfifo(spec.log_path.c_str(), 0666), 0);
  ::chmod(spec.log_path.c_str(), 0666);
  fails(spec, 125, "FIFO without a reader");
}

TEST_F(Runners, RefuseMoreArgumentsThanTheSystemTakes) {
  for (const bool with_setup : {false, true}) {
    auto spec = make_spec({"exit", "0"});
    spec.arguments.resize(82, std::string(128 * 1024 - 1, 'x'));  // 10 MiB in all
    if (with_setup) spec.setup_command = "true";
    const auto end = run(spec);
    EXPECT_EQ(end.how, EndHow::kNotStarted);
    EXPECT_EQ(end.code, 126u);
    EXPECT_NE(std::string(wire::text_of(end.text)).find("its arguments take 1035"), std::string::npos)
        << wire::text_of(end.text);
  }
}

TEST_F(Runners, RunTheSetUpCommandFirst) {
  // A login shell, in the job's directory whatever the profile does, with conda's hook.
  const std::string bin = home_ + "/bin";
  std::filesystem::create_directory(bin);
  std::ofstream(bin + "/conda") << "#!/bin/sh\n[ \"$1 $2\" = 'shell.bash hook' ] && echo 'export HOOKED=yes'\n";
  ::chmod((bin + "/conda").c_str(), 0755);
  std::ofstream(home_ + "/.bash_profile") << "export PATH=" << bin << ":/usr/bin:/bin FROM_PROFILE=yes\ncd /\n";
  auto spec = make_spec({"describe"});
  spec.setup_command =
      "echo \"set-up in $PWD with $# arguments, conda $HOOKED\"\nexport FROM_SETUP='a  b' "
      "CUDA_VISIBLE_DEVICES=9 LD_PRELOAD=/other/libgpumux.so:libm.so.6 PYTHONUNBUFFERED=0";
  spec.late_environment.push_back({wire::SetHow::kSet, "CUDA_VISIBLE_DEVICES=1"});
  spec.late_environment.push_back({wire::SetHow::kIfUnset, "PYTHONUNBUFFERED=1"});
  spec.late_environment.push_back({wire::SetHow::kPreload, "LD_PRELOAD=/nowhere/libgpumux.so"});
  // The sanitizers' library wants to be the first that is preloaded, also into our own program.
  spec.environment.push_back("ASAN_OPTIONS=verify_asan_link_order=0");
  const auto end = run(spec);
  const std::string log = log_of(spec);
  EXPECT_EQ(end.how, EndHow::kExited) << log;
  EXPECT_EQ(end.code, 0u) << log;
  EXPECT_NE(log.find("set-up in " + home_ + " with 0 arguments, conda yes\n"), std::string::npos) << log;
  for (const char* entry : {"FROM_PROFILE=yes", "FROM_SETUP=a  b", "CUDA_VISIBLE_DEVICES=1", "PYTHONUNBUFFERED=0",
                            "LD_PRELOAD=libm.so.6:/nowhere/libgpumux.so"}) {
    EXPECT_NE(log.find("env " + std::string(entry) + "\n"), std::string::npos) << entry << "\n" << log;
  }
  EXPECT_EQ(log.find("env _="), std::string::npos);
  EXPECT_EQ(said(log, "open"), "0 1 2") << "nothing of the way here is left open";
}

TEST_F(Runners, FindWhatTheSubmitterFoundAfterAProfileThatForgetsIt) {
  const std::string conda = home_ + "/conda/bin", venv = home_ + "/venv/bin";
  for (const std::string& folder : {conda, venv}) std::filesystem::create_directories(folder);
  std::ofstream(conda + "/conda") << "#!/bin/sh\n[ \"$1 $2\" = 'shell.bash hook' ] && echo 'export HOOKED=yes'\n";
  std::ofstream(venv + "/torchrun") << "#!/bin/sh\necho \"torchrun of the venv, conda $HOOKED\"\n";
  for (const std::string& file : {conda + "/conda", venv + "/torchrun"}) ::chmod(file.c_str(), 0755);
  std::ofstream(home_ + "/.bash_profile") << "export PATH=/usr/bin:/bin\n";
  auto spec = make_spec({"describe"});
  spec.arguments = {"torchrun"};
  spec.setup_command = "test \"$HOOKED\" = yes";
  std::erase_if(spec.environment, [](const std::string& entry) { return entry.starts_with("PATH="); });
  spec.environment.push_back("PATH=" + venv + ":/usr/bin");
  spec.environment.push_back("CONDA_EXE=" + conda + "/conda");
  const auto end = run(spec);
  EXPECT_EQ(end.code, 0u) << log_of(spec);
  EXPECT_NE(log_of(spec).find("torchrun of the venv, conda yes\n"), std::string::npos) << log_of(spec);
}

TEST_F(Runners, FailWithTheSetUpCommand) {
  const auto status = [&](const std::string& setup) {
    auto spec = make_spec({"once", home_ + "/ran"});
    spec.setup_command = setup;
    const auto end = run(spec);
    EXPECT_EQ(end.how, EndHow::kSetupFailed) << setup << "\n" << log_of(spec);
    EXPECT_FALSE(std::filesystem::exists(home_ + "/ran")) << setup;
    EXPECT_NE(log_of(spec), "") << setup;
    return end.code;
  };
  EXPECT_EQ(status("echo some output; false"), 1u);
  EXPECT_EQ(status("echo some output; exit 7"), 7u);
  EXPECT_EQ(status("echo some output; set -e; (exit 8); true"), 8u);
  EXPECT_EQ(status("source no/such/environment"), 1u);
  EXPECT_NE(status("echo 'unfinished"), 0u);
  EXPECT_NE(status("if true; then"), 0u);
  EXPECT_EQ(status("no-such-command-anywhere"), 127u);
  EXPECT_EQ(status("echo x; kill -9 $$"), 137u);
  // A command that does not fail does not fail the job: here a here-document without an end swallows only itself.
  auto spec = make_spec({"exit", "3"});
  spec.setup_command = "cat <<END >/dev/null\nno end";
  EXPECT_EQ(run(spec).code, 3u);
  // And a command that is not there after a good set-up command is a command that is not there.
  spec = make_spec({});
  spec.arguments = {"no-such-program-anywhere"};
  spec.setup_command = "true";
  const auto end = run(spec);
  EXPECT_EQ(end.how, EndHow::kNotStarted);
  EXPECT_EQ(end.code, 127u);
}

TEST_F(Runners, AreNotHeldUpByASetUpCommandThatFloodsThem) {
  // Gigabytes of proper reports (kSetup), and of something else.
  const std::string reports = home_ + "/reports";
  std::string report(256, '\0');
  report[0] = 2;
  std::ofstream file(reports);
  for (int i = 0; i < 4096; ++i) file << report;
  file.close();
  const std::string many = "for i in {1..4096}; do files+=(" + reports + "); done; cat \"${files[@]}\" >&61";
  for (const std::string& flood : {std::string("cat /dev/zero >&61"), many}) {
    auto spec = make_spec({"exit", "6"});
    spec.setup_command = flood + "; touch " + home_ + "/flooded; exec sleep 1000";
    const auto connection = start(spec);
    ASSERT_TRUE(wait_for_state(connection.get(), [](const auto& s) { return s.phase == wire::RunnerPhase::kSetup; }));
    ASSERT_TRUE(eventually([&] { return std::filesystem::remove(home_ + "/flooded"); })) << flood;
    ASSERT_TRUE(send_to_runner(connection.get(), wire::Terminate{.grace_ms = 0}));
    const auto end = wait_for_end(connection.get());
    ASSERT_TRUE(end) << flood;
    EXPECT_EQ(end->reason, wire::EndReason::kCancelled);
    EXPECT_EQ(end->code, static_cast<std::uint32_t>(SIGKILL));
    // A job that is not cancelled goes on after the flood.
    spec = make_spec({"exit", "6"});
    spec.setup_command = flood + "; true";
    const auto ended = run(spec);
    EXPECT_EQ(ended.how, EndHow::kExited) << log_of(spec);
    EXPECT_EQ(ended.code, 6u) << log_of(spec);
  }
}

TEST_F(Runners, NeverBeginTwice) {
  const auto spec = make_spec({"once", home_ + "/ran"});
  EXPECT_EQ(run(spec).code, 3u);
  auto again = start_runner(places_, directory(spec));
  ASSERT_TRUE(again);
  const auto message = receive(again->get());
  ASSERT_TRUE(message && std::holds_alternative<wire::RunnerRefused>(*message));
  EXPECT_EQ(std::get<wire::RunnerRefused>(*message).claimed, 1u);
  EXPECT_EQ(abandon_runner(directory(spec)).error().code, base::Code::kExists);

  const auto abandoned = make_spec({"once", home_ + "/ran"});
  ASSERT_TRUE(prepare_runner(places_, abandoned));
  EXPECT_EQ(look_at_runner(directory(abandoned))->standing, RunnerStanding::kUnclaimed);
  ASSERT_TRUE(abandon_runner(directory(abandoned)));
  EXPECT_EQ(look_at_runner(directory(abandoned))->standing, RunnerStanding::kAbandoned);
  auto late = start_runner(places_, directory(abandoned));
  ASSERT_TRUE(late);
  const auto refusal = receive(late->get());
  ASSERT_TRUE(refusal && std::holds_alternative<wire::RunnerRefused>(*refusal));
  EXPECT_EQ(read_text(home_ + "/ran"), "ran\n");
  EXPECT_TRUE(forget_runner(directory(abandoned)));
  EXPECT_FALSE(std::filesystem::exists(directory(abandoned)));
  EXPECT_EQ(prepare_runner(places_, spec).error().code, base::Code::kExists);
}

TEST_F(Runners, BeginOrAreAbandonedButNeverBoth) {
  std::mt19937_64 random(make_seed());
  int begun = 0;
  for (int round = 0; round < 20; ++round) {
    const std::string file = home_ + "/ran" + std::to_string(round);
    const auto spec = make_spec({"once", file});
    ASSERT_TRUE(prepare_runner(places_, spec));
    base::Status abandoned;
    const auto wait = static_cast<unsigned>(random() % 2500);
    std::thread daemon_after_a_crash([&] {
      ::usleep(wait);
      abandoned = abandon_runner(directory(spec));
    });
    auto first = start_runner(places_, directory(spec));
    auto second = start_runner(places_, directory(spec));
    daemon_after_a_crash.join();
    ASSERT_TRUE(first && second);
    // Both runners say how it was: one of them at most has begun.
    int ends = 0;
    for (const int connection : {first->get(), second->get()}) {
      while (const auto message = receive(connection)) {
        if (std::holds_alternative<wire::RunnerEnded>(*message)) ++ends;
      }
    }
    EXPECT_EQ(ends, abandoned ? 0 : 1);
    EXPECT_EQ(read_text(file), abandoned ? "" : "ran\n");
    begun += ends;
  }
  std::printf("%d of 20 begun\n", begun);
}

TEST_F(Runners, AreFoundAgainByANewDaemon) {
  const std::string file = home_ + "/counted";
  const auto spec = make_spec({"count", file});
  {
    const auto connection = start(spec);
    ASSERT_TRUE(wait_until_running(connection.get()));
  }  // the daemon is gone
  ASSERT_TRUE(eventually([&] { return size_of(file) > 20; }));
  const auto listed = list_runners(places_);
  ASSERT_TRUE(listed);
  ASSERT_EQ(listed->size(), 1u);
  EXPECT_EQ((*listed)[0].job, spec.job);
  const auto found = look_at_runner((*listed)[0].path);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->standing, RunnerStanding::kAlive);
  EXPECT_FALSE(found->machine_rebooted);
  EXPECT_EQ(kill_strays(directory(spec)).error().code, base::Code::kUnavailable);
  EXPECT_EQ(forget_runner(directory(spec)).error().code, base::Code::kUnavailable);

  auto connection = connect_runner(directory(spec));
  ASSERT_TRUE(connection);
  const auto state = wait_for_state(connection->get(), [](const auto&) { return true; });
  ASSERT_TRUE(state);
  EXPECT_EQ(state->phase, wire::RunnerPhase::kRunning);
  EXPECT_EQ(state->job, spec.job);
  EXPECT_GT(state->running_ns, 0u);
  const auto frozen = suspend(connection->get(), 7);
  ASSERT_TRUE(frozen);
  EXPECT_EQ(frozen->suspension, wire::Suspension::kFrozen);
  // Another one that comes finds it frozen, and ends it.
  auto other = connect_runner(directory(spec));
  ASSERT_TRUE(other);
  const auto same = wait_for_state(other->get(), [](const auto&) { return true; });
  ASSERT_TRUE(same);
  EXPECT_EQ(same->suspension, wire::Suspension::kFrozen);
  EXPECT_EQ(same->sequence, 7u);
  ASSERT_TRUE(send_to_runner(other->get(), wire::Terminate{.reason = wire::EndReason::kTimeLimit, .grace_ms = 10'000}));
  for (const int each : {connection->get(), other->get()}) {
    const auto end = wait_for_end(each);
    ASSERT_TRUE(end);
    EXPECT_EQ(end->how, EndHow::kSignaled);
    EXPECT_EQ(end->code, static_cast<std::uint32_t>(SIGTERM));
    EXPECT_EQ(end->reason, wire::EndReason::kTimeLimit);
  }
  EXPECT_TRUE(forget_runner(directory(spec)));
}

TEST_F(Runners, EndWithTheServiceManager) {
  const auto spec = make_spec({"ignore"});
  const auto connection = start(spec);
  const auto state = wait_until_running(connection.get());
  ASSERT_TRUE(state);
  ASSERT_TRUE(eventually([&] { return log_of(spec) == "ready\n"; }));
  ::kill(static_cast<pid_t>(state->runner_pid), SIGTERM);
  const auto end = wait_for_end(connection.get());
  ASSERT_TRUE(end);
  EXPECT_EQ(end->reason, wire::EndReason::kShutdown);
  EXPECT_EQ(end->code, static_cast<std::uint32_t>(SIGKILL)) << "it ignores TERM";
}

TEST_F(Runners, SendASignalToEverything) {
  const std::string file = home_ + "/tree";
  const auto spec = make_spec({"tree", file});
  const auto connection = start(spec);
  ASSERT_TRUE(wait_until_running(connection.get()));
  ASSERT_TRUE(eventually([&] { return size_of(file) > 0; }));
  ASSERT_TRUE(send_to_runner(connection.get(), wire::Signal{.number = SIGUSR1}));
  const auto ended = wait_for_end(connection.get());
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->how, wire::EndHow::kSignaled);
  EXPECT_EQ(ended->code, static_cast<std::uint32_t>(SIGUSR1));
  EXPECT_EQ(ended->reason, wire::EndReason::kNone) << "nobody has told it to end";
}

TEST_F(Runners, TellAnEndThatTheyCannotWriteUntilItIsNoted) {
  const auto spec = make_spec({"ignore"});
  auto connection = start(spec);
  const auto state = wait_until_running(connection.get());
  ASSERT_TRUE(state);
  const auto runner = os::open_pidfd(static_cast<pid_t>(state->runner_pid));
  ASSERT_TRUE(runner);
  // A file cannot take a folder's name.
  std::filesystem::create_directory(directory(spec) + "/end");
  ASSERT_TRUE(send_to_runner(connection.get(), wire::Terminate{.grace_ms = 0}));
  // Two daemons hear it and are gone before they have stored it; the third one stores it.
  for (int daemon = 0; daemon < 3; ++daemon) {
    const auto end = wait_for_end(connection.get());
    ASSERT_TRUE(end) << daemon;
    EXPECT_NE(end->flags & wire::kEndNotDurable, 0u);
    EXPECT_EQ(end->reason, wire::EndReason::kCancelled);
    if (daemon == 2) break;
    connection.reset();
    auto next = connect_runner(directory(spec));
    ASSERT_TRUE(next) << next.error().message();
    connection = std::move(*next);
  }
  EXPECT_FALSE(os::has_ended(runner->get()));
  ASSERT_TRUE(send_to_runner(connection.get(), wire::Noted()));
  EXPECT_TRUE(eventually([&] { return os::has_ended(runner->get()); }));
}

TEST_F(Runners, DoNotOutliveTheirDirectory) {
  const auto spec = make_spec({"ignore"});
  auto connection = start(spec);
  const auto state = wait_until_running(connection.get());
  ASSERT_TRUE(state);
  const auto runner = os::open_pidfd(static_cast<pid_t>(state->runner_pid));
  ASSERT_TRUE(runner);
  std::filesystem::remove_all(directory(spec));
  ASSERT_TRUE(send_to_runner(connection.get(), wire::Terminate{.grace_ms = 0}));
  connection.reset();  // no daemon hears the end, and none can read it
  EXPECT_TRUE(eventually([&] { return os::has_ended(runner->get()); }));
}

// The service manager accepts the connection and starts the runner with it as standard input.
TEST_F(Runners, AreStartedByAServiceManager) {
  places_.starter_socket = folder_ + "/runner.sock";
  auto listener = os::listen_seqpacket(places_.starter_socket, 0600, 4);
  ASSERT_TRUE(listener);
  const auto spec = make_spec({"exit", "6"});
  ASSERT_TRUE(prepare_runner(places_, spec));
  auto connection = start_runner(places_, directory(spec));
  ASSERT_TRUE(connection) << connection.error().message();
  const os::FileDescriptor accepted(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(accepted);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(accepted.get(), STDIN_FILENO);
    ::execl(GPUMUX_RUNNER, "gpumux-runner", nullptr);
    ::_exit(1);
  }
  const auto end = wait_for_end(connection->get());
  ASSERT_TRUE(end);
  EXPECT_EQ(end->code, 6u);
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  // A starter that is there and does not answer is an error, not a reason to fork.
  listener->reset();
  const auto refused = make_spec({"exit", "6"});
  ASSERT_TRUE(prepare_runner(places_, refused));
  EXPECT_EQ(start_runner(places_, directory(refused)).error().code, base::Code::kUnavailable);
}

TEST_F(Runners, RefuseWhatIsNotTheirs) {
  // A directory that others can enter, a spec that is none, another user's job without root.
  const auto refused = [&](const wire::RunnerSpec& spec) {
    auto connection = start_runner(places_, directory(spec));
    EXPECT_TRUE(connection);
    const auto message = receive(connection->get());
    EXPECT_TRUE(message && std::holds_alternative<wire::RunnerRefused>(*message));
    EXPECT_EQ(look_at_runner(directory(spec))->standing, RunnerStanding::kUnclaimed);
    return message ? std::string(wire::text_of(std::get<wire::RunnerRefused>(*message).text)) : std::string();
  };
  auto spec = make_spec({"exit", "0"});
  ASSERT_TRUE(prepare_runner(places_, spec));
  ::chmod(directory(spec).c_str(), 0755);
  EXPECT_NE(refused(spec).find("only its runner's user"), std::string::npos);
  spec = make_spec({"exit", "0"});
  ASSERT_TRUE(prepare_runner(places_, spec));
  std::ofstream(directory(spec) + "/spec") << "something else";
  EXPECT_NE(refused(spec).find("record"), std::string::npos);
}

TEST_F(Runners, SurviveAFullDisk) {
  if (!is_root()) GTEST_SKIP() << "needs root to mount a small file system";
  const std::string disk = folder_ + "/disk";
  std::filesystem::create_directory(disk);
  if (::mount("gpumux-test", disk.c_str(), "tmpfs", 0, "size=256k,mode=0777") != 0)
    GTEST_SKIP() << "no file system can be mounted here: " << std::strerror(errno);
  // The job's own writes fail, as they would without us; its status is its own.
  auto spec = make_spec({"write", "1000000"});
  spec.log_path = disk + "/job.log";
  auto end = run(spec);
  EXPECT_EQ(end.how, EndHow::kExited);
  EXPECT_EQ(end.code, 9u);
  std::filesystem::remove(spec.log_path);
  // A disk that is full before the end is written: its place was taken ahead.
  const RunnerPlaces places{disk + "/jobs", places_.runner_program, ""};
  ASSERT_EQ(::mkdir(places.jobs_dir.c_str(), 0700), 0);
  std::swap(const_cast<RunnerPlaces&>(places), places_);
  spec = make_spec({"ignore"});
  const auto connection = start(spec);
  ASSERT_TRUE(wait_until_running(connection.get()));
  {
    std::ofstream filler(disk + "/filler");
    while (filler << std::string(4096, 'f') << std::flush) {
    }
  }
  ASSERT_TRUE(send_to_runner(connection.get(), wire::Terminate{.grace_ms = 0}));
  const auto ended = wait_for_end(connection.get());
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->flags & wire::kEndNotDurable, 0u);
  EXPECT_EQ(look_at_runner(directory(spec))->standing, RunnerStanding::kEnded);
  ::umount2(disk.c_str(), MNT_DETACH);
}

TEST_F(Runners, AreSmall) {
  const auto spec = make_spec({"ignore"});
  const auto connection = start(spec);
  const auto state = wait_until_running(connection.get());
  ASSERT_TRUE(state);
  const std::string rollup = read_text("/proc/" + std::to_string(state->runner_pid) + "/smaps_rollup");
  const auto kib = [&](const std::string& key) {
    const std::size_t at = rollup.find("\n" + key);
    return at == std::string::npos ? -1 : std::atoi(rollup.c_str() + at + key.size() + 1);
  };
  const int own = kib("Private_Dirty:") + kib("Private_Clean:");
  std::printf("Rss %d KiB, Pss %d KiB, its own %d KiB\n", kib("Rss:"), kib("Pss:"), own);
#ifndef GPUMUX_SANITIZED
  EXPECT_LT(own, 2048);
#endif
  ASSERT_TRUE(send_to_runner(connection.get(), wire::Terminate{.grace_ms = 0}));
  EXPECT_TRUE(wait_for_end(connection.get()));
}

}  // namespace
}  // namespace gpumux::runners
