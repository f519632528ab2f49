// SPDX-License-Identifier: Apache-2.0
// Device memory that the program asks for. Memory from cuMemAlloc is the pager's, which can take it off the GPU and
// bring it back. The rest is the driver's and stays where it is. It is counted, so that the daemon knows it. An
// allocation that fails for lack of memory is tried once more when others have made room.
#include <algorithm>

#include "shim/hooks/hooks.gen.h"
#include "shim/hooks/submit.h"

namespace gpumux::shim::hooks {
namespace {

// Allocations of the driver's own lie in blocks of this size, small ones several in one.
std::uint64_t in_blocks(std::uint64_t bytes) {
  if (bytes < pager::kBlockBytes) return bytes;
  return pager::round_up(std::min(bytes, UINT64_MAX / 2), pager::kBlockBytes);
}

// A driver's call that takes about `bytes` of device memory, and `least` at any rate, kept account of under `key()`.
template <class Call, class Key>
CUresult outside(wire::Unpageable reason, std::uint64_t bytes, std::uint64_t least, Call call, Key key) {
  const Here at = here();
  if (at.memory == nullptr) return call();
  return at.memories->within_quota(*at.memory, bytes, least, call, [&](std::uint64_t reserved) {
    at.memory->add_outside(reason, key(), in_blocks(least), at.context, reserved);
  });
}

template <class Call>
CUresult free_outside(std::uint64_t key, Call call) {
  Tenant* const mine = tenant_if_any();
  return mine != nullptr && key != 0 ? mine->memories().free_outside(key, call) : call();
}

// Managed memory in place of what the program asked for.
CUresult allocate_managed(const Here& at, CUdeviceptr* pointer, std::size_t bytes, unsigned int flags) {
  const auto real = driver().cuMemAllocManaged;
  if (real == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (at.memory == nullptr || pointer == nullptr || bytes == 0) return real(pointer, bytes, flags);
  return at.memories->allocate_managed(*at.memory, at.context, bytes, pointer,
                                       [&](CUdeviceptr* address) { return real(address, bytes, flags); });
}

// Advice that says where memory should be, given by `call()`.
template <class Call>
CUresult advise(CUdeviceptr pointer, std::size_t bytes, CUmem_advise advice, CUmemLocation place, Call call) {
  Tenant* const mine = tenant_if_any();
  std::optional<CUresult> result;
  const auto gave = [&](DeviceMemory& memory) {
    return (result = memory.managed.advise(pointer, bytes, advice, place, call)).has_value();
  };
  return mine != nullptr && mine->memories().first(gave) != nullptr ? *result : call();
}

// How much an array takes is the driver's business.
struct ArrayBytes {
  std::uint64_t about = 0;
  std::uint64_t least = 0;  // its elements; 0: unknown, for compressed formats and formats with several planes
};

ArrayBytes array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& array) {
  // The program itself maps memory to such arrays.
  if ((array.Flags & (kArraySparse | kArrayDeferredMapping)) != 0) return {};
  std::uint64_t bytes = 4;
  bool is_known = true;
  switch (array.Format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: bytes = 1; break;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: bytes = 2; break;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: break;
    default: is_known = false;
  }
  for (const std::uint64_t count : {std::uint64_t{array.Width}, std::uint64_t{array.Height}, std::uint64_t{array.Depth},
                                    std::uint64_t{array.NumChannels}}) {
    if (__builtin_mul_overflow(bytes, std::max<std::uint64_t>(count, 1), &bytes)) return {};  // the driver will refuse
  }
  return {bytes, is_known ? bytes : 0};
}

}  // namespace

CUresult cuMemAlloc_v2(CUdeviceptr* pointer, std::size_t bytes) {
  const auto real = driver().cuMemAlloc_v2;
  const Here at = here();
  if (at.memory == nullptr || pointer == nullptr || bytes == 0) return real(pointer, bytes);
  if (at.memories->is_managed()) return allocate_managed(at, pointer, bytes, CU_MEM_ATTACH_GLOBAL);
  if (!at.memory->is_paged()) {
    return outside(
        wire::Unpageable::kOther, bytes, in_blocks(bytes), [&] { return real(pointer, bytes); },
        [&] { return *pointer; });
  }
  return at.memories->allocate(*at.memory, bytes, [&](pager::Placement placement) {
    return at.memory->pager.allocate(at.context, bytes, placement, pointer);
  });
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* pointer, std::size_t* pitch, std::size_t width, std::size_t height,
                            unsigned int element_bytes) {
  const auto real = driver().cuMemAllocPitch_v2;
  const Here at = here();
  if (at.memory == nullptr || pointer == nullptr || pitch == nullptr)
    return real(pointer, pitch, width, height, element_bytes);
  std::size_t row = 0;
  std::uint64_t all = 0;
  const CUresult laid_out = pager::Pager::lay_out_rows(width, height, element_bytes, &row, &all);
  if (laid_out != CUDA_SUCCESS) return laid_out;
  if (at.memories->is_managed()) {
    const CUresult result = allocate_managed(at, pointer, all, CU_MEM_ATTACH_GLOBAL);
    if (result == CUDA_SUCCESS) *pitch = row;
    return result;
  }
  if (!at.memory->is_paged()) {
    return outside(
        wire::Unpageable::kOther, all, in_blocks(all),
        [&] { return real(pointer, pitch, width, height, element_bytes); }, [&] { return *pointer; });
  }
  return at.memories->allocate(*at.memory, all, [&](pager::Placement placement) {
    return at.memory->pager.allocate_pitch(at.context, width, height, element_bytes, placement, pointer, pitch);
  });
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
  Tenant* const mine = tenant_if_any();
  DeviceMemory* const owner = mine != nullptr && pointer != 0 ? mine->memories().owner_of(pointer) : nullptr;
  if (owner != nullptr) return mine->memories().free(*owner, pointer);
  return free_outside(pointer, [&] { return driver().cuMemFree_v2(pointer); });
}

CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  const CUresult result = driver().cuMemGetInfo_v2(free, total);
  if (result != CUDA_SUCCESS) return result;
  const Here at = here();
  if (at.memory == nullptr) return result;
  if (const std::uint64_t told = at.memory->await_total(); told != 0) {
    // As if the GPU were the program's alone, but for what others keep of it.
    *total = told;
    *free = at.memory->told_free();
    return result;
  }
  if (!at.memory->is_paged()) return result;
  // Memory kept for reuse is free. Allocations that have no memory yet are not.
  const std::uint64_t used = at.memory->pager.bounds().used();
  const std::uint64_t committed = at.memory->pager.bounds().committed();
  const std::uint64_t all = *free + used;
  *free = all - std::min(all, committed);
  return result;
}

CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device) {
  const CUresult result = driver().cuDeviceTotalMem_v2(bytes, device);
  if (result != CUDA_SUCCESS) return result;
  Tenant* const mine = tenant_if_any();
  const auto is_there = [device](const DeviceMemory& memory) { return memory.device == device; };
  if (DeviceMemory* const memory = mine != nullptr ? mine->memories().first(is_there) : nullptr) {
    if (const std::uint64_t told = memory->await_total(); told != 0) *bytes = told;
    return result;
  }
  // Programs ask this before they have a context. The daemon has said nothing then, and nothing is started for this
  // call. But the process knows its own quota.
  const Settings settings = read_settings();
  if (!settings.disabled && settings.memory.limit != 0) *bytes = std::min(*bytes, settings.memory.limit);
  return result;
}

CUresult cuMemAllocManaged(CUdeviceptr* pointer, std::size_t bytes, unsigned int flags) {
  return allocate_managed(here(), pointer, bytes, flags);
}

CUresult cuMemAdvise(CUdeviceptr pointer, std::size_t count, CUmem_advise advice, CUdevice device) {
  const CUmemLocation place{device == kDeviceCpu ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, device};
  return advise(pointer, count, advice, place, [&] { return driver().cuMemAdvise(pointer, count, advice, device); });
}

CUresult cuMemAdvise_v2(CUdeviceptr pointer, std::size_t count, CUmem_advise advice, CUmemLocation location) {
  return advise(pointer, count, advice, location,
                [&] { return driver().cuMemAdvise_v2(pointer, count, advice, location); });
}

CUresult cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* descriptor) {
  const auto real = driver().cuArrayCreate_v2;
  if (array == nullptr || descriptor == nullptr) return real(array, descriptor);
  const ArrayBytes bytes = array_bytes({.Width = descriptor->Width,
                                        .Height = descriptor->Height,
                                        .Depth = 1,
                                        .Format = descriptor->Format,
                                        .NumChannels = descriptor->NumChannels,
                                        .Flags = 0});
  return outside(
      wire::Unpageable::kArray, bytes.about, bytes.least, [&] { return real(array, descriptor); },
      [&] { return reinterpret_cast<std::uint64_t>(*array); });
}

CUresult cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  const auto real = driver().cuArray3DCreate_v2;
  if (array == nullptr || descriptor == nullptr) return real(array, descriptor);
  const ArrayBytes bytes = array_bytes(*descriptor);
  return outside(
      wire::Unpageable::kArray, bytes.about, bytes.least, [&] { return real(array, descriptor); },
      [&] { return reinterpret_cast<std::uint64_t>(*array); });
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* descriptor,
                                unsigned int levels) {
  const auto real = driver().cuMipmappedArrayCreate;
  if (array == nullptr || descriptor == nullptr) return real(array, descriptor, levels);
  const ArrayBytes bytes = array_bytes(*descriptor);
  // The largest level at least, and all smaller ones together are less than that.
  return outside(
      wire::Unpageable::kArray, 2 * bytes.about, bytes.least, [&] { return real(array, descriptor, levels); },
      [&] { return reinterpret_cast<std::uint64_t>(*array); });
}

CUresult cuArrayDestroy(CUarray array) {
  return free_outside(reinterpret_cast<std::uint64_t>(array), [&] { return driver().cuArrayDestroy(array); });
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  return free_outside(reinterpret_cast<std::uint64_t>(array), [&] { return driver().cuMipmappedArrayDestroy(array); });
}

}  // namespace gpumux::shim::hooks
