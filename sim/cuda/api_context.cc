// SPDX-License-Identifier: Apache-2.0
// Entry points: contexts, primary contexts, the current one, peers.
#include <algorithm>

#include "sim/cuda/api.h"
#include "sim/cuda/memory_pool.h"

namespace gpumux::sim {
namespace {

using cuda::CUresult;

constexpr unsigned kApiVersion = 3020;  // the version that a context made by a current program reports

// Real stream priorities: greater is negative.
constexpr int kLeastPriority = 0;
constexpr int kGreatestPriority = -5;

CUresult create(const char* entry, cuda::CUcontext* handle, unsigned flags, int ordinal) {
  return device_call(entry, ordinal, [&](Device& device) {
    if (handle == nullptr || (flags & ~unsigned{cuda::CU_CTX_FLAGS_MASK}) != 0) return cuda::CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = may_call_unsafe(); result != cuda::CUDA_SUCCESS) return result;
    Process& process = *Process::get();
    std::shared_ptr<Context> context;
    if (const CUresult result = Context::create(process, device, flags, &context); result != cuda::CUDA_SUCCESS)
      return result;
    thread_state().stack.push_back(context);
    *handle = process.contexts.add<cuda::CUcontext>(std::move(context));
    return cuda::CUDA_SUCCESS;
  });
}

CUresult destroy(const char* entry, cuda::CUcontext handle) {
  return driver_call(entry, [&](Process& process) {
    const auto context = process.contexts.find(handle);
    if (context == nullptr) return cuda::CUDA_ERROR_INVALID_CONTEXT;
    if (context->destroyed()) return cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED;
    {
      const std::lock_guard lock(context->device().mutex);
      if (context->device().primary == context) return cuda::CUDA_ERROR_INVALID_CONTEXT;
    }
    auto& stack = thread_state().stack;
    if (!stack.empty() && stack.back() == context) stack.pop_back();
    context->destroy();
    return cuda::CUDA_SUCCESS;
  });
}

// The context that a handle names; a null handle names the current one where `or_current`.
CUresult find(Process& process, cuda::CUcontext handle, bool or_current, std::shared_ptr<Context>* context) {
  if (handle == nullptr && or_current) return usable_context(context);
  *context = process.contexts.find(handle);
  if (*context == nullptr) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  if ((*context)->destroyed()) return cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return cuda::CUDA_SUCCESS;
}

CUresult push(const char* entry, cuda::CUcontext handle) {
  return driver_call(entry, [&](Process& process) {
    std::shared_ptr<Context> context;
    if (const CUresult result = find(process, handle, false, &context); result != cuda::CUDA_SUCCESS) return result;
    thread_state().stack.push_back(std::move(context));
    return cuda::CUDA_SUCCESS;
  });
}

CUresult pop(const char* entry, cuda::CUcontext* handle) {
  return driver_call(entry, [&](Process&) {
    auto& stack = thread_state().stack;
    if (stack.empty() || stack.back() == nullptr) return cuda::CUDA_ERROR_INVALID_CONTEXT;
    if (handle != nullptr) *handle = handle_of<cuda::CUcontext>(stack.back());
    stack.pop_back();
    return cuda::CUDA_SUCCESS;
  });
}

CUresult release_primary(const char* entry, int ordinal, bool all) {
  return device_call(entry, ordinal, [&](Device& device) {
    std::shared_ptr<Context> gone;
    {
      const std::lock_guard lock(device.mutex);
      if (!all && device.primary_retains == 0) return cuda::CUDA_ERROR_INVALID_CONTEXT;
      if (!all && --device.primary_retains != 0) return cuda::CUDA_SUCCESS;
      // A reset leaves the references: the next use begins anew.
      gone = std::move(device.primary);
      device.primary = nullptr;
      if (all) device.primary_retains = 0;
    }
    if (gone != nullptr) gone->destroy();
    return cuda::CUDA_SUCCESS;
  });
}

CUresult set_primary_flags(const char* entry, int ordinal, unsigned flags) {
  return device_call(entry, ordinal, [&](Device& device) {
    if ((flags & ~unsigned{cuda::CU_CTX_FLAGS_MASK}) != 0) return cuda::CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock(device.mutex);
    device.primary_flags = flags;
    if (device.primary != nullptr) device.primary->set_flags(flags);
    return cuda::CUDA_SUCCESS;
  });
}

std::size_t default_limit(cuda::CUlimit limit) {
  switch (limit) {
    case cuda::CU_LIMIT_STACK_SIZE: return 1024;
    case cuda::CU_LIMIT_PRINTF_FIFO_SIZE: return std::size_t{7} << 20;
    case cuda::CU_LIMIT_MALLOC_HEAP_SIZE: return std::size_t{8} << 20;
    case cuda::CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH: return 2;
    case cuda::CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT: return 2048;
    case cuda::CU_LIMIT_MAX_L2_FETCH_GRANULARITY: return 64;
    default: return 0;
  }
}

CUresult synchronize(Context& context) {
  if (const CUresult result = may_wait_for(context); result != cuda::CUDA_SUCCESS) return result;
  if (const CUresult result = may_call_unsafe(); result != cuda::CUDA_SUCCESS) return result;
  const CUresult result = context.synchronize();
  trim_pools(context.process());
  return result;
}

}  // namespace
}  // namespace gpumux::sim

namespace gpumux::cuda {

using namespace gpumux::sim;

extern "C" {

CUresult cuCtxCreate(CUcontext* context, unsigned int flags, CUdevice device) {
  return create("cuCtxCreate", context, flags, device);
}
CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
  return create("cuCtxCreate_v2", context, flags, device);
}
CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam*, int, unsigned int flags, CUdevice device) {
  return create("cuCtxCreate_v3", context, flags, device);
}
CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams*, unsigned int flags, CUdevice device) {
  return create("cuCtxCreate_v4", context, flags, device);
}
CUresult cuGLCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
  return create("cuGLCtxCreate_v2", context, flags, device);
}
CUresult cuCtxDestroy(CUcontext context) { return destroy("cuCtxDestroy", context); }
CUresult cuCtxDestroy_v2(CUcontext context) { return destroy("cuCtxDestroy_v2", context); }

CUresult cuCtxPushCurrent(CUcontext context) { return push("cuCtxPushCurrent", context); }
CUresult cuCtxPushCurrent_v2(CUcontext context) { return push("cuCtxPushCurrent_v2", context); }
CUresult cuCtxPopCurrent(CUcontext* context) { return pop("cuCtxPopCurrent", context); }
CUresult cuCtxPopCurrent_v2(CUcontext* context) { return pop("cuCtxPopCurrent_v2", context); }

CUresult cuCtxSetCurrent(CUcontext handle) {
  return driver_call("cuCtxSetCurrent", [&](Process& process) {
    std::shared_ptr<Context> context;
    auto& stack = thread_state().stack;
    if (handle == nullptr) {
      if (!stack.empty()) stack.pop_back();
      return CUDA_SUCCESS;
    }
    if (const CUresult result = find(process, handle, false, &context); result != CUDA_SUCCESS) return result;
    if (stack.empty()) stack.emplace_back();
    stack.back() = std::move(context);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  return driver_call("cuCtxGetCurrent", [&](Process&) {
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *context = handle_of<CUcontext>(thread_state().current());
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetDevice(CUdevice* device) {
  return driver_call("cuCtxGetDevice", [&](Process&) {
    const auto context = thread_state().current();
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (context->destroyed()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = context->device().ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext handle) {
  return driver_call("cuCtxGetDevice_v2", [&](Process& process) {
    std::shared_ptr<Context> context;
    if (const CUresult result = find(process, handle, true, &context); result != CUDA_SUCCESS) return result;
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = context->device().ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long* ctx_id) {
  return driver_call("cuCtxGetId", [&](Process& process) {
    std::shared_ptr<Context> context;
    if (const CUresult result = find(process, handle, true, &context); result != CUDA_SUCCESS) return result;
    if (ctx_id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *ctx_id = context->id();
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int* version) {
  return driver_call("cuCtxGetApiVersion", [&](Process& process) {
    std::shared_ptr<Context> context;
    if (const CUresult result = find(process, handle, true, &context); result != CUDA_SUCCESS) return result;
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *version = kApiVersion;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetFlags(unsigned int* flags) {
  return context_call("cuCtxGetFlags", [&](const std::shared_ptr<Context>& context) {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = context->flags();
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetFlags(unsigned int flags) {
  return context_call("cuCtxSetFlags", [&](const std::shared_ptr<Context>& context) {
    if ((flags & ~unsigned{CU_CTX_FLAGS_MASK}) != 0) return CUDA_ERROR_INVALID_VALUE;
    context->set_flags(flags);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSynchronize() {
  return context_call("cuCtxSynchronize",
                      [&](const std::shared_ptr<Context>& context) { return synchronize(*context); });
}

CUresult cuCtxSynchronize_v2(CUcontext handle) {
  return driver_call("cuCtxSynchronize_v2", [&](Process& process) {
    std::shared_ptr<Context> context;
    if (const CUresult result = find(process, handle, true, &context); result != CUDA_SUCCESS) return result;
    return synchronize(*context);
  });
}

CUresult cuCtxGetLimit(std::size_t* value, CUlimit limit) {
  return context_call("cuCtxGetLimit", [&](const std::shared_ptr<Context>& context) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (limit > CU_LIMIT_PERSISTING_L2_CACHE_SIZE) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    const std::lock_guard lock(context->limits_mutex);
    const auto set = context->limits.find(limit);
    *value = set != context->limits.end() ? set->second : default_limit(limit);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetLimit(CUlimit limit, std::size_t value) {
  return context_call("cuCtxSetLimit", [&](const std::shared_ptr<Context>& context) {
    if (limit > CU_LIMIT_PERSISTING_L2_CACHE_SIZE) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    const std::lock_guard lock(context->limits_mutex);
    context->limits[limit] = value;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetCacheConfig(CUfunc_cache* config) {
  return context_call("cuCtxGetCacheConfig", [&](const std::shared_ptr<Context>&) {
    if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *config = CU_FUNC_CACHE_PREFER_NONE;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetCacheConfig(CUfunc_cache) {
  return context_call("cuCtxSetCacheConfig", [](const std::shared_ptr<Context>&) { return CUDA_SUCCESS; });
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig* config) {
  return context_call("cuCtxGetSharedMemConfig", [&](const std::shared_ptr<Context>&) {
    if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig) {
  return context_call("cuCtxSetSharedMemConfig", [](const std::shared_ptr<Context>&) { return CUDA_SUCCESS; });
}

CUresult cuCtxResetPersistingL2Cache() {
  return context_call("cuCtxResetPersistingL2Cache", [](const std::shared_ptr<Context>&) { return CUDA_SUCCESS; });
}

CUresult cuCtxGetStreamPriorityRange(int* least_priority, int* greatest_priority) {
  return context_call("cuCtxGetStreamPriorityRange", [&](const std::shared_ptr<Context>&) {
    if (least_priority != nullptr) *least_priority = kLeastPriority;
    if (greatest_priority != nullptr) *greatest_priority = kGreatestPriority;
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice ordinal) {
  return device_call("cuDevicePrimaryCtxRetain", ordinal, [&](Device& device) {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Process& process = *Process::get();
    const std::lock_guard lock(device.mutex);
    if (device.primary == nullptr) {
      std::shared_ptr<Context> context;
      const CUresult result = Context::create(process, device, device.primary_flags, &context);
      if (result != CUDA_SUCCESS) return result;
      process.contexts.add<CUcontext>(context);
      device.primary = std::move(context);
    }
    ++device.primary_retains;
    *handle = handle_of<CUcontext>(device.primary);
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return release_primary("cuDevicePrimaryCtxRelease", device, false);
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return release_primary("cuDevicePrimaryCtxRelease_v2", device, false);
}
CUresult cuDevicePrimaryCtxReset(CUdevice device) { return release_primary("cuDevicePrimaryCtxReset", device, true); }
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return release_primary("cuDevicePrimaryCtxReset_v2", device, true);
}
CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags) {
  return set_primary_flags("cuDevicePrimaryCtxSetFlags", device, flags);
}
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
  return set_primary_flags("cuDevicePrimaryCtxSetFlags_v2", device, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int* flags, int* active) {
  return device_call("cuDevicePrimaryCtxGetState", ordinal, [&](Device& device) {
    const std::lock_guard lock(device.mutex);
    if (flags != nullptr) *flags = device.primary != nullptr ? device.primary->flags() : device.primary_flags;
    if (active != nullptr) *active = device.primary != nullptr ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxEnablePeerAccess(CUcontext peer_context, unsigned int flags) {
  return context_call("cuCtxEnablePeerAccess", [&](const std::shared_ptr<Context>& context) {
    std::shared_ptr<Context> peer;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = find(context->process(), peer_context, false, &peer); result != CUDA_SUCCESS)
      return result;
    if (peer == context) return CUDA_ERROR_INVALID_CONTEXT;
    if (&peer->device() == &context->device() || context->process().machine().settings().peers == 0) {
      return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    }
    return context->enable_peer(peer->id());
  });
}

CUresult cuCtxDisablePeerAccess(CUcontext peer_context) {
  return context_call("cuCtxDisablePeerAccess", [&](const std::shared_ptr<Context>& context) {
    std::shared_ptr<Context> peer;
    if (const CUresult result = find(context->process(), peer_context, false, &peer); result != CUDA_SUCCESS)
      return result;
    return context->disable_peer(peer->id());
  });
}

}  // extern "C"
}  // namespace gpumux::cuda
