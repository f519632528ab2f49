// SPDX-License-Identifier: Apache-2.0
// The files of host memory. Goal: they are of huge pages wherever the kernel lets this process or a child of it mount a
// tmpfs, zero and complete. Making the mount leaves this process where it was. A borrower can do nothing to a file that
// ends the daemon or takes from the files that are made next. Method: the kernel's own count of huge pages in a file's
// mapping; this process's namespaces before and after. A test that needs what the kernel refuses here is skipped, with
// the reason.
#include "daemon/tenants/host_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <string>

namespace gpumux::daemon {
namespace {

constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;
constexpr std::uint64_t kBytes = 8 * kMebibyte;
constexpr long kTmpfsMagic = 0x01021994;

bool is_of_own_tmpfs(const HostFile& file) {
  struct statfs of_file {};
  const int memfd = ::memfd_create("other", MFD_CLOEXEC);
  struct stat own {
  }, other{};
  EXPECT_EQ(::fstat(memfd, &other), 0);
  ::close(memfd);
  return ::fstatfs(file.fd.get(), &of_file) == 0 && of_file.f_type == kTmpfsMagic &&
         ::fstat(file.fd.get(), &own) == 0 && own.st_dev != other.st_dev;
}

struct Mapped {
  explicit Mapped(const HostFile& file)
      : at(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd.get(), 0)) {}
  ~Mapped() {
    if (at != MAP_FAILED) ::munmap(at, kBytes);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  void* at;
};

// Of this mapping, in KiB: "ShmemPmdMapped" of /proc/self/smaps.
std::uint64_t huge_kib(const void* at) {
  char begin[32];
  std::snprintf(begin, sizeof begin, "%lx-", static_cast<unsigned long>(reinterpret_cast<std::uintptr_t>(at)));
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  while (std::getline(maps, line) && !line.starts_with(begin)) continue;
  while (std::getline(maps, line)) {
    if (line.starts_with("ShmemPmdMapped:")) return std::strtoull(line.c_str() + 15, nullptr, 10);
  }
  return 0;
}

std::string place() {
  std::string all;
  for (const char* name : {"user", "mnt", "pid"}) {
    char text[64] = {};
    const std::string path = std::string("/proc/self/ns/") + name;
    EXPECT_GT(::readlink(path.c_str(), text, sizeof text - 1), 0);
    all += text;
  }
  return all;
}

bool has_pool() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/sys/vm/nr_hugepages") >> pages;
  return pages != 0;
}

void check_made(const HostFiles& files, HostFileKind kind) {
  const auto made = files.make(kBytes);
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_GT(made->took.count(), 0);
  struct stat status {};
  ASSERT_EQ(::fstat(made->fd.get(), &status), 0);
  EXPECT_EQ(static_cast<std::uint64_t>(status.st_size), kBytes);
  if (has_pool()) return;  // it comes first, as far as it goes
  EXPECT_EQ(made->kind, kind) << name_of(made->kind);
  EXPECT_EQ(static_cast<std::uint64_t>(status.st_blocks) * 512, kBytes) << "all of it is there";
  EXPECT_EQ(is_of_own_tmpfs(*made), kind == HostFileKind::kTmpfs);
  const Mapped mapped(*made);
  ASSERT_NE(mapped.at, MAP_FAILED);
  const auto* const words = static_cast<const std::uint64_t*>(mapped.at);
  EXPECT_TRUE(std::all_of(words, words + kBytes / sizeof *words, [](std::uint64_t word) { return word == 0; }));
}

TEST(HostFiles, WithoutATmpfsTheyAreMemfds) { check_made(HostFiles(), HostFileKind::kMemfd); }

TEST(HostFiles, AreOfATmpfsOfTheDaemonsOwn) {
  const std::string before = place();
  const HostFiles files = HostFiles::open();
  EXPECT_EQ(place(), before);
  if (!files.why_not().empty()) GTEST_SKIP() << "the kernel refuses it here: " << files.why_not();
  check_made(files, HostFileKind::kTmpfs);
}

TEST(HostFiles, AChildMakesTheMountForAProcessWithoutRights) {
  const std::string before = place();
  const HostFiles files = HostFiles::open_by_child();
  EXPECT_EQ(place(), before) << "this process stays where it is";
  if (!files.why_not().empty()) GTEST_SKIP() << "the kernel refuses it here: " << files.why_not();
  check_made(files, HostFileKind::kTmpfs);
}

// With every setting of the system for shared memory (but "deny", with which there are none).
TEST(HostFiles, OfATmpfsTheyAreOfHugePages) {
  std::string setting;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/shmem_enabled"), setting);
  const HostFiles files = HostFiles::open();
  if (!files.why_not().empty() || has_pool() || setting.empty() || setting.find("[deny]") != std::string::npos)
    GTEST_SKIP() << "no huge pages here: " << files.why_not() << setting;
  // Memory may be too fragmented for one of them; not for all.
  std::uint64_t most = 0;
  for (int i = 0; i < 16 && most == 0; ++i) {
    const auto made = files.make(kBytes);
    ASSERT_TRUE(made) << made.error().message();
    const Mapped mapped(*made);
    ASSERT_NE(mapped.at, MAP_FAILED);
    *static_cast<volatile std::uint64_t*>(mapped.at) = 1;
    most = std::max(most, huge_kib(mapped.at));
  }
  EXPECT_GT(most, 0u);
}

// A memfd is sealed against it; a file of a tmpfs cannot be. It is the borrower's own, and its trust domain's.
TEST(HostFiles, ABorrowerThatChangesItsFilesSizeTakesNothingFromOthers) {
  const HostFiles files = HostFiles::open();
  const auto made = files.make(kBytes);
  ASSERT_TRUE(made) << made.error().message();
  const int fd = made->fd.get();
  const bool is_sealed = made->kind != HostFileKind::kTmpfs;
  EXPECT_EQ(::ftruncate(fd, 0), is_sealed ? -1 : 0);
  // As large as can be, and then some of it taken: there is no limit that others would lack it of.
  EXPECT_EQ(::ftruncate(fd, std::int64_t{1} << 50), is_sealed ? -1 : 0);
  EXPECT_EQ(::fallocate(fd, 0, std::int64_t{1} << 49, kBytes), is_sealed ? -1 : 0);
  check_made(files, made->kind);
}

int exit_status_of(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(HostFiles, WhereTheKernelRefusesAMountTheyAreMemfdsAndItSaysWhy) {
  const int got = exit_status_of([] {
    // In a user namespace without ids a process may neither mount nor make a further namespace.
    if (::unshare(CLONE_NEWUSER) != 0) return 77;
    const HostFiles files = HostFiles::open();
    if (files.why_not().empty()) return 1;
    const auto made = files.make(kBytes);
    return made && made->kind != HostFileKind::kTmpfs ? 0 : 2;
  });
  if (got == 77) GTEST_SKIP() << "no user namespaces here";
  EXPECT_EQ(got, 0);
}

}  // namespace
}  // namespace gpumux::daemon
