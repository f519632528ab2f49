// SPDX-License-Identifier: Apache-2.0
// The hook changes one file of an image, in the image, and nothing else, whatever the image has put in the way.
//
// Method: images are folders of a test's own, with a neighbour folder that stands for the host. No test needs root.
#include "kubernetes/hook/image.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>

#include "os/file_descriptor.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::kubernetes {
namespace {

namespace fs = std::filesystem;

constexpr char kLibrary[] = "/opt/gpumux/1/libgpumux.so";
#if defined(__x86_64__)
constexpr char kLoaderPath[] = "lib64/ld-linux-x86-64.so.2";
#else
constexpr char kLoaderPath[] = "lib/ld-linux-aarch64.so.1";
#endif

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ImageTest : public ::testing::Test {
 protected:
  ImageTest() {
    fs::create_directories(host_ / "etc");
    put(host_ / "etc/ld.so.preload", "/host.so\n");
    put(root_ / kLoaderPath, "");
    put(root_ / &kLibrary[1], "");
    fs::create_directories(root_ / "etc");
  }

  static void put(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }

  base::Result<Listing> run() {
    const os::FileDescriptor root(::open(root_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    return list_library(root.get(), kLibrary, access_);
  }

  void expect_listing(Listing expected) {
    const auto listed = run();
    ASSERT_TRUE(listed) << listed.error().message();
    EXPECT_EQ(*listed, expected);
  }

  // Every path of the host and the image, with what it is and holds.
  std::map<std::string, std::string> everything() const {
    std::map<std::string, std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(temporary_.path())) {
      const auto status = entry.symlink_status();
      std::string what = std::to_string(static_cast<int>(status.type())) + ":";
      if (fs::is_symlink(status)) what += fs::read_symlink(entry.path()).string();
      if (fs::is_regular_file(status)) what += content(entry.path());
      found[entry.path().string()] = what;
    }
    return found;
  }

  void expect_refused(base::Code code) {
    const auto before = everything();
    const auto listed = run();
    ASSERT_FALSE(listed);
    EXPECT_EQ(listed.error().code, code) << listed.error().message();
    EXPECT_EQ(everything(), before);
  }

  Access access_ = Access::kWritable;
  TemporaryDirectory temporary_;
  fs::path root_ = fs::path(temporary_.path()) / "image";
  fs::path host_ = fs::path(temporary_.path()) / "host";
  fs::path list_ = root_ / "etc/ld.so.preload";
};

TEST_F(ImageTest, ANewListHasTheLibraryAlone) {
  const mode_t before = ::umask(0077);
  expect_listing(Listing::kAdded);
  EXPECT_EQ(content(list_), std::string(kLibrary) + "\n");
  struct stat status {};
  ASSERT_EQ(::stat(list_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode, S_IFREG | 0644u) << "other users' programs read it, whatever the umask is";
  ::umask(before);
}

TEST_F(ImageTest, TheImagesOwnListStaysInFront) {
  put(list_, "/a.so /b.so:/c.so # three\n/d.so");
  fs::permissions(list_, fs::perms(0640));
  expect_listing(Listing::kAdded);
  EXPECT_EQ(content(list_), "/a.so /b.so:/c.so # three\n/d.so\n" + std::string(kLibrary) + "\n");
  EXPECT_EQ(fs::status(list_).permissions(), fs::perms(0640));
}

TEST_F(ImageTest, NothingIsListedTwice) {
  put(list_, "/a.so");
  expect_listing(Listing::kAdded);
  const auto once = everything();
  expect_listing(Listing::kPresent);
  EXPECT_EQ(everything(), once);
}

TEST_F(ImageTest, AnotherCopyOfTheLibraryIsLeftAlone) {
  put(root_ / "usr/lib/libgpumux.so", "");
  put(list_, "/gone/libgpumux.so /usr/lib/libgpumux.so\n");
  expect_listing(Listing::kPresent);
  EXPECT_EQ(content(list_), "/gone/libgpumux.so /usr/lib/libgpumux.so\n");
}

TEST_F(ImageTest, ALibraryThatIsGoneDoesNotCount) {
  put(host_ / "libgpumux.so", "");
  const std::string gone = (host_ / "libgpumux.so").string() + "\n";
  put(list_, gone);
  expect_listing(Listing::kAdded);
  EXPECT_EQ(content(list_), gone + kLibrary + "\n");
}

TEST_F(ImageTest, ALibraryThatCannotBeLookedUpIsLeftAlone) {
  for (const char* entry : {"libgpumux.so", "usr/lib/libgpumux.so", "/usr/$LIB/libgpumux.so"}) {
    put(list_, entry);
    SCOPED_TRACE(entry);
    expect_refused(base::Code::kDenied);
  }
}

TEST_F(ImageTest, AReadOnlyRootIsLeftAlone) {
  access_ = Access::kReadOnly;
  expect_refused(base::Code::kDenied);
  put(list_, kLibrary);
  expect_listing(Listing::kPresent);
}

TEST_F(ImageTest, AFileWithAnotherNameTooKeepsItsContent) {
  put(list_, "/a.so\n");
  fs::create_hard_link(list_, host_ / "same");
  expect_listing(Listing::kAdded);
  EXPECT_EQ(content(host_ / "same"), "/a.so\n");
}

TEST_F(ImageTest, WhatAKilledHookHasLeftIsReplaced) {
  put(root_ / "etc/.ld.so.preload.gpumux", "half");
  expect_listing(Listing::kAdded);
  EXPECT_FALSE(fs::exists(root_ / "etc/.ld.so.preload.gpumux"));
  fs::remove(list_);
  fs::create_symlink(host_ / "etc/ld.so.preload", root_ / "etc/.ld.so.preload.gpumux");
  expect_listing(Listing::kAdded);
  EXPECT_EQ(content(host_ / "etc/ld.so.preload"), "/host.so\n");
}

TEST_F(ImageTest, AnImageWithoutEtcGetsOne) {
  fs::remove_all(root_ / "etc");
  expect_listing(Listing::kAdded);
  EXPECT_EQ(content(list_), std::string(kLibrary) + "\n");
}

TEST_F(ImageTest, LinksToTheHostAreNotFollowed) {
  for (const fs::path& target :
       {host_ / "etc/ld.so.preload", fs::path("../../host/etc/ld.so.preload"), fs::path("../../../../etc/x"),
        fs::path("ld.so.preload"), fs::path("/proc/self/fd/0"), fs::path("missing")}) {
    fs::remove(list_);
    fs::create_symlink(target, list_);
    SCOPED_TRACE(target);
    expect_refused(base::Code::kDenied);
  }
}

TEST_F(ImageTest, ALinkInPlaceOfEtcIsNotFollowed) {
  for (const fs::path& target :
       {host_ / "etc", fs::path("../host/etc"), fs::path("usr"), fs::path("/proc/self/cwd"), fs::path("missing")}) {
    fs::remove_all(root_ / "etc");
    fs::create_symlink(target, root_ / "etc");
    SCOPED_TRACE(target);
    expect_refused(base::Code::kDenied);
  }
}

TEST_F(ImageTest, WhatIsNoFileIsNeitherOpenedNorReplaced) {
  fs::create_directories(list_ / "full");
  expect_refused(base::Code::kDenied);
  fs::remove_all(list_);
  ASSERT_EQ(::mkfifo(list_.c_str(), 0666), 0);  // opening it to read would wait
  expect_refused(base::Code::kDenied);
  fs::remove_all(root_ / "etc");
  put(root_ / "etc", "a file");
  expect_refused(base::Code::kDenied);
}

TEST_F(ImageTest, AListThatIsTooLongIsLeftAlone) {
  put(list_, std::string(kMaxListBytes, '\n'));
  expect_listing(Listing::kAdded);
  put(list_, std::string(kMaxListBytes + 1, '\n'));
  expect_refused(base::Code::kExhausted);
  fs::resize_file(list_, std::uintmax_t{1} << 40);  // a hole, of which nothing lies on the disk
  const auto listed = run();
  ASSERT_FALSE(listed);
  EXPECT_EQ(listed.error().code, base::Code::kExhausted);
}

TEST_F(ImageTest, AListThatEndsEarlyForTheLoaderIsLeftAlone) {
  put(list_, std::string("/a.so\n\0/b.so\n", 13));
  expect_refused(base::Code::kDenied);
}

TEST_F(ImageTest, AnImageWithoutGlibcIsLeftAlone) {
  fs::remove_all(root_ / fs::path(kLoaderPath).parent_path());
  put(root_ / "lib/ld-musl-x86_64.so.1", "");
  const auto before = everything();
  expect_listing(Listing::kNoLoader);
  EXPECT_EQ(everything(), before);
}

TEST_F(ImageTest, TheLoaderIsLookedForInsideOfTheImage) {
  // A link as merged /usr has it leads to the image's file; one to a file that only the host has leads nowhere.
  fs::remove_all(root_ / fs::path(kLoaderPath).parent_path());
  fs::create_directories((root_ / kLoaderPath).parent_path());
  put(host_ / "ld.so", "");
  fs::create_symlink(host_ / "ld.so", root_ / kLoaderPath);
  expect_listing(Listing::kNoLoader);
  put(root_ / "usr/lib/real.so", "");
  fs::remove(root_ / kLoaderPath);
  fs::create_symlink("/usr/lib/real.so", root_ / kLoaderPath);
  expect_listing(Listing::kAdded);
}

// While any file of the machine is renamed, the kernel cannot say that ".." stays inside, and asks for another try.
TEST_F(ImageTest, RenamesElsewhereDoNotHideTheLoader) {
  fs::remove(root_ / kLoaderPath);
  put(root_ / "usr/lib/loader", "");
  fs::create_directories(root_ / "usr/bin");
  fs::create_symlink("../usr/bin/../bin/../bin/../bin/../bin/../bin/../lib/loader", root_ / kLoaderPath);
  std::atomic<bool> ends = false;
  std::thread renamer([&] {
    put(host_ / "a", "");
    while (!ends) {
      fs::rename(host_ / "a", host_ / "b");
      fs::rename(host_ / "b", host_ / "a");
    }
  });
  for (int i = 0; i < 3000; ++i) {
    fs::remove(root_ / "etc/ld.so.preload");
    const auto listed = run();
    EXPECT_TRUE(listed && *listed == Listing::kAdded) << i;
    if (!listed || *listed != Listing::kAdded) break;
  }
  ends = true;
  renamer.join();
}

TEST_F(ImageTest, AnImageWithAnOldGlibcIsLeftAlone) {
  fs::remove(root_ / kLoaderPath);
  put(root_ / "usr/lib/ld-2.27.so", "");
  fs::create_symlink("/usr/lib/ld-2.27.so", root_ / kLoaderPath);
  const auto before = everything();
  expect_listing(Listing::kOldLoader);
  EXPECT_EQ(everything(), before);
}

TEST_F(ImageTest, ALoaderBehindLinksIsKnownByItsOwnName) {
  fs::remove_all(root_ / fs::path(kLoaderPath).parent_path());
  const fs::path loader = root_ / "usr" / kLoaderPath;
  put(root_ / "usr/lib/glibc/ld-2.27.so", "");
  fs::create_directories(loader.parent_path());
  fs::create_directory_symlink("usr" / fs::path(kLoaderPath).parent_path(),
                               root_ / fs::path(kLoaderPath).parent_path());
  fs::create_symlink("../lib/glibc/one", loader);
  fs::create_symlink("/usr/lib/glibc/ld-2.27.so", root_ / "usr/lib/glibc/one");
  expect_listing(Listing::kOldLoader);
  fs::remove(root_ / "usr/lib/glibc/ld-2.27.so");
  expect_listing(Listing::kNoLoader);
  fs::create_symlink("one", root_ / "usr/lib/glibc/ld-2.27.so");
  expect_listing(Listing::kNoLoader);
}

TEST(OldLoaderTest, IsKnownByItsName) {
  for (const char* name : {"ld-2.27.so", "ld-2.17.so", "ld-2.12.so", "ld-2.11.1.so", "ld-2.5.so"}) {
    EXPECT_TRUE(is_too_old(name)) << name;
  }
  for (const char* name : {"ld-2.28.so", "ld-2.31.so", "ld-2.100.so", "ld-linux-x86-64.so.2", "", "ld-2.", "ld-2.so",
                           "ld-2..so", "ld-2.x.so", "ld-2.1x.so", "ld-2.99999999999999999999.so"}) {
    EXPECT_FALSE(is_too_old(name)) << name;
  }
}

TEST_F(ImageTest, ALibraryThatIsNotThereIsNotListed) {
  fs::remove(root_ / &kLibrary[1]);
  expect_refused(base::Code::kNotFound);
  fs::create_directories(root_ / &kLibrary[1]);
  expect_refused(base::Code::kNotFound);
}

}  // namespace
}  // namespace gpumux::kubernetes
