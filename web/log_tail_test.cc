// SPDX-License-Identifier: Apache-2.0
// Goal: the end of a log is read whatever the file is, and nothing else waits or is opened. Method: files of all kinds.
#include "web/log_tail.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/unit/temporary_directory.h"

namespace gpumux::web {
namespace {

class LogTailTest : public ::testing::Test {
 protected:
  std::string file_with(const std::string& text) {
    const std::string path = directory_.file("log");
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  TemporaryDirectory directory_;
};

TEST_F(LogTailTest, AShortLogIsThereWhole) {
  const std::string text("a\0b\x1b[31m<b>\xff\n", 12);
  const auto tail = read_log_tail(file_with(text));
  ASSERT_TRUE(tail);
  EXPECT_EQ(tail->text, text);
  EXPECT_EQ(tail->bytes, text.size());
  EXPECT_EQ(read_log_tail(file_with(""))->text, "");
}

TEST_F(LogTailTest, ALongLogBeginsWithAWholeLine) {
  std::string text;
  while (text.size() <= 2 * kLogTailBytes) text += "line " + std::to_string(text.size()) + "\n";
  const auto tail = read_log_tail(file_with(text));
  ASSERT_TRUE(tail);
  EXPECT_EQ(tail->bytes, text.size());
  EXPECT_LE(tail->text.size(), kLogTailBytes);
  EXPECT_GT(tail->text.size(), kLogTailBytes - 20);
  EXPECT_EQ(tail->text.substr(0, 5), "line ");
  EXPECT_EQ(tail->text, text.substr(text.size() - tail->text.size()));
}

TEST_F(LogTailTest, OneEndlessLineIsCut) {
  const auto tail = read_log_tail(file_with(std::string(3 * kLogTailBytes, 'x')));
  ASSERT_TRUE(tail);
  EXPECT_EQ(tail->text, std::string(kLogTailBytes, 'x'));
}

TEST_F(LogTailTest, WhatIsNoRegularFileIsNotRead) {
  EXPECT_EQ(read_log_tail(directory_.file("none")).error().code, base::Code::kNotFound);
  EXPECT_EQ(read_log_tail(directory_.path()).error().code, base::Code::kUnsupported);
  EXPECT_EQ(read_log_tail("/dev/zero").error().code, base::Code::kUnsupported);
  const std::string fifo = directory_.file("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(read_log_tail(fifo).error().code, base::Code::kUnsupported);
}

}  // namespace
}  // namespace gpumux::web
