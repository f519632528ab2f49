// SPDX-License-Identifier: Apache-2.0
// Goal: a library's calls of one function go elsewhere, no other library's do, and its tables are as protected as
// before. Method: a library of ours that calls getppid, bound lazily and bound at once.
#include "os/imported_function.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace gpumux::os {
namespace {

int replaced() { return -7; }
int replaced_again() { return -8; }

std::string protections_of(const std::string& library) {
  std::ifstream maps("/proc/self/maps");
  std::string found;
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with(library)) found += line.substr(0, line.find(' ') + 5) + "\n";
  }
  return found;
}

class ImportedFunction : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    handle = ::dlopen(GetParam(), RTLD_LAZY | RTLD_LOCAL);
    ASSERT_NE(handle, nullptr) << ::dlerror();
    parent = reinterpret_cast<int (*)()>(::dlsym(handle, "gpumux_fixture_parent"));
    own = ::dlsym(handle, "gpumux_fixture_own");
    ASSERT_NE(parent, nullptr);
  }
  void TearDown() override { ::dlclose(handle); }

  // How many slots there were.
  std::size_t replace(const char* name, int (*function)()) {
    const auto former = replace_import(own, name, reinterpret_cast<const void*>(function));
    EXPECT_TRUE(former) << former.error().message();
    return former ? former->slots : 0;
  }

  void* handle = nullptr;
  int (*parent)() = nullptr;
  const void* own = nullptr;
};

TEST_P(ImportedFunction, GoesElsewhereForThisLibraryOnly) {
  const std::string before = protections_of(GetParam());
  ASSERT_NE(before, "");
  EXPECT_EQ(replace("getppid", replaced), 1u);
  EXPECT_EQ(parent(), -7);
  EXPECT_EQ(parent(), -7) << "and stays so";
  EXPECT_EQ(::getppid(), reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "getppid"))());
  EXPECT_EQ(protections_of(GetParam()), before);
  EXPECT_EQ(replace("getppid", replaced_again), 1u);
  EXPECT_EQ(parent(), -8);
}

TEST_P(ImportedFunction, AlsoAfterItHasBeenCalled) {
  EXPECT_EQ(parent(), ::getppid());
  EXPECT_EQ(replace("getppid", replaced), 1u);
  EXPECT_EQ(parent(), -7);
}

TEST_P(ImportedFunction, SaysWhereCallsWentBefore) {
  const auto first = replace_import(own, "getppid", reinterpret_cast<const void*>(replaced));
  ASSERT_TRUE(first);
  const bool is_bound_at_once = std::string(GetParam()) == GPUMUX_NOW_FIXTURE;
  ASSERT_EQ(first->function != nullptr, is_bound_at_once);
  if (is_bound_at_once) {
    EXPECT_EQ(reinterpret_cast<int (*)()>(const_cast<void*>(first->function))(), ::getppid());
    const auto second = replace_import(own, "getppid", reinterpret_cast<const void*>(replaced_again));
    ASSERT_TRUE(second);
    EXPECT_EQ(second->function, reinterpret_cast<const void*>(replaced));
  }
}

TEST_P(ImportedFunction, SaysThatItIsNotThere) {
  EXPECT_EQ(replace("getpid", replaced), 0u) << "not imported";
  EXPECT_EQ(replace("gpumux_fixture_own", replaced), 0u) << "its own";
  int local = 0;
  const auto nowhere = replace_import(&local, "getppid", reinterpret_cast<const void*>(replaced));
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code, base::Code::kNotFound);
  EXPECT_EQ(parent(), ::getppid());
}

INSTANTIATE_TEST_SUITE_P(BoundLazilyAndAtOnce, ImportedFunction,
                         testing::Values(GPUMUX_LAZY_FIXTURE, GPUMUX_NOW_FIXTURE),
                         [](const auto& param) { return param.index == 0 ? "Lazily" : "AtOnce"; });

}  // namespace
}  // namespace gpumux::os
