// SPDX-License-Identifier: Apache-2.0
// Goal: contexts, devices and entry-point lookup behave as the driver's. Method: the API's own questions after each
// step.
#include <cstring>
#include <set>
#include <thread>

#include "sim/cuda/faults.h"
#include "sim/cuda/test_machine.h"

namespace gpumux::sim {
namespace {

using namespace gpumux::cuda;

class ContextTest : public SimTest {};

CUcontext current() {
  CUcontext context = nullptr;
  EXPECT_CUDA(cuCtxGetCurrent(&context));
  return context;
}

TEST_F(ContextTest, DevicesAreAsTheMachineSays) {
  int count = 0;
  EXPECT_CUDA(cuDeviceGetCount(&count));
  EXPECT_EQ(count, 2);
  CUdevice device = -1;
  EXPECT_CUDA(cuDeviceGet(&device, 1));
  EXPECT_EQ(device, 1);
  EXPECT_EQ(cuDeviceGet(&device, 2), CUDA_ERROR_INVALID_DEVICE);
  std::size_t bytes = 0;
  EXPECT_CUDA(cuDeviceTotalMem_v2(&bytes, 0));
  EXPECT_EQ(bytes, kGpuBytes);
  CUuuid first{};
  CUuuid second{};
  EXPECT_CUDA(cuDeviceGetUuid_v2(&first, 0));
  EXPECT_CUDA(cuDeviceGetUuid_v2(&second, 1));
  EXPECT_NE(std::memcmp(&first, &second, sizeof first), 0);
  char bus[32];
  EXPECT_CUDA(cuDeviceGetPCIBusId(bus, sizeof bus, 1));
  EXPECT_CUDA(cuDeviceGetByPCIBusId(&device, bus));
  EXPECT_EQ(device, 1);
  char name[8];
  EXPECT_CUDA(cuDeviceGetName(name, sizeof name, 0));
  EXPECT_STREQ(name, "gpumux ") << "cut to what fits";
  int value = 0;
  EXPECT_CUDA(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
  EXPECT_EQ(value, 32);
  EXPECT_EQ(cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(100000), 0), CUDA_ERROR_INVALID_VALUE);
  int version = 0;
  EXPECT_CUDA(cuDriverGetVersion(&version));
  EXPECT_EQ(version, 13000);
}

TEST_F(ContextTest, TheStackOfCurrentContextsIsTheThreads) {
  CUcontext second = nullptr;
  ASSERT_CUDA(cuCtxCreate_v4(&second, nullptr, 0, 1));
  EXPECT_EQ(current(), second);
  CUdevice device = -1;
  EXPECT_CUDA(cuCtxGetDevice(&device));
  EXPECT_EQ(device, 1);
  EXPECT_CUDA(cuCtxPushCurrent_v2(context_));
  EXPECT_CUDA(cuCtxGetDevice(&device));
  EXPECT_EQ(device, 0);
  CUcontext popped = nullptr;
  EXPECT_CUDA(cuCtxPopCurrent_v2(&popped));
  EXPECT_EQ(popped, context_);
  EXPECT_EQ(current(), second);
  std::thread other([&] {
    EXPECT_EQ(current(), nullptr);
    EXPECT_EQ(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
    CUdeviceptr address = 0;
    EXPECT_EQ(cuMemAlloc_v2(&address, 4), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_CUDA(cuCtxSetCurrent(second));
    EXPECT_CUDA(cuMemAlloc_v2(&address, 4));
  });
  other.join();
  unsigned long long first_id = 0;
  unsigned long long second_id = 0;
  EXPECT_CUDA(cuCtxGetId(context_, &first_id));
  EXPECT_CUDA(cuCtxGetId(second, &second_id));
  EXPECT_NE(first_id, second_id);
  EXPECT_CUDA(cuCtxDestroy_v2(second));
  EXPECT_EQ(current(), context_) << "destroying the current one pops it";
  EXPECT_EQ(cuCtxDestroy_v2(second), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

TEST_F(ContextTest, ADestroyedContextIsAnErrorWhereItIsStillCurrent) {
  CUcontext second = nullptr;
  ASSERT_CUDA(cuCtxCreate_v2(&second, 0, 0));
  EXPECT_CUDA(cuCtxPushCurrent_v2(context_));
  EXPECT_CUDA(cuCtxPushCurrent_v2(second));
  EXPECT_CUDA(cuCtxDestroy_v2(second));
  EXPECT_CUDA(cuCtxPopCurrent_v2(nullptr));
  EXPECT_EQ(current(), second);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_CUDA(cuCtxPopCurrent_v2(nullptr));
}

TEST_F(ContextTest, PrimaryContextsAreCounted) {
  unsigned flags = 0;
  int active = -1;
  EXPECT_CUDA(cuDevicePrimaryCtxGetState(1, &flags, &active));
  EXPECT_EQ(active, 0);
  CUcontext first = nullptr;
  CUcontext again = nullptr;
  ASSERT_CUDA(cuDevicePrimaryCtxRetain(&first, 1));
  ASSERT_CUDA(cuDevicePrimaryCtxRetain(&again, 1));
  EXPECT_EQ(first, again);
  EXPECT_EQ(current(), context_) << "retaining does not make it current";
  EXPECT_EQ(cuCtxDestroy_v2(first), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_CUDA(cuDevicePrimaryCtxRelease_v2(1));
  EXPECT_CUDA(cuDevicePrimaryCtxGetState(1, &flags, &active));
  EXPECT_EQ(active, 1);
  EXPECT_CUDA(cuDevicePrimaryCtxRelease_v2(1));
  EXPECT_CUDA(cuDevicePrimaryCtxGetState(1, &flags, &active));
  EXPECT_EQ(active, 0);
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(1), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_CUDA(cuDevicePrimaryCtxRetain(&again, 1));
  EXPECT_CUDA(cuDevicePrimaryCtxReset_v2(1));
  EXPECT_CUDA(cuDevicePrimaryCtxGetState(1, &flags, &active));
  EXPECT_EQ(active, 0);
}

TEST_F(ContextTest, AContextCostsMemoryAndGivesAllBack) {
  const std::uint64_t before = free_bytes();
  EXPECT_EQ(before, kGpuBytes - kContextBytes);
  CUcontext second = nullptr;
  ASSERT_CUDA(cuCtxCreate_v2(&second, 0, 0));
  EXPECT_EQ(free_bytes(), before - kContextBytes);
  CUdeviceptr forgotten = 0;
  ASSERT_CUDA(cuMemAlloc_v2(&forgotten, 8 << 20));
  EXPECT_CUDA(cuCtxDestroy_v2(second));
  EXPECT_EQ(free_bytes(), before) << "what it allocated went with it";
  const CUdeviceptr most = allocate(before - kContextBytes / 2);
  EXPECT_EQ(cuCtxCreate_v2(&second, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_CUDA(cuMemFree_v2(most));
}

TEST_F(ContextTest, AnIllegalAccessBreaksItsContextOnly) {
  CUcontext second = nullptr;
  ASSERT_CUDA(cuCtxCreate_v2(&second, 0, 0));
  ASSERT_CUDA(cuCtxPopCurrent_v2(nullptr));
  const CUdeviceptr good = allocate(4096);
  EXPECT_CUDA(fill(nullptr, good + (std::uint64_t{1} << 30), 16, 1)) << "a launch does not look";
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc_v2(&address, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
  std::uint32_t word = 0;
  EXPECT_EQ(cuMemcpyDtoH_v2(&word, good, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUevent event = nullptr;
  EXPECT_EQ(cuEventCreate(&event, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_CUDA(cuCtxPushCurrent_v2(second));
  EXPECT_CUDA(cuMemAlloc_v2(&address, 4));
  EXPECT_CUDA(cuCtxSynchronize());
  EXPECT_CUDA(cuCtxDestroy_v2(second));
}

TEST_F(ContextTest, ABrokenContextEndsItsOtherKernelsToo) {
  const CUstream endless = make_stream();
  EXPECT_CUDA(spin(endless, UINT64_MAX));
  EXPECT_CUDA(fill(make_stream(), 4096, 1, 1));
  EXPECT_EQ(cuStreamSynchronize(endless), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(ContextTest, ModulesNameFunctions) {
  CUfunction found = nullptr;
  EXPECT_EQ(cuModuleGetFunction(&found, module_, "gpumux_nothing"), CUDA_ERROR_NOT_FOUND);
  unsigned count = 0;
  EXPECT_CUDA(cuModuleGetFunctionCount(&count, module_));
  EXPECT_EQ(count, 6u);
  const char* name = nullptr;
  EXPECT_CUDA(cuFuncGetName(&name, function("gpumux_saxpy")));
  EXPECT_STREQ(name, "gpumux_saxpy");
  std::size_t offset = 0;
  std::size_t size = 0;
  EXPECT_CUDA(cuFuncGetParamInfo(function("gpumux_saxpy"), 3, &offset, &size));
  EXPECT_EQ(offset, 24u);
  EXPECT_EQ(size, 8u);
  EXPECT_EQ(cuFuncGetParamInfo(function("gpumux_saxpy"), 4, &offset, &size), CUDA_ERROR_INVALID_VALUE);

  CUmodule other = nullptr;
  EXPECT_EQ(cuModuleLoadData(&other, "no image at all"), CUDA_ERROR_INVALID_PTX);
  EXPECT_EQ(cuModuleLoadData(&other, ""), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(cuModuleLoad(&other, "/does/not/exist.ptx"), CUDA_ERROR_FILE_NOT_FOUND);
  // Names in comments are no names; a kernel that the simulated GPU lacks can be found but not launched.
  const char text[] =
      ".version 9.0\n.target sm_75\n// .entry hidden(\n/* .entry gone( */ .visible .entry my_kernel()\n{ ret; }\n";
  ASSERT_CUDA(cuModuleLoadDataEx(&other, text, 0, nullptr, nullptr));
  EXPECT_CUDA(cuModuleGetFunctionCount(&count, other));
  EXPECT_EQ(count, 1u);
  ASSERT_CUDA(cuModuleGetFunction(&found, other, "my_kernel"));
  EXPECT_EQ(cuLaunchKernel(found, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_CUDA(cuModuleUnload(other));
  EXPECT_EQ(cuLaunchKernel(found, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(ContextTest, LibrariesWorkInAnyContext) {
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUfunction in_context = nullptr;
  ASSERT_CUDA(cuLibraryLoadData(&library, kGpumuxSimKernelsPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  ASSERT_CUDA(cuLibraryGetKernel(&kernel, library, "gpumux_fill"));
  ASSERT_CUDA(cuKernelGetFunction(&in_context, kernel));
  CUdeviceptr data = allocate(8);
  std::uint64_t count = 1;
  std::uint32_t value = 3;
  void* parameters[] = {&data, &count, &value};
  EXPECT_CUDA(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  data += 4;
  EXPECT_CUDA(cuLaunchKernel(in_context, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  EXPECT_EQ(read(data - 4, 2), (std::vector<std::uint32_t>{3, 3}));
  EXPECT_CUDA(cuLibraryUnload(library));
  EXPECT_EQ(cuLaunchKernel(in_context, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(ContextTest, LaunchesTakeParametersBothWaysAndRefuseNonsense) {
  const CUdeviceptr data = allocate(4);
  struct {
    CUdeviceptr destination;
    std::uint64_t count;
    std::uint32_t value;
  } buffer{data, 1, 9};
  std::size_t size = 20;
  void* extra[] = {reinterpret_cast<void*>(kLaunchParamBufferPointer), &buffer,
                   reinterpret_cast<void*>(kLaunchParamBufferSize), &size, reinterpret_cast<void*>(kLaunchParamEnd)};
  const CUfunction fill_function = function("gpumux_fill");
  EXPECT_CUDA(cuLaunchKernel(fill_function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
  EXPECT_EQ(read(data, 1)[0], 9u);
  size = 19;
  EXPECT_EQ(cuLaunchKernel(fill_function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra), CUDA_ERROR_INVALID_VALUE);
  void* parameters[] = {&buffer.destination, &buffer.count, &buffer.value};
  EXPECT_EQ(cuLaunchKernel(fill_function, 0, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLaunchKernel(fill_function, 1, 1, 1, 1024, 2, 1, 0, nullptr, parameters, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr), CUDA_ERROR_INVALID_HANDLE);
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  EXPECT_CUDA(cuLaunchKernelEx(&config, fill_function, parameters, nullptr));
  EXPECT_CUDA(cuCtxSynchronize());
}

TEST_F(ContextTest, GetProcAddressFindsTheRightVersions) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  EXPECT_CUDA(cuGetProcAddress_v2("cuMemAlloc", &found, 13000, 0, &status));
  EXPECT_EQ(found, reinterpret_cast<void*>(&cuMemAlloc_v2));
  EXPECT_CUDA(
      cuGetProcAddress_v2("cuLaunchKernel", &found, 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status));
  EXPECT_EQ(found, reinterpret_cast<void*>(&cuLaunchKernel_ptsz));
  EXPECT_CUDA(cuGetProcAddress_v2("cuStreamBeginCapture", &found, 13000, 0, &status));
  EXPECT_EQ(found, reinterpret_cast<void*>(&cuStreamBeginCapture_v2));
  EXPECT_CUDA(cuGetProcAddress_v2("cuGetProcAddress", &found, 11030, 0, &status));
  EXPECT_EQ(found, reinterpret_cast<void*>(&cuGetProcAddress));
  EXPECT_CUDA(cuGetProcAddress_v2("cuNothing", &found, 13000, 0, &status));
  EXPECT_EQ(found, nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_CUDA(cuGetProcAddress_v2("cuMemCreate", &found, 4000, 0, &status));
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  EXPECT_EQ(cuGetProcAddress("cuNothing", &found, 13000, 0), CUDA_ERROR_NOT_FOUND);
}

TEST(FaultsTest, ScriptsAreReadOrRefused) {
  const auto faults = parse_faults("cuMemMap:3=OUT_OF_MEMORY;cuMemcpyDtoHAsync_v2:1+=700;");
  ASSERT_TRUE(faults.has_value());
  ASSERT_EQ(faults->size(), 2u);
  EXPECT_EQ((*faults)[0].entry, "cuMemMap");
  EXPECT_EQ((*faults)[0].nth, 3u);
  EXPECT_FALSE((*faults)[0].and_later);
  EXPECT_EQ((*faults)[0].code, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE((*faults)[1].and_later);
  EXPECT_EQ((*faults)[1].code, CUDA_ERROR_ILLEGAL_ADDRESS);
  for (const char* bad :
       {"cuMemMap", "cuMemMap:0=1", "cuMemMap:x=1", "cuMemMap:1=NOT_A_CODE", "cuMemMap=1:1", "cuMemMap:1=0"}) {
    EXPECT_FALSE(parse_faults(bad).has_value()) << bad;
  }
}

}  // namespace
}  // namespace gpumux::sim
