// SPDX-License-Identifier: Apache-2.0
// A program that does anything: allocates in three ways, frees, writes, copies within a GPU and between GPUs, launches
// kernels on its own memory and on a peer's, captures, replays, and verifies, in an order that --seed gives, on all
// GPUs of --gpu. At most --kib of each GPU are allocated at a time. It knows what every word has to be; the digest
// depends on the options alone.
#include <algorithm>
#include <random>

#include "tests/programs/gpu.h"

namespace gpumux::programs {
namespace {

class Mixed {
 public:
  explicit Mixed(const Options& options)
      : api_(open_driver(options.door())), random_(static_cast<std::uint32_t>(options.number("seed"))) {
    GPUMUX_CALL(api_.cuInit(0));
    for (const int number : options.list("gpu")) {
      Gpu gpu{.left = options.number("kib") * 1024};
      GPUMUX_CALL(api_.cuDeviceGet(&gpu.device, number));
      GPUMUX_CALL(api_.cuCtxCreate_v2(&gpu.context, 0, gpu.device));
      gpu.kernels = load_kernels(api_);
      GPUMUX_CALL(api_.cuStreamCreate(&gpu.stream, CU_STREAM_NON_BLOCKING));
      gpus_.push_back(gpu);
    }
    for (const Gpu& gpu : gpus_) {
      GPUMUX_CALL(api_.cuCtxSetCurrent(gpu.context));
      for (const Gpu& other : gpus_) {
        if (other.device != gpu.device) GPUMUX_CALL(api_.cuCtxEnablePeerAccess(other.context, 0));
      }
    }
  }

  void step() {
    const unsigned what = pick(16);
    if (live_.size() < 4 || what < 3) return allocate();
    Live& live = live_[pick(live_.size())];
    switch (what) {
      case 3: return free_one();
      case 4:
      case 5: return write(live);
      case 6: return fill(live);
      case 7: return replay(live);
      case 8:
      case 9: return verify(live);
      case 10:
      case 11: return copy(live, live_[pick(live_.size())]);
      case 12: return increment(live, gpus_[pick(gpus_.size())]);  // a peer's, as often as not
      default: return increment(live, gpu_of(live));
    }
  }

  std::uint64_t finish() {
    std::uint64_t digest = 0;
    while (!live_.empty()) {
      verify(live_.back());
      digest = hash(live_.back().words.data(), live_.back().words.size() * 4, digest * 31);
      release(live_.size() - 1);
    }
    for (const Gpu& gpu : gpus_) {
      GPUMUX_CALL(api_.cuCtxSetCurrent(gpu.context));
      GPUMUX_CALL(api_.cuCtxDestroy_v2(gpu.context));
    }
    return digest;
  }

 private:
  struct Gpu {
    CUdevice device = 0;
    CUcontext context = nullptr;
    Kernels kernels{};
    CUstream stream = nullptr;
    std::uint64_t left = 0;  // bytes that may still be allocated
  };
  struct Live {
    std::size_t gpu = 0;
    CUdeviceptr data = 0;
    CUmemGenericAllocationHandle handle = 0;  // mapped by the program itself
    bool is_in_order = false;                 // from a pool
    std::vector<std::uint32_t> words{};
    std::size_t bytes() const { return words.size() * 4; }
  };
  static constexpr std::size_t kGranularity = std::size_t{2} << 20;

  // The bytes that an allocation may take of the GPU.
  static std::size_t in_granules(std::size_t bytes) { return (bytes + kGranularity - 1) / kGranularity * kGranularity; }
  std::uint32_t pick(std::size_t below) { return static_cast<std::uint32_t>(random_() % below); }
  Gpu& gpu_of(const Live& live) { return gpus_[live.gpu]; }
  void use(const Gpu& gpu) { GPUMUX_CALL(api_.cuCtxSetCurrent(gpu.context)); }
  void wait(const Gpu& gpu) {
    use(gpu);
    GPUMUX_CALL(api_.cuStreamSynchronize(gpu.stream));
  }

  void allocate() {
    Live live{.gpu = pick(gpus_.size())};
    Gpu& gpu = gpu_of(live);
    const unsigned way = pick(3);
    std::size_t bytes = 4 * (std::size_t{1} + pick(pick(2) == 0 ? 20'000 : 1'000'000));
    if (way == 2) bytes = in_granules(bytes);
    if (in_granules(bytes) > gpu.left) return free_one();
    gpu.left -= in_granules(bytes);
    live.words.resize(bytes / 4);
    use(gpu);
    if (way == 0) {
      GPUMUX_CALL(api_.cuMemAlloc_v2(&live.data, bytes));
    } else if (way == 1) {
      live.is_in_order = true;
      GPUMUX_CALL(api_.cuMemAllocAsync(&live.data, bytes, gpu.stream));
      let_peers_reach(gpu);
      wait(gpu);
    } else {
      CUmemAllocationProp properties{};
      properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
      properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu.device};
      GPUMUX_CALL(api_.cuMemCreate(&live.handle, bytes, &properties, 0));
      GPUMUX_CALL(api_.cuMemAddressReserve(&live.data, bytes, 0, 0, 0));
      GPUMUX_CALL(api_.cuMemMap(live.data, bytes, 0, live.handle, 0));
      const std::vector<CUmemAccessDesc> rights = rights_of_all();
      GPUMUX_CALL(api_.cuMemSetAccess(live.data, bytes, rights.data(), rights.size()));
    }
    live_.push_back(std::move(live));
    fill(live_.back());
  }
  std::vector<CUmemAccessDesc> rights_of_all() const {
    std::vector<CUmemAccessDesc> rights;
    for (const Gpu& gpu : gpus_)
      rights.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, gpu.device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    return rights;
  }
  void let_peers_reach(const Gpu& gpu) {
    CUmemoryPool pool = nullptr;
    GPUMUX_CALL(api_.cuDeviceGetDefaultMemPool(&pool, gpu.device));
    for (const CUmemAccessDesc& right : rights_of_all()) {
      if (right.location.id != gpu.device) GPUMUX_CALL(api_.cuMemPoolSetAccess(pool, &right, 1));
    }
  }

  void free_one() {
    if (live_.empty()) return;
    const std::size_t i = pick(live_.size());
    if (pick(3) == 0) verify(live_[i]);
    release(i);
  }
  void release(std::size_t i) {
    Live& live = live_[i];
    Gpu& gpu = gpu_of(live);
    use(gpu);
    if (live.handle != 0) {
      wait(gpu);
      GPUMUX_CALL(api_.cuMemUnmap(live.data, live.bytes()));
      GPUMUX_CALL(api_.cuMemRelease(live.handle));
      GPUMUX_CALL(api_.cuMemAddressFree(live.data, live.bytes()));
    } else if (live.is_in_order) {
      GPUMUX_CALL(api_.cuMemFreeAsync(live.data, gpu.stream));
    } else {
      wait(gpu);
      GPUMUX_CALL(api_.cuMemFree_v2(live.data));
    }
    gpu.left += in_granules(live.bytes());
    std::swap(live, live_.back());
    live_.pop_back();
  }

  void write(Live& live) {
    wait(gpu_of(live));
    for (std::uint32_t& word : live.words) word = static_cast<std::uint32_t>(random_());
    GPUMUX_CALL(api_.cuMemcpyHtoD_v2(live.data, live.words.data(), live.bytes()));
  }
  void fill(Live& live) {
    use(gpu_of(live));
    const std::uint32_t value = pick(3);
    std::fill(live.words.begin(), live.words.end(), value);
    GPUMUX_CALL(api_.cuMemsetD32Async(live.data, value, live.words.size(), gpu_of(live).stream));
  }
  void increment(Live& live, const Gpu& where) {
    const std::uint64_t count = 1 + pick(live.words.size());
    const bool is_peers = &where != &gpu_of(live);
    if (is_peers) wait(gpu_of(live));
    use(where);
    launch(api_, where.kernels.increment, where.stream, false, live.data, count);
    for (std::uint64_t i = 0; i < count; ++i) ++live.words[i];
    if (is_peers || pick(4) == 0) wait(where);
  }
  void copy(Live& to, const Live& from) {
    if (&to == &from) return;
    const std::size_t count = std::min(to.words.size(), from.words.size());
    wait(gpu_of(from));
    Gpu& gpu = gpu_of(to);
    use(gpu);
    GPUMUX_CALL(api_.cuMemcpyPeerAsync(to.data, gpu.context, from.data, gpu_of(from).context, count * 4, gpu.stream));
    wait(gpu);  // before a thread writes to what it reads
    std::copy_n(from.words.begin(), count, to.words.begin());
  }
  // Recorded in any mode, replayed twice.
  void replay(Live& live) {
    const Gpu& gpu = gpu_of(live);
    const std::uint64_t count = std::min<std::uint64_t>(live.words.size(), 5000);
    std::vector<std::uint32_t> copied(count);
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    wait(gpu);
    GPUMUX_CALL(api_.cuStreamBeginCapture_v2(gpu.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    launch(api_, gpu.kernels.increment, gpu.stream, false, live.data, count);
    GPUMUX_CALL(api_.cuMemcpyDtoHAsync_v2(copied.data(), live.data, count * 4, gpu.stream));
    GPUMUX_CALL(api_.cuStreamEndCapture(gpu.stream, &graph));
    GPUMUX_CALL(api_.cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 2; ++i) GPUMUX_CALL(api_.cuGraphLaunch(exec, gpu.stream));
    wait(gpu);
    for (std::uint64_t i = 0; i < count; ++i) {
      live.words[i] += 2;
      if (copied[i] != live.words[i]) wrong("a graph read " + std::to_string(copied[i]));
    }
    GPUMUX_CALL(api_.cuGraphExecDestroy(exec));
    GPUMUX_CALL(api_.cuGraphDestroy(graph));
  }
  void verify(const Live& live) {
    const Gpu& gpu = gpu_of(live);
    wait(gpu);
    std::vector<std::uint32_t> words(live.words.size());
    GPUMUX_CALL(api_.cuMemcpyDtoH_v2(words.data(), live.data, live.bytes()));
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (words[i] != live.words[i])
        wrong("word " + std::to_string(i) + " of " + std::to_string(words.size()) + " is " + std::to_string(words[i]) +
              ", and was to be " + std::to_string(live.words[i]));
    }
  }

  const Api api_;
  std::mt19937 random_;
  std::vector<Gpu> gpus_;
  std::vector<Live> live_;
};

}  // namespace
}  // namespace gpumux::programs

int main(int argc, char** argv) {
  using namespace gpumux::programs;
  const Options options(argc, argv, {{"gpu", "0,1"}, {"seed", "1"}, {"steps", "1000"}, {"kib", "32768"}});
  Mixed mixed(options);
  say("ready");
  for (std::uint64_t i = 0; i < options.number("steps"); ++i) mixed.step();
  say("digest=%016llx", static_cast<unsigned long long>(mixed.finish()));
  return 0;
}
