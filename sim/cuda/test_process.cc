// SPDX-License-Identifier: Apache-2.0
// A process on the simulated machine that does what a test tells it, line by line. It reads a command and its numbers
// on standard input, and writes one line of answer on standard output. The first word of an answer is the CUresult. It
// ends when its input ends.
//
//   context GPU            makes one, with the kernels and a stream; everything below is on the latest
//   alloc BYTES            answers the address
//   free ADDRESS
//   info                   answers the free bytes
//   fill ADDRESS COUNT V   submits; `increment ADDRESS COUNT`, `spin NS`, `rendezvous OWN PEER ROUND` likewise
//   sync                   waits for the stream
//   break                  breaks the context, and answers the errors that its server's clients have on GPUs 0 and 1 at
//                          the instant when it sees that
//   read ADDRESS           answers a word
//   ipc ADDRESS            answers a handle in hexadecimal; `open HEX` answers an address
//   time COUNT NS          runs COUNT spins of NS each; answers the microseconds that it took
//   churn                  allocates, exports, frees and runs kernels for ever
//   channels               answers how many the driver has made, and how many groups of them
//   freeze                 disables all channels; answers the kernel module's status. `thaw` likewise
//   fork                   what cuInit and cuDeviceGetCount answer in a forked child
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>

#include "cuda/prototypes.gen.h"
#include "sim/cuda/kernels.gen.h"
#include "sim/cuda/machine.h"
#include "sim/cuda/mps.h"
#include "sim/cuda/process.h"
#include "sim/cuda/test_resource_manager.h"

namespace gpumux::sim {
namespace {

using namespace gpumux::cuda;

CUcontext context = nullptr;
CUmodule module_handle = nullptr;
CUstream stream = nullptr;

CUresult make_context(int gpu) {
  CUresult result = cuCtxCreate_v2(&context, 0, gpu);
  if (result == CUDA_SUCCESS) result = cuModuleLoadData(&module_handle, kGpumuxSimKernelsPtx);
  if (result == CUDA_SUCCESS) result = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  return result;
}

template <class... Parameters>
CUresult launch(const char* name, Parameters... parameters) {
  CUfunction function = nullptr;
  if (const CUresult result = cuModuleGetFunction(&function, module_handle, name); result != CUDA_SUCCESS)
    return result;
  void* list[] = {&parameters...};
  return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, list, nullptr);
}

std::string to_hex(const CUipcMemHandle& handle) {
  std::string text;
  for (const char byte : handle.reserved) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(byte));
    text += two;
  }
  return text;
}

CUipcMemHandle from_hex(const std::string& text) {
  CUipcMemHandle handle{};
  for (std::size_t i = 0; i < sizeof handle.reserved && 2 * i + 1 < text.size(); ++i) {
    handle.reserved[i] = static_cast<char>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
  }
  return handle;
}

CUresult churn() {
  for (std::uint64_t round = 0;; ++round) {
    CUdeviceptr address = 0;
    // The machine may be full; then try again.
    if (cuMemAlloc_v2(&address, (round % 3 + 1) << 20) != CUDA_SUCCESS) continue;
    launch("gpumux_fill", address, std::uint64_t{1000}, static_cast<std::uint32_t>(round));
    CUipcMemHandle handle{};
    if (round % 4 == 0) cuIpcGetMemHandle(&handle, address);
    launch("gpumux_spin", std::uint64_t{20'000});
    if (const CUresult result = cuMemFree_v2(address); result != CUDA_SUCCESS) return result;
  }
}

void in_forked_child(std::ostream& answer) {
  int ends[2];
  if (::pipe(ends) != 0) return;
  const pid_t child = ::fork();
  if (child == 0) {
    int count = 0;
    const CUresult answers[2] = {cuInit(0), cuDeviceGetCount(&count)};
    const ssize_t written = ::write(ends[1], answers, sizeof answers);
    ::_exit(written == sizeof answers ? 0 : 1);
  }
  CUresult answers[2] = {};
  const ssize_t got = ::read(ends[0], answers, sizeof answers);
  ::waitpid(child, nullptr, 0);
  if (got == sizeof answers) answer << ' ' << answers[0] << ' ' << answers[1];
}

CUresult obey(const std::string& command, std::istream& in, std::ostream& answer) {
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  std::uint64_t c = 0;
  if (command == "open") {
    std::string hex;
    in >> hex;
    CUdeviceptr address = 0;
    const CUresult result = cuIpcOpenMemHandle_v2(&address, from_hex(hex), CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    answer << ' ' << address;
    return result;
  }
  in >> a >> b >> c;
  if (command == "context") return make_context(static_cast<int>(a));
  if (command == "alloc") {
    CUdeviceptr address = 0;
    const CUresult result = cuMemAlloc_v2(&address, a);
    answer << ' ' << address;
    return result;
  }
  if (command == "free") return cuMemFree_v2(a);
  if (command == "info") {
    std::size_t free = 0;
    std::size_t total = 0;
    const CUresult result = cuMemGetInfo_v2(&free, &total);
    answer << ' ' << free;
    return result;
  }
  if (command == "fill") return launch("gpumux_fill", a, b, static_cast<std::uint32_t>(c));
  if (command == "increment") return launch("gpumux_increment", a, b);
  if (command == "spin") return launch("gpumux_spin", a);
  if (command == "rendezvous") return launch("gpumux_rendezvous", a, b, static_cast<std::uint32_t>(c));
  if (command == "sync") return cuStreamSynchronize(stream);
  if (command == "break") {
    CUresult result = launch("gpumux_fill", CUdeviceptr{4096}, std::uint64_t{1}, std::uint32_t{1});
    while (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY) result = cuStreamQuery(stream);
    Machine& machine = Process::get()->machine();
    for (const std::uint32_t gpu : {0u, 1u}) answer << ' ' << mps_error(machine, gpu);
    return result;
  }
  if (command == "read") {
    std::uint32_t word = 0;
    const CUresult result = cuMemcpyDtoH_v2(&word, a, sizeof word);
    answer << ' ' << word;
    return result;
  }
  if (command == "ipc") {
    CUipcMemHandle handle{};
    const CUresult result = cuIpcGetMemHandle(&handle, a);
    answer << ' ' << to_hex(handle);
    return result;
  }
  if (command == "time") {
    const base::TimePoint start = now();
    for (std::uint64_t i = 0; i < a; ++i) launch("gpumux_spin", b);
    const CUresult result = cuStreamSynchronize(stream);
    answer << ' ' << (now() - start).count() / 1000;
    return result;
  }
  if (command == "churn") return churn();
  if (command == "channels") {
    answer << ' ' << seen_channels().size() << ' ' << seen_groups().size();
    return CUDA_SUCCESS;
  }
  if (command == "freeze" || command == "thaw") {
    answer << ' ' << set_disabled(seen_channels(), command == "freeze");
    return CUDA_SUCCESS;
  }
  if (command == "fork") {
    in_forked_child(answer);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_UNKNOWN;
}

}  // namespace
}  // namespace gpumux::sim

int main() {
  using gpumux::cuda::CUresult;
  if (std::getenv("GPUMUX_TEST_FORK_FIRST") != nullptr) {
    const pid_t child = ::fork();
    if (child != 0) return ::waitpid(child, nullptr, 0) == child ? 0 : 1;
  }
  gpumux::sim::see_own_objects();
  CUresult result = gpumux::cuda::cuInit(0);
  std::cout << result << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream in(line);
    std::string command;
    in >> command;
    std::ostringstream answer;
    result = gpumux::sim::obey(command, in, answer);
    std::cout << result << answer.str() << std::endl;
  }
  // As a real program may: without cleaning up.
  return 0;
}
