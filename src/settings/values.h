// SPDX-License-Identifier: Apache-2.0
// A setting may be automatic or unlimited instead of a value. Both are types, so no code can take one for a number.
#pragma once

#include <algorithm>
#include <compare>
#include <concepts>
#include <optional>
#include <utility>

namespace gpumux::settings {

struct Unlimited {
  bool operator==(const Unlimited&) const = default;
};
inline constexpr Unlimited kUnlimited{};

struct Automatic {
  bool operator==(const Automatic&) const = default;
};
inline constexpr Automatic kAutomatic{};

// A bound, or none. Unlimited is greater than every value.
template <class T>
class Limit {
 public:
  using Value = T;
  constexpr Limit() = default;                                           // unlimited
  constexpr Limit(Unlimited) {}                                          // NOLINT(google-explicit-constructor)
  template <std::convertible_to<T> U>                                    //
  constexpr Limit(U value) : value_(std::in_place, std::move(value)) {}  // NOLINT(google-explicit-constructor)

  constexpr bool is_unlimited() const { return !value_; }
  // REQUIRES: !is_unlimited()
  constexpr const T& value() const { return *value_; }
  // Null: unlimited.
  constexpr T* if_value() { return value_ ? &*value_ : nullptr; }
  // The smaller of the bound and `most`.
  constexpr T at_most(T most) const { return value_ ? std::min(*value_, most) : most; }

  friend constexpr bool operator==(const Limit&, const Limit&) = default;
  friend constexpr std::strong_ordering operator<=>(const Limit& a, const Limit& b) {
    if (a.value_ && b.value_) return *a.value_ <=> *b.value_;
    return a.is_unlimited() <=> b.is_unlimited();
  }

 private:
  std::optional<T> value_;
};

// A value that a user has set, or the order to find a good one.
template <class T>
class Auto {
 public:
  using Value = T;
  constexpr Auto(Automatic) {}                                          // NOLINT(google-explicit-constructor)
  template <std::convertible_to<T> U>                                   //
  constexpr Auto(U value) : value_(std::in_place, std::move(value)) {}  // NOLINT(google-explicit-constructor)

  constexpr bool is_automatic() const { return !value_; }
  // REQUIRES: !is_automatic()
  constexpr const T& value() const { return *value_; }
  // Null: automatic.
  constexpr T* if_value() { return value_ ? &*value_ : nullptr; }

  friend constexpr bool operator==(const Auto&, const Auto&) = default;

 private:
  std::optional<T> value_;
};

}  // namespace gpumux::settings
