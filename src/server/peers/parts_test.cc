// SPDX-License-Identifier: Apache-2.0
// Goal: the small parts do what their headers say.
#include <gtest/gtest.h>
#include <unistd.h>

#include "server/loop/files.h"
#include "server/loop/log.h"
#include "server/peers/process_info.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::server {
namespace {

TEST(Log, CannotBeForged) {
  EXPECT_EQ(format_line("tenant", {{"pid", 7}, {"text", "plain"}}), "tenant pid=7 text=plain");
  EXPECT_EQ(format_line("note", {{"text", "a\nb \"c\" pid=1\x1b"}}), "note text=\"a\\nb \\\"c\\\" pid=1\\x1b\"");
  EXPECT_EQ(format_line("note", {{"text", ""}}), "note text=\"\"");
  // Controls of a terminal as one byte and as a character, a mark that turns text around, and bytes of no character.
  EXPECT_EQ(format_line("note", {{"text", "a\x9b[2Jb\xff\xc3"}}), "note text=\"a\\x9b[2Jb\\xff\\xc3\"");
  EXPECT_EQ(format_line("note", {{"text", "\u009b\u202e"}}), "note text=\"\\xc2\\x9b\\xe2\\x80\\xae\"");
  EXPECT_EQ(format_line("note", {{"text", "caf\u00e9"}}), "note text=\"caf\u00e9\"");
}

TEST(ProcessInfo, ReadsThisProcess) {
  const auto self = process_info(getpid());
  ASSERT_TRUE(self);
  EXPECT_FALSE(self->name.empty());
  EXPECT_GT(self->start_time, 0u);
  EXPECT_FALSE(process_info(0));
  EXPECT_FALSE(process_info(-5));
  EXPECT_EQ(user_name(0), "root");
}

TEST(Files, AreReplacedWholeAndReadUpToALimit) {
  const TemporaryDirectory dir;
  const std::string path = dir.path() + "/file";
  EXPECT_EQ(read_file(path, 10).error().code, base::Code::kNotFound);
  ASSERT_TRUE(replace_file(path, "0123456789", 0600, Outlives::kDaemon));
  EXPECT_EQ(read_file(path, 10).value(), "0123456789");
  EXPECT_EQ(read_file(path, 9).error().code, base::Code::kExhausted);
}

}  // namespace
}  // namespace gpumux::server
