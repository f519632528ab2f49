// SPDX-License-Identifier: Apache-2.0
// Entry points: copies and fills.
#include <cstring>

#include "sim/cuda/api.h"
#include "sim/cuda/task.h"

namespace gpumux::sim {
namespace {

using cuda::CUresult;

// Pageable host memory up to this size is taken along at once; beyond it the call waits for the copy, as the driver's
// staging does.
constexpr std::uint64_t kStagedBytes = std::uint64_t{64} << 10;

std::uint64_t address_in(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

CopyTask task_for(const std::shared_ptr<Stream>& stream, const Copy& copy) {
  CopyTask task;
  task.context = stream->context();
  task.copy = copy;
  task.described.srcMemoryType = cuda::CU_MEMORYTYPE_UNIFIED;
  task.described.dstMemoryType = cuda::CU_MEMORYTYPE_UNIFIED;
  task.described.srcDevice = copy.source;
  task.described.dstDevice = copy.destination;
  task.described.srcPitch = copy.source_pitch;
  task.described.dstPitch = copy.destination_pitch;
  task.described.WidthInBytes = copy.width;
  task.described.Height = copy.height;
  task.described.Depth = copy.depth;
  return task;
}

CUresult copy_async(const std::shared_ptr<Stream>& stream, const Copy& copy) {
  CopyTask task = task_for(stream, copy);
  const AddressSpace& space = stream->context()->process().space();
  if (copy.bytes() == 0 || capturing(stream)) return issue(stream, std::move(task));
  const bool from_pageable = is_pageable(space, copy.source);
  const bool to_pageable = is_pageable(space, copy.destination);
  if (to_pageable) return issue_and_wait(stream, std::move(task));
  if (!from_pageable) return issue(stream, std::move(task));
  if (copy.bytes() > kStagedBytes || copy.height != 1 || copy.depth != 1)
    return issue_and_wait(stream, std::move(task));
  if (const CUresult result = check_copy(space, copy); result != cuda::CUDA_SUCCESS) return result;
  const auto* bytes = reinterpret_cast<const std::byte*>(copy.source);
  task.staged = std::make_shared<std::vector<std::byte>>(bytes, bytes + copy.width);
  task.copy.source = address_in(task.staged->data());
  return issue(stream, std::move(task));
}

// The calls without a stream. A copy that touches host memory returns when it is over. A copy between devices only
// keeps the order.
CUresult copy_sync(const std::shared_ptr<Stream>& stream, const Copy& copy) {
  // A call that waits is an error while a stream captures, and takes the legacy stream besides.
  if (const CUresult result = may_wait_for(stream); result != cuda::CUDA_SUCCESS) return result;
  if (const CUresult result = may_call_unsafe(); result != cuda::CUDA_SUCCESS) return result;
  const AddressSpace& space = stream->context()->process().space();
  if (space.is_device_address(copy.source) && space.is_device_address(copy.destination))
    return issue(stream, task_for(stream, copy));
  return issue_and_wait(stream, task_for(stream, copy));
}

CUresult copy_call(const char* entry, bool per_thread, bool async, const Copy& copy, cuda::CUstream handle) {
  return stream_call(entry, handle, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    return async ? copy_async(stream, copy) : copy_sync(stream, copy);
  });
}

template <class Description>
CUresult described_copy(const char* entry, bool per_thread, bool async, const Description* description,
                        cuda::CUstream handle) {
  return stream_call(entry, handle, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    if (description == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    Copy copy;
    if (const CUresult result = copy_of(*description, &copy); result != cuda::CUDA_SUCCESS) return result;
    return async ? copy_async(stream, copy) : copy_sync(stream, copy);
  });
}

// The contexts of a peer copy only say on which devices the addresses are, which the addresses say as well.
cuda::CUDA_MEMCPY3D without_contexts(const cuda::CUDA_MEMCPY3D_PEER& peer) {
  static_assert(sizeof(cuda::CUDA_MEMCPY3D) == sizeof(cuda::CUDA_MEMCPY3D_PEER));
  cuda::CUDA_MEMCPY3D copy;
  std::memcpy(&copy, &peer, sizeof copy);
  return copy;
}

CUresult peer_block_copy(const char* entry, bool per_thread, bool async, const cuda::CUDA_MEMCPY3D_PEER* peer,
                         cuda::CUstream handle) {
  if (peer == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  const cuda::CUDA_MEMCPY3D copy = without_contexts(*peer);
  return described_copy(entry, per_thread, async, &copy, handle);
}

CUresult peer_copy(const char* entry, bool per_thread, bool async, cuda::CUdeviceptr to, cuda::CUcontext to_context,
                   cuda::CUdeviceptr from, cuda::CUcontext from_context, std::size_t bytes, cuda::CUstream handle) {
  return stream_call(entry, handle, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    const auto& contexts = stream->context()->process().contexts;
    if (contexts.find(to_context) == nullptr || contexts.find(from_context) == nullptr)
      return cuda::CUDA_ERROR_INVALID_CONTEXT;
    const Copy copy = flat_copy(to, from, bytes);
    return async ? copy_async(stream, copy) : copy_sync(stream, copy);
  });
}

CUresult batch_copy(const char* entry, bool per_thread, cuda::CUdeviceptr* to, cuda::CUdeviceptr* from,
                    const std::size_t* sizes, std::size_t count, std::size_t* fail_index, cuda::CUstream handle) {
  return stream_call(entry, handle, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    if (to == nullptr || from == nullptr || sizes == nullptr || count == 0) return cuda::CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < count; ++i) {
      const CUresult result = copy_async(stream, flat_copy(to[i], from[i], sizes[i]));
      if (result == cuda::CUDA_SUCCESS) continue;
      if (fail_index != nullptr) *fail_index = i;
      return result;
    }
    return cuda::CUDA_SUCCESS;
  });
}

CUresult fill_call(const char* entry, bool per_thread, std::uint64_t to, std::uint64_t pitch, std::uint32_t value,
                   std::uint32_t element_bytes, std::uint64_t width, std::uint64_t height, cuda::CUstream handle) {
  return stream_call(entry, handle, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    FillTask task{stream->context(), Fill{to, pitch, value, element_bytes, width, height}};
    return issue(stream, std::move(task));
  });
}

// The forms without a stream: the same in the default stream, not waited for. Not while a capture forbids such calls.
CUresult plain_fill(const char* entry, bool per_thread, std::uint64_t to, std::uint64_t pitch, std::uint32_t value,
                    std::uint32_t element_bytes, std::uint64_t width, std::uint64_t height) {
  return stream_call(entry, nullptr, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    if (const CUresult result = may_wait_for(stream); result != cuda::CUDA_SUCCESS) return result;
    if (const CUresult result = may_call_unsafe(); result != cuda::CUDA_SUCCESS) return result;
    return issue(stream, FillTask{stream->context(), Fill{to, pitch, value, element_bytes, width, height}});
  });
}

}  // namespace
}  // namespace gpumux::sim

namespace gpumux::cuda {

using namespace gpumux::sim;

extern "C" {

GPUMUX_SIM_STREAM_ENTRY(cuMemcpy, _ptds, (CUdeviceptr to, CUdeviceptr from, std::size_t bytes), copy_call, false,
                        flat_copy(to, from, bytes), nullptr)
GPUMUX_SIM_STREAM_ENTRY(cuMemcpyAsync, _ptsz, (CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream),
                        copy_call, true, flat_copy(to, from, bytes), stream)
GPUMUX_SIM_STREAM_ENTRY(cuMemcpyHtoD_v2, _ptds, (CUdeviceptr to, const void* from, std::size_t bytes), copy_call, false,
                        flat_copy(to, address_in(from), bytes), nullptr)
GPUMUX_SIM_STREAM_ENTRY(cuMemcpyHtoDAsync_v2, _ptsz,
                        (CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream), copy_call, true,
                        flat_copy(to, address_in(from), bytes), stream)
GPUMUX_SIM_STREAM_ENTRY(cuMemcpyDtoH_v2, _ptds, (void* to, CUdeviceptr from, std::size_t bytes), copy_call, false,
                        flat_copy(address_in(to), from, bytes), nullptr)
GPUMUX_SIM_STREAM_ENTRY(cuMemcpyDtoHAsync_v2, _ptsz, (void* to, CUdeviceptr from, std::size_t bytes, CUstream stream),
                        copy_call, true, flat_copy(address_in(to), from, bytes), stream)
GPUMUX_SIM_STREAM_ENTRY(cuMemcpyDtoD_v2, _ptds, (CUdeviceptr to, CUdeviceptr from, std::size_t bytes), copy_call, false,
                        flat_copy(to, from, bytes), nullptr)
GPUMUX_SIM_STREAM_ENTRY(cuMemcpyDtoDAsync_v2, _ptsz,
                        (CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream), copy_call, true,
                        flat_copy(to, from, bytes), stream)

GPUMUX_SIM_STREAM_ENTRY(cuMemcpyPeer, _ptds,
                        (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                         std::size_t bytes),
                        peer_copy, false, to, to_context, from, from_context, bytes, nullptr)
GPUMUX_SIM_STREAM_ENTRY(cuMemcpyPeerAsync, _ptsz,
                        (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                         std::size_t bytes, CUstream stream),
                        peer_copy, true, to, to_context, from, from_context, bytes, stream)

GPUMUX_SIM_STREAM_ENTRY(cuMemcpy2D_v2, _ptds, (const CUDA_MEMCPY2D* copy), described_copy, false, copy, nullptr)
GPUMUX_SIM_STREAM_ENTRY(cuMemcpy2DUnaligned_v2, _ptds, (const CUDA_MEMCPY2D* copy), described_copy, false, copy,
                        nullptr)
GPUMUX_SIM_STREAM_ENTRY(cuMemcpy2DAsync_v2, _ptsz, (const CUDA_MEMCPY2D* copy, CUstream stream), described_copy, true,
                        copy, stream)
GPUMUX_SIM_STREAM_ENTRY(cuMemcpy3D_v2, _ptds, (const CUDA_MEMCPY3D* copy), described_copy, false, copy, nullptr)
GPUMUX_SIM_STREAM_ENTRY(cuMemcpy3DAsync_v2, _ptsz, (const CUDA_MEMCPY3D* copy, CUstream stream), described_copy, true,
                        copy, stream)
GPUMUX_SIM_STREAM_ENTRY(cuMemcpy3DPeer, _ptds, (const CUDA_MEMCPY3D_PEER* copy), peer_block_copy, false, copy, nullptr)
GPUMUX_SIM_STREAM_ENTRY(cuMemcpy3DPeerAsync, _ptsz, (const CUDA_MEMCPY3D_PEER* copy, CUstream stream), peer_block_copy,
                        true, copy, stream)

GPUMUX_SIM_STREAM_ENTRY(cuMemcpyBatchAsync, _ptsz,
                        (CUdeviceptr * to, CUdeviceptr* from, std::size_t* sizes, std::size_t count,
                         CUmemcpyAttributes*, std::size_t*, std::size_t, std::size_t* fail_index, CUstream stream),
                        batch_copy, to, from, sizes, count, fail_index, stream)
GPUMUX_SIM_STREAM_ENTRY(cuMemcpyBatchAsync_v2, _ptsz,
                        (CUdeviceptr * to, CUdeviceptr* from, std::size_t* sizes, std::size_t count,
                         CUmemcpyAttributes*, std::size_t*, std::size_t, CUstream stream),
                        batch_copy, to, from, sizes, count, nullptr, stream)

#define GPUMUX_SIM_FILL(bits, type)                                                                                  \
  GPUMUX_SIM_STREAM_ENTRY(cuMemsetD##bits##_v2, _ptds, (CUdeviceptr to, type value, std::size_t count), plain_fill,  \
                          to, 0, value, (bits) / 8, count, 1)                                                        \
  GPUMUX_SIM_STREAM_ENTRY(cuMemsetD##bits##Async, _ptsz,                                                             \
                          (CUdeviceptr to, type value, std::size_t count, CUstream stream), fill_call, to, 0, value, \
                          (bits) / 8, count, 1, stream)                                                              \
  GPUMUX_SIM_STREAM_ENTRY(cuMemsetD2D##bits##_v2, _ptds,                                                             \
                          (CUdeviceptr to, std::size_t pitch, type value, std::size_t width, std::size_t height),    \
                          plain_fill, to, pitch, value, (bits) / 8, width, height)                                   \
  GPUMUX_SIM_STREAM_ENTRY(                                                                                           \
      cuMemsetD2D##bits##Async, _ptsz,                                                                               \
      (CUdeviceptr to, std::size_t pitch, type value, std::size_t width, std::size_t height, CUstream stream),       \
      fill_call, to, pitch, value, (bits) / 8, width, height, stream)
GPUMUX_SIM_FILL(8, unsigned char)
GPUMUX_SIM_FILL(16, unsigned short)
GPUMUX_SIM_FILL(32, unsigned int)

}  // extern "C"
}  // namespace gpumux::cuda
