// SPDX-License-Identifier: Apache-2.0
// Goal: NVML tells what its driver does. Method: each fact against the driver's answer to the same question.
#include "cuda/nvml_prototypes.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "sim/cuda/test_machine.h"

namespace gpumux::sim {
namespace {

using namespace gpumux::cuda;

class NvmlTest : public SimTest {
 protected:
  void SetUp() override {
    ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
    SimTest::SetUp();
    ASSERT_EQ(nvmlDeviceGetHandleByIndex_v2(0, &device_), NVML_SUCCESS);
  }
  void TearDown() override {
    SimTest::TearDown();
    EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
  }
  nvmlDevice_t device_ = nullptr;
};

TEST(NvmlLifeTest, NothingWorksBeforeInitialisation) {
  unsigned count = 0;
  EXPECT_EQ(nvmlDeviceGetCount_v2(&count), NVML_ERROR_UNINITIALIZED);
  EXPECT_EQ(nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
}

TEST_F(NvmlTest, DevicesAreTheDrivers) {
  unsigned count = 0;
  EXPECT_EQ(nvmlDeviceGetCount_v2(&count), NVML_SUCCESS);
  EXPECT_EQ(count, 2u);
  char uuid[96];
  ASSERT_EQ(nvmlDeviceGetUUID(device_, uuid, sizeof uuid), NVML_SUCCESS);
  CUuuid drivers{};
  ASSERT_CUDA(cuDeviceGetUuid_v2(&drivers, 0));
  base::GpuUuid same;
  std::memcpy(same.bytes.data(), drivers.bytes, sizeof drivers.bytes);
  EXPECT_EQ(same.to_string(), uuid);
  nvmlDevice_t found = nullptr;
  EXPECT_EQ(nvmlDeviceGetHandleByUUID(uuid, &found), NVML_SUCCESS);
  EXPECT_EQ(found, device_);
  EXPECT_EQ(nvmlDeviceGetHandleByUUID("GPU-0", &found), NVML_ERROR_NOT_FOUND);
  EXPECT_EQ(nvmlDeviceGetUUID(device_, uuid, 4), NVML_ERROR_INSUFFICIENT_SIZE);
  EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(2, &found), NVML_ERROR_INVALID_ARGUMENT);
  nvmlPciInfo_t pci{};
  EXPECT_EQ(nvmlDeviceGetPciInfo_v3(device_, &pci), NVML_SUCCESS);
  char bus[32];
  ASSERT_CUDA(cuDeviceGetPCIBusId(bus, sizeof bus, 0));
  EXPECT_STREQ(pci.busIdLegacy, bus);
  nvmlDeviceArchitecture_t architecture = 0;
  EXPECT_EQ(nvmlDeviceGetArchitecture(device_, &architecture), NVML_SUCCESS);
  EXPECT_EQ(architecture, kNvmlArchitectureHopper);
  int capability[2]{};
  EXPECT_EQ(nvmlDeviceGetCudaComputeCapability(device_, &capability[0], &capability[1]), NVML_SUCCESS);
  int drivers_capability[2]{};
  ASSERT_CUDA(cuDeviceGetAttribute(&drivers_capability[0], CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
  ASSERT_CUDA(cuDeviceGetAttribute(&drivers_capability[1], CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0));
  EXPECT_EQ(capability[0], drivers_capability[0]);
  EXPECT_EQ(capability[1], drivers_capability[1]);
  char version[80];
  EXPECT_EQ(nvmlSystemGetDriverVersion(version, sizeof version), NVML_SUCCESS);
  EXPECT_STREQ(version, "580.159.04 (simulated)");
  int cuda_version = 0;
  EXPECT_EQ(nvmlSystemGetCudaDriverVersion_v2(&cuda_version), NVML_SUCCESS);
  EXPECT_EQ(cuda_version, 13000);
  unsigned current = 9;
  unsigned pending = 9;
  EXPECT_EQ(nvmlDeviceGetMigMode(device_, &current, &pending), NVML_SUCCESS);
  EXPECT_EQ(current, kNvmlMigDisabled);
}

TEST_F(NvmlTest, MemoryAndProcessesAreTheMachines) {
  allocate(10 << 20);
  nvmlMemory_t memory{};
  EXPECT_EQ(nvmlDeviceGetMemoryInfo(device_, &memory), NVML_SUCCESS);
  EXPECT_EQ(memory.free, free_bytes());
  EXPECT_EQ(memory.used, kContextBytes + (10 << 20));
  nvmlMemory_v2_t newer{};
  EXPECT_EQ(nvmlDeviceGetMemoryInfo_v2(device_, &newer), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
  newer.version = kNvmlMemoryVersion2;
  EXPECT_EQ(nvmlDeviceGetMemoryInfo_v2(device_, &newer), NVML_SUCCESS);
  EXPECT_EQ(newer.used, memory.used);
  unsigned count = 0;
  EXPECT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device_, &count, nullptr), NVML_ERROR_INSUFFICIENT_SIZE);
  ASSERT_EQ(count, 1u);
  nvmlProcessInfo_t process{};
  EXPECT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device_, &count, &process), NVML_SUCCESS);
  EXPECT_EQ(process.pid, static_cast<unsigned>(::getpid()));
  EXPECT_EQ(process.usedGpuMemory, memory.used);
  EXPECT_EQ(nvmlDeviceGetMPSComputeRunningProcesses_v3(device_, &count, nullptr), NVML_SUCCESS);
  EXPECT_EQ(count, 0u);
}

TEST_F(NvmlTest, UtilizationIsTheShareOfTheLast100Ms) {
  nvmlUtilization_t rates{};
  const CUstream stream = make_stream();
  EXPECT_CUDA(spin(stream, 150'000'000));
  EXPECT_CUDA(cuStreamSynchronize(stream));
  EXPECT_EQ(nvmlDeviceGetUtilizationRates(device_, &rates), NVML_SUCCESS);
  EXPECT_GE(rates.gpu, 50u);
  EXPECT_TRUE(
      eventually([&] { return nvmlDeviceGetUtilizationRates(device_, &rates) == NVML_SUCCESS && rates.gpu == 0; }));
}

TEST_F(NvmlTest, PowerAndTemperatureFollowUtilization) {
  const auto power = [&] {
    unsigned milliwatts = 0;
    EXPECT_EQ(nvmlDeviceGetPowerUsage(device_, &milliwatts), NVML_SUCCESS);
    return milliwatts;
  };
  const auto temperature = [&] {
    unsigned celsius = 0;
    EXPECT_EQ(nvmlDeviceGetTemperature(device_, NVML_TEMPERATURE_GPU, &celsius), NVML_SUCCESS);
    return celsius;
  };
  EXPECT_TRUE(eventually([&] { return power() == 70'000u && temperature() == 30u; })) << "it is idle";
  const CUstream stream = make_stream();
  EXPECT_CUDA(spin(stream, 150'000'000));
  EXPECT_CUDA(cuStreamSynchronize(stream));
  EXPECT_GT(power(), 200'000u);
  EXPECT_GT(temperature(), 40u);
  unsigned limit = 0;
  EXPECT_EQ(nvmlDeviceGetEnforcedPowerLimit(device_, &limit), NVML_SUCCESS);
  EXPECT_EQ(limit, 700'000u);
  EXPECT_TRUE(eventually([&] { return power() == 70'000u && temperature() == 30u; }));
}

TEST_F(NvmlTest, AGpuNeedsTheActionOfItsFile) {
  const std::string file = std::string(std::getenv("GPUMUX_SIM_DIR")) + "/recovery-0";
  const auto action = [&](nvmlDevice_t device) {
    nvmlFieldValue_t field{};
    field.fieldId = kNvmlFieldRecoveryAction;
    EXPECT_EQ(nvmlDeviceGetFieldValues(device, 1, &field), NVML_SUCCESS);
    EXPECT_EQ(field.nvmlReturn, NVML_SUCCESS);
    return field.value.uiVal;
  };
  EXPECT_EQ(action(device_), NVML_GPU_RECOVERY_ACTION_NONE);
  std::ofstream(file) << 1;
  EXPECT_EQ(action(device_), NVML_GPU_RECOVERY_ACTION_GPU_RESET);
  nvmlDevice_t other = nullptr;
  ASSERT_EQ(nvmlDeviceGetHandleByIndex_v2(1, &other), NVML_SUCCESS);
  EXPECT_EQ(action(other), NVML_GPU_RECOVERY_ACTION_NONE);
  std::filesystem::remove(file);
  EXPECT_EQ(action(device_), NVML_GPU_RECOVERY_ACTION_NONE);
  nvmlFieldValue_t unknown{};
  EXPECT_EQ(nvmlDeviceGetFieldValues(device_, 1, &unknown), NVML_SUCCESS);
  EXPECT_EQ(unknown.nvmlReturn, NVML_ERROR_NOT_SUPPORTED);
}

}  // namespace
}  // namespace gpumux::sim
