// SPDX-License-Identifier: Apache-2.0
// Volumes on a container's root are known from the kernel's list of mounts, and so is a root that was read-only before.
#include "kubernetes/hook/root_mount.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <string>

#include "os/file_descriptor.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::kubernetes {
namespace {

const std::string kHost =
    "1 1 8:1 / / rw - ext4 /dev/vda rw\n"
    "20 1 0:30 / /proc rw - proc proc rw\n"
    "30 1 0:31 / /run rw,nosuid - tmpfs tmpfs rw\n";
const std::string kOverlay = "40 30 0:50 / /run/c/rootfs rw,relatime - overlay overlay ro,lowerdir=/a\\040b\n";

void expect_mount(const std::string& mounts, int id, bool is_read_only, bool is_read_only_beneath) {
  const auto found = find_root_mount(mounts, id, true);
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_EQ(found->is_read_only, is_read_only);
  EXPECT_EQ(found->is_read_only_beneath, is_read_only_beneath);
}

TEST(RootMountTest, IsTheRuntimesOnceOrTwice) {
  expect_mount(kHost + kOverlay, 40, false, false);
  expect_mount(kHost + kOverlay + "41 40 0:50 / /run/c/rootfs rw - overlay overlay rw\n", 41, false, false);
  expect_mount(kHost + "41 1 8:1 /images/r /images/r rw - ext4 /dev/vda rw\n", 41, false, false);
}

TEST(RootMountTest, IsNotAVolume) {
  const std::string bind = "41 40 0:50 / /run/c/rootfs rw - overlay overlay rw\n";
  for (const std::string& volume : {std::string("42 41 8:1 / /run/c/rootfs rw - ext4 /dev/vda rw\n"),
                                    std::string("42 41 0:50 /other /run/c/rootfs ro - overlay overlay rw\n")}) {
    // One of it, and twice the same.
    for (const std::string& again : {std::string(), "43 42" + volume.substr(5)}) {
      const auto found = find_root_mount(kHost + kOverlay + bind + volume + again, again.empty() ? 42 : 43, true);
      ASSERT_FALSE(found) << volume << again;
      EXPECT_EQ(found.error().code, base::Code::kDenied);
    }
  }
  // Volumes at other places of the container are no concern.
  expect_mount(kHost + kOverlay + bind + "42 41 8:1 /v /run/c/rootfs/v ro - ext4 /dev/vda rw\n", 41, false, false);
}

TEST(RootMountTest, IsReadOnlyByTheRuntimeOrBefore) {
  expect_mount(kHost + kOverlay + "41 40 0:50 / /run/c/rootfs ro,relatime - overlay overlay rw\n", 41, true, false);
  const std::string operators = "40 1 8:1 /r /images/r ro - ext4 /dev/vda rw\n";
  expect_mount(kHost + operators + "41 40 8:1 /r /images/r ro - ext4 /dev/vda rw\n", 41, true, true);
  // The mount beneath is another process's secret: it is not in the list.
  expect_mount("41 40 8:1 /r /images/r ro - ext4 /dev/vda rw\n", 41, true, true);
}

TEST(RootMountTest, OfAFolderWithoutAMountOfItsOwnIsTheWholeMount) {
  const auto found = find_root_mount(kHost + "40 1 8:2 / / ro - ext4 /dev/vdb rw\n", 40, false);
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_TRUE(found->is_read_only);
  EXPECT_TRUE(found->is_read_only_beneath);
}

TEST(RootMountTest, ASelfParentEndsTheStack) { expect_mount(kHost, 1, false, false); }

TEST(RootMountTest, NeedsTheKernelsWords) {
  for (const std::string& mounts : {std::string(), kHost, kHost + "x 1 8:1 / / rw - a b c\n", kHost + "\n",
                                    kOverlay + "41 40 0:50 / /run/c/rootfs"}) {
    const auto found = find_root_mount(mounts, 41, true);
    ASSERT_FALSE(found) << mounts;
    EXPECT_EQ(found.error().code, base::Code::kInvalid);
  }
}

TEST(RootMountTest, IsFoundOnThisMachine) {
  const TemporaryDirectory temporary;
  const os::FileDescriptor folder(::open(temporary.path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  const auto found = root_mount_of(folder.get());
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_FALSE(found->is_read_only);
}

}  // namespace
}  // namespace gpumux::kubernetes
