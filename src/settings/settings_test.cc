// SPDX-License-Identifier: Apache-2.0
// Goal: every line of settings.table can be set, within its limits and not beyond, and is shown as it is read; what is
// not in the table is refused with the nearest name. Method: walk the table; the daemon's and the command's tests walk
// it again through their own doors.
#include "settings/settings.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "settings/test_texts.h"
#include "settings/variables.gen.h"

namespace gpumux::settings {
namespace {

using namespace std::chrono_literals;

// Calls check(table, struct) for each struct.
template <class Check>
void each_struct(const Check& check) {
  check(std::span<const Setting>(kGpuSettings), GpuSettings());
  check(std::span<const Setting>(kQueueSettings), QueueSettings());
  check(std::span<const Setting>(kDaemonSettings), DaemonSettings());
  check(std::span<const Setting>(kKubeletSettings), KubeletSettings());
}

std::map<std::string, std::string> shown(const GpuSettings& settings) {
  std::map<std::string, std::string> texts;
  show(settings, [&](const Setting& setting, const std::string& text) { texts[std::string(setting.name)] = text; });
  return texts;
}

TEST(Table, TakesEveryValueWithinItsLimitsAndNoOther) {
  each_struct([](std::span<const Setting> table, auto settings) {
    for (const Setting& setting : table) {
      for (const std::string& text : good_texts(setting)) {
        const auto done = set(settings, setting.name, text);
        EXPECT_TRUE(done) << done.error().message();
      }
      for (const std::string& text : bad_texts(setting)) {
        const auto done = set(settings, setting.name, text);
        ASSERT_FALSE(done) << setting.name << " " << text;
        EXPECT_EQ(done.error().code, base::Code::kInvalid);
        EXPECT_EQ(done.error().message().find(std::string(setting.name) + " cannot be '" + text + "': it must be " +
                                              std::string(setting.type.allowed)),
                  0u)
            << done.error().message();
      }
    }
  });
}

// The default of the struct and that of the descriptor come from one word of the table.
TEST(Table, HasTheDefaultsOfTheStructs) {
  each_struct([](std::span<const Setting> table, const auto settings) {
    auto changed = settings;
    for (const Setting& setting : table) {
      if (setting.type.kind == Kind::kNames) continue;
      EXPECT_TRUE(set(changed, setting.name, setting.standard));
    }
    EXPECT_TRUE(changed == settings);
  });
}

TEST(Table, EveryValueIsShownAsItIsRead) {
  for (const Setting& setting : kGpuSettings) {
    for (const std::string& text : good_texts(setting)) {
      GpuSettings settings;
      ASSERT_TRUE(set(settings, setting.name, text));
      const std::string name(setting.name);
      const std::string first = shown(settings).at(name);
      GpuSettings again;
      ASSERT_TRUE(set(again, setting.name, first)) << name << " " << first;
      EXPECT_EQ(shown(again).at(name), first);
    }
  }
}

TEST(Table, EveryWordOfASettingIsAValueOfItsOwn) {
  for (const Setting& setting : kGpuSettings) {
    std::set<std::string> texts;
    const auto words = words_of(setting.type);
    for (const std::string& word : words) {
      GpuSettings settings;
      ASSERT_TRUE(set(settings, setting.name, word));
      texts.insert(shown(settings).at(std::string(setting.name)));
    }
    EXPECT_EQ(texts, std::set<std::string>(words.begin(), words.end())) << setting.name;
  }
}

TEST(Table, NamesNothingTwice) {
  std::set<std::string_view> names;
  const auto take = [&](std::string_view name) { EXPECT_TRUE(name.empty() || names.insert(name).second) << name; };
  for (const Setting& setting : kVariables) {
    take(setting.variable);
    take(setting.alias.name);
  }
  each_struct([&](std::span<const Setting> table, const auto&) {
    for (const Setting& setting : table) {
      if (setting.variable != "GPUMUX_ON_DAEMON_LOSS") take(setting.variable);  // the library has it, too
      take(setting.alias.name);
    }
  });
}

TEST(UnknownSetting, IsRefusedWithTheNearestName) {
  GpuSettings gpu;
  QueueSettings queue;
  DaemonSettings daemon;
  EXPECT_NE(set(gpu, "on_stall", "gang").error().message().find("no setting 'on_stall' any more: delete it"),
            std::string::npos);
  EXPECT_NE(set(gpu, "time_slice", "auto").error().message().find("no setting 'time_slice' any more: delete it"),
            std::string::npos);
  EXPECT_NE(set(gpu, "quantom", "5ms").error().message().find("there is no setting 'quantom' (did you mean quantum? "),
            std::string::npos);
  EXPECT_NE(set(queue, "half_live", "1h").error().message().find("did you mean half_life?"), std::string::npos);
  EXPECT_NE(set(daemon, "log_levle", "info").error().message().find("did you mean log_level?"), std::string::npos);
  const std::string far = set(gpu, "colour", "red").error().message();
  EXPECT_EQ(far.find("did you mean"), std::string::npos) << far;
  EXPECT_NE(far.find("there are mode, "), std::string::npos) << far;
}

TEST(Help, HasNoMarkdown) {
  each_struct([](std::span<const Setting> table, const auto&) {
    for (const Setting& setting : table) EXPECT_EQ(setting.help().find("]("), std::string::npos) << setting.help();
  });
}

TEST(MissingUnit, IsNamed) {
  GpuSettings settings;
  EXPECT_NE(set(settings, "quantum", "50").error().message().find("(a unit is missing: write 50ms or 50s)"),
            std::string::npos);
  for (const char* text : {"50s0", "1:30", "x1", ""})
    EXPECT_EQ(set(settings, "quantum", text).error().message().find("a unit is missing"), std::string::npos) << text;
}

TEST(AliasText, IsTheSettingsOwn) {
  const Setting& mode = *find(kGpuSettings, "mode");
  EXPECT_EQ(*alias_text(mode, "serial"), "serial");
  EXPECT_FALSE(alias_text(mode, "automatic"));
  const Setting& max_runtime = *find(kGpuSettings, "max_runtime");
  EXPECT_EQ(*alias_text(max_runtime, "10"), "10s");
  for (const char* bad : {"9", "86401", "5m", "300s", ""}) EXPECT_FALSE(alias_text(max_runtime, bad)) << bad;
  const Setting& log_level = *find(kDaemonSettings, "log_level");
  EXPECT_EQ(*alias_text(log_level, "1"), "debug");
  EXPECT_EQ(*alias_text(log_level, "0"), std::nullopt);
}

TEST(Factor, HasThreeDigitsAtMost) {
  QueueSettings settings;
  ASSERT_TRUE(set(settings, "oversubscribe", "1.5"));
  EXPECT_EQ(settings.oversubscribe, 1500u);
  for (const char* bad : {"0.5", "1.2345", "1.", ".5", "100.1"})
    EXPECT_FALSE(set(settings, "oversubscribe", bad)) << bad;
}

TEST(MemoryPart, IsBytesOrAPercentage) {
  DaemonSettings settings;
  for (const char* good : {"64G", "0%", "60%", "90%", "1.5GiB", "0B"}) EXPECT_TRUE(set(settings, "host_memory", good));
  for (const char* bad : {"", "64", "91%", "%", "-1G", "-1%", "half", "60 %", "64Q"})
    EXPECT_FALSE(set(settings, "host_memory", bad)) << bad;
}

TEST(Limit, IsGreaterThanEveryValueWithoutABound) {
  const Limit<base::Duration> none;
  EXPECT_TRUE(none.is_unlimited());
  EXPECT_GT(none, Limit<base::Duration>(base::Duration::max()));
  EXPECT_EQ(std::min(none, Limit<base::Duration>(5ms)).value(), 5ms);
  EXPECT_EQ(none.at_most(1s), 1s);
  EXPECT_EQ(Limit<base::Duration>(5ms).at_most(1s), 5ms);
  EXPECT_NE(none, Limit<base::Duration>(base::Duration::max()));
}

TEST(Auto, IsNoValue) {
  const Auto<Limit<base::Duration>> automatic = kAutomatic;
  EXPECT_TRUE(automatic.is_automatic());
  EXPECT_NE(automatic, Auto<Limit<base::Duration>>(kUnlimited));
  EXPECT_NE(automatic, Auto<Limit<base::Duration>>(base::Duration(-1)));
  const Auto<std::optional<base::Duration>> none = std::nullopt;
  EXPECT_FALSE(none.is_automatic());
  EXPECT_FALSE(none.value());
}

}  // namespace
}  // namespace gpumux::settings
