// SPDX-License-Identifier: Apache-2.0
// Goal: physical memory goes from seat to seat without being freed, and data and errors are the same as without. Memory
// that others may have, or that was never written, is neither given nor taken. Method: two pagers of one process with a
// keeper between them, calls of the driver counted, failures of each of its steps.
#include "base/no_fork.h"
#include "pager/pager_test_support.h"

namespace gpumux::pager {
namespace {

using namespace cuda;

class FramesTest : public PagerTest {
 protected:
  static constexpr std::uint64_t kBytes = 10 * kMebibyte;  // two chunks of 4 MiB and one of 2

  void SetUp() override {
    PagerTest::SetUp();
    options_.frames = &frames_;
  }
  void TearDown() override {
    other_.reset();
    PagerTest::TearDown();
    EXPECT_EQ(frames_.known(), frames_.here()) << "whoever has ended has told of what it had";
  }
  // The second seat.
  Pager& other() {
    if (other_ == nullptr) other_ = std::make_unique<Pager>(faulty_driver(), options_);
    return *other_;
  }
  CUdeviceptr get_other() {
    CUdeviceptr address = 0;
    EXPECT_CUDA(other().allocate(context_, kBytes, Placement::kResident, &address));
    return address;
  }
  static std::uint64_t calls(const char* name) { return the_faults()[name]->calls; }
  static void fail_next(const char* name) { the_faults()[name]->fail_at = calls(name) + 1; }

  KeptFrames frames_;
  std::unique_ptr<Pager> other_;
};

TEST_F(FramesTest, WhatOneEvictsTheOtherRestoresInto) {
  const auto mine = random_words(kBytes, 1), its = random_words(kBytes, 2);
  const CUdeviceptr here = get(kBytes);
  write(here, mine);
  frames_.wanted = false;
  ASSERT_EQ(evict(), JobState::kDone);
  EXPECT_EQ(frames_.given, 0) << "nobody wants it";
  frames_.wanted = true;
  const CUdeviceptr there = get_other();
  write(there, its);
  const std::uint64_t made = calls("cuMemCreate");
  for (int round = 0; round < 4; ++round) {
    Pager& out = round % 2 == 0 ? other() : pager();
    Pager& in = round % 2 == 0 ? pager() : other();
    ASSERT_EQ(evict(out), JobState::kDone);
    EXPECT_EQ(frames_.here(), 3u);
    EXPECT_EQ(out.bounds().used(), 0u);
    ASSERT_EQ(restore(in), JobState::kDone);
    EXPECT_EQ(frames_.here(), 0u);
    EXPECT_EQ(in.bounds().used(), kBytes);
    EXPECT_EQ(read(round % 2 == 0 ? here : there, kBytes / 4), round % 2 == 0 ? mine : its);
    ASSERT_STREQ(out.check(), nullptr);
    ASSERT_STREQ(in.check(), nullptr);
  }
  EXPECT_EQ(calls("cuMemCreate"), made);
  EXPECT_EQ(calls("cuMemExportToShareableHandle"), 3u) << "once each";
  EXPECT_EQ(pager().counters().moved.handed_over, 2 * kBytes);
}

// A child that the program forks in that time would keep the memory for as long as it lives.
TEST_F(FramesTest, NobodyForksWhileAFrameIsInHand) {
  int imported = 0;
  int exported = 0;
  const auto count = [](int& calls) {
    return [&calls](CUresult result) {
      EXPECT_TRUE(base::NoFork::is_anybody_inside());
      ++calls;
      return result;
    };
  };
  the_faults()["cuMemImportFromShareableHandle"]->answered = count(imported);
  the_faults()["cuMemExportToShareableHandle"]->answered = count(exported);
  other_ = std::make_unique<Pager>(faulty_driver(), options_);
  write(get_other(), random_words(kBytes, 2));
  ASSERT_EQ(evict(other()), JobState::kDone);
  EXPECT_EQ(exported, 3);
  ASSERT_EQ(restore(other()), JobState::kDone);
  EXPECT_EQ(imported, 3);
  EXPECT_FALSE(base::NoFork::is_anybody_inside());
  other_.reset();
}

TEST_F(FramesTest, SizesThatNobodyHasAreMade) {
  write(get(kBytes), random_words(kBytes, 1));
  ASSERT_EQ(evict(), JobState::kDone);
  CUdeviceptr there = 0;
  const auto its = random_words(2 * kMebibyte, 2);
  EXPECT_CUDA(other().allocate(context_, 6 * kMebibyte, Placement::kEvicted, &there));
  ASSERT_EQ(restore(other()), JobState::kDone);
  EXPECT_EQ(frames_.here(), 3u) << "never written: not in what others have left";
  ASSERT_EQ(evict(other()), JobState::kDone);
  EXPECT_EQ(frames_.here(), 5u);
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(frames_.here(), 2u);
}

// Chunks that a frame is there for come first, and a frame that fits nothing is left to others.
TEST_F(FramesTest, ChunksOfTheSizesAtHandComeFirst) {
  options_.chunk_bytes = base::kMostFrameBytes / 2;
  const CUdeviceptr mine = get(options_.chunk_bytes);
  CUdeviceptr small = 0, large = 0;
  EXPECT_CUDA(other().allocate(context_, base::kLeastFrameBytes, Placement::kResident, &small));
  EXPECT_CUDA(other().allocate(context_, options_.chunk_bytes, Placement::kResident, &large));
  const auto words = random_words(base::kLeastFrameBytes, 1);
  for (const CUdeviceptr data : {mine, small, large}) write(data, words);
  frames_.wanted = false;
  ASSERT_EQ(evict(other()), JobState::kDone);
  EXPECT_EQ(other().counters().evicted_frames,
            base::frame_size(base::kLeastFrameBytes) | base::frame_size(options_.chunk_bytes));
  frames_.wanted = true;
  ASSERT_EQ(evict(), JobState::kDone);
  ASSERT_EQ(frames_.here(), 1u);
  ASSERT_EQ(restore(other()), JobState::kDone);
  EXPECT_EQ(other().counters().moved.handed_over, options_.chunk_bytes);
  EXPECT_EQ(other().counters().evicted_frames, 0u);
  EXPECT_EQ(frames_.dropped, 0);
  for (const CUdeviceptr data : {small, large}) EXPECT_EQ(read(data, words.size()), words);
  // Of what was evicted only the other size is left.
  ASSERT_EQ(evict(other()), JobState::kDone);
  ASSERT_EQ(frames_.here(), 2u);
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(frames_.dropped, 0) << "it was all restored, and wanted nothing more";
  EXPECT_CUDA(other().free(large, &synchronize, nullptr));
  EXPECT_EQ(other().counters().evicted_frames, base::frame_size(base::kLeastFrameBytes));
  ASSERT_EQ(evict(), JobState::kDone);
  EXPECT_EQ(frames_.here(), 2u);
  ASSERT_EQ(restore(other()), JobState::kDone);
  EXPECT_EQ(frames_.here(), 1u);
  EXPECT_CUDA(other().allocate(context_, 4 * kMebibyte, Placement::kEvicted, &large));
  ASSERT_EQ(restore(other()), JobState::kDone);
  EXPECT_EQ(frames_.dropped, 1);
}

TEST_F(FramesTest, WhatIsFreedIsForgotten) {
  options_.reuse_bytes = 0;
  const CUdeviceptr data = get(kBytes);
  write(data, random_words(kBytes, 1));
  ASSERT_EQ(evict(), JobState::kDone);
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(frames_.known(), 3u);
  EXPECT_CUDA(release(data));
  EXPECT_EQ(frames_.known(), 0u);
}

TEST_F(FramesTest, WhatTheDriverRefusesCostsNothingButTheHandingOver) {
  const auto words = random_words(kBytes, 1);
  const CUdeviceptr data = get(kBytes);
  write(data, words);
  // Not exported: freed.
  fail_next("cuMemExportToShareableHandle");
  ASSERT_EQ(evict(), JobState::kDone);
  EXPECT_EQ(frames_.here(), 2u);
  // Not imported: made.
  const std::uint64_t made = calls("cuMemCreate");
  fail_next("cuMemImportFromShareableHandle");
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(calls("cuMemCreate"), made + 2);
  EXPECT_EQ(frames_.known(), 1u);
  EXPECT_EQ(read(data, words.size()), words);
  // Not released: it is still this seat's, and goes the next time.
  write(data, words);
  EXPECT_CUDA(increment(nullptr, data, kBytes / 4));
  const auto changed = read(data, words.size());
  const int given = frames_.given;
  the_faults()["cuMemRelease"]->fail_at = calls("cuMemRelease") + 1;
  EXPECT_EQ(evict(), JobState::kFailed);
  ASSERT_STREQ(pager().check(), nullptr);
  evict();
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(read(data, words.size()), changed);
  EXPECT_GE(frames_.given, given + 2);
  // Not mapped: the frame that was taken is lost, and the next attempt makes its own memory.
  ASSERT_EQ(evict(), JobState::kDone);
  fail_next("cuMemSetAccess");
  EXPECT_EQ(restore(), JobState::kFailed);
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(read(data, words.size()), changed);
}

// Another process may go on using what it has opened, and a device what was registered with it.
TEST_F(FramesTest, WhatOthersMayHaveIsGivenToNobody) {
  const CUdeviceptr exported = get(4 * kMebibyte), registered = get(4 * kMebibyte);
  for (const CUdeviceptr data : {exported, registered}) write(data, random_words(4 * kMebibyte, data));
  ASSERT_EQ(evict(), JobState::kDone);
  ASSERT_EQ(restore(), JobState::kDone);
  ASSERT_EQ(frames_.known(), 2u);
  // It was imported, and is exported all the same.
  std::vector<ExportedPiece> pieces;
  std::uint64_t offset = 0;
  ASSERT_CUDA(pager().export_pieces(exported, &pieces, &offset));
  CUdeviceptr opened = 0;
  ASSERT_CUDA(pager().import_pieces(context_, pieces, &opened));
  for (const ExportedPiece& piece : pieces) ::close(piece.fd);
  EXPECT_EQ(read(opened, kMebibyte), random_words(4 * kMebibyte, exported));
  EXPECT_CUDA(pager().pin(registered, PinReason::kRdma));
  EXPECT_CUDA(pager().unpin(registered, PinReason::kRdma));
  EXPECT_CUDA(pager().unpin(exported, PinReason::kExported));
  ASSERT_EQ(evict(), JobState::kDone);
  EXPECT_EQ(frames_.known(), 0u);
  EXPECT_EQ(read(opened, kMebibyte), random_words(4 * kMebibyte, exported)) << "still the other one's";
  EXPECT_CUDA(release(opened));
  // Made anew, it is like any other.
  ASSERT_EQ(restore(), JobState::kDone);
  ASSERT_EQ(evict(), JobState::kDone);
  EXPECT_EQ(frames_.here(), 2u);
}

TEST_F(FramesTest, WithoutItsKeeperWhatWasTakenCannotBeExported) {
  const CUdeviceptr data = get(4 * kMebibyte);
  const auto words = random_words(4 * kMebibyte, 1);
  write(data, words);
  ASSERT_EQ(evict(), JobState::kDone);
  ASSERT_EQ(restore(), JobState::kDone);
  frames_.has_descriptors = false;
  std::vector<ExportedPiece> pieces;
  std::uint64_t offset = 0;
  EXPECT_EQ(pager().export_pieces(data, &pieces, &offset), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_TRUE(pieces.empty());
  EXPECT_EQ(read(data, words.size()), words);
  ASSERT_EQ(evict(), JobState::kDone) << "and nothing of it is pinned";
  EXPECT_EQ(pager().evicted_bytes(), 4 * kMebibyte);
}

}  // namespace
}  // namespace gpumux::pager
