// SPDX-License-Identifier: Apache-2.0
// Goal: the daemon names a process's container by the kernel's word, and by a record that fits it. Real containers:
// kubernetes/tests/containers_test.py.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "containers/control_group.h"
#include "daemon/peers/container.h"
#include "os/durable_file.h"

namespace gpumux::daemon {
namespace {

class ContainerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/gpumux-containers-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    directory_ = path;
    records_ = directory_ + "/records";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  os::FileDescriptor folder() const { return os::open_directory(records_).value(); }

  std::string directory_;
  std::string records_;
};

TEST_F(ContainerTest, TheFolderIsItsOwnersAlone) {
  ASSERT_TRUE(ContainerRecords::open(records_));
  struct stat status {};
  ASSERT_EQ(::stat(records_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777u, 0700u);
  ASSERT_TRUE(ContainerRecords::open(records_));
}

TEST_F(ContainerTest, RecordsOfContainersWithoutProcessesGo) {
  ASSERT_TRUE(ContainerRecords::open(records_));
  const std::string own = containers::control_group_of(::getpid());
  ASSERT_NE(own, "");
  for (const auto& [id, group] : {std::pair<std::string, std::string>{"alive", own},
                                  {"parent", own.substr(0, own.rfind('/') + 1)},
                                  {"gone", "/gpumux-test/gone"},
                                  {"longer", own + "x"}})
    ASSERT_TRUE(containers::write_record(folder().get(), {.id = id, .control_group = group}));
  std::filesystem::copy_file(records_ + "/alive", records_ + "/of-another");  // it says that it is "alive"
  // A hook was killed before the record had its name. Another one is still at it.
  std::filesystem::copy_file(records_ + "/alive", records_ + "/alive.0123456789abcdef");
  const auto writer = os::claim_file_at(folder().get(), "alive.fedcba9876543210", "");
  ASSERT_TRUE(writer);
  ASSERT_TRUE(ContainerRecords::open(records_));
  EXPECT_FALSE(std::filesystem::exists(records_ + "/alive.0123456789abcdef"));
  EXPECT_TRUE(std::filesystem::exists(records_ + "/alive.fedcba9876543210"));
  EXPECT_EQ(containers::record_ids(folder().get()).value(), (std::vector<std::string>{"alive", "parent"}));
}

TEST_F(ContainerTest, AProcessInNoContainerHasNone) {
  const auto records = ContainerRecords::open(records_);
  ASSERT_TRUE(records);
  // This test may itself run in a container.
  const std::string id(containers::container_id_in(containers::control_group_of(::getpid())));
  for (const auto& container : {records->container_of(::getpid()), ContainerRecords().container_of(::getpid())})
    EXPECT_EQ(container == nullptr ? "" : container->id, id);
  EXPECT_EQ(ContainerRecords().container_of(-1), nullptr);
}

}  // namespace
}  // namespace gpumux::daemon
