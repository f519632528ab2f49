// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/cdi/specification.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "os/durable_file.h"

namespace gpumux::kubernetes {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kVendor[] = "gpumux.io";

// The oldest version that has all that is used here: variables, mounts with options, hooks. A runtime refuses a newer
// version than it knows. Until 0.5.0 a device's name begins with a letter.
constexpr char kVersion[] = "0.3.0";
constexpr char kNamePrefix[] = "id-";

constexpr std::string_view kSuffix = ".json";

// Runtimes of other users than root read all files of the folder, and complain of one that they cannot read. No file
// has a secret.
constexpr mode_t kMode = 0644;

constexpr std::pair<Owner::Kind, const char*> kKinds[] = {{Owner::Kind::kClaim, "claim"},
                                                          {Owner::Kind::kContainer, "container"}};

std::string class_of(Owner::Kind kind) {
  const auto* found =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](const auto& k) { return k.first == kind; });
  return found->second;
}

// The start of the names of all files of one kind; the CDI specification's own form for files that do not last.
std::string file_prefix(Owner::Kind kind) { return std::string(kVendor) + "-" + class_of(kind) + "_"; }

std::string file_name(const Owner& owner) { return file_prefix(owner.kind) + owner.id + std::string(kSuffix); }

bool is_alphanumeric(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

bool is_id(std::string_view id) {
  return !id.empty() && id.size() <= kMaxIdBytes && is_alphanumeric(id.front()) && is_alphanumeric(id.back()) &&
         std::all_of(id.begin(), id.end(),
                     [](char c) { return is_alphanumeric(c) || c == '-' || c == '_' || c == '.'; });
}

base::Status check(const Owner& owner) {
  if (is_id(owner.id)) return {};
  return base::fail(base::Code::kInvalid,
                    "'" + owner.id + "' cannot name an owner: letters, digits, - _ . are allowed, " +
                        std::to_string(kMaxIdBytes) + " at most, with a letter or digit at both ends");
}

// The owner of a file of ours; none of any other file.
std::optional<Owner> owner_of(std::string_view name) {
  if (!name.ends_with(kSuffix)) return std::nullopt;
  name.remove_suffix(kSuffix.size());
  for (const auto& [kind, text] : kKinds) {
    const std::string prefix = file_prefix(kind);
    if (name.starts_with(prefix) && is_id(name.substr(prefix.size())))
      return Owner{kind, std::string(name.substr(prefix.size()))};
  }
  return std::nullopt;
}

Json options_of(Access access) {
  Json options = {access == Access::kWrite ? "rw" : "ro", "nosuid", "nodev", "bind", "rprivate"};
  if (access != Access::kExecute) options.push_back("noexec");
  return options;
}

// A hook is an edit of its own for each thing that it does.
Json hook_of(const char* when, const std::string& hook, Json words) {
  words.insert(words.begin(), "gpumux-cdi-hook");
  return {{"hookName", when}, {"path", hook}, {"args", std::move(words)}};
}

Json record_words(const Injection& injection) {
  Json words = {"--record", injection.records};
  if (!injection.claim.uid.empty()) words.insert(words.end(), {"--claim", injection.claim.uid});
  for (const containers::Quota& quota : injection.claim.quotas)
    words.insert(words.end(), {"--quota", quota.gpu + "=" + std::to_string(quota.bytes)});
  for (const containers::Share& share : injection.claim.shares)
    words.insert(words.end(), {"--share", share.gpu + "=" + std::to_string(share.cores)});
  if (injection.claim.priority != 0)
    words.insert(words.end(), {"--priority", std::to_string(injection.claim.priority)});
  return words;
}

Json edits_of(const Injection& injection, const std::string& hook) {
  Json edits;
  for (const Variable& variable : injection.variables) edits["env"].push_back(variable.name + "=" + variable.value);
  for (const Mount& mount : injection.mounts) {
    edits["mounts"].push_back({{"hostPath", mount.host_path},
                               {"containerPath", mount.container_path},
                               {"options", options_of(mount.access)}});
  }
  edits["hooks"] = Json::array({hook_of("createRuntime", hook, record_words(injection)),
                                hook_of("createContainer", hook, {"--library", injection.library}),
                                hook_of("poststop", hook, {"--forget", injection.records})});
  return edits;
}

}  // namespace

std::string device_name(const Owner& owner) {
  return std::string(kVendor) + "/" + class_of(owner.kind) + "=" + kNamePrefix + owner.id;
}

base::Result<std::string> specification(const Owner& owner, const Injection& injection, const std::string& hook) {
  GPUMUX_TRY(check(owner));
  GPUMUX_TRY(check(injection));
  if (hook.empty() || hook.front() != '/')
    return base::fail(base::Code::kInvalid, "the hook's path '" + hook + "' is not absolute");
  const Json file = {
      {"cdiVersion", kVersion},
      {"kind", std::string(kVendor) + "/" + class_of(owner.kind)},
      {"devices", Json::array({{{"name", kNamePrefix + owner.id}, {"containerEdits", edits_of(injection, hook)}}})}};
  try {
    return file.dump(2) + "\n";
  } catch (const nlohmann::json::exception&) {
    return base::fail(base::Code::kInvalid,
                      "a path, a variable, a quota or a share of " + device_name(owner) + " is not UTF-8");
  }
}

SpecificationFolder::SpecificationFolder(std::string path, os::FileDescriptor folder)
    : path_(std::move(path)), folder_(std::move(folder)) {}

base::Result<SpecificationFolder> SpecificationFolder::open(const std::string& path) {
  const bool is_new = ::mkdir(path.c_str(), 0755) == 0;
  if (!is_new && errno != EEXIST) return base::fail_errno(errno, "cannot make " + path);
  auto folder = os::open_directory(path);
  if (!folder) return tl::unexpected(folder.error());
  if (is_new && ::fchmod(folder->get(), 0755) != 0) return base::fail_errno(errno, "cannot set the mode of " + path);
  SpecificationFolder opened(path, std::move(*folder));
  const auto names = opened.names();
  if (!names) return tl::unexpected(names.error());
  for (const std::string& name : *names) {
    if (owner_of(os::name_of_abandoned(name))) os::remove_abandoned_at(opened.folder_.get(), name);
  }
  return opened;
}

base::Result<std::string> SpecificationFolder::write(const Owner& owner, const Injection& injection,
                                                     const std::string& hook) {
  const auto text = specification(owner, injection, hook);
  if (!text) return tl::unexpected(text.error());
  GPUMUX_TRY(os::replace_file_at(folder_.get(), file_name(owner).c_str(), *text, kMode));
  return device_name(owner);
}

base::Status SpecificationFolder::remove(const Owner& owner) {
  GPUMUX_TRY(check(owner));
  const std::string name = file_name(owner);
  if (::unlinkat(folder_.get(), name.c_str(), 0) != 0 && errno != ENOENT)
    return base::fail_errno(errno, "cannot remove " + path_ + "/" + name);
  if (::fsync(folder_.get()) != 0) return base::fail_errno(errno, "cannot make the removal of " + name + " durable");
  return {};
}

base::Result<std::vector<Owner>> SpecificationFolder::owners() const {
  const auto names = this->names();
  if (!names) return tl::unexpected(names.error());
  std::vector<Owner> owners;
  for (const std::string& name : *names) {
    if (auto owner = owner_of(name)) owners.push_back(std::move(*owner));
  }
  return owners;
}

base::Result<std::vector<std::string>> SpecificationFolder::names() const {
  auto names = os::list_directory_at(folder_.get(), ".");
  if (!names) return base::fail_errno(names.error().system_errno, "cannot list " + path_);
  std::sort(names->begin(), names->end());
  return names;
}

}  // namespace gpumux::kubernetes
