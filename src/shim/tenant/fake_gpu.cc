// SPDX-License-Identifier: Apache-2.0
#include "shim/tenant/fake_gpu.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "os/system_clock.h"
#include "shim/process/real_driver.h"

namespace gpumux::shim {

// In place of the real driver's, in whatever is linked with this.
constinit cuda::Driver g_driver;
constinit std::atomic<bool> g_driver_loaded{false};

void load_real_driver() {
  FakeGpu::fill(g_driver);
  g_driver_loaded.store(true, std::memory_order_release);
}

namespace {

using namespace cuda;

thread_local std::vector<CUcontext> t_current;

CUcontext current() { return t_current.empty() ? nullptr : t_current.back(); }
base::TimePoint now() { return os::SystemClock().now(); }

}  // namespace

FakeGpu& FakeGpu::get() {
  static FakeGpu* const fake = new FakeGpu;  // the library's threads may outlive static objects
  return *fake;
}

FakeGpu::Stream* FakeGpu::find(CUstream stream) {
  if (stream == nullptr) {
    Context* const context = find(current());
    return context != nullptr ? &context->legacy : nullptr;
  }
  const auto found = streams_.find(stream);
  return found != streams_.end() ? &found->second : nullptr;
}

FakeGpu::Context* FakeGpu::find(CUcontext context) {
  const auto found = contexts_.find(context);
  return found != contexts_.end() ? &found->second : nullptr;
}

base::TimePoint FakeGpu::busy_until(int device) {
  const std::lock_guard lock(mutex_);
  return busy_until_[device];
}

void FakeGpu::set_work(base::Duration work) {
  const std::lock_guard lock(mutex_);
  work_ = work;
}

CUresult FakeGpu::submit(CUstream handle) {
  int device = 0;
  {
    const std::lock_guard lock(mutex_);
    Stream* const stream = find(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capturing) return CUDA_SUCCESS;
    device = find(stream->context)->device;
  }
  if (on_submit) on_submit(device);
  const std::lock_guard lock(mutex_);
  Stream* const stream = find(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  stream->tail = std::max(stream->tail, now()) + work_;
  Context* const context = find(stream->context);
  context->busy_until = std::max(context->busy_until, stream->tail);
  busy_until_[device] = std::max(busy_until_[device], stream->tail);
  return CUDA_SUCCESS;
}

void FakeGpu::fill(Driver& driver) {
  driver.cuDeviceGetUuid_v2 = [](CUuuid* uuid, CUdevice device) {
    if (device < 0 || device >= kDevices) return CUDA_ERROR_INVALID_DEVICE;
    std::memset(uuid, uuid_byte(device), sizeof *uuid);
    return CUDA_SUCCESS;
  };
  driver.cuCtxCreate_v2 = [](CUcontext* context, unsigned, CUdevice device) {
    FakeGpu& fake = get();
    const std::lock_guard lock(fake.mutex_);
    *context = reinterpret_cast<CUcontext>(fake.next_handle_++ * 4096);
    fake.contexts_[*context] = {.device = device, .legacy = {.context = *context}, .busy_until = {}};
    t_current.push_back(*context);
    return CUDA_SUCCESS;
  };
  driver.cuCtxDestroy_v2 = [](CUcontext context) {
    FakeGpu& fake = get();
    base::TimePoint end{};
    {
      const std::lock_guard lock(fake.mutex_);
      const Context* const found = fake.find(context);
      if (found == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
      end = found->busy_until;
    }
    // As the driver: it returns when the context's work is over.
    while (now() < end) {
    }
    const std::lock_guard lock(fake.mutex_);
    fake.contexts_.erase(context);
    std::erase_if(fake.streams_, [context](const auto& item) { return item.second.context == context; });
    std::erase(t_current, context);
    return CUDA_SUCCESS;
  };
  driver.cuCtxGetCurrent = [](CUcontext* context) {
    *context = current();
    return CUDA_SUCCESS;
  };
  driver.cuCtxPushCurrent_v2 = [](CUcontext context) {
    FakeGpu& fake = get();
    const std::lock_guard lock(fake.mutex_);
    if (fake.find(context) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    t_current.push_back(context);
    return CUDA_SUCCESS;
  };
  driver.cuCtxPopCurrent_v2 = [](CUcontext* context) {
    if (t_current.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *context = t_current.back();
    t_current.pop_back();
    return CUDA_SUCCESS;
  };
  driver.cuCtxGetDevice = [](CUdevice* device) {
    FakeGpu& fake = get();
    const std::lock_guard lock(fake.mutex_);
    const Context* const context = fake.find(current());
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *device = context->device;
    return CUDA_SUCCESS;
  };
  driver.cuStreamCreate = [](CUstream* stream, unsigned) {
    FakeGpu& fake = get();
    const std::lock_guard lock(fake.mutex_);
    if (fake.find(current()) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *stream = reinterpret_cast<CUstream>(fake.next_handle_++ * 4096);
    fake.streams_[*stream] = {.context = current()};
    return CUDA_SUCCESS;
  };
  driver.cuStreamDestroy_v2 = [](CUstream stream) {
    FakeGpu& fake = get();
    const std::lock_guard lock(fake.mutex_);
    return fake.streams_.erase(stream) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  };
  driver.cuStreamGetCtx = [](CUstream stream, CUcontext* context) {
    FakeGpu& fake = get();
    const std::lock_guard lock(fake.mutex_);
    const Stream* const found = fake.find(stream);
    if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *context = found->context;
    return CUDA_SUCCESS;
  };
  driver.cuStreamIsCapturing = [](CUstream stream, CUstreamCaptureStatus* status) {
    FakeGpu& fake = get();
    const std::lock_guard lock(fake.mutex_);
    const Stream* const found = fake.find(stream);
    if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *status = found->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  };
  driver.cuStreamQuery = [](CUstream stream) {
    FakeGpu& fake = get();
    CUresult result = CUDA_SUCCESS;
    {
      const std::lock_guard lock(fake.mutex_);
      const Stream* const found = fake.find(stream);
      if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
      if (found->capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
      result = now() >= found->tail ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    }
    if (fake.after_query) fake.after_query();
    return result;
  };
  driver.cuStreamBeginCapture_v2 = [](CUstream stream, CUstreamCaptureMode) {
    FakeGpu& fake = get();
    const std::lock_guard lock(fake.mutex_);
    Stream* const found = fake.find(stream);
    if (found == nullptr || stream == nullptr) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    found->capturing = true;
    return CUDA_SUCCESS;
  };
  driver.cuStreamEndCapture = [](CUstream stream, CUgraph* graph) {
    FakeGpu& fake = get();
    const std::lock_guard lock(fake.mutex_);
    Stream* const found = fake.find(stream);
    if (found == nullptr || !found->capturing) return CUDA_ERROR_ILLEGAL_STATE;
    found->capturing = false;
    *graph = nullptr;
    return CUDA_SUCCESS;
  };
  driver.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode* mode) {
    static thread_local CUstreamCaptureMode own = CU_STREAM_CAPTURE_MODE_GLOBAL;
    std::swap(*mode, own);
    return CUDA_SUCCESS;
  };
  driver.cuEventCreate = [](CUevent* event, unsigned) {
    FakeGpu& fake = get();
    const std::lock_guard lock(fake.mutex_);
    *event = reinterpret_cast<CUevent>(fake.next_handle_++ * 4096);
    fake.events_[*event] = {};
    return CUDA_SUCCESS;
  };
  driver.cuEventRecord = [](CUevent event, CUstream stream) {
    FakeGpu& fake = get();
    const std::lock_guard lock(fake.mutex_);
    const Stream* const found = fake.find(stream);
    if (found == nullptr || !fake.events_.contains(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (found->capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    fake.events_[event].at = found->tail;
    return CUDA_SUCCESS;
  };
  driver.cuEventQuery = [](CUevent event) {
    FakeGpu& fake = get();
    const std::lock_guard lock(fake.mutex_);
    const auto found = fake.events_.find(event);
    if (found == fake.events_.end()) return CUDA_ERROR_INVALID_HANDLE;
    return now() >= found->second.at ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  };
  driver.cuEventElapsedTime = [](float* milliseconds, CUevent from, CUevent to) {
    FakeGpu& fake = get();
    const std::lock_guard lock(fake.mutex_);
    const auto first = fake.events_.find(from);
    const auto last = fake.events_.find(to);
    if (first == fake.events_.end() || last == fake.events_.end()) return CUDA_ERROR_INVALID_HANDLE;
    if (now() < last->second.at) return CUDA_ERROR_NOT_READY;
    *milliseconds = std::chrono::duration<float, std::milli>(last->second.at - first->second.at).count();
    return CUDA_SUCCESS;
  };
  driver.cuEventDestroy_v2 = [](CUevent event) {
    FakeGpu& fake = get();
    const std::lock_guard lock(fake.mutex_);
    return fake.events_.erase(event) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  };
  driver.cuLaunchKernel = [](CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             CUstream stream, void**, void**) { return get().submit(stream); };
}

}  // namespace gpumux::shim
