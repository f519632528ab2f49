// SPDX-License-Identifier: Apache-2.0
// A program with memory on two GPUs that uses both from one of them, without peer access: --way
//
//   copies   copies between the GPUs by addresses alone (unified addressing)
//   context  reads and writes the second GPU's memory while a context of the first one is current
//   graph    replays a graph that has work on both
//   peers    replays a graph that copies between the GPUs by their contexts
//
// One round changes each word on both GPUs; all words are verified at the end of each round.
#include <unistd.h>

#include <array>

#include "tests/programs/gpu.h"

namespace gpumux::programs {
namespace {

class Across {
 public:
  Across(const Options& options)
      : api_(open_driver(options.door())), way_(options.text("way")), words_(options.number("kib") * 256) {
    GPUMUX_CALL(api_.cuInit(0));
    for (std::size_t i = 0; i < 2; ++i) {
      Gpu& gpu = gpus_[i];
      GPUMUX_CALL(api_.cuDeviceGet(&gpu.device, options.list("gpu").at(i)));
      GPUMUX_CALL(api_.cuCtxCreate_v2(&gpu.context, 0, gpu.device));
      gpu.kernels = load_kernels(api_);
      GPUMUX_CALL(api_.cuStreamCreate(&gpu.stream, CU_STREAM_NON_BLOCKING));
      GPUMUX_CALL(api_.cuEventCreate(&gpu.event, CU_EVENT_DISABLE_TIMING));
      GPUMUX_CALL(api_.cuMemAlloc_v2(&gpu.data, words_ * 4));
      GPUMUX_CALL(api_.cuMemsetD32_v2(gpu.data, 0, words_));
      GPUMUX_CALL(api_.cuCtxSynchronize());
    }
    use(gpus_[0]);
    if (way_ == "graph") capture([this] { increment_on_both(); });
    if (way_ == "peers") capture([this] { copy_by_contexts(); });
  }

  void round() {
    use(gpus_[0]);
    if (way_ == "copies") {
      increment(gpus_[0]);
      copy(gpus_[1], gpus_[0]);
      increment(gpus_[0]);
      copy(gpus_[0], gpus_[1]);
      ++value_;
    } else if (way_ == "context") {
      std::vector<std::uint32_t> words(words_);
      GPUMUX_CALL(api_.cuMemcpyDtoH_v2(words.data(), gpus_[1].data, words_ * 4));
      ++value_;
      for (std::uint32_t& word : words) ++word;
      for (const Gpu& gpu : gpus_) GPUMUX_CALL(api_.cuMemcpyHtoD_v2(gpu.data, words.data(), words_ * 4));
    } else {
      ++value_;
      GPUMUX_CALL(api_.cuGraphLaunch(exec_, gpus_[0].stream));
    }
    GPUMUX_CALL(api_.cuStreamSynchronize(gpus_[0].stream));
  }

  void verify() {
    std::vector<std::uint32_t> words(words_);
    for (const Gpu& gpu : gpus_) {
      use(gpu);
      GPUMUX_CALL(api_.cuMemcpyDtoH_v2(words.data(), gpu.data, words_ * 4));
      for (const std::uint32_t word : words) {
        if (word != value_) wrong("a word is " + std::to_string(word) + ", and was to be " + std::to_string(value_));
      }
    }
  }

 private:
  struct Gpu {
    CUdevice device = 0;
    CUcontext context = nullptr;
    Kernels kernels{};
    CUstream stream = nullptr;
    CUevent event = nullptr;
    CUdeviceptr data = 0;
  };

  void use(const Gpu& gpu) { GPUMUX_CALL(api_.cuCtxSetCurrent(gpu.context)); }
  void increment(const Gpu& gpu) { launch(api_, gpu.kernels.increment, gpu.stream, false, gpu.data, words_); }
  void copy(const Gpu& to, const Gpu& from) {
    GPUMUX_CALL(api_.cuMemcpyDtoDAsync_v2(to.data, from.data, words_ * 4, gpus_[0].stream));
  }

  template <class Record>
  void capture(Record record) {
    CUgraph graph = nullptr;
    GPUMUX_CALL(api_.cuStreamBeginCapture_v2(gpus_[0].stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    record();
    GPUMUX_CALL(api_.cuStreamEndCapture(gpus_[0].stream, &graph));
    GPUMUX_CALL(api_.cuGraphInstantiateWithFlags(&exec_, graph, 0));
  }
  void increment_on_both() {
    increment(gpus_[0]);
    GPUMUX_CALL(api_.cuEventRecord(gpus_[0].event, gpus_[0].stream));
    use(gpus_[1]);
    GPUMUX_CALL(api_.cuStreamWaitEvent(gpus_[1].stream, gpus_[0].event, 0));
    increment(gpus_[1]);
    GPUMUX_CALL(api_.cuEventRecord(gpus_[1].event, gpus_[1].stream));
    use(gpus_[0]);
    GPUMUX_CALL(api_.cuStreamWaitEvent(gpus_[0].stream, gpus_[1].event, 0));
  }
  void copy_by_contexts() {
    increment(gpus_[0]);
    GPUMUX_CALL(api_.cuMemcpyPeerAsync(gpus_[1].data, gpus_[1].context, gpus_[0].data, gpus_[0].context, words_ * 4,
                                       gpus_[0].stream));
  }

  const Api api_;
  const std::string way_;
  const std::uint64_t words_;
  std::array<Gpu, 2> gpus_;
  CUgraphExec exec_ = nullptr;
  std::uint32_t value_ = 0;
};

}  // namespace
}  // namespace gpumux::programs

int main(int argc, char** argv) {
  using namespace gpumux::programs;
  const Options options(argc, argv,
                        {{"gpu", "0,1"}, {"way", "copies"}, {"kib", "32768"}, {"rounds", "10"}, {"pause_ms", "20"}});
  Across program(options);
  say("ready");
  std::uint64_t done = 0;
  for (; done < options.number("rounds") || !options.may_end(); ++done) {
    program.round();
    program.verify();
    say("round %llu", static_cast<unsigned long long>(done));
    ::usleep(static_cast<useconds_t>(options.number("pause_ms") * 1000));
  }
  say_again("rounds", done);
  say("digest=%llu", static_cast<unsigned long long>(done));
  return 0;
}
