// SPDX-License-Identifier: Apache-2.0
// A program with much memory: several blocks of it, each written by the GPU, stepped through by kernels, checked by
// sums at every round and word by word at the end. A part of it never changes (weights), a part is never touched again
// (a preallocation). The digest depends on the options alone.
#include <unistd.h>

#include <cstring>

#include "tests/programs/gpu.h"

namespace gpumux::programs {
namespace {

struct BlockOfMemory {
  CUdeviceptr data = 0;
  std::uint64_t count = 0;  // words
  std::uint32_t value = 0;
  bool changes = true;
};

class Large {
 public:
  Large(const Api& api, const Options& options) : api_(api), options_(options), kernels_(load_kernels(api)) {
    GPUMUX_CALL(api_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    GPUMUX_CALL(api_.cuMemAlloc_v2(&sum_, 8));
    const std::uint64_t blocks = options.number("blocks");
    for (std::uint64_t i = 0; i < blocks; ++i) allocate(i);
  }

  void round(std::uint64_t number) {
    for (BlockOfMemory& block : blocks_) {
      if (!block.changes) continue;
      launch(api_, kernels_.increment, stream_, false, block.data, block.count);
      ++block.value;
    }
    if (options_.number("step-us") != 0)
      launch(api_, kernels_.spin, stream_, false, std::uint64_t{options_.number("step-us") * 1000});
    if (options_.flag("churn")) {
      // Allocations come and go beside what stays; whoever holds no lease meanwhile gets them without memory.
      const std::size_t i = number % blocks_.size();
      check_sum(blocks_[i]);
      free_memory(blocks_[i]);
      fill(blocks_[i], static_cast<std::uint32_t>(1000 + number));
    }
    check_sum(blocks_[number % blocks_.size()]);
  }

  std::uint64_t finish() {
    std::uint64_t digest = 0;
    std::vector<std::uint32_t> words;
    for (BlockOfMemory& block : blocks_) {
      check_sum(block);
      words.resize(block.count);
      GPUMUX_CALL(api_.cuMemcpyDtoH_v2(words.data(), block.data, block.count * 4));
      for (std::uint64_t i = 0; i < block.count; ++i) {
        if (words[i] != block.value) wrong("word " + std::to_string(i) + " is " + std::to_string(words[i]));
      }
      digest = digest * 31 + hash(words.data(), 4096, block.value);
      free_memory(block);
    }
    return digest;
  }

 private:
  // plain: cuMemAlloc; async: in the order of the stream, from the device's pool.
  void allocate_memory(BlockOfMemory& block) {
    if (options_.text("allocator") == "async") {
      GPUMUX_CALL(api_.cuMemAllocAsync(&block.data, block.count * 4, stream_));
    } else {
      GPUMUX_CALL(api_.cuMemAlloc_v2(&block.data, block.count * 4));
    }
  }
  void free_memory(const BlockOfMemory& block) {
    if (options_.text("allocator") == "async") {
      GPUMUX_CALL(api_.cuMemFreeAsync(block.data, stream_));
    } else {
      GPUMUX_CALL(api_.cuMemFree_v2(block.data));
    }
  }

  void allocate(std::uint64_t number) {
    BlockOfMemory block;
    block.count = options_.number("block-kib") * 256;
    block.changes = number % 3 != 2;
    fill(block, static_cast<std::uint32_t>(7 * number + 1));
    blocks_.push_back(block);
  }

  void fill(BlockOfMemory& block, std::uint32_t value) {
    block.value = value;
    allocate_memory(block);
    launch(api_, kernels_.fill, stream_, false, block.data, block.count, value);
    GPUMUX_CALL(api_.cuStreamSynchronize(stream_));
  }

  void check_sum(const BlockOfMemory& block) {
    launch(api_, kernels_.checksum, stream_, false, block.data, block.count, sum_);
    std::uint64_t sum = 0;
    GPUMUX_CALL(api_.cuStreamSynchronize(stream_));
    GPUMUX_CALL(api_.cuMemcpyDtoH_v2(&sum, sum_, 8));
    if (sum != checksum_of(block.value, block.count)) wrong("a checksum of " + std::to_string(block.value));
  }

  const Api& api_;
  const Options& options_;
  Kernels kernels_;
  CUstream stream_ = nullptr;
  CUdeviceptr sum_ = 0;
  std::vector<BlockOfMemory> blocks_;
};

}  // namespace
}  // namespace gpumux::programs

int main(int argc, char** argv) {
  using namespace gpumux::programs;
  const Options options(argc, argv,
                        {{"gpu", "0"},
                         {"blocks", "8"},
                         {"block-kib", "8192"},
                         {"rounds", "20"},
                         {"step-us", "0"},
                         {"churn", "0"},
                         {"allocator", "plain"},
                         {"hold", "0"}});
  const Api api = open_driver(options.door());
  GPUMUX_CALL(api.cuInit(0));
  CUdevice device = 0;
  CUcontext context = nullptr;
  GPUMUX_CALL(api.cuDeviceGet(&device, options.list("gpu").front()));
  GPUMUX_CALL(api.cuCtxCreate_v2(&context, 0, device));
  std::uint64_t digest = 0;
  {
    Large large(api, options);
    say("ready");
    for (std::uint64_t i = 0; i < options.number("rounds"); ++i) {
      large.round(i);
      say("round n=%llu", static_cast<unsigned long long>(i + 1));
    }
    digest = large.finish();
  }
  GPUMUX_CALL(api.cuCtxDestroy_v2(context));
  say("digest=%016llx t=%llu", static_cast<unsigned long long>(digest), static_cast<unsigned long long>(now_ns()));
  if (options.number("hold") != 0) ::sleep(static_cast<unsigned>(options.number("hold")));
  return 0;
}
