// SPDX-License-Identifier: Apache-2.0
// Goal: our declarations of the driver's and NVML's ABI are the vendor's. Method: compile both and compare; that it
// compiles is the test.
//
// Built only where a cuda.h of the table's CUDA version is found. With __CUDA_API_VERSION_INTERNAL that header declares
// every exported symbol under its own name, old versions included. The generated part undoes the names that the header
// still redefines by macros. The graphics functions are left out: their headers need those of OpenGL, EGL and VDPAU.
#include <gtest/gtest.h>

#include <type_traits>

#include "cuda/driver.gen.h"
#include "cuda/nvml.h"

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaProfiler.h>
#if __has_include(<nvml.h>)
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#define GPUMUX_HAVE_NVML
#endif

namespace {

namespace ours = gpumux::cuda;

template <class T>
concept Complete = requires {
  sizeof(T);
};

template <class T>
concept Number = std::is_integral_v<T> || std::is_enum_v<T>;

template <class T>
concept Aggregate = std::is_class_v<T> || std::is_union_v<T>;

// Whether two parameter types are passed alike and, for pointers, point at things that are laid out alike as far as
// both are known.
template <class Ours, class Theirs>
constexpr bool alike() {
  if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using OurTarget = std::remove_pointer_t<Ours>;
    using TheirTarget = std::remove_pointer_t<Theirs>;
    if constexpr (std::is_function_v<OurTarget> || std::is_function_v<TheirTarget>) {
      return std::is_function_v<OurTarget> && std::is_function_v<TheirTarget>;
    } else if constexpr (std::is_const_v<OurTarget> != std::is_const_v<TheirTarget>) {
      return false;
    } else {
      return alike<std::remove_cv_t<OurTarget>, std::remove_cv_t<TheirTarget>>();
    }
  } else if constexpr (std::is_void_v<Ours> || std::is_void_v<Theirs>) {
    return std::is_void_v<Ours> && std::is_void_v<Theirs>;
  } else if constexpr (Number<Ours> && Number<Theirs>) {
    return sizeof(Ours) == sizeof(Theirs) && std::is_enum_v<Ours> == std::is_enum_v<Theirs>;
  } else if constexpr (std::is_floating_point_v<Ours> && std::is_floating_point_v<Theirs>) {
    return sizeof(Ours) == sizeof(Theirs);
  } else if constexpr (Aggregate<Ours> && Aggregate<Theirs>) {
    if constexpr (Complete<Ours> && Complete<Theirs>) {
      return sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs);
    } else {
      return true;
    }
  } else {
    return false;
  }
}

template <class Ours, class Theirs>
struct SamePrototype : std::false_type {};

template <class OurResult, class... Ours, class TheirResult, class... Theirs>
requires(sizeof...(Ours) == sizeof...(Theirs)) struct SamePrototype<OurResult (*)(Ours...), TheirResult (*)(Theirs...)>
    : std::bool_constant<alike<OurResult, TheirResult>() && (alike<Ours, Theirs>() && ...)> {
};

#define GPUMUX_SAME_PROTOTYPE(name) \
  static_assert(SamePrototype<decltype(ours::Driver::name), decltype(&::name)>::value, #name)
#define GPUMUX_SAME_SIZE(name) \
  static_assert(sizeof(ours::name) == sizeof(::name) && alignof(ours::name) == alignof(::name), #name)
#define GPUMUX_SAME_VALUE(name) static_assert(static_cast<unsigned>(ours::name) == static_cast<unsigned>(::name), #name)
#define GPUMUX_SAME_MEMBER(type, member)                                    \
  static_assert(offsetof(ours::type, member) == offsetof(::type, member) && \
                    sizeof(ours::type::member) == sizeof(::type::member),   \
                #type "::" #member)

#include "cuda/abi_check.gen.inc"

// Checks that a type of ours is laid out as a nested one of theirs that has no name of its own to ask for.
#define GPUMUX_SAME_NESTED(our_type, their_type, member)                                \
  static_assert(sizeof(ours::our_type) == sizeof(their_type) &&                         \
                    offsetof(ours::our_type, member) == offsetof(their_type, member) && \
                    sizeof(ours::our_type::member) == sizeof(their_type::member),       \
                #our_type "::" #member)

using TheirAllocationFlags = decltype(::CUmemAllocationProp::allocFlags);
GPUMUX_SAME_NESTED(CUmemAllocationFlags, TheirAllocationFlags, compressionType);
GPUMUX_SAME_NESTED(CUmemAllocationFlags, TheirAllocationFlags, gpuDirectRDMACapable);
GPUMUX_SAME_NESTED(CUmemAllocationFlags, TheirAllocationFlags, usage);

using TheirPointerOperand = decltype(decltype(::CUmemcpy3DOperand::op)::ptr);
GPUMUX_SAME_NESTED(CUmemcpy3DPointer, TheirPointerOperand, ptr);
GPUMUX_SAME_NESTED(CUmemcpy3DPointer, TheirPointerOperand, rowLength);
GPUMUX_SAME_NESTED(CUmemcpy3DPointer, TheirPointerOperand, layerHeight);
GPUMUX_SAME_NESTED(CUmemcpy3DPointer, TheirPointerOperand, locHint);
using TheirArrayOperand = decltype(decltype(::CUmemcpy3DOperand::op)::array);
GPUMUX_SAME_NESTED(CUmemcpy3DArray, TheirArrayOperand, array);
GPUMUX_SAME_NESTED(CUmemcpy3DArray, TheirArrayOperand, offset);

using TheirWaitValue = decltype(::CUstreamBatchMemOpParams::waitValue);
using TheirWriteValue = decltype(::CUstreamBatchMemOpParams::writeValue);
#define GPUMUX_SAME_VALUE_PARAMS(member)                                \
  GPUMUX_SAME_NESTED(CUstreamMemOpValueParams, TheirWaitValue, member); \
  GPUMUX_SAME_NESTED(CUstreamMemOpValueParams, TheirWriteValue, member)
GPUMUX_SAME_VALUE_PARAMS(operation);
GPUMUX_SAME_VALUE_PARAMS(address);
GPUMUX_SAME_VALUE_PARAMS(value);
GPUMUX_SAME_VALUE_PARAMS(value64);
GPUMUX_SAME_VALUE_PARAMS(flags);
GPUMUX_SAME_VALUE_PARAMS(alias);
using TheirFlush = decltype(::CUstreamBatchMemOpParams::flushRemoteWrites);
GPUMUX_SAME_NESTED(CUstreamMemOpFlagParams, TheirFlush, operation);
GPUMUX_SAME_NESTED(CUstreamMemOpFlagParams, TheirFlush, flags);

using TheirDimensions = decltype(::CUlaunchAttributeValue::clusterDim);
GPUMUX_SAME_NESTED(CUlaunchDimensions, TheirDimensions, z);
using TheirProgrammaticEvent = decltype(::CUlaunchAttributeValue::programmaticEvent);
GPUMUX_SAME_NESTED(CUlaunchProgrammaticEvent, TheirProgrammaticEvent, event);
GPUMUX_SAME_NESTED(CUlaunchProgrammaticEvent, TheirProgrammaticEvent, flags);
GPUMUX_SAME_NESTED(CUlaunchProgrammaticEvent, TheirProgrammaticEvent, triggerAtBlockStart);
using TheirCompletionEvent = decltype(::CUlaunchAttributeValue::launchCompletionEvent);
GPUMUX_SAME_NESTED(CUlaunchCompletionEvent, TheirCompletionEvent, event);
GPUMUX_SAME_NESTED(CUlaunchCompletionEvent, TheirCompletionEvent, flags);

static_assert(ours::kMemHostAllocPortable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(ours::kMemHostAllocDeviceMap == CU_MEMHOSTALLOC_DEVICEMAP);
static_assert(ours::kMemHostAllocWriteCombined == CU_MEMHOSTALLOC_WRITECOMBINED);
static_assert(ours::kMemHostRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(ours::kLaunchParamEnd == CU_LAUNCH_PARAM_END_AS_INT);
static_assert(ours::kLaunchParamBufferPointer == CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT);
static_assert(ours::kLaunchParamBufferSize == CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT);
static_assert(ours::kArraySparse == CUDA_ARRAY3D_SPARSE);
static_assert(ours::kArrayDeferredMapping == CUDA_ARRAY3D_DEFERRED_MAPPING);
static_assert(ours::kDeviceCpu == CU_DEVICE_CPU);
static_assert(ours::kDeviceInvalid == CU_DEVICE_INVALID);
static_assert(ours::kIpcHandleBytes == CU_IPC_HANDLE_SIZE);

#ifdef GPUMUX_HAVE_NVML
#define GPUMUX_SAME_NVML(result, name, parameters) \
  static_assert(SamePrototype<decltype(ours::Nvml::name), decltype(&::name)>::value, #name);
GPUMUX_NVML_FUNCTIONS(GPUMUX_SAME_NVML)

GPUMUX_SAME_VALUE(NVML_ERROR_UNINITIALIZED);
GPUMUX_SAME_VALUE(NVML_ERROR_INSUFFICIENT_SIZE);
GPUMUX_SAME_VALUE(NVML_ERROR_DRIVER_NOT_LOADED);
GPUMUX_SAME_VALUE(NVML_ERROR_LIB_RM_VERSION_MISMATCH);
GPUMUX_SAME_VALUE(NVML_ERROR_NO_DATA);
GPUMUX_SAME_VALUE(NVML_ERROR_INSUFFICIENT_RESOURCES);
GPUMUX_SAME_VALUE(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
GPUMUX_SAME_VALUE(NVML_ERROR_DEPRECATED);
GPUMUX_SAME_VALUE(NVML_ERROR_INVALID_STATE);
GPUMUX_SAME_VALUE(NVML_ERROR_UNKNOWN);
GPUMUX_SAME_VALUE(NVML_COMPUTEMODE_PROHIBITED);
GPUMUX_SAME_VALUE(NVML_COMPUTEMODE_EXCLUSIVE_PROCESS);
GPUMUX_SAME_MEMBER(nvmlPciInfo_t, busIdLegacy);
GPUMUX_SAME_MEMBER(nvmlPciInfo_t, domain);
GPUMUX_SAME_MEMBER(nvmlPciInfo_t, bus);
GPUMUX_SAME_MEMBER(nvmlPciInfo_t, device);
GPUMUX_SAME_MEMBER(nvmlPciInfo_t, busId);
GPUMUX_SAME_MEMBER(nvmlMemory_t, free);
GPUMUX_SAME_MEMBER(nvmlMemory_v2_t, reserved);
GPUMUX_SAME_MEMBER(nvmlMemory_v2_t, used);
GPUMUX_SAME_MEMBER(nvmlProcessInfo_t, usedGpuMemory);
GPUMUX_SAME_MEMBER(nvmlProcessInfo_t, computeInstanceId);
GPUMUX_SAME_MEMBER(nvmlUtilization_t, memory);
GPUMUX_SAME_MEMBER(nvmlEventData_t, eventData);
GPUMUX_SAME_MEMBER(nvmlFieldValue_t, nvmlReturn);
GPUMUX_SAME_MEMBER(nvmlFieldValue_t, value);
static_assert(ours::kNvmlMemoryVersion2 == nvmlMemory_v2);
static_assert(ours::kNvmlUuidBytes == NVML_DEVICE_UUID_V2_BUFFER_SIZE);
static_assert(ours::kNvmlNameBytes == NVML_DEVICE_NAME_V2_BUFFER_SIZE);
static_assert(ours::kNvmlDriverVersionBytes == NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE);
static_assert(ours::kNvmlVersionBytes == NVML_SYSTEM_NVML_VERSION_BUFFER_SIZE);
#endif

// The one thing that a compiler cannot compare: constants that are pointers.
TEST(Abi, SpecialStreamsAreTheVendors) {
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(ours::legacy_stream()),
            reinterpret_cast<std::uintptr_t>(CU_STREAM_LEGACY));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(ours::per_thread_stream()),
            reinterpret_cast<std::uintptr_t>(CU_STREAM_PER_THREAD));
}

// The comparison itself can fail.
static_assert(!SamePrototype<int (*)(int), int (*)(int, int)>::value);
static_assert(!SamePrototype<int (*)(unsigned), int (*)(unsigned long)>::value);
static_assert(!SamePrototype<int (*)(unsigned*), int (*)(unsigned long*)>::value);
static_assert(!SamePrototype<int (*)(int), int (*)(float)>::value);
static_assert(!SamePrototype<int (*)(int*), int (*)(const int*)>::value);
static_assert(!SamePrototype<int (*)(ours::CUuuid), int (*)(::CUipcMemHandle)>::value);

}  // namespace
