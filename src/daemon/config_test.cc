// SPDX-License-Identifier: Apache-2.0
// Goal: a configuration means what it says, or is refused with file, line, key and what is allowed. So for options and
// variables. Method: tables of texts with what must come of them.
#include "daemon/config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "daemon/files.h"
#include "daemon/options.h"
#include "daemon/settings.h"
#include "daemon/settings_patch.h"
#include "daemon/test_support.h"

namespace gpumux::daemon {
namespace {

using namespace std::chrono_literals;

Environment environment_of(std::map<std::string, std::string> variables) {
  auto shared = std::make_shared<std::map<std::string, std::string>>(std::move(variables));
  return [shared](const char* name) -> const char* {
    const auto found = shared->find(name);
    return found == shared->end() ? nullptr : found->second.c_str();
  };
}

void write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

TEST(Config, IsRead) {
  Config config;
  ASSERT_TRUE(read_config_text(config, R"(
log_level = "debug"
on_daemon_loss = "ungated"
allow_users = ["eva", "1001"]
allow_groups = ["gpu"]
socket_mode = "0660"
[defaults]
mode = "concurrent"
quantum = "unlimited"
overlap = false
[gpu.1]
quantum = "50ms"
[gpu."GPU-01234567-89ab-cdef-0123-456789abcdef"]
policy = "fifo"
)",
                               "test.toml"));
  EXPECT_EQ(config.log_level, LogLevel::kDebug);
  EXPECT_EQ(config.on_daemon_loss, OnLoss::kUngated);
  EXPECT_EQ(config.allow_users, (std::vector<std::string>{"eva", "1001"}));
  EXPECT_EQ(config.socket_mode, 0660u);
  const auto first = config.settings_for(0, "GPU-x");
  EXPECT_EQ(first.mode, sched::Mode::kConcurrent);
  EXPECT_EQ(first.quantum, sched::kUnlimited);
  EXPECT_FALSE(first.overlap);
  const auto second = config.settings_for(1, "GPU-01234567-89ab-cdef-0123-456789abcdef");
  EXPECT_EQ(second.quantum, 50ms);
  EXPECT_EQ(second.policy, sched::PolicyKind::kFifo);
}

TEST(Config, ErrorsNameThePlaceAndWhatIsAllowed) {
  struct Case {
    const char* text;
    const char* place;
    const char* says;
  };
  const Case cases[] = {
      {"colour = \"red\"", "f.toml:1:", "there is no key 'colour'"},
      {"\n[defaults]\nmode = \"turbo\"", "f.toml:3:", "serial or concurrent"},
      {"[defaults]\nquantum = 50", "f.toml:2:", "written in quotes"},
      {"[defaults]\nquantum = \"50\"", "f.toml:2:", "a time from 1ms to 24h"},
      {"[defaults]\nquantum = \"10us\"", "f.toml:2:", "a time from 1ms to 24h"},
      {"[defaults]\noverlap = \"perhaps\"", "f.toml:2:", "true or false"},
      {"[defaults]\ntime_slice = \"50us\"", "f.toml:2:", "driver, auto, or a time from 100us"},
      {"[defaults]\nquantom = \"5ms\"", "f.toml:2:", "there is no setting 'quantom'"},
      {"[gpu.first]\nmode = \"serial\"", "f.toml:1:", "names no GPU"},
      {"[gpu.500]\nmode = \"serial\"", "f.toml:1:", "names no GPU"},
      {"[gpu.\"GPU-12\"]\nmode = \"serial\"", "f.toml:1:", "names no GPU"},
      {"gpu = 3", "f.toml:1:", "sections"},
      {"defaults = 3", "f.toml:1:", "section"},
      {"log_level = \"loud\"", "f.toml:1:", "debug, info, warning, error"},
      {"on_daemon_loss = \"panic\"", "f.toml:1:", "wait or ungated"},
      {"socket_mode = \"0999\"", "f.toml:1:", "octal"},
      {"socket_mode = 438", "f.toml:1:", "in quotes"},
      {"allow_users = \"eva\"", "f.toml:1:", "list"},
      {"allow_users = [1001]", "f.toml:1:", "in quotes"},
      {"mode = \n", "f.toml:1:", ""},
      {"[defaults]\nmode = \"serial\"\nmode = \"serial\"", "f.toml:3:", ""},
      {"\n[gpu.\u0424\n", "f.toml:2:", ""},
  };
  for (const Case& c : cases) {
    Config config;
    const auto status = read_config_text(config, c.text, "f.toml");
    ASSERT_FALSE(status) << c.text;
    const std::string what = status.error().message();
    EXPECT_EQ(what.find(c.place), 0u) << what;
    EXPECT_NE(what.find(c.says), std::string::npos) << what;
  }
}

TEST(Config, LaterFilesAndVariablesWin) {
  const TemporaryDirectory dir;
  const std::string file = dir.path() + "/gpumux.toml";
  write(file, "[defaults]\nquantum = \"10ms\"\npolicy = \"fifo\"\nmax_runtime = \"1h\"\n[gpu.0]\nmode = \"serial\"\n");
  write(dir.path() + "/gpumux.d/20.toml", "[defaults]\nquantum = \"30ms\"\n");
  write(dir.path() + "/gpumux.d/10.toml", "[defaults]\nquantum = \"20ms\"\n");
  write(dir.path() + "/gpumux.d/notes.txt", "this is not read");
  const auto config = load_config(file, true,
                                  environment_of({{"GPUMUX_POLICY", "fair"},
                                                  {"NVSHARE_SCHEDULING_MODE", "concurrent"},
                                                  {"GPUMUX_MAX_RUNTIME", "2m"},
                                                  {"NVSHARE_MAX_RUNTIME_SEC", "1"},
                                                  {"GPUMUX_IDLE_HOLD", ""}}));
  ASSERT_TRUE(config) << config.error().message();
  const auto settings = config->settings_for(0, "GPU-x");
  EXPECT_EQ(settings.quantum, 30ms);
  EXPECT_EQ(settings.policy, sched::PolicyKind::kFair);
  EXPECT_EQ(settings.mode, sched::Mode::kConcurrent);  // a variable wins over the file's section of one GPU
  EXPECT_EQ(settings.max_runtime, 2min);               // and our name over the alias, whose bad value is not looked at
  EXPECT_EQ(config->files.size(), 3u);
}

TEST(Config, BadVariablesAreNamed) {
  const TemporaryDirectory dir;
  const std::pair<const char*, const char*> cases[] = {
      {"GPUMUX_QUANTUM", "5"},
      {"GPUMUX_MODE", "both"},
      {"NVSHARE_MAX_RUNTIME_SEC", "9"},
      {"NVSHARE_MAX_RUNTIME_SEC", "5m"},
      {"GPUMUX_LOG_LEVEL", "trace"},
      {"GPUMUX_ON_DAEMON_LOSS", "x"},
      {"NVSHARE_SCHEDULING_MODE", "automatic"},
  };
  for (const auto& [name, value] : cases) {
    const auto config = load_config(dir.path() + "/none.toml", false, environment_of({{name, value}}));
    ASSERT_FALSE(config) << name;
    EXPECT_NE(config.error().message().find(name), std::string::npos) << config.error().message();
  }
}

TEST(Config, MissingFileMattersOnlyIfItWasNamed) {
  EXPECT_TRUE(load_config("/nonexistent/gpumux.toml", false, environment_of({})));
  EXPECT_FALSE(load_config("/nonexistent/gpumux.toml", true, environment_of({})));
}

TEST(Settings, AreWrittenAsTheyAreRead) {
  for (const SettingKey& key : setting_keys()) {
    GpuSettings settings;
    const std::string text = key.format(settings);
    GpuSettings read;
    EXPECT_TRUE(set_setting(read, key.name, text)) << key.name << " " << text;
    EXPECT_EQ(key.format(read), text);
  }
}

TEST(Options, PointToTheConfiguration) {
  const TemporaryDirectory dir;
  write(dir.path() + "/a.toml", "[defaults]\nquantum = \"10ms\"\n");
  const std::string config = dir.path() + "/a.toml";
  const char* argv[] = {"gpumuxd", "--config", config.c_str(), "--runtime-dir",      "/run/x", "--quantum",
                        "77ms",    "--gpus",   "0,GPU-1",      "--exit-when-unused", "10s"};
  const auto parsed = parse_options(std::size(argv), argv, environment_of({{"GPUMUX_QUANTUM", "66ms"}}));
  const auto* options = std::get_if<ParsedOptions>(&parsed);
  ASSERT_NE(options, nullptr) << std::get<EarlyExit>(parsed).text;
  EXPECT_EQ(options->daemon.runtime_dir, "/run/x");
  EXPECT_EQ(options->daemon.gpus, (std::vector<std::string>{"0", "GPU-1"}));
  EXPECT_EQ(options->daemon.exit_when_unused, 10s);
  ASSERT_EQ(options->daemon.flag_settings.size(), 1u);
  EXPECT_EQ(options->daemon.flag_settings[0].value, "77ms");
}

TEST(Options, ThatAreWrongEndEarly) {
  struct Case {
    std::vector<const char*> argv;
    int exit_code;
    const char* says;
  };
  const Case cases[] = {
      {{"gpumuxd", "--help"}, kExitStopped, "Exit status"},
      {{"gpumuxd", "--version"}, kExitStopped, GPUMUX_VERSION},
      {{"gpumuxd", "--colour"}, kExitUsage, "--colour"},
      {{"gpumuxd", "--quantum", "5"}, kExitUsage, "--quantum"},
      {{"gpumuxd", "--exit-when-unused", "0"}, kExitUsage, "such as 10s"},
      {{"gpumuxd", "--log-level", "loud"}, kExitUsage, "debug"},
      {{"gpumuxd", "--config", "/nonexistent"}, kExitConfig, "/nonexistent"},
  };
  for (const Case& c : cases) {
    const auto parsed = parse_options(static_cast<int>(c.argv.size()), c.argv.data(), environment_of({}));
    const auto* early = std::get_if<EarlyExit>(&parsed);
    ASSERT_NE(early, nullptr) << c.argv[1];
    EXPECT_EQ(early->exit_code, c.exit_code) << early->text;
    EXPECT_NE(early->text.find(c.says), std::string::npos) << early->text;
  }
}

}  // namespace
}  // namespace gpumux::daemon
