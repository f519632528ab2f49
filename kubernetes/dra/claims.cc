// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/dra/claims.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "os/durable_file.h"

namespace gpumux::kubernetes {
namespace {

constexpr std::string_view kSuffix = ".json";
constexpr char kAside[] = ".unreadable";
// A guess: a record has some hundred bytes for each of its devices.
constexpr std::size_t kMostRecordBytes = 1 << 20;
// Only the plugin reads them.
constexpr mode_t kRecordMode = 0600;

std::string record_name(const std::string& uid) { return uid + std::string(kSuffix); }

// A uid is a part of file names.
base::Status check(const ClaimName& claim) {
  const auto is_good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
  };
  bool good =
      !claim.uid.empty() && claim.uid.size() <= kMaxIdBytes && claim.uid.front() != '-' && claim.uid.back() != '-';
  for (const char c : claim.uid) good = good && is_good(c);
  if (good) return {};
  return base::fail(base::Code::kInvalid, "'" + claim.uid + "' is no uid of a claim");
}

}  // namespace

Claims::Claims(ClaimsSettings settings, Fetch fetch, Give give, Report report, os::FileDescriptor folder,
               SpecificationFolder specifications)
    : settings_(std::move(settings)),
      fetch_(std::move(fetch)),
      give_(std::move(give)),
      report_(std::move(report)),
      folder_(std::move(folder)),
      specifications_(std::move(specifications)) {}

base::Result<std::unique_ptr<Claims>> Claims::open(ClaimsSettings settings, Fetch fetch, Give give, Report report) {
  std::error_code failed;
  std::filesystem::create_directories(settings.folder, failed);
  if (failed) return base::fail_errno(failed.value(), "cannot make " + settings.folder);
  auto folder = os::open_directory(settings.folder);
  if (!folder) return tl::unexpected(folder.error());
  auto specifications = SpecificationFolder::open(settings.cdi_folder);
  if (!specifications) return tl::unexpected(specifications.error());
  std::unique_ptr<Claims> claims(new Claims(std::move(settings), std::move(fetch), std::move(give), std::move(report),
                                            std::move(*folder), std::move(*specifications)));
  GPUMUX_TRY(claims->read_records());
  return claims;
}

base::Status Claims::read_records() {
  const auto names = os::list_directory(settings_.folder);
  if (!names) return tl::unexpected(names.error());
  for (const std::string& name : *names) {
    if (os::name_of_abandoned(name).ends_with(kSuffix)) os::remove_abandoned_at(folder_.get(), name);
    if (!name.ends_with(kSuffix)) continue;
    const auto text = os::read_file_at(folder_.get(), name.c_str(), kMostRecordBytes);
    auto grant = text ? grant_from_json(*text) : base::Result<Grant>(tl::unexpected(text.error()));
    if (grant && record_name(grant->uid) == name) {
      grants_[grant->uid] = std::move(*grant);
      continue;
    }
    report_("cannot use the claim's record " + settings_.folder + "/" + name + ": " +
            (grant ? "it is of another claim" : grant.error().message()) + "; it is now " + name + kAside +
            ", and the claim is read from the API server when the kubelet prepares it again");
    if (::renameat(folder_.get(), name.c_str(), folder_.get(), (name + kAside).c_str()) != 0)
      return base::fail_errno(errno, "cannot rename " + settings_.folder + "/" + name);
  }
  return {};
}

std::optional<Grant> Claims::known(const std::string& uid) const {
  const std::lock_guard lock(mutex_);
  const auto found = grants_.find(uid);
  return found == grants_.end() ? std::nullopt : std::optional<Grant>(found->second);
}

base::Result<std::vector<PreparedDevice>> Claims::prepare(const ClaimName& claim) {
  GPUMUX_TRY(check(claim));
  std::optional<Grant> grant = known(claim.uid);
  if (!grant) {
    const auto fetched = fetch_(claim);
    if (!fetched) return tl::unexpected(fetched.error());
    auto made = grant_of(*fetched, settings_.pool);
    if (!made) return tl::unexpected(made.error());
    if (made->uid != claim.uid)
      return base::fail(base::Code::kNotFound, "ResourceClaim " + claim.name_space + "/" + claim.name +
                                                   " is another one now, with uid " + made->uid);
    grant = std::move(*made);
  }
  auto given = give_(*grant);
  if (!given) return tl::unexpected(given.error());

  const std::lock_guard lock(mutex_);
  if (const auto found = grants_.find(claim.uid); found == grants_.end() || found->second != *grant) {
    GPUMUX_TRY(os::replace_file_at(folder_.get(), record_name(claim.uid).c_str(), to_json(*grant).dump(), kRecordMode));
    grants_[claim.uid] = *grant;
  }
  const auto device = specifications_.write({Owner::Kind::kClaim, claim.uid}, given->injection, settings_.hook);
  if (!device) return tl::unexpected(device.error());
  std::vector<PreparedDevice> prepared;
  for (std::size_t i = 0; i < grant->shares.size(); ++i) {
    const GrantedShare& share = grant->shares[i];
    prepared.push_back({share.request.substr(0, share.request.find('/')), share.pool, share.device,
                        std::move(given->cdi_devices.at(i)), share.share_id});
    prepared.back().cdi_devices.push_back(*device);
  }
  return prepared;
}

base::Status Claims::unprepare(const ClaimName& claim) {
  GPUMUX_TRY(check(claim));
  const std::lock_guard lock(mutex_);
  GPUMUX_TRY(specifications_.remove({Owner::Kind::kClaim, claim.uid}));
  if (::unlinkat(folder_.get(), record_name(claim.uid).c_str(), 0) != 0 && errno != ENOENT)
    return base::fail_errno(errno, "cannot remove " + settings_.folder + "/" + record_name(claim.uid));
  // A removal that a crash takes back is repeated by remove_gone().
  grants_.erase(claim.uid);
  return {};
}

void Claims::remove_gone() {
  for (const std::string& uid : uids()) {
    const auto grant = known(uid);
    if (!grant) continue;
    const ClaimName claim{grant->name_space, grant->name, uid};
    const auto fetched = fetch_(claim);
    // A server that does not answer now knows of no other claim either.
    if (!fetched && fetched.error().code != base::Code::kNotFound) return;
    if (fetched) {
      // Only a whole answer with another uid says that this claim is gone.
      const auto now = uid_of(*fetched);
      if (!now || *now == uid) continue;
    }
    const base::Status removed = unprepare(claim);
    report_("ResourceClaim " + claim.name_space + "/" + claim.name +
            " is gone: " + (removed ? "removed what was left of it" : removed.error().message()));
  }
}

std::vector<std::string> Claims::uids() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> uids;
  for (const auto& [uid, grant] : grants_) uids.push_back(uid);
  return uids;
}

base::Result<std::vector<std::string>> recorded_claims(const std::string& folder) {
  std::vector<std::string> uids;
  const auto names = os::list_directory(folder);
  if (!names && names.error().code == base::Code::kNotFound) return uids;
  if (!names) return tl::unexpected(names.error());
  for (const std::string& name : *names) {
    if (name.ends_with(kSuffix)) uids.push_back(name.substr(0, name.size() - kSuffix.size()));
  }
  return uids;
}

base::Status remove_claims_folder(const std::string& folder) {
  const auto opened = os::open_directory(folder);
  if (!opened && opened.error().code == base::Code::kNotFound) return {};
  if (!opened) return tl::unexpected(opened.error());
  const auto names = os::list_directory(folder);
  if (!names) return tl::unexpected(names.error());
  for (const std::string& name : *names) {
    if (os::name_of_abandoned(name).ends_with(kSuffix)) os::remove_abandoned_at(opened->get(), name);
    if (!name.ends_with(std::string(kSuffix) + kAside)) continue;
    if (::unlinkat(opened->get(), name.c_str(), 0) != 0 && errno != ENOENT)
      return base::fail_errno(errno, "cannot remove " + folder + "/" + name);
  }
  if (::rmdir(folder.c_str()) != 0 && errno != ENOTEMPTY && errno != EEXIST && errno != ENOENT)
    return base::fail_errno(errno, "cannot remove " + folder);
  return {};
}

}  // namespace gpumux::kubernetes
