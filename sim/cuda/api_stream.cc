// SPDX-License-Identifier: Apache-2.0
// Entry points: streams, events, host functions, stream memory operations.
#include <algorithm>
#include <chrono>

#include "sim/cuda/api.h"
#include "sim/cuda/memory_pool.h"

namespace gpumux::sim {
namespace {

using cuda::CUresult;

CUresult create_stream(const char* entry, cuda::CUstream* handle, unsigned flags, int priority) {
  return context_call(entry, [&](const std::shared_ptr<Context>& context) {
    if (handle == nullptr || (flags & ~unsigned{cuda::CU_STREAM_NON_BLOCKING}) != 0)
      return cuda::CUDA_ERROR_INVALID_VALUE;
    constexpr int kGreatest = -5;
    *handle = context->process().streams.add<cuda::CUstream>(
        context->create_stream(flags, std::clamp(priority, kGreatest, 0)));
    return cuda::CUDA_SUCCESS;
  });
}

CUresult destroy_stream(const char* entry, cuda::CUstream handle) {
  return driver_call(entry, [&](Process& process) {
    const auto stream = process.streams.remove(handle);
    if (stream == nullptr) return cuda::CUDA_ERROR_INVALID_HANDLE;
    drop_from_capture(stream);
    stream->context()->remove_stream(stream);
    return stream->context()->error();
  });
}

CUresult query_stream(const char* entry, bool per_thread, cuda::CUstream handle) {
  return stream_call(entry, handle, per_thread, [](const std::shared_ptr<Stream>& stream) {
    if (const CUresult result = may_wait_for(stream); result != cuda::CUDA_SUCCESS) return result;
    const auto busy = [](const Stream& s) {
      const auto tail = s.tail();
      return tail != nullptr && !tail->done();
    };
    // The legacy stream is done when all that it would wait for is.
    if (stream == stream->context()->legacy_stream()) {
      for (const auto& other : stream->context()->streams()) {
        if (other->blocking() && busy(*other)) return cuda::CUDA_ERROR_NOT_READY;
      }
    }
    if (busy(*stream)) return cuda::CUDA_ERROR_NOT_READY;
    return stream->context()->error();
  });
}

CUresult synchronize_stream(const char* entry, bool per_thread, cuda::CUstream handle) {
  return stream_call(entry, handle, per_thread, [](const std::shared_ptr<Stream>& stream) {
    if (const CUresult result = may_wait_for(stream); result != cuda::CUDA_SUCCESS) return result;
    std::vector<std::shared_ptr<Stream>> waited{stream};
    if (stream == stream->context()->legacy_stream()) waited = stream->context()->streams();
    for (const auto& other : waited) {
      const auto tail = other->blocking() || other == stream ? other->tail() : nullptr;
      if (tail != nullptr) tail->wait();
    }
    trim_pools(stream->context()->process());
    return stream->context()->error();
  });
}

std::shared_ptr<Event> find_event(const std::shared_ptr<Stream>& stream, cuda::CUevent handle) {
  return stream->context()->process().events.find(handle);
}

CUresult record(const char* entry, bool per_thread, cuda::CUevent handle, cuda::CUstream stream_handle,
                unsigned flags) {
  return stream_call(entry, stream_handle, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    const auto event = find_event(stream, handle);
    if (event == nullptr) return cuda::CUDA_ERROR_INVALID_HANDLE;
    if (flags > cuda::CU_EVENT_RECORD_EXTERNAL) return cuda::CUDA_ERROR_INVALID_VALUE;
    // An event and the stream it is recorded in belong to one context.
    if (event->context != stream->context()) return cuda::CUDA_ERROR_INVALID_HANDLE;
    if (captures_active()) {
      if (flags == cuda::CU_EVENT_RECORD_EXTERNAL) {
        bool node = false;
        const CUresult result = capture_task(stream, EventRecordTask{event}, &node);
        if (node || result != cuda::CUDA_SUCCESS) return result;
      }
      bool captured = false;
      const CUresult result = capture_record(stream, event, &captured);
      if (captured || result != cuda::CUDA_SUCCESS) return result;
    }
    auto point = stream->context()->submit(*stream, Operation());
    const std::lock_guard lock(event->mutex);
    event->capture = nullptr;
    event->recorded = std::move(point);
    return cuda::CUDA_SUCCESS;
  });
}

CUresult wait_event(const char* entry, bool per_thread, cuda::CUstream stream_handle, cuda::CUevent handle,
                    unsigned flags) {
  return stream_call(entry, stream_handle, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    const auto event = find_event(stream, handle);
    if (event == nullptr) return cuda::CUDA_ERROR_INVALID_HANDLE;
    if (flags > cuda::CU_EVENT_WAIT_EXTERNAL) return cuda::CUDA_ERROR_INVALID_VALUE;
    if (captures_active()) {
      bool captured = false;
      const CUresult result = flags == cuda::CU_EVENT_WAIT_EXTERNAL
                                  ? capture_task(stream, EventWaitTask{event}, &captured)
                                  : capture_wait(stream, event, &captured);
      if (captured || result != cuda::CUDA_SUCCESS) return result;
    }
    auto last = event->last();
    if (last == nullptr || last->done()) return cuda::CUDA_SUCCESS;
    Operation operation;
    operation.after.push_back(std::move(last));
    stream->context()->submit(*stream, std::move(operation));
    return cuda::CUDA_SUCCESS;
  });
}

template <class Body>
CUresult event_call(const char* entry, cuda::CUevent handle, Body body) {
  return driver_call(entry, [&](Process& process) {
    const auto event = process.events.find(handle);
    if (event == nullptr) return cuda::CUDA_ERROR_INVALID_HANDLE;
    if (event->context->destroyed()) return cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (event->context->error() != cuda::CUDA_SUCCESS) return event->context->error();
    return static_cast<CUresult>(body(*event));
  });
}

CUresult destroy_event(const char* entry, cuda::CUevent handle) {
  return driver_call(entry, [&](Process& process) {
    return process.events.remove(handle) == nullptr ? cuda::CUDA_ERROR_INVALID_HANDLE : cuda::CUDA_SUCCESS;
  });
}

CUresult elapsed(const char* entry, float* milliseconds, cuda::CUevent start_handle, cuda::CUevent end_handle) {
  return event_call(entry, start_handle, [&](Event& start) {
    const auto end = start.context->process().events.find(end_handle);
    if (end == nullptr) return cuda::CUDA_ERROR_INVALID_HANDLE;
    if (milliseconds == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    if (((start.flags | end->flags) & cuda::CU_EVENT_DISABLE_TIMING) != 0) return cuda::CUDA_ERROR_INVALID_HANDLE;
    const auto first = start.last();
    const auto last = end->last();
    if (first == nullptr || last == nullptr) return cuda::CUDA_ERROR_INVALID_HANDLE;
    if (!first->done() || !last->done()) return cuda::CUDA_ERROR_NOT_READY;
    *milliseconds = std::chrono::duration<float, std::milli>(last->time() - first->time()).count();
    return cuda::CUDA_SUCCESS;
  });
}

CUresult launch_host_function(const char* entry, bool per_thread, cuda::CUstream handle, cuda::CUhostFn function,
                              void* user_data) {
  return stream_call(entry, handle, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    if (function == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    return issue(stream, HostTask{stream->context(), function, user_data});
  });
}

// The older form: it is told of a broken context too, and cannot be captured.
CUresult add_callback(const char* entry, bool per_thread, cuda::CUstream handle, cuda::CUstreamCallback callback,
                      void* user_data, unsigned flags) {
  return stream_call(entry, handle, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    if (callback == nullptr || flags != 0) return cuda::CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = may_wait_for(stream); result != cuda::CUDA_SUCCESS) return result;
    Context* context = stream->context().get();  // it has the stream, and so outlives the operation
    const auto call = [context, handle, callback, user_data](Worker& worker) {
      worker.let_go();
      worker.settle();
      context->host_thread().call([=] { callback(handle, context->error(), user_data); });
    };
    Operation operation;
    operation.run = [call](Worker& worker) {
      call(worker);
      return cuda::CUDA_SUCCESS;
    };
    operation.run_broken = call;
    context->submit(*stream, std::move(operation));
    return cuda::CUDA_SUCCESS;
  });
}

CUresult memory_operations(const char* entry, bool per_thread, cuda::CUstream handle, unsigned count,
                           const cuda::CUstreamBatchMemOpParams* operations, unsigned flags) {
  return stream_call(entry, handle, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    constexpr unsigned kMost = 256;  // the driver's own limit
    if (operations == nullptr || count == 0 || count > kMost || flags != 0) return cuda::CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; ++i) {
      const auto& operation = operations[i];
      const bool wide = operation.operation == cuda::CU_STREAM_MEM_OP_WAIT_VALUE_64 ||
                        operation.operation == cuda::CU_STREAM_MEM_OP_WRITE_VALUE_64;
      const bool narrow = operation.operation == cuda::CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
                          operation.operation == cuda::CU_STREAM_MEM_OP_WRITE_VALUE_32;
      if (!wide && !narrow) continue;
      if (operation.waitValue.address == 0 || operation.waitValue.address % (wide ? 8 : 4) != 0)
        return cuda::CUDA_ERROR_INVALID_VALUE;
    }
    MemoryOperationsTask task;
    task.context = stream->context();
    task.operations.assign(operations, operations + count);
    return issue(stream, std::move(task));
  });
}

template <class Value>
CUresult one_memory_operation(const char* entry, bool per_thread, cuda::CUstreamBatchMemOpType type,
                              cuda::CUstream stream, cuda::CUdeviceptr address, Value value, unsigned flags) {
  cuda::CUstreamBatchMemOpParams operation{};
  operation.waitValue.operation = type;
  operation.waitValue.address = address;
  if constexpr (sizeof(Value) == 8) {
    operation.waitValue.value64 = value;
  } else {
    operation.waitValue.value = value;
  }
  operation.waitValue.flags = flags;
  return memory_operations(entry, per_thread, stream, 1, &operation, 0);
}

template <class Body>
CUresult stream_fact(const char* entry, bool per_thread, cuda::CUstream handle, const void* out, Body body) {
  return stream_call(entry, handle, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    if (out == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    body(*stream);
    return cuda::CUDA_SUCCESS;
  });
}

CUresult stream_context(const char* entry, bool per_thread, cuda::CUstream handle, cuda::CUcontext* context) {
  return stream_fact(entry, per_thread, handle, context,
                     [&](Stream& s) { *context = handle_of<cuda::CUcontext>(s.context()); });
}
CUresult stream_context_v2(const char* entry, bool per_thread, cuda::CUstream handle, cuda::CUcontext* context,
                           cuda::CUgreenCtx* green) {
  if (green != nullptr) *green = nullptr;
  return stream_context(entry, per_thread, handle, context);
}
CUresult stream_device(const char* entry, bool per_thread, cuda::CUstream handle, cuda::CUdevice* device) {
  return stream_fact(entry, per_thread, handle, device, [&](Stream& s) { *device = s.context()->device().ordinal; });
}
CUresult stream_flags(const char* entry, bool per_thread, cuda::CUstream handle, unsigned* flags) {
  return stream_fact(entry, per_thread, handle, flags, [&](Stream& s) { *flags = s.flags(); });
}
CUresult stream_id(const char* entry, bool per_thread, cuda::CUstream handle, unsigned long long* id) {
  return stream_fact(entry, per_thread, handle, id, [&](Stream& s) { *id = s.id(); });
}
CUresult stream_priority(const char* entry, bool per_thread, cuda::CUstream handle, int* priority) {
  return stream_fact(entry, per_thread, handle, priority, [&](Stream& s) { *priority = s.priority(); });
}

// Stream attributes are hints to hardware that is not there: accepted, and read back as zero.
CUresult get_attribute(const char* entry, bool per_thread, cuda::CUstream handle, cuda::CUstreamAttrValue* value) {
  return stream_fact(entry, per_thread, handle, value, [&](Stream&) { *value = cuda::CUstreamAttrValue{}; });
}
CUresult set_attribute(const char* entry, bool per_thread, cuda::CUstream handle,
                       const cuda::CUstreamAttrValue* value) {
  return stream_fact(entry, per_thread, handle, value, [](Stream&) {});
}
CUresult copy_attributes(const char* entry, bool per_thread, cuda::CUstream to, cuda::CUstream from) {
  return stream_call(entry, from, per_thread, [&](const std::shared_ptr<Stream>&) {
    return stream_call(entry, to, per_thread, [](const std::shared_ptr<Stream>&) { return cuda::CUDA_SUCCESS; });
  });
}
CUresult attach_memory(const char* entry, bool per_thread, cuda::CUstream handle, cuda::CUdeviceptr pointer) {
  return stream_call(entry, handle, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    const auto mapping = stream->context()->process().space().find(pointer);
    return mapping && mapping->kind == MemoryKind::kManaged ? cuda::CUDA_SUCCESS : cuda::CUDA_ERROR_INVALID_VALUE;
  });
}

}  // namespace
}  // namespace gpumux::sim

namespace gpumux::cuda {

using namespace gpumux::sim;

extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
  return create_stream("cuStreamCreate", stream, flags, 0);
}
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  return create_stream("cuStreamCreateWithPriority", stream, flags, priority);
}
CUresult cuStreamDestroy(CUstream stream) { return destroy_stream("cuStreamDestroy", stream); }
CUresult cuStreamDestroy_v2(CUstream stream) { return destroy_stream("cuStreamDestroy_v2", stream); }

GPUMUX_SIM_STREAM_ENTRY(cuStreamQuery, _ptsz, (CUstream stream), query_stream, stream)
GPUMUX_SIM_STREAM_ENTRY(cuStreamSynchronize, _ptsz, (CUstream stream), synchronize_stream, stream)
GPUMUX_SIM_STREAM_ENTRY(cuStreamWaitEvent, _ptsz, (CUstream stream, CUevent event, unsigned int flags), wait_event,
                        stream, event, flags)
GPUMUX_SIM_STREAM_ENTRY(cuStreamGetCtx, _ptsz, (CUstream stream, CUcontext* context), stream_context, stream, context)
GPUMUX_SIM_STREAM_ENTRY(cuStreamGetCtx_v2, _ptsz, (CUstream stream, CUcontext* context, CUgreenCtx* green),
                        stream_context_v2, stream, context, green)
GPUMUX_SIM_STREAM_ENTRY(cuStreamGetDevice, _ptsz, (CUstream stream, CUdevice* device), stream_device, stream, device)
GPUMUX_SIM_STREAM_ENTRY(cuStreamGetFlags, _ptsz, (CUstream stream, unsigned int* flags), stream_flags, stream, flags)
GPUMUX_SIM_STREAM_ENTRY(cuStreamGetId, _ptsz, (CUstream stream, unsigned long long* id), stream_id, stream, id)
GPUMUX_SIM_STREAM_ENTRY(cuStreamGetPriority, _ptsz, (CUstream stream, int* priority), stream_priority, stream, priority)
GPUMUX_SIM_STREAM_ENTRY(cuStreamGetAttribute, _ptsz, (CUstream stream, CUstreamAttrID, CUstreamAttrValue* value),
                        get_attribute, stream, value)
GPUMUX_SIM_STREAM_ENTRY(cuStreamSetAttribute, _ptsz, (CUstream stream, CUstreamAttrID, const CUstreamAttrValue* value),
                        set_attribute, stream, value)
GPUMUX_SIM_STREAM_ENTRY(cuStreamCopyAttributes, _ptsz, (CUstream to, CUstream from), copy_attributes, to, from)
GPUMUX_SIM_STREAM_ENTRY(cuStreamAttachMemAsync, _ptsz,
                        (CUstream stream, CUdeviceptr pointer, std::size_t, unsigned int), attach_memory, stream,
                        pointer)

GPUMUX_SIM_STREAM_ENTRY(cuLaunchHostFunc, _ptsz, (CUstream stream, CUhostFn function, void* user_data),
                        launch_host_function, stream, function, user_data)
GPUMUX_SIM_STREAM_ENTRY(cuStreamAddCallback, _ptsz,
                        (CUstream stream, CUstreamCallback callback, void* user_data, unsigned int flags), add_callback,
                        stream, callback, user_data, flags)

GPUMUX_SIM_STREAM_ENTRY(cuStreamBatchMemOp, _ptsz,
                        (CUstream stream, unsigned int count, CUstreamBatchMemOpParams* operations, unsigned int flags),
                        memory_operations, stream, count, operations, flags)
GPUMUX_SIM_STREAM_ENTRY(cuStreamBatchMemOp_v2, _ptsz,
                        (CUstream stream, unsigned int count, CUstreamBatchMemOpParams* operations, unsigned int flags),
                        memory_operations, stream, count, operations, flags)

#define GPUMUX_SIM_MEMORY_OPERATION(name, type, value_type)                                                          \
  GPUMUX_SIM_STREAM_ENTRY(name, _ptsz, (CUstream stream, CUdeviceptr address, value_type value, unsigned int flags), \
                          one_memory_operation, type, stream, address, value, flags)
GPUMUX_SIM_MEMORY_OPERATION(cuStreamWaitValue32, CU_STREAM_MEM_OP_WAIT_VALUE_32, std::uint32_t)
GPUMUX_SIM_MEMORY_OPERATION(cuStreamWaitValue32_v2, CU_STREAM_MEM_OP_WAIT_VALUE_32, std::uint32_t)
GPUMUX_SIM_MEMORY_OPERATION(cuStreamWaitValue64, CU_STREAM_MEM_OP_WAIT_VALUE_64, std::uint64_t)
GPUMUX_SIM_MEMORY_OPERATION(cuStreamWaitValue64_v2, CU_STREAM_MEM_OP_WAIT_VALUE_64, std::uint64_t)
GPUMUX_SIM_MEMORY_OPERATION(cuStreamWriteValue32, CU_STREAM_MEM_OP_WRITE_VALUE_32, std::uint32_t)
GPUMUX_SIM_MEMORY_OPERATION(cuStreamWriteValue32_v2, CU_STREAM_MEM_OP_WRITE_VALUE_32, std::uint32_t)
GPUMUX_SIM_MEMORY_OPERATION(cuStreamWriteValue64, CU_STREAM_MEM_OP_WRITE_VALUE_64, std::uint64_t)
GPUMUX_SIM_MEMORY_OPERATION(cuStreamWriteValue64_v2, CU_STREAM_MEM_OP_WRITE_VALUE_64, std::uint64_t)

CUresult cuEventCreate(CUevent* handle, unsigned int flags) {
  return context_call("cuEventCreate", [&](const std::shared_ptr<Context>& context) {
    constexpr unsigned kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (handle == nullptr || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
    auto event = std::make_shared<Event>();
    event->context = context;
    event->flags = flags;
    *handle = context->process().events.add<CUevent>(std::move(event));
    return CUDA_SUCCESS;
  });
}
CUresult cuEventDestroy(CUevent event) { return destroy_event("cuEventDestroy", event); }
CUresult cuEventDestroy_v2(CUevent event) { return destroy_event("cuEventDestroy_v2", event); }

CUresult cuEventRecord(CUevent event, CUstream stream) { return record("cuEventRecord", false, event, stream, 0); }
CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) {
  return record("cuEventRecord_ptsz", true, event, stream, 0);
}
GPUMUX_SIM_STREAM_ENTRY(cuEventRecordWithFlags, _ptsz, (CUevent event, CUstream stream, unsigned int flags), record,
                        event, stream, flags)

CUresult cuEventQuery(CUevent event) {
  return event_call("cuEventQuery", event, [](Event& found) {
    if (const CUresult result = may_wait_for(found); result != CUDA_SUCCESS) return result;
    if (const CUresult result = may_call_unsafe(); result != CUDA_SUCCESS) return result;
    const auto last = found.last();
    if (last != nullptr && !last->done()) return CUDA_ERROR_NOT_READY;
    return found.context->error();
  });
}

CUresult cuEventSynchronize(CUevent event) {
  return event_call("cuEventSynchronize", event, [](Event& found) {
    if (const CUresult result = may_wait_for(found); result != CUDA_SUCCESS) return result;
    if (const auto last = found.last(); last != nullptr) last->wait();
    return found.context->error();
  });
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return elapsed("cuEventElapsedTime", milliseconds, start, end);
}
CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return elapsed("cuEventElapsedTime_v2", milliseconds, start, end);
}

}  // extern "C"
}  // namespace gpumux::cuda
