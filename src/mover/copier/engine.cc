// SPDX-License-Identifier: Apache-2.0
#include "mover/copier/engine.h"

#include <cstddef>

#include "mover/copier/block_hash_function.h"

namespace gpumux::mover {
namespace {

using cuda::CUresult;

constexpr std::uint64_t kAddressBytes = Engine::kBatchBlocks * sizeof(std::uint64_t);
constexpr std::uint64_t kBatchBytes = kAddressBytes + Engine::kBatchBlocks * sizeof(BlockHashResult);

}  // namespace

CUresult Engine::open_streams() {
  for (cuda::CUstream* stream : {&out_, &in_, &hash_}) {
    const CUresult result = driver_.cuStreamCreate(stream, cuda::CU_STREAM_NON_BLOCKING);
    if (result != cuda::CUDA_SUCCESS) {
      *stream = nullptr;
      return result;
    }
  }
  return cuda::CUDA_SUCCESS;
}

void Engine::load_kernel() {
  int major = 0;
  int minor = 0;
  driver_.cuDeviceGetAttribute(&major, cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device_);
  driver_.cuDeviceGetAttribute(&minor, cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device_);
  const void* code = block_hash_code(major, minor);
  CUresult result = cuda::CUDA_ERROR_NO_BINARY_FOR_GPU;
  if (code != nullptr) result = driver_.cuModuleLoadData(&module_, code);
  if (result != cuda::CUDA_SUCCESS) result = driver_.cuModuleLoadData(&module_, block_hash_ptx());
  if (result != cuda::CUDA_SUCCESS) {
    module_ = nullptr;
    return;
  }
  cuda::CUfunction kernel = nullptr;
  if (driver_.cuModuleGetFunction(&kernel, module_, kBlockHashKernel) != cuda::CUDA_SUCCESS) return;
  if (driver_.cuMemHostAlloc(&lists_, kBatches * kBatchBytes, cuda::kMemHostAllocPortable) != cuda::CUDA_SUCCESS) {
    lists_ = nullptr;
    return;
  }
  kernel_ = kernel;
}

CUresult Engine::open(cuda::CUcontext context) {
  if (context_.load() != nullptr) return cuda::CUDA_SUCCESS;
  if (context == nullptr) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  context_.store(context);
  CUresult result = cuda::CUDA_SUCCESS;
  {
    const auto current = enter();
    result = current.result();
    if (result == cuda::CUDA_SUCCESS) result = open_streams();
    if (result == cuda::CUDA_SUCCESS && hashing_) load_kernel();
  }
  if (result != cuda::CUDA_SUCCESS) close();
  return result;
}

void Engine::close() {
  if (context_.load() == nullptr) return;
  {
    const auto current = enter();
    if (current.result() == cuda::CUDA_SUCCESS) {
      for (const cuda::CUstream stream : {out_, in_, hash_}) {
        if (stream == nullptr) continue;
        driver_.cuStreamSynchronize(stream);
        driver_.cuStreamDestroy_v2(stream);
      }
      for (const cuda::CUevent event : events_) driver_.cuEventDestroy_v2(event);
      if (lists_ != nullptr) driver_.cuMemFreeHost(lists_);
      if (module_ != nullptr) driver_.cuModuleUnload(module_);
    }
  }
  // If the context is gone or broken, everything in it goes with it.
  context_.store(nullptr);
  out_ = in_ = hash_ = nullptr;
  module_ = nullptr;
  kernel_ = nullptr;
  lists_ = nullptr;
  events_.clear();
}

CUresult Engine::record(cuda::CUstream stream, cuda::CUevent* event) {
  *event = nullptr;
  cuda::CUevent made = nullptr;
  if (!events_.empty()) {
    made = events_.back();
    events_.pop_back();
  } else if (const CUresult result = driver_.cuEventCreate(&made, cuda::CU_EVENT_DISABLE_TIMING);
             result != cuda::CUDA_SUCCESS) {
    return result;
  }
  const CUresult result = driver_.cuEventRecord(made, stream);
  if (result != cuda::CUDA_SUCCESS) {
    events_.push_back(made);
    return result;
  }
  *event = made;
  return cuda::CUDA_SUCCESS;
}

GpuState Engine::state_of(cuda::CUevent event, cuda::CUstream stream, CUresult* error) const {
  const CUresult result = event != nullptr ? driver_.cuEventQuery(event) : driver_.cuStreamQuery(stream);
  if (result == cuda::CUDA_SUCCESS) return GpuState::kDone;
  if (result == cuda::CUDA_ERROR_NOT_READY) return GpuState::kPending;
  // The memory is not free before the stream itself says that nothing moves there any more, in success or in ruin.
  if (event != nullptr && driver_.cuStreamQuery(stream) == cuda::CUDA_ERROR_NOT_READY) return GpuState::kPending;
  *error = result;
  return GpuState::kFailed;
}

void Engine::give(cuda::CUevent event) {
  if (event != nullptr) events_.push_back(event);
}

std::uint64_t* Engine::batch_addresses(std::uint32_t batch) const {
  return reinterpret_cast<std::uint64_t*>(static_cast<std::byte*>(lists_) + batch * kBatchBytes);
}

const BlockHashResult* Engine::batch_results(std::uint32_t batch) const {
  return reinterpret_cast<const BlockHashResult*>(static_cast<std::byte*>(lists_) + batch * kBatchBytes +
                                                  kAddressBytes);
}

CUresult Engine::launch_hash(std::uint32_t batch, std::uint32_t blocks, cuda::CUevent* event) {
  auto list = reinterpret_cast<std::uint64_t>(batch_addresses(batch));
  auto results = reinterpret_cast<std::uint64_t>(batch_results(batch));
  std::uint64_t count = blocks;
  HashSeed seed = seed_;
  void* parameters[] = {&list, &count, &results, &seed.low, &seed.high};
  *event = nullptr;
  const CUresult result =
      driver_.cuLaunchKernel(kernel_, blocks, 1, 1, kHashThreads, 1, 1, 0, hash_, parameters, nullptr);
  if (result != cuda::CUDA_SUCCESS) return result;
  record(hash_, event);  // without an event the stream is asked
  return cuda::CUDA_SUCCESS;
}

}  // namespace gpumux::mover
