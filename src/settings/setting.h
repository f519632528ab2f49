// SPDX-License-Identifier: Apache-2.0
// One line of settings.table, as code sees it: what a setting is called, what it may be, and how its text is read and
// written. The daemon, the kubelet's plugin, `gpumux set` and `gpumux doctor` all read by these functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "settings/values.h"

namespace gpumux::settings {

enum class Kind : std::uint8_t {
  kAny,
  kWord,
  kBool,  // written true or false in TOML and JSON; everything else is a string
  kTime,
  kBytes,
  kCount,
  kFactor,  // counted in thousandths
  kPriority,
  kNames,  // a list
  kText,
  kPermissions,  // octal
  kMemoryPart,   // bytes, or a percentage
  kPath,         // absolute
  // Of variables only:
  kSeconds,  // a time; a bare number is seconds
  kMilliseconds,
  kBareBytes,  // a bare number is bytes
  kShare,
  kMaxShare,
  kName,
};

struct Type {
  Kind kind = Kind::kAny;
  std::int64_t minimum = 0;  // nanoseconds, bytes, a number or thousandths
  std::int64_t maximum = 0;
  std::string_view words;    // that it may be, separated by spaces
  std::string_view allowed;  // "a time from 100ms to 24h, or unlimited"
};

// The program that reads the setting. The first reader of the table counts.
enum class Reader : std::uint8_t { kLibrary, kDaemon, kCommand, kPlugin, kNobody };

// An older system's variable. Its value becomes text of the setting's own type.
struct Alias {
  std::string_view name;  // empty: there is none
  Type type;
  std::string_view unit;  // appended to the value: "s"
  std::string_view word;  // what anything but "0" means; empty: the value counts
};

struct Setting {
  std::string_view name;      // "max_runtime": in the file, in PATCH, with "--" and dashes as an option
  std::string_view variable;  // "GPUMUX_MAX_RUNTIME", or empty
  Type type;
  std::string_view standard;  // the built-in value
  std::string_view meaning;   // one sentence without its full stop, for --help
  Reader reader = Reader::kDaemon;
  Alias alias;

  bool is_boolean() const { return type.kind == Kind::kBool; }
  // "--max-runtime".
  std::string option() const;
  // "The meaning: what is allowed".
  std::string help() const;
};

// The meaning of a text: one of the type's words, or a value.
struct Value {
  std::string_view word;    // of Type::words, or empty
  std::size_t index = 0;    // of the word
  std::int64_t number = 0;  // in the unit of the kind
};

// kInvalid says "SHOWN cannot be 'TEXT': it must be ALLOWED"; `shown` is the name that the user has typed.
base::Result<Value> parse(const Type& type, std::string_view shown, std::string_view text);
inline base::Status check(const Setting& setting, std::string_view shown, std::string_view text) {
  if (const auto value = parse(setting.type, shown, text); !value) return tl::unexpected(value.error());
  return {};
}

// The text that the alias's value stands for; nothing: it stands for none ("0" of a flag).
base::Result<std::optional<std::string>> alias_text(const Setting& setting, std::string_view text);

// The line with this name, or null.
const Setting* find(std::span<const Setting> settings, std::string_view name);
// "there is no setting 'quantom' (did you mean quantum?)", or with all that there are. Of a setting that was removed:
// what to do instead.
std::string no_such(std::span<const Setting> settings, std::string_view name);
// The candidate that `word` was probably meant to be: at most two letters are wrong, or it begins like that. Empty:
// none.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates);

// ---- fields of the generated structs ----

template <class T>
struct IsAuto : std::false_type {};
template <class T>
struct IsAuto<Auto<T>> : std::true_type {};
template <class T>
struct IsLimit : std::false_type {};
template <class T>
struct IsLimit<Limit<T>> : std::true_type {};
template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

// `value` as a field of type T.
template <class T>
T field_of(const Value& value, std::string_view text) {
  if constexpr (IsAuto<T>::value) {
    if (value.word == "auto") return kAutomatic;
    return field_of<typename T::Value>(value, text);
  } else if constexpr (IsLimit<T>::value) {
    if (value.word == "unlimited") return kUnlimited;
    return field_of<typename T::Value>(value, text);
  } else if constexpr (IsOptional<T>::value) {
    if (!value.word.empty()) return std::nullopt;
    return field_of<typename T::value_type>(value, text);
  } else if constexpr (std::is_enum_v<T>) {
    return static_cast<T>(value.index);
  } else if constexpr (std::is_same_v<T, bool>) {
    return value.word == "true";
  } else if constexpr (std::is_same_v<T, base::Duration>) {
    return base::Duration(value.number);
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(value.number);
  } else {
    static_assert(std::is_same_v<T, std::string>);
    return std::string(text);
  }
}

// The word with this index.
std::string_view word_of(const Type& type, std::size_t index);
// The word of a type that is neither auto nor unlimited: what no value means ("whole", "none").
std::string_view word_for_none(const Type& type);
std::string format_number(Kind kind, std::int64_t number);

// As it is read again, to three digits.
template <class T>
std::string format_field(const Type& type, const T& field) {
  if constexpr (IsAuto<T>::value) {
    return field.is_automatic() ? "auto" : format_field(type, field.value());
  } else if constexpr (IsLimit<T>::value) {
    return field.is_unlimited() ? "unlimited" : format_field(type, field.value());
  } else if constexpr (IsOptional<T>::value) {
    return field ? format_field(type, *field) : std::string(word_for_none(type));
  } else if constexpr (std::is_enum_v<T>) {
    return std::string(word_of(type, static_cast<std::size_t>(field)));
  } else if constexpr (std::is_same_v<T, bool>) {
    return field ? "true" : "false";
  } else if constexpr (std::is_same_v<T, base::Duration>) {
    return format_number(type.kind, field.count());
  } else if constexpr (std::is_integral_v<T>) {
    return format_number(type.kind, static_cast<std::int64_t>(field));
  } else {
    return field;
  }
}

}  // namespace gpumux::settings
