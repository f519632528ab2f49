// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/transfer.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "sim/cuda/process.h"

namespace gpumux::sim {
namespace {

using cuda::CUresult;

// The bytes that are copied under the lock at once; see kernel_builtin.cc.
constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20;

// No block of memory is this large; sizes beyond it are negative numbers and their like.
constexpr std::uint64_t kAbsurd = std::uint64_t{1} << 50;

// Where an address lies: a GPU, or the host.
std::optional<std::uint32_t> gpu_of(const AddressSpace& space, const Context& context, std::uint64_t address) {
  const auto mapping = space.find(address);
  if (!mapping || mapping->kind == MemoryKind::kHost) return std::nullopt;
  if (mapping->memory->gpu() == kHostMemory) return context.device().gpu;
  return mapping->memory->gpu();
}

// A transfer's share of the machine's bandwidth, from construction to destruction.
class Engine {
 public:
  Engine(Context& context, const Copy& copy) : machine_(context.process().machine()) {
    const AddressSpace& space = context.process().space();
    const auto from = gpu_of(space, context, copy.source);
    const auto to = gpu_of(space, context, copy.destination);
    const Settings& settings = machine_.settings();
    if (from && to) {
      bandwidth_ = *from == *to ? settings.d2d_bytes_per_second : settings.peer_bytes_per_second;
    } else if (from || to) {
      gpu_ = from ? *from : *to;
      direction_ = from ? kDeviceToHost : kHostToDevice;
      bandwidth_ = from ? settings.d2h_bytes_per_second : settings.h2d_bytes_per_second;
      resume();
    }
  }
  ~Engine() { pause(); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // While it is frozen, a transfer leaves its share to others.
  void pause() {
    if (gpu_) machine_.own().gpu[*gpu_].transfers[direction_].fetch_sub(1);
  }
  void resume() {
    if (gpu_) machine_.own().gpu[*gpu_].transfers[direction_].fetch_add(1);
  }

  base::Duration time_for(std::uint64_t bytes) {
    if (bandwidth_ == 0) return base::Duration(0);  // host to host: as long as it takes
    double share = 1;
    if (gpu_) {
      share = 1.0 / static_cast<double>(std::max(busy(direction_), 1u));
      if (busy(1 - direction_) != 0) share *= static_cast<double>(machine_.settings().duplex_percent) / 100;
    }
    return base::Duration(
        static_cast<std::int64_t>(static_cast<double>(bytes) * 1e9 / (static_cast<double>(bandwidth_) * share)));
  }

 private:
  std::uint32_t busy(std::uint32_t direction) {
    std::uint32_t transfers = 0;
    for (std::uint32_t slot = 0; slot < machine_.slots_used(); ++slot) {
      const std::uint32_t there = machine_.state().slots[slot].gpu[*gpu_].transfers[direction].load();
      if (there != 0 && machine_.alive(slot)) transfers += there;
    }
    return transfers;
  }

  Machine& machine_;
  std::optional<std::uint32_t> gpu_;
  std::uint32_t direction_ = kHostToDevice;
  std::uint64_t bandwidth_ = 0;
};

// The span of addresses that one side of a block touches.
std::uint64_t extent(std::uint64_t width, std::uint64_t height, std::uint64_t depth, std::uint64_t pitch,
                     std::uint64_t slice) {
  return (depth - 1) * slice + (height - 1) * pitch + width;
}

bool is_flat(const Copy& copy) {
  const bool rows = copy.height == 1 || (copy.source_pitch == copy.width && copy.destination_pitch == copy.width);
  const bool slices = copy.depth == 1 || (copy.source_slice == copy.width * copy.height &&
                                          copy.destination_slice == copy.width * copy.height);
  return rows && slices;
}

// Waits until the context's copies may go on; they run from then until they leave.
void enter_copies(Worker& worker, Context& context, Engine& engine) {
  while (!context.copies().enter()) {
    engine.pause();
    context.copies().wait_for_thaw();
    engine.resume();
    worker.begin();
  }
}

bool copy_piece(const Context& context, const Accessor& who, std::uint64_t to, std::uint64_t from,
                std::uint64_t bytes) {
  const AddressSpace::Reader reader(context.process().space());
  std::byte* destination = reader.resolve(to, bytes, who, Touch::kWrite, true);
  const std::byte* source = reader.resolve(from, bytes, who, Touch::kRead, true);
  if (destination == nullptr || source == nullptr) return false;
  std::memmove(destination, source, bytes);
  return true;
}

CUresult copy_row(Worker& worker, Context& context, Engine& engine, const Accessor& who, std::uint64_t to,
                  std::uint64_t from, std::uint64_t bytes) {
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t n = std::min(kPieceBytes, bytes - done);
    if (context.error() != cuda::CUDA_SUCCESS) return context.error();
    enter_copies(worker, context, engine);
    const bool copied = copy_piece(context, who, to + done, from + done, n);
    context.copies().leave();
    if (!copied) return cuda::CUDA_ERROR_ILLEGAL_ADDRESS;
    worker.pass(engine.time_for(n));
    done += n;
  }
  // A copy that was frozen while its last piece took its time is not over either.
  enter_copies(worker, context, engine);
  context.copies().leave();
  return cuda::CUDA_SUCCESS;
}

// One side of a descriptor: the address of its first byte; 0 if it has none.
CUresult side_address(cuda::CUmemorytype type, const void* host, cuda::CUdeviceptr device, std::uint64_t* address) {
  switch (type) {
    case cuda::CU_MEMORYTYPE_HOST: *address = reinterpret_cast<std::uint64_t>(host); return cuda::CUDA_SUCCESS;
    case cuda::CU_MEMORYTYPE_DEVICE:
    case cuda::CU_MEMORYTYPE_UNIFIED: *address = device; return cuda::CUDA_SUCCESS;
    case cuda::CU_MEMORYTYPE_ARRAY: return cuda::CUDA_ERROR_NOT_SUPPORTED;
  }
  return cuda::CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

Copy flat_copy(std::uint64_t destination, std::uint64_t source, std::uint64_t bytes) {
  Copy copy;
  copy.destination = destination;
  copy.source = source;
  copy.width = bytes;
  return copy;
}

CUresult check_copy(const AddressSpace& space, const Copy& copy) {
  if (copy.bytes() == 0) return cuda::CUDA_SUCCESS;
  if (copy.width > kAbsurd) return cuda::CUDA_ERROR_INVALID_VALUE;
  const std::uint64_t from = extent(copy.width, copy.height, copy.depth, copy.source_pitch, copy.source_slice);
  const std::uint64_t to = extent(copy.width, copy.height, copy.depth, copy.destination_pitch, copy.destination_slice);
  if (!space.mapped(copy.source, from) || !space.mapped(copy.destination, to)) return cuda::CUDA_ERROR_INVALID_VALUE;
  return cuda::CUDA_SUCCESS;
}

CUresult run_copy(Worker& worker, Context& context, const Copy& copy) {
  worker.let_go();
  worker.begin();
  if (copy.bytes() == 0) return cuda::CUDA_SUCCESS;
  Engine engine(context, copy);
  const Accessor who = context.accessor(true);
  if (is_flat(copy)) return copy_row(worker, context, engine, who, copy.destination, copy.source, copy.bytes());
  for (std::uint64_t z = 0; z < copy.depth; ++z) {
    for (std::uint64_t y = 0; y < copy.height; ++y) {
      const std::uint64_t to = copy.destination + z * copy.destination_slice + y * copy.destination_pitch;
      const std::uint64_t from = copy.source + z * copy.source_slice + y * copy.source_pitch;
      const CUresult result = copy_row(worker, context, engine, who, to, from, copy.width);
      if (result != cuda::CUDA_SUCCESS) return result;
    }
  }
  return cuda::CUDA_SUCCESS;
}

CUresult copy_of(const cuda::CUDA_MEMCPY3D& d, Copy* copy) {
  std::uint64_t source = 0;
  std::uint64_t destination = 0;
  if (const CUresult result = side_address(d.srcMemoryType, d.srcHost, d.srcDevice, &source);
      result != cuda::CUDA_SUCCESS)
    return result;
  if (const CUresult result = side_address(d.dstMemoryType, d.dstHost, d.dstDevice, &destination);
      result != cuda::CUDA_SUCCESS)
    return result;
  copy->width = d.WidthInBytes;
  copy->height = d.Height;
  copy->depth = d.Depth;
  // A pitch or height of 0 means that rows or slices follow each other closely.
  copy->source_pitch = d.srcPitch != 0 ? d.srcPitch : d.WidthInBytes;
  copy->destination_pitch = d.dstPitch != 0 ? d.dstPitch : d.WidthInBytes;
  copy->source_slice = copy->source_pitch * (d.srcHeight != 0 ? d.srcHeight : d.Height);
  copy->destination_slice = copy->destination_pitch * (d.dstHeight != 0 ? d.dstHeight : d.Height);
  const bool thin =
      (d.Height > 1 && (copy->source_pitch < d.WidthInBytes || copy->destination_pitch < d.WidthInBytes)) ||
      d.srcLOD != 0 || d.dstLOD != 0;
  for (const std::uint64_t size : {d.WidthInBytes, d.Height, d.Depth, copy->source_slice, copy->destination_slice}) {
    if (size > kAbsurd) return cuda::CUDA_ERROR_INVALID_VALUE;
  }
  if (thin) return cuda::CUDA_ERROR_INVALID_VALUE;
  copy->source = source + d.srcXInBytes + d.srcY * copy->source_pitch + d.srcZ * copy->source_slice;
  copy->destination = destination + d.dstXInBytes + d.dstY * copy->destination_pitch + d.dstZ * copy->destination_slice;
  return cuda::CUDA_SUCCESS;
}

CUresult copy_of(const cuda::CUDA_MEMCPY2D& d, Copy* copy) {
  cuda::CUDA_MEMCPY3D whole{};
  whole.srcXInBytes = d.srcXInBytes;
  whole.srcY = d.srcY;
  whole.srcMemoryType = d.srcMemoryType;
  whole.srcHost = d.srcHost;
  whole.srcDevice = d.srcDevice;
  whole.srcPitch = d.srcPitch;
  whole.dstXInBytes = d.dstXInBytes;
  whole.dstY = d.dstY;
  whole.dstMemoryType = d.dstMemoryType;
  whole.dstHost = d.dstHost;
  whole.dstDevice = d.dstDevice;
  whole.dstPitch = d.dstPitch;
  whole.WidthInBytes = d.WidthInBytes;
  whole.Height = d.Height;
  whole.Depth = 1;
  return copy_of(whole, copy);
}

CUresult check_fill(const Fill& fill) {
  if (fill.element_bytes != 1 && fill.element_bytes != 2 && fill.element_bytes != 4)
    return cuda::CUDA_ERROR_INVALID_VALUE;
  if (fill.width > kAbsurd || fill.height > kAbsurd || fill.destination % fill.element_bytes != 0)
    return cuda::CUDA_ERROR_INVALID_VALUE;
  if (fill.height > 1 && fill.pitch < fill.width * fill.element_bytes) return cuda::CUDA_ERROR_INVALID_VALUE;
  return cuda::CUDA_SUCCESS;
}

CUresult check_fill_ends(const AddressSpace& space, const Fill& fill) {
  if (fill.width == 0 || fill.height == 0 || !space.find(fill.destination)) return cuda::CUDA_SUCCESS;
  const std::uint64_t bytes = extent(fill.width * fill.element_bytes, fill.height, 1, fill.pitch, 0);
  return space.mapped(fill.destination, bytes) ? cuda::CUDA_SUCCESS : cuda::CUDA_ERROR_INVALID_VALUE;
}

CUresult run_fill(Worker& worker, Context& context, const Fill& fill) {
  const Settings& settings = context.process().machine().settings();
  const Accessor who = context.accessor(false);
  worker.hold(context);
  CUresult result = worker.compute(context, base::Duration(settings.launch_nanoseconds));
  const std::uint64_t step = kPieceBytes / fill.element_bytes;
  for (std::uint64_t y = 0; y < fill.height && result == cuda::CUDA_SUCCESS; ++y) {
    for (std::uint64_t x = 0; x < fill.width && result == cuda::CUDA_SUCCESS; x += step) {
      const std::uint64_t n = std::min(step, fill.width - x);
      const std::uint64_t bytes = n * fill.element_bytes;
      {
        const AddressSpace::Reader reader(context.process().space());
        std::byte* at =
            reader.resolve(fill.destination + y * fill.pitch + x * fill.element_bytes, bytes, who, Touch::kWrite);
        if (at == nullptr) return cuda::CUDA_ERROR_ILLEGAL_ADDRESS;
        if (fill.element_bytes == 1) std::memset(at, static_cast<int>(fill.value & 0xff), n);
        if (fill.element_bytes == 2)
          std::fill_n(reinterpret_cast<std::uint16_t*>(at), n, static_cast<std::uint16_t>(fill.value));
        if (fill.element_bytes == 4) std::fill_n(reinterpret_cast<std::uint32_t*>(at), n, fill.value);
      }
      const double nanoseconds =
          static_cast<double>(bytes) * 1e9 / static_cast<double>(settings.kernel_bytes_per_second);
      result = worker.work(context, base::Duration(static_cast<std::int64_t>(nanoseconds)));
    }
  }
  return result;
}

bool is_pageable(const AddressSpace& space, std::uint64_t address) {
  return !space.is_device_address(address) && !space.find(address);
}

}  // namespace gpumux::sim
