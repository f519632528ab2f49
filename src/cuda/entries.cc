// SPDX-License-Identifier: Apache-2.0
#include "cuda/entries.h"

#include <algorithm>

namespace gpumux::cuda {
namespace {

bool is_per_thread(const EntryInfo& info) {
  return info.variant == StreamVariant::kPtds || info.variant == StreamVariant::kPtsz;
}

}  // namespace

std::optional<Entry> find_symbol(std::string_view symbol) {
  const auto found = std::lower_bound(kEntries.begin(), kEntries.end(), symbol,
                                      [](const EntryInfo& info, std::string_view name) { return info.symbol < name; });
  if (found == kEntries.end() || found->symbol != symbol) return std::nullopt;
  return static_cast<Entry>(found - kEntries.begin());
}

std::optional<Entry> find_versioned(std::string_view api_name, unsigned cuda_version, bool per_thread_stream) {
  auto at = std::lower_bound(kVersionedEntries.begin(), kVersionedEntries.end(), api_name,
                             [](Entry entry, std::string_view name) { return info_of(entry).api_name < name; });
  // The few entries of one name follow each other, per-thread ones last and older ones first. So the last that fits is
  // the one. Exception: it is a plain one and there are per-thread ones that do not fit.
  std::optional<Entry> best;
  for (; at != kVersionedEntries.end() && info_of(*at).api_name == api_name; ++at) {
    const EntryInfo& info = info_of(*at);
    if (is_per_thread(info) && !per_thread_stream) break;
    if (is_per_thread(info) && best && !is_per_thread(info_of(*best))) best.reset();
    if (info.since <= cuda_version) best = *at;
  }
  return best;
}

}  // namespace gpumux::cuda
