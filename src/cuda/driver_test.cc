// SPDX-License-Identifier: Apache-2.0
// Goal: every pointer of Driver is filled by its own symbol, and nothing else is.
// Method: hand in addresses that say which symbol they were given for.
#include "cuda/driver.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace gpumux::cuda {
namespace {

// Gives each symbol an address of its own, except the one that it is told to lack.
struct FakeLibrary {
  std::string lacks;
  std::map<std::string, std::size_t> asked;

  static void* lookup(void* context, const char* symbol) {
    auto& library = *static_cast<FakeLibrary*>(context);
    if (library.lacks == symbol) return nullptr;
    library.asked.emplace(symbol, library.asked.size() + 1);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): any address does, it is never followed.
    return reinterpret_cast<void*>(library.asked.at(symbol) * 16);
  }
};

TEST(Driver, IsFilledBySymbol) {
  FakeLibrary library;
  Driver driver;
  load_driver(driver, &FakeLibrary::lookup, &library);
  std::size_t typed = 0;
  for (std::size_t index = 0; index < kEntryCount; ++index) {
    const auto entry = static_cast<Entry>(index);
    const auto asked = library.asked.find(info_of(entry).symbol);
    if (asked == library.asked.end()) {
      EXPECT_EQ(address_of(driver, entry), nullptr) << info_of(entry).symbol;
      continue;
    }
    EXPECT_EQ(reinterpret_cast<std::size_t>(address_of(driver, entry)), asked->second * 16) << info_of(entry).symbol;
    ++typed;
  }
  EXPECT_EQ(typed, sizeof(Driver) / sizeof(void*));
  EXPECT_EQ(reinterpret_cast<std::size_t>(driver.cuMemAlloc), library.asked.at("cuMemAlloc") * 16);
  EXPECT_EQ(reinterpret_cast<std::size_t>(driver.cuMemAlloc_v2), library.asked.at("cuMemAlloc_v2") * 16);
}

TEST(Driver, ThatIsOldLacksTheNewest) {
  FakeLibrary library;
  Driver driver;
  load_driver(driver, &FakeLibrary::lookup, &library);
  library.lacks = "cuMemcpyBatchAsync_v2";
  load_driver(driver, &FakeLibrary::lookup, &library);
  EXPECT_EQ(driver.cuMemcpyBatchAsync_v2, nullptr);
  EXPECT_EQ(address_of(driver, Entry::cuMemcpyBatchAsync_v2), nullptr);
  EXPECT_NE(driver.cuMemcpyBatchAsync, nullptr);
}

TEST(Driver, HasNoAddressForNumbersThatAreNoEntries) {
  const Driver driver;
  EXPECT_EQ(address_of(driver, Entry::kCount), nullptr);
  EXPECT_EQ(address_of(driver, static_cast<Entry>(0xffff)), nullptr);
}

}  // namespace
}  // namespace gpumux::cuda
