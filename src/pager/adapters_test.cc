// SPDX-License-Identifier: Apache-2.0
// Goal: memory that an adapter may have is told from memory that none can have. Method: folders that look like those
// of such processes.
#include "pager/adapters.h"
#include "tests/unit/temporary_directory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace gpumux::pager {
namespace {

TEST(Adapters, NeedTheModuleAndAnOpenDevice) {
  namespace fs = std::filesystem;
  const TemporaryDirectory directory;
  const fs::path root = directory.path();
  const std::string modules = root / "module";
  const std::string descriptors = root / "fd";
  fs::create_directories(modules);
  fs::create_directories(descriptors);
  fs::create_symlink("/dev/infiniband/uverbs0", fs::path(descriptors) / "7");
  EXPECT_FALSE(adapters_may_use_memory(modules, descriptors)) << "there is no module";
  fs::create_directories(fs::path(modules) / "nvidia_peermem");
  EXPECT_TRUE(adapters_may_use_memory(modules, descriptors));
  fs::remove(fs::path(descriptors) / "7");
  fs::create_symlink("socket:[4711]", fs::path(descriptors) / "8");
  EXPECT_FALSE(adapters_may_use_memory(modules, descriptors)) << "no adapter is open";
  EXPECT_TRUE(adapters_may_use_memory(modules, root / "hidden")) << "nobody knows";
}

}  // namespace
}  // namespace gpumux::pager
