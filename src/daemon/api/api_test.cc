// SPDX-License-Identifier: Apache-2.0
// Goal: the HTTP API is what docs/api.md says, and only users who may change settings can change anything. Method:
// requests over the real socket to a daemon in this process; another user is a child that has become one.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/version.h"
#include "daemon/api/api.h"
#include "daemon/test_support.h"
#include "os/runtime_dir.h"
#include "server/loop/files.h"
#include "settings/settings.h"
#include "settings/test_texts.h"

namespace gpumux::daemon {
namespace {

using namespace testing;
using Json = nlohmann::json;

constexpr uid_t kNobody = 65534;

// A process that does `body` as another user. Needs root.
OtherProcess stranger(const std::function<int()>& body) {
  return OtherProcess([body] {
    if (setgid(kNobody) != 0 || setuid(kNobody) != 0) return 99;
    return body();
  });
}

TEST(Api, ShowsTheDaemon) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  TestTenant tenant(dir.path(), "train.py");
  ASSERT_TRUE(tenant.join());
  for (const char* name : {"cuNewThing", "cuNewThing", "not a name!"}) {
    wire::Note note{.kind = wire::NoteKind::kUnknownEntry};
    wire::set_text(note.text, name);
    ASSERT_TRUE(tenant.send(note));
  }
  ASSERT_TRUE(tenant.open_seat(0, test_uuid(0)));  // answered after the notes were read
  const Json json = json_of(http(dir.path(), "GET", "/v1/daemon"));
  EXPECT_EQ(json["version"], base::version());
  EXPECT_EQ(json["pid"], getpid());
  EXPECT_EQ(json["uid"], getuid());
  EXPECT_EQ(json["runtime_dir"], dir.path());
  EXPECT_EQ(json["driver"]["version"], "13.0");
  EXPECT_EQ(json["driver"]["simulated"], true);
  EXPECT_EQ(json["tenants"], 1);
  EXPECT_GT(json["started_unix_ns"].get<std::int64_t>(), 0);
  ASSERT_EQ(json["unknown_entries"].size(), 1u) << json;
  EXPECT_EQ(json["unknown_entries"][0], (Json{{"name", "cuNewThing"}, {"count", 2}, {"programs", {"train.py"}}}));
}

TEST(Api, ShowsGpusAndSeats) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  TestTenant holder(dir.path(), "holder.py");
  TestTenant waiter(dir.path(), "evil\n\x1b[31mname\xff");
  ASSERT_TRUE(holder.join() && waiter.join() && holder.open_seat(0, test_uuid(0)) && waiter.open_seat(0, test_uuid(0)));
  Json json = json_of(http(dir.path(), "GET", "/v1/status"));
  EXPECT_EQ(json["gpus"][0]["quantum"], "auto");
  EXPECT_GT(json["gpus"][0]["quantum_ns"].get<std::int64_t>(), 0);
  // The automatic one may be over before a busy computer lets the waiter ask, and then the holder is revoked.
  ASSERT_EQ(http(dir.path(), "PATCH", "/v1/gpus/0", R"({"quantum": "1h"})").status, 200);
  ASSERT_TRUE(holder.request() && holder.wait_granted() && waiter.request());
  ASSERT_TRUE(holder.receive_a<wire::Contention>());
  // Memory and processes come from a helper thread, shortly after the start.
  ASSERT_TRUE(eventually([&] {
    json = json_of(http(dir.path(), "GET", "/v1/status"));
    return json["gpus"][0]["memory_used_bytes"] == 1 << 20;
  }));
  const Json& gpu = json["gpus"][0];
  EXPECT_EQ(gpu["index"], 0);
  EXPECT_EQ(gpu["uuid"], test_uuid(0).to_string());
  EXPECT_EQ(gpu["mode"], "auto");
  EXPECT_EQ(gpu["mode_now"], "serial");
  EXPECT_EQ(gpu["policy"], "fair");
  EXPECT_EQ(gpu["quantum"], "1h");
  EXPECT_EQ(gpu["quantum_ns"], 3'600'000'000'000);
  EXPECT_EQ(gpu["max_runtime_ns"], 300'000'000'000);
  EXPECT_EQ(gpu["refused"], "");
  // This process is a tenant, so it is not foreign.
  ASSERT_EQ(gpu["foreign"].size(), 1u);
  EXPECT_EQ(gpu["foreign"][0]["pid"], 1);
  ASSERT_EQ(gpu["seats"].size(), 2u);
  const Json& first = gpu["seats"][0];
  EXPECT_EQ(first["phase"], "holding");
  EXPECT_EQ(first["lease"], "exclusive");
  EXPECT_EQ(first["program"], "holder.py");
  EXPECT_EQ(first["pid"], getpid());
  EXPECT_EQ(first["epoch"], holder.epoch());
  EXPECT_EQ(first["grants"], 1);
  const Json& second = gpu["seats"][1];
  EXPECT_EQ(second["phase"], "waiting");
  EXPECT_EQ(second["queue_place"], 1);
  EXPECT_NE(second["waits_for"], "");
  EXPECT_EQ(second["program"], "evil??[31mname\xef\xbf\xbd");
  EXPECT_FALSE(second.contains("lease"));
}

TEST(Api, ShowsLoadAsFarAsTheDriverSaysIt) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()), fake_inventory(2));
  Json json;
  ASSERT_TRUE(eventually([&] {
    json = json_of(http(dir.path(), "GET", "/v1/status"));
    return !json["gpus"][0]["load"].empty();
  }));
  const Json first{{"utilization_percent", 97},
                   {"power_milliwatts", 312'500},
                   {"power_limit_milliwatts", 700'000},
                   {"temperature_celsius", 61}};
  EXPECT_EQ(json["gpus"][0]["load"], first);
  EXPECT_EQ(json["gpus"][1]["load"], (Json{{"power_milliwatts", 312'500}, {"temperature_celsius", 61}}));
}

TEST(Api, ShowsRecentUse) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  TestTenant holder(dir.path());
  TestTenant other(dir.path());
  ASSERT_TRUE(holder.join() && holder.open_seat(0, test_uuid(0)) && other.join() && other.open_seat(0, test_uuid(0)));
  ASSERT_TRUE(holder.request() && holder.wait_granted());
  Json json;
  ASSERT_TRUE(eventually([&] {
    json = json_of(http(dir.path(), "GET", "/v1/status"));
    return json["recent_ns"] > 0;
  }));
  const Json& seats = json["gpus"][0]["seats"];
  EXPECT_EQ(seats[0]["phase"], "holding");
  EXPECT_GT(seats[0]["recent_gpu_time_ns"], 0);
  EXPECT_LE(seats[0]["recent_gpu_time_ns"], json["recent_ns"]);
  EXPECT_EQ(seats[1]["recent_gpu_time_ns"], 0);
}

TEST(Api, RefusedAllocationsHaveNoNamesOfOthers) {
  StatusSnapshot snapshot;
  GpuStatus& gpu = snapshot.gpus.emplace_back();
  gpu.refused = {{.label = TenantLabel::make(1, 7, "secret"),
                  .why = sched::Refusal::kHostMemory,
                  .holders = {{TenantLabel::make(2, 8, "own"), 1}, {TenantLabel::make(3, 7, "secret"), 1}}}};
  snapshot.hide_names_but_of(8);
  EXPECT_EQ(gpu.refused[0].label->program, server::kHiddenName);
  EXPECT_EQ(gpu.refused[0].holders[0].label->program, "own");
  EXPECT_EQ(gpu.refused[0].holders[1].label->program, server::kHiddenName);
}

TEST(Api, ChangesSettings) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()), fake_inventory(2));
  auto answer =
      http(dir.path(), "PATCH", "/v1/gpus/1", R"({"quantum": "50ms", "mode": "concurrent", "overlap": false})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  Json json = json_of(answer);
  ASSERT_EQ(json["gpus"].size(), 1u);
  EXPECT_EQ(json["gpus"][0]["index"], 1);
  EXPECT_EQ(json["gpus"][0]["mode"], "concurrent");
  EXPECT_EQ(json["gpus"][0]["quantum"], "50ms");
  EXPECT_EQ(json["gpus"][0]["settings"]["overlap"], false);
  json = json_of(http(dir.path(), "GET", "/v1/status"));
  EXPECT_EQ(json["gpus"][0]["mode"], "auto");
  EXPECT_EQ(json["gpus"][1]["mode"], "concurrent");
  EXPECT_EQ(http(dir.path(), "PATCH", "/v1/gpus/" + test_uuid(0).to_string(), R"({"policy": "fifo"})").status, 200);
  answer = http(dir.path(), "PATCH", "/v1/gpus/all", R"({"max_runtime": "unlimited"})");
  EXPECT_EQ(json_of(answer)["gpus"].size(), 2u);
  EXPECT_FALSE(json_of(answer)["gpus"][0].contains("max_runtime_ns"));
}

// Every line of the table: PATCH takes what it may be, answers with it, and GET shows it.
TEST(Api, ChangesAndShowsEverySetting) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()), fake_inventory(1));
  for (const settings::Setting& setting : settings::kGpuSettings) {
    const std::string name(setting.name);
    for (const std::string& text : settings::good_texts(setting)) {
      GpuSettings wanted;
      ASSERT_TRUE(settings::set(wanted, name, text));
      Json shown;
      settings::show(wanted, [&](const settings::Setting& each, const std::string& value) {
        if (&each == &setting) shown = setting.is_boolean() ? Json(value == "true") : Json(value);
      });
      const Json body{{name, setting.is_boolean() ? Json(text == "true") : Json(text)}};
      const auto answer = http(dir.path(), "PATCH", "/v1/gpus/0", body.dump());
      ASSERT_EQ(answer.status, 200) << answer.body;
      EXPECT_EQ(json_of(answer)["gpus"][0]["settings"][name], shown);
    }
    const Json json = json_of(http(dir.path(), "GET", "/v1/status"));
    EXPECT_TRUE(json["gpus"][0]["settings"].contains(name));
  }
}

TEST(Api, ChangesHowATenantStands) {
  const TemporaryDirectory dir;
  auto options = TestDaemon::options_in(dir.path());
  options.flag_settings = {{"mode", "auto"}, {"quantum", "unlimited"}};
  TestDaemon daemon(std::move(options));
  TestTenant a(dir.path());
  TestTenant b(dir.path());
  ASSERT_TRUE(a.join() && b.join() && a.open_seat(0, test_uuid(0)) && b.open_seat(0, test_uuid(0)));
  ASSERT_TRUE(a.request() && a.wait_granted());
  const auto seats = [&] { return json_of(http(dir.path(), "GET", "/v1/status"))["gpus"][0]["seats"]; };
  ASSERT_EQ(seats().size(), 2u);
  const auto number_of = [&](const char* phase) {
    for (const Json& seat : seats()) {
      if (seat["phase"] == phase) return "/v1/tenants/" + std::to_string(seat["tenant"].get<std::uint64_t>());
    }
    return std::string();
  };
  const std::string target = number_of("idle");
  const auto answer = http(dir.path(), "PATCH", target, R"({"priority": 5, "share": "0.5", "max_share": "30%"})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json json = json_of(answer);
  EXPECT_EQ(json["priority"], 5);
  EXPECT_EQ(json["share"], "0.5");
  EXPECT_EQ(json["max_share"], "30%");
  // It counts at once, and the GPU takes turns from now on.
  ASSERT_TRUE(b.request());
  EXPECT_TRUE(a.yield());
  EXPECT_TRUE(b.wait_granted());
  const Json gpu = json_of(http(dir.path(), "GET", "/v1/status"))["gpus"][0];
  EXPECT_EQ(gpu["mode_now"], "serial");
  EXPECT_EQ(json_of(http(dir.path(), "PATCH", target, R"({"share": "default"})"))["share"], "1");
  EXPECT_EQ(json_of(http(dir.path(), "PATCH", target, R"({"priority": "default"})"))["priority"], 0);
  EXPECT_EQ(json_of(http(dir.path(), "PATCH", target, "{}"))["max_share"], "30%");
}

TEST(Api, ShortensARunningQuantum) {
  const TemporaryDirectory dir;
  auto options = TestDaemon::options_in(dir.path());
  options.flag_settings = {{"quantum", "unlimited"}, {"max_runtime", "unlimited"}};
  TestDaemon daemon(std::move(options));
  TestTenant a(dir.path());
  TestTenant b(dir.path());
  ASSERT_TRUE(a.join() && b.join() && a.open_seat(0, test_uuid(0)) && b.open_seat(0, test_uuid(0)));
  ASSERT_TRUE(a.request() && a.wait_granted() && b.request() && a.receive_a<wire::Contention>());
  ASSERT_EQ(http(dir.path(), "PATCH", "/v1/gpus/0", R"({"quantum": "5ms"})").status, 200);
  EXPECT_TRUE(a.yield());
  EXPECT_TRUE(b.wait_granted());
}

TEST(Api, SavesSettings) {
  const TemporaryDirectory dir;
  {
    TestDaemon daemon(TestDaemon::options_in(dir.path()));
    ASSERT_EQ(http(dir.path(), "PATCH", "/v1/gpus/0", R"({"quantum": "50ms", "save": true})").status, 200);
    ASSERT_EQ(http(dir.path(), "PATCH", "/v1/gpus/0", R"({"overlap": false, "save": true})").status, 200);
    ASSERT_EQ(http(dir.path(), "PATCH", "/v1/gpus/0", R"({"policy": "fifo"})").status, 200);
    daemon.daemon().reload();
    // The settings in the files are in force again: saved settings stay, others go.
    EXPECT_TRUE(eventually([&] {
      const Json gpu = json_of(http(dir.path(), "GET", "/v1/status"))["gpus"][0];
      return gpu["quantum"] == "50ms" && gpu["policy"] == "fair" && gpu["settings"]["overlap"] == false;
    }));
  }
  Config config;
  ASSERT_TRUE(read_config_files(config, dir.path() + "/gpumux.toml", false));
  EXPECT_EQ(config.settings_for(0, test_uuid(0).to_string()).quantum, 50ms);
}

TEST(Api, RefusesWhatIsWrong) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  struct Case {
    const char* method;
    const char* target;
    const char* body;
    int status;
    const char* says;
  };
  const Case cases[] = {
      {"GET", "/", "", 404, "nothing at this address"},
      {"POST", "/v1/gpus/0", "", 405, "GET, HEAD, PATCH only"},
      {"POST", "/v1/status", "", 405, "GET, HEAD only"},
      {"GET", "/v1/hold", "", 405, "POST only"},
      {"OPTIONS", "/v1/jobs/1/wait", "", 405, "GET, HEAD only"},
      {"GET", "/v1/gpus/all", "", 404, "no GPU 'all'"},
      {"GET", "/v1/gpus/7", "", 404, "no GPU '7'"},
      {"GET", "/v1/gpus/0/seats", "", 404, "nothing at this address"},
      {"GET", "/v1/gpus?all=1", "", 400, "it takes none"},
      {"GET", "/v1/tenants/x", "", 404, "no tenant 'x'"},
      {"GET", "/v1/tenants?limit=0", "", 400, "limit must be a number from 1 to 1000, and not '0'"},
      {"GET", "/v1/trace?limit=x", "", 400, "limit must be a number, and not 'x'"},
      {"PATCH", "/v1/gpus/7", "{}", 404, "no GPU '7'"},
      {"PATCH", "/v1/gpus/", "{}", 404, "nothing at this address"},
      {"PATCH", "/v1/gpus/GPU%2d7", "{}", 404, "no GPU 'GPU-7'"},
      {"PATCH", "/v1/gpus/0", "", 400, "JSON object"},
      {"PATCH", "/v1/gpus/0", "[]", 400, "JSON object"},
      {"PATCH", "/v1/gpus/0", R"({"colour": "red"})", 400, "there is no setting 'colour'"},
      {"PATCH", "/v1/gpus/0", R"({"quantum": "5"})", 400, "a time from 1ms to 24h"},
      {"PATCH", "/v1/gpus/0", R"({"quantum": 5})", 400, "as a string"},
      {"PATCH", "/v1/gpus/0", R"({"mode": "turbo"})", 400, "serial or concurrent"},
      {"PATCH", "/v1/gpus/0", R"({"save": "yes"})", 400, "save must be true or false"},
      {"GET", "/v1/tenants/1", "", 404, "no tenant '1'"},
      {"PATCH", "/v1/tenants/1", "{}", 404, "no tenant '1'"},
      {"GET", "/v1/trace?since=x", "", 400, "since"},
      {"GET", "/v1/trace?limit=-1", "", 400, "limit"},
      {"GET", "/v1/trace?follow=yes", "", 400, "follow"},
  };
  for (const Case& c : cases) {
    const HttpAnswer answer = http(dir.path(), c.method, c.target, c.body);
    EXPECT_EQ(answer.status, c.status) << c.method << " " << c.target << " " << c.body;
    const Json json = json_of(answer);
    ASSERT_TRUE(json["error"]["message"].is_string()) << answer.body;
    EXPECT_NE(json["error"]["message"].get<std::string>().find(c.says), std::string::npos) << answer.body;
  }
  // One wrong setting changes none.
  http(dir.path(), "PATCH", "/v1/gpus/0", R"({"mode": "concurrent", "quantum": "x"})");
  EXPECT_EQ(json_of(http(dir.path(), "GET", "/v1/status"))["gpus"][0]["mode"], "auto");
}

TEST(Api, RefusesParametersThatAnAddressDoesNotHave) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  const auto status = [&](const char* method, const std::string& target, const char* body = "") {
    return http(dir.path(), method, target, body).status;
  };
  EXPECT_EQ(status("GET", "/v1/trace?since=0"), 200u);
  EXPECT_EQ(status("GET", "/v1/trace?since=0&"), 200u);
  EXPECT_EQ(status("GET", "/v1/status?"), 200u);
  for (const char* target : {"/v1/daemon?x=1", "/v1/status?gpu=0", "/v1/trace?from=1", "/v1/trace?since=1&since=2",
                             "/v1/trace?follow", "/v1/trace?=1"}) {
    EXPECT_EQ(status("GET", target), 400u) << target;
  }
  EXPECT_EQ(status("PATCH", "/v1/gpus/all?save=1", R"({"quantum": "1h"})"), 400u);
  EXPECT_NE(json_of(http(dir.path(), "GET", "/v1/status"))["gpus"][0]["quantum"], "1h") << "nothing was changed";
  EXPECT_EQ(status("POST", "/v1/hold?pid=1"), 400u);
  const std::string why = http(dir.path(), "GET", "/v1/trace?from=1").body;
  EXPECT_NE(why.find("'from=1': it takes since, follow, limit"), std::string::npos) << why;
}

TEST(Api, TheTraceBeginsWhereItIsAskedTo) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  for (const char* quantum : {"1s", "2s", "3s", "4s"})
    ASSERT_EQ(http(dir.path(), "PATCH", "/v1/gpus/0", R"({"quantum": ")" + std::string(quantum) + "\"}").status, 200);
  const auto quanta = [&](const std::string& query) {
    std::string all;
    std::istringstream lines(http(dir.path(), "GET", "/v1/trace" + query).body);
    for (std::string line; std::getline(lines, line);) {
      const Json event = Json::parse(line);
      if (event["event"] != "settings" || !event["changes"].contains("quantum")) continue;
      all +=
          event["changes"]["quantum"][0].get<std::string>() + ">" + event["changes"]["quantum"][1].get<std::string>();
    }
    return all;
  };
  EXPECT_EQ(quanta(""), "auto>1s1s>2s2s>3s3s>4s") << "what has changed, and from what";
  EXPECT_EQ(quanta("?limit=2"), "2s>3s3s>4s");
  EXPECT_EQ(quanta("?limit=0"), "");
  EXPECT_EQ(quanta("?limit=1000"), "auto>1s1s>2s2s>3s3s>4s");
  EXPECT_EQ(quanta("?limit=3&since=3"), quanta("?since=3")) << "whichever is later";
}

TEST(Api, AProcessThatGoesOnIsDisconnectedAndHasNotEnded) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  TestTenant tenant(dir.path());
  ASSERT_TRUE(tenant.join());
  tenant.disconnect();
  std::string body;
  ASSERT_TRUE(eventually([&] {
    body = http(dir.path(), "GET", "/v1/trace?limit=1").body;
    return body.find("\"event\": \"gone\"") != std::string::npos;
  }));
  EXPECT_NE(body.find("\"detail\": \"disconnected\""), std::string::npos) << body;
}

TEST(Api, RefusesAStandingThatIsWrong) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  TestTenant tenant(dir.path());
  ASSERT_TRUE(tenant.join() && tenant.open_seat(0, test_uuid(0)));
  const auto seat = [&] { return json_of(http(dir.path(), "GET", "/v1/status"))["gpus"][0]["seats"][0]; };
  const std::string target = "/v1/tenants/" + std::to_string(seat()["tenant"].get<std::uint64_t>());
  for (const char* body :
       {"", "[5]", R"({"priority": "x"})", R"({"priority": 1001})", R"({"priority": null})", R"({"share": "0"})",
        R"({"max_share": 30})", R"({"colour": "red"})", R"({"priority": "2", "share": "x"})"}) {
    EXPECT_EQ(http(dir.path(), "PATCH", target, body).status, 400) << body;
  }
  EXPECT_EQ(seat()["priority"], 0);
}

TEST(Api, LetsStrangersLookOnlySoOften) {
  ScriptedClock clock;
  Trace trace;
  Leases leases(clock, trace);
  const auto access = server::AccessRules::make(Config(), 0, false);
  ASSERT_TRUE(access);
  Trials trials(leases);
  boost::asio::io_context loop;
  boost::asio::thread_pool pool(1);
  HostMemory host(loop, pool, 0, HostFiles());
  TenantParts tenants(leases, *access, host);
  LoopStatistics statistics;
  const TraceCounters counters;
  NoJobs jobs;
  Api api(leases, trials, tenants, *access, {}, statistics, counters, jobs);
  const auto status_of = [&](uid_t uid) {
    const server::ApiAnswer answer =
        api.answer({"GET", "/v1/status", "",
                    server::Peer{.pid = 1, .uid = uid, .groups = {}, .account = server::Account::of_user(uid)}});
    const auto* refused = std::get_if<server::ApiResponse>(&answer);
    return refused == nullptr ? 200u : refused->status;
  };
  for (std::int64_t i = 0; i < kStatusBurst; ++i) EXPECT_EQ(status_of(7), 200u);
  EXPECT_EQ(status_of(7), 429u);
  EXPECT_EQ(status_of(8), 200u);  // another user has a share of its own
  for (std::int64_t i = 0; i < 2 * kStatusBurst; ++i) EXPECT_EQ(status_of(0), 200u);
  clock.time += 10ms;
  EXPECT_EQ(status_of(7), 200u);
  EXPECT_EQ(status_of(7), 429u);
}

TEST(Api, LetsStrangersLookAndNotTouch) {
  if (getuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const TemporaryDirectory dir;
  ASSERT_EQ(chmod(dir.path().c_str(), 0755), 0);
  OtherProcess other = stranger([&] {
    if (http(dir.path(), "GET", "/v1/status").status != 200) return 1;
    const auto denied = http(dir.path(), "PATCH", "/v1/gpus/0", R"({"mode": "concurrent"})");
    if (denied.status != 403 || http(dir.path(), "GET", "/metrics").status != 403) return 2;
    return denied.body.find("\"denied\"") == std::string::npos ? 3 : 0;
  });
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  EXPECT_EQ(other.run(), 0);
  EXPECT_EQ(json_of(http(dir.path(), "GET", "/v1/status"))["gpus"][0]["mode"], "auto");
}

// A user may put its own tenant below others, and back where it was, but not above.
TEST(Api, LetsUsersChangeTheirOwnTenantsWithinBounds) {
  if (getuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const TemporaryDirectory dir;
  ASSERT_EQ(chmod(dir.path().c_str(), 0755), 0);
  const base::GpuUuid gpu = test_uuid(0);  // this process's, not its child's
  OtherProcess other = stranger([&] {
    const auto seats = [&] { return json_of(http(dir.path(), "GET", "/v1/status"))["gpus"][0]["seats"]; };
    const std::string foreign = "/v1/tenants/" + std::to_string(seats()[0]["tenant"].get<std::uint64_t>());
    if (http(dir.path(), "PATCH", foreign, R"({"priority": -1})").status != 403) return 1;
    TestTenant own(dir.path());
    if (!own.join() || !own.open_seat(0, gpu)) return 2;
    std::string target;
    for (const Json& seat : seats()) {
      if (seat["uid"] == getuid()) target = "/v1/tenants/" + std::to_string(seat["tenant"].get<std::uint64_t>());
    }
    const auto status = [&](const char* body) { return http(dir.path(), "PATCH", target, body).status; };
    if (status(R"({"priority": 1})") != 403 || status(R"({"share": "1.01"})") != 403) return 3;
    if (status(R"({"priority": -5, "share": "0.5", "max_share": "10%"})") != 200) return 4;
    return status(R"({"priority": 0, "share": "1", "max_share": "100%"})") == 200 ? 0 : 5;
  });
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  TestTenant ours(dir.path());
  ASSERT_TRUE(ours.join() && ours.open_seat(0, gpu));
  EXPECT_EQ(other.run(), 0);
  EXPECT_EQ(json_of(http(dir.path(), "GET", "/v1/status"))["gpus"][0]["seats"][0]["priority"], 0);
}

TEST(Access, IsForThoseWhoAreAllowed) {
  if (getuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const TemporaryDirectory dir;
  ASSERT_EQ(chmod(dir.path().c_str(), 0755), 0);
  auto options = TestDaemon::options_in(dir.path());
  options.config.allow_users = {"root", "4242"};
  OtherProcess other = stranger([&] {
    TestTenant tenant(dir.path());
    const auto refused = tenant.receive_a<wire::Refused>();
    if (!refused || refused->reason != wire::Reason::kDenied) return 1;
    return http(dir.path(), "GET", "/v1/status").status == 403 ? 0 : 2;
  });
  TestDaemon daemon(std::move(options));
  EXPECT_EQ(other.run(), 0);
  TestTenant tenant(dir.path());
  EXPECT_TRUE(tenant.join());
}

TEST(Access, OfAPrivateDaemonIsForItsOwnerAlone) {
  if (getuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const TemporaryDirectory dir;
  ASSERT_EQ(chmod(dir.path().c_str(), 0755), 0);
  auto options = TestDaemon::options_in(dir.path());
  options.is_private = true;
  OtherProcess other = stranger([&] { return TestTenant(dir.path()).connected() ? 1 : 0; });
  TestDaemon daemon(std::move(options));
  struct stat status {};
  ASSERT_EQ(stat((dir.path() + "/" + os::kTenantSocket).c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(other.run(), 0);
  TestTenant tenant(dir.path());
  EXPECT_TRUE(tenant.join());
}

TEST(Trace, TellsWhatHappened) {
  const TemporaryDirectory dir;
  auto options = TestDaemon::options_in(dir.path());
  options.trace_file = dir.path() + "/trace.ndjson";
  {
    TestDaemon daemon(std::move(options));
    TestTenant tenant(dir.path(), "say \"hi\"");
    ASSERT_TRUE(tenant.join() && tenant.open_seat(0, test_uuid(0)) && tenant.request() && tenant.wait_granted());
    ASSERT_TRUE(tenant.release());
    ASSERT_TRUE(tenant.send(wire::SeatOpen{.slot = 9}) && tenant.receive_a<wire::SeatRefused>());
    const auto lines = http(dir.path(), "GET", "/v1/trace").body;
    std::istringstream stream(lines);
    std::string line;
    std::vector<std::string> events;
    std::uint64_t sequence = 0;
    while (std::getline(stream, line)) {
      const Json json = Json::parse(line, nullptr, false);
      ASSERT_FALSE(json.is_discarded()) << line;
      EXPECT_EQ(json["sequence"], ++sequence);
      events.push_back(json["event"]);
      if (json["event"] == "grant") {
        EXPECT_EQ(json["lease"], "exclusive");
        EXPECT_EQ(json["pid"], getpid());
        EXPECT_EQ(json["program"], "say \"hi\"");
        EXPECT_EQ(json["epoch"], tenant.epoch());
        EXPECT_EQ(json["gpu"], 0);
      }
    }
    EXPECT_EQ(events, (std::vector<std::string>{"connect", "open", "request", "grant", "drained"}));
    const auto later = http(dir.path(), "GET", "/v1/trace?since=4").body;
    EXPECT_EQ(Json::parse(later.substr(0, later.find('\n')))["sequence"], 4);
  }
  const auto file = server::read_file(dir.path() + "/trace.ndjson", 1 << 20);
  ASSERT_TRUE(file);
  EXPECT_NE(file->find("\"event\": \"grant\""), std::string::npos);
}

TEST(Trace, IsFollowed) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  const os::FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = dir.path() + "/" + os::kApiSocket;
  std::memcpy(address.sun_path, path.data(), path.size());
  ASSERT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const std::string request = "GET /v1/trace?follow=1 HTTP/1.1\r\nHost: gpumux\r\n\r\n";
  ASSERT_EQ(::send(socket.get(), request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  std::string text;
  const auto sees = [&](const std::string& what) {
    return eventually([&] {
      char buffer[4096];
      const ssize_t got = ::recv(socket.get(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (got > 0) text.append(buffer, static_cast<std::size_t>(got));
      return text.find(what) != std::string::npos;
    });
  };
  ASSERT_TRUE(sees("200 OK"));
  TestTenant tenant(dir.path());
  ASSERT_TRUE(tenant.join() && tenant.open_seat(0, test_uuid(0)));
  EXPECT_TRUE(sees("\"event\": \"open\""));
  ASSERT_TRUE(tenant.request());
  EXPECT_TRUE(sees("\"event\": \"grant\""));
}

// A client of HTTP/1.0 knows no chunks: the end of the connection is the end of the trace.
TEST(Trace, IsSentToOlderClientsAsItIs) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  TestTenant tenant(dir.path());
  ASSERT_TRUE(tenant.join() && tenant.open_seat(0, test_uuid(0)));
  const os::FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = dir.path() + "/" + os::kApiSocket;
  std::memcpy(address.sun_path, path.data(), path.size());
  ASSERT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const std::string request = "GET /v1/trace HTTP/1.0\r\n\r\n";
  ASSERT_EQ(::send(socket.get(), request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  std::string text;
  EXPECT_TRUE(eventually([&] {
    char buffer[4096];
    const ssize_t got = ::recv(socket.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (got > 0) text.append(buffer, static_cast<std::size_t>(got));
    return got == 0;
  }));
  const std::size_t body = text.find("\r\n\r\n");
  ASSERT_NE(body, std::string::npos) << text;
  EXPECT_EQ(text.find("chunked"), std::string::npos) << text;
  EXPECT_EQ(text.substr(body + 4, 1), "{") << text;
  EXPECT_EQ(text.substr(text.size() - 2), "}\n") << text;
}

}  // namespace
}  // namespace gpumux::daemon
