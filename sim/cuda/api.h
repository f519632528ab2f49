// SPDX-License-Identifier: Apache-2.0
// The first checks of every exported entry point: is the driver initialised, is a fault scripted, is there a context
// and is it whole.
//
// The entry points are in api_*.cc by area. They are the vendor's names in namespace gpumux::cuda (as declared in
// cuda/prototypes.gen.h); their work is in gpumux::sim.
#pragma once

#include <memory>

#include "sim/cuda/capture.h"
#include "sim/cuda/faults.h"
#include "sim/cuda/process.h"

#pragma GCC visibility push(default)
#include "cuda/prototypes.gen.h"
#pragma GCC visibility pop

namespace gpumux::sim {

// body(Process&)
template <class Body>
cuda::CUresult driver_call(const char* entry, Body body) {
  Process* process = Process::get();
  if (process == nullptr) return cuda::CUDA_ERROR_NOT_INITIALIZED;
  if (const cuda::CUresult scripted = scripted_fault(entry); scripted != cuda::CUDA_SUCCESS) return scripted;
  return body(*process);
}

// The current context, if calls that need one may go on.
inline cuda::CUresult usable_context(std::shared_ptr<Context>* context) {
  *context = thread_state().current();
  if (*context == nullptr) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  if ((*context)->destroyed()) return cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return (*context)->error();
}

// body(const std::shared_ptr<Context>&), the current one
template <class Body>
cuda::CUresult context_call(const char* entry, Body body) {
  return driver_call(entry, [&](Process&) {
    std::shared_ptr<Context> context;
    if (const cuda::CUresult result = usable_context(&context); result != cuda::CUDA_SUCCESS) return result;
    return static_cast<cuda::CUresult>(body(context));
  });
}

// body(const std::shared_ptr<Stream>&): the stream that the handle means for the calling thread
template <class Body>
cuda::CUresult stream_call(const char* entry, cuda::CUstream handle, bool per_thread, Body body) {
  return context_call(entry, [&](const std::shared_ptr<Context>& context) {
    std::shared_ptr<Stream> stream;
    if (handle == cuda::per_thread_stream() || (handle == nullptr && per_thread)) {
      stream = context->thread_stream();
    } else if (handle == nullptr || handle == cuda::legacy_stream()) {
      stream = context->legacy_stream();
    } else {
      stream = context->process().streams.find(handle);
    }
    if (stream == nullptr) return cuda::CUDA_ERROR_INVALID_HANDLE;
    if (stream->context()->destroyed()) return cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (stream->context()->error() != cuda::CUDA_SUCCESS) return stream->context()->error();
    return static_cast<cuda::CUresult>(body(stream));
  });
}

// body(Device&)
template <class Body>
cuda::CUresult device_call(const char* entry, int ordinal, Body body) {
  return driver_call(entry, [&](Process& process) {
    Device* device = process.device(ordinal);
    if (device == nullptr) return cuda::CUDA_ERROR_INVALID_DEVICE;
    return static_cast<cuda::CUresult>(body(*device));
  });
}

template <class Handle, class Object>
Handle handle_of(const std::shared_ptr<Object>& object) {
  return reinterpret_cast<Handle>(object.get());
}

}  // namespace gpumux::sim

// Defines an entry point and its per-thread-default-stream twin. Both call implementation(entry's name, per thread?,
// arguments...).
#define GPUMUX_SIM_STREAM_ENTRY(name, suffix, parameters, implementation, ...)   \
  CUresult name parameters { return implementation(#name, false, __VA_ARGS__); } \
  CUresult name##suffix parameters { return implementation(#name #suffix, true, __VA_ARGS__); }
