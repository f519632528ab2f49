// SPDX-License-Identifier: Apache-2.0
// Goal: a wrong standing or GPU is refused before the daemon is asked, with what is allowed. Method: both sides of
// every limit.
#include "cli/views/settings_change.h"

#include <gtest/gtest.h>

#include "settings/settings.h"

namespace gpumux::cli {
namespace {

TEST(CheckStandingTest, TakesWhatIsDocumentedAndNothingElse) {
  const std::vector<std::pair<const char*, std::vector<const char*>>> good{
      {"priority", {"5", "-1000", "default"}}, {"share", {"2", "0.5", "default"}}, {"max_share", {"30%", "default"}}};
  for (const auto& [name, values] : good) {
    for (const char* value : values) EXPECT_TRUE(check_standing(name, value)) << name << " " << value;
  }
  const std::vector<std::pair<const char*, std::vector<const char*>>> bad{
      {"priority", {"", "high", "1001"}}, {"share", {"0", "2x"}}, {"max_share", {"30", "0%", "101%"}}};
  for (const auto& [name, values] : bad) {
    for (const char* value : values) EXPECT_FALSE(check_standing(name, value)) << name << " " << value;
  }
  EXPECT_NE(check_standing("max_share", "30").error().what.find("--max-share cannot be '30'"), std::string::npos);
}

TEST(FindTenantTest, GoesByProcessIdAndThenByNumber) {
  std::vector<api_client::Gpu> gpus(2);
  const auto add = [&](std::size_t gpu, std::uint64_t tenant, std::int64_t pid) {
    api_client::Seat& seat = gpus[gpu].seats.emplace_back();
    seat.tenant = tenant;
    seat.pid = pid;
  };
  add(0, 1, 4711);
  add(0, 2, 0);  // in a pid namespace that is not seen from here
  add(1, 4711, 2);
  EXPECT_EQ(find_tenant(gpus, "4711").value_or(0), 1u);
  EXPECT_EQ(find_tenant(gpus, "2").value_or(0), 4711u);
  EXPECT_EQ(find_tenant(gpus, "1").value_or(0), 1u);
  EXPECT_EQ(find_tenant(gpus, "77").error().code, base::Code::kNotFound);
  for (const char* text : {"", "0", "-1", "train.py"})
    EXPECT_EQ(find_tenant(gpus, text).error().code, base::Code::kNotFound) << text;
}

TEST(FindTenantTest, TakesTheNameOfOneProcess) {
  std::vector<api_client::Gpu> gpus(2);
  gpus[0].seats.resize(3);
  gpus[1].seats.resize(1);
  const auto fill = [](api_client::Seat& seat, std::uint64_t tenant, std::int64_t pid, const char* program) {
    seat.tenant = tenant, seat.pid = pid, seat.program = program;
  };
  fill(gpus[0].seats[0], 1, 4711, "train.py");
  fill(gpus[1].seats[0], 1, 4711, "train.py");
  fill(gpus[0].seats[1], 2, 4712, "rank");
  fill(gpus[0].seats[2], 3, 4713, "rank");
  EXPECT_EQ(find_tenant(gpus, "train.py"), 1u) << "one process on two GPUs";
  EXPECT_EQ(find_tenant(gpus, "rank").error().code, base::Code::kInvalid);
  EXPECT_NE(find_tenant(gpus, "rank").error().what.find("4712, 4713"), std::string::npos);
}

TEST(SettingsBodyTest, IsWhatTheApiTakes) {
  EXPECT_EQ(settings_body({{"quantum", "50ms"}}, false), R"({"quantum":"50ms"})");
  EXPECT_EQ(settings_body({{"overlap", "true"}, {"mode", "serial"}}, true),
            R"({"mode":"serial","overlap":true,"save":true})");
  EXPECT_EQ(settings_body({{"overlap", "false"}}, false), R"({"overlap":false})");
  EXPECT_EQ(settings_body({{"hand_over", "true"}}, false), R"({"hand_over":true})");
}

TEST(FindGpuTest, FindsOneOrSaysWhy) {
  std::vector<api_client::Gpu> gpus(3);
  gpus[0].index = 0, gpus[0].uuid = "GPU-01234567-89ab-cdef-0123-456789abcdef";
  gpus[1].index = 1, gpus[1].uuid = "GPU-01239999-89ab-cdef-0123-456789abcdef";
  gpus[2].index = 5, gpus[2].uuid = "GPU-ffff0000-89ab-cdef-0123-456789abcdef";
  EXPECT_EQ(*find_gpu(gpus, "5"), &gpus[2]);
  EXPECT_EQ(*find_gpu(gpus, "GPU-0123999"), &gpus[1]);
  EXPECT_EQ(*find_gpu(gpus, "01234567-89ab-cdef-0123-456789abcdef"), &gpus[0]);
  EXPECT_NE(find_gpu(gpus, "GPU-0123").error().what.find("write more"), std::string::npos);
  for (const char* name : {"", "-1", "gpu0", "GPU-", "GPU-xyz", "ALL", "0,1"})
    EXPECT_EQ(find_gpu(gpus, name).error().code, base::Code::kNotFound) << name;
  const auto missing = find_gpu(gpus, "2");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, base::Code::kNotFound);
  EXPECT_NE(missing.error().what.find("5 (GPU-ffff0000"), std::string::npos) << missing.error().what;
}

// A boolean goes without quotes, as the daemon gives it back; every other setting is a string.
TEST(SettingsBodyTest, WritesEverySettingAsTheApiHasIt) {
  for (const settings::Setting& setting : settings::kGpuSettings) {
    const std::string name(setting.name), value(setting.standard);
    const std::string quote = setting.is_boolean() ? "" : "\"";
    EXPECT_EQ(settings_body({{name, value}}, false), "{\"" + name + "\":" + quote + value + quote + "}");
  }
}

TEST(SettingsChangeTest, SaysWhatHasChanged) {
  const std::map<std::string, std::string> before{{"quantum", "auto"}, {"idle_hold", "5ms"}, {"mode", "serial"}};
  const std::map<std::string, std::string> now{{"quantum", "50ms"}, {"idle_hold", "5ms"}, {"mode", "serial"}};
  EXPECT_EQ(describe_changes({{"quantum", "50ms"}, {"idle_hold", "5000us"}}, before, now),
            "quantum auto -> 50ms, idle hold 5ms (as before)");
}

}  // namespace
}  // namespace gpumux::cli
