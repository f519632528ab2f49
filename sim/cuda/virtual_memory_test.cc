// SPDX-License-Identifier: Apache-2.0
// Goal: the virtual memory API gives physical memory any address, at any time, with rights per device, and unmapping
// does not wait. Method: the same memory seen through several addresses; kernels that run while their memory goes.
#include <fcntl.h>
#include <unistd.h>

#include "sim/cuda/test_machine.h"

namespace gpumux::sim {
namespace {

using namespace gpumux::cuda;

constexpr std::size_t kPage = std::size_t{2} << 20;

class VirtualMemoryTest : public SimTest {
 protected:
  CUmemAllocationProp properties(int device = 0) {
    CUmemAllocationProp made{};
    made.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    made.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    made.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    return made;
  }
  CUmemGenericAllocationHandle create(std::size_t bytes, int device = 0) {
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp made = properties(device);
    EXPECT_CUDA(cuMemCreate(&handle, bytes, &made, 0));
    return handle;
  }
  CUdeviceptr reserve(std::size_t bytes, CUdeviceptr hint = 0) {
    CUdeviceptr address = 0;
    EXPECT_CUDA(cuMemAddressReserve(&address, bytes, 0, hint, 0));
    return address;
  }
  CUresult allow(CUdeviceptr address, std::size_t bytes, int device = 0,
                 CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
    return cuMemSetAccess(address, bytes, &access, 1);
  }
  void drop(CUdeviceptr address, std::size_t bytes) {
    EXPECT_CUDA(cuMemUnmap(address, bytes));
    EXPECT_CUDA(cuMemAddressFree(address, bytes));
  }
};

TEST_F(VirtualMemoryTest, OneMemoryAtTwoAddresses) {
  std::size_t granularity = 0;
  const CUmemAllocationProp made = properties();
  EXPECT_CUDA(cuMemGetAllocationGranularity(&granularity, &made, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  EXPECT_EQ(granularity, kPage);
  const CUdeviceptr first = reserve(2 * kPage);
  const CUdeviceptr second = reserve(kPage);
  const auto handle = create(2 * kPage);
  EXPECT_CUDA(cuMemMap(first, 2 * kPage, 0, handle, 0));
  EXPECT_CUDA(cuMemMap(second, kPage, kPage, handle, 0));
  EXPECT_CUDA(allow(first, 2 * kPage));
  EXPECT_CUDA(allow(second, kPage));
  EXPECT_CUDA(fill(nullptr, first, kPage / 2, 5));
  EXPECT_CUDA(increment(nullptr, second, 1));
  EXPECT_EQ(read(first + kPage - 4, 2), (std::vector<std::uint32_t>{5, 6}));
  EXPECT_CUDA(cuMemRelease(handle));
  drop(first, 2 * kPage);
  drop(second, kPage);
}

TEST_F(VirtualMemoryTest, MemoryMovesToAnotherAddressAndBackWithItsData) {
  const CUdeviceptr address = reserve(kPage);
  const auto handle = create(kPage);
  for (std::uint32_t round = 0; round < 5; ++round) {
    EXPECT_CUDA(cuMemMap(address, kPage, 0, handle, 0));
    EXPECT_CUDA(allow(address, kPage));
    if (round == 0) {
      EXPECT_CUDA(cuMemsetD32_v2(address, 100, kPage / 4));
    }
    EXPECT_CUDA(increment(nullptr, address, kPage / 4));
    EXPECT_EQ(read(address + kPage - 4, 1)[0], 101 + round);
    EXPECT_CUDA(cuMemUnmap(address, kPage));
  }
  EXPECT_CUDA(cuMemRelease(handle));
  EXPECT_CUDA(cuMemAddressFree(address, kPage));
}

TEST_F(VirtualMemoryTest, MemoryIsChargedFromCreationUntilNobodyHoldsIt) {
  const std::uint64_t before = free_bytes();
  const auto handle = create(8 << 20);
  EXPECT_EQ(free_bytes(), before - (8 << 20));
  const CUdeviceptr address = reserve(8 << 20);
  EXPECT_EQ(free_bytes(), before - (8 << 20)) << "addresses cost nothing";
  EXPECT_CUDA(cuMemMap(address, 8 << 20, 0, handle, 0));
  EXPECT_CUDA(cuMemRelease(handle));
  EXPECT_EQ(free_bytes(), before - (8 << 20)) << "the mapping holds it";
  CUmemGenericAllocationHandle again = 0;
  EXPECT_CUDA(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(address + 4096)));
  EXPECT_CUDA(cuMemUnmap(address, 8 << 20));
  EXPECT_EQ(free_bytes(), before - (8 << 20));
  EXPECT_CUDA(cuMemRelease(again));
  EXPECT_EQ(free_bytes(), before);
  EXPECT_EQ(cuMemRelease(again), CUDA_ERROR_INVALID_VALUE);
  CUmemGenericAllocationHandle none = 0;
  const CUmemAllocationProp made = properties();
  EXPECT_EQ(cuMemCreate(&none, 128 << 20, &made, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemCreate(&none, kPage + 1, &made, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CUDA(cuMemAddressFree(address, 8 << 20));
}

TEST_F(VirtualMemoryTest, ReservationsAndMappingsAreChecked) {
  const CUdeviceptr address = reserve(4 * kPage);
  const auto handle = create(2 * kPage);
  EXPECT_EQ(cuMemMap(address, kPage + 4096, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(address, 3 * kPage, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(address + 3 * kPage, 2 * kPage, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CUDA(cuMemMap(address + kPage, 2 * kPage, 0, handle, 0));
  EXPECT_EQ(cuMemMap(address + 2 * kPage, kPage, 0, handle, 0), CUDA_ERROR_INVALID_VALUE)
      << "something is mapped there";
  EXPECT_EQ(cuMemUnmap(address, 2 * kPage), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemUnmap(address + kPage, kPage), CUDA_ERROR_INVALID_VALUE) << "mappings go whole";
  EXPECT_EQ(cuMemAddressFree(address, 4 * kPage), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CUDA(cuMemUnmap(address + kPage, 2 * kPage));
  EXPECT_CUDA(cuMemAddressFree(address, 4 * kPage));
  EXPECT_EQ(reserve(4 * kPage, address), address) << "a free hint is taken";
  EXPECT_NE(reserve(4 * kPage, address), address) << "a taken one is not";
  EXPECT_CUDA(cuMemAddressFree(address, 4 * kPage));
  EXPECT_CUDA(cuMemRelease(handle));
}

TEST_F(VirtualMemoryTest, NobodyMayTouchMemoryWithoutRights) {
  const CUdeviceptr address = reserve(kPage);
  const auto handle = create(kPage);
  EXPECT_CUDA(cuMemMap(address, kPage, 0, handle, 0));
  unsigned long long flags = 9;
  const CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  EXPECT_CUDA(cuMemGetAccess(&flags, &here, address));
  EXPECT_EQ(flags, 0u);
  EXPECT_CUDA(allow(address, kPage, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
  const CUdeviceptr out = allocate(8);
  EXPECT_CUDA(launch("gpumux_checksum", nullptr, address, std::uint64_t{4}, out));
  EXPECT_CUDA(cuCtxSynchronize());
  EXPECT_CUDA(increment(nullptr, address, 1));
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS) << "readable is not writable";
  // The context is broken, its memory still can be given back.
  const auto free_on_gpu = [] {
    const auto machine = Machine::get();
    return kGpuBytes - (*machine)->memory(0).used;
  };
  const std::uint64_t before = free_on_gpu();
  EXPECT_CUDA(cuMemUnmap(address, kPage));
  EXPECT_CUDA(cuMemRelease(handle));
  EXPECT_CUDA(cuMemAddressFree(address, kPage));
  EXPECT_EQ(free_on_gpu(), before + kPage);
}

TEST_F(VirtualMemoryTest, PeerAccessDoesNotCoverMappedMemory) {
  CUcontext second = nullptr;
  ASSERT_CUDA(cuCtxCreate_v2(&second, 0, 1));
  load_kernels();
  const CUdeviceptr address = reserve(kPage);
  const auto handle = create(kPage, 0);
  EXPECT_CUDA(cuMemMap(address, kPage, 0, handle, 0));
  EXPECT_CUDA(allow(address, kPage, 0));
  EXPECT_CUDA(cuCtxEnablePeerAccess(context_, 0));
  EXPECT_CUDA(allow(address, kPage, 1));
  EXPECT_CUDA(fill(nullptr, address, 1, 1));
  EXPECT_CUDA(cuCtxSynchronize());
  EXPECT_CUDA(allow(address, kPage, 1, CU_MEM_ACCESS_FLAGS_PROT_NONE));
  EXPECT_CUDA(fill(nullptr, address, 1, 1));
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_CUDA(cuCtxDestroy_v2(second));
  EXPECT_CUDA(cuMemRelease(handle));
  drop(address, kPage);
}

TEST_F(VirtualMemoryTest, UnmappingKillsARunningKernelAndNotTheProgram) {
  const CUdeviceptr address = reserve(16 << 20);
  const auto handle = create(16 << 20);
  EXPECT_CUDA(cuMemMap(address, 16 << 20, 0, handle, 0));
  EXPECT_CUDA(allow(address, 16 << 20));
  const CUstream stream = make_stream();
  CUevent begun = nullptr;
  ASSERT_CUDA(cuEventCreate(&begun, 0));
  EXPECT_CUDA(cuEventRecord(begun, stream));
  // Far more work than can be done until the unmapping below.
  for (int i = 0; i < 200; ++i) EXPECT_CUDA(increment(stream, address, 4 << 20));
  EXPECT_CUDA(cuEventSynchronize(begun));
  EXPECT_CUDA(cuMemUnmap(address, 16 << 20));
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_CUDA(cuMemRelease(handle));
  EXPECT_CUDA(cuMemAddressFree(address, 16 << 20));
}

TEST_F(VirtualMemoryTest, ExportedMemoryIsTheSameMemory) {
  const std::uint64_t before = free_bytes();
  const CUdeviceptr first = reserve(kPage);
  const CUdeviceptr second = reserve(kPage);
  const auto handle = create(kPage);
  EXPECT_CUDA(cuMemMap(first, kPage, 0, handle, 0));
  EXPECT_CUDA(allow(first, kPage));
  EXPECT_CUDA(fill(nullptr, first, kPage / 4, 11));
  EXPECT_CUDA(cuCtxSynchronize());
  int fd = -1;
  ASSERT_CUDA(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  EXPECT_EQ(read(first, 1)[0], 11u) << "exporting moves the bytes, not the address";
  CUmemGenericAllocationHandle imported = 0;
  ASSERT_CUDA(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  EXPECT_EQ(free_bytes(), before - kPage) << "the same memory is charged once";
  EXPECT_CUDA(cuMemMap(second, kPage, 0, imported, 0));
  EXPECT_CUDA(allow(second, kPage));
  EXPECT_CUDA(increment(nullptr, second, kPage / 4));
  EXPECT_EQ(read(first + kPage - 4, 1)[0], 12u);
  CUmemAllocationProp facts{};
  EXPECT_CUDA(cuMemGetAllocationPropertiesFromHandle(&facts, imported));
  EXPECT_EQ(facts.location.id, 0);
  int again = -1;
  EXPECT_EQ(cuMemExportToShareableHandle(&again, imported, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_ERROR_INVALID_VALUE)
      << "as the driver: only who made it";
  EXPECT_CUDA(cuMemRelease(handle));
  EXPECT_CUDA(cuMemUnmap(first, kPage));
  EXPECT_EQ(free_bytes(), before - kPage) << "the importer keeps it";
  EXPECT_CUDA(cuMemRelease(imported));
  EXPECT_CUDA(cuMemUnmap(second, kPage));
  EXPECT_EQ(free_bytes(), before);
  ::close(fd);
  const int not_memory = ::open("/dev/null", O_RDWR);
  EXPECT_EQ(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(not_memory)),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_ERROR_INVALID_VALUE);
  ::close(not_memory);
}

TEST_F(VirtualMemoryTest, ThousandsOfHandlesNeedNoDescriptors) {
  // 64 MiB in pieces of 2 MiB many times over, with the descriptors of a small program.
  std::vector<CUmemGenericAllocationHandle> handles;
  const int first_free = ::dup(0);
  for (int i = 0; i < 25; ++i) handles.push_back(create(kPage));
  const int next_free = ::dup(0);
  EXPECT_LE(next_free - first_free, 2);
  ::close(first_free);
  ::close(next_free);
  for (const auto handle : handles) EXPECT_CUDA(cuMemRelease(handle));
}

}  // namespace
}  // namespace gpumux::sim
