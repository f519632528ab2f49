// SPDX-License-Identifier: Apache-2.0
// Streams that end, capture, or join a capture: what they have submitted before is fenced, so that a drain still sees
// it (gate/stream_set.h).
#include "shim/hooks/hooks.gen.h"
#include "shim/hooks/submit.h"

namespace gpumux::shim::hooks {
namespace {

// The set that knows a stream, and the stream's name there.
struct KnownStream {
  Tenant* tenant = nullptr;
  gate::StreamSet* streams = nullptr;
  gate::InFlight* in_flight = nullptr;
  std::uint32_t slot = 0;  // if there is a set
  CUcontext context = nullptr;
  CUstream stream = nullptr;
};

KnownStream find(CUstream handle, StreamVariant variant) {
  KnownStream known{.tenant = tenant_if_any()};
  // Without a tenant nothing has been submitted through us.
  if (known.tenant == nullptr) return known;
  known.stream = at_stream(handle, variant).stream;
  known.context = context_of(driver(), known.stream);
  if (known.context == nullptr) return known;
  if (const auto slot = known.tenant->seat_of(known.context)) {
    known.slot = *slot;
    known.streams = &known.tenant->seats().streams(*slot);
    known.in_flight = &known.tenant->seats().in_flight(*slot);
  }
  return known;
}

gate::StreamName origin_of(const KnownStream& known) { return gate::name_of(known.context, known.stream); }

// Makes the call by which a stream enters a capture.
template <class Call>
CUresult enter_capture(const KnownStream& known, Call call) {
  if (known.streams == nullptr) return call();
  const gate::StreamSet::EnteringCapture entering(*known.streams, known.context, known.stream);
  return call();
}

template <class... Parameters>
CUresult begin_capture(StreamVariant variant, CUresult (*begin)(CUstream, Parameters...), CUstream stream,
                       std::type_identity_t<Parameters>... arguments) {
  // A program may capture before it has submitted anything: its tenant counts captures all the same.
  Tenant* const mine = tenant();
  const KnownStream known = find(stream, variant);
  // Noted before it begins: a submission that overtakes this asks the driver whether its stream captures.
  if (mine != nullptr) {
    mine->captures().begin(origin_of(known));
    gate::forget_memos();
  }
  const CUresult result = enter_capture(known, [&] { return begin(stream, arguments...); });
  if (result != CUDA_SUCCESS && mine != nullptr) mine->captures().end(origin_of(known));
  return result;
}

CUresult end_capture(CUstream stream, CUgraph* graph, StreamVariant variant, CUresult (*end)(CUstream, CUgraph*)) {
  const CUresult result = end(stream, graph);
  // Some errors end the capture, and others leave it as it was.
  const KnownStream known = find(stream, variant);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (known.tenant != nullptr && driver().cuStreamIsCapturing(known.stream, &status) == CUDA_SUCCESS &&
      status == CU_STREAM_CAPTURE_STATUS_NONE) {
    known.tenant->captures().end(origin_of(known));
    gate::forget_memos();  // those made since are not for the short way
  }
  return result;
}

// A capture may have begun on another GPU. Then the graph will have work on both, and is launched as one GPU's work.
// Which capture the stream is in is not asked: captures of several GPUs at the same time are taken for one.
void join_capture(const KnownStream& known) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (driver().cuStreamIsCapturing(known.stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
    return;
  for (const CUcontext context : known.tenant->captures().contexts()) {
    if (const auto slot = context != nullptr ? known.tenant->seat_of(context) : std::nullopt)
      known.tenant->belong_together(known.slot, *slot);
  }
}

CUresult wait_event(CUstream stream, CUevent event, unsigned int flags, StreamVariant variant,
                    CUresult (*wait)(CUstream, CUevent, unsigned int)) {
  Tenant* const mine = tenant_if_any();
  if (mine == nullptr || !mine->captures().any()) return wait(stream, event, flags);
  // Waiting for an event of a capturing stream draws this stream into the capture.
  const KnownStream known = find(stream, variant);
  const CUresult result = enter_capture(known, [&] { return wait(stream, event, flags); });
  if (result == CUDA_SUCCESS && known.streams != nullptr && mine->seats().count() > 1) join_capture(known);
  return result;
}

CUresult destroy(CUstream stream, CUresult (*real)(CUstream)) {
  const KnownStream known = find(stream, StreamVariant::kLegacy);
  if (known.streams == nullptr || stream == nullptr) return real(stream);
  known.streams->retire(stream);
  known.in_flight->forget_stream(stream);
  known.tenant->memories().stream_gone(stream);
  const CUresult result = real(stream);
  if (result == CUDA_SUCCESS) known.tenant->captures().stream_gone(stream);
  gate::forget_memos();
  return result;
}

}  // namespace

CUresult cuStreamBeginCapture(CUstream stream) {
  return begin_capture(StreamVariant::kLegacy, driver().cuStreamBeginCapture, stream);
}
CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
  return begin_capture(StreamVariant::kPtsz, driver().cuStreamBeginCapture_ptsz, stream);
}
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture(StreamVariant::kLegacy, driver().cuStreamBeginCapture_v2, stream, mode);
}
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture(StreamVariant::kPtsz, driver().cuStreamBeginCapture_v2_ptsz, stream, mode);
}
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
                                     const CUgraphEdgeData* dependency_data, std::size_t dependency_count,
                                     CUstreamCaptureMode mode) {
  return begin_capture(StreamVariant::kLegacy, driver().cuStreamBeginCaptureToGraph, stream, graph, dependencies,
                       dependency_data, dependency_count, mode);
}
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
                                          const CUgraphEdgeData* dependency_data, std::size_t dependency_count,
                                          CUstreamCaptureMode mode) {
  return begin_capture(StreamVariant::kPtsz, driver().cuStreamBeginCaptureToGraph_ptsz, stream, graph, dependencies,
                       dependency_data, dependency_count, mode);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return end_capture(stream, graph, StreamVariant::kLegacy, driver().cuStreamEndCapture);
}
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  return end_capture(stream, graph, StreamVariant::kPtsz, driver().cuStreamEndCapture_ptsz);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  return wait_event(stream, event, flags, StreamVariant::kLegacy, driver().cuStreamWaitEvent);
}
CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags) {
  return wait_event(stream, event, flags, StreamVariant::kPtsz, driver().cuStreamWaitEvent_ptsz);
}

CUresult cuStreamDestroy(CUstream stream) { return destroy(stream, driver().cuStreamDestroy); }
CUresult cuStreamDestroy_v2(CUstream stream) { return destroy(stream, driver().cuStreamDestroy_v2); }

}  // namespace gpumux::shim::hooks
