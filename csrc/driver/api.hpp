#pragma once

#include <cstddef>
#include <cstdint>

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
using DevicePointer = unsigned long long;
using MappedHandle = unsigned long long;

inline constexpr Result kSuccess = 0;
inline constexpr Result kErrorInvalidValue = 1;
inline constexpr Result kErrorNotReady = 600;
inline constexpr int kFuncMaxDynamicSharedSizeBytes = 8;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr std::uintptr_t kStreamLegacy = 1;
inline constexpr std::uintptr_t kStreamPerThread = 2;
inline constexpr int kPointerMemoryType = 2;
inline constexpr int kPointerDevicePointer = 3;
inline constexpr int kPointerIsManaged = 8;
inline constexpr int kPointerDeviceOrdinal = 9;
inline constexpr int kPointerRangeStart = 11;
inline constexpr int kPointerRangeSize = 12;
inline constexpr unsigned kMemoryTypeHost = 1;
inline constexpr unsigned kMemoryTypeDevice = 2;
inline constexpr unsigned kEventDefault = 0;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr int kCaptureOfThread = 1;
inline constexpr unsigned kFlagPreferOverlapWithCompute = 1;

enum DeviceAttribute : int {
  kMultiprocessorCount = 16,
  kPciBusId = 33,
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

using BatchAsync128 = Result (*)(DevicePointer*, DevicePointer*, std::size_t*, std::size_t, MemcpyAttributes*,
                                 std::size_t*, std::size_t, std::size_t* fail_index, StreamHandle);
using BatchAsync130 = Result (*)(DevicePointer*, DevicePointer*, std::size_t*, std::size_t, MemcpyAttributes*,
                                 std::size_t*, std::size_t, StreamHandle);

/// Every other entry point, resolved at run time.
struct Api {
  Result (*init)(unsigned) = nullptr;
  Result (*driver_get_version)(int*) = nullptr;
  Result (*get_error_name)(Result, const char**) = nullptr;
  Result (*device_get_count)(int*) = nullptr;
  Result (*device_get)(Device*, int) = nullptr;
  Result (*device_get_name)(char*, int, Device) = nullptr;
  Result (*device_get_attribute)(int*, DeviceAttribute, Device) = nullptr;
  Result (*device_get_pci_bus_id)(char*, int, Device) = nullptr;
  Result (*primary_ctx_retain)(Context*, Device) = nullptr;
  Result (*primary_ctx_release)(Device) = nullptr;
  Result (*ctx_get_current)(Context*) = nullptr;
  Result (*ctx_set_current)(Context) = nullptr;
  Result (*ctx_get_stream_priority_range)(int* least, int* greatest) = nullptr;
  Result (*mem_get_info)(std::size_t*, std::size_t*) = nullptr;
  Result (*mem_alloc)(DevicePointer*, std::size_t) = nullptr;
  Result (*mem_free)(DevicePointer) = nullptr;
  Result (*mem_host_alloc)(void**, std::size_t, unsigned) = nullptr;
  Result (*mem_free_host)(void*) = nullptr;
  Result (*mem_host_register)(void*, std::size_t, unsigned) = nullptr;
  Result (*mem_host_unregister)(void*) = nullptr;
  Result (*mem_host_get_device_pointer)(DevicePointer*, void*, unsigned) = nullptr;
  Result (*pointer_get_attributes)(unsigned count, int* attributes, void** data, DevicePointer) = nullptr;
  Result (*mem_retain_allocation_handle)(MappedHandle*, void*) = nullptr;
  Result (*mem_release)(MappedHandle) = nullptr;
  Result (*stream_create_with_priority)(StreamHandle*, unsigned, int priority) = nullptr;
  Result (*stream_destroy)(StreamHandle) = nullptr;
  Result (*stream_synchronize)(StreamHandle) = nullptr;
  Result (*stream_query)(StreamHandle) = nullptr;
  Result (*stream_wait_event)(StreamHandle, EventHandle, unsigned) = nullptr;
  Result (*stream_is_capturing)(StreamHandle, int* status) = nullptr;
  Result (*stream_begin_capture)(StreamHandle, int mode) = nullptr;
  Result (*stream_end_capture)(StreamHandle, Graph*) = nullptr;
  Result (*graph_get_nodes)(Graph, void** nodes, std::size_t* count) = nullptr;
  Result (*graph_destroy)(Graph) = nullptr;
  Result (*event_create)(EventHandle*, unsigned) = nullptr;
  Result (*event_destroy)(EventHandle) = nullptr;
  Result (*event_record)(EventHandle, StreamHandle) = nullptr;
  Result (*event_query)(EventHandle) = nullptr;
  Result (*event_elapsed_time)(float*, EventHandle, EventHandle) = nullptr;
  Result (*memcpy_htod_async)(DevicePointer, const void*, std::size_t, StreamHandle) = nullptr;
  Result (*memcpy_dtoh_async)(void*, DevicePointer, std::size_t, StreamHandle) = nullptr;
  Result (*memset_d8_async)(DevicePointer, unsigned char, std::size_t, StreamHandle) = nullptr;
  Result (*module_load_data)(Module*, const void*) = nullptr;
  Result (*module_unload)(Module) = nullptr;
  Result (*module_get_function)(Function*, Module, const char*) = nullptr;
  Result (*func_set_attribute)(Function, int attribute, int) = nullptr;
  Result (*launch_kernel)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, StreamHandle,
                          void**, void**) = nullptr;
  BatchAsync128 batch_async_12_8 = nullptr;
  BatchAsync130 batch_async_13_0 = nullptr;
};

}  // namespace kvbench::cuda
