// SPDX-License-Identifier: Apache-2.0
// Goal: a file is written only where its caller has sent it, whatever others have put there. Method: links and files of
// another user, which only root can make, and those of the caller.
#include "os/output_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "os/file_descriptor.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::os {
namespace {

constexpr uid_t kOther = 65534;

class OutputFile : public ::testing::Test {
 protected:
  // An emulator of another architecture opens its libraries' folder in place of "/", where paths begin.
  void SetUp() override {
    const FileDescriptor root(::open("/", O_PATH | O_CLOEXEC));
    if (::faccessat(root.get(), folder_.path().substr(1).c_str(), F_OK, 0) != 0) GTEST_SKIP() << "no root to start at";
  }
  std::string file(const std::string& name, const std::string& text = "as it was") const {
    std::ofstream(folder_.file(name)) << text;
    return folder_.file(name);
  }
  static std::string text_of(const std::string& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static base::Status write(const std::string& path, Write how = Write::kAnew) {
    const auto opened = open_output(path, how, 0644);
    if (!opened) return tl::unexpected(opened.error());
    return ::write(opened->get(), "new", 3) == 3 ? base::Status() : base::fail(base::Code::kInternal, "not written");
  }
  std::string link_to(const std::string& target, const std::string& name, uid_t owner) const {
    std::filesystem::create_symlink(target, folder_.file(name));
    EXPECT_EQ(::lchown(folder_.file(name).c_str(), owner, owner), 0);
    return folder_.file(name);
  }

  TemporaryDirectory folder_;
};

TEST_F(OutputFile, IsANewOneOrOneOfTheCallers) {
  ASSERT_TRUE(write(folder_.file("new")));
  EXPECT_EQ(text_of(folder_.file("new")), "new");
  const std::string old = file("old");
  ASSERT_TRUE(write(old));
  EXPECT_EQ(text_of(old), "new") << "nothing of before is left";
  ASSERT_TRUE(write(old, Write::kAtItsEnd));
  EXPECT_EQ(text_of(old), "newnew");
  const auto relative = std::filesystem::relative(old);
  ASSERT_TRUE(write(relative.string()));
  EXPECT_FALSE(write(folder_.path() + "/./no/../old"));
  EXPECT_EQ(write(folder_.file("no/such")).error().code, base::Code::kNotFound);
  for (const std::string& directory : {folder_.path(), folder_.path() + "/", old + "/", std::string("/")})
    EXPECT_FALSE(write(directory)) << directory;
  EXPECT_FALSE(write(""));
  EXPECT_EQ(text_of(old), "new");
}

TEST_F(OutputFile, MayLieBehindLinksOfTheCaller) {
  std::filesystem::create_directory(folder_.file("far"));
  std::filesystem::create_symlink("far", folder_.file("near"));
  std::filesystem::create_symlink("near/file", folder_.file("link"));
  ASSERT_TRUE(write(folder_.file("link")));
  EXPECT_EQ(text_of(folder_.file("far/file")), "new");
  std::filesystem::create_symlink("circle", folder_.file("circle"));
  EXPECT_FALSE(write(folder_.file("circle")));
}

TEST_F(OutputFile, MayBeADeviceOrAPipe) {
  EXPECT_TRUE(write("/dev/null"));
  const std::string pipe = folder_.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(write(pipe).error().code, base::Code::kUnavailable) << "it has no reader";
  const FileDescriptor reader(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  EXPECT_TRUE(write(pipe));
  char read[8];
  EXPECT_EQ(::read(reader.get(), read, sizeof read), 3);
  EXPECT_TRUE(open_output("/dev/stdout", Write::kAtItsEnd, 0644));
}

TEST_F(OutputFile, IsNotBehindALinkOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make another user's link";
  const std::string secret = file("secret");
  std::filesystem::create_directory(folder_.file("folder"));
  const std::string inside = file("folder/inside");
  link_to(folder_.file("folder"), "to_folder", kOther);
  for (const std::string& path :
       {link_to(secret, "to_file", kOther), folder_.file("to_folder/inside"), folder_.file("to_folder/new"),
        link_to("to_file", "own_to_theirs", 0), link_to("nothing", "to_nothing", kOther)}) {
    const auto written = write(path);
    ASSERT_FALSE(written) << path;
    EXPECT_EQ(written.error().code, base::Code::kDenied) << path;
    EXPECT_NE(written.error().message().find("of user 65534"), std::string::npos) << written.error().message();
  }
  EXPECT_EQ(text_of(secret), "as it was");
  EXPECT_EQ(text_of(inside), "as it was");
  EXPECT_FALSE(std::filesystem::exists(folder_.file("folder/new")));
  EXPECT_FALSE(std::filesystem::exists(folder_.file("nothing")));
}

TEST_F(OutputFile, IsNoFileOrPipeOfAnotherUserAndHasOneName) {
  const std::string secret = file("secret");
  std::filesystem::create_hard_link(secret, folder_.file("second"));
  EXPECT_EQ(write(folder_.file("second")).error().code, base::Code::kDenied);
  EXPECT_EQ(text_of(secret), "as it was");
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make another user's file";
  const std::string theirs = file("theirs");
  const std::string pipe = folder_.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0666), 0);
  for (const std::string& path : {theirs, pipe}) {
    ASSERT_EQ(::chown(path.c_str(), kOther, kOther), 0);
    EXPECT_EQ(write(path).error().code, base::Code::kDenied) << path;
  }
  EXPECT_EQ(text_of(theirs), "as it was");
}

}  // namespace
}  // namespace gpumux::os
