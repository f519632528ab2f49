// SPDX-License-Identifier: Apache-2.0
// The driver's ABI as gpumux and its simulated driver need it: the types of every exported entry point's parameters.
//
// Why our own declarations: the build must not need the vendor's headers. They are not free software, and they redefine
// function names by macros (asking for cuMemAlloc declares cuMemAlloc_v2). Here a name always means exactly that
// exported symbol.
//
// Facts of the ABI are names, sizes, offsets and values. They are written down here for 64-bit Linux; abi_test compares
// them with a real cuda.h where there is one. A structure into which our code does not look stays incomplete: a pointer
// to it has the same ABI. Of several versions of a structure, the plain name is the newest one that prototypes of CUDA
// 13.0 use, and older ones end in _v1.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/abi_enums.h"

namespace gpumux::cuda {

// Handles and numbers

using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUdeviceptr_v1 = unsigned int;  // entry points of CUDA 2.x, which still are exported
using CUtexObject = unsigned long long;
using CUsurfObject = unsigned long long;
using CUmemGenericAllocationHandle = unsigned long long;
using CUgraphConditionalHandle = std::uint64_t;
using CUlogIterator = unsigned int;

using CUarray = struct CUarray_st*;
using CUasyncCallbackHandle = struct CUasyncCallbackEntry_st*;
using CUcontext = struct CUctx_st*;
using CUdevResourceDesc = struct CUdevResourceDesc_st*;
using CUeglStreamConnection = struct CUeglStreamConnection_st*;
using CUevent = struct CUevent_st*;
using CUexternalMemory = struct CUextMemory_st*;
using CUexternalSemaphore = struct CUextSemaphore_st*;
using CUfunction = struct CUfunc_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphDeviceNode = struct CUgraphDeviceUpdatableNode_st*;
using CUgraphExec = struct CUgraphExec_st*;
using CUgraphNode = struct CUgraphNode_st*;
using CUgraphicsResource = struct CUgraphicsResource_st*;
using CUgreenCtx = struct CUgreenCtx_st*;
using CUkernel = struct CUkern_st*;
using CUlibrary = struct CUlib_st*;
using CUlinkState = struct CUlinkState_st*;
using CUlogsCallbackHandle = struct CUlogsCallbackEntry_st*;
using CUmemoryPool = struct CUmemPoolHandle_st*;
using CUmipmappedArray = struct CUmipmappedArray_st*;
using CUmodule = struct CUmod_st*;
using CUstream = struct CUstream_st*;
using CUsurfref = struct CUsurfref_st*;
using CUtexref = struct CUtexref_st*;
using CUuserObject = struct CUuserObject_st*;

// Types of the graphics interfaces, whose headers our code does not need.
using EGLImageKHR = void*;
using EGLStreamKHR = void*;
using EGLint = std::int32_t;
using GLenum = unsigned int;
using GLuint = unsigned int;
using VdpDevice = std::uint32_t;
using VdpOutputSurface = std::uint32_t;
using VdpVideoSurface = std::uint32_t;
using VdpGetProcAddress = int(VdpDevice device, std::uint32_t function_id, void** function_pointer);

// Structures into which our code does not look.
struct CUDA_ARRAY_MEMORY_REQUIREMENTS;
struct CUDA_ARRAY_SPARSE_PROPERTIES;
struct CUDA_EXTERNAL_MEMORY_BUFFER_DESC;
struct CUDA_EXTERNAL_MEMORY_HANDLE_DESC;
struct CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC;
struct CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC;
struct CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS;
struct CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS;
struct CUDA_EXT_SEM_SIGNAL_NODE_PARAMS;
struct CUDA_EXT_SEM_WAIT_NODE_PARAMS;
struct CUDA_RESOURCE_DESC;
struct CUDA_RESOURCE_VIEW_DESC;
struct CUDA_TEXTURE_DESC;
struct CUarrayMapInfo;
struct CUasyncNotificationInfo;
struct CUcheckpointCheckpointArgs;
struct CUcheckpointLockArgs;
struct CUcheckpointRestoreArgs;
struct CUcheckpointUnlockArgs;
struct CUctxCreateParams;
struct CUdevResource;
struct CUtensorMap;

// Enumerations that only pass through.
enum CUGLDeviceList : unsigned int {};
enum CUaddress_mode : unsigned int {};
enum CUatomicOperation : unsigned int {};
enum CUcoredumpSettings : unsigned int {};
enum CUdevResourceType : unsigned int {};
enum CUexecAffinityType : unsigned int {};
enum CUfilter_mode : unsigned int {};
enum CUflushGPUDirectRDMAWritesScope : unsigned int {};
enum CUflushGPUDirectRDMAWritesTarget : unsigned int {};
enum CUjitInputType : unsigned int {};
enum CUjit_option : unsigned int {};
enum CUlaunchAttributeID : unsigned int {};
enum CUlibraryOption : unsigned int {};
enum CUlogLevel : unsigned int {};
enum CUmemcpySrcAccessOrder : unsigned int {};
enum CUmulticastGranularity_flags : unsigned int {};
enum CUoutput_mode : unsigned int {};
enum CUprocessState : unsigned int {};
enum CUtensorMapDataType : unsigned int {};
enum CUtensorMapFloatOOBfill : unsigned int {};
enum CUtensorMapIm2ColWideMode : unsigned int {};
enum CUtensorMapInterleave : unsigned int {};
enum CUtensorMapL2promotion : unsigned int {};
enum CUtensorMapSwizzle : unsigned int {};

using CUkernelNodeAttrID = CUlaunchAttributeID;
using CUstreamAttrID = CUlaunchAttributeID;

// Functions that a program hands to the driver.
using CUasyncCallback = void (*)(CUasyncNotificationInfo* info, void* user_data, CUasyncCallbackHandle callback);
using CUhostFn = void (*)(void* user_data);
using CUlogsCallback = void (*)(void* data, CUlogLevel level, char* message, std::size_t length);
using CUoccupancyB2DSize = std::size_t (*)(int block_size);
using CUstreamCallback = void (*)(CUstream stream, CUresult status, void* user_data);

// The two streams that have no object of their own. A null stream means the first, or in the *_ptds and *_ptsz entry
// points the second.
// NOLINTBEGIN(performance-no-int-to-ptr): the ABI makes them numbers in a handle's place.
inline CUstream legacy_stream() { return reinterpret_cast<CUstream>(std::uintptr_t{1}); }
inline CUstream per_thread_stream() { return reinterpret_cast<CUstream>(std::uintptr_t{2}); }
// NOLINTEND(performance-no-int-to-ptr)

// Flags of cuMemHostAlloc and cuMemHostRegister.
inline constexpr unsigned int kMemHostAllocPortable = 1;
inline constexpr unsigned int kMemHostAllocDeviceMap = 2;
inline constexpr unsigned int kMemHostAllocWriteCombined = 4;
inline constexpr unsigned int kMemHostRegisterPortable = 1;

// The `extra` list of a launch is pairs of one of these and a value, ended by kLaunchParamEnd; each is a number in a
// void*.
inline constexpr std::uintptr_t kLaunchParamEnd = 0;
inline constexpr std::uintptr_t kLaunchParamBufferPointer = 1;
inline constexpr std::uintptr_t kLaunchParamBufferSize = 2;

inline constexpr unsigned int kArraySparse = 0x40;
inline constexpr unsigned int kArrayDeferredMapping = 0x80;

inline constexpr CUdevice kDeviceCpu = -1;
inline constexpr CUdevice kDeviceInvalid = -2;
inline constexpr std::size_t kIpcHandleBytes = 64;

// Devices

struct CUuuid {
  char bytes[16];
};

struct CUdevprop {
  int maxThreadsPerBlock;
  int maxThreadsDim[3];
  int maxGridSize[3];
  int sharedMemPerBlock;
  int totalConstantMemory;
  int SIMDWidth;
  int memPitch;
  int regsPerBlock;
  int clockRate;
  int textureAlign;
};

struct CUexecAffinityParam {
  CUexecAffinityType type;
  unsigned int param;  // the number of SMs, for the only type there is
};

// Memory: location, virtual memory, pools, sharing

struct CUmemLocation {
  CUmemLocationType type;
  int id;
};

struct CUmemAllocationFlags {
  unsigned char compressionType;
  unsigned char gpuDirectRDMACapable;
  unsigned short usage;
  unsigned char reserved[4];
};

struct CUmemAllocationProp {
  CUmemAllocationType type;
  CUmemAllocationHandleType requestedHandleTypes;
  CUmemLocation location;
  void* win32HandleMetaData;
  CUmemAllocationFlags allocFlags;
};

struct CUmemAccessDesc {
  CUmemLocation location;
  CUmemAccess_flags flags;
};

struct CUmemPoolProps {
  CUmemAllocationType allocType;
  CUmemAllocationHandleType handleTypes;
  CUmemLocation location;
  void* win32SecurityAttributes;
  std::size_t maxSize;
  unsigned short usage;
  unsigned char reserved[54];
};

struct CUmemPoolPtrExportData {
  unsigned char reserved[64];
};

struct CUmulticastObjectProp {
  unsigned int numDevices;
  std::size_t size;
  unsigned long long handleTypes;
  unsigned long long flags;
};

struct CUipcEventHandle {
  char reserved[kIpcHandleBytes];
};

struct CUipcMemHandle {
  char reserved[kIpcHandleBytes];
};

struct CUmemFabricHandle {
  unsigned char data[kIpcHandleBytes];
};

// Arrays

struct CUDA_ARRAY_DESCRIPTOR {
  std::size_t Width;
  std::size_t Height;
  CUarray_format Format;
  unsigned int NumChannels;
};

struct CUDA_ARRAY_DESCRIPTOR_v1 {
  unsigned int Width;
  unsigned int Height;
  CUarray_format Format;
  unsigned int NumChannels;
};

struct CUDA_ARRAY3D_DESCRIPTOR {
  std::size_t Width;
  std::size_t Height;
  std::size_t Depth;
  CUarray_format Format;
  unsigned int NumChannels;
  unsigned int Flags;
};

struct CUDA_ARRAY3D_DESCRIPTOR_v1 {
  unsigned int Width;
  unsigned int Height;
  unsigned int Depth;
  CUarray_format Format;
  unsigned int NumChannels;
  unsigned int Flags;
};

// Copies

struct CUDA_MEMCPY2D {
  std::size_t srcXInBytes;
  std::size_t srcY;
  CUmemorytype srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  CUarray srcArray;
  std::size_t srcPitch;
  std::size_t dstXInBytes;
  std::size_t dstY;
  CUmemorytype dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  CUarray dstArray;
  std::size_t dstPitch;
  std::size_t WidthInBytes;
  std::size_t Height;
};

struct CUDA_MEMCPY2D_v1 {
  unsigned int srcXInBytes;
  unsigned int srcY;
  CUmemorytype srcMemoryType;
  const void* srcHost;
  CUdeviceptr_v1 srcDevice;
  CUarray srcArray;
  unsigned int srcPitch;
  unsigned int dstXInBytes;
  unsigned int dstY;
  CUmemorytype dstMemoryType;
  void* dstHost;
  CUdeviceptr_v1 dstDevice;
  CUarray dstArray;
  unsigned int dstPitch;
  unsigned int WidthInBytes;
  unsigned int Height;
};

struct CUDA_MEMCPY3D {
  std::size_t srcXInBytes;
  std::size_t srcY;
  std::size_t srcZ;
  std::size_t srcLOD;
  CUmemorytype srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  CUarray srcArray;
  void* reserved0;
  std::size_t srcPitch;
  std::size_t srcHeight;
  std::size_t dstXInBytes;
  std::size_t dstY;
  std::size_t dstZ;
  std::size_t dstLOD;
  CUmemorytype dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  CUarray dstArray;
  void* reserved1;
  std::size_t dstPitch;
  std::size_t dstHeight;
  std::size_t WidthInBytes;
  std::size_t Height;
  std::size_t Depth;
};

struct CUDA_MEMCPY3D_v1 {
  unsigned int srcXInBytes;
  unsigned int srcY;
  unsigned int srcZ;
  unsigned int srcLOD;
  CUmemorytype srcMemoryType;
  const void* srcHost;
  CUdeviceptr_v1 srcDevice;
  CUarray srcArray;
  void* reserved0;
  unsigned int srcPitch;
  unsigned int srcHeight;
  unsigned int dstXInBytes;
  unsigned int dstY;
  unsigned int dstZ;
  unsigned int dstLOD;
  CUmemorytype dstMemoryType;
  void* dstHost;
  CUdeviceptr_v1 dstDevice;
  CUarray dstArray;
  void* reserved1;
  unsigned int dstPitch;
  unsigned int dstHeight;
  unsigned int WidthInBytes;
  unsigned int Height;
  unsigned int Depth;
};

// As CUDA_MEMCPY3D, with a context for each side.
struct CUDA_MEMCPY3D_PEER {
  std::size_t srcXInBytes;
  std::size_t srcY;
  std::size_t srcZ;
  std::size_t srcLOD;
  CUmemorytype srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  CUarray srcArray;
  CUcontext srcContext;
  std::size_t srcPitch;
  std::size_t srcHeight;
  std::size_t dstXInBytes;
  std::size_t dstY;
  std::size_t dstZ;
  std::size_t dstLOD;
  CUmemorytype dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  CUarray dstArray;
  CUcontext dstContext;
  std::size_t dstPitch;
  std::size_t dstHeight;
  std::size_t WidthInBytes;
  std::size_t Height;
  std::size_t Depth;
};

struct CUmemcpyAttributes {
  CUmemcpySrcAccessOrder srcAccessOrder;
  CUmemLocation srcLocHint;
  CUmemLocation dstLocHint;
  unsigned int flags;
};

struct CUoffset3D {
  std::size_t x;
  std::size_t y;
  std::size_t z;
};

struct CUextent3D {
  std::size_t width;
  std::size_t height;
  std::size_t depth;
};

struct CUmemcpy3DPointer {
  CUdeviceptr ptr;
  std::size_t rowLength;
  std::size_t layerHeight;
  CUmemLocation locHint;
};

struct CUmemcpy3DArray {
  CUarray array;
  CUoffset3D offset;
};

enum CUmemcpy3DOperandType : unsigned int {
  CU_MEMCPY_OPERAND_TYPE_POINTER = 1,
  CU_MEMCPY_OPERAND_TYPE_ARRAY = 2,
};

union CUmemcpy3DOperandPlace {
  CUmemcpy3DPointer ptr;
  CUmemcpy3DArray array;
};

struct CUmemcpy3DOperand {
  CUmemcpy3DOperandType type;
  CUmemcpy3DOperandPlace op;
};

struct CUDA_MEMCPY3D_BATCH_OP {
  CUmemcpy3DOperand src;
  CUmemcpy3DOperand dst;
  CUextent3D extent;
  CUmemcpySrcAccessOrder srcAccessOrder;
  unsigned int flags;
};

struct CUmemDecompressParams {
  std::size_t srcNumBytes;
  std::size_t dstNumBytes;
  std::uint32_t* dstActBytes;
  const void* src;
  void* dst;
  unsigned int algo;
  unsigned char padding[20];
};

// Stream memory operations

struct CUstreamMemOpValueParams {
  CUstreamBatchMemOpType operation;
  CUdeviceptr address;
  union {
    std::uint32_t value;
    std::uint64_t value64;
  };
  unsigned int flags;
  CUdeviceptr alias;
};

struct CUstreamMemOpFlagParams {
  CUstreamBatchMemOpType operation;
  unsigned int flags;
};

union CUstreamBatchMemOpParams {
  CUstreamBatchMemOpType operation;
  CUstreamMemOpValueParams waitValue;
  CUstreamMemOpValueParams writeValue;
  CUstreamMemOpFlagParams flushRemoteWrites;
  CUstreamMemOpFlagParams memoryBarrier;
  std::uint64_t pad[6];
};

// Launches

struct CUlaunchDimensions {
  unsigned int x;
  unsigned int y;
  unsigned int z;
};

struct CUlaunchProgrammaticEvent {
  CUevent event;
  int flags;
  int triggerAtBlockStart;
};

struct CUlaunchCompletionEvent {
  CUevent event;
  int flags;
};

// The value of a launch, kernel node or stream attribute; which member counts follows from the attribute's id.
union CUlaunchAttributeValue {
  char pad[64];
  int cooperative;
  CUlaunchDimensions clusterDim;
  int programmaticStreamSerializationAllowed;
  CUlaunchProgrammaticEvent programmaticEvent;
  CUlaunchCompletionEvent launchCompletionEvent;
  int priority;
  unsigned int sharedMemCarveout;
};
using CUkernelNodeAttrValue = CUlaunchAttributeValue;
using CUstreamAttrValue = CUlaunchAttributeValue;

struct CUlaunchAttribute {
  CUlaunchAttributeID id;
  char pad[4];
  CUlaunchAttributeValue value;
};

struct CUlaunchConfig {
  unsigned int gridDimX;
  unsigned int gridDimY;
  unsigned int gridDimZ;
  unsigned int blockDimX;
  unsigned int blockDimY;
  unsigned int blockDimZ;
  unsigned int sharedMemBytes;
  CUstream hStream;
  CUlaunchAttribute* attrs;
  unsigned int numAttrs;
};

struct CUDA_LAUNCH_PARAMS {
  CUfunction function;
  unsigned int gridDimX;
  unsigned int gridDimY;
  unsigned int gridDimZ;
  unsigned int blockDimX;
  unsigned int blockDimY;
  unsigned int blockDimZ;
  unsigned int sharedMemBytes;
  CUstream hStream;
  void** kernelParams;
};

// Graphs

struct CUDA_KERNEL_NODE_PARAMS_v1 {
  CUfunction func;
  unsigned int gridDimX;
  unsigned int gridDimY;
  unsigned int gridDimZ;
  unsigned int blockDimX;
  unsigned int blockDimY;
  unsigned int blockDimZ;
  unsigned int sharedMemBytes;
  void** kernelParams;
  void** extra;
};

struct CUDA_KERNEL_NODE_PARAMS {
  CUfunction func;
  unsigned int gridDimX;
  unsigned int gridDimY;
  unsigned int gridDimZ;
  unsigned int blockDimX;
  unsigned int blockDimY;
  unsigned int blockDimZ;
  unsigned int sharedMemBytes;
  void** kernelParams;
  void** extra;
  CUkernel kern;
  CUcontext ctx;
};

struct CUDA_MEMSET_NODE_PARAMS {
  CUdeviceptr dst;
  std::size_t pitch;
  unsigned int value;
  unsigned int elementSize;
  std::size_t width;
  std::size_t height;
};

struct CUDA_MEMSET_NODE_PARAMS_v2 {
  CUdeviceptr dst;
  std::size_t pitch;
  unsigned int value;
  unsigned int elementSize;
  std::size_t width;
  std::size_t height;
  CUcontext ctx;
};

struct CUDA_MEMCPY_NODE_PARAMS {
  int flags;
  int reserved;
  CUcontext copyCtx;
  CUDA_MEMCPY3D copyParams;
};

struct CUDA_HOST_NODE_PARAMS {
  CUhostFn fn;
  void* userData;
};

struct CUDA_BATCH_MEM_OP_NODE_PARAMS {
  CUcontext ctx;
  unsigned int count;
  CUstreamBatchMemOpParams* paramArray;
  unsigned int flags;
};

struct CUDA_MEM_ALLOC_NODE_PARAMS {
  CUmemPoolProps poolProps;
  const CUmemAccessDesc* accessDescs;
  std::size_t accessDescCount;
  std::size_t bytesize;
  CUdeviceptr dptr;
};

// A node of any kind. Members that our code does not read are left out; `reserved1` is as large as the largest may
// become.
struct CUgraphNodeParams {
  CUgraphNodeType type;
  int reserved0[3];
  union {
    long long reserved1[29];
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUDA_MEMCPY_NODE_PARAMS memcpy;
    CUDA_MEMSET_NODE_PARAMS_v2 memset;
    CUDA_HOST_NODE_PARAMS host;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc;
    CUDA_BATCH_MEM_OP_NODE_PARAMS memOp;
  };
  long long reserved2;
};

struct CUgraphEdgeData {
  unsigned char from_port;
  unsigned char to_port;
  unsigned char type;
  unsigned char reserved[5];
};

struct CUDA_GRAPH_INSTANTIATE_PARAMS {
  std::uint64_t flags;
  CUstream hUploadStream;
  CUgraphNode hErrNode_out;
  CUgraphInstantiateResult result_out;
};

struct CUgraphExecUpdateResultInfo {
  CUgraphExecUpdateResult result;
  CUgraphNode errorNode;
  CUgraphNode errorFromNode;
};

// Graphics

union CUeglFramePlanes {
  CUarray pArray[3];
  void* pPitch[3];
};

// One frame of an EGL stream; passed by value to cuEGLStreamProducerPresentFrame.
struct CUeglFrame {
  CUeglFramePlanes frame;
  unsigned int width;
  unsigned int height;
  unsigned int depth;
  unsigned int pitch;
  unsigned int planeCount;
  unsigned int numChannels;
  unsigned int frameType;
  unsigned int eglColorFormat;
  CUarray_format cuFormat;
};

}  // namespace gpumux::cuda
