// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/hook/image.h"

#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <utility>

#include "kubernetes/hook/open_below.h"
#include "os/file_descriptor.h"
#include "os/preload_list.h"

namespace gpumux::kubernetes {
namespace {

constexpr char kEtc[] = "etc";
constexpr char kList[] = "ld.so.preload";
// A killed hook may leave this file. It is removed by the next hook in the same image.
constexpr char kNewList[] = ".ld.so.preload.gpumux";

// Where programs name glibc's loader: the ABI of each machine fixes the path.
#if defined(__x86_64__)
constexpr char kLoader[] = "lib64/ld-linux-x86-64.so.2";
#elif defined(__aarch64__)
constexpr char kLoader[] = "lib/ld-linux-aarch64.so.1";
#endif

// The newest version of glibc that libgpumux.so asks for (tools/check_exports.py).
constexpr int kOldestGlibc = 28;

// As many links as the kernel follows in one path.
constexpr int kMaxLinks = 40;

constexpr std::uint64_t kInside = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
constexpr std::uint64_t kUnchangeable = kInside | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV;

tl::unexpected<base::Error> fail_open(int error, const std::string& path) {
  switch (error) {
    case ENOSYS:
      return base::fail(base::Code::kUnsupported, "this kernel has no openat2; Linux 5.6 or newer is needed");
    case ELOOP: return base::fail(base::Code::kDenied, path + " is or lies behind a link; the hook follows none");
    case EXDEV:
      return base::fail(base::Code::kDenied, path + " is on a volume; the hook changes only the container's own root");
    case ENOTDIR:
      return base::fail(base::Code::kDenied, path + " is not what programs take it for: a part of it is no folder");
    default: return base::fail_errno(error, "cannot open " + path);
  }
}

// kNotFound: there is no such regular file for the container's programs.
base::Status check_library(int root, const std::string& library) {
  const os::FileDescriptor file = open_below(root, library.c_str(), kInside, O_PATH);
  if (!file) return fail_open(errno, library);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return base::fail_errno(errno, "cannot look at " + library);
  if (!S_ISREG(status.st_mode)) return base::fail(base::Code::kNotFound, library + " is not a regular file");
  return {};
}

// The name of the loader's file, behind the image's links. Empty: the image has no loader there.
base::Result<std::string> loader_file(int root) {
  std::string path = kLoader;
  for (int links = 0; links < kMaxLinks; ++links) {
    const os::FileDescriptor found = open_below(root, path.c_str(), kInside, O_PATH | O_NOFOLLOW);
    if (!found && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP)) return "";
    if (!found) return fail_open(errno, path);
    struct stat status {};
    if (::fstat(found.get(), &status) != 0) return base::fail_errno(errno, "cannot look at " + path);
    const std::size_t name = path.rfind('/') + 1;
    if (!S_ISLNK(status.st_mode)) return path.substr(name);
    char target[PATH_MAX];
    const ssize_t length = ::readlinkat(found.get(), "", target, sizeof target);
    if (length < 0) return base::fail_errno(errno, "cannot read the link " + path);
    const std::string_view next(target, static_cast<std::size_t>(length));
    path = next.starts_with('/') ? std::string(next) : path.substr(0, name) + std::string(next);
  }
  return "";
}

os::FileDescriptor open_etc(int root) {
  return open_below(root, kEtc, kUnchangeable, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
}

struct List {
  bool exists = false;
  std::string text;
  struct stat status {};
};

// Devices and FIFOs are never opened: opening some has effects, and opening others waits.
base::Result<List> read_list(int etc) {
  List list;
  const std::string shown = std::string("/") + kEtc + "/" + kList;
  const os::FileDescriptor found = open_below(etc, kList, kUnchangeable, O_PATH | O_NOFOLLOW);
  if (!found && errno == ENOENT) return list;
  if (!found) return fail_open(errno, shown);
  if (::fstat(found.get(), &list.status) != 0) return base::fail_errno(errno, "cannot look at " + shown);
  if (!S_ISREG(list.status.st_mode)) return base::fail(base::Code::kDenied, shown + " is not a regular file");
  const os::FileDescriptor file = open_below(etc, kList, kUnchangeable, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (!file) return fail_open(errno, shown);
  struct stat opened {};
  if (::fstat(file.get(), &opened) != 0 || opened.st_dev != list.status.st_dev || opened.st_ino != list.status.st_ino) {
    return base::fail(base::Code::kUnavailable, shown + " was replaced by another process");
  }
  list.exists = true;
  list.text.resize(kMaxListBytes + 1);
  std::size_t at = 0;
  while (at < list.text.size()) {
    const ssize_t got = ::read(file.get(), list.text.data() + at, list.text.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return base::fail_errno(errno, "cannot read " + shown);
    if (got == 0) break;
    at += static_cast<std::size_t>(got);
  }
  if (at > kMaxListBytes) {
    return base::fail(base::Code::kExhausted, shown + " has more than " + std::to_string(kMaxListBytes) + " bytes");
  }
  list.text.resize(at);
  if (list.text.find('\0') != std::string::npos)
    return base::fail(base::Code::kDenied, shown + " has a zero byte, which ends it for the loader");
  return list;
}

// Whether the loader finds a library of ours by the list. An entry whose file is gone does not count: the loader
// complains of it, and goes on.
base::Result<bool> loads_library(int root, std::string_view list) {
  for (const std::string& entry : os::file_entries(list)) {
    if (!os::is_library(entry)) continue;
    // Two copies in one process wait for each other, so a guess is no help. The loader replaces $LIB and its like.
    if (entry.front() != '/' || entry.find('$') != std::string::npos) {
      return base::fail(base::Code::kDenied, std::string("/") + kEtc + "/" + kList + " names " + entry +
                                                 ", which is no absolute path: which file the loader finds is unknown");
    }
    const auto found = check_library(root, entry);
    if (found) return true;
    if (found.error().code != base::Code::kNotFound) return tl::unexpected(found.error());
  }
  return false;
}

base::Status write_new(int fd, std::string_view text, const List& old) {
  while (!text.empty()) {
    const ssize_t wrote = ::write(fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return base::fail_errno(wrote < 0 ? errno : ENOSPC, "cannot write the new list");
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
  // The image decides who may read its list. A new list is for all programs, whatever the umask is.
  if (old.exists && ::fchown(fd, old.status.st_uid, old.status.st_gid) != 0)
    return base::fail_errno(errno, "cannot give the new list to the old one's owner");
  const mode_t mode = old.exists ? old.status.st_mode & 0777 : 0644;
  if (::fchmod(fd, mode) != 0) return base::fail_errno(errno, "cannot set the mode of the new list");
  return {};
}

base::Status replace_list(int etc, std::string_view text, const List& old) {
  ::unlinkat(etc, kNewList, 0);
  const os::FileDescriptor file =
      open_below(etc, kNewList, kUnchangeable, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
  if (!file) return fail_open(errno, std::string("/") + kEtc + "/" + kNewList);
  base::Status replaced = write_new(file.get(), text, old);
  if (replaced && ::renameat(etc, kNewList, etc, kList) != 0)
    replaced = base::fail_errno(errno, std::string("cannot replace /") + kEtc + "/" + kList);
  if (!replaced) ::unlinkat(etc, kNewList, 0);
  return replaced;
}

// The root folder, without the container's other mounts, by a mount of ours that is not read-only and attached nowhere.
base::Result<os::FileDescriptor> writable_view(int root) {
  os::FileDescriptor view(
      static_cast<int>(::syscall(SYS_open_tree, root, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH)));
  mount_attr writable{};
  writable.attr_clr = MOUNT_ATTR_RDONLY;
  if (!view || ::syscall(SYS_mount_setattr, view.get(), "", AT_EMPTY_PATH, &writable, sizeof writable) != 0)
    return base::fail_errno(errno,
                            "the container's root is read-only already, and this kernel gives no writable view of it");
  return view;
}

base::Status write_list(int root, Access access, std::string_view text, const List& old) {
  if (access == Access::kReadOnly) {
    return base::fail(base::Code::kDenied,
                      "the container's root is mounted read-only, and not by the runtime; the hook leaves it so");
  }
  os::FileDescriptor view;
  if (access == Access::kReadOnlyByRuntime) {
    auto made = writable_view(root);
    if (!made) return tl::unexpected(made.error());
    view = std::move(*made);
  }
  const int writable = view ? view.get() : root;
  if (::mkdirat(writable, kEtc, 0755) != 0 && errno != EEXIST)
    return base::fail_errno(errno, std::string("cannot make /") + kEtc);
  const os::FileDescriptor etc = open_etc(writable);
  if (!etc) return fail_open(errno, std::string("/") + kEtc);
  return replace_list(etc.get(), text, old);
}

}  // namespace

bool is_too_old(std::string_view loader_file) {
  constexpr std::string_view kPrefix = "ld-2.", kSuffix = ".so";
  if (!loader_file.starts_with(kPrefix) || !loader_file.ends_with(kSuffix)) return false;
  loader_file.remove_prefix(kPrefix.size());
  loader_file.remove_suffix(std::min(kSuffix.size(), loader_file.size()));
  int minor = 0;
  std::size_t digits = 0;
  for (; digits < loader_file.size() && digits < 4; ++digits) {
    if (loader_file[digits] < '0' || loader_file[digits] > '9') break;
    minor = minor * 10 + (loader_file[digits] - '0');
  }
  // "2.12.1" has a third number.
  return digits > 0 && (digits == loader_file.size() || loader_file[digits] == '.') && minor < kOldestGlibc;
}

std::string with_entry(std::string_view list, std::string_view library) {
  std::string text(list);
  if (!text.empty() && text.back() != '\n') text += '\n';
  text += library;
  text += '\n';
  return text;
}

base::Result<Listing> list_library(int root, const std::string& library, Access access) {
  const auto loader = loader_file(root);
  if (!loader) return tl::unexpected(loader.error());
  if (loader->empty()) return Listing::kNoLoader;
  if (is_too_old(*loader)) return Listing::kOldLoader;
  GPUMUX_TRY(check_library(root, library));

  // Through the container's own mounts: a volume at /etc is seen, and refused.
  const os::FileDescriptor etc = open_etc(root);
  if (!etc && errno != ENOENT) return fail_open(errno, std::string("/") + kEtc);
  const auto list = etc ? read_list(etc.get()) : List{};
  if (!list) return tl::unexpected(list.error());
  const auto present = loads_library(root, list->text);
  if (!present) return tl::unexpected(present.error());
  if (*present) return Listing::kPresent;
  GPUMUX_TRY(write_list(root, access, with_entry(list->text, library), *list));
  return Listing::kAdded;
}

}  // namespace gpumux::kubernetes
