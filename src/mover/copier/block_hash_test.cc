// SPDX-License-Identifier: Apache-2.0
// Goal: the hash tells all blocks apart that a program may leave, by content and by position. The GPU (here the
// simulated one, with an implementation of its own) computes the same as the reference. Method: blocks that differ in
// ways that weaker hashes miss; random blocks through both implementations.
#include "mover/copier/block_hash.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "mover/copier/block_hash_function.h"
#include "pager/pager_test_support.h"

namespace gpumux::mover {

using sim::simulated_driver;
namespace {

constexpr std::size_t kBytes = std::size_t{2} << 20;
constexpr std::size_t kWords = kBytes / 4;
constexpr HashSeed kSeed{0x0123456789abcdef, 0xfedcba9876543210};

using Block = std::vector<std::uint32_t>;

Block random_block(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Block block(kWords);
  for (std::uint32_t& word : block) word = static_cast<std::uint32_t>(random());
  return block;
}

// The facts about a block after a look at all of it.
struct BlockFacts {
  BlockHash hash;
  std::uint32_t first_word = 0;
  bool constant = false;  // every 32-bit word equals the first
};

// The reference: what the kernel computes, computed here. `block` is 2 MiB, aligned to 4 bytes.
BlockFacts hash_block(const void* block, HashSeed seed) {
  // Two words to each 64-bit key of the sequence.
  HashWord keys[4 * kHashKeyQuads];
  for (unsigned i = 0; i < 2 * kHashKeyQuads; ++i) {
    const HashLong key = hash_key(seed.low, seed.high, i);
    keys[2 * i] = static_cast<HashWord>(key);
    keys[2 * i + 1] = static_cast<HashWord>(key >> 32);
  }
  const auto* bytes = static_cast<const std::byte*>(block);
  HashLong total[2] = {};
  BlockFacts facts;
  std::memcpy(&facts.first_word, bytes, sizeof facts.first_word);
  HashWord different = 0;
  for (unsigned thread = 0; thread < kHashThreads; ++thread) {
    HashLong sums[kHashLanes] = {};
    for (unsigned step = 0; step < kHashSteps; ++step) {
      HashWord m[4];
      std::memcpy(m, bytes + (std::size_t{step} * kHashThreads + thread) * sizeof m, sizeof m);
      for (const HashWord word : m) different |= word ^ facts.first_word;
      for (unsigned lane = 0; lane < kHashLanes; ++lane) {
        const HashWord* k = keys + 4 * (step + lane);
        sums[lane] += hash_quad(m[0], m[1], m[2], m[3], k[0], k[1], k[2], k[3]);
      }
    }
    for (unsigned which = 0; which < 2; ++which)
      total[which] = hash_add(total[which], hash_second_level(sums, thread, which, seed.low, seed.high));
  }
  HashLong low = 0;
  HashLong high = 0;
  hash_finish(total[0], total[1], &low, &high);
  facts.hash = {low, high};
  facts.constant = different == 0;
  return facts;
}

int differing_bits(BlockHash a, BlockHash b) {
  return __builtin_popcountll(a.low ^ b.low) + __builtin_popcountll(a.high ^ b.high);
}

TEST(BlockHash, EveryWordReachesAllBits) {
  Block block = random_block(1);
  const BlockHash whole = hash_block(block.data(), kSeed).hash;
  BlockHash changed_somewhere;  // bits that some change has flipped
  std::mt19937_64 random(2);
  int total = 0;
  constexpr int kChanges = 60;
  for (int i = 0; i < kChanges; ++i) {
    const std::size_t at = random() % kWords;
    const std::uint32_t bit = 1u << (random() % 32);
    block[at] ^= bit;
    const BlockHash other = hash_block(block.data(), kSeed).hash;
    block[at] ^= bit;
    ASSERT_NE(other, whole) << "word " << at;
    changed_somewhere.low |= other.low ^ whole.low;
    changed_somewhere.high |= other.high ^ whole.high;
    total += differing_bits(other, whole);
  }
  EXPECT_EQ(changed_somewhere, (BlockHash{UINT64_MAX, UINT64_MAX}));
  // Half of 128 on average; the mean of 60 lies within 56 and 72 but once in ten million runs, and the seed is fixed.
  EXPECT_GT(total, 56 * kChanges);
  EXPECT_LT(total, 72 * kChanges);
}

TEST(BlockHash, StructuredBlocksDiffer) {
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
  int made = 0;
  const auto add = [&](const Block& block) {
    const BlockHash hash = hash_block(block.data(), kSeed).hash;
    EXPECT_TRUE(seen.emplace(hash.low, hash.high).second) << "variant " << made << " collides";
    ++made;
  };
  Block block(kWords, 0);
  add(block);
  for (const std::size_t at : {0u, 1u, 2u, 3u, 4u, 1023u, 1024u, 262144u, 524287u}) {  // one word, anywhere
    block[at] = 1;
    add(block);
    block[at] = 0x80000000;
    add(block);
    block[at] = 0;
  }
  // Two sign bits at distances that are powers of two: polynomials modulo 2^64 miss such changes.
  for (std::size_t distance = 1; distance < kWords; distance *= 2) {
    block[0] = block[distance] = 0x80000000;
    add(block);
    block[0] = block[distance] = 0;
  }
  // The same values at other places: swapped words, quads, threads, rows.
  Block ascending(kWords);
  for (std::size_t i = 0; i < kWords; ++i) ascending[i] = static_cast<std::uint32_t>(i);
  add(ascending);
  for (const std::size_t distance : {1u, 2u, 4u, 1024u, 262144u}) {
    Block swapped = ascending;
    std::swap(swapped[0], swapped[distance]);
    add(swapped);
    std::rotate(swapped.begin(), swapped.begin() + static_cast<std::ptrdiff_t>(distance), swapped.end());
    add(swapped);
  }
  for (const std::uint32_t value : {1u, 2u, 0x3f800000u, 0xffffffffu}) add(Block(kWords, value));
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(made));
}

TEST(BlockHash, ConstantIsExact) {
  Block block(kWords, 0xdeadbeef);
  BlockFacts facts = hash_block(block.data(), kSeed);
  EXPECT_TRUE(facts.constant);
  EXPECT_EQ(facts.first_word, 0xdeadbeefu);
  for (const std::size_t at : {std::size_t{0}, std::size_t{1}, kWords / 2, kWords - 1}) {
    block[at] ^= 1;
    facts = hash_block(block.data(), kSeed);
    EXPECT_FALSE(facts.constant) << at;
    block[at] ^= 1;
  }
}

TEST(BlockHash, SeedsAreIndependent) {
  const Block block = random_block(3);
  const BlockHash hash = hash_block(block.data(), kSeed).hash;
  EXPECT_NE(hash_block(block.data(), {kSeed.low + 1, kSeed.high}).hash, hash);
  EXPECT_NE(hash_block(block.data(), {kSeed.low, kSeed.high + 1}).hash, hash);
  const HashSeed first = HashSeed::random();
  const HashSeed second = HashSeed::random();
  EXPECT_FALSE(first.low == second.low && first.high == second.high);
}

TEST(BlockHash, CodeIsChosenByArchitecture) {
  EXPECT_NE(block_hash_code(9, 0), nullptr);
  EXPECT_NE(block_hash_code(8, 6), block_hash_code(8, 0));
  EXPECT_EQ(block_hash_code(8, 7), block_hash_code(8, 6)) << "machine code runs on later ones of its generation";
  EXPECT_EQ(block_hash_code(7, 0), nullptr) << "older than any";
  EXPECT_EQ(block_hash_code(99, 0), nullptr) << "newer than any";
}

class GpuHashTest : public sim::SimTest {};

TEST_F(GpuHashTest, TheKernelComputesTheReference) {
  using namespace cuda;
  const Driver& driver = simulated_driver();
  CUmodule loaded = nullptr;
  ASSERT_CUDA(driver.cuModuleLoadData(&loaded, block_hash_ptx()));
  CUfunction kernel = nullptr;
  ASSERT_CUDA(driver.cuModuleGetFunction(&kernel, loaded, kBlockHashKernel));

  std::vector<Block> blocks = {random_block(10), Block(kWords, 7), random_block(11), Block(kWords, 0)};
  blocks.back().back() = 1;
  CUdeviceptr memory = allocate(blocks.size() * kBytes);
  void* pinned = nullptr;
  ASSERT_CUDA(driver.cuMemHostAlloc(&pinned, 4096, 0));
  auto* addresses = static_cast<std::uint64_t*>(pinned);
  auto* results = reinterpret_cast<BlockHashResult*>(addresses + 64);
  std::uint64_t count = blocks.size();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    // The list's order is the results' order, not the addresses'.
    addresses[i] = memory + (blocks.size() - 1 - i) * kBytes;
    ASSERT_CUDA(driver.cuMemcpyHtoD_v2(addresses[i], blocks[i].data(), kBytes));
  }
  HashSeed seed = HashSeed::random();
  auto list = reinterpret_cast<std::uint64_t>(addresses);
  auto out = reinterpret_cast<std::uint64_t>(results);
  void* parameters[] = {&list, &count, &out, &seed.low, &seed.high};
  ASSERT_CUDA(driver.cuLaunchKernel(kernel, 4, 1, 1, kHashThreads, 1, 1, 0, nullptr, parameters, nullptr));
  ASSERT_CUDA(driver.cuCtxSynchronize());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const BlockFacts expected = hash_block(blocks[i].data(), seed);
    EXPECT_EQ((BlockHash{results[i].low, results[i].high}), expected.hash) << "block " << i;
    EXPECT_EQ(results[i].first_word, expected.first_word);
    EXPECT_EQ(results[i].is_constant == 1, expected.constant);
  }
}

}  // namespace
}  // namespace gpumux::mover
