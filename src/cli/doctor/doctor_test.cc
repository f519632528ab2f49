// SPDX-License-Identifier: Apache-2.0
// Goal: each fault of an installation is found, named, and comes with a remedy; nothing is found on a sound one.
// Method: facts of a sound machine, spoilt in one way each; then the executable itself on fake drivers.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "base/version.h"
#include "cli/doctor/checks.h"
#include "cli/doctor/probe.h"
#include "cli/doctor/report.h"
#include "settings/settings.h"
#include "settings/test_texts.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::cli {
namespace {

using namespace std::chrono_literals;

Facts sound() {
  Facts facts;
  facts.uid = 1000;
  facts.driver.cuda_path = "/usr/lib/libcuda.so.1";
  facts.driver.cuda_version = 13000;
  facts.driver.driver_version = "580.159.04";
  facts.driver.gpus = {
      {.index = 0, .uuid = "GPU-0", .name = "H100", .compute_mode = "default", .processes = {}, .mps_processes = {}}};
  facts.kernel_module = true;
  facts.library = {.path = "/usr/lib/gpumux/libgpumux.so", .error = "", .mapped = true, .loader_message = ""};
  facts.runtime_dir = "/run/gpumux";
  facts.daemon.emplace();
  facts.daemon->version = base::version();
  facts.daemon->owner = "root";
  facts.snapshot.emplace();
  facts.snapshot->gpus.resize(1);
  facts.snapshot->host_memory.kind = "tmpfs";
  facts.snapshot->host_memory.made = 6'800'000'000;
  facts.snapshot->host_memory.making = 1s;
  facts.queue.emplace();
  facts.queue->state = "open";
  facts.shared_huge_pages = "always within_size [advise] never deny force";
  facts.user_dir = {.path = "/run/user/1000/gpumux", .exists = true, .is_dir = true, .owner = 1000, .mode = 0700};
  return facts;
}

struct Spoilt {
  const char* what;
  std::function<void(Facts&)> spoil;
  const char* check;
  Level level;
  const char* said;
};

TEST(ChecksTest, ASoundMachineIsInOrder) {
  const Findings findings = check_all(sound());
  for (const Finding& finding : findings)
    EXPECT_EQ(finding.level, Level::kOk) << finding.check << ": " << finding.title;
  EXPECT_EQ(findings_lines(findings, Output{}).back(), "Everything is in order.");
  for (const char* check : {"driver", "gpus", "library", "daemon", "permissions", "queue", "private directory",
                            "host memory", "mps", "foreign", "entries", "environment"}) {
    EXPECT_TRUE(std::any_of(findings.begin(), findings.end(), [&](const Finding& f) { return f.check == check; }))
        << check;
  }
}

TEST(ChecksTest, OnlyAMachineWithSystemdIsToldOfIt) {
  Facts facts = sound();
  facts.daemon.reset();
  facts.daemon_error = base::Error{base::Code::kUnavailable, 0, "no daemon is running"};
  const auto advice = [](const Facts& of) {
    Findings findings;
    check_daemon(of, findings);
    return findings.at(0).advice;
  };
  EXPECT_EQ(advice(facts), "sudo gpumuxd, for a daemon of the whole machine");
  facts.systemd = true;
  EXPECT_EQ(advice(facts), "sudo systemctl enable --now gpumuxd, for a daemon of the whole machine");
}

TEST(ChecksTest, TheKindOfHostMemoryAndItsSpeedAreSaid) {
  Facts facts = sound();
  EXPECT_EQ(check_host_memory(facts)->title, "huge pages of the daemon's own tmpfs, made at 6.8 GB/s by each thread");
  facts.snapshot->host_memory.kind = "huge_page_pool";
  facts.snapshot->host_memory.making = {};
  EXPECT_EQ(check_host_memory(facts)->title, "huge pages of the system's pool");
  facts.snapshot->host_memory.kind = "memfd";
  EXPECT_EQ(check_host_memory(facts)->level, Level::kOk) << "this system gives huge pages to memfds on advice";
  facts.shared_huge_pages = "always within_size advise [never] deny force";
  facts.snapshot->host_memory.why_no_tmpfs = "unshare: Operation not permitted";
  EXPECT_EQ(check_host_memory(facts)->level, Level::kWarning);
  EXPECT_NE(check_host_memory(facts)->meaning.find("unshare: Operation not permitted"), std::string::npos);
  facts.snapshot.reset();
  EXPECT_FALSE(check_host_memory(facts)) << "only a daemon knows";
}

TEST(ChecksTest, AQueueThatIsOffOrNotForThisUserIsInOrder) {
  Facts facts = sound();
  facts.queue->state = "off";
  facts.queue->unavailable = "this daemon has no job queue: it is off (--state-dir none)";
  EXPECT_EQ(check_queue(facts)->level, Level::kOk);
  EXPECT_EQ(check_queue(facts)->title, facts.queue->unavailable);
  facts.queue.reset();
  facts.queue_error = base::Error{base::Code::kDenied, 0, "jobs are for users of the system"};
  EXPECT_FALSE(check_queue(facts));
}

TEST(ChecksTest, EachThingThatIsWrongIsFoundAndNothingElse) {
  const std::vector<Spoilt> all{
      {"no driver", [](Facts& f) { f.driver.cuda_path = "", f.driver.cuda_error = "no such file"; }, "driver",
       Level::kProblem, "no such file"},
      {"driver crashes", [](Facts& f) { f.driver.probe_error = "it crashed (signal 11)"; }, "driver", Level::kProblem,
       "signal 11"},
      {"driver too old", [](Facts& f) { f.driver.cuda_version = 11080; }, "driver", Level::kProblem, "CUDA 11.8"},
      {"driver without version", [](Facts& f) { f.driver.cuda_version = 0; }, "driver", Level::kProblem,
       "does not say"},
      {"no kernel module", [](Facts& f) { f.kernel_module = false; }, "driver", Level::kProblem, "kernel module"},
      {"closed devices", [](Facts& f) { f.closed_devices = {"/dev/nvidia0"}; }, "driver", Level::kProblem,
       "/dev/nvidia0"},
      {"small pages",
       [](Facts& f) {
         f.snapshot->host_memory.kind = "memfd";
         f.shared_huge_pages = "always within_size advise [never] deny force";
       },
       "host memory", Level::kWarning, "small pages, made at 6.8 GB/s by each thread"},
      {"NVML mismatch", [](Facts& f) { f.driver.nvml_error = "Driver/library version mismatch"; }, "gpus",
       Level::kProblem, "mismatch"},
      {"no GPU", [](Facts& f) { f.driver.gpus.clear(); }, "gpus", Level::kProblem, "no GPU"},
      {"exclusive process", [](Facts& f) { f.driver.gpus[0].compute_mode = "exclusive-process"; }, "gpus",
       Level::kProblem, "exclusive-process"},
      {"prohibited", [](Facts& f) { f.driver.gpus[0].compute_mode = "prohibited"; }, "gpus", Level::kProblem,
       "prohibited"},
      {"sick",
       [](Facts& f) {
         f.snapshot->gpus.resize(1);
         f.snapshot->gpus[0].uuid = "GPU-0";
         f.snapshot->gpus[0].sick = "the driver says that it needs a reset";
       },
       "gpus", Level::kProblem, "needs a reset"},
      {"no library",
       [](Facts& f) { f.library = {.path = "", .error = "was not found", .mapped = false, .loader_message = ""}; },
       "library", Level::kProblem, "not found"},
      {"library not preloaded",
       [](Facts& f) { f.library.mapped = false, f.library.loader_message = "cannot be preloaded"; }, "library",
       Level::kProblem, "cannot be preloaded"},
      {"ld.so.preload of a removed library", [](Facts& f) { f.missing_preloads = {"/old/libgpumux.so"}; },
       "ld.so.preload", Level::kWarning, "/old/libgpumux.so"},
      {"ld.so.preload of another installation", [](Facts& f) { f.ld_so_preload = "/opt/libgpumux.so\n"; },
       "ld.so.preload", Level::kWarning, "/opt/libgpumux.so"},
      {"programs without their daemon",
       [](Facts& f) {
         f.daemon_error = base::Error{base::Code::kUnavailable, 0, "no gpumux daemon is running"};
         f.waiting = "worker (7)";
       },
       "daemon", Level::kProblem, "have lost their daemon: worker (7)"},
      {"queue without room",
       [](Facts& f) { f.queue->state = "no_room", f.queue->unavailable = "the disk is nearly full"; }, "queue",
       Level::kProblem, "refuses new jobs: the disk is nearly full"},
      {"no queue",
       [](Facts& f) { f.queue->state = "failed", f.queue->unavailable = "this daemon has no job queue: why"; }, "queue",
       Level::kProblem, "no job queue: why"},
      {"silent queue",
       [](Facts& f) {
         f.queue.reset();
         f.queue_error = base::Error{base::Code::kTimeout, 0, "no answer within 10 s"};
       },
       "queue", Level::kProblem, "no answer within 10 s"},
      {"paused queue", [](Facts& f) { f.queue->paused = true; }, "queue", Level::kWarning, "paused"},
      {"no daemon",
       [](Facts& f) {
         f.daemon_error = base::Error{base::Code::kUnavailable, 0, "no gpumux daemon is running"};
         f.daemon.reset();
         f.snapshot.reset();
       },
       "daemon", Level::kWarning, "no gpumux daemon"},
      {"daemon refuses",
       [](Facts& f) {
         f.daemon_error = base::Error{base::Code::kDenied, 0, "you may not"};
         f.daemon.reset();
         f.snapshot.reset();
       },
       "daemon", Level::kProblem, "you may not"},
      {"daemon hangs",
       [](Facts& f) {
         f.daemon_error = base::Error{base::Code::kTimeout, 0, "did not answer in time"};
         f.daemon.reset();
         f.snapshot.reset();
       },
       "daemon", Level::kProblem, "in time"},
      {"daemon of another version", [](Facts& f) { f.daemon->version = "9.9"; }, "daemon", Level::kWarning, "9.9"},
      {"GPU of another daemon", [](Facts& f) { f.snapshot->gpus[0].refused = "bob has it"; }, "daemon", Level::kProblem,
       "bob has it"},
      {"GPU that somebody claims", [](Facts& f) { f.snapshot->gpus[0].claimed_by = "pid 7 of user eve"; }, "daemon",
       Level::kWarning, "claimed by pid 7 of user eve"},
      {"private directory of another user", [](Facts& f) { f.user_dir.owner = 5; }, "private directory",
       Level::kProblem, "user 5"},
      {"private directory open to others", [](Facts& f) { f.user_dir.mode = 0755; }, "private directory",
       Level::kProblem, "0755"},
      {"private directory that is a link", [](Facts& f) { f.user_dir.is_dir = false; }, "private directory",
       Level::kProblem, "not a directory"},
      {"MPS",
       [](Facts& f) {
         f.mps_daemons = {{7, "nvidia-cuda-mps"}};
       },
       "mps", Level::kWarning, "nvidia-cuda-mps (7)"},
      {"MPS beside that of the daemon",
       [](Facts& f) {
         f.mps_daemons = {{7, "nvidia-cuda-mps", 1}, {17, "nvidia-cuda-mps", 1}};
         f.snapshot->mps_servers = {{.user = "eva", .state = "serving", .pid = 7, .programs = {9}}};
       },
       "mps", Level::kWarning, "nvidia-cuda-mps (17)"},
      {"MPS clients",
       [](Facts& f) {
         f.driver.gpus[0].mps_processes = {{8, "python"}};
       },
       "mps", Level::kWarning, "python (8)"},
      {"a leftover MPS pipe", [](Facts& f) { f.mps_pipe = "/tmp/nvidia-mps/control"; }, "mps", Level::kWarning,
       "/tmp/nvidia-mps/control"},
      {"foreign process",
       [](Facts& f) { f.snapshot->gpus[0].foreign = {{.pid = 77, .name = "Xorg", .memory_bytes = 0}}; }, "foreign",
       Level::kWarning, "Xorg (77)"},
      {"unknown entry",
       [](Facts& f) {
         f.daemon->unknown_entries = {{"cuNewThing", 4, {"python3"}}};
       },
       "entries", Level::kWarning, "cuNewThing (4, python3)"},
      {"bad library variable", [](Facts& f) { f.environment["GPUMUX_ON_DAEMON_LOSS"] = "panic"; }, "environment",
       Level::kWarning, "wait or ungated"},
      {"bad daemon variable", [](Facts& f) { f.environment["GPUMUX_QUANTUM"] = "50"; }, "environment", Level::kProblem,
       "1ms to 24h"},
      {"bad alias", [](Facts& f) { f.environment["NVSHARE_MAX_RUNTIME_SEC"] = "9"; }, "environment", Level::kProblem,
       "10 to 86400"},
      {"bad seed variable", [](Facts& f) { f.environment["CUDA_OVERRIDE_KERNEL_N_SYNC"] = "ten"; }, "environment",
       Level::kWarning, "whole number"},
      {"bad time of a lock mode", [](Facts& f) { f.environment["CUDA_OVERRIDE_MAX_SYNC_MS"] = "-1"; }, "environment",
       Level::kWarning, "milliseconds"},
      {"bad quota", [](Facts& f) { f.environment["GPUMUX_MEM_LIMIT"] = "20Q"; }, "environment", Level::kWarning,
       "such as 20G"},
      {"bad priority", [](Facts& f) { f.environment["GPUMUX_PRIORITY"] = "high"; }, "environment", Level::kWarning,
       "-1000 to 1000"},
      {"bad share", [](Facts& f) { f.environment["GPUMUX_SHARE"] = "0"; }, "environment", Level::kWarning,
       "0.01 to 100"},
      {"bad cap", [](Facts& f) { f.environment["GPUMUX_MAX_SHARE"] = "30"; }, "environment", Level::kWarning,
       "0.1% to 100%"},
      {"bad paging", [](Facts& f) { f.environment["GPUMUX_PAGING"] = "no"; }, "environment", Level::kWarning,
       "on or off"},
      {"bad kind of memory", [](Facts& f) { f.environment["GPUMUX_MEMORY"] = "unified"; }, "environment",
       Level::kWarning, "managed"},
      {"bad number of shares", [](Facts& f) { f.environment["NVSHARE_VIRTUAL_DEVICES"] = "0"; }, "environment",
       Level::kProblem, "whole number"},
      {"two names",
       [](Facts& f) { f.environment["NVSHARE_MAX_RUNTIME_SEC"] = "300", f.environment["GPUMUX_MAX_RUNTIME"] = "5m"; },
       "environment", Level::kWarning, "both set"},
      {"misspelt variable", [](Facts& f) { f.environment["GPUMUX_QUANTOM"] = "5ms"; }, "environment", Level::kWarning,
       "GPUMUX_QUANTOM"},
      {"disabled", [](Facts& f) { f.environment["GPUMUX_DISABLE"] = "1"; }, "environment", Level::kWarning,
       "GPUMUX_DISABLE"},
      {"relative directory", [](Facts& f) { f.environment["GPUMUX_RUNTIME_DIR"] = "run"; }, "environment",
       Level::kWarning, "absolute"},
  };
  for (const Spoilt& item : all) {
    SCOPED_TRACE(item.what);
    Facts facts = sound();
    item.spoil(facts);
    Findings bad;
    for (const Finding& finding : check_all(facts)) {
      if (finding.level != Level::kOk) bad.push_back(finding);
    }
    ASSERT_EQ(bad.size(), 1u) << findings_json(bad);
    EXPECT_EQ(bad[0].check, item.check);
    EXPECT_EQ(bad[0].level, item.level);
    EXPECT_NE((bad[0].title + bad[0].advice).find(item.said), std::string::npos) << bad[0].title;
    EXPECT_FALSE(bad[0].meaning.empty());
    EXPECT_FALSE(bad[0].advice.empty());
    EXPECT_EQ(findings_exit_status(bad, false), item.level == Level::kProblem ? 1 : 0);
    EXPECT_EQ(findings_exit_status(bad, true), 1);
  }
}

TEST(ChecksTest, GoodVariablesAndOtherPeoplesAreLeftAlone) {
  Facts facts = sound();
  facts.environment = {{"GPUMUX_QUANTUM", "unlimited"},
                       {"GPUMUX_CONNECT_TIMEOUT", "5"},
                       {"GPUMUX_OVERLAP", "false"},
                       {"GPUMUX_MODE", ""},
                       {"NVSHARE_SCHEDULING_MODE", "serial"},
                       {"NVSHARE_DEBUG", "1"},
                       {"CUDA_VISIBLE_DEVICES", "0"},
                       {"LD_PRELOAD", "x"},
                       {"GPUMUX_SIM_DEVICES", "2"},
                       {"GPUMUX_DISABLE", "0"},
                       {"GPUMUX_PAGING", "off"},
                       {"GPUMUX_MEMORY", "managed"},
                       {"GPUMUX_VERIFY", "1"},
                       {"GPUMUX_MEM_LIMIT", "20G"},
                       {"GPUMUX_PRIORITY", "-5"},
                       {"GPUMUX_SHARE", "0.5"},
                       {"GPUMUX_MAX_SHARE", "30%"},
                       {"CUDA_OVERRIDE_MAX_SYNC_MS", "0.5"}};
  Findings findings;
  check_environment(facts, findings);
  ASSERT_EQ(findings.size(), 1u) << findings_json(findings);
  EXPECT_EQ(findings[0].level, Level::kOk);
}

// Every line of the table that has a variable, on both sides of its limits.
TEST(ChecksTest, VariablesOfSettingsAreJudgedByTheTable) {
  const auto level = [](const settings::Setting& setting, const std::string& text) {
    Facts facts = sound();
    facts.environment = {{std::string(setting.variable), text}};
    Findings findings;
    check_environment(facts, findings);
    return findings.at(0).level;
  };
  const auto walk = [&](std::span<const settings::Setting> table) {
    for (const settings::Setting& setting : table) {
      if (setting.variable.empty()) continue;
      for (const std::string& text : settings::good_texts(setting))
        EXPECT_EQ(level(setting, text), Level::kOk) << setting.variable << " " << text;
      for (const std::string& text : settings::bad_texts(setting)) {
        if (text.empty()) continue;  // counts as unset
        EXPECT_NE(level(setting, text), Level::kOk) << setting.variable << " " << text;
      }
    }
  };
  walk(settings::kGpuSettings);
  walk(settings::kQueueSettings);
  walk(settings::kDaemonSettings);
  walk(settings::kKubeletSettings);
}

TEST(ChecksTest, WithoutADaemonEveryProcessOnAGpuIsForeign) {
  Facts facts = sound();
  facts.snapshot.reset();
  facts.driver.gpus[0].processes = {{9, "python"}};
  Findings findings;
  check_foreign(facts, findings);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_NE(findings[0].title.find("python (9)"), std::string::npos);
}

TEST(ChecksTest, ASimulatedDriverNeedsNoKernelModule) {
  Facts facts = sound();
  facts.kernel_module = false;
  facts.driver.simulated = true;
  const Finding finding = check_driver(facts);
  EXPECT_EQ(finding.level, Level::kOk);
  EXPECT_NE(finding.title.find("simulated"), std::string::npos);
}

TEST(ReportTest, NothingIsCutOffAndNothingIsTooWide) {
  Facts facts = sound();
  facts.library = {.path = "",
                   .error = std::string("not found\x1b[31m ") + std::string(50, 'Z'),
                   .mapped = false,
                   .loader_message = ""};
  const Findings findings = check_all(facts);
  for (const std::size_t columns : {40u, 80u, 200u}) {
    std::string all;
    for (const std::string& line : findings_lines(
             findings, Output{.terminal = true, .moves = true, .colours = false, .columns = columns, .rows = 24})) {
      EXPECT_LE(display_width(line), columns) << line;
      EXPECT_EQ(line.find('\x1b'), std::string::npos);
      all += line;
    }
    EXPECT_EQ(std::count(all.begin(), all.end(), 'Z'), 50) << all;
  }
  const auto json = nlohmann::json::parse(findings_json(findings));
  EXPECT_EQ(json["problems"], 1);
  EXPECT_EQ(json["findings"].size(), findings.size());
}

TEST(ProbeTest, CrashesHangsAndFailuresAreAnswers) {
  EXPECT_EQ(run_probe([](int out) { EXPECT_EQ(::write(out, "yes", 3), 3); }, 30s).output, "yes");
  EXPECT_NE(run_probe([](int) { ::signal(SIGSEGV, SIG_DFL), ::raise(SIGKILL); }, 30s).error.find("signal 9"),
            std::string::npos);
  EXPECT_NE(run_probe([](int) { ::_exit(3); }, 30s).error.find("exit status 3"), std::string::npos);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_NE(run_probe(
                [](int) {
                  for (;;) ::pause();
                },
                50ms)
                .error.find("did not answer"),
            std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
}

// The executable itself.
class DoctorTest : public ::testing::Test {
 protected:
  // Exit status and, for each check, its worst level.
  int run(const std::vector<std::string>& variables, nlohmann::json& findings) {
    const std::string out = dir_ + "/out";
    std::vector<std::string> all{"PATH=/usr/bin:/bin", "GPUMUX_RUNTIME_DIR=" + dir_, "GPUMUX_LIBRARY=" FAKE_LIBRARY,
                                 "ASAN_OPTIONS=verify_asan_link_order=0"};
    // The first of two counts.
    all.insert(all.begin(), variables.begin(), variables.end());
    std::vector<char*> envp;
    for (std::string& variable : all) envp.push_back(variable.data());
    envp.push_back(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
      if (::freopen(out.c_str(), "w", stdout) == nullptr) ::_exit(98);
      const char* argv[] = {GPUMUX, "doctor", "--json", nullptr};
      ::execve(GPUMUX, const_cast<char* const*>(argv), envp.data());
      ::_exit(99);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    std::ifstream file(out);
    findings = nlohmann::json::parse(file, nullptr, false);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  static std::string level_of(const nlohmann::json& findings, const std::string& check) {
    for (const auto& finding : findings["findings"]) {
      if (finding["check"] == check) return finding["level"].get<std::string>();
    }
    return "none";
  }

  const TemporaryDirectory folder_;
  const std::string& dir_ = folder_.path();
};

TEST_F(DoctorTest, AFakeDriverIsFoundAndNeverInitialised) {
  nlohmann::json findings;
  EXPECT_EQ(run({"LD_LIBRARY_PATH=" FAKE_DRIVER_DIR}, findings), 0) << findings.dump(1);
  EXPECT_EQ(level_of(findings, "driver"), "ok") << findings.dump(1);
  EXPECT_EQ(level_of(findings, "gpus"), "ok");
  EXPECT_EQ(level_of(findings, "library"), "ok");
  EXPECT_EQ(level_of(findings, "daemon"), "warning");
}

TEST_F(DoctorTest, WhatIsWrongWithTheDriverIsFound) {
  nlohmann::json findings;
  EXPECT_EQ(run({"LD_LIBRARY_PATH=" FAKE_DRIVER_DIR, "FAKE_CUDA_VERSION=11040"}, findings), 1);
  EXPECT_EQ(level_of(findings, "driver"), "problem");
  EXPECT_EQ(run({"LD_LIBRARY_PATH=" FAKE_DRIVER_DIR, "FAKE_CUDA_CRASH=1"}, findings), 1);
  EXPECT_EQ(level_of(findings, "driver"), "problem");
  EXPECT_EQ(run({"LD_LIBRARY_PATH=" FAKE_DRIVER_DIR, "FAKE_NVML_INIT=18"}, findings), 1);
  EXPECT_EQ(level_of(findings, "gpus"), "problem");
  EXPECT_EQ(run({"LD_LIBRARY_PATH=" FAKE_DRIVER_DIR, "FAKE_COMPUTE_MODE=3"}, findings), 1);
  EXPECT_EQ(level_of(findings, "gpus"), "problem");
  EXPECT_EQ(run({"LD_LIBRARY_PATH=" FAKE_DRIVER_DIR, "FAKE_GPUS=0"}, findings), 1);
  EXPECT_EQ(level_of(findings, "gpus"), "problem");
}

TEST_F(DoctorTest, ALibraryThatIsNoneIsFound) {
  const std::string text = dir_ + "/libgpumux.so";
  std::ofstream(text) << "not a library";
  nlohmann::json findings;
  EXPECT_EQ(run({"LD_LIBRARY_PATH=" FAKE_DRIVER_DIR, "GPUMUX_LIBRARY=" + text}, findings), 1);
  EXPECT_EQ(level_of(findings, "library"), "problem");
}

}  // namespace
}  // namespace gpumux::cli
