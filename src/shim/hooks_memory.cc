// SPDX-License-Identifier: Apache-2.0
// Device memory that the program asks for. What cuMemAlloc gives is the pager's, which can take it off the GPU and
// bring it back. The rest is the driver's and stays where it is: it is counted, so that the daemon knows, and what
// fails for lack of memory is tried once more when others have made room.
#include <algorithm>

#include "shim/hooks.gen.h"
#include "shim/submit.h"

namespace gpumux::shim::hooks {
namespace {

// The seat of the calling thread's context; `memory` null: none, the driver will say why.
struct Here {
  Memories* memories = nullptr;
  SeatMemory* memory = nullptr;
  CUcontext context = nullptr;
};

Here here() {
  Here found;
  Tenant* const mine = tenant();
  if (mine == nullptr || driver().cuCtxGetCurrent == nullptr ||
      driver().cuCtxGetCurrent(&found.context) != CUDA_SUCCESS || found.context == nullptr)
    return found;
  const auto slot = mine->seat_of(found.context);
  if (!slot) return found;
  found.memories = &mine->memories();
  found.memory = &found.memories->of(*slot);
  return found;
}

// Allocations of the driver's own lie in blocks of this size.
std::uint64_t in_blocks(std::uint64_t bytes) {
  return pager::round_up(std::min(bytes, UINT64_MAX / 2), pager::kBlockBytes);
}

// A driver's call that takes device memory, kept account of under `key()`.
template <class Call, class Key>
CUresult outside(wire::Unpageable reason, std::uint64_t bytes, Call call, Key key) {
  const Here at = here();
  if (at.memory == nullptr) return call();
  const CUresult result = at.memories->with_room(*at.memory, bytes, call);
  if (result == CUDA_SUCCESS) {
    at.memory->add_outside(reason, key(), in_blocks(bytes));
    at.memories->mover().note_change(*at.memory);
  }
  return result;
}

void forget_outside(std::uint64_t key) {
  if (Tenant* const mine = tenant_if_any()) mine->memories().forget_outside(key);
}

std::uint64_t format_bytes(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2;
    default: return 4;
  }
}

std::uint64_t array_bytes(std::uint64_t width, std::uint64_t height, std::uint64_t depth, CUarray_format format,
                          unsigned channels) {
  return width * std::max<std::uint64_t>(height, 1) * std::max<std::uint64_t>(depth, 1) * format_bytes(format) *
         std::max(channels, 1u);
}

template <class Load>
CUresult load_module(Load load) {
  const Here at = here();
  // How large a module is on the GPU only the driver knows: little, beside what can be made room for at once.
  constexpr std::uint64_t kModuleBytes = 32 * pager::kMebibyte;
  return at.memory == nullptr ? load() : at.memories->with_room(*at.memory, kModuleBytes, load);
}

}  // namespace

CUresult cuMemAlloc_v2(CUdeviceptr* pointer, std::size_t bytes) {
  const auto real = driver().cuMemAlloc_v2;
  if (real == nullptr) return kNoSuchEntry;
  const Here at = here();
  if (at.memory == nullptr || pointer == nullptr || bytes == 0) return real(pointer, bytes);
  if (at.memories->is_managed()) {
    return outside(
        wire::Unpageable::kManaged, 0, [&] { return driver().cuMemAllocManaged(pointer, bytes, CU_MEM_ATTACH_GLOBAL); },
        [&] { return *pointer; });
  }
  if (!at.memory->is_paged()) {
    return outside(
        wire::Unpageable::kOther, bytes, [&] { return real(pointer, bytes); }, [&] { return *pointer; });
  }
  return at.memories->allocate(*at.memory, bytes, [&](pager::Placement placement) {
    return at.memory->pager.allocate(at.context, bytes, placement, pointer);
  });
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* pointer, std::size_t* pitch, std::size_t width, std::size_t height,
                            unsigned int element_bytes) {
  const auto real = driver().cuMemAllocPitch_v2;
  if (real == nullptr) return kNoSuchEntry;
  const Here at = here();
  if (at.memory == nullptr || pointer == nullptr || pitch == nullptr || at.memories->is_managed())
    return real(pointer, pitch, width, height, element_bytes);
  if (!at.memory->is_paged()) {
    return outside(
        wire::Unpageable::kOther, width * height, [&] { return real(pointer, pitch, width, height, element_bytes); },
        [&] { return *pointer; });
  }
  const std::uint64_t rows = pager::round_up(std::min<std::uint64_t>(width, UINT64_MAX / 2), pager::kPitchBytes);
  const std::uint64_t bytes = height != 0 && rows > UINT64_MAX / height ? UINT64_MAX : rows * height;
  return at.memories->allocate(*at.memory, bytes, [&](pager::Placement placement) {
    return at.memory->pager.allocate_pitch(at.context, width, height, element_bytes, placement, pointer, pitch);
  });
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
  if (driver().cuMemFree_v2 == nullptr) return kNoSuchEntry;
  Tenant* const mine = tenant_if_any();
  SeatMemory* const owner = mine != nullptr && pointer != 0 ? mine->memories().owner_of(pointer) : nullptr;
  if (owner != nullptr) return mine->memories().free(*owner, pointer);
  const CUresult result = driver().cuMemFree_v2(pointer);
  if (result == CUDA_SUCCESS && pointer != 0) forget_outside(pointer);
  return result;
}

CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  if (driver().cuMemGetInfo_v2 == nullptr) return kNoSuchEntry;
  const CUresult result = driver().cuMemGetInfo_v2(free, total);
  if (result != CUDA_SUCCESS) return result;
  const Here at = here();
  if (at.memory == nullptr || !at.memory->is_paged()) return result;
  if (const std::uint64_t told = at.memory->told_total(); told != 0) {
    // As if the GPU were the program's alone: what others do changes nothing here.
    *total = told;
    *free = told - std::min(told, at.memory->allocated_bytes());
    return result;
  }
  // What is kept for reuse is free, what has no memory yet is not.
  const std::uint64_t used = at.memory->pager.bounds().used();
  const std::uint64_t committed = at.memory->pager.bounds().committed();
  const std::uint64_t all = *free + used;
  *free = all - std::min(all, committed);
  return result;
}

CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device) {
  if (driver().cuDeviceTotalMem_v2 == nullptr) return kNoSuchEntry;
  const CUresult result = driver().cuDeviceTotalMem_v2(bytes, device);
  // Programs ask this before they have a context: then nobody has said anything yet, and nothing is started for it.
  Tenant* const mine = tenant_if_any();
  if (result != CUDA_SUCCESS || mine == nullptr) return result;
  for (std::uint32_t slot = 0; slot < mine->seats().count(); ++slot) {
    const SeatMemory* const memory = mine->memories().if_any(slot);
    if (memory != nullptr && memory->device == device && memory->told_total() != 0) *bytes = memory->told_total();
  }
  return result;
}

CUresult cuMemAllocManaged(CUdeviceptr* pointer, std::size_t bytes, unsigned int flags) {
  const auto real = driver().cuMemAllocManaged;
  if (real == nullptr) return kNoSuchEntry;
  // Its pages come and go by the driver's doing, and may be anywhere: known, and not counted as being on the GPU.
  return outside(
      wire::Unpageable::kManaged, 0, [&] { return real(pointer, bytes, flags); }, [&] { return *pointer; });
}

CUresult cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* descriptor) {
  const auto real = driver().cuArrayCreate_v2;
  if (real == nullptr) return kNoSuchEntry;
  if (array == nullptr || descriptor == nullptr) return real(array, descriptor);
  return outside(
      wire::Unpageable::kArray,
      array_bytes(descriptor->Width, descriptor->Height, 1, descriptor->Format, descriptor->NumChannels),
      [&] { return real(array, descriptor); }, [&] { return reinterpret_cast<std::uint64_t>(*array); });
}

CUresult cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  const auto real = driver().cuArray3DCreate_v2;
  if (real == nullptr) return kNoSuchEntry;
  if (array == nullptr || descriptor == nullptr) return real(array, descriptor);
  return outside(
      wire::Unpageable::kArray,
      array_bytes(descriptor->Width, descriptor->Height, descriptor->Depth, descriptor->Format,
                  descriptor->NumChannels),
      [&] { return real(array, descriptor); }, [&] { return reinterpret_cast<std::uint64_t>(*array); });
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* descriptor,
                                unsigned int levels) {
  const auto real = driver().cuMipmappedArrayCreate;
  if (real == nullptr) return kNoSuchEntry;
  if (array == nullptr || descriptor == nullptr) return real(array, descriptor, levels);
  // All smaller levels together are less than the largest.
  return outside(
      wire::Unpageable::kArray,
      2 * array_bytes(descriptor->Width, descriptor->Height, descriptor->Depth, descriptor->Format,
                      descriptor->NumChannels),
      [&] { return real(array, descriptor, levels); }, [&] { return reinterpret_cast<std::uint64_t>(*array); });
}

CUresult cuArrayDestroy(CUarray array) {
  if (driver().cuArrayDestroy == nullptr) return kNoSuchEntry;
  const CUresult result = driver().cuArrayDestroy(array);
  if (result == CUDA_SUCCESS) forget_outside(reinterpret_cast<std::uint64_t>(array));
  return result;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  if (driver().cuMipmappedArrayDestroy == nullptr) return kNoSuchEntry;
  const CUresult result = driver().cuMipmappedArrayDestroy(array);
  if (result == CUDA_SUCCESS) forget_outside(reinterpret_cast<std::uint64_t>(array));
  return result;
}

CUresult cuModuleLoad(CUmodule* module, const char* path) {
  if (driver().cuModuleLoad == nullptr) return kNoSuchEntry;
  return load_module([&] { return driver().cuModuleLoad(module, path); });
}
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  if (driver().cuModuleLoadData == nullptr) return kNoSuchEntry;
  return load_module([&] { return driver().cuModuleLoadData(module, image); });
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int option_count, CUjit_option* options,
                            void** option_values) {
  if (driver().cuModuleLoadDataEx == nullptr) return kNoSuchEntry;
  return load_module([&] { return driver().cuModuleLoadDataEx(module, image, option_count, options, option_values); });
}
CUresult cuModuleLoadFatBinary(CUmodule* module, const void* fat_binary) {
  if (driver().cuModuleLoadFatBinary == nullptr) return kNoSuchEntry;
  return load_module([&] { return driver().cuModuleLoadFatBinary(module, fat_binary); });
}

}  // namespace gpumux::shim::hooks
