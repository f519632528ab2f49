// SPDX-License-Identifier: Apache-2.0
#include "cli/frame/command.h"

#include <CLI/Formatter.hpp>
#include <cstdio>
#include <iostream>
#include <memory>
#include <utility>

#include "base/units.h"
#include "cli/frame/terminal.h"
#include "command_line/parse.h"

namespace gpumux::cli {
namespace {

// Beside an option stands the placeholder of its value; what else there is to say is said in the sentence. The manual
// pages and the completions of shells are made from what this prints (tools/make_manuals.py).
class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(std::string_view usage) : usage_(usage) {
    column_width(28);
    label("Positionals", "Arguments");
  }

  std::string make_usage(const CLI::App* app, std::string name) const override {
    return usage_.empty() ? Formatter::make_usage(app, std::move(name)) : "Usage: " + usage_ + "\n";
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string placeholder = option->get_type_size() == 0 ? "" : option->get_type_name();
    return placeholder.empty() ? "" : " " + placeholder;
  }

 private:
  std::string usage_;
};

}  // namespace

std::optional<int> parse_command_line(CLI::App& app, const std::vector<char*>& arguments, std::string_view usage) {
  std::vector<std::string> words;
  for (const char* argument : arguments) {
    if (argument != nullptr) words.emplace_back(argument);
  }
  app.formatter(std::make_shared<HelpFormatter>(usage));
  const auto end = command_line::parse(app, words);
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

}  // namespace gpumux::cli
