// SPDX-License-Identifier: Apache-2.0
// Goal: pinned memory stays; peers reach what they may, after each restoration too; an exported allocation is the same
// memory where it is imported. Method: kernels of the other simulated GPU; evictions in between.
#include <unistd.h>

#include "pager/pager_test_support.h"

namespace gpumux::pager {
namespace {

using namespace cuda;

class SharingTest : public PagerTest {};

TEST_F(SharingTest, PinnedMemoryStays) {
  const CUdeviceptr pinned = get(4 * kMebibyte);
  const CUdeviceptr other = get(4 * kMebibyte);
  EXPECT_CUDA(pager().pin(pinned + 100, PinReason::kRdma));
  EXPECT_CUDA(pager().pin(pinned, PinReason::kRdma));
  ASSERT_EQ(evict(), JobState::kDone);
  EXPECT_TRUE(pager().find(pinned)->resident);
  EXPECT_FALSE(pager().find(other)->resident);
  EXPECT_EQ(pager().counters().unpageable[static_cast<std::size_t>(PinReason::kRdma)], 4 * kMebibyte);
  EXPECT_EQ(pager().pin(other, PinReason::kRegistered), CUDA_ERROR_NOT_READY) << "it is not there";
  EXPECT_CUDA(pager().unpin(pinned, PinReason::kRdma));
  ASSERT_EQ(evict(), JobState::kDone);
  EXPECT_TRUE(pager().find(pinned)->resident) << "pinned twice";
  EXPECT_CUDA(pager().unpin(pinned, PinReason::kRdma));
  EXPECT_EQ(pager().unpin(pinned, PinReason::kRdma), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(evict(), JobState::kDone);
  EXPECT_FALSE(pager().find(pinned)->resident);
}

TEST_F(SharingTest, PeersKeepTheirRights) {
  const CUdeviceptr before = get(4 * kMebibyte);
  CUcontext second = nullptr;
  ASSERT_CUDA(simulated_driver().cuCtxCreate_v2(&second, 0, 1));
  load_kernels();
  EXPECT_CUDA(pager().enable_peer(1));
  const CUdeviceptr after = get(4 * kMebibyte);
  for (int round = 0; round < 2; ++round) {
    EXPECT_CUDA(fill(nullptr, before, 16, 7));
    EXPECT_CUDA(fill(nullptr, after, 16, 8));
    EXPECT_CUDA(simulated_driver().cuCtxSynchronize()) << round;
    ASSERT_EQ(evict(), JobState::kDone);
    ASSERT_EQ(restore(), JobState::kDone);
  }
  the_faults()["cuMemSetAccess"]->fail_at = the_faults()["cuMemSetAccess"]->calls + 1;
  EXPECT_NE(pager().disable_peer(1), CUDA_SUCCESS);
  EXPECT_CUDA(pager().enable_peer(1));
  EXPECT_CUDA(pager().disable_peer(1));
  EXPECT_CUDA(fill(nullptr, after, 1, 1));
  EXPECT_EQ(simulated_driver().cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_CUDA(simulated_driver().cuCtxDestroy_v2(second));
}

TEST_F(SharingTest, ExportedMemoryIsTheSameMemory) {
  const CUdeviceptr data = get(6 * kMebibyte);
  std::vector<ExportedPiece> pieces;
  std::uint64_t offset = 1;
  ASSERT_CUDA(pager().export_pieces(data, &pieces, &offset));
  EXPECT_EQ(offset, 0u);
  ASSERT_EQ(pieces.size(), 2u);
  CUdeviceptr imported = 0;
  ASSERT_CUDA(pager().import_pieces(context_, pieces, &imported));
  for (const ExportedPiece& piece : pieces) ::close(piece.fd);
  write(data, random_words(6 * kMebibyte, 1));
  EXPECT_EQ(read(imported, 6 * kMebibyte / 4), random_words(6 * kMebibyte, 1));
  ASSERT_EQ(evict(), JobState::kDone);
  EXPECT_TRUE(pager().find(data)->resident);
  EXPECT_TRUE(pager().find(imported)->resident);
  EXPECT_CUDA(release(imported));
  EXPECT_CUDA(pager().unpin(data, PinReason::kExported));
  ASSERT_EQ(evict(), JobState::kDone);
  EXPECT_EQ(pager().evicted_bytes(), 6 * kMebibyte);
}

}  // namespace
}  // namespace gpumux::pager
