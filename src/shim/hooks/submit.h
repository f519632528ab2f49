// SPDX-License-Identifier: Apache-2.0
// The steps of every hooked entry, for the generated exports (exports.gen.cc). Submissions pass the gate of the seat
// that they go to. Waiting calls are watched for idleness. This header is the fast path: while the lease is held,
// everything here is a few loads and stores.
//
// A submission that belongs to no seat goes to the driver as it is. It belongs to none if no context is current (the
// driver says so), the stream captures (nothing runs), or gpumux is disabled.
//
// A thread is not cancelled within an entry (base/no_cancellation.h), with one exception. The short way of a submission
// leaves cancellation as it is: it takes no lock, and a thread that ends in the driver's call there leaves the gate by
// ending (gate/thread_records.h).
#pragma once

#include <optional>
#include <type_traits>

#include "base/no_cancellation.h"
#include "gate/thread_records.h"
#include "shim/hooks/extents.h"
#include "shim/hooks/reach.h"
#include "shim/process/real_driver.h"
#include "shim/tenant/tenant.h"

namespace gpumux::shim {

// ---- where work goes ----

// One stream: null for the current context's legacy stream, gate::kPerThreadStream for the calling thread's own.
struct Where {
  cuda::CUstream stream = nullptr;
};

// A stream and further contexts whose GPUs take part (peer copies).
struct WhereSeveral {
  cuda::CUstream stream = nullptr;
  cuda::CUcontext contexts[2] = {};
};

inline Where at_stream(cuda::CUstream stream, cuda::StreamVariant variant) {
  if (stream == gate::kLegacyStream) return {nullptr};
  if (stream == nullptr && variant != cuda::StreamVariant::kLegacy) return {gate::kPerThreadStream};
  return {stream};
}
inline Where at_default(cuda::StreamVariant variant) { return at_stream(nullptr, variant); }

// The context that a stream belongs to (for a default stream, the current one); null: there is none. A stream is noted
// in its seat's StreamSet by this context.
cuda::CUcontext context_of(const cuda::Driver& driver, cuda::CUstream stream);
// Whether work that is submitted there now is captured and not run. False: the driver cannot tell.
bool is_capturing(const cuda::Driver& driver, cuda::CUstream stream);
inline WhereSeveral at_contexts_stream(cuda::CUcontext a, cuda::CUcontext b, cuda::CUstream stream,
                                       cuda::StreamVariant variant) {
  return {at_stream(stream, variant).stream, {a, b}};
}
inline WhereSeveral at_contexts(cuda::CUcontext a, cuda::CUcontext b, cuda::StreamVariant variant) {
  return at_contexts_stream(a, b, nullptr, variant);
}
inline WhereSeveral at_peer_params_stream(const cuda::CUDA_MEMCPY3D_PEER* copy, cuda::CUstream stream,
                                          cuda::StreamVariant variant) {
  if (copy == nullptr) return {at_stream(stream, variant).stream, {}};
  return at_contexts_stream(copy->srcContext, copy->dstContext, stream, variant);
}
inline WhereSeveral at_peer_params(const cuda::CUDA_MEMCPY3D_PEER* copy, cuda::StreamVariant variant) {
  return at_peer_params_stream(copy, nullptr, variant);
}

// All streams of a context; null: the current one's.
struct WholeContext {
  cuda::CUcontext context = nullptr;
};
// Its seat; null stands for the current context.
inline std::optional<std::uint32_t> seat_of(Tenant& tenant, WholeContext whole) {
  const cuda::CUcontext context = whole.context != nullptr ? whole.context : context_of(tenant.driver(), nullptr);
  return context != nullptr ? tenant.seat_of(context) : std::nullopt;
}
inline WholeContext at_context() { return {}; }
inline WholeContext at_context(cuda::CUcontext context) { return {context}; }

// The context that a node of a graph is for. Nothing: a node without addresses that the driver looks up.
inline std::optional<WholeContext> at_node(const cuda::CUgraphNodeParams* params) {
  if (params == nullptr) return std::nullopt;
  switch (params->type) {
    case cuda::CU_GRAPH_NODE_TYPE_MEMCPY: return WholeContext{params->memcpy.copyCtx};
    case cuda::CU_GRAPH_NODE_TYPE_MEMSET: return WholeContext{params->memset.ctx};
    case cuda::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return WholeContext{params->memOp.ctx};
    default: return std::nullopt;
  }
}
inline std::optional<WholeContext> at_node(const cuda::CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return params != nullptr ? std::optional(WholeContext{params->ctx}) : std::nullopt;
}

// The seat of the calling thread's context; `memory` null: there is none, and the driver says why.
struct Here {
  Memories* memories = nullptr;
  DeviceMemory* memory = nullptr;
  cuda::CUcontext context = nullptr;
};
Here here();

// Before a call that names memory by its addresses passes the gate of its own seat.
template <class... Parameters>
inline void reach_memory(cuda::CUstream stream, const Parameters&... arguments) {
  Reach([stream](Tenant& tenant) {
    return seat_of(tenant, WholeContext{context_of(tenant.driver(), stream)});
  }).names_all(arguments...);
}
template <class... Parameters>
inline void reach_memory(WholeContext whole, const Parameters&... arguments) {
  Reach([whole](Tenant& tenant) { return seat_of(tenant, whole); }).names_all(arguments...);
}

// ---- passing ----

// The calling thread inside the gate of one stream's seat, for as long as this lives. Nearly always it gets in and out
// by what it remembers of the stream (gate::pass_directly). The long way finds the seat, asks whether the stream
// captures, and waits for the lease. It notes the stream for a later drain, and remembers all that.
class Passage {
 public:
  explicit Passage(Where where) {
    gate::ThreadRecord* const thread = gate::t_record;
    if (thread != nullptr) [[likely]]
      direct_ = gate::pass_directly(*thread, thread->memo_of(where.stream), where.stream);
    if (direct_ == nullptr) [[unlikely]]
      enter_slowly(where.stream);
  }
  ~Passage() {
    if (direct_ != nullptr) [[likely]]
      gate::leave_directly(*direct_);
    else if (passed_ != gate::Passed::kNot && passed_ != gate::Passed::kStranded)
      leave_slowly();
  }
  // The seat's memory cannot come back, so the call is not made: CUDA_ERROR_OUT_OF_MEMORY.
  bool is_stranded() const { return direct_ == nullptr && passed_ == gate::Passed::kStranded; }
  Passage(const Passage&) = delete;
  Passage& operator=(const Passage&) = delete;

 private:
  void enter_slowly(cuda::CUstream stream);
  gate::StreamMemo* look_up(cuda::CUstream stream) const;
  void hold(std::uint32_t slot);
  void leave_slowly();
  bool remembers(const gate::StreamMemo& memo, cuda::CUstream stream, std::uint64_t generation) const;
  bool find_seat(gate::StreamMemo& memo, cuda::CUstream stream, std::uint64_t generation) const;
  void note(gate::StreamMemo& memo) const;

  std::atomic<std::uint64_t>* direct_ = nullptr;  // the short way leaves by this
  gate::Passed passed_ = gate::Passed::kNot;      // by the long way, as are all that follow
  bool runs_;                                     // not captured: the GPU has more to do now
  std::uint32_t slot_;
  cuda::CUcontext context_;
  cuda::CUstream stream_;
  Tenant* tenant_;
  gate::ThreadRecord* thread_;
};

// The calling thread inside the gates of several seats: all of them, or it waits outside of all.
class SeveralPassages {
 public:
  explicit SeveralPassages(Tenant* tenant);
  ~SeveralPassages();
  SeveralPassages(const SeveralPassages&) = delete;
  SeveralPassages& operator=(const SeveralPassages&) = delete;

  // Names a seat: that of a context, or of a stream (as in Where) that the work goes to. Then enter, once.
  void add_context(cuda::CUcontext context);
  void add_stream(cuda::CUstream stream);
  // False: a seat's memory cannot come back, and the thread is inside of none.
  bool enter();

 private:
  struct Member {
    std::uint32_t slot = 0;
    gate::Passed passed = gate::Passed::kNot;
    bool has_stream = false;
    cuda::CUcontext context = nullptr;
    cuda::CUstream stream = nullptr;
  };
  Member* find_or_add(std::uint32_t slot);
  enum class Entered { kAll, kNotYet, kStranded };
  bool is_any_stranded() const;
  Entered try_enter(std::optional<gate::Gate::Waiting>& waiting);
  void leave_all();

  Tenant* tenant_;
  gate::ThreadRecord* thread_ = nullptr;
  Member members_[base::kMaxSeatsPerTenant];
  std::size_t count_ = 0;
};

// The memory of a context's GPU is there for as long as this lives. For calls that submit nothing and name addresses
// that the driver looks up at once: the nodes of graphs that a program builds by itself. No lease is needed if all
// memory is there, as with captured work. Otherwise this waits for a lease, and so for the memory.
class MemoryHold {
 public:
  explicit MemoryHold(const std::optional<WholeContext>& whole);
  ~MemoryHold();
  // As Passage::is_stranded.
  bool is_stranded() const { return passed_ == gate::Passed::kStranded; }
  MemoryHold(const MemoryHold&) = delete;
  MemoryHold& operator=(const MemoryHold&) = delete;

 private:
  Tenant* tenant_ = nullptr;  // null: nothing to leave
  gate::ThreadRecord* thread_ = nullptr;
  std::uint32_t slot_ = 0;
  gate::Passed passed_ = gate::Passed::kNot;
};

// A copy to memory of the program's own that waits in the driver for all work before it. An asynchronous copy does so
// only if that memory is pageable. While others want the GPU, a thread must not wait for that inside the gate, which
// could not close. So it waits before the gate. For as long as this lives, the thread counts as one that waits for its
// gate. An idle GPU does not mean that the program has nothing to do for it.
class CopyWait {
 public:
  enum class Blocks { kAlways, kIfPageable };
  CopyWait(Where where, const void* destination, std::size_t bytes, Blocks blocks);

 private:
  std::optional<gate::Gate::Waiting> waiting_;
};

// Whether what goes to the stream (as in Where) is captured.
[[gnu::cold]] bool is_captured(cuda::CUstream stream);

// The result of an entry that the program's driver does not have.
inline constexpr cuda::CUresult kNoSuchEntry = cuda::CUDA_ERROR_NOT_FOUND;

// Whether the driver looks addresses up while the thread is in the call.
template <class... Parameters>
inline constexpr bool kLooksUp = kNamesAddresses<Parameters...> ||
                                 (std::is_same_v<Parameters, cuda::CUstreamBatchMemOpParams*> || ...);

// All that a submission may need.
template <class... Parameters>
inline cuda::CUresult submit_fully(Where where, cuda::CUresult (*function)(Parameters...),
                                   std::type_identity_t<Parameters>... arguments) {
  if (function == nullptr) [[unlikely]]
    return kNoSuchEntry;
  const base::NoCancellation whole_call;
  if constexpr (kNamesAddresses<Parameters...>) {
    // The driver looks up what a captured copy names at once, and what a captured fill names when it runs.
    if (!are_within(arguments...) && !(kFills<Parameters...> && is_captured(where.stream))) [[unlikely]]
      return cuda::CUDA_ERROR_INVALID_VALUE;
    reach_memory(where.stream, arguments...);
  }
  const auto call = [&] {
    const gate::LookingUp looking_up(kLooksUp<Parameters...> ? gate::this_thread() : nullptr);
    const Passage passage(where);
    if (passage.is_stranded()) [[unlikely]]
      return cuda::CUDA_ERROR_OUT_OF_MEMORY;
    return function(arguments...);
  };
  if constexpr (!kLooksUp<Parameters...>) return call();
  // A thread that came late to the lookup finds that the memory has left (shim/memory/pager_thread.h, kLookUpPatience).
  // A bar makes a new generation.
  for (;;) {
    const std::uint64_t generation = gate::memo_generation();
    const cuda::CUresult result = call();
    if (result != cuda::CUDA_ERROR_INVALID_VALUE || generation == gate::memo_generation()) [[likely]]
      return result;
  }
}

template <class... Parameters>
[[gnu::noinline]] cuda::CUresult submit_by_the_long_way(Where where, cuda::CUresult (*function)(Parameters...),
                                                        std::type_identity_t<Parameters>... arguments) {
  return submit_fully(where, function, arguments...);
}

// The short way of a launch is in the exported entry itself: a call would copy eleven arguments once more.
template <class... Parameters>
[[gnu::always_inline]] inline cuda::CUresult submit(Where where, cuda::CUresult (*function)(Parameters...),
                                                    std::type_identity_t<Parameters>... arguments) {
  if constexpr (!kNamesAddresses<Parameters...>) {
    gate::ThreadRecord* const thread = gate::t_record;
    std::atomic<std::uint64_t>* const passages =
        thread != nullptr && function != nullptr
            ? gate::pass_directly(*thread, thread->memo_of(where.stream), where.stream)
            : nullptr;
    if (passages != nullptr) [[likely]] {
      const cuda::CUresult result = function(arguments...);
      gate::leave_directly(*passages);
      return result;
    }
    return submit_by_the_long_way(where, function, arguments...);
  } else {
    return submit_fully(where, function, arguments...);
  }
}

template <class... Parameters>
inline cuda::CUresult submit_copy_out(Where where, std::size_t bytes, CopyWait::Blocks blocks,
                                      cuda::CUresult (*function)(void*, Parameters...), void* destination,
                                      std::type_identity_t<Parameters>... arguments) {
  if (function == nullptr) [[unlikely]]
    return kNoSuchEntry;
  const base::NoCancellation whole_call;
  const CopyWait wait(where, destination, bytes, blocks);
  return submit(where, function, destination, arguments...);
}

template <class... Parameters>
inline cuda::CUresult hold_memory(const std::optional<WholeContext>& whole, cuda::CUresult (*function)(Parameters...),
                                  std::type_identity_t<Parameters>... arguments) {
  if (function == nullptr) [[unlikely]]
    return kNoSuchEntry;
  const base::NoCancellation whole_call;
  if (!are_nodes_within(arguments...)) return cuda::CUDA_ERROR_INVALID_VALUE;
  if constexpr (kNamesAddresses<Parameters...>) {
    if (whole) reach_memory(*whole, arguments...);
  }
  const MemoryHold hold(whole);
  if (hold.is_stranded()) [[unlikely]]
    return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  return function(arguments...);
}

// ---- calls for which the driver takes memory of its own: contexts, modules, streams, events, graphs, what kernels
// need for their stacks. That memory is not paged, and only the driver knows how much it is.

// Such a call has failed for lack of memory, and has done nothing. This asks the daemon for room and makes the call
// again, until it succeeds or no more room can be had. Not inside the gate, holding nothing. `device`: a context is
// being made there; nothing: the call is for the current one.
[[gnu::cold, gnu::noinline]] cuda::CUresult again_with_room(std::optional<cuda::CUdevice> device,
                                                            cuda::CUresult (*call)(void*), void* argument);
template <class Call>
[[gnu::cold, gnu::noinline]] cuda::CUresult again_with_room(std::optional<cuda::CUdevice> device, Call call) {
  return again_with_room(
      device, [](void* again) { return (*static_cast<Call*>(again))(); }, &call);
}

template <class... Parameters>
inline cuda::CUresult make(cuda::CUresult (*function)(Parameters...), std::type_identity_t<Parameters>... arguments) {
  if (function == nullptr) [[unlikely]]
    return kNoSuchEntry;
  const base::NoCancellation whole_call;
  const cuda::CUresult result = function(arguments...);
  if (result != cuda::CUDA_ERROR_OUT_OF_MEMORY) [[likely]]
    return result;
  return again_with_room(std::nullopt, [=] { return function(arguments...); });
}

template <class... Parameters>
[[gnu::cold, gnu::noinline]] cuda::CUresult submit_again_with_room(Where where,
                                                                   cuda::CUresult (*function)(Parameters...),
                                                                   std::type_identity_t<Parameters>... arguments) {
  const base::NoCancellation whole_call;
  return again_with_room(std::nullopt, [=] { return submit_fully(where, function, arguments...); });
}
// A submission that returns this has not been made.
template <class... Parameters>
[[gnu::always_inline]] inline cuda::CUresult submit_with_room(Where where, cuda::CUresult (*function)(Parameters...),
                                                              std::type_identity_t<Parameters>... arguments) {
  const cuda::CUresult result = submit(where, function, arguments...);
  if (result != cuda::CUDA_ERROR_OUT_OF_MEMORY) [[likely]]
    return result;
  return submit_again_with_room(where, function, arguments...);
}

template <class... Parameters>
inline cuda::CUresult submit(const WhereSeveral& where, cuda::CUresult (*function)(Parameters...),
                             std::type_identity_t<Parameters>... arguments) {
  if (function == nullptr) [[unlikely]]
    return kNoSuchEntry;
  const base::NoCancellation whole_call;
  if (!are_within(arguments...)) return cuda::CUDA_ERROR_INVALID_VALUE;
  const gate::LookingUp looking_up(gate::this_thread());
  SeveralPassages passages(tenant());
  passages.add_stream(where.stream);
  for (const cuda::CUcontext context : where.contexts) passages.add_context(context);
  if (!passages.enter()) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  return function(arguments...);
}

// The program has waited for its GPU. Idleness is seen here: if another seat waits for the GPU, the drainer looks at
// once.
void synchronised();

template <class... Parameters>
inline cuda::CUresult synchronise(cuda::CUresult (*function)(Parameters...),
                                  std::type_identity_t<Parameters>... arguments) {
  if (function == nullptr) [[unlikely]]
    return kNoSuchEntry;
  const base::NoCancellation whole_call;
  const cuda::CUresult result = function(arguments...);
  if (tenant_if_any() != nullptr) synchronised();
  return result;
}

}  // namespace gpumux::shim
