// SPDX-License-Identifier: Apache-2.0
// Contexts. Creating one opens the seat of its GPU, so that the daemon knows a tenant before its first work. Destroying
// one forgets its streams, and counts as work on the GPU until it is over.
#include <array>
#include <atomic>

#include "cuda/current_context.h"
#include "shim/hooks/hooks.gen.h"
#include "shim/hooks/submit.h"

namespace gpumux::shim::hooks {
namespace {

// After a successful creation: the device is known, the context may not be current. All that make or hand out a context
// come here, so a tenant knows whether there has been more than one.
CUresult created(CUresult result, CUdevice device, const CUcontext* context) {
  if (result == CUDA_SUCCESS && context != nullptr) {
    if (Tenant* const mine = tenant()) {
      mine->note_context(*context);
      if (const auto slot = mine->seat_of_device(device)) mine->memories().of(*slot);
    }
  }
  return result;
}

// Contexts are the largest thing that the driver takes memory for by itself.
template <class Call>
CUresult create(CUdevice device, Call call) {
  const CUresult result = call();
  return result == CUDA_ERROR_OUT_OF_MEMORY ? again_with_room(device, call) : result;
}
template <class... Parameters>
CUresult create(CUdevice device, CUcontext* context, CUresult (*function)(Parameters...),
                std::type_identity_t<Parameters>... arguments) {
  return created(create(device, [=] { return function(arguments...); }), device, context);
}

// How often the program has retained a device's primary context, and not released it.
constexpr int kMostDevices = 256;
std::array<std::atomic<int>, kMostDevices> g_retained{};
void count_retained(CUdevice device, int more) {
  if (device >= 0 && device < kMostDevices) g_retained[static_cast<std::size_t>(device)] += more;
}
bool is_last_release(CUdevice device) {
  return device < 0 || device >= kMostDevices || g_retained[static_cast<std::size_t>(device)] <= 1;
}

// Runs a destruction; `gone` decides after it which context, if any, has died by it. `certain`: the context that is
// sure to die by it; null: that is known only afterwards. `may_die` false: most likely none dies.
template <class Destroy, class Gone>
CUresult tear_down(CUdevice device, CUcontext certain, bool may_die, Destroy destroy, Gone gone) {
  Tenant* const mine = tenant_if_any();
  const auto slot = mine != nullptr ? mine->seat_of_device(device) : std::nullopt;
  if (!slot) return destroy();
  gate::StreamSet& streams = mine->seats().streams(*slot);
  gate::InFlight& in_flight = mine->seats().in_flight(*slot);
  Memories& memories = mine->memories();
  DeviceMemory& memory = memories.of(*slot);
  if (may_die) mine->hold_off_freezing(*slot);
  // No job runs until `resume`. The context's memory goes while it can still be spoken to, and its work is over.
  memories.pause(*slot);
  if (certain != nullptr && (memory.has_anything() || memories.has_pools())) {
    memories.wait_for_work(memory, certain);
    memories.context_gone_from_pools(certain);
    memory.pager.context_going(certain);
  }
  streams.begin_teardown();
  if (certain != nullptr) in_flight.forget_context(certain, gate::InFlight::Context::kGoing);
  const CUresult result = destroy();
  const CUcontext dead = gone(result);
  if (dead != nullptr) {
    memories.context_gone_from_outside(dead);
    mine->captures().context_gone(dead);
  }
  if (dead != nullptr && certain == nullptr) {
    memories.context_gone_from_pools(dead);
    memory.pager.context_going(dead);
  }
  streams.end_teardown(dead);
  if (dead != nullptr) in_flight.forget_context(dead, gate::InFlight::Context::kGone);
  gate::forget_memos();
  memories.resume(*slot);
  if (may_die) mine->let_freeze(*slot);
  mine->drainer().wake();
  return result;
}

// The device of a context; -1: it is no context, or none any more.
CUdevice device_of(CUcontext context) {
  CUdevice device = -1;
  const CurrentContext current(driver(), context);
  return current.result() == CUDA_SUCCESS && driver().cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : -1;
}

// Null: the device has none at present.
CUcontext primary_context(CUdevice device) {
  CUcontext context = nullptr;
  unsigned int flags = 0;
  int active = 0;
  // Which context it is can be asked only by retaining it.
  if (driver().cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active != 0 &&
      driver().cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS) {
    const auto release = driver().cuDevicePrimaryCtxRelease_v2 != nullptr ? driver().cuDevicePrimaryCtxRelease_v2
                                                                          : driver().cuDevicePrimaryCtxRelease;
    release(device);
  }
  return context;
}

// Destroys a context: a plain one, or the plain one of a green one. Null: not known.
template <class Destroy>
CUresult destroy_context(CUcontext context, Destroy destroy) {
  const CUdevice device = device_of(context);
  // The driver refuses to destroy a primary context so.
  if (tenant_if_any() == nullptr || device < 0 || primary_context(device) == context) return destroy();
  return tear_down(device, context, true, destroy,
                   [&](CUresult result) { return result == CUDA_SUCCESS ? context : nullptr; });
}

// The last release of a primary context destroys it; a reset always does.
enum class Leave { kRelease, kReset };
CUresult leave_primary(CUdevice device, Leave how, CUresult (*leave)(CUdevice)) {
  // Asked now: once it is gone, no call tells which it was.
  const CUcontext context = tenant_if_any() != nullptr ? primary_context(device) : nullptr;
  const bool may_die = how == Leave::kReset || is_last_release(device);
  return tear_down(
      device, how == Leave::kReset ? context : nullptr, may_die, [&] { return leave(device); },
      [&](CUresult result) -> CUcontext {
        if (how == Leave::kRelease && result == CUDA_SUCCESS) count_retained(device, -1);
        unsigned int flags = 0;
        int active = 0;
        const bool known = driver().cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS;
        return known && active == 0 ? context : nullptr;
      });
}

}  // namespace

CUresult cuInit(unsigned int flags) {
  // Many programs initialise CUDA only to look, and some fork afterwards: without MPS the call is passed on.
  settle_mps();
  return driver().cuInit(flags);
}

CUresult cuCtxCreate(CUcontext* context, unsigned int flags, CUdevice device) {
  return create(device, context, driver().cuCtxCreate, context, flags, device);
}
CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
  return create(device, context, driver().cuCtxCreate_v2, context, flags, device);
}
CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* params_array, int param_count, unsigned int flags,
                        CUdevice device) {
  return create(device, context, driver().cuCtxCreate_v3, context, params_array, param_count, flags, device);
}
CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* ctx_create_params, unsigned int flags, CUdevice device) {
  return create(device, context, driver().cuCtxCreate_v4, context, ctx_create_params, flags, device);
}
CUresult cuGLCtxCreate(CUcontext* context, unsigned int flags, CUdevice device) {
  return create(device, context, driver().cuGLCtxCreate, context, flags, device);
}
CUresult cuGLCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
  return create(device, context, driver().cuGLCtxCreate_v2, context, flags, device);
}
CUresult cuVDPAUCtxCreate(CUcontext* context, unsigned int flags, CUdevice device, VdpDevice vdp_device,
                          VdpGetProcAddress* vdp_get_proc_address) {
  return create(device, context, driver().cuVDPAUCtxCreate, context, flags, device, vdp_device, vdp_get_proc_address);
}
CUresult cuVDPAUCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device, VdpDevice vdp_device,
                             VdpGetProcAddress* vdp_get_proc_address) {
  return create(device, context, driver().cuVDPAUCtxCreate_v2, context, flags, device, vdp_device,
                vdp_get_proc_address);
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  const CUresult result = create(device, context, driver().cuDevicePrimaryCtxRetain, context, device);
  if (result == CUDA_SUCCESS) count_retained(device, 1);
  return result;
}
CUresult cuGreenCtxCreate(CUgreenCtx* context, CUdevResourceDesc descriptor, CUdevice device, unsigned int flags) {
  const CUresult result = create(device, [=] { return driver().cuGreenCtxCreate(context, descriptor, device, flags); });
  CUcontext plain = nullptr;
  if (result == CUDA_SUCCESS && driver().cuCtxFromGreenCtx != nullptr) driver().cuCtxFromGreenCtx(&plain, *context);
  return created(result, device, &plain);
}

CUresult cuCtxDestroy(CUcontext context) {
  return destroy_context(context, [&] { return driver().cuCtxDestroy(context); });
}
CUresult cuCtxDestroy_v2(CUcontext context) {
  return destroy_context(context, [&] { return driver().cuCtxDestroy_v2(context); });
}
CUresult cuCtxDetach(CUcontext context) {
  // A context that was attached more often than detached (cuCtxAttach) lives on.
  return tear_down(
      tenant_if_any() != nullptr ? device_of(context) : -1, nullptr, true,
      [&] { return driver().cuCtxDetach(context); },
      [&](CUresult result) { return result == CUDA_SUCCESS && device_of(context) < 0 ? context : nullptr; });
}

CUresult cuGreenCtxDestroy(CUgreenCtx context) {
  CUcontext plain = nullptr;
  if (driver().cuCtxFromGreenCtx == nullptr || driver().cuCtxFromGreenCtx(&plain, context) != CUDA_SUCCESS)
    plain = nullptr;
  return destroy_context(plain, [&] { return driver().cuGreenCtxDestroy(context); });
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return leave_primary(device, Leave::kRelease, driver().cuDevicePrimaryCtxRelease);
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return leave_primary(device, Leave::kRelease, driver().cuDevicePrimaryCtxRelease_v2);
}
CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  return leave_primary(device, Leave::kReset, driver().cuDevicePrimaryCtxReset);
}
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return leave_primary(device, Leave::kReset, driver().cuDevicePrimaryCtxReset_v2);
}

}  // namespace gpumux::shim::hooks
