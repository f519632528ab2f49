// SPDX-License-Identifier: Apache-2.0
// What gpumux takes for granted of the driver and no manual promises: asked of the real one. Run it without gpumux.
// Prints one line `RESULT {json}`, true for what holds.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>

#include "tests/gpu/programs/driver_program.h"

namespace gpumux::tests {
namespace {

constexpr std::uint64_t kSpinNs = 100'000'000;  // long beside starting a thread

// Whether the legacy default stream is busy exactly as long as work on another thread's stream is. `ended`: that thread
// is gone while its work goes on.
bool legacy_answers_for(const Program& program, cuda::CUstream stream, bool ended) {
  const cuda::Driver& driver = program.driver;
  std::atomic<bool> launched{false};
  std::thread other([&] {
    check(driver.cuCtxSetCurrent(program.context), "cuCtxSetCurrent");
    check(launch_spin(program, kSpinNs, stream), "launch");
    launched = true;
    if (!ended) check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
  });
  if (ended) other.join();
  const std::int64_t start = now_ns();
  while (!launched) sleep_ns(10'000);
  bool was_busy = false;
  while (driver.cuStreamQuery(nullptr) == cuda::CUDA_ERROR_NOT_READY) {
    was_busy = true;
    sleep_ns(100'000);
  }
  const std::int64_t busy_ns = now_ns() - start;
  if (!ended) other.join();
  check(driver.cuCtxSynchronize(), "cuCtxSynchronize");
  return was_busy && busy_ns > static_cast<std::int64_t>(kSpinNs) * 9 / 10;
}

// The library's answers about memory that it allocates in the place of the driver's pools (shim/hooks/hooks_pool.cc).
struct PoolFacts {
  bool no_context = false;
  bool no_ipc = false;
  bool no_graph_frees_it = false;
  bool freed_once = false;
};

PoolFacts ask_pools(const Program& program, cuda::CUstream stream) {
  const cuda::Driver& driver = program.driver;
  PoolFacts facts;
  cuda::CUdeviceptr data = 0;
  check(driver.cuMemAllocAsync(&data, 5'000'000, stream), "cuMemAllocAsync");
  auto context = program.context;
  facts.no_context =
      driver.cuPointerGetAttribute(&context, cuda::CU_POINTER_ATTRIBUTE_CONTEXT, data) == cuda::CUDA_SUCCESS &&
      context == nullptr;
  cuda::CUipcMemHandle handle{};
  facts.no_ipc = driver.cuIpcGetMemHandle(&handle, data) == cuda::CUDA_ERROR_INVALID_VALUE;
  cuda::CUgraph graph = nullptr;
  check(driver.cuStreamBeginCapture_v2(stream, cuda::CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
  facts.no_graph_frees_it = driver.cuMemFreeAsync(data, stream) == cuda::CUDA_ERROR_INVALID_VALUE;
  if (driver.cuStreamEndCapture(stream, &graph) == cuda::CUDA_SUCCESS && graph != nullptr) driver.cuGraphDestroy(graph);
  check(driver.cuMemFreeAsync(data, stream), "cuMemFreeAsync");
  facts.freed_once = driver.cuMemFreeAsync(data, stream) == cuda::CUDA_ERROR_INVALID_VALUE;
  check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
  return facts;
}

// The facts that handing physical memory over relies on (decision 0015).
struct FrameFacts {
  bool kept_by_descriptor = false;  // memory that nothing but a descriptor has is not free, and keeps its content
  bool freed_with_descriptor = false;
  bool exported_by_its_maker_only = false;
  bool same_for_devices = false;  // other devices can be given imported memory as they can made memory
};

FrameFacts ask_frames(const Program& program) {
  const cuda::Driver& driver = program.driver;
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  constexpr std::uint32_t kWord = 0x5eed5eed;
  FrameFacts facts;
  cuda::CUmemAllocationProp properties{};
  properties.type = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, 0};
  const auto free_bytes = [&] {
    std::size_t free = 0, total = 0;
    check(driver.cuMemGetInfo_v2(&free, &total), "cuMemGetInfo");
    return free;
  };
  cuda::CUdeviceptr address = 0;
  check(driver.cuMemAddressReserve(&address, kBytes, 0, 0, 0), "cuMemAddressReserve");
  const auto map = [&](cuda::CUmemGenericAllocationHandle handle) {
    check(driver.cuMemMap(address, kBytes, 0, handle, 0), "cuMemMap");
    const cuda::CUmemAccessDesc access{properties.location, cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    check(driver.cuMemSetAccess(address, kBytes, &access, 1), "cuMemSetAccess");
  };
  const auto for_devices = [&] {
    int fd = -1;
    const auto result =
        driver.cuMemGetHandleForAddressRange(&fd, address, kBytes, cuda::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    if (result == cuda::CUDA_SUCCESS) ::close(fd);
    return result;
  };
  const std::size_t before = free_bytes();
  cuda::CUmemGenericAllocationHandle made = 0, imported = 0;
  check(driver.cuMemCreate(&made, kBytes, &properties, 0), "cuMemCreate");
  map(made);
  check(driver.cuMemsetD32_v2(address, kWord, kBytes / 4), "cuMemsetD32");
  check(driver.cuCtxSynchronize(), "cuCtxSynchronize");
  const auto of_made = for_devices();
  int fd = -1, again = -1;
  check(driver.cuMemExportToShareableHandle(&fd, made, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "export");
  check(driver.cuMemUnmap(address, kBytes), "cuMemUnmap");
  check(driver.cuMemRelease(made), "cuMemRelease");
  const bool is_kept = before - free_bytes() >= kBytes;
  check(driver.cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
                                              cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "import");
  map(imported);
  std::uint32_t word = 0;
  check(driver.cuMemcpyDtoH_v2(&word, address + kBytes - 4, 4), "cuMemcpyDtoH");
  facts.kept_by_descriptor = is_kept && word == kWord;
  facts.exported_by_its_maker_only =
      driver.cuMemExportToShareableHandle(&again, imported, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
      cuda::CUDA_ERROR_INVALID_VALUE;
  const auto of_imported = for_devices();
  facts.same_for_devices = of_made == of_imported;
  std::fprintf(stderr, "dma-buf: of made memory %d, of imported memory %d\n", static_cast<int>(of_made),
               static_cast<int>(of_imported));
  check(driver.cuMemUnmap(address, kBytes), "cuMemUnmap");
  check(driver.cuMemRelease(imported), "cuMemRelease");
  const bool is_still_kept = before - free_bytes() >= kBytes;
  ::close(fd);
  facts.freed_with_descriptor = is_still_kept && before - free_bytes() < kBytes;
  check(driver.cuMemAddressFree(address, kBytes), "cuMemAddressFree");
  return facts;
}

}  // namespace

int run() {
  const Program program = start_program(0);
  const cuda::Driver& driver = program.driver;
  const auto per_thread = reinterpret_cast<cuda::CUstream>(std::uintptr_t{2});
  cuda::CUstream blocking = nullptr, apart = nullptr;
  check(driver.cuStreamCreate(&blocking, 0), "cuStreamCreate");
  check(driver.cuStreamCreate(&apart, cuda::CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  const auto text = [](bool holds) { return holds ? "true" : "false"; };
  // Decision 0004: a drain asks the legacy stream in the place of per-thread ones, and every non-blocking one itself.
  std::printf("RESULT {\"legacy stream answers for per-thread streams\": %s, ",
              text(legacy_answers_for(program, per_thread, false)));
  std::printf("\"legacy stream answers for ended threads' streams\": %s, ",
              text(legacy_answers_for(program, per_thread, true)));
  std::printf("\"legacy stream answers for created streams\": %s, ",
              text(legacy_answers_for(program, blocking, false)));
  std::printf("\"legacy stream knows nothing of non-blocking streams\": %s, ",
              text(!legacy_answers_for(program, apart, false)));
  const PoolFacts pools = ask_pools(program, apart);
  std::printf("\"a pool's memory is of no context\": %s, ", text(pools.no_context));
  std::printf("\"a pool's memory has no legacy handle\": %s, ", text(pools.no_ipc));
  std::printf("\"a graph frees nothing that was allocated outside\": %s, ", text(pools.no_graph_frees_it));
  std::printf("\"memory is freed once\": %s, ", text(pools.freed_once));
  const FrameFacts frames = ask_frames(program);
  std::printf("\"a descriptor keeps memory and its content\": %s, ", text(frames.kept_by_descriptor));
  std::printf("\"closing the last descriptor frees memory\": %s, ", text(frames.freed_with_descriptor));
  std::printf("\"only its maker exports memory\": %s, ", text(frames.exported_by_its_maker_only));
  std::printf("\"other devices get imported memory as they get made memory\": %s}\n", text(frames.same_for_devices));
  return 0;
}

}  // namespace gpumux::tests

int main() { return gpumux::tests::run(); }
