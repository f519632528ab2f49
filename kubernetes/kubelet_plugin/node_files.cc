// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/kubelet_plugin/node_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <utility>
#include <vector>

#include "base/version.h"
#include "containers/record.h"
#include "kubernetes/cdi/specification.h"
#include "kubernetes/dra/claims.h"
#include "kubernetes/dra/driver.h"
#include "os/durable_file.h"
#include "os/installation.h"
#include "os/runtime_dir.h"

namespace gpumux::kubernetes {
namespace {

namespace fs = std::filesystem;
using base::Code;

// The largest has 20 MiB.
constexpr std::size_t kMostBytes = 256 << 20;
// Any user of a container runs them.
constexpr mode_t kMode = 0755;
constexpr const char* kSimulatedDriver[] = {"libcuda.so.1", "libnvidia-ml.so.1"};
constexpr char kHook[] = "gpumux-cdi-hook";

base::Status make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return base::fail_errno(error.value(), "cannot create " + folder.string());
  return {};
}

base::Status put_file(const fs::path& from, const fs::path& to) {
  const auto source = os::open_directory(from.parent_path());
  if (!source) return tl::unexpected(source.error());
  const auto content = os::read_file_at(source->get(), from.filename().c_str(), kMostBytes);
  if (!content) return tl::unexpected(content.error());
  GPUMUX_TRY(make_folder(to.parent_path()));
  const auto folder = os::open_directory(to.parent_path());
  if (!folder) return tl::unexpected(folder.error());
  const std::string name = to.filename();
  os::remove_abandoned_at(folder->get(), name);
  struct stat status {};
  const auto old = os::read_file_at(folder->get(), name.c_str(), kMostBytes);
  if (old && *old == *content && ::fstatat(folder->get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
      (status.st_mode & 07777) == kMode)
    return {};
  if (const auto done = os::replace_file_at(folder->get(), name.c_str(), *content, kMode); !done)
    return base::fail(done.error().code, "cannot write " + to.string() + ": " + done.error().message());
  return {};
}

base::Result<fs::path> first_of(const std::vector<fs::path>& places) {
  std::error_code ignored;
  const auto found =
      std::find_if(places.begin(), places.end(), [&](const fs::path& place) { return fs::exists(place, ignored); });
  if (found != places.end()) return *found;
  return base::fail(Code::kNotFound, places.front().string() + " is missing: this is no whole image of gpumux");
}

// No error if there is none.
base::Status remove_file(const fs::path& path) {
  if (::unlink(path.c_str()) == 0 || errno == ENOENT || errno == ENOTDIR) return {};
  return base::fail_errno(errno, "cannot remove " + path.string());
}

// A folder that has files of others stays.
void remove_if_empty(const fs::path& folder) { ::rmdir(folder.c_str()); }

DriverSettings driver_of(const settings::KubeletSettings& settings) { return {settings.kubelet, ""}; }

base::Status nobody_uses_it(const settings::KubeletSettings& settings, const std::string& runtime_dir,
                            const std::vector<Owner>& owners) {
  // A claim has a record, and a specification unless the machine has started again since.
  const std::string claims_folder = driver_of(settings).claims_folder();
  const auto recorded = recorded_claims(claims_folder);
  if (!recorded) return tl::unexpected(recorded.error());
  std::set<std::string> claims(recorded->begin(), recorded->end());
  for (const Owner& owner : owners) {
    if (owner.kind == Owner::Kind::kClaim) claims.insert(owner.id);
  }
  std::vector<std::string> ids;
  const std::string records = runtime_dir + "/" + os::kContainersDir;
  const auto folder = os::open_directory(records);
  if (!folder && folder.error().code != Code::kNotFound) return tl::unexpected(folder.error());
  if (folder) {
    auto found = containers::record_ids(folder->get());
    if (!found) return tl::unexpected(found.error());
    ids = std::move(*found);
  }
  if (claims.empty() && ids.empty()) return {};
  return base::fail(Code::kExists, "gpumux is in use on this node: " + std::to_string(ids.size()) +
                                       " containers have it (records in " + records + ") and " +
                                       std::to_string(claims.size()) + " claims are prepared (" + claims_folder + ", " +
                                       settings.cdi_folder + "); end their pods first, for example by kubectl drain");
}

// The plugin has ended. A plugin that was killed has left its sockets.
base::Status remove_plugin_folder(const settings::KubeletSettings& settings) {
  const DriverSettings driver = driver_of(settings);
  GPUMUX_TRY(remove_claims_folder(driver.claims_folder()));
  GPUMUX_TRY(remove_file(driver.registration_socket()));
  GPUMUX_TRY(remove_file(driver.service_socket()));
  remove_if_empty(fs::path(driver.service_socket()).parent_path());
  return {};
}

// REQUIRES: no container has a record. A daemon that ends leaves its folders, for containers may have them.
base::Status remove_daemon_folders(const DaemonFolders& daemon) {
  const std::string lock = daemon.runtime_dir + "/" + os::kRuntimeLock;
  const os::FileDescriptor file(::open(lock.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file && errno != ENOENT) return base::fail_errno(errno, "cannot open " + lock);
  if (file && ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return {};
    return base::fail_errno(errno, "cannot lock " + lock);
  }
  const std::string records = daemon.runtime_dir + "/" + os::kContainersDir;
  if (const auto folder = os::open_directory(records)) GPUMUX_TRY(containers::remove_unfinished(folder->get()));
  for (const char* name :
       {os::kTenantSocket, os::kApiSocket, os::kRootApiSocket, os::kKnownTenants, os::kMoverSocket, os::kRuntimeLock})
    GPUMUX_TRY(remove_file(daemon.runtime_dir + "/" + name));
  for (const char* name : {os::kTenantDir, os::kContainersDir, os::kRootDir, os::kHostMemoryDir})
    remove_if_empty(daemon.runtime_dir + "/" + name);
  remove_if_empty(daemon.runtime_dir);
  remove_if_empty(daemon.gpu_locks);
  return {};
}

}  // namespace

base::Status install_node_files(const settings::KubeletSettings& settings, const std::string& programs) {
  const fs::path here = programs;
  const auto library = os::find_library(programs);
  if (!library) return tl::unexpected(library.error());
  const auto hook = first_of({here / ".." / "libexec" / "gpumux" / kHook, here / kHook});
  if (!hook) return tl::unexpected(hook.error());
  GPUMUX_TRY(put_file(*library, fs::path(settings.libraries) / base::version() / os::kLibraryName));
  GPUMUX_TRY(put_file(*hook, settings.hook));
  for (const char* name : kSimulatedDriver) {
    // Images for machines with GPUs have none.
    if (const auto driver =
            first_of({here / ".." / "lib" / "gpumux" / "sim" / name, here / ".." / "lib" / "sim" / name}))
      GPUMUX_TRY(put_file(*driver, fs::path(settings.sim_libraries) / name));
  }
  return {};
}

base::Status remove_node_files(const settings::KubeletSettings& settings, const DaemonFolders& daemon) {
  auto specifications = SpecificationFolder::open(settings.cdi_folder);
  if (!specifications) return tl::unexpected(specifications.error());
  const auto owners = specifications->owners();
  if (!owners) return tl::unexpected(owners.error());
  GPUMUX_TRY(nobody_uses_it(settings, daemon.runtime_dir, *owners));
  for (const Owner& owner : *owners) GPUMUX_TRY(specifications->remove(owner));
  GPUMUX_TRY(remove_file(settings.hook));
  std::error_code error;
  for (fs::directory_iterator version(settings.libraries, error), end; !error && version != end;
       version.increment(error)) {
    GPUMUX_TRY(remove_file(version->path() / os::kLibraryName));
    remove_if_empty(version->path());
  }
  for (const char* name : kSimulatedDriver) GPUMUX_TRY(remove_file(fs::path(settings.sim_libraries) / name));
  remove_if_empty(settings.libraries);
  remove_if_empty(settings.sim_libraries);
  remove_if_empty(fs::path(settings.hook).parent_path());
  GPUMUX_TRY(remove_plugin_folder(settings));
  return remove_daemon_folders(daemon);
}

}  // namespace gpumux::kubernetes
