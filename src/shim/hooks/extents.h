// SPDX-License-Identifier: Apache-2.0
// A copy or fill that goes past the end of an allocation is an error of the driver's: CUDA_ERROR_INVALID_VALUE. The
// driver knows of the pager's memory in whole chunks. So the end of an allocation is looked for here.
//
// Each call costs a look at a table under a lock, of the kind that reach.h has (name_an_address in submit_bench).
// Memory that the program has mapped ends where the driver sees it end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cuda/abi.h"

namespace gpumux::shim {

// Some bytes from an address on; or rows of `width` bytes, `pitch` apart; or planes of such rows.
struct Extent {
  cuda::CUdeviceptr address = 0;
  std::size_t width = 0;
  std::size_t height = 1;
  std::size_t pitch = 0;
  std::size_t depth = 1;
  std::size_t plane = 0;  // bytes from one to the next

  // From the address to behind the last byte. The largest number: more than there can be.
  std::size_t bytes() const {
    if (width == 0 || height == 0 || depth == 0) return 0;
    std::size_t rows = 0;
    std::size_t planes = 0;
    std::size_t sum = 0;
    const bool is_too_much = __builtin_mul_overflow(height - 1, pitch, &rows) ||
                             __builtin_mul_overflow(depth - 1, plane, &planes) ||
                             __builtin_add_overflow(rows, planes, &sum) || __builtin_add_overflow(sum, width, &sum);
    return is_too_much ? std::numeric_limits<std::size_t>::max() : sum;
  }
};

// False: it goes past the end of an allocation of the pager's that it begins in.
bool is_within(const Extent& extent);

inline bool is_within(cuda::CUdeviceptr address, std::size_t bytes) {
  return is_within({.address = address, .width = bytes});
}

inline bool is_device(cuda::CUmemorytype type) {
  return type == cuda::CU_MEMORYTYPE_DEVICE || type == cuda::CU_MEMORYTYPE_UNIFIED;
}

// ---- the arguments of a call: false, if any of the memory that they name goes past an end

template <class... Others>
bool are_within(const Others&...) {
  return true;
}
template <class... Others>
bool are_within(cuda::CUdeviceptr to, const void*, std::size_t bytes, const Others&...) {
  return is_within(to, bytes);
}
template <class... Others>
bool are_within(void*, cuda::CUdeviceptr from, std::size_t bytes, const Others&...) {
  return is_within(from, bytes);
}
template <class... Others>
bool are_within(cuda::CUdeviceptr to, cuda::CUdeviceptr from, std::size_t bytes, const Others&...) {
  return is_within(to, bytes) && is_within(from, bytes);
}
template <class... Others>
bool are_within(cuda::CUdeviceptr to, cuda::CUcontext, cuda::CUdeviceptr from, cuda::CUcontext, std::size_t bytes,
                const Others&...) {
  return is_within(to, bytes) && is_within(from, bytes);
}
// From an array, and to one.
template <class... Others>
bool are_within(cuda::CUdeviceptr to, cuda::CUarray, std::size_t, std::size_t bytes, const Others&...) {
  return is_within(to, bytes);
}
template <class... Others>
bool are_within(cuda::CUarray, std::size_t, cuda::CUdeviceptr from, std::size_t bytes, const Others&...) {
  return is_within(from, bytes);
}

// Whether parameters of these types are those of a fill: an address, and a number.
template <class... Parameters>
inline constexpr bool kFills = false;
template <class Second, class... Others>
inline constexpr bool kFills<cuda::CUdeviceptr, Second, Others...> =
    std::is_integral_v<Second> && !std::is_same_v<Second, cuda::CUdeviceptr>;

// Fills. More elements than there can be bytes are past the end.
inline bool is_filled_within(cuda::CUdeviceptr to, std::size_t count, std::size_t element, std::size_t height = 1,
                             std::size_t pitch = 0) {
  std::size_t width = 0;
  if (__builtin_mul_overflow(count, element, &width)) width = std::numeric_limits<std::size_t>::max();
  return is_within({.address = to, .width = width, .height = height, .pitch = pitch});
}
template <class... Others>
bool are_within(cuda::CUdeviceptr to, unsigned char, std::size_t count, const Others&...) {
  return is_filled_within(to, count, 1);
}
template <class... Others>
bool are_within(cuda::CUdeviceptr to, unsigned short, std::size_t count, const Others&...) {
  return is_filled_within(to, count, 2);
}
template <class... Others>
bool are_within(cuda::CUdeviceptr to, unsigned int, std::size_t count, const Others&...) {
  return is_filled_within(to, count, 4);
}
template <class... Others>
bool are_within(cuda::CUdeviceptr to, std::size_t pitch, unsigned char, std::size_t width, std::size_t height,
                const Others&...) {
  return is_filled_within(to, width, 1, height, pitch);
}
template <class... Others>
bool are_within(cuda::CUdeviceptr to, std::size_t pitch, unsigned short, std::size_t width, std::size_t height,
                const Others&...) {
  return is_filled_within(to, width, 2, height, pitch);
}
template <class... Others>
bool are_within(cuda::CUdeviceptr to, std::size_t pitch, unsigned int, std::size_t width, std::size_t height,
                const Others&...) {
  return is_filled_within(to, width, 4, height, pitch);
}

template <class... Others>
bool are_within(const cuda::CUDA_MEMCPY2D* copy, const Others&...) {
  if (copy == nullptr) return true;
  const auto end = [copy](cuda::CUmemorytype type, cuda::CUdeviceptr address, std::size_t x, std::size_t y,
                          std::size_t pitch) {
    return !is_device(type) || is_within({.address = address + y * pitch + x,
                                          .width = copy->WidthInBytes,
                                          .height = copy->Height,
                                          .pitch = pitch});
  };
  return end(copy->srcMemoryType, copy->srcDevice, copy->srcXInBytes, copy->srcY, copy->srcPitch) &&
         end(copy->dstMemoryType, copy->dstDevice, copy->dstXInBytes, copy->dstY, copy->dstPitch);
}
template <class Copy>
bool is_box_within(const Copy* copy) {
  if (copy == nullptr) return true;
  const auto end = [copy](cuda::CUmemorytype type, cuda::CUdeviceptr address, std::size_t x, std::size_t y,
                          std::size_t z, std::size_t pitch, std::size_t rows) {
    return !is_device(type) || is_within({.address = address + z * rows * pitch + y * pitch + x,
                                          .width = copy->WidthInBytes,
                                          .height = copy->Height,
                                          .pitch = pitch,
                                          .depth = copy->Depth,
                                          .plane = rows * pitch});
  };
  return end(copy->srcMemoryType, copy->srcDevice, copy->srcXInBytes, copy->srcY, copy->srcZ, copy->srcPitch,
             copy->srcHeight) &&
         end(copy->dstMemoryType, copy->dstDevice, copy->dstXInBytes, copy->dstY, copy->dstZ, copy->dstPitch,
             copy->dstHeight);
}
template <class... Others>
bool are_within(const cuda::CUDA_MEMCPY3D* copy, const Others&...) {
  return is_box_within(copy);
}
template <class... Others>
bool are_within(const cuda::CUDA_MEMCPY3D_PEER* copy, const Others&...) {
  return is_box_within(copy);
}

// ---- the nodes of graphs

template <class Other>
bool is_node_within(const Other&) {
  return true;
}
inline bool is_node_within(const cuda::CUDA_MEMCPY3D* copy) { return is_box_within(copy); }
template <class Fill>
bool is_filling_within(const Fill& fill) {
  return is_filled_within(fill.dst, fill.width, fill.elementSize, fill.height, fill.pitch);
}
inline bool is_node_within(const cuda::CUDA_MEMSET_NODE_PARAMS* fill) {
  return fill == nullptr || is_filling_within(*fill);
}
inline bool is_node_within(cuda::CUgraphNodeParams* node) {
  if (node == nullptr) return true;
  if (node->type == cuda::CU_GRAPH_NODE_TYPE_MEMCPY) return is_box_within(&node->memcpy.copyParams);
  return node->type != cuda::CU_GRAPH_NODE_TYPE_MEMSET || is_filling_within(node->memset);
}
template <class... Arguments>
bool are_nodes_within(const Arguments&... arguments) {
  return (is_node_within(arguments) && ...);
}

// ---- several copies at once

// The first one that goes past an end is told.
inline bool are_all_within(const cuda::CUdeviceptr* to, const cuda::CUdeviceptr* from, const std::size_t* sizes,
                           std::size_t count, std::size_t* failed) {
  if (to == nullptr || from == nullptr || sizes == nullptr) return true;
  for (std::size_t i = 0; i < count; ++i) {
    if (is_within(to[i], sizes[i]) && is_within(from[i], sizes[i])) continue;
    if (failed != nullptr) *failed = i;
    return false;
  }
  return true;
}
template <class... Others>
bool are_within(cuda::CUdeviceptr* to, cuda::CUdeviceptr* from, std::size_t* sizes, std::size_t count,
                const Others&...) {
  return are_all_within(to, from, sizes, count, nullptr);
}
template <class... Others>
bool are_within(cuda::CUdeviceptr* to, cuda::CUdeviceptr* from, std::size_t* sizes, std::size_t count,
                cuda::CUmemcpyAttributes*, std::size_t*, std::size_t, std::size_t* failed, const Others&...) {
  return are_all_within(to, from, sizes, count, failed);
}

}  // namespace gpumux::shim
