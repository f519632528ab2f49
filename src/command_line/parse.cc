// SPDX-License-Identifier: Apache-2.0
#include "command_line/parse.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <memory>
#include <utility>

#include "command_line/fold.h"
#include "settings/setting.h"

namespace gpumux::command_line {
namespace {

// A longer word was pasted by mistake; its beginning tells which.
constexpr std::size_t kShownBytes = 64;

// An option is followed by the placeholder of its value. The sentence says all the rest. tools/make_manuals.py makes
// the manual pages and the completions of shells from this output.
class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(std::string_view usage) : usage_(usage) {
    column_width(kHelpSentence);
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

std::string in_quotes(std::string_view word) {
  return "'" + std::string(word.substr(0, kShownBytes)) + (word.size() > kShownBytes ? "..." : "") + "'";
}

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

const CLI::Option* find(const CLI::App& app, const std::string& name) { return app.get_option_no_throw(name); }

// A word of the command line that names an option.
struct NamedOption {
  const CLI::Option* option;  // null: there is no such option
  std::string name;           // as typed
  bool has_value;             // in the same word, or as the next one
};

// The options in the order in which they were typed.
std::vector<NamedOption> named_options(const CLI::App& app, const std::vector<std::string>& words) {
  std::vector<NamedOption> named;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--") break;
    const bool is_number = word.size() > 1 && (word[1] == '.' || (word[1] >= '0' && word[1] <= '9'));
    if (word.size() < 2 || word[0] != '-' || is_number) continue;
    if (word[1] == '-') {
      const std::size_t equals = word.find('=');
      const CLI::Option* option = find(app, word.substr(0, equals));
      const bool is_next = equals == std::string::npos || equals + 1 == word.size();
      const bool wants = option != nullptr && takes_value(*option);
      const bool eats_next = wants && is_next && option->get_items_expected_min() > 0;
      named.push_back({option, word.substr(0, equals), wants && is_next ? i + 1 < words.size() : !is_next});
      if (eats_next) ++i;
      continue;
    }
    // "-fn20": one switch after the other, up to one with a value, which the rest of the word is.
    for (std::size_t letter = 1; letter < word.size(); ++letter) {
      const std::string name = std::string("-") + word[letter];
      const CLI::Option* option = find(app, name);
      const bool wants = option != nullptr && takes_value(*option);
      const bool is_last = letter + 1 == word.size();
      named.push_back({option, name, wants && (!is_last || i + 1 < words.size())});
      if (option == nullptr) break;
      if (!wants) continue;
      if (is_last && option->get_items_expected_min() > 0) ++i;
      break;
    }
  }
  return named;
}

// Says what is wrong, with names as they were typed.
class UsageError {
 public:
  UsageError(CLI::App& app, const std::vector<std::string>& words) : app_(app), named_(named_options(app, words)) {}

  std::string text() const {
    // An option that does not exist explains everything else.
    for (const NamedOption& one : named_) {
      if (one.option == nullptr) return no_such_option(one.name);
    }
    for (const NamedOption& one : named_) {
      if (takes_value(*one.option) && one.option->get_items_expected_min() > 0 && !one.has_value)
        return one.name + " needs a value: " + one.name + " " + one.option->get_type_name();
      if (!takes_value(*one.option) && one.has_value) return one.name + " takes no value";
    }
    for (CLI::Option* option : app_.get_options()) {
      if (const std::string why = wrong_value(*option); !why.empty()) return why;
    }
    for (const CLI::Option* option : app_.get_options()) {
      if (option->get_required() && option->count() == 0) return name_of(*option) + " is missing";
      for (const CLI::Option* other : option->get_excludes()) {
        if (option->count() > 0 && other->count() > 0)
          return name_of(*option) + " and " + name_of(*other) + " cannot be combined";
      }
    }
    const std::vector<std::string> rest = app_.remaining();
    return rest.empty() ? "this command line is not understood"
                        : "the word " + in_quotes(rest.front()) + " is one too many";
  }

 private:
  std::string name_of(const CLI::Option& option) const {
    for (const NamedOption& one : named_) {
      if (one.option == &option) return one.name;
    }
    return option.get_name();
  }

  std::string no_such_option(const std::string& name) const {
    std::vector<std::string> names;
    for (const CLI::Option* option : app_.get_options()) {
      // Programs under MPS share faults: no typing error may lead there.
      for (const std::string& each : option->get_lnames()) {
        if (each != "mps") names.push_back("--" + each);
      }
    }
    std::string_view guess = settings::nearest(name, {names.begin(), names.end()});
    // "--time" is far from "--time-limit", and still a beginning of it.
    if (const auto longer =
            std::find_if(names.begin(), names.end(), [&](const std::string& each) { return each.starts_with(name); });
        guess.empty() && name.size() > 3 && longer != names.end())
      guess = *longer;
    std::string text = "there is no option " + in_quotes(name);
    return guess.empty() ? text : text + ". Did you mean '" + std::string(guess) + "'?";
  }

  // Empty: it is right, or was not given.
  std::string wrong_value(CLI::Option& option) const {
    if (option.count() == 0 || !takes_value(option)) return "";
    const std::string name = name_of(option);
    const bool once =
        option.get_multi_option_policy() == CLI::MultiOptionPolicy::Throw && option.get_items_expected_max() == 1;
    if (once && option.count() > 1) return name + " is given twice";
    try {
      option.run_callback();
      return "";
    } catch (const CLI::ValidationError&) {
      return name + ": " + why_not(option);
    } catch (const CLI::ParseError&) {
      return name + ": " + in_quotes(option.results().front()) + " is not a number";
    }
  }

  static std::string why_not(CLI::Option& option) {
    for (std::string value : option.results()) {
      try {
        for (int i = 0;; ++i) {
          const std::string why = (*option.get_validator(i))(value);
          if (!why.empty())
            return why.find("'" + value + "'") == std::string::npos ? in_quotes(value) + ": " + why : why;
        }
      } catch (const CLI::OptionNotFound&) {
      }
    }
    return "this value is not allowed";
  }

  CLI::App& app_;
  const std::vector<NamedOption> named_;
};

}  // namespace

std::string error_text(std::string_view name, std::string_view text) {
  return fold(std::string(name) + ": " + std::string(text)) + "\n";
}

std::optional<EarlyEnd> parse(CLI::App& app, const std::vector<std::string>& words, std::string_view usage) {
  app.formatter(std::make_shared<HelpFormatter>(usage));
  for (CLI::Option* option : app.get_options()) {
    if (!takes_value(*option)) option->disable_flag_override();
  }
  try {
    // CLI11 takes the last word first.
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::CallForVersion& version) {
    return EarlyEnd{false, std::string(version.what()) + "\n"};
  } catch (const CLI::Success&) {
    return EarlyEnd{false, fill_help(app.help())};
  } catch (const CLI::ParseError&) {
    return EarlyEnd{
        true, error_text(app.get_name(), UsageError(app, words).text()) + "See `" + app.get_name() + " --help`.\n"};
  }
  return std::nullopt;
}

}  // namespace gpumux::command_line
