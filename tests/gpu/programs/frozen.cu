// SPDX-License-Identifier: Apache-2.0
// GPU work of one kind, with a result that is known to the last word. parts_interrupt.py runs each case under gpumux,
// which takes its kernels off the GPU in their middle.
//
//   frozen CASE SECONDS [quiet | GIB]
//
// Prints one line: `CASE: rounds=N wrong=W ms=M`, with the average time of a round in M. The exit status is 1 if W is
// not 0. If the GPU, the driver or the toolkit lacks a feature that the case needs, the line is `CASE: not here: WHY`
// and the exit status 77. SIGTERM ends the program after the current round. `quiet`: no line. GIB: so much memory
// beside, which is filled before and compared at the end. The case `hold` has only that.
//
// Kernels take some 20 to 200 ms, and those of the case `long` 20 s. Each kernel ends by itself: it counts loops, or stops waiting after kMostWaitNs.
//
//   nvcc -std=c++17 -O2 -rdc=true -arch=sm_90 frozen.cu -lcudadevrt -lcuda -o frozen
#include <cooperative_groups.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

namespace cg = cooperative_groups;

using Word = std::uint32_t;
using Count = unsigned long long;  // what atomicAdd takes
using Clock = std::chrono::steady_clock;

constexpr int kThreads = 256;
constexpr int kPasses = 16;   // of a kernel; after each pass the threads of a block exchange their words
constexpr int kNotHere = 77;  // exit status
// Seconds: a program that goes on for so much longer than it should is ended by its own alarm.
constexpr unsigned kAlarmAfter = 60;
constexpr Count kMostWaitNs = 2'000'000'000;

std::string g_case;
volatile std::sig_atomic_t g_is_stopped = 0;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

[[noreturn]] void not_here(const std::string& why) {
  std::printf("%s: not here: %s\n", g_case.c_str(), why.c_str());
  std::exit(kNotHere);
}

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "%s: %s\n", g_case.c_str(), why.c_str());
  std::fflush(stdout);
  std::_Exit(1);  // without the destructors: a kernel may still run
}

void check(cudaError_t result, const char* call, bool may_lack) {
  if (result == cudaSuccess) return;
  const std::string what = std::string(call) + ": " + cudaGetErrorName(result);
  if (may_lack && (result == cudaErrorNotSupported || result == cudaErrorCallRequiresNewerDriver)) not_here(what);
  fail(what);
}

void check(CUresult result, const char* call, bool may_lack) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  const std::string what = std::string(call) + ": " + (name != nullptr ? name : "?");
  if (may_lack && result == CUDA_ERROR_NOT_SUPPORTED) not_here(what);
  fail(what);
}

#define CHECK(call) check(call, #call, false)
#define NEED(call) check(call, #call, true)  // for features that a machine may lack

// The time and the findings of a case.
struct Run {
  double seconds;
  Clock::time_point begin{};
  long rounds = 0;
  long wrong = 0;

  // Whether there is another round. The time begins with the first one.
  bool next() {
    if (rounds == 0) begin = Clock::now();
    if (rounds > 0 && (g_is_stopped != 0 || seconds_since(begin) >= seconds)) return false;
    ++rounds;
    return true;
  }
};

// ---- the arithmetic -------------------------------------------------------------------------------

constexpr Word kFactor = 1664525, kAddend = 1013904223;

// One loop of a kernel is x -> kFactor * x + kAddend. The host computes the result of any number of loops directly, and
// a loop that is lost or done twice gives another result.
struct Affine {
  Word factor = 1, addend = 0;
  Word operator()(Word x) const { return factor * x + addend; }
  Affine after(const Affine& first) const { return {factor * first.factor, factor * first.addend + addend}; }
};

Affine steps(std::uint64_t count) {
  Affine all, power{kFactor, kAddend};
  for (; count != 0; count /= 2, power = power.after(power)) {
    if (count % 2 != 0) all = power.after(all);
  }
  return all;
}

__device__ Word advance(Word value, long loops) {
#pragma unroll 1
  for (long i = 0; i < loops; ++i) value = value * kFactor + kAddend;
  return value;
}

// The work of one kernel on each word.
struct Work {
  int passes;
  long loops;  // of each pass
  std::uint64_t all() const { return static_cast<std::uint64_t>(passes) * static_cast<std::uint64_t>(loops); }
};

// In each pass every thread advances its word, and then takes the word of the next thread of its block. `extra` is
// added to each word before the first pass, unless it is nullptr.
__global__ void churn(Word* data, int passes, long loops, const volatile Word* extra) {
  __shared__ Word box[kThreads];
  const unsigned own = threadIdx.x, next = (own + 1) % kThreads;
  Word* const mine = data + static_cast<std::size_t>(blockIdx.x) * kThreads + own;
  Word value = *mine + (extra != nullptr ? *extra : 0);
  for (int pass = 0; pass < passes; ++pass) {
    box[own] = advance(value, loops);
    __syncthreads();
    value = box[next];
    __syncthreads();
  }
  *mine = value;
}

// Advances `words` by `all` loops. Word i then has the value that comes from word from(i).
template <class From>
void expect(std::vector<Word>& words, std::uint64_t all, Word extra, From from) {
  const Affine map = steps(all);
  const std::vector<Word> before = words;
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = map(before[from(i)] + extra);
}

void expect_churn(std::vector<Word>& words, const Work& work, Word extra = 0) {
  expect(words, work.all(), extra, [&work](std::size_t i) {
    return i / kThreads * kThreads + (i + static_cast<std::size_t>(work.passes)) % kThreads;
  });
}

std::vector<Word> seeded(std::size_t count, Word seed) {
  std::vector<Word> words(count);
  for (std::size_t i = 0; i < count; ++i) words[i] = seed * 0x9e3779b9u + static_cast<Word>(i) * 0x85ebca6bu;
  return words;
}

// Waits for the stream.
long count_wrong(const Word* device, const std::vector<Word>& expected, cudaStream_t stream) {
  std::vector<Word> found(expected.size());
  CHECK(cudaMemcpyAsync(found.data(), device, found.size() * sizeof(Word), cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  long wrong = 0;
  for (std::size_t i = 0; i < found.size(); ++i) wrong += found[i] != expected[i] ? 1 : 0;
  return wrong;
}

// ---- the GPU --------------------------------------------------------------------------------------

int attribute(cudaDeviceAttr which, int device = 0) {
  int value = 0;
  CHECK(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

int processors() { return attribute(cudaDevAttrMultiProcessorCount); }

cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

template <class T>
T* new_memory(std::size_t count) {
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, count * sizeof(T)));
  CHECK(cudaMemset(memory, 0, count * sizeof(T)));
  CHECK(cudaDeviceSynchronize());
  return static_cast<T*>(memory);
}

// Words on the GPU for `churn`, and the values that they must have.
struct Buffer {
  int blocks;
  std::vector<Word> expected;
  Word* device;

  Buffer(int its_blocks, Word seed)
      : blocks(its_blocks),
        expected(seeded(static_cast<std::size_t>(blocks) * kThreads, seed)),
        device(new_memory<Word>(expected.size())) {
    CHECK(cudaMemcpy(device, expected.data(), bytes(), cudaMemcpyHostToDevice));
    // The call returns before the last piece has come, and streams that do not block would not wait for it.
    CHECK(cudaDeviceSynchronize());
  }
  std::size_t bytes() const { return expected.size() * sizeof(Word); }
  void launch(const Work& work, cudaStream_t stream, const Word* extra = nullptr, Word extra_value = 0) {
    churn<<<blocks, kThreads, 0, stream>>>(device, work.passes, work.loops, extra);
    CHECK(cudaGetLastError());
    expect_churn(expected, work, extra_value);
  }
  long wrong(cudaStream_t stream) const { return count_wrong(device, expected, stream); }
};

void open_gpu(int device = 0) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count <= device) not_here("no GPU");
  CHECK(cudaSetDevice(device));
  CHECK(cudaFree(nullptr));
  cudaFuncAttributes attributes{};
  const cudaError_t result = cudaFuncGetAttributes(&attributes, churn);
  if (result == cudaErrorNoKernelImageForDevice || result == cudaErrorInvalidDeviceFunction)
    not_here("this program was compiled for another GPU");
  CHECK(result);
}

double g_loops_per_ms = 0;

// Other processes may take turns with this one, so the shortest of several short kernels counts. A measurement outside
// of the plausible cycles for each loop is not believed.
void calibrate() {
  constexpr int kTries = 6;
  constexpr long kLoops = 6'000;
  constexpr double kFewestCycles = 4, kMostCycles = 60;
  const double cycles_per_ms = attribute(cudaDevAttrClockRate);  // in kHz
  Buffer buffer(2 * processors(), 1);
  const cudaStream_t stream = new_stream();
  const Work work{kPasses, kLoops};
  double shortest = 1e9;
  for (int i = 0; i < kTries; ++i) {
    const auto begin = Clock::now();
    buffer.launch(work, stream);
    CHECK(cudaStreamSynchronize(stream));
    shortest = std::min(shortest, seconds_since(begin) * 1e3);
  }
  if (buffer.wrong(stream) != 0) fail("the kernels that were measured first gave a wrong result");
  g_loops_per_ms = std::clamp(static_cast<double>(work.all()) / shortest, cycles_per_ms / kMostCycles,
                              cycles_per_ms / kFewestCycles);
  CHECK(cudaFree(buffer.device));
  CHECK(cudaStreamDestroy(stream));
}

void start() {
  open_gpu();
  calibrate();
}

long loops_of(double ms) { return std::max(1L, static_cast<long>(g_loops_per_ms * ms)); }
Work work_of(double ms) { return {kPasses, loops_of(ms / kPasses)}; }

// ---- cases ----------------------------------------------------------------------------------------

// Each bin gets its own amount from a texture, and all bins get theirs equally often. `loops` make the kernel compute,
// too, so that its length does not depend on the speed of atomic operations.
__global__ void add_to_bins(Count* bins, unsigned count, cudaTextureObject_t amounts, unsigned times, long loops,
                            Word* sink) {
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  Word value = thread;
  for (unsigned i = 0; i < times; ++i) {
    const unsigned bin = (thread * 31 + i) % count;
    atomicAdd(&bins[bin], static_cast<Count>(tex1Dfetch<Word>(amounts, static_cast<int>(bin))));
    value = advance(value, loops);
  }
  sink[thread] = value;
}

void atomic(Run& run) {
  constexpr unsigned kBins = 1024;  // 31 has no divisor in common with it
  start();
  const unsigned blocks = static_cast<unsigned>(2 * processors() + 3) / 4 * 4;  // a multiple of kBins threads
  const unsigned times = 2000;
  const long loops = std::max(1L, loops_of(40) / static_cast<long>(times));
  std::vector<Word> amounts(kBins);
  for (unsigned i = 0; i < kBins; ++i) amounts[i] = 7 * i + 1;
  Word* const table = new_memory<Word>(kBins);
  CHECK(cudaMemcpy(table, amounts.data(), kBins * sizeof(Word), cudaMemcpyHostToDevice));
  CHECK(cudaDeviceSynchronize());  // as in Buffer
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeLinear;
  resource.res.linear.devPtr = table;
  resource.res.linear.desc = cudaCreateChannelDesc<Word>();
  resource.res.linear.sizeInBytes = kBins * sizeof(Word);
  cudaTextureDesc description{};
  description.readMode = cudaReadModeElementType;
  cudaTextureObject_t texture = 0;
  CHECK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));

  Count* const bins = new_memory<Count>(kBins);
  Word* const sink = new_memory<Word>(blocks * kThreads);
  std::vector<Word> expected(blocks * kThreads);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<Word>(i);
  expect(expected, static_cast<std::uint64_t>(times) * static_cast<std::uint64_t>(loops), 0,
         [](std::size_t i) { return i; });
  std::vector<Count> found(kBins);
  const cudaStream_t stream = new_stream();
  while (run.next()) {
    CHECK(cudaMemsetAsync(sink, 0, expected.size() * sizeof(Word), stream));
    add_to_bins<<<blocks, kThreads, 0, stream>>>(bins, kBins, texture, times, loops, sink);
    CHECK(cudaGetLastError());
    run.wrong += count_wrong(sink, expected, stream);
    CHECK(cudaMemcpyAsync(found.data(), bins, kBins * sizeof(Count), cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    const Count adds = static_cast<Count>(blocks) * kThreads / kBins * times * static_cast<Count>(run.rounds);
    for (unsigned i = 0; i < kBins; ++i) run.wrong += found[i] != adds * amounts[i] ? 1 : 0;
  }
}

// One kernel on the whole GPU. In each phase every block takes the words of the next block.
__global__ void hand_round_grid(Word* ring, int phases, long loops) {
  const cg::grid_group grid = cg::this_grid();
  const std::size_t all = static_cast<std::size_t>(gridDim.x) * kThreads;
  const std::size_t own = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::size_t next = (own + kThreads) % all;
  for (int phase = 0; phase < phases; ++phase) {
    const Word* const from = ring + static_cast<std::size_t>(phase % 2) * all;
    Word* const to = ring + static_cast<std::size_t>((phase + 1) % 2) * all;
    to[own] = advance(from[next], loops);
    grid.sync();
  }
}

void cooperative(Run& run) {
  constexpr int kPhases = 400;  // even: the result is where the words were
  start();
  if (attribute(cudaDevAttrCooperativeLaunch) == 0) not_here("no cooperative launches");
  int blocks = 0;
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, hand_round_grid, kThreads, 0));
  blocks *= processors();
  std::vector<Word> expected = seeded(static_cast<std::size_t>(blocks) * kThreads, 2);
  const std::size_t all = expected.size();
  Word* ring = new_memory<Word>(2 * all);
  CHECK(cudaMemcpy(ring, expected.data(), all * sizeof(Word), cudaMemcpyHostToDevice));
  CHECK(cudaDeviceSynchronize());  // as in Buffer
  int phases = kPhases;
  long loops = loops_of(20.0 / kPhases);
  const cudaStream_t stream = new_stream();
  while (run.next()) {
    void* arguments[] = {&ring, &phases, &loops};
    CHECK(cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(hand_round_grid), dim3(blocks), dim3(kThreads),
                                      arguments, 0, stream));
    expect(expected, static_cast<std::uint64_t>(kPhases) * static_cast<std::uint64_t>(loops), 0,
           [all](std::size_t i) { return (i + static_cast<std::size_t>(kPhases) * kThreads) % all; });
    run.wrong += count_wrong(ring, expected, stream);
  }
}

// In each pass every block takes the words from the shared memory of the next block of its cluster.
__global__ void hand_round_cluster(Word* data, int passes, long loops) {
  __shared__ Word box[2][kThreads];
  const cg::cluster_group cluster = cg::this_cluster();
  const unsigned next = (cluster.block_rank() + 1) % cluster.num_blocks();
  Word* const mine = data + static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  Word value = *mine;
  for (int pass = 0; pass < passes; ++pass) {
    Word* const own = &box[pass % 2][threadIdx.x];
    *own = advance(value, loops);
    cluster.sync();
    value = *cluster.map_shared_rank(own, next);
  }
  cluster.sync();  // no block ends while another one reads its shared memory
  *mine = value;
}

void clusters(Run& run) {
  constexpr int kCluster = 4;
  constexpr int kClusterPasses = 50;  // not a multiple of kCluster
  start();
  if (attribute(cudaDevAttrClusterLaunch) == 0) not_here("no thread block clusters");
  const int blocks = (2 * processors() + kCluster - 1) / kCluster * kCluster;
  Buffer buffer(blocks, 3);
  const Work work{kClusterPasses, loops_of(50.0 / kClusterPasses)};
  const cudaStream_t stream = new_stream();
  cudaLaunchAttribute attributes[1] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = kCluster;
  attributes[0].val.clusterDim.y = 1;
  attributes[0].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 1;
  while (run.next()) {
    CHECK(cudaLaunchKernelEx(&config, hand_round_cluster, buffer.device, work.passes, work.loops));
    expect(buffer.expected, work.all(), 0, [&work](std::size_t i) {
      const std::size_t block = i / kThreads, first = block / kCluster * kCluster;
      const std::size_t from = first + (block + static_cast<std::size_t>(work.passes)) % kCluster;
      return from * kThreads + i % kThreads;
    });
    run.wrong += buffer.wrong(stream);
  }
}

cudaGraphNode_t add_kernel(cudaGraph_t graph, const void* kernel, int blocks, int threads, void** arguments,
                           const std::vector<cudaGraphNode_t>& after = {}) {
  cudaKernelNodeParams parameters{};
  parameters.func = const_cast<void*>(kernel);
  parameters.gridDim = dim3(static_cast<unsigned>(blocks));
  parameters.blockDim = dim3(static_cast<unsigned>(threads));
  parameters.kernelParams = arguments;
  cudaGraphNode_t node = nullptr;
  CHECK(cudaGraphAddKernelNode(&node, graph, after.data(), after.size(), &parameters));
  return node;
}

cudaGraphNode_t add_churn(cudaGraph_t graph, Buffer& buffer, Work work,
                          const std::vector<cudaGraphNode_t>& after = {}) {
  const Word* extra = nullptr;
  void* arguments[] = {&buffer.device, &work.passes, &work.loops, &extra};
  return add_kernel(graph, reinterpret_cast<const void*>(churn), buffer.blocks, kThreads, arguments, after);
}

Word read_word(const Word* device, cudaStream_t stream) {
  Word word = 0;
  CHECK(cudaMemcpyAsync(&word, device, sizeof word, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  return word;
}

#if CUDART_VERSION >= 12040
__global__ void decide_again(Word* turns, Word turns_of_launch, cudaGraphConditionalHandle again) {
  cudaGraphSetConditional(again, ++*turns % turns_of_launch != 0 ? 1 : 0);
}

// In every second launch of the graph.
__global__ void decide_more(const Word* turns, Word turns_of_launch, cudaGraphConditionalHandle more) {
  cudaGraphSetConditional(more, *turns / turns_of_launch % 2);
}

cudaGraphNode_t add_conditional(cudaGraph_t graph, cudaGraphConditionalHandle handle, cudaGraphConditionalNodeType type,
                                const std::vector<cudaGraphNode_t>& after, cudaGraph_t* body) {
  cudaGraphNodeParams parameters{};
  parameters.type = cudaGraphNodeTypeConditional;
  parameters.conditional.handle = handle;
  parameters.conditional.type = type;
  parameters.conditional.size = 1;
  cudaGraphNode_t node = nullptr;
#if CUDART_VERSION >= 13000
  NEED(cudaGraphAddNode(&node, graph, after.data(), nullptr, after.size(), &parameters));
#else
  NEED(cudaGraphAddNode(&node, graph, after.data(), after.size(), &parameters));
#endif
  *body = parameters.conditional.phGraph_out[0];
  return node;
}

// While node (churn, decide_again), decide_more, if node (churn).
void conditional(Run& run) {
  constexpr Word kTurns = 6;
  start();
  Buffer buffer(2 * processors(), 4);
  const Work work = work_of(15);
  Word* turns = new_memory<Word>(1);
  Word turns_of_launch = kTurns;
  const cudaStream_t stream = new_stream();

  cudaGraph_t graph = nullptr, body = nullptr;
  CHECK(cudaGraphCreate(&graph, 0));
  cudaGraphConditionalHandle again{}, more{};
  NEED(cudaGraphConditionalHandleCreate(&again, graph, 1, cudaGraphCondAssignDefault));
  NEED(cudaGraphConditionalHandleCreate(&more, graph, 0, cudaGraphCondAssignDefault));
  const cudaGraphNode_t loop = add_conditional(graph, again, cudaGraphCondTypeWhile, {}, &body);
  const cudaGraphNode_t in_loop = add_churn(body, buffer, work);
  void* again_arguments[] = {&turns, &turns_of_launch, &again};
  add_kernel(body, reinterpret_cast<const void*>(decide_again), 1, 1, again_arguments, {in_loop});
  void* more_arguments[] = {&turns, &turns_of_launch, &more};
  const cudaGraphNode_t decided =
      add_kernel(graph, reinterpret_cast<const void*>(decide_more), 1, 1, more_arguments, {loop});
  add_conditional(graph, more, cudaGraphCondTypeIf, {decided}, &body);
  add_churn(body, buffer, work);
  cudaGraphExec_t executable = nullptr;
  NEED(cudaGraphInstantiate(&executable, graph, 0));

  while (run.next()) {
    CHECK(cudaGraphLaunch(executable, stream));
    for (Word i = 0; i < kTurns; ++i) expect_churn(buffer.expected, work);
    if (run.rounds % 2 != 0) expect_churn(buffer.expected, work);
    run.wrong += buffer.wrong(stream);
    run.wrong += read_word(turns, stream) != kTurns * static_cast<Word>(run.rounds) ? 1 : 0;
  }
}
#else
void conditional(Run&) { not_here("the toolkit is older than 12.4"); }
#endif

__global__ void launch_graphs(cudaGraphExec_t beside, cudaGraphExec_t behind, Word* refused) {
  if (cudaGraphLaunch(beside, cudaStreamGraphFireAndForget) != cudaSuccess) ++*refused;
  if (cudaGraphLaunch(behind, cudaStreamGraphTailLaunch) != cudaSuccess) ++*refused;
}

__global__ void launch_again(Word* turns, Word turns_of_launch, Word* refused) {
  if (++*turns % turns_of_launch == 0) return;
  if (cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch) != cudaSuccess) ++*refused;
}

cudaGraphExec_t for_device(cudaGraph_t graph, cudaStream_t stream) {
  cudaGraphExec_t executable = nullptr;
  NEED(cudaGraphInstantiate(&executable, graph, cudaGraphInstantiateFlagDeviceLaunch));
  NEED(cudaGraphUpload(executable, stream));
  CHECK(cudaStreamSynchronize(stream));
  return executable;
}

// The host launches a graph. Its kernel launches one graph beside it, and one behind it that launches itself again.
void devicelaunch(Run& run) {
  constexpr Word kTurns = 4;
  start();
  Buffer first(processors(), 5), second(processors(), 6);
  const Work work = work_of(15);
  Word* turns = new_memory<Word>(1);
  Word* refused = new_memory<Word>(1);
  Word turns_of_launch = kTurns;
  const cudaStream_t stream = new_stream();

  cudaGraph_t graph = nullptr;
  CHECK(cudaGraphCreate(&graph, 0));
  add_churn(graph, second, work);
  cudaGraphExec_t beside = for_device(graph, stream);

  CHECK(cudaGraphCreate(&graph, 0));
  void* again_arguments[] = {&turns, &turns_of_launch, &refused};
  const cudaGraphNode_t again = add_kernel(graph, reinterpret_cast<const void*>(launch_again), 1, 1, again_arguments);
  add_churn(graph, first, work, {again});
  cudaGraphExec_t behind = for_device(graph, stream);

  CHECK(cudaGraphCreate(&graph, 0));
  void* arguments[] = {&beside, &behind, &refused};
  const cudaGraphNode_t launches = add_kernel(graph, reinterpret_cast<const void*>(launch_graphs), 1, 1, arguments);
  add_churn(graph, first, work, {launches});
  cudaGraphExec_t executable = nullptr;
  NEED(cudaGraphInstantiate(&executable, graph, 0));

  while (run.next()) {
    CHECK(cudaGraphLaunch(executable, stream));
    for (Word i = 0; i < 1 + kTurns; ++i) expect_churn(first.expected, work);
    expect_churn(second.expected, work);
    run.wrong += first.wrong(stream);
    run.wrong += second.wrong(stream);
    run.wrong += read_word(turns, stream) != kTurns * static_cast<Word>(run.rounds) ? 1 : 0;
    run.wrong += read_word(refused, stream) != 0 ? 1 : 0;
  }
}

void CUDART_CB increment(void* argument) {
  volatile Word* const word = static_cast<volatile Word*>(argument);
  *word = *word + 1;
}

// Each kernel adds a word of host memory. A host function increments the word between two kernels.
void callback(Run& run) {
  constexpr int kLinks = 6;
  start();
  Buffer buffer(2 * processors(), 7);
  const Work work = work_of(20);
  const cudaStream_t stream = new_stream();
  void* memory = nullptr;
  CHECK(cudaHostAlloc(&memory, sizeof(Word), cudaHostAllocMapped));
  volatile Word* const word = static_cast<volatile Word*>(memory);
  *word = 0;
  void* seen_by_gpu = nullptr;
  CHECK(cudaHostGetDevicePointer(&seen_by_gpu, memory, 0));
  Word said = 0;
  while (run.next()) {
    for (int i = 0; i < kLinks; ++i) {
      buffer.launch(work, stream, static_cast<const Word*>(seen_by_gpu), said++);
      CHECK(cudaLaunchHostFunc(stream, increment, memory));
    }
    run.wrong += buffer.wrong(stream);
    run.wrong += *word != said ? 1 : 0;
  }
}

CUcontext new_context() {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CHECK(cuDeviceGet(&device, 0));
#if CUDA_VERSION >= 13000
  CHECK(cuCtxCreate(&context, nullptr, 0, device));
#else
  CHECK(cuCtxCreate(&context, 0, device));
#endif
  return context;
}

// The primary context and two contexts made with the driver's interface have kernels at the same time.
void contexts(Run& run) {
  start();
  constexpr int kContexts = 3;
  CUcontext primary = nullptr;
  CHECK(cuCtxGetCurrent(&primary));
  const CUcontext all[kContexts] = {primary, new_context(), new_context()};
  std::vector<Buffer> buffers;
  std::vector<cudaStream_t> streams;
  for (const CUcontext context : all) {
    CHECK(cuCtxSetCurrent(context));
    buffers.emplace_back(processors(), static_cast<Word>(8 + buffers.size()));
    streams.push_back(new_stream());
  }
  const Work work = work_of(30);
  while (run.next()) {
    for (std::size_t i = 0; i < kContexts; ++i) {
      CHECK(cuCtxSetCurrent(all[i]));
      buffers[i].launch(work, streams[i]);
    }
    for (std::size_t i = 0; i < kContexts; ++i) {
      CHECK(cuCtxSetCurrent(all[i]));
      run.wrong += buffers[i].wrong(streams[i]);
    }
  }
  for (std::size_t i = 1; i < kContexts; ++i) CHECK(cuCtxDestroy(all[i]));
  CHECK(cuCtxSetCurrent(primary));
}

#if CUDA_VERSION >= 12050
// A green context with half of the processors has kernels at the same time as the primary context.
void green(Run& run) {
  start();
  CUdevice device = 0;
  CHECK(cuDeviceGet(&device, 0));
  CUdevResource all{}, part{}, rest{};
  unsigned groups = 1;
  NEED(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM));
  NEED(cuDevSmResourceSplitByCount(&part, &groups, &all, &rest, 0, all.sm.smCount / 2));
  CUdevResourceDesc description = nullptr;
  NEED(cuDevResourceGenerateDesc(&description, &part, 1));
  CUgreenCtx context = nullptr;
  NEED(cuGreenCtxCreate(&context, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
  CUstream stream = nullptr;
  NEED(cuGreenCtxStreamCreate(&stream, context, CU_STREAM_NON_BLOCKING, 0));
  const cudaStream_t other_stream = new_stream();
  Buffer buffer(2 * processors(), 11), other(2 * processors(), 12);
  const Work work = work_of(30);
  while (run.next()) {
    buffer.launch(work, stream);
    other.launch(work, other_stream);
    run.wrong += buffer.wrong(stream);
    run.wrong += other.wrong(other_stream);
  }
  CHECK(cuStreamDestroy(stream));
  CHECK(cuGreenCtxDestroy(context));
}
#else
void green(Run&) { not_here("the toolkit is older than 12.5"); }
#endif

// Both GPUs have kernels, and then exchange their words.
void gpus(Run& run) {
  constexpr int kGpus = 2;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < kGpus) not_here("one GPU");
  open_gpu(1);
  start();
  std::vector<Buffer> buffers;
  Word* arrived[kGpus] = {};
  cudaStream_t streams[kGpus] = {};
  cudaEvent_t computed[kGpus] = {}, copied[kGpus] = {};
  for (int i = 0; i < kGpus; ++i) {
    CHECK(cudaSetDevice(i));
    int can = 0;
    CHECK(cudaDeviceCanAccessPeer(&can, i, 1 - i));
    if (can != 0) CHECK(cudaDeviceEnablePeerAccess(1 - i, 0));
    buffers.emplace_back(2 * processors(), static_cast<Word>(13 + i));
    arrived[i] = new_memory<Word>(buffers.back().expected.size());
    streams[i] = new_stream();
    CHECK(cudaEventCreateWithFlags(&computed[i], cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&copied[i], cudaEventDisableTiming));
  }
  const Work work = work_of(40);
  while (run.next()) {
    for (int i = 0; i < kGpus; ++i) {
      CHECK(cudaSetDevice(i));
      buffers[static_cast<std::size_t>(i)].launch(work, streams[i]);
      CHECK(cudaEventRecord(computed[i], streams[i]));
    }
    for (int i = 0; i < kGpus; ++i) {
      CHECK(cudaSetDevice(i));
      CHECK(cudaStreamWaitEvent(streams[i], computed[1 - i], 0));
      const Buffer& from = buffers[static_cast<std::size_t>(1 - i)];
      CHECK(cudaMemcpyPeerAsync(arrived[i], i, from.device, 1 - i, from.bytes(), streams[i]));
      CHECK(cudaEventRecord(copied[i], streams[i]));
    }
    for (int i = 0; i < kGpus; ++i) {
      CHECK(cudaSetDevice(i));
      CHECK(cudaStreamWaitEvent(streams[i], copied[1 - i], 0));
      const Buffer& own = buffers[static_cast<std::size_t>(i)];
      CHECK(cudaMemcpyAsync(own.device, arrived[i], own.bytes(), cudaMemcpyDeviceToDevice, streams[i]));
    }
    std::swap(buffers[0].expected, buffers[1].expected);
    for (int i = 0; i < kGpus; ++i) {
      CHECK(cudaSetDevice(i));
      run.wrong += buffers[static_cast<std::size_t>(i)].wrong(streams[i]);
    }
  }
}

void arm_alarm(double seconds) { ::alarm(static_cast<unsigned>(seconds) + kAlarmAfter); }

// Waits for the child. True: it has exited with 0. The child's own alarm bounds the wait.
bool has_done_well(pid_t child) {
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

long churn_for(double seconds, Word seed) {
  Run run{seconds};
  start();
  Buffer buffer(2 * processors(), seed);
  const cudaStream_t stream = new_stream();
  while (run.next()) {
    buffer.launch(work_of(40), stream);
    run.wrong += buffer.wrong(stream);
  }
  return run.wrong;
}

// First the program forks before it uses CUDA, and parent and child both use the GPU. Then the parent forks while its
// kernels run: one child ends at once, and the other executes this program anew.
void forks(Run& run) {
  constexpr int kKernels = 10;
  const double half = run.seconds / 2;
  run.seconds = half;
  const pid_t child = ::fork();
  if (child < 0) fail("fork");
  if (child == 0) {
    arm_alarm(half);
    std::exit(churn_for(half, 15) == 0 ? 0 : 1);
  }
  run.wrong += churn_for(half, 16);
  run.wrong += has_done_well(child) ? 0 : 1;

  Buffer buffer(2 * processors(), 17);
  const cudaStream_t stream = new_stream();
  while (run.next()) {
    for (int i = 0; i < kKernels; ++i) buffer.launch(work_of(40), stream);
    ::usleep(30'000);
    const pid_t ends = ::fork();
    if (ends == 0) ::_exit(0);
    const pid_t anew = ::fork();
    if (anew == 0) {
      ::execl("/proc/self/exe", "frozen", "atomic", "0.2", "quiet", static_cast<char*>(nullptr));
      ::_exit(1);
    }
    if (ends < 0 || anew < 0) fail("fork");
    run.wrong += has_done_well(ends) ? 0 : 1;
    run.wrong += buffer.wrong(stream);
    run.wrong += has_done_well(anew) ? 0 : 1;
  }
}

__host__ __device__ Word pattern(std::size_t i, Word salt) { return static_cast<Word>(i) * 0x9e3779b1u + salt; }

__global__ void write_pattern(Word* data, std::size_t count, Word salt) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
    data[i] = pattern(i, salt);
}

__global__ void compare_pattern(const Word* data, std::size_t count, Word salt, Word* wrong) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    if (data[i] != pattern(i, salt)) atomicAdd(wrong, 1);
  }
}

Word* new_pinned(std::size_t count) {
  void* memory = nullptr;
  CHECK(cudaHostAlloc(&memory, count * sizeof(Word), cudaHostAllocDefault));
  return static_cast<Word*>(memory);
}

// Copies of pinned and of pageable memory in both directions, at the same time as kernels.
void copies(Run& run) {
  constexpr std::size_t kPinned = std::size_t{32} << 20, kPageable = std::size_t{8} << 20;  // words
  constexpr int kTimes = 8;
  start();
  Word* const up = new_pinned(kPinned);
  Word* const down = new_pinned(kPinned);
  std::vector<Word> pageable_up(kPageable), pageable_down(kPageable);
  Word* const device_up = new_memory<Word>(kPinned);
  Word* const device_down = new_memory<Word>(kPinned);
  Word* const device_pageable = new_memory<Word>(kPageable);
  Word* const wrong = new_memory<Word>(1);
  Buffer buffer(processors(), 18);
  const Work work = work_of(30);
  const cudaStream_t ups = new_stream(), downs = new_stream(), pageables = new_stream(), kernels = new_stream();
  while (run.next()) {
    const Word salt = 3 * static_cast<Word>(run.rounds);
    for (std::size_t i = 0; i < kPinned; ++i) up[i] = pattern(i, salt);
    for (std::size_t i = 0; i < kPageable; ++i) pageable_up[i] = pattern(i, salt + 1);
    std::memset(down, 0, kPinned * sizeof(Word));
    std::fill(pageable_down.begin(), pageable_down.end(), 0);

    buffer.launch(work, kernels);
    write_pattern<<<processors(), kThreads, 0, downs>>>(device_down, kPinned, salt + 2);
    CHECK(cudaGetLastError());
    for (int i = 0; i < kTimes; ++i) {
      CHECK(cudaMemcpyAsync(device_up, up, kPinned * sizeof(Word), cudaMemcpyHostToDevice, ups));
      CHECK(cudaMemcpyAsync(down, device_down, kPinned * sizeof(Word), cudaMemcpyDeviceToHost, downs));
    }
    compare_pattern<<<processors(), kThreads, 0, ups>>>(device_up, kPinned, salt, wrong);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpyAsync(device_pageable, pageable_up.data(), kPageable * sizeof(Word), cudaMemcpyHostToDevice,
                          pageables));
    compare_pattern<<<processors(), kThreads, 0, pageables>>>(device_pageable, kPageable, salt + 1, wrong);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpyAsync(pageable_down.data(), device_pageable, kPageable * sizeof(Word), cudaMemcpyDeviceToHost,
                          pageables));
    for (const cudaStream_t stream : {ups, downs, pageables}) CHECK(cudaStreamSynchronize(stream));
    run.wrong += buffer.wrong(kernels);
    for (std::size_t i = 0; i < kPinned; ++i) run.wrong += down[i] != pattern(i, salt + 2) ? 1 : 0;
    for (std::size_t i = 0; i < kPageable; ++i) run.wrong += pageable_down[i] != pattern(i, salt + 1) ? 1 : 0;
  }
  run.wrong += static_cast<long>(read_word(wrong, kernels));
}

void streams(Run& run) {
  constexpr int kStreams = 64, kKernels = 3;
  start();
  std::vector<Buffer> buffers;
  std::vector<cudaStream_t> all;
  for (int i = 0; i < kStreams; ++i) {
    buffers.emplace_back(2, static_cast<Word>(20 + i));
    all.push_back(new_stream());
  }
  const Work work = work_of(20);
  while (run.next()) {
    for (int kernel = 0; kernel < kKernels; ++kernel) {
      for (std::size_t i = 0; i < kStreams; ++i) buffers[i].launch(work, all[i]);
    }
    for (std::size_t i = 0; i < kStreams; ++i) run.wrong += buffers[i].wrong(all[i]);
  }
}

__global__ void walk(Word* data, std::size_t count, long loops) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
    data[i] = advance(data[i], loops);
}

// The host writes all words before each kernel, so the kernel finds all of the memory on the host.
void touch_in_turn(Run& run, Word* data, std::size_t count) {
  calibrate();
  const int blocks = 2 * processors();
  const double words_of_thread = static_cast<double>(count) / (blocks * kThreads);
  const long loops = loops_of(50 / words_of_thread);
  const Affine map = steps(static_cast<std::uint64_t>(loops));
  const cudaStream_t stream = new_stream();
  while (run.next()) {
    const Word salt = static_cast<Word>(run.rounds);
    for (std::size_t i = 0; i < count; ++i) data[i] = pattern(i, salt);
    walk<<<blocks, kThreads, 0, stream>>>(data, count, loops);
    CHECK(cudaGetLastError());
    CHECK(cudaStreamSynchronize(stream));
    for (std::size_t i = 0; i < count; ++i) run.wrong += data[i] != map(pattern(i, salt)) ? 1 : 0;
  }
}

// Allocates before the first kernel, so that gpumux knows of the memory at the end of the process's first turn.
void managed(Run& run) {
  constexpr std::size_t kCount = std::size_t{8} << 20;
  open_gpu();
  if (attribute(cudaDevAttrManagedMemory) == 0) not_here("no managed memory");
  void* memory = nullptr;
  NEED(cudaMallocManaged(&memory, kCount * sizeof(Word)));
  touch_in_turn(run, static_cast<Word*>(memory), kCount);
  CHECK(cudaFree(memory));
}

void hmm(Run& run) {
  constexpr std::size_t kCount = std::size_t{2} << 20;
  open_gpu();
  if (attribute(cudaDevAttrPageableMemoryAccess) == 0) not_here("kernels do not reach memory of malloc");
  Word* const memory = static_cast<Word*>(std::malloc(kCount * sizeof(Word)));
  if (memory == nullptr) fail("malloc");
  touch_in_turn(run, memory, kCount);
  std::free(memory);
}

// Each kernel works in memory of the pool, which the stream allocates before it and frees behind it.
void asyncalloc(Run& run) {
  constexpr std::size_t kBytes = std::size_t{32} << 20;
  constexpr int kTimes = 4;
  start();
  if (attribute(cudaDevAttrMemoryPoolsSupported) == 0) not_here("no memory pools");
  Buffer buffer(2 * processors(), 90);
  const Work work = work_of(25);
  const cudaStream_t stream = new_stream();
  while (run.next()) {
    for (int i = 0; i < kTimes; ++i) {
      void* memory = nullptr;
      CHECK(cudaMallocAsync(&memory, kBytes, stream));
      CHECK(cudaMemsetAsync(memory, i, kBytes, stream));
      CHECK(cudaMemcpyAsync(memory, buffer.device, buffer.bytes(), cudaMemcpyDeviceToDevice, stream));
      churn<<<buffer.blocks, kThreads, 0, stream>>>(static_cast<Word*>(memory), work.passes, work.loops, nullptr);
      CHECK(cudaGetLastError());
      expect_churn(buffer.expected, work);
      CHECK(cudaMemcpyAsync(buffer.device, memory, buffer.bytes(), cudaMemcpyDeviceToDevice, stream));
      CHECK(cudaFreeAsync(memory, stream));
    }
    run.wrong += buffer.wrong(stream);
  }
}

// ---- two processes that share memory --------------------------------------------------------------

__device__ Count nanoseconds() {
  Count now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// A kernel of the other process writes the word. The wait includes the time for which this kernel is frozen.
__global__ void wait_for_word(const volatile Word* word, Word value, Word* late) {
  const Count begin = nanoseconds();
  while (*word != value) {
    if (nanoseconds() - begin > kMostWaitNs) {
      ++*late;
      return;
    }
    __nanosleep(1000);
  }
  __threadfence_system();
}

__global__ void write_word(volatile Word* word, Word value) {
  __threadfence_system();
  *word = value;
}

// Offsets in the shared memory, in words. The data begin at kData.
constexpr std::size_t kAsked = 0, kAnswered = 64, kLateA = 128, kLateB = 192, kData = 1024;
constexpr int kSharedBlocks = 128;
constexpr Word kSharedSeed = 91;
constexpr char kRound = 'r', kRecorded = 'e', kEnd = 'q';

struct Shared {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
  Work work;
};

void send_all(int socket, const void* data, std::size_t size) {
  if (::send(socket, data, size, MSG_NOSIGNAL) != static_cast<ssize_t>(size)) fail("the other process is gone");
}

// False: the other process has closed its end.
bool receive_all(int socket, void* data, std::size_t size) {
  const ssize_t got = ::recv(socket, data, size, MSG_WAITALL);
  if (got == 0) return false;
  if (got != static_cast<ssize_t>(size)) fail("the other process says nothing");
  return true;
}

// Process B. In each round its kernels wait for A's word, churn the shared data and answer with a word. Then B's stream
// waits for the event that A records behind its own kernels, and B compares the data.
int follow(int socket) {
  Shared shared{};
  if (!receive_all(socket, &shared, sizeof shared)) return 0;
  open_gpu();
  void* memory = nullptr;
  cudaEvent_t event = nullptr;
  CHECK(cudaIpcOpenMemHandle(&memory, shared.memory, cudaIpcMemLazyEnablePeerAccess));
  CHECK(cudaIpcOpenEventHandle(&event, shared.event));
  Word* const words = static_cast<Word*>(memory);
  std::vector<Word> expected = seeded(static_cast<std::size_t>(kSharedBlocks) * kThreads, kSharedSeed);
  const cudaStream_t stream = new_stream();
  Word round = 0;
  char command = 0;
  while (receive_all(socket, &command, 1) && command == kRound) {
    ++round;
    wait_for_word<<<1, 1, 0, stream>>>(words + kAsked, round, words + kLateB);
    churn<<<kSharedBlocks, kThreads, 0, stream>>>(words + kData, shared.work.passes, shared.work.loops, nullptr);
    write_word<<<1, 1, 0, stream>>>(words + kAnswered, round);
    CHECK(cudaGetLastError());
    if (!receive_all(socket, &command, 1) || command != kRecorded) fail("A did not record its event");
    CHECK(cudaStreamWaitEvent(stream, event, 0));
    for (int i = 0; i < 3; ++i) expect_churn(expected, shared.work);
    const long wrong = count_wrong(words + kData, expected, stream);
    send_all(socket, &wrong, sizeof wrong);
  }
  CHECK(cudaIpcCloseMemHandle(memory));
  return 0;
}

// Process A. In each round its kernels churn the shared data, write a word, wait for B's answer and churn the data once
// more.
void ipc(Run& run) {
  int sockets[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) fail("socketpair");
  const timeval patience{20, 0};
  for (const int socket : sockets) ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  const pid_t child = ::fork();
  if (child < 0) fail("fork");
  if (child == 0) {
    arm_alarm(run.seconds);
    ::close(sockets[0]);
    std::exit(follow(sockets[1]));
  }
  ::close(sockets[1]);
  start();
  Shared shared{};
  shared.work = work_of(20);
  const std::vector<Word> data = seeded(static_cast<std::size_t>(kSharedBlocks) * kThreads, kSharedSeed);
  Word* const words = new_memory<Word>(kData + data.size());
  CHECK(cudaMemcpy(words + kData, data.data(), data.size() * sizeof(Word), cudaMemcpyHostToDevice));
  CHECK(cudaDeviceSynchronize());  // as in Buffer
  cudaEvent_t event = nullptr;
  NEED(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
  NEED(cudaIpcGetMemHandle(&shared.memory, words));
  NEED(cudaIpcGetEventHandle(&shared.event, event));
  CHECK(cudaDeviceSynchronize());
  send_all(sockets[0], &shared, sizeof shared);
  const cudaStream_t stream = new_stream();
  Word late = 0;
  while (late == 0 && run.next()) {
    const Word round = static_cast<Word>(run.rounds);
    send_all(sockets[0], &kRound, 1);
    churn<<<kSharedBlocks, kThreads, 0, stream>>>(words + kData, shared.work.passes, shared.work.loops, nullptr);
    write_word<<<1, 1, 0, stream>>>(words + kAsked, round);
    wait_for_word<<<1, 1, 0, stream>>>(words + kAnswered, round, words + kLateA);
    churn<<<kSharedBlocks, kThreads, 0, stream>>>(words + kData, shared.work.passes, shared.work.loops, nullptr);
    CHECK(cudaGetLastError());
    CHECK(cudaEventRecord(event, stream));
    send_all(sockets[0], &kRecorded, 1);
    long wrong = 0;
    if (!receive_all(sockets[0], &wrong, sizeof wrong)) fail("process B has ended");
    run.wrong += wrong;
    late = read_word(words + kLateA, stream) + read_word(words + kLateB, stream);
  }
  if (late != 0) std::fprintf(stderr, "ipc: %u kernels waited too long for a kernel of the other process\n", late);
  run.wrong += static_cast<long>(late);
  send_all(sockets[0], &kEnd, 1);
  run.wrong += has_done_well(child) ? 0 : 1;
}

// One kernel lasts much longer than anybody waits.
void long_kernel(Run& run) {
  start();
  Buffer buffer(2 * processors(), 23);
  const cudaStream_t stream = new_stream();
  while (run.next()) {
    buffer.launch(work_of(20'000), stream);
    run.wrong += buffer.wrong(stream);
  }
}

void hold(Run& run) {
  while (run.next()) ::usleep(10'000);
}

// Memory that no kernel of the case uses. No two words of a block are alike.
struct Ballast {
  explicit Ballast(std::size_t bytes) : count(bytes / sizeof(Word)) {
    if (count == 0) return;
    start();
    data = new_memory<Word>(count);
    write_pattern<<<processors(), kThreads>>>(data, count, kSalt);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
  }
  long wrong() const {
    if (count == 0) return 0;
    CHECK(cudaSetDevice(0));
    Word* const found = new_memory<Word>(1);
    compare_pattern<<<processors(), kThreads>>>(data, count, kSalt, found);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    return static_cast<long>(read_word(found, nullptr));
  }
  static constexpr Word kSalt = 41;
  std::size_t count;
  Word* data = nullptr;
};

struct Case {
  const char* name;
  void (*function)(Run&);
};

constexpr Case kCases[] = {
    {"atomic", atomic},
    {"conditional", conditional},
    {"devicelaunch", devicelaunch},
    {"cooperative", cooperative},
    {"clusters", clusters},
    {"callback", callback},
    {"contexts", contexts},
    {"green", green},
    {"gpus", gpus},
    {"fork", forks},
    {"copies", copies},
    {"streams", streams},
    {"managed", managed},
    {"hmm", hmm},
    {"async-alloc", asyncalloc},
    {"ipc", ipc},
    {"hold", hold},
    {"long", long_kernel},
};

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) {
    std::fprintf(stderr, "usage: frozen CASE SECONDS [quiet | GIB]\n");
    return 2;
  }
  g_case = arguments[1];
  Run run{std::atof(arguments[2])};
  const bool is_quiet = count > 3 && std::strcmp(arguments[3], "quiet") == 0;
  arm_alarm(run.seconds);
  std::signal(SIGTERM, [](int) { g_is_stopped = 1; });
  for (const Case& one : kCases) {
    if (g_case != one.name) continue;
    const Ballast ballast(count > 3 ? std::size_t(std::atof(arguments[3]) * (1 << 30)) : 0);
    one.function(run);
    run.wrong += ballast.wrong();
    if (!is_quiet) {
      std::printf("%s: rounds=%ld wrong=%ld ms=%.1f\n", one.name, run.rounds, run.wrong,
                  seconds_since(run.begin) * 1e3 / static_cast<double>(run.rounds));
    }
    return run.wrong == 0 ? 0 : 1;
  }
  std::fprintf(stderr, "frozen: there is no case %s\n", g_case.c_str());
  return 2;
}
