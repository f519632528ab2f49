// SPDX-License-Identifier: Apache-2.0
#include "os/cgroups.h"

#include <gtest/gtest.h>

namespace gpumux::os {
namespace {

constexpr char kBothGroups[] = "5:cpu,cpuacct:/\n4:memory:/slice/me\n1:name=systemd:/\n0::/unified/me\n";
constexpr char kBothMounts[] =
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw shared:7 - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

std::string path_of(std::string_view groups, std::string_view mounts, std::string_view controller) {
  const auto found = find_cgroup(groups, mounts, controller);
  return found ? found->mount_point + " " + found->path : "none";
}

TEST(Cgroups, EachHierarchyHasItsOwnFolder) {
  EXPECT_EQ(path_of(kBothGroups, kBothMounts, "memory"), "/sys/fs/cgroup/memory /sys/fs/cgroup/memory/slice/me");
  EXPECT_EQ(path_of(kBothGroups, kBothMounts, "cpuacct"), "/sys/fs/cgroup/cpu,cpuacct /sys/fs/cgroup/cpu,cpuacct");
  EXPECT_EQ(path_of(kBothGroups, kBothMounts, ""), "/sys/fs/cgroup/unified /sys/fs/cgroup/unified/unified/me");
  EXPECT_EQ(path_of(kBothGroups, kBothMounts, "mem"), "none");
}

TEST(Cgroups, AMachineMayHaveOneHierarchy) {
  constexpr char kGroups[] = "0::/system.slice/gpumuxd.service\n";
  constexpr char kMounts[] = "25 30 0:23 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
  EXPECT_EQ(path_of(kGroups, kMounts, ""), "/sys/fs/cgroup /sys/fs/cgroup/system.slice/gpumuxd.service");
  EXPECT_EQ(path_of(kGroups, kMounts, "memory"), "none");
  EXPECT_EQ(path_of("", kMounts, ""), "none");
  EXPECT_EQ(path_of(kGroups, "", ""), "none");
}

// In a container a part of the tree is mounted.
TEST(Cgroups, AMountMayShowAPart) {
  constexpr char kGroups[] = "4:memory:/docker/c1/inner\n";
  EXPECT_EQ(path_of(kGroups, "1 0 0:1 /docker/c1 /mem rw - cgroup cgroup rw,memory\n", "memory"), "/mem /mem/inner");
  EXPECT_EQ(path_of("4:memory:/docker/c1\n", "1 0 0:1 /docker/c1 /mem rw - cgroup cgroup rw,memory\n", "memory"),
            "/mem /mem");
  EXPECT_EQ(path_of(kGroups, "1 0 0:1 /docker/c2 /mem rw - cgroup cgroup rw,memory\n", "memory"), "none");
}

}  // namespace
}  // namespace gpumux::os
