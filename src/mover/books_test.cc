// SPDX-License-Identifier: Apache-2.0
#include "mover/books.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mover/copier/sizes.h"
#include "os/file_descriptor.h"

namespace gpumux::mover {
namespace {

os::FileDescriptor file_for(std::uint32_t slots) {
  os::FileDescriptor file(::memfd_create("books", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(file.get(), static_cast<off_t>(Books::bytes_for(slots))), 0);
  return file;
}

constexpr BlockHash kHash{7, 9};

TEST(Books, ASlotIsItsOwnersAlone) {
  const os::FileDescriptor file = file_for(8);
  Books books = Books::open(file.get(), 8, 1).value();
  EXPECT_FALSE(books.find(3, Owner{1, 4, 0}));
  books.writing(3);
  EXPECT_FALSE(books.find(3, Owner{1, 4, 0}));
  books.written(3, Owner{1, 4, 0}, true, kHash);
  ASSERT_TRUE(books.find(3, Owner{1, 4, 0}));
  EXPECT_EQ(books.find(3, Owner{1, 4, 0})->hash, kHash);
  EXPECT_FALSE(books.find(3, Owner{2, 4, 0}));
  EXPECT_FALSE(books.find(3, Owner{1, 5, 0}));
  EXPECT_FALSE(books.find(3, Owner{1, 4, 1}));
  EXPECT_FALSE(books.find(8, Owner{1, 4, 0}));  // there is none
  EXPECT_EQ(books.bytes_of(1), kBlockBytes);
  EXPECT_EQ(books.bytes_of(2), 0u);
  // While it is overwritten it has no owner, the old one neither.
  books.writing(3);
  EXPECT_FALSE(books.find(3, Owner{1, 4, 0}));
  books.written(3, Owner{2, 4, 0}, false, {});
  EXPECT_FALSE(books.find(3, Owner{1, 4, 0}));
  EXPECT_TRUE(books.find(3, Owner{2, 4, 0}));
  books.released(3);
  EXPECT_FALSE(books.find(3, Owner{2, 4, 0}));
}

TEST(Books, ACopyIsHeldAgain) {
  const os::FileDescriptor file = file_for(2);
  Books books = Books::open(file.get(), 2, 1).value();
  books.writing(1);
  books.written(1, Owner{5, 4, 0}, true, kHash);
  EXPECT_FALSE(books.loaded(1, Owner{6, 4, 0}));
  EXPECT_TRUE(books.loaded(1, Owner{5, 4, 0}));
  EXPECT_EQ(books.state_of(1), Books::State::kClean);
  EXPECT_FALSE(books.hold(1, Owner{6, 4, 0}));
  EXPECT_EQ(books.state_of(1), Books::State::kClean);
  EXPECT_TRUE(books.hold(1, Owner{5, 4, 0}));
  EXPECT_EQ(books.state_of(1), Books::State::kHeld);
  EXPECT_TRUE(books.hold(1, Owner{5, 4, 0}));
}

TEST(Books, ACopyThatIsReclaimedIsNoOwnersAnyMore) {
  const os::FileDescriptor file = file_for(2);
  Books books = Books::open(file.get(), 2, 1).value();
  books.writing(1);
  books.written(1, Owner{5, 4, 0}, true, kHash);
  std::uint32_t from = 0;
  EXPECT_FALSE(books.reclaim(&from));  // it is held
  EXPECT_TRUE(books.loaded(1, Owner{5, 4, 0}));
  EXPECT_EQ(books.reclaim(&from), 1u);
  EXPECT_FALSE(books.hold(1, Owner{5, 4, 0}));
  EXPECT_FALSE(books.take(1, Owner{5, 4, 0}));
  books.released(1);
  books.writing(1);
  books.written(1, Owner{6, 1, 0}, true, kHash);
  EXPECT_FALSE(books.take(1, SeatNumber{5}));
  EXPECT_TRUE(books.take(1, SeatNumber{6}));
  EXPECT_FALSE(books.find(1, Owner{6, 1, 0}));
}

TEST(Books, OutliveTheirReader) {
  const os::FileDescriptor file = file_for(4);
  {
    Books books = Books::open(file.get(), 4, 1).value();
    books.writing(0);
    books.written(0, Owner{1, 4, 0}, true, kHash);
    books.writing(1);
  }
  const Books again = Books::open(file.get(), 4, 1).value();
  EXPECT_TRUE(again.find(0, Owner{1, 4, 0}));
  EXPECT_EQ(again.state_of(1), Books::State::kWriting);
  EXPECT_FALSE(again.find(1, Owner{1, 4, 0}));
}

TEST(Books, AFileThatIsTooSmallIsRefused) {
  const os::FileDescriptor file = file_for(4);
  EXPECT_FALSE(Books::open(file.get(), 5, 1));
  EXPECT_FALSE(Books::open(file.get(), 0, 1));
}

}  // namespace
}  // namespace gpumux::mover
