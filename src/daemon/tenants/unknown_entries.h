// SPDX-License-Identifier: Apache-2.0
// Driver entries that went past the library, as tenants report them. Bounded, for the names are theirs.
//
// Owned by the loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace gpumux::daemon {

// More than the driver has entries: src/cuda/entries.table has some 700.
inline constexpr std::size_t kMaxUnknownEntries = 1024;
// A guess: a few names show a person which library to look at.
inline constexpr std::size_t kMaxProgramsPerEntry = 8;

struct UnknownEntry {
  std::uint64_t count = 0;
  std::vector<std::string> programs;
};

class UnknownEntries {
 public:
  // A tenant of this program says so. A text that is no name is ignored.
  void note(std::string_view name, const std::string& program);
  const std::map<std::string, UnknownEntry>& by_name() const { return entries_; }

 private:
  std::map<std::string, UnknownEntry> entries_;
};

}  // namespace gpumux::daemon
