// SPDX-License-Identifier: Apache-2.0
#include "cli/frame/command.h"

#include <cstdio>
#include <iostream>

#include "base/units.h"
#include "cli/frame/terminal.h"
#include "command_line/parse.h"

namespace gpumux::cli {

std::optional<int> parse_command_line(CLI::App& app, const std::vector<char*>& arguments, std::string_view usage) {
  std::vector<std::string> words;
  for (const char* argument : arguments) {
    if (argument != nullptr) words.emplace_back(argument);
  }
  const auto end = command_line::parse(app, words, usage);
  if (!end) return std::nullopt;
  (end->is_error ? std::cerr : std::cout) << (end->is_error ? printable_lines(end->text) : end->text) << std::flush;
  return end->is_error ? kExitUsage : kExitOk;
}

CLI::Validator not_empty() {
  return {[](const std::string& value) {
            return value.empty()
                       ? std::string("'' is empty (a variable that is not set?): give it a value, or leave it out")
                       : std::string();
          },
          ""};
}

CLI::Validator whole_number(std::uint64_t least) {
  return {[least](const std::string& value) {
            const auto number = base::parse_integer(value, least, 1'000'000'000);
            return number ? std::string() : number.error().message();
          },
          ""};
}

CLI::Option* add_text(CLI::App& app, const char* names, const char* placeholder, std::string& value,
                      const char* sentence) {
  return app.add_option(names, value, sentence)->type_name(placeholder)->check(not_empty());
}

CLI::Option* add_job_ids(CLI::App& app, std::vector<std::string>& ids) {
  return app.add_option("ID", ids, "Ids of jobs; an array's id is all its elements, 17_3 is one of them")
      ->type_name("");
}

void add_runtime_dir(CLI::App& app, std::string& runtime_dir) {
  app.add_option("--runtime-dir", runtime_dir, "Ask the daemon whose sockets are in DIR")->type_name("DIR");
}

int exit_status_of(base::Code code) {
  switch (code) {
    case base::Code::kUnavailable: return kExitNoDaemon;
    case base::Code::kDenied: return kExitDenied;
    default: return kExitFailed;
  }
}

void say_error(std::string_view command, std::string_view text) {
  std::string name(command);
  if (!command.starts_with("mgpu_")) name = command.empty() ? "gpumux" : "gpumux " + name;
  std::cerr << command_line::error_text(name, printable_lines(text));
}

int report_error(std::string_view command, const base::Error& error) {
  say_error(command, error.message());
  return exit_status_of(error.code);
}

int usage_error(std::string_view command, std::string_view text) {
  say_error(command, text);
  return kExitUsage;
}

}  // namespace gpumux::cli
