// SPDX-License-Identifier: Apache-2.0
// Facts about addresses: a value for each of some ranges that do not overlap.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

namespace gpumux::base {

template <class Value>
class IntervalMap {
 public:
  struct Piece {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    Value value{};
  };

  // Replaces what was said of any part of it.
  void set(std::uint64_t begin, std::uint64_t end, Value value) {
    erase(begin, end);
    if (begin < end) pieces_[begin] = {end, std::move(value)};
  }
  void erase(std::uint64_t begin, std::uint64_t end) {
    if (begin >= end) return;
    auto piece = pieces_.lower_bound(begin);
    if (piece != pieces_.begin() && std::prev(piece)->second.end > begin) --piece;
    while (piece != pieces_.end() && piece->first < end) {
      const std::uint64_t its_begin = piece->first;
      const Rest its = std::move(piece->second);
      piece = pieces_.erase(piece);
      if (its_begin < begin) pieces_[its_begin] = {begin, its.value};
      if (its.end > end) piece = pieces_.emplace(end, its).first;
    }
  }
  // The piece that the address lies in.
  std::optional<Piece> find(std::uint64_t address) const {
    auto next = pieces_.upper_bound(address);
    if (next == pieces_.begin()) return std::nullopt;
    const auto& [begin, rest] = *std::prev(next);
    if (rest.end <= address) return std::nullopt;
    return Piece{begin, rest.end, rest.value};
  }
  // Where the first piece beyond the address begins; `otherwise` if that comes first.
  std::uint64_t next_begin(std::uint64_t address, std::uint64_t otherwise) const {
    const auto next = pieces_.upper_bound(address);
    return next == pieces_.end() ? otherwise : std::min(next->first, otherwise);
  }

 private:
  struct Rest {
    std::uint64_t end = 0;
    Value value{};
  };
  std::map<std::uint64_t, Rest> pieces_;  // by their beginnings
};

}  // namespace gpumux::base
