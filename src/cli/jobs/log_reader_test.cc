// SPDX-License-Identifier: Apache-2.0
// Goal: a log is shown whole and once, however it grows, is cut, or is replaced while it is read.
// Method: a file that the test changes between two looks; the shown text goes into a second file.
#include "cli/jobs/log_reader.h"
#include "tests/unit/temporary_directory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace gpumux::cli {
namespace {

class LogReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = dir_ + "/17.log";
    output_ = os::FileDescriptor(::open((dir_ + "/shown").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    reader_.emplace(path_, output_.get());
  }

  void append(const std::string& text) { std::ofstream(path_, std::ios::app) << text; }
  void rewrite(const std::string& text) { std::ofstream(path_, std::ios::trunc) << text; }

  LogReader::Shown look() {
    const auto shown = reader_->show_new();
    EXPECT_TRUE(shown) << shown.error().message();
    return shown.value_or(LogReader::Shown{});
  }
  // The output that was shown since the last call.
  std::string shown() {
    std::ifstream file(dir_ + "/shown");
    const std::string all{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    const std::string fresh = all.substr(seen_);
    seen_ = all.size();
    return fresh;
  }

  const TemporaryDirectory folder_;
  const std::string& dir_ = folder_.path();
  std::string path_;
  os::FileDescriptor output_;
  std::optional<LogReader> reader_;
  std::size_t seen_ = 0;
};

TEST_F(LogReaderTest, IsWaitedForAndShownAsItGrows) {
  EXPECT_FALSE(look().there);
  append("one\n");
  EXPECT_TRUE(look().anything);
  append("tw");
  look();
  append(std::string("o\0\xff", 3));
  look();
  EXPECT_EQ(shown(), std::string("one\ntwo\0\xff", 9));
  const auto nothing = look();
  EXPECT_TRUE(nothing.there);
  EXPECT_FALSE(nothing.anything);
}

TEST_F(LogReaderTest, ALogThatWasCutIsShownFromItsBeginning) {
  append("first attempt\n");
  look();
  shown();
  rewrite("2\n");
  const auto look_again = look();
  EXPECT_TRUE(look_again.began_anew);
  EXPECT_EQ(shown(), "2\n");
}

TEST_F(LogReaderTest, ALogThatWasCutAndHasGrownBeyondIsNoticed) {
  append("first attempt\n");
  look();
  shown();
  rewrite("the second attempt has printed much more by now\n");
  EXPECT_TRUE(look().began_anew);
  EXPECT_EQ(shown(), "the second attempt has printed much more by now\n");
}

TEST_F(LogReaderTest, ALogThatWasCutToNothingShowsNothingTwice) {
  append("first\n");
  look();
  rewrite("");
  EXPECT_TRUE(look().began_anew);
  EXPECT_FALSE(look().began_anew) << "told once";
  append("second\n");
  look();
  EXPECT_EQ(shown(), "first\nsecond\n");
}

TEST_F(LogReaderTest, AReplacedLogIsShownToItsEndFirst) {
  append("old\n");
  look();
  append("last\n");
  std::filesystem::rename(path_, path_ + ".1");
  append("new\n");
  EXPECT_TRUE(look().began_anew);
  EXPECT_EQ(shown(), "old\nlast\nnew\n");
  std::filesystem::rename(path_, path_ + ".2");
  EXPECT_TRUE(look().there) << "gone for a moment";
  append("newer\n");
  look();
  EXPECT_EQ(shown(), "newer\n");
}

TEST_F(LogReaderTest, TheLastLines) {
  const auto last = [&](std::uint64_t lines) {
    LogReader reader(path_, output_.get());
    EXPECT_TRUE(reader.skip_to_last_lines(lines));
    EXPECT_TRUE(reader.show_new());
    return shown();
  };
  EXPECT_EQ(last(3), "") << "not there yet";
  append("a\nb\nc\n");
  EXPECT_EQ(last(0), "");
  EXPECT_EQ(last(1), "c\n");
  EXPECT_EQ(last(2), "b\nc\n");
  EXPECT_EQ(last(9), "a\nb\nc\n");
  append("d");
  EXPECT_EQ(last(2), "c\nd") << "a line without an end is one";
  rewrite(std::string(200'000, 'x') + "\n" + std::string(100'000, 'y') + "\n");
  EXPECT_EQ(last(1).size(), 100'001u) << "longer than what is read at a time";
  EXPECT_EQ(last(2).size(), 300'002u);
}

TEST_F(LogReaderTest, WhatKeepsNothingIsRefusedAndBlocksNobody) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  const auto shown_now = reader_->show_new();
  ASSERT_FALSE(shown_now);
  EXPECT_EQ(shown_now.error().code, base::Code::kUnsupported);
  LogReader null("/dev/null", output_.get());
  EXPECT_FALSE(null.show_new());
}

}  // namespace
}  // namespace gpumux::cli
