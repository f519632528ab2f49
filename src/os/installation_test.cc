// SPDX-License-Identifier: Apache-2.0
#include "os/installation.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace gpumux::os {
namespace {

TEST(FindLibraryTest, TheVariableWinsAndMustBeRight) {
  ::setenv("GPUMUX_LIBRARY", "/proc/self/exe", 1);
  const auto found = find_library("/nowhere");
  ASSERT_TRUE(found) << found.error().what;
  EXPECT_TRUE(found->ends_with("/os_files_test")) << *found;
  ::setenv("GPUMUX_LIBRARY", "/no/such/lib.so", 1);
  EXPECT_NE(find_library("/nowhere").error().what.find("GPUMUX_LIBRARY"), std::string::npos);
  ::unsetenv("GPUMUX_LIBRARY");
  const auto missing = find_library("/nowhere");
  if (!missing) {
    EXPECT_NE(missing.error().what.find("/nowhere/../lib/gpumux/libgpumux.so"), std::string::npos);
  }
}

TEST(HasSystemUnitTest, NeedsSystemdAndTheUnit) {
  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("gpumux-unit-" + std::to_string(::getpid()));
  std::filesystem::create_directories(root / "usr/lib/systemd/system");
  std::ofstream(root / "usr/lib/systemd/system/gpumuxd.service") << "[Unit]\n";
  EXPECT_FALSE(has_system_unit(root));
  std::filesystem::create_directories(root / "run/systemd/system");
  EXPECT_TRUE(has_system_unit(root));
  std::filesystem::remove(root / "usr/lib/systemd/system/gpumuxd.service");
  EXPECT_FALSE(has_system_unit(root));
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace gpumux::os
