#include "driver/library.hpp"

#include <dlfcn.h>

#include <cstdint>

#include "driver/error.hpp"

namespace kvbench::cuda {
namespace {

using GetProcAddress = Result (*)(const char*, void**, int version, std::uint64_t flags, int* status);

/// Oldest CUDA version with all entry points that the engine needs, except the batched copy.
constexpr int kBaseVersion = 12000;

class Library {
 public:
  explicit Library(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw DriverError("dlopen(" + path + ")", dlerror());
    resolve_ = reinterpret_cast<GetProcAddress>(dlsym(handle_, "cuGetProcAddress_v2"));
    if (resolve_ == nullptr) {
      dlclose(handle_);
      throw DriverError("dlsym(cuGetProcAddress_v2)", "the driver is older than CUDA 12.0");
    }
  }
  // libcuda has its own threads and is therefore never unloaded.
  ~Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  template <typename Entry>
  bool find(const char* name, int version, Entry& entry) const {
    void* address = nullptr;
    int status = 0;
    if (resolve_(name, &address, version, 0, &status) != kSuccess || address == nullptr) return false;
    entry = reinterpret_cast<Entry>(address);
    return true;
  }

  template <typename Entry>
  void require(const char* name, Entry& entry) const {
    if (!find(name, kBaseVersion, entry)) throw DriverError("cuGetProcAddress", std::string(name) + " not found");
  }

 private:
  void* handle_;
  GetProcAddress resolve_ = nullptr;
};

}  // namespace

Api load_api(const std::string& path) {
  const Library library(path);
  Api api;
  library.require("cuInit", api.init);
  library.require("cuDriverGetVersion", api.driver_get_version);
  library.require("cuGetErrorName", api.get_error_name);
  library.require("cuDeviceGetCount", api.device_get_count);
  library.require("cuDeviceGet", api.device_get);
  library.require("cuDeviceGetName", api.device_get_name);
  library.require("cuDeviceGetAttribute", api.device_get_attribute);
  library.require("cuDeviceGetPCIBusId", api.device_get_pci_bus_id);
  library.require("cuDevicePrimaryCtxRetain", api.primary_ctx_retain);
  library.require("cuDevicePrimaryCtxRelease", api.primary_ctx_release);
  library.require("cuCtxGetCurrent", api.ctx_get_current);
  library.require("cuCtxSetCurrent", api.ctx_set_current);
  library.require("cuCtxGetStreamPriorityRange", api.ctx_get_stream_priority_range);
  library.require("cuMemGetInfo", api.mem_get_info);
  library.require("cuMemAlloc", api.mem_alloc);
  library.require("cuMemFree", api.mem_free);
  library.require("cuMemHostAlloc", api.mem_host_alloc);
  library.require("cuMemFreeHost", api.mem_free_host);
  library.require("cuMemHostRegister", api.mem_host_register);
  library.require("cuMemHostUnregister", api.mem_host_unregister);
  library.require("cuMemHostGetDevicePointer", api.mem_host_get_device_pointer);
  library.require("cuStreamCreateWithPriority", api.stream_create_with_priority);
  library.require("cuStreamDestroy", api.stream_destroy);
  library.require("cuPointerGetAttributes", api.pointer_get_attributes);
  library.require("cuMemRetainAllocationHandle", api.mem_retain_allocation_handle);
  library.require("cuMemRelease", api.mem_release);
  library.require("cuStreamSynchronize", api.stream_synchronize);
  library.require("cuStreamWaitEvent", api.stream_wait_event);
  library.require("cuStreamQuery", api.stream_query);
  library.require("cuStreamIsCapturing", api.stream_is_capturing);
  library.require("cuStreamBeginCapture", api.stream_begin_capture);
  library.require("cuStreamEndCapture", api.stream_end_capture);
  library.require("cuGraphGetNodes", api.graph_get_nodes);
  library.require("cuGraphDestroy", api.graph_destroy);
  library.require("cuEventCreate", api.event_create);
  library.require("cuEventDestroy", api.event_destroy);
  library.require("cuEventRecord", api.event_record);
  library.require("cuEventQuery", api.event_query);
  library.require("cuEventElapsedTime", api.event_elapsed_time);
  library.require("cuMemcpyHtoDAsync", api.memcpy_htod_async);
  library.require("cuMemcpyDtoHAsync", api.memcpy_dtoh_async);
  library.require("cuMemsetD8Async", api.memset_d8_async);
  library.require("cuModuleLoadData", api.module_load_data);
  library.require("cuModuleUnload", api.module_unload);
  library.require("cuModuleGetFunction", api.module_get_function);
  library.require("cuFuncSetAttribute", api.func_set_attribute);
  library.require("cuLaunchKernel", api.launch_kernel);
  // The 13.0 headers renamed the symbol to a signature without failIdx. For a version newer than itself a driver can
  // return an older signature, so each signature is requested only from drivers that have it.
  int version = 0;
  api.driver_get_version(&version);
  if (version >= 13000) {
    library.find("cuMemcpyBatchAsync", 13000, api.batch_async_13_0);
  } else if (version >= 12080) {
    library.find("cuMemcpyBatchAsync", 12080, api.batch_async_12_8);
  }
  return api;
}

}  // namespace kvbench::cuda
