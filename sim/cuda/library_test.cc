// SPDX-License-Identifier: Apache-2.0
// Goal: the shared libraries are as a program expects under the real ones' names. Everything is exported, and inert
// until initialised. The driver's and NVML's copies of the code in one process make one machine. Method: dlopen, and
// looking at the process.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "cuda/driver.h"
#include "cuda/nvml.h"
#include "sim/cuda/kernel_builtin.h"
#include "sim/cuda/test_machine.h"
#include "sim/cuda/test_resource_manager.h"

namespace gpumux::sim {
namespace {

using namespace gpumux::cuda;

void* symbol(void* library, const char* name) { return ::dlsym(library, name); }

std::size_t threads() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

TEST(LibraryTest, IsInertUntilInitialisedAndThenOneWithNvml) {
  const std::string directory = std::getenv("GPUMUX_SIM_DIR");
  std::filesystem::remove_all(directory);
  const std::size_t threads_before = threads();
  void* cuda_library = ::dlopen(GPUMUX_SIMULATED_CUDA, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(cuda_library, nullptr) << ::dlerror();
  void* nvml_library = ::dlopen(GPUMUX_SIMULATED_NVML, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(nvml_library, nullptr) << ::dlerror();
  Driver driver;
  load_driver(driver, symbol, cuda_library);
  Nvml nvml;
  load_nvml(nvml, symbol, nvml_library);
  int version = 0;
  EXPECT_CUDA(driver.cuDriverGetVersion(&version));
  int count = 0;
  EXPECT_EQ(driver.cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_FALSE(std::filesystem::exists(directory));
  EXPECT_EQ(threads(), threads_before);

  ASSERT_CUDA(driver.cuInit(0));
  CUcontext context = nullptr;
  ASSERT_CUDA(driver.cuCtxCreate_v2(&context, 0, 0));
  EXPECT_EQ(threads(), threads_before) << "no thread before there is work";
  ASSERT_EQ(nvml.nvmlInit_v2(), NVML_SUCCESS);
  nvmlDevice_t device = nullptr;
  ASSERT_EQ(nvml.nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
  nvmlMemory_t memory{};
  EXPECT_EQ(nvml.nvmlDeviceGetMemoryInfo(device, &memory), NVML_SUCCESS);
  EXPECT_EQ(memory.used, kContextBytes);
  unsigned processes = 1;
  nvmlProcessInfo_t process{};
  EXPECT_EQ(nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &processes, &process), NVML_SUCCESS);
  EXPECT_EQ(processes, 1u) << "the process that asks is alive, though it does not see its own record lock";
  // Ending NVML must not drop the lock that says so to the others.
  EXPECT_EQ(nvml.nvmlShutdown(), NVML_SUCCESS);
  ::dlclose(nvml_library);
  const pid_t other = ::fork();
  if (other == 0) {
    const auto machine = Machine::open(directory);
    ::_exit(machine && (*machine)->processes(0).size() == 1 ? 0 : 1);
  }
  int status = 1;
  EXPECT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
  EXPECT_CUDA(driver.cuCtxDestroy_v2(context));
}

TEST(LibraryTest, ExportsWhatTheRealOneExports) {
  void* library = ::dlopen(GPUMUX_SIMULATED_CUDA, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr);
  std::ifstream list(GPUMUX_EXPORTS);
  std::string name;
  std::size_t count = 0;
  while (list >> name) {
    if (name.rfind("cudbg", 0) == 0) continue;  // the debugger's variables
    EXPECT_NE(::dlsym(library, name.c_str()), nullptr) << name;
    ++count;
  }
  EXPECT_GT(count, 600u);
}

TEST(LibraryTest, LookupGivesTheLibrarysOwnSymbols) {
  void* library = ::dlopen(GPUMUX_SIMULATED_CUDA, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr);
  Driver driver;
  load_driver(driver, symbol, library);
  for (const EntryInfo& info : kEntries) {
    if (info.api_name[0] == '\0' || info.since == 0) continue;
    const bool per_thread = info.variant == StreamVariant::kPtds || info.variant == StreamVariant::kPtsz;
    void* found = nullptr;
    CUdriverProcAddressQueryResult status{};
    EXPECT_CUDA(
        driver.cuGetProcAddress_v2(info.api_name, &found, static_cast<int>(info.since), per_thread ? 2 : 0, &status));
    const auto entry = find_versioned(info.api_name, info.since, per_thread);
    ASSERT_TRUE(entry.has_value()) << info.symbol;
    EXPECT_EQ(found, ::dlsym(library, info_of(*entry).symbol)) << info.symbol;
  }
}

// Otherwise a preloaded library with the same names would see the driver's own calls too, and count or gate them twice.
// Method: no relocation of a loaded library names a function that the library defines itself.
TEST(LibraryTest, DependsOnNobodyForItsOwnFunctions) {
  for (const char* path : {GPUMUX_SIMULATED_CUDA, GPUMUX_SIMULATED_NVML}) {
    void* library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << ::dlerror();
    const link_map* map = nullptr;
    ASSERT_EQ(::dlinfo(library, RTLD_DI_LINKMAP, &map), 0);
    std::map<ElfW(Sxword), ElfW(Addr)> dynamic;
    for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry)
      dynamic[entry->d_tag] = entry->d_un.d_ptr;
    const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(dynamic[DT_SYMTAB]);
    const auto* names = reinterpret_cast<const char*>(dynamic[DT_STRTAB]);
    std::size_t imported = 0;
    for (const auto& [table, bytes] : {std::pair{DT_RELA, DT_RELASZ}, std::pair{DT_JMPREL, DT_PLTRELSZ}}) {
      const auto* relocations = reinterpret_cast<const ElfW(Rela)*>(dynamic[table]);
      for (std::size_t i = 0; i < dynamic[bytes] / sizeof(ElfW(Rela)); ++i) {
        const ElfW(Sym)& symbol = symbols[ELF64_R_SYM(relocations[i].r_info)];
        if (symbol.st_shndx == SHN_UNDEF) {
          imported += symbol.st_name != 0;
        } else {
          EXPECT_NE(ELF64_ST_TYPE(symbol.st_info), STT_FUNC) << path << ": " << names + symbol.st_name;
        }
      }
    }
    EXPECT_GT(imported, 10u) << "these are no relocations of " << path;
  }
}

TEST(LibraryTest, NvmlSaysThatItIsSimulated) {
  void* library = ::dlopen(GPUMUX_SIMULATED_NVML, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << ::dlerror();
  EXPECT_NE(::dlsym(library, kSimulatedNvmlSymbol), nullptr);
}

// A preloaded library may stand between libcuda and the kernel module, and call the module itself.
TEST(LibraryTest, ItsCallsOfTheKernelModuleCanBeSeen) {
  void* library = ::dlopen(GPUMUX_SIMULATED_CUDA, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << ::dlerror();
  Driver driver;
  load_driver(driver, symbol, library);
  const os::FormerImport former = see_objects_of(reinterpret_cast<const void*>(driver.cuInit));
  ASSERT_NE(former.slots, 0u);
  ASSERT_NE(former.function, nullptr);
  the_module = reinterpret_cast<Ioctl>(const_cast<void*>(former.function));
  ASSERT_CUDA(driver.cuInit(0));
  CUcontext context = nullptr;
  errno = 0;
  // Other tests may have used GPU 0 before its objects could be seen.
  ASSERT_CUDA(driver.cuCtxCreate_v2(&context, 0, 1));
  EXPECT_EQ(errno, 0);
  EXPECT_EQ(seen_groups().size(), 4u);
  const SeenObjects channels = seen_channels();
  ASSERT_EQ(channels.size(), 20u);
  CUdeviceptr memory = 0;
  ASSERT_CUDA(driver.cuMemAlloc_v2(&memory, 4096));
  CUstream stream = nullptr;
  ASSERT_CUDA(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  ASSERT_EQ(freeze(channels), NV_OK);
  EXPECT_CUDA(driver.cuMemsetD8Async(memory, 1, 4096, stream));
  sleep_until(now() + base::Duration(20'000'000));
  EXPECT_EQ(driver.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(thaw(channels), NV_OK);
  EXPECT_CUDA(driver.cuStreamSynchronize(stream));
  EXPECT_CUDA(driver.cuCtxDestroy_v2(context));
  EXPECT_TRUE(seen_channels().empty());
}

// The same PTX runs on real GPUs: then its parameters must be what the built-in kernels take.
TEST(KernelsTest, ThePtxHasTheBuiltInSignatures) {
  const std::string text = kGpumuxSimKernelsPtx;
  std::size_t entries = 0;
  for (std::size_t at = text.find(".entry "); at != std::string::npos; at = text.find(".entry ", at + 1), ++entries) {
    const std::size_t name_at = at + std::strlen(".entry ");
    const std::string name = text.substr(name_at, text.find('(', name_at) - name_at);
    const BuiltinKernel* kernel = find_builtin(name);
    ASSERT_NE(kernel, nullptr) << name;
    const std::string list = text.substr(name_at, text.find(')', name_at) - name_at);
    std::size_t parameter = 0;
    for (std::size_t p = list.find(".param ."); p != std::string::npos; p = list.find(".param .", p + 1), ++parameter) {
      ASSERT_LT(parameter, kernel->parameters) << name;
      const std::size_t type = p + std::strlen(".param .") + 1;  // after the letter: bits
      EXPECT_EQ(std::strtoul(list.c_str() + type, nullptr, 10) / 8, kernel->sizes[parameter])
          << name << ' ' << parameter;
    }
    EXPECT_EQ(parameter, kernel->parameters) << name;
  }
  EXPECT_EQ(entries, 6u);
}

}  // namespace
}  // namespace gpumux::sim
