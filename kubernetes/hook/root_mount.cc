// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/hook/root_mount.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <optional>
#include <string>

#include "kubernetes/hook/open_below.h"
#include "os/durable_file.h"

namespace gpumux::kubernetes {
namespace {

// A mount namespace has 100,000 mounts at most (fs.mount-max); a line of a container's overlay has about 600 bytes.
constexpr std::size_t kMaxMountsBytes = 64u << 20;

struct Entry {
  int parent = 0;
  std::string_view device, folder, place;  // folder: within the device's file system
  bool is_read_only = false;
};

std::string_view next_word(std::string_view& line) {
  const std::size_t end = std::min(line.find(' '), line.size());
  const std::string_view word = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return word;
}

std::optional<int> number(std::string_view word) {
  int value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

// proc(5): "36 35 98:0 /folder /place ro,noatime master:1 - ext3 ..."
using Entries = std::map<int, Entry>;
base::Result<Entries> parse_mounts(std::string_view mounts) {
  Entries entries;
  while (!mounts.empty()) {
    const std::size_t end = std::min(mounts.find('\n'), mounts.size());
    std::string_view line = mounts.substr(0, end);
    mounts.remove_prefix(std::min(end + 1, mounts.size()));
    const auto id = number(next_word(line));
    const auto parent = number(next_word(line));
    Entry entry;
    entry.device = next_word(line);
    entry.folder = next_word(line);
    entry.place = next_word(line);
    const std::string_view options = next_word(line);
    if (!id || !parent || options.empty()) return base::fail(base::Code::kInvalid, "a line is not as proc(5) has it");
    entry.parent = *parent;
    entry.is_read_only = options == "ro" || options.starts_with("ro,");
    entries[*id] = entry;
  }
  return entries;
}

}  // namespace

base::Result<RootMount> find_root_mount(std::string_view mounts, int id, bool is_mount_point) {
  const auto entries = parse_mounts(mounts);
  if (!entries) return tl::unexpected(entries.error());
  const auto found = entries->find(id);
  if (found == entries->end()) return base::fail(base::Code::kInvalid, "the root folder's mount is not in the list");
  const Entry& root = found->second;
  if (!is_mount_point) return RootMount{root.is_read_only, root.is_read_only};
  const auto beneath = entries->find(root.parent);
  const RootMount result{root.is_read_only, beneath == entries->end() || beneath->second.is_read_only};
  // Down the stack of mounts at the root's place. The namespace's first mount is its own parent, so mounts are counted.
  auto below = beneath;
  for (std::size_t seen = 0; seen < entries->size(); ++seen) {
    if (below == entries->end() || below->second.place != root.place) break;
    if (below->second.device != root.device || below->second.folder != root.folder)
      return base::fail(base::Code::kDenied, "a volume lies on the container's root; the hook changes no volume");
    below = entries->find(below->second.parent);
  }
  return result;
}

base::Result<RootMount> root_mount_of(int root) {
  constexpr char kTrying[] = "cannot tell the mounts at the container's root: ";
  const std::string fdinfo = "/proc/self/fdinfo/" + std::to_string(root);
  const auto said = os::read_unsized_at(AT_FDCWD, fdinfo.c_str());
  if (!said) return base::fail(base::Code::kUnavailable, kTrying + said.error().message());
  constexpr std::string_view kKey = "mnt_id:\t";
  const std::size_t key = said->find(kKey);
  const std::string_view rest = key == std::string::npos ? "" : std::string_view(*said).substr(key + kKey.size());
  const auto id = number(rest.substr(0, rest.find('\n')));
  if (!id) return base::fail(base::Code::kUnavailable, std::string(kTrying) + fdinfo + " names no mount");
  const auto mounts = os::read_unsized_at(AT_FDCWD, "/proc/self/mountinfo", kMaxMountsBytes);
  if (!mounts) return base::fail(base::Code::kUnavailable, kTrying + mounts.error().message());
  if (mounts->size() == kMaxMountsBytes) {
    return base::fail(base::Code::kUnavailable, kTrying + std::string("the list of mounts has more than ") +
                                                    std::to_string(kMaxMountsBytes) + " bytes");
  }
  // From a mount's own root the way up leads to another mount.
  const os::FileDescriptor above = open_below(root, "..", RESOLVE_NO_XDEV, O_PATH);
  if (!above && errno != EXDEV) return base::fail_errno(errno, kTrying + std::string("cannot open its parent folder"));
  auto found = find_root_mount(*mounts, *id, !above);
  if (!found && found.error().code == base::Code::kInvalid)
    return base::fail(base::Code::kUnavailable, kTrying + found.error().message());
  return found;
}

}  // namespace gpumux::kubernetes
