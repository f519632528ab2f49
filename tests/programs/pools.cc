// SPDX-License-Identifier: Apache-2.0
// A program that allocates in the order of streams: several streams work at the same time on memory that comes and goes
// from one pool, with no wait in between, so that memory which is handed out too early shows as a wrong sum. Some of it
// stays for long. At the end it asks the pools for what every program may rely on. The digest depends on the options
// alone.
#include <random>

#include "tests/programs/gpu.h"

namespace gpumux::programs {
namespace {

constexpr std::size_t kStreams = 4;
constexpr std::size_t kSlots = 64;  // sums under way; all are looked at when they are used up

struct Kept {
  CUdeviceptr data = 0;
  std::uint64_t count = 0;
  std::uint32_t value = 0;
};

class Pools {
 public:
  Pools(const Api& api, const Options& options)
      : api_(api), options_(options), kernels_(load_kernels(api)), random_(options.number("seed")) {
    for (CUstream& stream : streams_) GPUMUX_CALL(api_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    GPUMUX_CALL(api_.cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
    GPUMUX_CALL(api_.cuMemAlloc_v2(&sums_, kSlots * 8));
    GPUMUX_CALL(api_.cuDeviceGetDefaultMemPool(&pool_, options.list("gpu").front()));
    for (std::uint64_t i = 0; i < options.number("keep"); ++i) keep(i);
  }

  void round(std::uint64_t number) {
    for (unsigned i = 0; i < 24; ++i) use_and_free();
    use_and_free_what_no_pool_made();
    if (kept_.empty()) return;
    // A round checks one kept allocation, and replaces it.
    Kept& kept = kept_[number % kept_.size()];
    const CUstream stream = streams_[pick(kStreams)];
    look_at(kept, stream);
    GPUMUX_CALL(api_.cuMemFreeAsync(kept.data, stream));
    fill(kept, stream, static_cast<std::uint32_t>(number));
    GPUMUX_CALL(api_.cuStreamSynchronize(stream));
  }

  std::uint64_t finish() {
    for (const Kept& kept : kept_) {
      look_at(kept, streams_[0]);
      GPUMUX_CALL(api_.cuMemFreeAsync(kept.data, streams_[0]));
    }
    kept_.clear();
    collect();
    rely_on_rules();
    rely_on_captures();
    if (options_.text("peer") != "none") let_a_peer_look(options_.list("peer").front());
    return digest_;
  }

 private:
  unsigned pick(std::uint64_t below) { return static_cast<unsigned>(random_() % below); }

  void keep(std::uint64_t number) {
    Kept kept;
    kept.count = options_.number("keep-kib") * 256;
    fill(kept, streams_[0], static_cast<std::uint32_t>(3 * number + 1));
    GPUMUX_CALL(api_.cuStreamSynchronize(streams_[0]));
    kept_.push_back(kept);
  }

  void fill(Kept& kept, CUstream stream, std::uint32_t value) {
    kept.value = value;
    GPUMUX_CALL(api_.cuMemAllocAsync(&kept.data, kept.count * 4, stream));
    launch(api_, kernels_.fill, stream, false, kept.data, kept.count, value);
  }

  void look_at(const Kept& kept, CUstream stream) {
    if (expected_.size() == kSlots) collect();
    launch(api_, kernels_.checksum, stream, false, kept.data, kept.count, sums_ + 8 * expected_.size());
    expected_.push_back(checksum_of(kept.value, kept.count));
  }

  // Nothing here waits. The memory is another stream's the moment this one is done with it, and this one's at once.
  void use_and_free() {
    Kept block;
    block.count = 256 + pick(pick(2) == 0 ? 16'000 : 1'000'000);
    CUstream stream = streams_[pick(kStreams)];
    fill(block, stream, static_cast<std::uint32_t>(random_()));
    launch(api_, kernels_.spin, stream, false, std::uint64_t{pick(200'000)});
    look_at(block, stream);
    if (pick(4) == 0) {
      const CUstream other = streams_[pick(kStreams)];
      GPUMUX_CALL(api_.cuEventRecord(event_, stream));
      GPUMUX_CALL(api_.cuStreamWaitEvent(other, event_, 0));
      stream = other;
    }
    GPUMUX_CALL(api_.cuMemFreeAsync(block.data, stream));
  }

  // Libraries free in the order of a stream what cuMemAlloc gave them.
  void use_and_free_what_no_pool_made() {
    Kept block;
    block.count = 256 + pick(1'000'000);
    block.value = static_cast<std::uint32_t>(random_());
    const CUstream stream = streams_[pick(kStreams)];
    GPUMUX_CALL(api_.cuMemAlloc_v2(&block.data, block.count * 4));
    launch(api_, kernels_.fill, stream, false, block.data, block.count, block.value);
    look_at(block, stream);
    GPUMUX_CALL(api_.cuMemFreeAsync(block.data, stream));
    expect(api_.cuMemFree_v2(block.data) == CUDA_ERROR_INVALID_VALUE, "what is freed cannot be freed again");
  }

  void collect() {
    GPUMUX_CALL(api_.cuCtxSynchronize());
    std::vector<std::uint64_t> sums(expected_.size());
    if (!sums.empty()) GPUMUX_CALL(api_.cuMemcpyDtoH_v2(sums.data(), sums_, sums.size() * 8));
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (sums[i] != expected_[i]) wrong("sum " + std::to_string(i) + " is " + std::to_string(sums[i]));
    }
    digest_ = hash(sums.data(), sums.size() * 8, digest_);
    expected_.clear();
  }

  static void expect(bool holds, const char* what) {
    if (!holds) wrong(what);
  }
  std::uint64_t ask(CUmemoryPool pool, CUmemPool_attribute attribute) {
    std::uint64_t value = 0;
    GPUMUX_CALL(api_.cuMemPoolGetAttribute(pool, attribute, &value));
    return value;
  }

  void rely_on_rules() {
    std::uint64_t number = 0;
    GPUMUX_CALL(api_.cuMemPoolTrimTo(pool_, 0));
    expect(ask(pool_, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0, "what is freed is not used");
    expect(ask(pool_, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0, "what is trimmed is not reserved");
    expect(ask(pool_, CU_MEMPOOL_ATTR_USED_MEM_HIGH) >= options_.number("keep") * options_.number("keep-kib") * 1024,
           "the high-water mark");
    GPUMUX_CALL(api_.cuMemPoolSetAttribute(pool_, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &number));
    expect(ask(pool_, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 0, "the high-water mark begins anew");
    number = 1;
    expect(api_.cuMemPoolSetAttribute(pool_, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &number) == CUDA_ERROR_INVALID_VALUE,
           "it can only begin anew");

    CUdeviceptr data = 0, base = 0;
    std::size_t bytes = 0;
    CUmemoryPool pool = nullptr;
    GPUMUX_CALL(api_.cuMemAllocAsync(&data, 5'000'000, streams_[0]));
    GPUMUX_CALL(api_.cuMemGetAddressRange_v2(&base, &bytes, data + 4'000'000));
    expect(base == data && bytes >= 5'000'000, "the range of an allocation");
    GPUMUX_CALL(api_.cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, data + 1));
    expect(pool == pool_, "the pool of an allocation");
    CUipcMemHandle handle{};
    expect(api_.cuIpcGetMemHandle(&handle, data) != CUDA_SUCCESS, "no other process opens it");
    expect(ask(pool_, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) >= 5'000'000, "what is used");
    GPUMUX_CALL(api_.cuMemFree_v2(data));
    expect(api_.cuMemFreeAsync(data, streams_[0]) == CUDA_ERROR_INVALID_VALUE, "freed twice");
    expect(ask(pool_, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0, "what is freed the plain way is not used");

    // The thread's own stream, by the names that programs built for it use.
    GPUMUX_CALL(api_.cuMemAllocAsync_ptsz(&data, 4096, nullptr));
    launch(api_, kernels_.fill, nullptr, true, data, std::uint64_t{1024}, 9u);
    GPUMUX_CALL(api_.cuMemFreeAsync_ptsz(data, nullptr));

    // A pool of one's own outlives its end as long as something of it does.
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, options_.list("gpu").front()};
    properties.maxSize = 8 << 20;
    GPUMUX_CALL(api_.cuMemPoolCreate(&pool, &properties));
    expect(api_.cuMemAllocFromPoolAsync(&data, 16 << 20, pool, streams_[1]) == CUDA_ERROR_OUT_OF_MEMORY,
           "more than a pool may have");
    Kept last;
    last.count = 1 << 20;
    last.value = 77;
    GPUMUX_CALL(api_.cuMemAllocFromPoolAsync(&last.data, last.count * 4, pool, streams_[1]));
    GPUMUX_CALL(api_.cuMemPoolDestroy(pool));
    launch(api_, kernels_.fill, streams_[1], false, last.data, last.count, last.value);
    look_at(last, streams_[1]);
    GPUMUX_CALL(api_.cuMemFreeAsync(last.data, streams_[1]));
    collect();
  }

  // While one stream captures, the others go on; what was allocated outside cannot be freed by the graph.
  void rely_on_captures() {
    CUdeviceptr outside = 0, beside = 0;
    CUgraph graph = nullptr;
    GPUMUX_CALL(api_.cuMemAllocAsync(&outside, 4096, streams_[2]));
    GPUMUX_CALL(api_.cuStreamBeginCapture_v2(streams_[2], CU_STREAM_CAPTURE_MODE_RELAXED));
    expect(api_.cuMemFreeAsync(outside, streams_[2]) != CUDA_SUCCESS, "a graph frees what it did not allocate");
    GPUMUX_CALL(api_.cuMemAllocAsync(&beside, 3 << 20, streams_[3]));
    launch(api_, kernels_.fill, streams_[3], false, beside, std::uint64_t{3 << 18}, 5u);
    GPUMUX_CALL(api_.cuMemFreeAsync(beside, streams_[3]));
    api_.cuStreamEndCapture(streams_[2], &graph);
    if (graph != nullptr) GPUMUX_CALL(api_.cuGraphDestroy(graph));
    GPUMUX_CALL(api_.cuMemFreeAsync(outside, streams_[2]));
    GPUMUX_CALL(api_.cuCtxSynchronize());
  }

  // Another GPU reads what this one has written into memory of the pool, allocated before it may and after.
  void let_a_peer_look(int peer) {
    CUcontext own = nullptr, other = nullptr;
    CUstream stream = nullptr;
    CUdeviceptr sum = 0;
    GPUMUX_CALL(api_.cuCtxGetCurrent(&own));
    std::vector<Kept> all(3);
    const auto make = [&](Kept& kept, std::uint32_t value) {
      kept.count = 1'000'000;
      fill(kept, streams_[0], value);
      GPUMUX_CALL(api_.cuStreamSynchronize(streams_[0]));
    };
    make(all[0], 11);
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, peer};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    GPUMUX_CALL(api_.cuMemPoolSetAccess(pool_, &access, 1));
    make(all[1], 12);
    GPUMUX_CALL(api_.cuCtxCreate_v2(&other, 0, peer));
    const Kernels kernels = load_kernels(api_);
    GPUMUX_CALL(api_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    GPUMUX_CALL(api_.cuMemAlloc_v2(&sum, 8));
    GPUMUX_CALL(api_.cuCtxSetCurrent(own));
    make(all[2], 13);
    for (unsigned i = 0; i < 30; ++i) {
      Kept& kept = all[i % all.size()];
      GPUMUX_CALL(api_.cuCtxSetCurrent(other));
      launch(api_, kernels.checksum, stream, false, kept.data, kept.count, sum);
      std::uint64_t found = 0;
      GPUMUX_CALL(api_.cuStreamSynchronize(stream));
      GPUMUX_CALL(api_.cuMemcpyDtoH_v2(&found, sum, 8));
      if (found != checksum_of(kept.value, kept.count)) wrong("a peer read " + std::to_string(found));
      digest_ = hash(&found, 8, digest_);
      GPUMUX_CALL(api_.cuCtxSetCurrent(own));
      GPUMUX_CALL(api_.cuMemFreeAsync(kept.data, streams_[0]));
      make(kept, i);
    }
    for (const Kept& kept : all) GPUMUX_CALL(api_.cuMemFreeAsync(kept.data, streams_[0]));
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    GPUMUX_CALL(api_.cuMemPoolSetAccess(pool_, &access, 1));
    GPUMUX_CALL(api_.cuCtxSynchronize());
    GPUMUX_CALL(api_.cuCtxDestroy_v2(other));
    GPUMUX_CALL(api_.cuCtxSetCurrent(own));
  }

  const Api& api_;
  const Options& options_;
  Kernels kernels_;
  std::mt19937_64 random_;
  CUstream streams_[kStreams] = {};
  CUevent event_ = nullptr;
  CUdeviceptr sums_ = 0;
  CUmemoryPool pool_ = nullptr;
  std::vector<Kept> kept_;
  std::vector<std::uint64_t> expected_;
  std::uint64_t digest_ = 0;
};

}  // namespace
}  // namespace gpumux::programs

int main(int argc, char** argv) {
  using namespace gpumux::programs;
  const Options options(
      argc, argv,
      {{"gpu", "0"}, {"rounds", "10"}, {"keep", "4"}, {"keep-kib", "8192"}, {"seed", "1"}, {"peer", "none"}});
  return run_in_rounds<Pools>(options);
}
