#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

/// The part of CUDA's driver API that the engine calls, declared here so that the build needs no CUDA toolkit.
/// Names, values and layouts are those of the driver API reference (12.8 and 13.0).
namespace kvbench::cuda {

using Result = int;
using Device = int;
using Context = void*;
using StreamHandle = void*;
using EventHandle = void*;
using Module = void*;
using Function = void*;
using Graph = void*;
using ExecutableGraph = void*;
using DevicePointer = unsigned long long;
using MappedHandle = unsigned long long;

inline constexpr Result kSuccess = 0;
inline constexpr Result kErrorNotReady = 600;
inline constexpr int kFuncMaxDynamicSharedSizeBytes = 8;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr std::uintptr_t kStreamLegacy = 1;
inline constexpr std::uintptr_t kStreamPerThread = 2;
inline constexpr int kPointerAccessFlags = 16;
inline constexpr int kPointerMapped = 13;
inline constexpr int kPointerMemoryType = 2;
inline constexpr int kPointerDevicePointer = 3;
inline constexpr int kPointerIsManaged = 8;
inline constexpr int kPointerDeviceOrdinal = 9;
inline constexpr int kPointerRangeStart = 11;
inline constexpr int kPointerRangeSize = 12;
inline constexpr int kAccessRead = 1;
inline constexpr unsigned kMemoryTypeHost = 1;
inline constexpr unsigned kMemoryTypeDevice = 2;
inline constexpr unsigned kEventDefault = 0;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr int kCaptureOfThread = 1;
inline constexpr int kCaptureRelaxed = 2;
inline constexpr unsigned kFlagPreferOverlapWithCompute = 1;
inline constexpr int kLaunchClusterDimension = 4;

enum DeviceAttribute : int {
  kMultiprocessorCount = 16,
  kIntegrated = 18,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kMaxSharedMemoryPerBlockOptin = 97,
  kHostNumaId = 134,
};

struct MemLocation {
  int type = 0;
  int id = 0;
};

/// CUmemcpyAttributes; both location hints are ignored for memory that is not managed.
struct MemcpyAttributes {
  int src_access_order = 0;
  MemLocation src_hint;
  MemLocation dst_hint;
  unsigned flags = 0;
};
static_assert(sizeof(MemcpyAttributes) == 24);

/// CUlaunchAttribute: the id and, in 64 bytes, its value, here the dimensions of a cluster.
struct LaunchAttribute {
  int id = 0;
  unsigned padding = 0;
  unsigned dimensions[3]{};
  unsigned unused[13]{};
};
static_assert(sizeof(LaunchAttribute) == 72);

/// CUlaunchConfig.
struct LaunchConfig {
  unsigned blocks[3]{1, 1, 1};
  unsigned threads[3]{1, 1, 1};
  unsigned shared_bytes = 0;
  StreamHandle stream = nullptr;
  LaunchAttribute* attributes = nullptr;
  unsigned attribute_count = 0;
};
static_assert(sizeof(LaunchConfig) == 56);

using BatchAsync128 = Result (*)(DevicePointer*, DevicePointer*, std::size_t*, std::size_t, MemcpyAttributes*,
                                 std::size_t*, std::size_t, std::size_t* fail_index, StreamHandle);
using BatchAsync130 = Result (*)(DevicePointer*, DevicePointer*, std::size_t*, std::size_t, MemcpyAttributes*,
                                 std::size_t*, std::size_t, StreamHandle);

/// Every entry point but the batched copy: its member of Api, its name, and its parameters.
#define KVBENCH_CUDA_ENTRIES(ENTRY)                                                                                   \
  ENTRY(init, "cuInit", (unsigned))                                                                                   \
  ENTRY(driver_get_version, "cuDriverGetVersion", (int*))                                                             \
  ENTRY(get_error_name, "cuGetErrorName", (Result, const char**))                                                     \
  ENTRY(device_get_count, "cuDeviceGetCount", (int*))                                                                 \
  ENTRY(device_get, "cuDeviceGet", (Device*, int))                                                                    \
  ENTRY(device_get_name, "cuDeviceGetName", (char*, int, Device))                                                     \
  ENTRY(device_get_attribute, "cuDeviceGetAttribute", (int*, DeviceAttribute, Device))                                \
  ENTRY(device_get_pci_bus_id, "cuDeviceGetPCIBusId", (char*, int, Device))                                           \
  ENTRY(primary_ctx_retain, "cuDevicePrimaryCtxRetain", (Context*, Device))                                           \
  ENTRY(primary_ctx_release, "cuDevicePrimaryCtxRelease", (Device))                                                   \
  ENTRY(ctx_get_current, "cuCtxGetCurrent", (Context*))                                                               \
  ENTRY(ctx_set_current, "cuCtxSetCurrent", (Context))                                                                \
  ENTRY(ctx_get_stream_priority_range, "cuCtxGetStreamPriorityRange", (int* least, int* greatest))                    \
  ENTRY(mem_get_info, "cuMemGetInfo", (std::size_t*, std::size_t*))                                                   \
  ENTRY(mem_alloc, "cuMemAlloc", (DevicePointer*, std::size_t))                                                       \
  ENTRY(mem_free, "cuMemFree", (DevicePointer))                                                                       \
  ENTRY(mem_host_alloc, "cuMemHostAlloc", (void**, std::size_t, unsigned))                                            \
  ENTRY(mem_free_host, "cuMemFreeHost", (void*))                                                                      \
  ENTRY(mem_host_register, "cuMemHostRegister", (void*, std::size_t, unsigned))                                       \
  ENTRY(mem_host_unregister, "cuMemHostUnregister", (void*))                                                          \
  ENTRY(mem_host_get_device_pointer, "cuMemHostGetDevicePointer", (DevicePointer*, void*, unsigned))                  \
  ENTRY(pointer_get_attributes, "cuPointerGetAttributes",                                                             \
        (unsigned count, int* attributes, void** data, DevicePointer))                                                \
  ENTRY(mem_retain_allocation_handle, "cuMemRetainAllocationHandle", (MappedHandle*, void*))                          \
  ENTRY(mem_release, "cuMemRelease", (MappedHandle))                                                                  \
  ENTRY(stream_create_with_priority, "cuStreamCreateWithPriority", (StreamHandle*, unsigned, int priority))           \
  ENTRY(stream_destroy, "cuStreamDestroy", (StreamHandle))                                                            \
  ENTRY(stream_synchronize, "cuStreamSynchronize", (StreamHandle))                                                    \
  ENTRY(stream_query, "cuStreamQuery", (StreamHandle))                                                                \
  ENTRY(stream_wait_event, "cuStreamWaitEvent", (StreamHandle, EventHandle, unsigned))                                \
  ENTRY(stream_wait_value, "cuStreamWaitValue32", (StreamHandle, DevicePointer, std::uint32_t, unsigned))             \
  ENTRY(thread_exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", (int* mode))                               \
  ENTRY(stream_is_capturing, "cuStreamIsCapturing", (StreamHandle, int* status))                                      \
  ENTRY(stream_begin_capture, "cuStreamBeginCapture", (StreamHandle, int mode))                                       \
  ENTRY(stream_end_capture, "cuStreamEndCapture", (StreamHandle, Graph*))                                             \
  ENTRY(graph_destroy, "cuGraphDestroy", (Graph))                                                                     \
  ENTRY(graph_instantiate, "cuGraphInstantiateWithFlags", (ExecutableGraph*, Graph, unsigned long long flags))        \
  ENTRY(graph_launch, "cuGraphLaunch", (ExecutableGraph, StreamHandle))                                               \
  ENTRY(graph_exec_destroy, "cuGraphExecDestroy", (ExecutableGraph))                                                  \
  ENTRY(event_create, "cuEventCreate", (EventHandle*, unsigned))                                                      \
  ENTRY(event_destroy, "cuEventDestroy", (EventHandle))                                                               \
  ENTRY(event_record, "cuEventRecord", (EventHandle, StreamHandle))                                                   \
  ENTRY(event_query, "cuEventQuery", (EventHandle))                                                                   \
  ENTRY(event_elapsed_time, "cuEventElapsedTime", (float*, EventHandle, EventHandle))                                 \
  ENTRY(memcpy_htod_async, "cuMemcpyHtoDAsync", (DevicePointer, const void*, std::size_t, StreamHandle))              \
  ENTRY(memcpy_dtoh_async, "cuMemcpyDtoHAsync", (void*, DevicePointer, std::size_t, StreamHandle))                    \
  ENTRY(memset_d8_async, "cuMemsetD8Async", (DevicePointer, unsigned char, std::size_t, StreamHandle))                \
  ENTRY(module_load_data, "cuModuleLoadData", (Module*, const void*))                                                 \
  ENTRY(module_unload, "cuModuleUnload", (Module))                                                                    \
  ENTRY(module_get_function, "cuModuleGetFunction", (Function*, Module, const char*))                                 \
  ENTRY(func_set_attribute, "cuFuncSetAttribute", (Function, int attribute, int))                                     \
  ENTRY(                                                                                                              \
      launch_kernel, "cuLaunchKernel",                                                                                \
      (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, StreamHandle, void**, void**)) \
  ENTRY(launch_kernel_ex, "cuLaunchKernelEx", (const LaunchConfig*, Function, void**, void**))

/// The entry points, resolved at run time.
struct Api {
#define KVBENCH_CUDA_MEMBER(member, name, parameters) Result(*member) parameters = nullptr;
  KVBENCH_CUDA_ENTRIES(KVBENCH_CUDA_MEMBER)
#undef KVBENCH_CUDA_MEMBER
  BatchAsync128 batch_async_12_8 = nullptr;
  BatchAsync130 batch_async_13_0 = nullptr;
};

/// Loads the driver library at `path` and every entry point in it; throws DriverError, which names what is missing.
/// A driver older than 12.8 has no batched copy: both of its entries stay null.
Api load_api(const std::string& path);

}  // namespace kvbench::cuda
