// SPDX-License-Identifier: Apache-2.0
// The mode that gives more (daemon/gpus/gain.h) through a whole daemon. Goal: the submissions that programs report
// decide, the choice follows them, status says why, and no program's words harm others. Method: tenants that speak by
// hand, always want the GPU, and get done what is written down for each way.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "daemon/test_support.h"
#include "wire/lease_page.h"

namespace gpumux::daemon::testing {
namespace {

using Json = nlohmann::json;

// Submissions a millisecond.
struct Speed {
  std::uint64_t at_once = 0;
  std::uint64_t by_turns = 0;
};

// So far apart that however late a busy machine asks and answers, neither looks like the other.
constexpr Speed kMoreByTurns{10, 90};
constexpr Speed kMoreAtOnce{90, 10};

// A program that always has work. Its memory is small, and known.
class Busy : public TestTenant {
 public:
  using TestTenant::TestTenant;
  bool begin() { return join() && open_seat(0, test_uuid(0)) && request(); }

  // Reads the messages since the last call, and counts the work that the program has done in that time.
  void go(Speed speed) {
    const auto now = std::chrono::steady_clock::now();
    const bool is_shared = (word() & wire::kGranted) != 0 && (word() & wire::kExclusive) == 0;
    done_ += static_cast<std::uint64_t>((now - last_).count()) * (is_shared ? speed.at_once : speed.by_turns);
    last_ = now;
    while (const auto message = receive(0ms)) {
      if (const auto* measure = std::get_if<wire::Measure>(&*message)) {
        ++questions;
        if (answers) send(wire::Measured{.slot = 0, .question = measure->question, .submissions = done_ / 1'000'000});
      } else if (const auto* room = std::get_if<wire::Room>(&*message)) {
        send(wire::Memory{.slot = 0, .room_sequence = room->sequence});
      } else if (const auto* revoke = std::get_if<wire::Revoke>(&*message)) {
        send(wire::RevokeSeen{.slot = 0, .epoch = revoke->epoch});
        send(wire::GateClosed{.slot = 0, .epoch = revoke->epoch});
        send(wire::Drained{.slot = 0, .epoch = revoke->epoch});
        request();
      }
    }
  }

  bool answers = true;
  int questions = 0;

 private:
  std::uint64_t done_ = 0;  // millionths of a submission
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// The reason ends with the mode in force, also in the middle of a trial.
bool agrees_with_itself(const Json& gpu) {
  const std::string why = gpu["mode_why"];
  const char* end = gpu["mode_now"] == "serial" ? ": they take turns" : ": they run at once";
  return why.empty() || why.ends_with(end);
}

struct Machine {
  TemporaryDirectory dir;
  TestDaemon daemon;
  std::vector<std::unique_ptr<Busy>> programs;

  explicit Machine(std::vector<Assignment> settings = {}) : daemon(options(dir, std::move(settings))) {
    for (int i = 0; i < 3; ++i) {
      programs.push_back(std::make_unique<Busy>(dir.path(), "program" + std::to_string(i)));
      EXPECT_TRUE(programs.back()->begin());
    }
  }
  static DaemonOptions options(const TemporaryDirectory& dir, std::vector<Assignment> settings) {
    auto options = TestDaemon::options_in(dir.path());
    // Short turns make short windows, and the next trial comes the sooner.
    options.flag_settings = {{"quantum", "5ms"}};
    options.flag_settings.insert(options.flag_settings.end(), settings.begin(), settings.end());
    return options;
  }
  Json gpu() const { return Json::parse(http(dir.path(), "GET", "/v1/status").body)["gpus"][0]; }

  // All programs go on until the GPU is as wanted. Asked seldom: status is for people.
  bool reaches(Speed speed, const std::function<bool(const Json&)>& is_wanted) {
    auto next = std::chrono::steady_clock::now();
    return eventually(
        [&] {
          for (const auto& program : programs) program->go(speed);
          if (std::chrono::steady_clock::now() < next) return false;
          next = std::chrono::steady_clock::now() + 20ms;
          const Json now = gpu();
          EXPECT_TRUE(agrees_with_itself(now)) << now["mode_now"] << ", " << now["mode_why"];
          return is_wanted(now);
        },
        60s);
  }
};

bool has_chosen(const Json& gpu, const std::string& what) {
  const std::string why = gpu["mode_why"];
  return gpu.contains("measured") && why.find("of the speed") != std::string::npos && why.ends_with(": they " + what);
}

TEST(DaemonMode, FollowsWhatGivesMore) {
  Machine machine;
  EXPECT_TRUE(machine.reaches(
      kMoreByTurns, [](const Json& gpu) { return gpu["mode_now"] == "serial" && has_chosen(gpu, "take turns"); }));
  const Json measured = machine.gpu()["measured"];
  EXPECT_GT(measured["by_turns_permille"], 1300);
  EXPECT_EQ(measured["has_pauses"], false);
  // Another load, which gets more done at once: a trial comes as soon as it is seen that it is another.
  EXPECT_TRUE(machine.reaches(
      kMoreAtOnce, [](const Json& gpu) { return gpu["mode_now"] == "concurrent" && has_chosen(gpu, "run at once"); }));
  for (const auto& program : machine.programs) EXPECT_TRUE(program->wait_granted());
  // Nothing to choose any more.
  machine.programs.resize(1);
  EXPECT_TRUE(machine.reaches(kMoreAtOnce, [](const Json& gpu) { return gpu["mode_why"].get<std::string>().empty(); }));
}

TEST(DaemonMode, IsNotMeasuredUnlessWanted) {
  Machine machine(std::vector<Assignment>{{"auto_by_gain", "false"}});
  EXPECT_TRUE(machine.reaches(kMoreByTurns, [](const Json& gpu) { return gpu["mode_now"] == "concurrent"; }));
  EXPECT_EQ(machine.gpu()["mode_why"], "their memory fits together: they run at once");
  const auto after = std::chrono::steady_clock::now() + 1500ms;  // the first look would have been over
  EXPECT_TRUE(machine.reaches(kMoreByTurns, [&](const Json&) { return std::chrono::steady_clock::now() > after; }));
  for (const auto& program : machine.programs) EXPECT_EQ(program->questions, 0);
  // Changed while they run, it holds from that moment on.
  EXPECT_EQ(http(machine.dir.path(), "PATCH", "/v1/gpus/0", R"({"auto_by_gain": true})").status, 200);
  EXPECT_TRUE(machine.reaches(kMoreByTurns, [](const Json& gpu) { return has_chosen(gpu, "take turns"); }));
  EXPECT_EQ(http(machine.dir.path(), "PATCH", "/v1/gpus/0", R"({"auto_by_gain": false})").status, 200);
  EXPECT_TRUE(machine.reaches(kMoreByTurns, [](const Json& gpu) { return gpu["mode_now"] == "concurrent"; }));
}

// An unlimited quantum, and then a tenant of a higher priority: the reason is another one.
TEST(DaemonMode, SaysWhyItIsWhatItIs) {
  Machine machine(std::vector<Assignment>{{"quantum", "unlimited"}});
  EXPECT_TRUE(machine.reaches(kMoreByTurns, [](const Json& gpu) {
    return gpu["mode_now"] == "concurrent" && gpu["mode_why"].get<std::string>().find("too long") != std::string::npos;
  }));
  const std::string tenant = std::to_string(machine.gpu()["seats"][0]["tenant"].get<std::uint64_t>());
  EXPECT_EQ(http(machine.dir.path(), "PATCH", "/v1/tenants/" + tenant, R"({"priority": 5})").status, 200);
  EXPECT_TRUE(machine.reaches(kMoreByTurns, [](const Json& gpu) {
    return gpu["mode_now"] == "serial" && gpu["mode_why"].get<std::string>().find("priority") != std::string::npos;
  }));
}

// One never answers, and one answers without a question, with any number: the third and fourth are served all the same.
TEST(DaemonMode, WhoDoesNotAnswerOrLiesHarmsNobody) {
  Machine machine;
  machine.programs[0]->answers = false;
  machine.programs.push_back(std::make_unique<Busy>(machine.dir.path(), "more"));
  ASSERT_TRUE(machine.programs.back()->begin());
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  Busy& liar = *machine.programs[1];
  EXPECT_TRUE(machine.reaches(kMoreByTurns, [&](const Json& gpu) {
    for (int i = 0; i < 20; ++i)
      liar.send(wire::Measured{.slot = static_cast<std::uint32_t>(random() % 64),
                               .question = static_cast<std::uint32_t>(random() % 20),
                               .submissions = random() >> (random() % 64)});
    return has_chosen(gpu, "take turns");
  }));
  EXPECT_TRUE(liar.send(wire::Measured{.slot = 64}));
  EXPECT_TRUE(liar.is_dropped());
}

}  // namespace
}  // namespace gpumux::daemon::testing
