// SPDX-License-Identifier: Apache-2.0
// Copies reach the memory of every GPU of the process by its address, without peer access (unified addressing). So a
// call that names memory of another seat than its own makes the two seats belong together, as peer access does: they
// are complete or not together, and hold their leases together. That lasts, for the call may be recorded in a graph.
//
// A process with one GPU pays two loads for this.
#pragma once

#include <cstddef>
#include <optional>
#include <type_traits>

#include "cuda/abi.h"
#include "shim/tenant/tenant.h"

namespace gpumux::shim {

// Which seat a call is for is asked only if it names memory of ours. `Seat`: a function that returns the seat's slot.
template <class Seat>
class Reach {
 public:
  explicit Reach(Seat seat) : tenant_(tenant_if_any()), seat_(seat) {
    if (tenant_ != nullptr && tenant_->seats().count() < 2) tenant_ = nullptr;
  }

  template <class Other>
  void names(const Other&) {}
  void names(cuda::CUdeviceptr address) { reach(address); }
  void names(const cuda::CUDA_MEMCPY2D* copy) { names_both_ends(copy); }
  void names(const cuda::CUDA_MEMCPY3D* copy) { names_both_ends(copy); }
  void names(cuda::CUgraphNodeParams* node) {
    if (tenant_ == nullptr || node == nullptr) return;
    if (node->type == cuda::CU_GRAPH_NODE_TYPE_MEMCPY) names_both_ends(&node->memcpy.copyParams);
  }

  template <class... Arguments>
  void names_all(const Arguments&... arguments) {
    (names(arguments), ...);
  }
  // cuMemcpyBatchAsync
  template <class... Others>
  void names_all(cuda::CUdeviceptr* destinations, cuda::CUdeviceptr* sources, std::size_t* sizes, std::size_t count,
                 const Others&...) {
    if (tenant_ == nullptr || destinations == nullptr || sources == nullptr || sizes == nullptr) return;
    for (std::size_t i = 0; i < count; ++i) {
      reach(destinations[i]);
      reach(sources[i]);
    }
  }
  // cuMemcpy3DBatchAsync
  template <class... Others>
  void names_all(std::size_t count, cuda::CUDA_MEMCPY3D_BATCH_OP* copies, const Others&...) {
    if (tenant_ == nullptr || copies == nullptr) return;
    for (std::size_t i = 0; i < count; ++i) {
      for (const cuda::CUmemcpy3DOperand* end : {&copies[i].src, &copies[i].dst}) {
        if (end->type == cuda::CU_MEMCPY_OPERAND_TYPE_POINTER) reach(end->op.ptr.ptr);
      }
    }
  }

 private:
  template <class Copy>
  void names_both_ends(const Copy* copy) {
    if (tenant_ == nullptr || copy == nullptr) return;
    if (copy->srcMemoryType == cuda::CU_MEMORYTYPE_DEVICE || copy->srcMemoryType == cuda::CU_MEMORYTYPE_UNIFIED)
      reach(copy->srcDevice);
    if (copy->dstMemoryType == cuda::CU_MEMORYTYPE_DEVICE || copy->dstMemoryType == cuda::CU_MEMORYTYPE_UNIFIED)
      reach(copy->dstDevice);
  }
  void reach(cuda::CUdeviceptr address) {
    if (tenant_ == nullptr || address == 0) return;
    const DeviceMemory* const its =
        tenant_->memories().first([address](DeviceMemory& memory) { return memory.pager.find(address).has_value(); });
    if (its == nullptr) return;
    if (const std::optional<std::uint32_t> own = seat_(*tenant_)) tenant_->belong_together(*own, its->slot);
  }

  Tenant* tenant_;  // null: there are no two seats
  const Seat seat_;
};

// Whether parameters of these types name addresses.
template <class... Parameters>
inline constexpr bool kNamesAddresses = ((std::is_same_v<Parameters, cuda::CUdeviceptr> ||
                                          std::is_same_v<Parameters, cuda::CUdeviceptr*> ||
                                          std::is_same_v<Parameters, const cuda::CUDA_MEMCPY2D*> ||
                                          std::is_same_v<Parameters, const cuda::CUDA_MEMCPY3D*> ||
                                          std::is_same_v<Parameters, cuda::CUgraphNodeParams*> ||
                                          std::is_same_v<Parameters, cuda::CUDA_MEMCPY3D_BATCH_OP*>) ||
                                         ...);

}  // namespace gpumux::shim
