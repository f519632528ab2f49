// SPDX-License-Identifier: Apache-2.0
// Stream-ordered allocation. Pools are left to the driver, which maps and unmaps by itself, in the order of streams:
// what they hold is counted, and stays on the GPU. An allocation may make the driver take memory, so it passes the
// gate, and is tried once more when others have made room.
#include "shim/hooks.gen.h"
#include "shim/submit.h"

namespace gpumux::shim::hooks {
namespace {

template <class Call>
CUresult allocate_from(CUmemoryPool pool, CUstream stream, StreamVariant variant, std::size_t bytes, Call call) {
  Tenant* const mine = tenant();
  CUdevice device = 0;
  if (mine == nullptr || driver().cuCtxGetDevice == nullptr || driver().cuCtxGetDevice(&device) != CUDA_SUCCESS)
    return call();
  const auto slot = mine->seat_of_device(device);
  if (!slot) return call();
  SeatMemory& memory = mine->memories().of(*slot);
  // Out of the gate again before anybody waits for room.
  const CUresult result = mine->memories().with_room(memory, bytes, [&] {
    const Passage passage(at_stream(stream, variant));
    return call();
  });
  if (result != CUDA_SUCCESS) return result;
  if (pool == nullptr && driver().cuDeviceGetMemPool != nullptr) driver().cuDeviceGetMemPool(&pool, device);
  memory.count_pool(pool);
  mine->memories().mover().note_change(memory);
  return result;
}

}  // namespace

CUresult cuMemAllocAsync(CUdeviceptr* pointer, std::size_t bytes, CUstream stream) {
  const auto real = driver().cuMemAllocAsync;
  if (real == nullptr) return kNoSuchEntry;
  return allocate_from(nullptr, stream, StreamVariant::kLegacy, bytes, [&] { return real(pointer, bytes, stream); });
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr* pointer, std::size_t bytes, CUstream stream) {
  const auto real = driver().cuMemAllocAsync_ptsz;
  if (real == nullptr) return kNoSuchEntry;
  return allocate_from(nullptr, stream, StreamVariant::kPtsz, bytes, [&] { return real(pointer, bytes, stream); });
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* pointer, std::size_t bytes, CUmemoryPool pool, CUstream stream) {
  const auto real = driver().cuMemAllocFromPoolAsync;
  if (real == nullptr) return kNoSuchEntry;
  return allocate_from(pool, stream, StreamVariant::kLegacy, bytes, [&] { return real(pointer, bytes, pool, stream); });
}
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* pointer, std::size_t bytes, CUmemoryPool pool, CUstream stream) {
  const auto real = driver().cuMemAllocFromPoolAsync_ptsz;
  if (real == nullptr) return kNoSuchEntry;
  return allocate_from(pool, stream, StreamVariant::kPtsz, bytes, [&] { return real(pointer, bytes, pool, stream); });
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  if (driver().cuMemPoolDestroy == nullptr) return kNoSuchEntry;
  Tenant* const mine = tenant_if_any();
  // Before it is gone: nobody may ask it anything then.
  for (std::uint32_t slot = 0; mine != nullptr && slot < mine->seats().count(); ++slot) {
    if (SeatMemory* const memory = mine->memories().if_any(slot)) memory->forget_pool(pool);
  }
  return driver().cuMemPoolDestroy(pool);
}

}  // namespace gpumux::shim::hooks
