// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/programs/driver_program.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels_ptx.gen.h"

namespace gpumux::tests {
namespace {

constexpr char kDriverLibrary[] = "libcuda.so.1";

// Enough blocks for every GPU, and a shape that the simulated one takes too.
constexpr unsigned kBlocks = 256;
constexpr unsigned kThreads = 256;

void* look_up(void* context, const char* symbol) { return ::dlsym(context, symbol); }

// The loader relocates the addresses in a dynamic section on this platform.
template <class T>
const T* section(const link_map& map, ElfW(Sxword) tag) {
  for (const ElfW(Dyn)* entry = map.l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == tag) return reinterpret_cast<const T*>(entry->d_un.d_ptr);
  }
  return nullptr;
}

// How many symbols there are is known from the hash table only: the highest index that its chains reach, plus one.
std::size_t count_symbols(const link_map& map) {
  if (const auto* plain = section<std::uint32_t>(map, DT_HASH)) return plain[1];
  const auto* gnu = section<std::uint32_t>(map, DT_GNU_HASH);
  if (gnu == nullptr) return 0;
  const std::uint32_t buckets = gnu[0];
  const std::uint32_t first = gnu[1];
  const std::uint32_t* bucket = gnu + 4 + gnu[2] * (sizeof(ElfW(Addr)) / sizeof(std::uint32_t));
  const std::uint32_t* chain = bucket + buckets;
  std::uint32_t last = 0;
  for (std::uint32_t i = 0; i < buckets; ++i) last = bucket[i] > last ? bucket[i] : last;
  if (last < first) return first;
  while ((chain[last - first] & 1) == 0) ++last;
  return last + 1;
}

}  // namespace

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void sleep_ns(std::int64_t nanoseconds) {
  timespec rest{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  while (::nanosleep(&rest, &rest) != 0 && errno == EINTR) {
  }
}

void fail(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  std::exit(1);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void check(cuda::CUresult result, const char* what) {
  if (result != cuda::CUDA_SUCCESS) fail(std::string(what) + " failed: CUresult " + std::to_string(result));
}

void* direct_entry(void* library, const char* symbol) {
  link_map* map = nullptr;
  if (::dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) fail(std::string("dlinfo: ") + ::dlerror());
  const auto* symbols = section<ElfW(Sym)>(*map, DT_SYMTAB);
  const auto* names = section<char>(*map, DT_STRTAB);
  const std::size_t count = symbols != nullptr && names != nullptr ? count_symbols(*map) : 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (symbols[i].st_shndx != SHN_UNDEF && std::strcmp(names + symbols[i].st_name, symbol) == 0)
      return reinterpret_cast<void*>(map->l_addr + symbols[i].st_value);
  }
  fail(std::string(kDriverLibrary) + " does not export " + symbol);
}

cuda::CUresult launch_increment(const Program& program, cuda::CUdeviceptr data, std::uint64_t count,
                                cuda::CUstream stream) {
  void* parameters[] = {&data, &count};
  return program.driver.cuLaunchKernel(program.increment, kBlocks, 1, 1, kThreads, 1, 1, 0, stream, parameters,
                                       nullptr);
}

cuda::CUresult launch_spin(const Program& program, std::uint64_t nanoseconds, cuda::CUstream stream) {
  void* parameters[] = {&nanoseconds};
  return program.driver.cuLaunchKernel(program.spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
}

Program start_program(int device) {
  Program program;
  std::int64_t at = now_ns();
  const auto lap = [&at] {
    const std::int64_t before = at;
    at = now_ns();
    return at - before;
  };
  program.library = ::dlopen(kDriverLibrary, RTLD_NOW | RTLD_GLOBAL);
  if (program.library == nullptr) fail(std::string("no CUDA driver: ") + ::dlerror());
  cuda::load_driver(program.driver, look_up, program.library);
  program.open_ns = lap();
  const cuda::Driver& driver = program.driver;
  check(driver.cuInit(0), "cuInit");
  program.init_ns = lap();
  cuda::CUdevice handle = 0;
  check(driver.cuDeviceGet(&handle, device), "cuDeviceGet");
  check(driver.cuDevicePrimaryCtxRetain(&program.context, handle), "cuDevicePrimaryCtxRetain");
  check(driver.cuCtxSetCurrent(program.context), "cuCtxSetCurrent");
  program.context_ns = lap();
  check(driver.cuModuleLoadData(&program.module, kKernels), "cuModuleLoadData");
  check(driver.cuModuleGetFunction(&program.increment, program.module, "gpumux_increment"), "cuModuleGetFunction");
  check(driver.cuModuleGetFunction(&program.spin, program.module, "gpumux_spin"), "cuModuleGetFunction");
  check(launch_spin(program, 0, nullptr), "the first cuLaunchKernel");
  check(driver.cuCtxSynchronize(), "cuCtxSynchronize");
  program.first_launch_ns = lap();
  program.has_empty =
      driver.cuModuleGetFunction(&program.empty, program.module, "gpumux_empty") == cuda::CUDA_SUCCESS &&
      driver.cuLaunchKernel(program.empty, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) == cuda::CUDA_SUCCESS &&
      driver.cuCtxSynchronize() == cuda::CUDA_SUCCESS;
  if (!program.has_empty) program.empty = program.spin;
  program.preloaded = reinterpret_cast<void*>(driver.cuLaunchKernel) != direct_entry(program.library, "cuLaunchKernel");
  return program;
}

}  // namespace gpumux::tests
