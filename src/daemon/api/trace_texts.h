// SPDX-License-Identifier: Apache-2.0
// The trace's last pieces as texts: views of one daemon that see the same names share them. Entries of the trace do not
// change, so a text is never wrong.
//
// Owned by the loop's thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

namespace gpumux::daemon {

// Entries in one piece: some 20 KiB. Piece n has the entries from n * kTracePiece + 1 on.
inline constexpr std::uint64_t kTracePiece = 128;

// 1.5 MiB. 20 views that ask every two seconds share all pieces, up to 4,000 entries a second.
inline constexpr std::size_t kKeptTraceTexts = 64;

class TraceTexts {
 public:
  // The first entry after the piece that `sequence` is in.
  static std::uint64_t end_of(std::uint64_t sequence) { return ((sequence - 1) / kTracePiece + 1) * kTracePiece + 1; }
  static bool is_begin(std::uint64_t sequence) { return (sequence - 1) % kTracePiece == 0; }

  // The whole piece that begins with `first`; null: it must be made. `names_of`: as append_json_line() has it.
  const std::string* find(std::optional<uid_t> names_of, std::uint64_t first) const {
    for (const Text& one : texts_) {
      if (one.first == first && one.names_of == names_of) return &one.text;
    }
    return nullptr;
  }

  // Only for a whole piece.
  void keep(std::optional<uid_t> names_of, std::uint64_t first, std::string text) {
    if (find(names_of, first) != nullptr) return;
    if (texts_.size() == kKeptTraceTexts) texts_.pop_front();
    texts_.push_back({names_of, first, std::move(text)});
  }

 private:
  struct Text {
    std::optional<uid_t> names_of;
    std::uint64_t first;
    std::string text;
  };

  std::deque<Text> texts_;  // the oldest first
};

}  // namespace gpumux::daemon
