// SPDX-License-Identifier: Apache-2.0
#include "os/preload_list.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "tests/unit/temporary_directory.h"

namespace gpumux::os {
namespace {

TEST(ComposeTest, OursIsLastOthersStayOtherCopiesGo) {
  EXPECT_EQ(compose_preload("", "/a/libgpumux.so"), "/a/libgpumux.so");
  EXPECT_EQ(compose_preload("/x.so", "/a/libgpumux.so"), "/x.so:/a/libgpumux.so");
  EXPECT_EQ(compose_preload("/x.so /y.so:/z.so", "/a/libgpumux.so"), "/x.so:/y.so:/z.so:/a/libgpumux.so");
  EXPECT_EQ(compose_preload("/x.so:/a/libgpumux.so", "/a/libgpumux.so"), "/x.so:/a/libgpumux.so");
  EXPECT_EQ(compose_preload("/old/libgpumux.so::libgpumux.so $LIB/q.so", "/a/libgpumux.so"),
            "$LIB/q.so:/a/libgpumux.so");
}

using Entries = std::vector<std::string>;

TEST(EntriesTest, OfAFileAreWhatTheLoaderTakes) {
  EXPECT_EQ(file_entries(""), Entries());
  EXPECT_EQ(file_entries("/a.so /b.so:/c.so\t/d.so\n\n/e.so"), (Entries{"/a.so", "/b.so", "/c.so", "/d.so", "/e.so"}));
  EXPECT_EQ(file_entries("/a.so\r\n"), (Entries{"/a.so\r"}));
  EXPECT_EQ(file_entries("#"), Entries());
  EXPECT_EQ(file_entries("#\n/a.so"), (Entries{"/a.so"}));
  EXPECT_EQ(file_entries("/a.so#/b.so /c.so\n/d.so"), (Entries{"/a.so", "/d.so"}));
}

TEST(EntriesTest, OfAFileMayComeFromLaterComments) {
  EXPECT_EQ(file_entries("# one\n# two\n/a.so /b.so /c.so"), (Entries{"/a.so", "/b.so", "/c.so"}));
  EXPECT_EQ(file_entries("# one\n# two\n"), (Entries{"two"}));
  EXPECT_EQ(file_entries("#1\n#2345\n"), (Entries{"5"}));  // four bytes are left behind the second #
}

TEST(EntriesTest, OfAVariableHaveNoComments) {
  EXPECT_EQ(variable_entries("/a.so /b#.so::#c\n"), (Entries{"/a.so", "/b#.so", "#c\n"}));
}

TEST(LibraryTest, IsKnownByItsName) {
  for (const char* entry : {"/usr/lib/gpumux/libgpumux.so", "libgpumux.so"}) EXPECT_TRUE(is_library(entry)) << entry;
  for (const char* entry : {"", "/libgpumux.so.old", "/x/libgpumux.so/y"}) EXPECT_FALSE(is_library(entry)) << entry;
  EXPECT_TRUE(has_library({"/x.so", "libgpumux.so"}));
  EXPECT_FALSE(has_library({"/x.so"}));
}

TEST(PreloadedEverywhereTest, OnlyByALibraryThatIsThere) {
  TemporaryDirectory temporary;
  const std::string list = temporary.file("ld.so.preload");
  const auto is_preloaded = [&](const std::string& text) {
    std::ofstream(list) << text;
    return is_preloaded_everywhere(list.c_str());
  };
  EXPECT_FALSE(is_preloaded_everywhere(list.c_str()));
  const std::string library = temporary.file("libgpumux.so"), link = temporary.file("link");
  EXPECT_FALSE(is_preloaded(library)) << "it is not there";
  std::ofstream(library) << "";
  EXPECT_TRUE(is_preloaded(library));
  EXPECT_TRUE(is_preloaded("/gone/libgpumux.so\n" + library + "\n"));
  EXPECT_FALSE(is_preloaded("/gone/libgpumux.so\n# " + library + "\n"));
  ASSERT_EQ(::symlink(list.c_str(), link.c_str()), 0);
  EXPECT_FALSE(is_preloaded_everywhere(link.c_str()));
  EXPECT_TRUE(is_preloaded(library));
  EXPECT_TRUE(is_preloaded_everywhere(link.c_str()));
  // The loader may find a library by such entries.
  for (const char* entry : {"libgpumux.so", "$LIB/libgpumux.so", "/$LIB/libgpumux.so"})
    EXPECT_TRUE(is_preloaded(entry)) << entry;
}

}  // namespace
}  // namespace gpumux::os
