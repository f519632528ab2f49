// SPDX-License-Identifier: Apache-2.0
// Goal: a configuration means what it says, or is refused with file, line, key and what is allowed. So for options and
// variables. Method: tables of texts with what must come of them.
#include "daemon/config/config.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "base/version.h"
#include "daemon/config/host_budget.h"
#include "daemon/config/settings_patch.h"
#include "daemon/options.h"
#include "daemon/test_support.h"
#include "server/loop/files.h"
#include "settings/settings.h"
#include "settings/test_texts.h"
#include "tests/unit/temporary_directory.h"

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
  EXPECT_EQ(config.log_level, settings::LogLevel::kDebug);
  EXPECT_EQ(config.on_daemon_loss, settings::OnDaemonLoss::kUngated);
  EXPECT_EQ(config.allow_users, (std::vector<std::string>{"eva", "1001"}));
  EXPECT_EQ(config.socket_mode, 0660u);
  const auto first = config.settings_for(0, "GPU-x");
  EXPECT_EQ(first.mode, settings::Mode::kConcurrent);
  EXPECT_EQ(first.quantum, settings::kUnlimited);
  EXPECT_FALSE(first.overlap);
  const auto second = config.settings_for(1, "GPU-01234567-89ab-cdef-0123-456789abcdef");
  EXPECT_EQ(second.quantum, 50ms);
  EXPECT_EQ(second.policy, settings::Policy::kFifo);
}

TEST(Config, ErrorsNameThePlaceAndWhatIsAllowed) {
  struct Case {
    const char* text;
    const char* place;
    const char* says;
  };
  const Case cases[] = {
      {"colour = \"red\"", "f.toml:1:", "there is no setting 'colour'"},
      {"\n[defaults]\nmode = \"turbo\"", "f.toml:3:", "serial or concurrent"},
      {"[defaults]\nquantum = 50", "f.toml:2:", "written in quotes"},
      {"[defaults]\nquantum = \"50\"", "f.toml:2:", "a time from 1ms to 24h"},
      {"[defaults]\nquantum = \"10us\"", "f.toml:2:", "a time from 1ms to 24h"},
      {"[defaults]\noverlap = \"perhaps\"", "f.toml:2:", "true or false"},
      {"[defaults]\nidle_hold = \"11s\"", "f.toml:2:", "a time from 0us to 10s, auto, or unlimited"},
      {"[defaults]\nquantom = \"5ms\"", "f.toml:2:", "there is no setting 'quantom'"},
      {"quantum = \"5ms\"", "f.toml:1:", "'quantum' is a setting of [defaults] and of [gpu.N]: write it there"},
      {"[queue]\nhost_memory = \"5G\"", "f.toml:2:", "'host_memory' is a setting of the file's top, before all"},
      {"[defaults]\nmax_running = 5", "f.toml:2:", "'max_running' is a setting of [queue]: write it there"},
      {"[defaults]\non_stall = \"gang\"", "f.toml:2:", "no setting 'on_stall' any more: delete it, and start programs"},
      {"[defaults]\ntime_slice = \"auto\"", "f.toml:2:", "no setting 'time_slice' any more: delete it"},
      {"[gpu.first]\nmode = \"serial\"", "f.toml:1:", "names no GPU"},
      {"[gpu.00]\nmode = \"serial\"", "f.toml:1:", "names no GPU"},
      {"[gpu.500]\nmode = \"serial\"", "f.toml:1:", "names no GPU"},
      {"[gpu.\"GPU-12\"]\nmode = \"serial\"", "f.toml:1:", "names no GPU"},
      {"gpu = 3", "f.toml:1:", "sections"},
      {"defaults = 3", "f.toml:1:", "section"},
      {"log_level = \"loud\"", "f.toml:1:", "debug, info, warning or error"},
      {"on_daemon_loss = \"panic\"", "f.toml:1:", "wait or ungated"},
      {"socket_mode = \"0999\"", "f.toml:1:", "octal"},
      {"socket_mode = \"4666\"", "f.toml:1:", "octal"},
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
  EXPECT_EQ(settings.policy, settings::Policy::kFair);
  EXPECT_EQ(settings.mode, settings::Mode::kConcurrent);  // a variable wins over the file's section of one GPU
  EXPECT_EQ(settings.max_runtime, 2min);  // and our name over the alias, whose bad value is not looked at
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

// ---- every line of the table, through every door ---------------------------------------------------

std::string shown(const GpuSettings& all, std::string_view name) {
  std::string found;
  settings::show(all, [&](const settings::Setting& setting, const std::string& text) {
    if (setting.name == name) found = text;
  });
  return found;
}

// As the file has it: true and false without quotes.
std::string line_of(const settings::Setting& setting, const std::string& text) {
  const bool is_bare = setting.is_boolean() && (text == "true" || text == "false");
  return std::string(setting.name) + " = " + (is_bare ? text : "\"" + text + "\"") + "\n";
}

TEST(Config, SavingKeepsWhatTheSavedFileSaysAlready) {
  const TemporaryDirectory dir;
  const std::string file = dir.path() + "/gpumux.toml";
  const std::string saved = dir.path() + "/gpumux.d/saved.toml";
  write(file, "");
  // As a person may have edited it.
  write(saved, R"(
log_level = "debug"
allow_users = ["root"]
[defaults]
quantum = "9ms"
[queue]
order = "fifo"
max_running = 3
[gpu.1]
mode = "serial"
)");
  const std::string uuid = "GPU-12345678-1234-1234-1234-123456789abc";
  ASSERT_TRUE(save_settings(file, uuid, {{"quantum", "7ms"}, {"overlap", "false"}}));
  ASSERT_TRUE(save_settings(file, uuid, {{"quantum", "8ms"}}));
  const auto config = load_config(file, true, environment_of({}));
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->log_level, settings::LogLevel::kDebug);
  EXPECT_EQ(config->allow_users, std::vector<std::string>{"root"});
  EXPECT_EQ(config->queue.order, settings::Order::kFifo);
  EXPECT_EQ(config->queue.max_running, 3u);
  EXPECT_EQ(config->settings_for(0, "").quantum, 9ms);
  EXPECT_EQ(config->settings_for(1, "").mode, settings::Mode::kSerial);
  EXPECT_EQ(config->settings_for(2, uuid).quantum, 8ms);
  EXPECT_FALSE(config->settings_for(2, uuid).overlap);
  // A file that is wrong is not written over.
  write(saved, "quantum");
  EXPECT_FALSE(save_settings(file, uuid, {{"quantum", "8ms"}}));
  EXPECT_EQ(server::read_file(saved, 100), "quantum");
}

TEST(EverySetting, OfAGpuIsTakenByFileVariableFlagAndPatch) {
  for (const settings::Setting& setting : settings::kGpuSettings) {
    const std::string name(setting.name);
    for (const std::string& text : settings::good_texts(setting)) {
      GpuSettings wanted;
      ASSERT_TRUE(settings::set(wanted, name, text)) << name << " " << text;
      for (const char* section : {"[defaults]\n", "[gpu.0]\n"}) {
        Config config;
        const auto read = read_config_text(config, section + line_of(setting, text), "f.toml");
        ASSERT_TRUE(read) << read.error().message();
        EXPECT_TRUE(config.settings_for(0, "GPU-x") == wanted) << name << " " << text;
      }
      Config config;
      ASSERT_TRUE(read_environment(config, environment_of({{std::string(setting.variable), text}})));
      EXPECT_TRUE(config.settings_for(0, "GPU-x") == wanted) << name << " " << text;

      const std::string flag = setting.option();
      const char* argv[] = {"gpumuxd", "--check-config", "--config", "/dev/null", flag.c_str(), text.c_str()};
      const auto parsed = parse_options(std::size(argv), argv, environment_of({}));
      const auto* options = std::get_if<ParsedOptions>(&parsed);
      ASSERT_NE(options, nullptr) << std::get<EarlyExit>(parsed).text;
      EXPECT_EQ(options->daemon.flag_settings.at(0).value, text);

      const std::string value = line_of(setting, text).substr(name.size() + 3);
      const auto patch = parse_settings_patch("{\"" + name + "\": " + value + "}");
      ASSERT_TRUE(patch) << patch.error().message();
      EXPECT_EQ(patch->changes.at(0).value, text);
      EXPECT_FALSE(shown(wanted, name).empty());
    }
  }
}

TEST(Config, IsNotWaitedForFromAPipe) {
  const TemporaryDirectory dir;
  const std::string pipe = dir.file("gpumux.toml");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const auto read = load_config(pipe, true, environment_of({}));
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().message().find("is a pipe"), std::string::npos) << read.error().message();
}

TEST(EverySetting, OfAGpuIsRefusedBeyondItsLimitsByEveryDoor) {
  for (const settings::Setting& setting : settings::kGpuSettings) {
    const std::string name(setting.name);
    for (const std::string& text : settings::bad_texts(setting)) {
      Config config;
      EXPECT_FALSE(read_config_text(config, "[defaults]\n" + line_of(setting, text), "f.toml")) << name << " " << text;
      EXPECT_FALSE(parse_settings_patch("{\"" + name + "\": \"" + text + "\"}")) << name << " " << text;
      if (text.empty()) continue;  // a variable or a flag that is empty counts as not there
      EXPECT_FALSE(read_environment(config, environment_of({{std::string(setting.variable), text}}))) << name;
      const std::string flag = setting.option() + "=" + text;
      const char* argv[] = {"gpumuxd", "--check-config", "--config", "/dev/null", flag.c_str()};
      const auto parsed = parse_options(std::size(argv), argv, environment_of({}));
      ASSERT_TRUE(std::holds_alternative<EarlyExit>(parsed)) << flag;
      EXPECT_EQ(std::get<EarlyExit>(parsed).exit_code, kExitUsage);
    }
  }
}

TEST(EverySetting, OfQueueAndDaemonIsTakenByFileAndVariable) {
  const auto walk = [](std::span<const settings::Setting> table, const std::string& section, const auto& same) {
    for (const settings::Setting& setting : table) {
      if (setting.type.kind == settings::Kind::kNames) continue;
      for (const std::string& text : settings::good_texts(setting)) {
        Config config;
        const auto read = read_config_text(config, section + line_of(setting, text), "f.toml");
        ASSERT_TRUE(read) << read.error().message();
        EXPECT_TRUE(same(config, setting, text)) << setting.name << " " << text;
        if (setting.variable.empty()) continue;
        Config by_variable;
        ASSERT_TRUE(read_environment(by_variable, environment_of({{std::string(setting.variable), text}})));
        EXPECT_TRUE(same(by_variable, setting, text)) << setting.variable << " " << text;
      }
      for (const std::string& text : settings::bad_texts(setting)) {
        Config config;
        EXPECT_FALSE(read_config_text(config, section + line_of(setting, text), "f.toml")) << setting.name << text;
      }
    }
  };
  walk(settings::kQueueSettings, "[queue]\n", [](const Config& config, const settings::Setting& setting, auto& text) {
    settings::QueueSettings wanted;
    return settings::set(wanted, setting.name, text) && config.queue == wanted;
  });
  walk(settings::kDaemonSettings, "", [](const Config& config, const settings::Setting& setting, auto& text) {
    settings::DaemonSettings wanted;
    return settings::set(wanted, setting.name, text) && static_cast<const settings::DaemonSettings&>(config) == wanted;
  });
}

TEST(EverySetting, OfAnotherNameIsRefusedWithTheNearestByEveryDoor) {
  const std::string guess = "there is no setting 'quantom' (did you mean quantum?";
  Config config;
  const auto in_file = read_config_text(config, "[defaults]\nquantom = \"5ms\"", "f.toml");
  EXPECT_NE(in_file.error().message().find(guess), std::string::npos) << in_file.error().message();
  const auto patch = parse_settings_patch(R"({"quantom": "5ms"})");
  EXPECT_NE(patch.error().message().find(guess), std::string::npos) << patch.error().message();
  const auto at_top = read_config_text(config, "log_levle = \"info\"", "f.toml");
  EXPECT_NE(at_top.error().message().find("did you mean log_level?"), std::string::npos) << at_top.error().message();
  const auto in_queue = read_config_text(config, "[queue]\nmax_runing = 3", "f.toml");
  EXPECT_NE(in_queue.error().message().find("did you mean max_running?"), std::string::npos);
}

TEST(EverySetting, StandsInTheExampleWithItsDefault) {
  const auto text =
      server::read_file(std::string(GPUMUX_SOURCE_DIR) + "/packaging/gpumux.toml.example", kMaxConfigBytes);
  ASSERT_TRUE(text) << text.error().message();
  std::string uncommented;
  bool is_over = false;
  for (std::size_t at = 0; at < text->size();) {
    const std::size_t end = std::min(text->find('\n', at), text->size());
    std::string line = text->substr(at, end - at);
    is_over = is_over || line == "#[gpu.0]";
    if (line.size() > 1 && line[0] == '#' && line[1] != ' ' && !is_over) line.erase(0, 1);
    uncommented += line + "\n";
    at = end + 1;
  }
  Config config;
  const auto read = read_config_text(config, uncommented, "example");
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_TRUE(config.defaults == GpuSettings());
  EXPECT_TRUE(config.queue == settings::QueueSettings());
  EXPECT_TRUE(static_cast<const settings::DaemonSettings&>(config) == settings::DaemonSettings());
  for (const settings::Setting& setting : settings::kGpuSettings)
    EXPECT_NE(uncommented.find("\n" + std::string(setting.name) + " = "), std::string::npos) << setting.name;
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
      {{"gpumuxd", "--version"}, kExitStopped, base::version()},
      {{"gpumuxd", "--colour"}, kExitUsage, "--colour"},
      {{"gpumuxd", "--gpus", "0,1", "WORD"}, kExitUsage, "WORD"},
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

// ---- host memory

// Version 1's files and version 2's differ in their names only.
TEST(HostBudget, EachControlGroupAboveBoundsIt) {
  const TemporaryDirectory folder;
  const auto group = [&](const std::string& name, const std::string& most, const std::string& used) {
    std::filesystem::create_directories(folder.file(name));
    std::ofstream(folder.file(name + "/memory.limit_in_bytes")) << most << "\n";
    std::ofstream(folder.file(name + "/memory.usage_in_bytes")) << used << "\n";
  };
  const auto left = [&](const std::string& name) {
    return memory_left({folder.file("tree"), folder.file(name)}, "memory.limit_in_bytes", "memory.usage_in_bytes");
  };
  group("tree", "9223372036854771712", "1000");
  group("tree/a", "5000", "1000");
  group("tree/a/b", "max", "500");
  group("tree/a/b/c", "300", "400");
  EXPECT_EQ(left("tree"), 9223372036854771712u - 1000);
  EXPECT_EQ(left("tree/a"), 4000u);
  EXPECT_EQ(left("tree/a/b"), 4000u);
  EXPECT_EQ(left("tree/a/b/c"), 0u);
  EXPECT_EQ(left("tree/nowhere"), 9223372036854771712u - 1000);
}

}  // namespace
}  // namespace gpumux::daemon
