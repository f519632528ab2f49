// SPDX-License-Identifier: Apache-2.0
// Builds graphs by hand, node by node. Before each call that names addresses to the driver it leaves the GPU alone for
// --pause-ms, so that others may have taken its memory by then; the finished graph copies, or fills, one of two blocks,
// and what is there afterwards is checked.
#include <unistd.h>

#include "tests/programs/gpu.h"

namespace gpumux::programs {
namespace {

class Graphs {
 public:
  Graphs(const Api& api, const Options& options)
      : api_(api), options_(options), kernels_(load_kernels(api)), count_(options.number("block-kib") * 256) {
    GPUMUX_CALL(api_.cuCtxGetCurrent(&context_));
    GPUMUX_CALL(api_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    GPUMUX_CALL(api_.cuMemAlloc_v2(&sum_, 8));
    for (Block& block : blocks_) {
      GPUMUX_CALL(api_.cuMemAlloc_v2(&block.data, count_ * 4));
      GPUMUX_CALL(api_.cuMemsetD32_v2(block.data, block.value, count_));
    }
    GPUMUX_CALL(api_.cuCtxSynchronize());
  }

  void round(std::uint64_t number) {
    Block& from = blocks_[number % 2];
    Block& to = blocks_[(number + 1) % 2];
    launch(api_, kernels_.increment, stream_, false, from.data, count_);
    ++from.value;
    GPUMUX_CALL(api_.cuStreamSynchronize(stream_));
    GPUMUX_CALL(api_.cuGraphCreate(&graph_, 0));
    build(number, copy_of(from, to, count_ * 4), copy_of(from, to, 4096), fill_of(to, from.value));
    GPUMUX_CALL(api_.cuGraphLaunch(exec_, stream_));
    GPUMUX_CALL(api_.cuStreamSynchronize(stream_));
    to.value = from.value;
    for (const Block& block : blocks_) check_sum(block);
    GPUMUX_CALL(api_.cuGraphExecDestroy(exec_));
    GPUMUX_CALL(api_.cuGraphDestroy(graph_));
  }

  std::uint64_t finish() {
    std::uint64_t digest = 0;
    for (Block& block : blocks_) {
      check_sum(block);
      digest = hash(&block.value, sizeof block.value, digest);
      GPUMUX_CALL(api_.cuMemFree_v2(block.data));
    }
    GPUMUX_CALL(api_.cuMemFree_v2(sum_));
    GPUMUX_CALL(api_.cuStreamDestroy_v2(stream_));
    return digest;
  }

 private:
  struct Block {
    CUdeviceptr data = 0;
    std::uint32_t value = 1;
  };

  static CUDA_MEMCPY3D copy_of(const Block& from, const Block& to, std::size_t bytes) {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = from.data;
    copy.dstDevice = to.data;
    copy.srcPitch = copy.dstPitch = copy.WidthInBytes = bytes;
    copy.srcHeight = copy.dstHeight = copy.Height = copy.Depth = 1;
    return copy;
  }
  CUDA_MEMSET_NODE_PARAMS fill_of(const Block& to, std::uint32_t value) const {
    return {to.data, count_ * 4, value, 4, count_, 1};
  }
  CUgraphNodeParams node_of(const CUDA_MEMCPY3D& copy) const {
    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    params.memcpy.copyCtx = context_;
    params.memcpy.copyParams = copy;
    return params;
  }

  void leave_alone() const { ::usleep(static_cast<useconds_t>(options_.number("pause-ms") * 1000)); }
  void add(const CUDA_MEMCPY3D& copy) {
    GPUMUX_CALL(api_.cuGraphAddMemcpyNode(&node_, graph_, nullptr, 0, &copy, context_));
  }
  void instantiate() { GPUMUX_CALL(api_.cuGraphInstantiateWithFlags(&exec_, graph_, 0)); }

  // A graph that does `whole` or `fill`, made in one of the ways; `part`: what its copy does before it is changed.
  void build(std::uint64_t way, const CUDA_MEMCPY3D& whole, const CUDA_MEMCPY3D& part,
             const CUDA_MEMSET_NODE_PARAMS& fill) {
    CUgraphNodeParams node = node_of(whole);
    switch (way % 10) {
      case 0:
        leave_alone();
        add(whole);
        instantiate();
        return;
      case 1:
        leave_alone();
        GPUMUX_CALL(api_.cuGraphAddMemsetNode(&node_, graph_, nullptr, 0, &fill, context_));
        instantiate();
        return;
      case 2:
        leave_alone();
        GPUMUX_CALL(api_.cuGraphAddNode(&node_, graph_, nullptr, 0, &node));
        instantiate();
        return;
      case 3:
        leave_alone();
        GPUMUX_CALL(api_.cuGraphAddNode_v2(&node_, graph_, nullptr, nullptr, 0, &node));
        instantiate();
        return;
      case 4:
        add(part);
        leave_alone();
        GPUMUX_CALL(api_.cuGraphMemcpyNodeSetParams(node_, &whole));
        instantiate();
        return;
      case 5:
        add(part);
        leave_alone();
        GPUMUX_CALL(api_.cuGraphNodeSetParams(node_, &node));
        instantiate();
        return;
      case 6:
        add(part);
        instantiate();
        leave_alone();
        GPUMUX_CALL(api_.cuGraphExecMemcpyNodeSetParams(exec_, node_, &whole, context_));
        return;
      case 7:
        add(part);
        instantiate();
        leave_alone();
        GPUMUX_CALL(api_.cuGraphExecNodeSetParams(exec_, node_, &node));
        return;
      case 8:
        add(whole);
        leave_alone();
        instantiate();
        return;
      default: build_while_capturing(whole); return;
    }
  }

  // Nothing that is captured waits for the node, nor the node for it.
  void build_while_capturing(const CUDA_MEMCPY3D& whole) {
    CUstream captured = nullptr;
    CUgraph other = nullptr;
    GPUMUX_CALL(api_.cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
    GPUMUX_CALL(api_.cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    GPUMUX_CALL(api_.cuMemsetD32Async(sum_, 0, 2, captured));
    leave_alone();
    add(whole);
    GPUMUX_CALL(api_.cuMemsetD32Async(sum_, 0, 2, captured));
    GPUMUX_CALL(api_.cuStreamEndCapture(captured, &other));
    GPUMUX_CALL(api_.cuGraphDestroy(other));
    GPUMUX_CALL(api_.cuStreamDestroy_v2(captured));
    instantiate();
  }

  void check_sum(const Block& block) {
    std::uint64_t got = 0;
    launch(api_, kernels_.checksum, stream_, false, block.data, count_, sum_);
    GPUMUX_CALL(api_.cuStreamSynchronize(stream_));
    GPUMUX_CALL(api_.cuMemcpyDtoH_v2(&got, sum_, 8));
    if (got != checksum_of(block.value, count_))
      wrong("a block's sum, which should be all " + std::to_string(block.value));
  }

  const Api& api_;
  const Options& options_;
  Kernels kernels_;
  const std::uint64_t count_;  // words of a block
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  CUdeviceptr sum_ = 0;
  Block blocks_[2];
  CUgraph graph_ = nullptr;
  CUgraphNode node_ = nullptr;
  CUgraphExec exec_ = nullptr;
};

}  // namespace
}  // namespace gpumux::programs

int main(int argc, char** argv) {
  using namespace gpumux::programs;
  const Options options(argc, argv, {{"gpu", "0"}, {"rounds", "10"}, {"block-kib", "1024"}, {"pause-ms", "0"}});
  return run_in_rounds<Graphs>(options);
}
