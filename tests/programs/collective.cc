// SPDX-License-Identifier: Apache-2.0
// Rank i of n, each on a GPU of its own: in every round each rank's kernel waits on its GPU until the next rank's
// kernel of that round runs too, as collectives do, and then works a little. Rounds are launched ahead, and waited for
// every few rounds.
//
// --small n                so many small kernels in each round, as a training step has
// --host-us n              what the host does before each of them
// --drift-us n             at most so long the host sleeps before each round: ranks run ahead of each other
// --load-mib n             memory that each rank has besides
// --mapped-mib n           each rank's memory lies in so much that the program maps by itself, for all GPUs to reach
// --ranks 0,1 --gpus 0,1   all ranks in this process, a thread each, GPUs reached as peers
// --meet DIR --rank i      one rank in this process; ranks find each other's flags through files in DIR with IPC
// handles
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "tests/programs/gpu.h"

namespace gpumux::programs {
namespace {

struct Rank {
  int number = 0;
  int gpu = 0;
  CUcontext context = nullptr;
  CUdeviceptr flag = 0;       // own, set to the round's number
  CUdeviceptr next_flag = 0;  // the next rank's
  CUdeviceptr data = 0;
  CUdeviceptr load = 0;
};

constexpr std::uint64_t kElements = 4096;

// By the rights of a mapping, and not by peer access.
CUdeviceptr map_for_all(const Api& api, const std::vector<int>& gpus, int own, std::size_t bytes) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, own};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  GPUMUX_CALL(api.cuMemCreate(&handle, bytes, &properties, 0));
  GPUMUX_CALL(api.cuMemAddressReserve(&address, bytes, 0, 0, 0));
  GPUMUX_CALL(api.cuMemMap(address, bytes, 0, handle, 0));
  GPUMUX_CALL(api.cuMemRelease(handle));
  std::vector<CUmemAccessDesc> rights;
  for (const int gpu : gpus) rights.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, gpu}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  GPUMUX_CALL(api.cuMemSetAccess(address, bytes, rights.data(), rights.size()));
  return address;
}

void open(const Api& api, const Options& options, Rank& rank) {
  CUdevice device = 0;
  GPUMUX_CALL(api.cuDeviceGet(&device, rank.gpu));
  GPUMUX_CALL(api.cuDevicePrimaryCtxRetain(&rank.context, device));
  GPUMUX_CALL(api.cuCtxSetCurrent(rank.context));
  if (const std::size_t bytes = options.number("mapped-mib") << 20; bytes != 0) {
    rank.flag = map_for_all(api, options.list("gpus"), rank.gpu, bytes);
    rank.data = rank.flag + bytes / 2;
  } else {
    GPUMUX_CALL(api.cuMemAlloc_v2(&rank.flag, 4));
    GPUMUX_CALL(api.cuMemAlloc_v2(&rank.data, kElements * 4));
  }
  if (const std::size_t bytes = options.number("load-mib") << 20; bytes != 0) {
    GPUMUX_CALL(api.cuMemAlloc_v2(&rank.load, bytes));
    GPUMUX_CALL(api.cuMemsetD32_v2(rank.load, static_cast<unsigned>(rank.number) + 7, bytes / 4));
  }
  GPUMUX_CALL(api.cuMemsetD32_v2(rank.flag, 0, 1));
  GPUMUX_CALL(api.cuMemsetD32_v2(rank.data, static_cast<unsigned>(rank.number), kElements));
  GPUMUX_CALL(api.cuCtxSynchronize());
}

std::string handle_path(const Options& options, int rank) {
  return options.text("meet") + "/rank" + std::to_string(rank);
}

void publish(const Api& api, const Options& options, const Rank& rank) {
  CUipcMemHandle handle{};
  GPUMUX_CALL(api.cuIpcGetMemHandle(&handle, rank.flag));
  const std::string path = handle_path(options, rank.number);
  const int fd = ::open((path + ".new").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0 || ::write(fd, &handle, sizeof handle) != static_cast<ssize_t>(sizeof handle))
    wrong("cannot write " + path);
  ::close(fd);
  if (::rename((path + ".new").c_str(), path.c_str()) != 0) wrong("cannot name " + path);
}

void find_next(const Api& api, const Options& options, Rank& rank, int ranks) {
  const std::string path = handle_path(options, (rank.number + 1) % ranks);
  int fd = -1;
  while ((fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC)) < 0) ::usleep(1000);
  CUipcMemHandle handle{};
  if (::read(fd, &handle, sizeof handle) != static_cast<ssize_t>(sizeof handle)) wrong("cannot read " + path);
  ::close(fd);
  GPUMUX_CALL(api.cuIpcOpenMemHandle_v2(&rank.next_flag, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}

void work_on_host(std::uint64_t us) {
  const std::uint64_t end = now_ns() + us * 1000;
  while (us != 0 && now_ns() < end) {
  }
}

void run(const Api& api, const Options& options, SameCount& count, Rank& rank) {
  GPUMUX_CALL(api.cuCtxSetCurrent(rank.context));
  const Kernels kernels = load_kernels(api);
  CUstream stream = nullptr;
  GPUMUX_CALL(api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const std::uint64_t step_ns = options.number("step-us") * 1000;
  const auto small = static_cast<std::uint32_t>(options.number("small"));
  const std::uint64_t host_us = options.number("host-us");
  const std::uint64_t drift_us = options.number("drift-us");
  std::minstd_rand random(static_cast<unsigned>(rank.number) + 1);
  std::uint32_t rounds = 0;
  while (count.goes_on(rounds)) {
    const std::uint32_t round = ++rounds;
    if (drift_us != 0) ::usleep(static_cast<unsigned>(random() % drift_us));
    launch(api, kernels.rendezvous, stream, false, rank.flag, rank.next_flag, round);
    for (std::uint32_t i = 0; i < small; ++i) {
      work_on_host(host_us);
      launch(api, kernels.increment, stream, false, rank.data, kElements);
    }
    if (step_ns != 0) launch(api, kernels.spin, stream, false, step_ns);
    if (round % options.number("ahead") == 0) {
      GPUMUX_CALL(api.cuStreamSynchronize(stream));
      say("round rank=%d n=%u t=%llu", rank.number, round, static_cast<unsigned long long>(now_ns()));
    }
  }
  GPUMUX_CALL(api.cuStreamSynchronize(stream));
  std::vector<std::uint32_t> data(kElements);
  GPUMUX_CALL(api.cuMemcpyDtoH_v2(data.data(), rank.data, kElements * 4));
  for (const std::uint32_t element : data) {
    if (element != static_cast<std::uint32_t>(rank.number) + rounds * small)
      wrong("rank " + std::to_string(rank.number) + " has a wrong element");
  }
  std::vector<std::uint32_t> load((options.number("load-mib") << 20) / 4);
  if (!load.empty()) GPUMUX_CALL(api.cuMemcpyDtoH_v2(load.data(), rank.load, load.size() * 4));
  for (const std::uint32_t element : load) {
    if (element != static_cast<std::uint32_t>(rank.number) + 7)
      wrong("rank " + std::to_string(rank.number) + " has lost what it had");
  }
  say("done rank=%d t=%llu", rank.number, static_cast<unsigned long long>(now_ns()));
}

}  // namespace
}  // namespace gpumux::programs

int main(int argc, char** argv) {
  using namespace gpumux::programs;
  const Options options(argc, argv,
                        {{"ranks", "0,1"},
                         {"gpus", "0,1"},
                         {"meet", ""},
                         {"rank", "0"},
                         {"load-mib", "0"},
                         {"mapped-mib", "0"},
                         {"of", "2"},
                         {"rounds", "50"},
                         {"ahead", "5"},
                         {"small", "1"},
                         {"host-us", "0"},
                         {"drift-us", "0"},
                         {"step-us", "200"}});
  const Api api = open_driver(options.door());
  GPUMUX_CALL(api.cuInit(0));
  const std::vector<int> gpus = options.list("gpus");
  SameCount count(options, options.number("rounds"));
  if (!options.text("meet").empty()) {
    const int number = static_cast<int>(options.number("rank"));
    Rank rank{.number = number, .gpu = gpus[static_cast<std::size_t>(number) % gpus.size()]};
    open(api, options, rank);
    publish(api, options, rank);
    find_next(api, options, rank, static_cast<int>(options.number("of")));
    say("ready rank=%d", number);
    run(api, options, count, rank);
    // The next rank may still wait for our flag, which is this process's memory.
    const std::string done = handle_path(options, number) + ".done";
    ::close(::open(done.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    for (int other = 0; other < static_cast<int>(options.number("of")); ++other) {
      while (::access((handle_path(options, other) + ".done").c_str(), F_OK) != 0) ::usleep(1000);
    }
    return 0;
  }
  std::vector<Rank> ranks;
  for (const int number : options.list("ranks")) {
    ranks.push_back({.number = number, .gpu = gpus[static_cast<std::size_t>(number) % gpus.size()]});
    open(api, options, ranks.back());
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Rank& next = ranks[(i + 1) % ranks.size()];
    ranks[i].next_flag = next.flag;
    GPUMUX_CALL(api.cuCtxSetCurrent(ranks[i].context));
    if (next.gpu != ranks[i].gpu && options.number("mapped-mib") == 0)
      GPUMUX_CALL(api.cuCtxEnablePeerAccess(next.context, 0));
  }
  say("ready ranks=%zu", ranks.size());
  std::vector<std::thread> threads;
  for (Rank& rank : ranks) threads.emplace_back([&] { run(api, options, count, rank); });
  for (std::thread& thread : threads) thread.join();
  say("finished");
  return 0;
}
