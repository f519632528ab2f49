// SPDX-License-Identifier: Apache-2.0
// Goal: what has a name is there for the next daemon, and nothing else is. Method: HostFiles of one folder, one after
// the other, as daemons that are killed.
#include "daemon/tenants/host_names.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "daemon/tenants/host_files.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::daemon {
namespace {

constexpr std::uint64_t kBytes = std::uint64_t{4} << 20;

class HostNamesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto files = HostFiles::open_at(folder_);
    if (!files) GTEST_SKIP() << "it cannot be attached here: " << files.error().message();
  }
  void TearDown() override { ::umount2(folder_.c_str(), MNT_DETACH); }

  TemporaryDirectory directory_;
  const std::string folder_ = directory_.path() + "/memory";
};

TEST_F(HostNamesTest, TheNextDaemonFindsWhatHasAName) {
  {
    const HostFiles files = HostFiles::open_at(folder_).value();
    HostNames names(files.attached());
    const auto kept = files.make(kBytes);
    const auto other = files.make(kBytes);
    ASSERT_TRUE(kept && other);
    EXPECT_EQ(kept->kind, HostFileKind::kTmpfs);
    ASSERT_EQ(::pwrite(kept->fd.get(), "content", 7, 0), 7);
    names.give("chunk-1", other->fd.get());
    names.give("chunk-1", kept->fd.get());
    names.write("seat-1", "12 34");
    names.write("seat-1", "56 78");
    names.write("seat-2", "90");
    names.remove("seat-2");
    names.remove("seat-2");
  }
  const HostFiles files = HostFiles::open_at(folder_).value();
  HostNames names(files.attached());
  std::vector<std::string> all = names.all();
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, (std::vector<std::string>{"chunk-1", "seat-1"}));
  EXPECT_EQ(names.read("seat-1"), "56 78");
  EXPECT_EQ(names.read("seat-2"), "");
  const os::FileDescriptor kept = names.open("chunk-1");
  ASSERT_TRUE(kept);
  EXPECT_TRUE(HostFiles::is_whole(kept.get(), kBytes));
  char content[8] = {};
  ASSERT_EQ(::pread(kept.get(), content, 7, 0), 7);
  EXPECT_STREQ(content, "content");
  EXPECT_FALSE(names.open("chunk-2"));
  names.remove_all();
  EXPECT_TRUE(names.all().empty());
}

TEST_F(HostNamesTest, ItIsAttachedUntilItIsDetached) {
  const auto is_attached = [&] {
    struct stat above {};
    struct stat its {};
    return ::stat(directory_.path().c_str(), &above) == 0 && ::stat(folder_.c_str(), &its) == 0 &&
           above.st_dev != its.st_dev;
  };
  EXPECT_TRUE(is_attached());
  HostFiles::open_at(folder_).value().detach();
  EXPECT_FALSE(is_attached());
}

// Another user could have put files there, for the next daemon to believe.
TEST_F(HostNamesTest, AFolderThatOthersMayOpenIsRefused) {
  ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
  const auto files = HostFiles::open_at(folder_);
  ASSERT_FALSE(files);
  EXPECT_NE(files.error().message().find("open to other users"), std::string::npos) << files.error().message();
}

TEST(HostNames, WithoutAFolderNothingHasAName) {
  HostNames names(HostFiles().attached());
  names.write("seat-1", "12 34");
  EXPECT_EQ(names.read("seat-1"), "");
  EXPECT_TRUE(names.all().empty());
}

}  // namespace
}  // namespace gpumux::daemon
