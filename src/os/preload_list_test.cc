// SPDX-License-Identifier: Apache-2.0
#include "os/preload_list.h"

#include <gtest/gtest.h>

namespace gpumux::os {
namespace {

TEST(ComposeTest, OursIsFirstOthersStayOtherCopiesGo) {
  EXPECT_EQ(compose_preload("", "/a/libgpumux.so"), "/a/libgpumux.so");
  EXPECT_EQ(compose_preload("/x.so", "/a/libgpumux.so"), "/a/libgpumux.so:/x.so");
  EXPECT_EQ(compose_preload("/x.so /y.so:/z.so", "/a/libgpumux.so"), "/a/libgpumux.so:/x.so:/y.so:/z.so");
  EXPECT_EQ(compose_preload("/x.so:/a/libgpumux.so", "/a/libgpumux.so"), "/a/libgpumux.so:/x.so");
  EXPECT_EQ(compose_preload("/old/libgpumux.so::libgpumux.so $LIB/q.so", "/a/libgpumux.so"),
            "/a/libgpumux.so:$LIB/q.so");
}

TEST(NamesLibraryTest, ReadsListsAsTheLoaderDoes) {
  EXPECT_TRUE(names_library("/usr/lib/gpumux/libgpumux.so\n"));
  EXPECT_TRUE(names_library("/x.so:libgpumux.so"));
  EXPECT_FALSE(names_library("# /usr/lib/gpumux/libgpumux.so\n/x.so"));
  EXPECT_TRUE(names_library("# comment\nlibgpumux.so # another"));
  EXPECT_FALSE(names_library("/libgpumux.so.old /x/libgpumux.so/y"));
  EXPECT_FALSE(names_library(""));
}

}  // namespace
}  // namespace gpumux::os
