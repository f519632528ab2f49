// SPDX-License-Identifier: Apache-2.0
// Goal: a submission is run as it is, or it is refused with words; documents come back as they were. Method: bodies and
// documents, whole and with each part wrong, and the specs that a runner would get from them.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>

#include "jobs/service/json_fields.h"
#include "jobs/service/launch.h"
#include "jobs/service/queue_config.h"
#include "jobs/service/submission.h"
#include "settings/settings.h"

namespace gpumux::jobs {
namespace {

using namespace std::chrono_literals;

std::string body(const std::string& more = "") {
  return R"({"arguments": ["python", "-c", "pass"], "directory": "/data", "environment": ["A=b"])" +
         (more.empty() ? "" : ", " + more) + "}";
}

TEST(Submission, IsReadWhole) {
  const auto read = parse_submission(body(
      R"("gpu_ids": [2, 0], "memory_bytes": 8000000000, "time_limit_ns": 600000000000, "on_time_limit": "cancel",
         "priority": -3, "name": "n", "setup_command": "s", "output": "o", "append": true, "exclusive": true,
         "after": [{"job": 5, "need": "ok"}, {"job": 6, "need": "any"}], "array": "3,5-7%2", "requeue": true,
         "held": true, "umask": 63, "nice": 5, "token": "t", "window": {"rows": 24, "columns": 80})"));
  ASSERT_TRUE(read) << read.error().message();
  const auto& spec = read->spec;
  EXPECT_EQ(spec.gpus.to_string(), "0,2");
  EXPECT_EQ(read->document.gpu_order, (std::vector<std::uint32_t>{2, 0}));
  EXPECT_EQ(spec.memory, 8000000000u);
  EXPECT_EQ(spec.time_limit, 600s);
  EXPECT_EQ(spec.on_limit, OnLimit::kCancel);
  EXPECT_EQ(spec.priority, -3);
  EXPECT_TRUE(spec.exclusive && spec.requeue && spec.held);
  ASSERT_EQ(spec.after.size(), 2u);
  EXPECT_EQ(spec.after[1].on.value, 6u);
  EXPECT_EQ(read->elements, (std::vector<std::uint32_t>{3, 5, 6, 7}));
  EXPECT_EQ(spec.array_limit, 2u);
  EXPECT_EQ(read->name, "n");
  EXPECT_EQ(read->token, "t");
  EXPECT_EQ(read->document.umask, 077u);
  EXPECT_EQ(read->document.nice, 5);
}

TEST(Submission, HasItsProgramsName) {
  const auto name = [](const std::string& program) {
    const auto read = parse_submission(R"({"arguments": [")" + program + R"("], "directory": "/", "environment": []})");
    return read ? read->name : read.error().message();
  };
  EXPECT_EQ(name("/usr/bin/python3"), "python3");
  EXPECT_EQ(name("./a/"), "a");
  EXPECT_EQ(name("/"), "/");
  EXPECT_EQ(name(std::string(1000, 'x')).size(), 256u);
}

std::string dependencies(int count) {
  std::string text;
  for (int i = 1; i <= count; ++i) text += (i > 1 ? "," : "") + (R"({"need": "ok", "job": )" + std::to_string(i)) + "}";
  return text;
}

TEST(Submission, ComesAfterAJobOnce) {
  const auto read = parse_submission(body(R"("after": [)" + dependencies(2) + "," + dependencies(3) + "]"));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->spec.after.size(), 3u);
}

TEST(Submission, ComesAfterSoManyJobsAndNoMore) {
  EXPECT_TRUE(parse_submission(body(R"("after": [)" + dependencies(100) + "]")));
  const auto refused = parse_submission(body(R"("after": [)" + dependencies(101) + "]"));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("after 100 others"), std::string::npos) << refused.error().message();
}

TEST(Submission, SaysWhatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("gpus": 0)", "gpus must be a whole number from 1"},
      {R"("gpus": 1, "gpu_ids": [0])", "either"},
      {R"("gpu_ids": [])", "list of GPUs"},
      {R"("gpu_ids": [1, 1])", "twice"},
      {R"("priority": 1.5)", "priority must be"},
      {R"("time_limit_ns": -1)", "time_limit_ns must be"},
      {R"("on_time_limit": "stop")", "suspend or cancel"},
      {R"("after": [{"job": 0, "need": "ok"}])", "job must be"},
      {R"("after": [{"job": 1, "need": "maybe"}])", "need is ok or any"},
      {R"("array": "1-0")", "no range"},
      {R"("array": "0-9999", "after": [)" + dependencies(11) + "]", "more than 100000 dependencies"},
      {R"("array": "0-9", "interactive": true)", "interactive"},
      {R"("umask": 512)", "umask"},
      {R"("output": "a\u0000b")", "zero byte"},
      {R"("surprise": 1)", "no field 'surprise'"},
      {R"("name": {"base64": "%"})", "base64"},
  };
  for (const auto& [more, text] : cases) {
    const auto read = parse_submission(body(more));
    ASSERT_FALSE(read) << more;
    EXPECT_EQ(read.error().code, base::Code::kInvalid);
    EXPECT_NE(read.error().message().find(text), std::string::npos) << more << ": " << read.error().message();
  }
  for (const char* whole : {"", "[]", "{", "null", R"({"arguments": ["a"]})", R"({"arguments": [], "directory": "/"})"})
    EXPECT_FALSE(parse_submission(whole)) << whole;
  EXPECT_FALSE(parse_submission(std::string(100'000, '[')));
  EXPECT_FALSE(parse_submission(R"({"x": )" + std::string(100'000, '[') + "}"));
  std::string empty_lists = R"({"x": [[])";
  for (int i = 0; i < 1'100'000; ++i) empty_lists += ",[]";
  const auto bounded = parse_bounded_json(empty_lists + "]}");
  ASSERT_FALSE(bounded);
  EXPECT_NE(bounded.error().message().find("values in the body"), std::string::npos);
}

TEST(Submission, AnyBytesAreSafe) {
  std::mt19937 random(7);
  const std::string whole = body(R"("gpu_ids": [2, 0], "array": "3,5-7%2", "after": [{"job": 5, "need": "ok"}])");
  for (int i = 0; i < 20'000; ++i) {
    std::string changed = whole;
    for (int k = 0; k < 3; ++k) changed[random() % changed.size()] = static_cast<char>(random());
    static_cast<void>(parse_submission(changed));
    static_cast<void>(parse_document(changed));
  }
}

TEST(Array, IsReadAsPeopleWriteIt) {
  const auto indices = [](const char* text) {
    const auto read = parse_array(text);
    std::string line;
    for (const std::uint32_t index : read ? read->indices : std::vector<std::uint32_t>{})
      line += std::to_string(index) + " ";
    return read ? line + "%" + std::to_string(read->at_once) : "refused";
  };
  EXPECT_EQ(indices("0-3"), "0 1 2 3 %0");
  EXPECT_EQ(indices("7"), "7 %0");
  EXPECT_EQ(indices("5,1-2%1"), "1 2 5 %1");
  EXPECT_EQ(indices("0-10:4%3"), "0 4 8 %3");
  for (const char* wrong :
       {"", "a", "-1", "1-", "2-1", "1,1", "0-3,2", "1:2", "0-4:0", "1%0", "1%", "%1", "0-10000", "1,,2"})
    EXPECT_EQ(indices(wrong), "refused") << wrong;
}

JobDocument document() {
  JobDocument document;
  document.submitter = {.uid = 1000,
                        .gid = 100,
                        .user_name = "eva",
                        .home = "/data/eva",
                        .groups = {100, 27},
                        .limits = {{.resource = 7, .soft = 1024, .hard = ~0ull}}};
  document.arguments = {"sh", "-c", std::string("\xff\n\"'", 4), ""};
  document.directory = "/data";
  document.environment = {"A=b", "LANG=\x80"};
  return document;
}

LaunchedJob job() {
  return {.id = {17},
          .attempt = 1,
          .array = {16},
          .array_index = 3,
          .name = "a/b",
          .gpus = {0, 2},
          .memory = 0,
          .priority = 4};
}

TEST(Document, ComesBackAsItWas) {
  JobDocument plain = document();
  EXPECT_EQ(to_text(*parse_document(to_text(plain))), to_text(plain));
  JobDocument full = document();
  full.setup_command = "conda activate x";
  full.output = "%j";
  full.append = full.interactive = true;
  full.window = {24, 80};
  full.umask = 077;
  full.nice = -3;
  full.gpu_order = {2, 0};
  full.submitter.no_new_privs = true;
  const auto back = parse_document(to_text(full));
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(back->arguments, full.arguments);
  EXPECT_EQ(back->environment, full.environment);
  EXPECT_EQ(back->submitter.limits[0].hard, ~0ull);
  EXPECT_EQ(back->gpu_order, full.gpu_order);
  EXPECT_EQ(back->nice, -3);
  EXPECT_TRUE(back->submitter.no_new_privs);
  EXPECT_EQ(to_text(*back), to_text(full));
}

TEST(Launch, GivesNobodyANiceValueThatHeCouldNotHaveSet) {
  JobDocument wanted = document();
  const auto nice_of = [&](int nice, std::uint64_t soft_limit) {
    wanted.nice = nice;
    wanted.submitter.limits = {{.resource = RLIMIT_NICE, .soft = soft_limit, .hard = soft_limit}};
    const auto spec = make_runner_spec(wanted, job(), {});
    return spec ? spec->nice : 99;
  };
  EXPECT_EQ(nice_of(-20, 0), 0);
  EXPECT_EQ(nice_of(7, 0), 7);
  EXPECT_EQ(nice_of(-20, 25), -5);
  EXPECT_EQ(nice_of(-3, 25), -3);
  EXPECT_EQ(nice_of(-20, RLIM_INFINITY), -20);
  wanted.submitter.uid = 0;
  EXPECT_EQ(nice_of(-20, 0), -20);
}

TEST(Log, IsWhereThePatternSays) {
  JobDocument document = jobs::document();
  const auto path = [&](const std::string& output) {
    document.output = output;
    return log_path(document, job(), "ab").value_or("refused");
  };
  EXPECT_EQ(path(""), "/data/eva/.local/state/gpumux/logs/ab/17.log");
  EXPECT_EQ(path("run-%j-%a.log"), "/data/run-17-3.log");
  EXPECT_EQ(path("/logs/%u/%n"), "/logs/eva/a_b") << "a name leads nowhere else";
  EXPECT_EQ(path("100%%"), "/data/100%");
  for (const char* wrong : {"%", "%z", "a%", "dir/"}) EXPECT_EQ(path(wrong), "refused") << wrong;
  document.submitter.home = "";
  EXPECT_EQ(path(""), "refused");
  document.environment.push_back("HOME=relative");
  EXPECT_EQ(path(""), "refused") << "a relative path counts as none";
  document.environment.back() = "HOME=/data/eva-2";
  EXPECT_EQ(path(""), "/data/eva-2/.local/state/gpumux/logs/ab/17.log") << "the user database does not know the user";
  document.submitter.home = "/data/eva";
  EXPECT_EQ(path(""), "/data/eva/.local/state/gpumux/logs/ab/17.log");
  document.submitter.home = "";
  document.environment.pop_back();
  document.environment.push_back("XDG_STATE_HOME=relative");
  EXPECT_EQ(path(""), "refused") << "a relative path counts as none";
  document.environment.back() = "XDG_STATE_HOME=/scratch/eva";
  EXPECT_EQ(path(""), "/scratch/eva/gpumux/logs/ab/17.log");
}

TEST(Launch, SetsWhatTheJobIsToSee) {
  const LaunchSettings settings{.runtime_dir = "/run/gpumux",
                                .library = "/usr/lib/gpumux/libgpumux.so",
                                .attach_dir = "/run/gpumux/attach",
                                .store_id = "ab"};
  JobDocument document = jobs::document();
  document.environment.push_back("GPUMUX_MEM_LIMIT=1G");
  const auto spec = make_runner_spec(document, job(), settings);
  ASSERT_TRUE(spec) << spec.error().message();
  std::map<std::string, wire::SetHow> late;
  for (const wire::LateVariable& variable : spec->late_environment) late[variable.entry] = variable.how;
  using wire::SetHow;
  const std::map<std::string, SetHow> expected = {{"CUDA_DEVICE_ORDER=PCI_BUS_ID", SetHow::kSet},
                                                  {"CUDA_VISIBLE_DEVICES=0,2", SetHow::kSet},
                                                  {"PYTHONUNBUFFERED=1", SetHow::kIfUnset},
                                                  {"GPUMUX_JOB_ID=17", SetHow::kSet},
                                                  {"GPUMUX_ARRAY_ID=16", SetHow::kSet},
                                                  {"GPUMUX_ARRAY_INDEX=3", SetHow::kSet},
                                                  {"GPUMUX_RUN_ID=job-ab-17-1", SetHow::kSet},
                                                  {"GPUMUX_RUNTIME_DIR=/run/gpumux", SetHow::kSet},
                                                  {"GPUMUX_PRIORITY=4", SetHow::kSet},
                                                  {"GPUMUX_NAME=a/b", SetHow::kIfUnset},
                                                  {"LD_PRELOAD=/usr/lib/gpumux/libgpumux.so", SetHow::kPreload}};
  EXPECT_EQ(late, expected);
  EXPECT_EQ(std::count(spec->environment.begin(), spec->environment.end(), "GPUMUX_MEM_LIMIT=1G"), 0);
  EXPECT_EQ(spec->gid, 100u);
  EXPECT_EQ(spec->groups, (std::vector<std::uint32_t>{100, 27})) << "those that the submitter had, and no others";
  EXPECT_FALSE(spec->no_new_privs);
  EXPECT_EQ(spec->log_opening, wire::LogOpening::kOurs);

  LaunchedJob again = job();
  again.attempt = 2;
  again.memory = 5u << 20;
  document.gpu_order = {2, 0};
  document.output = "/x";
  document.submitter.no_new_privs = true;
  const auto second = make_runner_spec(document, again, settings);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->log_opening, wire::LogOpening::kUsersAppend) << "what the first attempt has printed stays";
  EXPECT_TRUE(second->no_new_privs);
  const auto has = [&](const char* entry) {
    return std::any_of(second->late_environment.begin(), second->late_environment.end(),
                       [&](const auto& variable) { return variable.entry == entry; });
  };
  EXPECT_TRUE(has("CUDA_VISIBLE_DEVICES=2,0")) << "in the order in which they were asked for";
  EXPECT_TRUE(has("GPUMUX_MEM_LIMIT=5242880"));
}

// `gpumux submit` in a job hands in that job's variables as well.
TEST(Launch, LeavesNothingOfTheJobThatItWasSubmittedIn) {
  const LaunchSettings settings{
      .runtime_dir = "/run/gpumux", .library = "", .attach_dir = "/run/gpumux/attach", .store_id = "ab"};
  const std::vector<std::string> outer = {"GPUMUX_JOB_ID=9", "GPUMUX_ARRAY_ID=8", "GPUMUX_ARRAY_INDEX=1",
                                          "GPUMUX_NAME=outer"};
  JobDocument document = jobs::document();
  document.environment.insert(document.environment.end(), outer.begin(), outer.end());
  document.environment.push_back("GPUMUX_RUN_ID=job-ab-9-1");
  LaunchedJob inner = job();
  inner.array = kNoJob;
  const auto spec = make_runner_spec(document, inner, settings);
  ASSERT_TRUE(spec) << spec.error().message();
  for (const std::string& entry : outer)
    EXPECT_EQ(std::count(spec->environment.begin(), spec->environment.end(), entry), 0) << entry;

  // Outside of any run the name is the user's own word.
  document.environment.pop_back();
  const auto own = make_runner_spec(document, inner, settings);
  ASSERT_TRUE(own) << own.error().message();
  EXPECT_EQ(std::count(own->environment.begin(), own->environment.end(), "GPUMUX_NAME=outer"), 1);
}

TEST(Submitter, HasTheLimitsOfItsProcess) {
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  auto pidfd = os::open_pidfd(::getpid());
  ASSERT_TRUE(pidfd);
  server::Peer peer{.pid = ::getpid(),
                    .uid = ::geteuid(),
                    .groups = {::getegid(), 7},
                    .account = {},
                    .process = std::make_shared<const os::FileDescriptor>(std::move(*pidfd))};
  const auto who = look_at_submitter(peer);
  ASSERT_TRUE(who) << who.error().message();
  EXPECT_EQ(who->limits.size(), 16u);
  const auto found = std::find_if(who->limits.begin(), who->limits.end(),
                                  [](const auto& limit) { return limit.resource == RLIMIT_NOFILE; });
  ASSERT_NE(found, who->limits.end());
  EXPECT_EQ(found->soft, files.rlim_cur);
  EXPECT_EQ(found->hard, files.rlim_max);
  // A process that does not exist, and another user's.
  EXPECT_EQ(look_at_submitter({.pid = 0, .uid = ::geteuid(), .groups = {}}).error().code, base::Code::kDenied);
  EXPECT_EQ(look_at_submitter({.pid = ::getpid(), .uid = ::geteuid() + 1, .groups = {}}).error().code,
            base::Code::kDenied);
  // One that has ended, though its number is a process of the same user's again.
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  auto ended = os::open_pidfd(child);
  ASSERT_TRUE(ended);
  ::waitpid(child, nullptr, 0);
  peer.process = std::make_shared<const os::FileDescriptor>(std::move(*ended));
  EXPECT_EQ(look_at_submitter(peer).error().code, base::Code::kDenied);
  EXPECT_TRUE(parse_limits("").empty());
  EXPECT_TRUE(parse_limits("\nMax open files   12").empty());
}

TEST(Submitter, HasWhatConfinesItsProcess) {
  const auto read = [](const char* text) {
    const Confinement found = parse_confinement(text);
    return std::to_string(found.no_new_privs) + " " + std::to_string(found.seccomp_filters);
  };
  EXPECT_EQ(read("Name:\tx\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\nCpus:\t1\n"), "1 3");
  EXPECT_EQ(read("Name:\tx\nNoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t0\n"), "0 0");
  EXPECT_EQ(read("Name:\tx\nNoNewPrivs:\t0\nSeccomp:\t2\n"), "0 1") << "an older kernel";
  EXPECT_EQ(read("Name:\tNoNewPrivs:\t1\n"), "0 0") << "a name is no line";
  EXPECT_EQ(read(""), "0 0");
  EXPECT_EQ(read("\nNoNewPrivs:"), "0 0");
}

TEST(Submitter, HasTheGroupsOfItsProcessAndNotOfALogin) {
  auto self = os::open_pidfd(::getpid());
  ASSERT_TRUE(self);
  const auto process = std::make_shared<const os::FileDescriptor>(std::move(*self));
  const auto who = look_at_submitter({.pid = ::getpid(), .uid = ::geteuid(), .groups = {4711, 7}, .process = process});
  ASSERT_TRUE(who) << who.error().message();
  EXPECT_EQ(who->gid, 4711u);
  EXPECT_EQ(who->groups, std::vector<gid_t>{7});
}

TEST(QueueSettings, AreReadAndRefused) {
  settings::QueueSettings config;
  const std::vector<std::pair<std::string, std::string>> good = {
      {"order", "fifo"},           {"half_life", "12h"},   {"default_mem", "20G"}, {"oversubscribe", "1.5"},
      {"max_job_time", "1h"},      {"preempt", "true"},    {"privacy", "own"},     {"max_running", "3"},
      {"max_queued", "unlimited"}, {"priority_cap", "-5"}, {"cancel_grace", "0s"}, {"history", "24h"}};
  for (const auto& [name, value] : good) EXPECT_TRUE(settings::set(config, name, value)) << name;
  EXPECT_EQ(config.oversubscribe, 1500u);
  EXPECT_EQ(config.default_mem, std::uint64_t{20} << 30);
  EXPECT_EQ(config.priority_cap, -5);
  const auto core = core_settings(config);
  EXPECT_EQ(core.oversubscribe, 1500u);
  EXPECT_EQ(core.default_memory, std::uint64_t{20} << 30);
  EXPECT_EQ(core.max_time, std::chrono::hours(1));
  EXPECT_EQ(core.limits.running, 3u);
  EXPECT_TRUE(core.limits.queued.is_unlimited());
  EXPECT_EQ(core_settings({}).max_time, kNoLimit);
  EXPECT_EQ(core_settings({}).default_memory, 0u);
  const std::vector<std::pair<std::string, std::string>> bad = {{"order", "random"},
                                                                {"half_life", "0s"},
                                                                {"default_mem", "20"},
                                                                {"oversubscribe", "0.5"},
                                                                {"oversubscribe", "1.2345"},
                                                                {"oversubscribe", "1."},
                                                                {"max_job_time", "10"},
                                                                {"preempt", "1"},
                                                                {"privacy", ""},
                                                                {"max_running", "-1"},
                                                                {"nothing", "1"}};
  for (const auto& [name, value] : bad) {
    const auto set = settings::set(config, name, value);
    ASSERT_FALSE(set) << name << " " << value;
    EXPECT_NE(set.error().message().find(name), std::string::npos);
  }
}

}  // namespace
}  // namespace gpumux::jobs
