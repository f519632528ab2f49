// SPDX-License-Identifier: Apache-2.0
#include "settings/setting.h"

#include <algorithm>

#include "base/limits.h"
#include "base/standing.h"
#include "base/units.h"

namespace gpumux::settings {
namespace {

using base::Duration;

constexpr std::uint64_t kMost = INT64_MAX;
// Errors quote no more than this of what a stranger has written.
constexpr std::size_t kMostQuoted = 64;
// A part of the machine's memory: the rest is for the system and for the programs.
constexpr std::uint64_t kMostPercent = 90;
// The longest word that `nearest` compares: names are shorter, and comparing takes the product of two lengths.
constexpr std::size_t kLongestGuessedWord = 64;

// A setting that there was, and what else to do than to delete it.
struct Removed {
  std::string_view name;
  std::string_view instead;
};
constexpr Removed kRemoved[] = {
    {"on_stall", ", and start programs that wait for each other with gpumux run --gang NAME"},
    {"step_delay", ""},
    {"time_slice", ". All programs have the driver's time slices"},
};

bool ends_in_digit(std::string_view text) { return !text.empty() && text.back() >= '0' && text.back() <= '9'; }

using Number = std::optional<std::int64_t>;

Number within(const Type& type, std::uint64_t number) {
  if (number > kMost) return std::nullopt;
  const auto value = static_cast<std::int64_t>(number);
  return value < type.minimum || value > type.maximum ? std::nullopt : Number(value);
}

Number within(const Type& type, const base::Result<std::uint64_t>& parsed) {
  return parsed ? within(type, *parsed) : std::nullopt;
}

Number within(const Type& type, const base::Result<Duration>& parsed) {
  return parsed ? within(type, static_cast<std::uint64_t>(parsed->count())) : std::nullopt;
}

template <class Parsed>
Number any_of(const Parsed& parsed) {
  return parsed ? Number(static_cast<std::int64_t>(*parsed)) : std::nullopt;
}

// Readers would not all guess the same unit of a bare number ("quantum = 50").
bool has_unit(std::string_view text) { return !text.empty() && !ends_in_digit(text); }

// "1.5" in thousandths: three digits behind the point at most.
Number parse_factor(const Type& type, std::string_view text) {
  const std::size_t point = std::min(text.find('.'), text.size());
  std::string fraction(text.substr(std::min(point + 1, text.size())));
  if (fraction.size() > 3 || (point < text.size() && fraction.empty())) return std::nullopt;
  fraction.resize(3, '0');
  const auto whole = base::parse_integer(text.substr(0, point), 0, kMost / 1000 - 1);
  const auto thousandths = base::parse_integer(fraction, 0, 999);
  if (!whole || !thousandths) return std::nullopt;
  return within(type, *whole * 1000 + *thousandths);
}

Number parse_permissions(const Type& type, std::string_view text) {
  std::uint64_t mode = 0;
  bool is_octal = text.size() >= 3 && text.size() <= 4;
  for (const char c : text) {
    is_octal = is_octal && c >= '0' && c <= '7';
    mode = mode * 8 + static_cast<std::uint64_t>(c - '0');
  }
  if (!is_octal || mode > 0777) return std::nullopt;
  return within(type, mode);
}

// The number is not used: a percentage depends on the machine.
Number parse_memory_part(const Type& type, std::string_view text) {
  if (text.ends_with('%')) {
    return any_of(base::parse_integer(text.substr(0, text.size() - 1), 0, kMostPercent));
  }
  return has_unit(text) ? within(type, base::parse_bytes(text)) : std::nullopt;
}

Number parse_number(const Type& type, std::string_view text) {
  switch (type.kind) {
    case Kind::kWord:
    case Kind::kBool:
    case Kind::kNames: return std::nullopt;
    case Kind::kAny:
    case Kind::kText: return 0;
    case Kind::kTime: return has_unit(text) ? within(type, base::parse_duration(text, Duration(1))) : std::nullopt;
    case Kind::kSeconds: return within(type, base::parse_duration(text, std::chrono::seconds(1)));
    case Kind::kMilliseconds: return within(type, base::parse_duration(text, std::chrono::milliseconds(1)));
    case Kind::kBytes: return has_unit(text) ? within(type, base::parse_bytes(text)) : std::nullopt;
    case Kind::kBareBytes: return within(type, base::parse_bytes(text));
    case Kind::kCount: return within(type, base::parse_integer(text, 0, kMost));
    case Kind::kFactor: return parse_factor(type, text);
    case Kind::kPriority: return any_of(base::parse_priority(text));
    case Kind::kShare: return any_of(base::parse_share(text));
    case Kind::kMaxShare: return any_of(base::parse_max_share(text));
    case Kind::kPermissions: return parse_permissions(type, text);
    case Kind::kMemoryPart: return parse_memory_part(type, text);
    case Kind::kPath: return text.starts_with('/') ? Number(0) : std::nullopt;
    case Kind::kName: return text.size() < base::kMaxNameBytes ? Number(0) : std::nullopt;
  }
  return std::nullopt;
}

// Calls visit(word, index) until it says true.
template <class Visit>
void each_word(std::string_view words, const Visit& visit) {
  for (std::size_t index = 0; !words.empty(); ++index) {
    const std::size_t end = std::min(words.find(' '), words.size());
    if (visit(words.substr(0, end), index)) return;
    words.remove_prefix(std::min(end + 1, words.size()));
  }
}

// How many single-letter changes, insertions, removals and swaps of neighbours lead from one word to the other.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> distance(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) distance[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) distance[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      distance[i][j] = std::min({distance[i - 1][j] + 1, distance[i][j - 1] + 1, distance[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        distance[i][j] = std::min(distance[i][j], distance[i - 2][j - 2] + 1);
      }
    }
  }
  return distance[a.size()][b.size()];
}

}  // namespace

std::string Setting::option() const {
  std::string option = "--" + std::string(name);
  std::replace(option.begin(), option.end(), '_', '-');
  return option;
}

std::string Setting::help() const { return std::string(meaning) + ": " + std::string(type.allowed); }

base::Result<Value> parse(const Type& type, std::string_view shown, std::string_view text) {
  Value value;
  each_word(type.words, [&](std::string_view word, std::size_t index) {
    if (word == text) value = {.word = word, .index = index};
    return word == text;
  });
  if (!value.word.empty()) return value;
  if (const Number number = parse_number(type, text)) {
    value.number = *number;
    return value;
  }
  std::string why = std::string(shown) + " cannot be '" + std::string(text.substr(0, kMostQuoted)) + "': it must be " +
                    std::string(type.allowed);
  if (type.kind == Kind::kTime && !text.empty() && text.find_first_not_of("0123456789.") == std::string_view::npos)
    why += " (a unit is missing: write " + std::string(text.substr(0, kMostQuoted)) + "ms or " +
           std::string(text.substr(0, kMostQuoted)) + "s)";
  return base::fail(base::Code::kInvalid, std::move(why));
}

base::Result<std::optional<std::string>> alias_text(const Setting& setting, std::string_view text) {
  const Alias& alias = setting.alias;
  if (!alias.word.empty()) return text == "0" ? std::nullopt : std::optional(std::string(alias.word));
  if (const auto value = parse(alias.type, setting.name, text); !value) return tl::unexpected(value.error());
  return std::optional(std::string(text) + std::string(alias.unit));
}

const Setting* find(std::span<const Setting> settings, std::string_view name) {
  const auto found = std::find_if(settings.begin(), settings.end(), [&](const Setting& s) { return s.name == name; });
  return found == settings.end() ? nullptr : &*found;
}

std::string no_such(std::span<const Setting> settings, std::string_view name) {
  for (const Removed& removed : kRemoved) {
    if (name == removed.name)
      return "there is no setting '" + std::string(name) + "' any more: delete it" + std::string(removed.instead);
  }
  std::vector<std::string_view> names;
  std::string all;
  for (const Setting& setting : settings) {
    names.push_back(setting.name);
    all += (all.empty() ? "" : ", ") + std::string(setting.name);
  }
  const std::string_view guess = nearest(name, names);
  return "there is no setting '" + std::string(name.substr(0, kMostQuoted)) + "' (" +
         (guess.empty() ? "" : "did you mean " + std::string(guess) + "? ") + "there are " + all + ")";
}

std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates) {
  if (word.empty() || word.size() > kLongestGuessedWord) return {};
  std::string_view best;
  std::size_t best_distance = 3;
  for (const std::string_view candidate : candidates) {
    std::size_t distance = edit_distance(word, candidate);
    if (word.size() >= 2 && candidate.starts_with(word)) distance = std::min<std::size_t>(distance, 1);
    // With two wrong letters, a word of up to five letters is another word: "edit" is not "wait".
    const bool is_nearer = distance < best_distance || (distance == best_distance && candidate.size() < best.size());
    if (is_nearer && distance * 3 <= std::max(word.size(), candidate.size())) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string_view word_of(const Type& type, std::size_t index) {
  std::string_view found;
  each_word(type.words, [&](std::string_view word, std::size_t at) {
    if (at == index) found = word;
    return at == index;
  });
  return found;
}

std::string_view word_for_none(const Type& type) {
  std::string_view found;
  each_word(type.words, [&](std::string_view word, std::size_t) {
    if (word != "auto" && word != "unlimited") found = word;
    return !found.empty();
  });
  return found;
}

std::string format_number(Kind kind, std::int64_t number) {
  constexpr std::int64_t kMebibyte = 1 << 20;
  if (kind == Kind::kTime) return base::format_duration(Duration(number));
  if (kind == Kind::kBytes) {
    return number % kMebibyte == 0 ? std::to_string(number / kMebibyte) + "M" : std::to_string(number) + "B";
  }
  if (kind == Kind::kPermissions) {
    std::string text;
    for (int shift = 9; shift >= 0; shift -= 3) text += static_cast<char>('0' + ((number >> shift) & 7));
    return text;
  }
  if (kind != Kind::kFactor) return std::to_string(number);
  if (number % 1000 == 0) return std::to_string(number / 1000);
  std::string fraction = std::to_string(1000 + number % 1000).substr(1);
  fraction.erase(fraction.find_last_not_of('0') + 1);
  return std::to_string(number / 1000) + "." + fraction;
}

}  // namespace gpumux::settings
