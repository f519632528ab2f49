// SPDX-License-Identifier: Apache-2.0
// Goal: graphs run what they were built of, in the order of their edges, and can be asked, copied and changed. Method:
// chains whose result depends on the order; every question against what was built.
#include <atomic>

#include "sim/cuda/test_machine.h"

namespace gpumux::sim {
namespace {

using namespace gpumux::cuda;

class GraphTest : public SimTest {
 protected:
  void SetUp() override {
    SimTest::SetUp();
    data_ = allocate(4096);
    ASSERT_CUDA(cuGraphCreate(&graph_, 0));
  }
  CUgraphNode add_fill(const std::vector<CUgraphNode>& before, CUdeviceptr to, std::uint32_t value) {
    CUDA_MEMSET_NODE_PARAMS params{to, 0, value, 4, 1, 1};
    CUgraphNode node = nullptr;
    EXPECT_CUDA(cuGraphAddMemsetNode(&node, graph_, before.data(), before.size(), &params, context_));
    return node;
  }
  CUgraphNode add_increment(const std::vector<CUgraphNode>& before, CUdeviceptr at) {
    std::uint64_t count = 1;
    void* list[] = {&at, &count};
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = function("gpumux_increment");
    params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = list;
    CUgraphNode node = nullptr;
    EXPECT_CUDA(cuGraphAddKernelNode_v2(&node, graph_, before.data(), before.size(), &params));
    return node;
  }
  CUgraphNode add_copy(const std::vector<CUgraphNode>& before, CUdeviceptr to, CUdeviceptr from) {
    CUgraphNode node = nullptr;
    const CUDA_MEMCPY3D params = copy_params(to, from);
    EXPECT_CUDA(cuGraphAddMemcpyNode(&node, graph_, before.data(), before.size(), &params, context_));
    return node;
  }
  static CUDA_MEMCPY3D copy_params(CUdeviceptr to, CUdeviceptr from) {
    CUDA_MEMCPY3D params{};
    params.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    params.srcDevice = from;
    params.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    params.dstDevice = to;
    params.WidthInBytes = 4;
    params.Height = 1;
    params.Depth = 1;
    return params;
  }
  CUgraphExec instantiate() {
    CUgraphExec exec = nullptr;
    EXPECT_CUDA(cuGraphInstantiateWithFlags(&exec, graph_, 0));
    return exec;
  }
  void run(CUgraphExec exec) {
    EXPECT_CUDA(cuGraphLaunch(exec, nullptr));
    EXPECT_CUDA(cuStreamSynchronize(nullptr));
  }

  CUdeviceptr data_ = 0;
  CUgraph graph_ = nullptr;
};

TEST_F(GraphTest, RunsInTheOrderOfItsEdges) {
  const CUgraphNode fill_node = add_fill({}, data_, 10);
  const CUgraphNode up = add_increment({fill_node}, data_);
  const CUgraphNode copy = add_copy({up}, data_ + 4, data_);
  const CUgraphNode more = add_increment({copy}, data_ + 4);
  add_fill({more}, data_, 0);
  const CUgraphExec exec = instantiate();
  EXPECT_CUDA(cuGraphDestroy(graph_)) << "the executable graph is its own";
  for (int i = 0; i < 3; ++i) {
    run(exec);
    EXPECT_EQ(read(data_, 2), (std::vector<std::uint32_t>{0, 12}));
  }
  EXPECT_CUDA(cuGraphExecDestroy(exec));
  EXPECT_EQ(cuGraphLaunch(exec, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphTest, BranchesRunAtTheSameTime) {
  // Two kernels that wait for each other on the device can only end if both run at once.
  EXPECT_CUDA(cuMemsetD32_v2(data_, 0, 2));
  CUdeviceptr own[] = {data_, data_ + 4};
  std::uint32_t round = 1;
  CUgraphNode branches[2] = {};
  for (int i = 0; i < 2; ++i) {
    void* list[] = {&own[i], &own[1 - i], &round};
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = function("gpumux_rendezvous");
    params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = list;
    EXPECT_CUDA(cuGraphAddKernelNode_v2(&branches[i], graph_, nullptr, 0, &params));
  }
  add_fill({branches[0], branches[1]}, data_ + 8, 5);
  run(instantiate());
  EXPECT_EQ(read(data_, 3), (std::vector<std::uint32_t>{1, 1, 5}));
}

TEST_F(GraphTest, HostChildAndEmptyNodes) {
  CUgraph child = nullptr;
  ASSERT_CUDA(cuGraphCreate(&child, 0));
  std::swap(child, graph_);
  const CUgraphNode inner = add_fill({}, data_, 20);
  add_increment({inner}, data_);
  std::swap(child, graph_);
  static std::atomic<int> calls;
  calls.store(0);
  CUgraphNode host = nullptr;
  CUgraphNode nested = nullptr;
  CUgraphNode empty = nullptr;
  const CUDA_HOST_NODE_PARAMS host_params{[](void* count) { static_cast<std::atomic<int>*>(count)->fetch_add(1); },
                                          &calls};
  EXPECT_CUDA(cuGraphAddHostNode(&host, graph_, nullptr, 0, &host_params));
  EXPECT_CUDA(cuGraphAddChildGraphNode(&nested, graph_, &host, 1, child));
  EXPECT_CUDA(cuGraphAddEmptyNode(&empty, graph_, &nested, 1));
  add_increment({empty}, data_);
  EXPECT_CUDA(cuGraphDestroy(child));
  CUgraph inside = nullptr;
  std::size_t count = 0;
  EXPECT_CUDA(cuGraphChildGraphNodeGetGraph(nested, &inside));
  EXPECT_CUDA(cuGraphGetNodes(inside, nullptr, &count));
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(cuGraphDestroy(inside), CUDA_ERROR_INVALID_VALUE);
  run(instantiate());
  EXPECT_EQ(calls.load(), 1);
  EXPECT_EQ(read(data_, 1)[0], 22u);
}

TEST_F(GraphTest, AnswersQuestions) {
  const CUgraphNode first = add_fill({}, data_, 1);
  const CUgraphNode second = add_increment({first}, data_);
  std::size_t count = 0;
  EXPECT_CUDA(cuGraphGetNodes(graph_, nullptr, &count));
  EXPECT_EQ(count, 2u);
  CUgraphNode nodes[4] = {};
  count = 4;
  EXPECT_CUDA(cuGraphGetNodes(graph_, nodes, &count));
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(nodes[0], first);
  EXPECT_EQ(nodes[2], nullptr);
  count = 4;
  EXPECT_CUDA(cuGraphGetRootNodes(graph_, nodes, &count));
  EXPECT_EQ(count, 1u);
  CUgraphNode from = nullptr;
  CUgraphNode to = nullptr;
  count = 1;
  EXPECT_CUDA(cuGraphGetEdges(graph_, &from, &to, &count));
  EXPECT_EQ(from, first);
  EXPECT_EQ(to, second);
  count = 4;
  EXPECT_CUDA(cuGraphNodeGetDependentNodes(first, nodes, &count));
  EXPECT_EQ(nodes[0], second);
  CUgraphNodeType type{};
  EXPECT_CUDA(cuGraphNodeGetType(second, &type));
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_KERNEL);
  CUDA_KERNEL_NODE_PARAMS params{};
  EXPECT_CUDA(cuGraphKernelNodeGetParams_v2(second, &params));
  EXPECT_EQ(params.func, function("gpumux_increment"));
  EXPECT_EQ(*static_cast<CUdeviceptr*>(params.kernelParams[0]), data_);
  CUDA_MEMSET_NODE_PARAMS memset_params{};
  EXPECT_CUDA(cuGraphMemsetNodeGetParams(first, &memset_params));
  EXPECT_EQ(memset_params.dst, data_);
  EXPECT_EQ(cuGraphMemsetNodeGetParams(second, &memset_params), CUDA_ERROR_INVALID_VALUE);

  CUgraph copy = nullptr;
  CUgraphNode twin = nullptr;
  EXPECT_CUDA(cuGraphClone(&copy, graph_));
  EXPECT_CUDA(cuGraphNodeFindInClone(&twin, second, copy));
  EXPECT_NE(twin, second);
  EXPECT_CUDA(cuGraphDestroyNode(second));
  EXPECT_EQ(cuGraphNodeGetType(second, &type), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CUDA(cuGraphNodeGetType(twin, &type));
  EXPECT_CUDA(cuGraphDestroy(copy));
  EXPECT_EQ(cuGraphNodeGetType(twin, &type), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphTest, CyclesAreRefused) {
  const CUgraphNode first = add_fill({}, data_, 1);
  const CUgraphNode second = add_increment({first}, data_);
  EXPECT_CUDA(cuGraphAddDependencies(graph_, &second, &first, 1));
  CUgraphExec exec = nullptr;
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph_, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CUDA(cuGraphRemoveDependencies(graph_, &second, &first, 1));
  EXPECT_CUDA(cuGraphInstantiate_v2(&exec, graph_, nullptr, nullptr, 0));
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  params.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
  EXPECT_CUDA(cuGraphInstantiateWithParams(&exec, graph_, &params));
  EXPECT_EQ(params.result_out, CUDA_GRAPH_INSTANTIATE_SUCCESS);
}

TEST_F(GraphTest, CopyNodesLookWhenMadeKernelAndFillNodesDoNot) {
  const CUdeviceptr nowhere = data_ + (std::uint64_t{1} << 30);
  CUgraphNode node = nullptr;
  const CUDA_MEMCPY3D params = copy_params(data_, nowhere);
  EXPECT_EQ(cuGraphAddMemcpyNode(&node, graph_, nullptr, 0, &params, context_), CUDA_ERROR_INVALID_VALUE);
  add_increment({}, nowhere);
  add_fill({}, nowhere, 1);
  const CUgraphExec exec = instantiate();
  EXPECT_CUDA(cuGraphLaunch(exec, nullptr));
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(GraphTest, ExecutableGraphsChange) {
  const CUgraphNode first = add_fill({}, data_, 1);
  const CUgraphNode second = add_increment({first}, data_);
  const CUgraphExec exec = instantiate();
  CUDA_MEMSET_NODE_PARAMS params{data_, 0, 50, 4, 1, 1};
  EXPECT_CUDA(cuGraphExecMemsetNodeSetParams(exec, first, &params, context_));
  run(exec);
  EXPECT_EQ(read(data_, 1)[0], 51u);
  EXPECT_CUDA(cuGraphNodeSetEnabled(exec, second, 0));
  unsigned enabled = 1;
  EXPECT_CUDA(cuGraphNodeGetEnabled(exec, second, &enabled));
  EXPECT_EQ(enabled, 0u);
  run(exec);
  EXPECT_EQ(read(data_, 1)[0], 50u);
  params.value = 70;
  EXPECT_CUDA(cuGraphMemsetNodeSetParams(first, &params));
  CUgraphExecUpdateResultInfo info{};
  EXPECT_CUDA(cuGraphExecUpdate_v2(exec, graph_, &info));
  run(exec);
  EXPECT_EQ(read(data_, 1)[0], 71u);
  add_increment({}, data_ + 8);
  EXPECT_EQ(cuGraphExecUpdate_v2(exec, graph_, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
}

TEST_F(GraphTest, LaunchesOfOneGraphFollowEachOther) {
  const CUgraphNode first = add_fill({}, data_, 0);
  CUgraphNode last = first;
  for (int i = 0; i < 50; ++i) last = add_increment({last}, data_);
  add_copy({last}, data_ + 4, data_);
  const CUgraphExec exec = instantiate();
  const CUstream streams[] = {make_stream(), make_stream()};
  for (int i = 0; i < 6; ++i) EXPECT_CUDA(cuGraphLaunch(exec, streams[i % 2]));
  EXPECT_CUDA(cuCtxSynchronize());
  EXPECT_EQ(read(data_, 2), (std::vector<std::uint32_t>{50, 50}));
}

TEST_F(GraphTest, ReplaysCorrectlyAfterItsMemoryWasMappedAnew) {
  constexpr std::size_t kPage = std::size_t{2} << 20;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr address = 0;
  ASSERT_CUDA(cuMemAddressReserve(&address, kPage, 0, 0, 0));
  CUgraphExec exec = nullptr;
  for (std::uint32_t round = 0; round < 3; ++round) {
    CUmemGenericAllocationHandle handle = 0;
    ASSERT_CUDA(cuMemCreate(&handle, kPage, &properties, 0));
    ASSERT_CUDA(cuMemMap(address, kPage, 0, handle, 0));
    ASSERT_CUDA(cuMemSetAccess(address, kPage, &access, 1));
    ASSERT_CUDA(cuMemRelease(handle));
    if (exec == nullptr) {
      add_copy({add_increment({}, address)}, data_, address);
      exec = instantiate();
    }
    EXPECT_CUDA(cuMemsetD32_v2(address, 10 * round, 1));
    run(exec);
    EXPECT_EQ(read(data_, 1)[0], 10 * round + 1);
    ASSERT_CUDA(cuMemUnmap(address, kPage));
  }
  EXPECT_CUDA(cuMemAddressFree(address, kPage));
}

}  // namespace
}  // namespace gpumux::sim
