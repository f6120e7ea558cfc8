// A libcuda over plain memory with two devices, for testing how cuda_driver finds its entry points, calls the batched
// copy and keeps to its context. Streams are synchronous. The 12.8 signature reports the index of the first descriptor
// of 13 bytes as failed, for one of 17 bytes an index past the end; the 13.0 one has no index to report. Asked for a
// version newer than itself, the driver answers with the newest that it has.
#include "fake_cuda.hpp"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace {

FakeCuda asked;

using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kInvalidValue = 1;
constexpr Result kInvalidContext = 201;
constexpr Result kNotFound = 500;
constexpr Result kCaptureUnsupported = 900;

int contexts[2];
thread_local void* current = nullptr;

struct Handle {
  void* context;
};

thread_local int capture_mode = 0;

/// What is unsafe in a graph fails, and ends a capture elsewhere, in a thread that did not ask to be let off.
Result unsafe() {
  if (!asked.captures || capture_mode == 2) return kSuccess;
  asked.spoiled = true;
  return kCaptureUnsupported;
}

Result outcome(const char* call) { return asked.failing == call ? kInvalidValue : kSuccess; }

Result on(void* stream) { return static_cast<Handle*>(stream)->context == current ? kSuccess : kInvalidContext; }

Result init(unsigned) { return kSuccess; }
Result error_name(Result result, const char** name) {
  *name = result == kInvalidValue ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR_UNKNOWN";
  return kSuccess;
}
Result driver_version(int* version) { return *version = FAKE_CUDA_VERSION, kSuccess; }
Result device_count(int* count) { return *count = 2, kSuccess; }
Result device_get(int* device, int ordinal) {
  *device = ordinal;
  return ordinal == 0 || ordinal == 1 ? kSuccess : kInvalidValue;
}
Result device_text(char* text, int length, int) {
  return std::strncpy(text, "Fake GPU", static_cast<std::size_t>(length)), outcome("cuDeviceGetName");
}
/// Device 1 is integrated.
Result attribute(int* value, int which, int device) { return *value = which == 18 ? device : 9, kSuccess; }
Result retain(void** context, int device) { return ++asked.contexts, *context = contexts + device, kSuccess; }
Result release(int) { return --asked.contexts, kSuccess; }
Result set_current(void* context) { return current = context, kSuccess; }
Result get_current(void** context) { return *context = current, kSuccess; }
/// Device 0 has one byte free, device 1 two.
Result mem_info(std::size_t* free_bytes, std::size_t* total) {
  return *free_bytes = current == contexts ? 1 : 2, *total = 2, kSuccess;
}
void note_allocation() { asked.allocated_on = current == contexts ? 0 : 1; }
Result mem_alloc(std::uint64_t* pointer, std::size_t bytes) {
  note_allocation();
  return *pointer = reinterpret_cast<std::uint64_t>(std::malloc(bytes)), kSuccess;
}
Result mem_free(std::uint64_t pointer) { return std::free(reinterpret_cast<void*>(pointer)), kSuccess; }
Result host_alloc(void** pointer, std::size_t bytes, unsigned) {
  note_allocation();
  if (const Result result = unsafe()) return result;
  return ++asked.pinned, *pointer = std::malloc(bytes), kSuccess;
}
Result host_free(void* pointer) { return --asked.pinned, std::free(pointer), kSuccess; }
Result host_register(void* pointer, std::size_t, unsigned) {
  note_allocation();
  asked.pages = pointer;
  if (const Result result = outcome("cuMemHostRegister")) return result;
  return asked.registered.insert(pointer), kSuccess;
}
Result host_unregister(void* pointer) {
  note_allocation();
  return asked.registered.erase(pointer) == 1 ? kSuccess : kInvalidValue;
}
Result device_pointer(std::uint64_t* out, void* pointer, unsigned) {
  return *out = reinterpret_cast<std::uint64_t>(pointer), outcome("cuMemHostGetDevicePointer");
}
Result create(void** out, unsigned) { return *out = new Handle{current}, kSuccess; }
Result priorities(int* least, int* greatest) { return *least = 2, *greatest = -5, kSuccess; }
Result create_stream(void** out, unsigned flags, int priority) {
  asked.priority = priority;
  return priority == 0 || priority == 2 || priority == -5 ? create(out, flags) : kInvalidValue;
}
Result destroy(void* handle) { return delete static_cast<Handle*>(handle), kSuccess; }
Result synchronize(void*) { return kSuccess; }
Result record(void* event, void* stream) {
  return static_cast<Handle*>(event)->context == static_cast<Handle*>(stream)->context ? kSuccess : kInvalidContext;
}
Result query(void*) { return unsafe(); }
Result exchange_capture_mode(int* mode) { return std::swap(*mode, capture_mode), kSuccess; }
Result elapsed(float* ms, void*, void*) { return *ms = 0.5F, kSuccess; }
Result htod(std::uint64_t to, const void* from, std::size_t bytes, void* stream) {
  if (const Result result = on(stream)) return result;
  return std::memcpy(reinterpret_cast<void*>(to), from, bytes), kSuccess;
}
Result dtoh(void* to, std::uint64_t from, std::size_t bytes, void* stream) {
  if (const Result result = on(stream)) return result;
  return std::memcpy(to, reinterpret_cast<const void*>(from), bytes), kSuccess;
}
Result memset8(std::uint64_t to, unsigned char value, std::size_t bytes, void* stream) {
  if (const Result result = on(stream)) return result;
  return std::memset(reinterpret_cast<void*>(to), value, bytes), kSuccess;
}
Result wait_event(void*, void*, unsigned) {
  ++asked.waits;
  return kSuccess;
}
Result wait_value(void*, unsigned long long word, std::uint32_t least, unsigned how) {
  asked.waited_word = word;
  asked.waited_value = how == 0 ? least : 0;
  return kSuccess;
}
Result capturing(void*, int* status) { return *status = asked.capture_status, kSuccess; }
Result begin_capture(void*, int) { return kSuccess; }
Result end_capture(void*, void** graph) { return ++asked.graphs, *graph = &asked.graphs, kSuccess; }
Result destroy_graph(void*) { return --asked.graphs, kSuccess; }
Result instantiate(void** executable, void*, unsigned long long) {
  return ++asked.executables, *executable = &asked.executables, outcome("cuGraphInstantiateWithFlags");
}
Result destroy_executable(void*) { return --asked.executables, kSuccess; }
/// Modules belong to the current context.
Result load_module(void** module, const void*) { return ++asked.modules, create(module, 0); }
Result unload_module(void* module) {
  if (static_cast<Handle*>(module)->context != current) return kInvalidContext;
  return --asked.modules, destroy(module);
}
Result find_function(void** function, void* module, const char*) { return *function = module, kSuccess; }
Result launch(void*, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned, unsigned, void* stream,
              void** arguments, void**) {
  asked.grid = blocks;
  asked.cluster = 0;
  return threads == 64 && *arguments != nullptr ? on(stream) : kInvalidValue;
}
/// CUlaunchConfig and CUlaunchAttribute of the headers of 12.0 and newer.
struct LaunchAttribute {
  int id;
  char padding[4];
  unsigned value[16];
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared;
  void* stream;
  LaunchAttribute* attributes;
  unsigned count;
};
Result launch_ex(const LaunchConfig* config, void*, void** arguments, void**) {
  constexpr int kClusterDimension = 4;
  const bool one_row = config->grid[1] * config->grid[2] * config->block[1] * config->block[2] == 1;
  if (config->count != 1 || config->attributes->id != kClusterDimension || !one_row) return kInvalidValue;
  const unsigned* cluster = config->attributes->value;
  if (cluster[1] * cluster[2] != 1 || config->grid[0] % cluster[0] != 0 || config->shared != 48) return kInvalidValue;
  asked.grid = config->grid[0];
  asked.cluster = cluster[0];
  return config->block[0] == 64 && *arguments != nullptr ? on(config->stream) : kInvalidValue;
}
Result retain_mapping(std::uint64_t*, void*) {
  return asked.memory.mapped ? (++asked.mappings, kSuccess) : kInvalidValue;
}
bool in_hole(std::uint64_t address) {
  constexpr std::uint64_t kPiece = 2 << 20;
  return asked.memory.hole != 0 && address / kPiece == asked.memory.hole / kPiece;
}
Result release_mapping(std::uint64_t) { return --asked.mappings, kSuccess; }
Result pointer_attributes(unsigned count, const int* attributes, void** values, std::uint64_t address) {
  for (unsigned i = 0; i < count; ++i) {
    const auto set = [to = values[i]](auto value) { std::memcpy(to, &value, sizeof(value)); };
    if (attributes[i] == 2) set(in_hole(address) ? 0U : asked.memory.type);
    if (attributes[i] == 3) set(address + asked.memory.kernel_offset);
    if (attributes[i] == 8) set(asked.memory.managed);
    if (attributes[i] == 9) set(asked.memory.device);
    if (attributes[i] == 11) set(address / asked.memory.range * asked.memory.range);
    if (attributes[i] == 12) set(asked.memory.range);
    if (attributes[i] == 13) set(in_hole(address) ? 0 : 1);
    if (attributes[i] == 16) set(asked.memory.read_only ? 1 : 3);
  }
  return kSuccess;
}
Result unused() { return kInvalidValue; }

struct Attributes {
  int order;
  int hints[4];
  unsigned flags;
};

Result copy_all(std::uint64_t* to, std::uint64_t* from, std::size_t* sizes, std::size_t count, Attributes* attributes,
                std::size_t* indices, std::size_t attribute_count, std::size_t* failed) {
  asked.order = attributes->order;
  asked.flags = attributes->flags;
  asked.hints = false;
  for (const int hint : attributes->hints) asked.hints |= hint != 0;
  if (attribute_count != 1 || indices[0] != 0 || attributes->order < 1 || attributes->order > 3) return kInvalidValue;
  for (std::size_t i = 0; i < count; ++i) {
    if (sizes[i] == 13) return *failed = i, kInvalidValue;
    if (sizes[i] == 17) return *failed = count + 5, kInvalidValue;
    std::memcpy(reinterpret_cast<void*>(to[i]), reinterpret_cast<const void*>(from[i]), sizes[i]);
  }
  return kSuccess;
}

[[maybe_unused]] Result batch_12_8(std::uint64_t* to, std::uint64_t* from, std::size_t* sizes, std::size_t count,
                                   Attributes* attributes, std::size_t* indices, std::size_t attribute_count,
                                   std::size_t* failed, void* stream) {
  if (const Result result = on(stream)) return result;
  return copy_all(to, from, sizes, count, attributes, indices, attribute_count, failed);
}

[[maybe_unused]] Result batch_13_0(std::uint64_t* to, std::uint64_t* from, std::size_t* sizes, std::size_t count,
                                   Attributes* attributes, std::size_t* indices, std::size_t attribute_count,
                                   void* stream) {
  if (const Result result = on(stream)) return result;
  std::size_t nobody = 0;
  return copy_all(to, from, sizes, count, attributes, indices, attribute_count, &nobody);
}

template <typename Function>
void* as_pointer(Function function) {
  return reinterpret_cast<void*>(function);
}

void* find(const std::string& name, int version) {
  if (name == "cuMemcpyBatchAsync") {
    asked.batch_version = version;
    if (version >= 13000 && FAKE_CUDA_VERSION >= 13000) return as_pointer(batch_13_0);
    if (version >= 12080 && FAKE_CUDA_VERSION >= 12080) return as_pointer(batch_12_8);
    return nullptr;
  }
  if (name == "cuInit") return as_pointer(init);
  if (name == "cuDriverGetVersion") return as_pointer(driver_version);
  if (name == "cuGetErrorName") return as_pointer(error_name);
  if (name == "cuDeviceGetCount") return as_pointer(device_count);
  if (name == "cuDeviceGet") return as_pointer(device_get);
  if (name == "cuDeviceGetName" || name == "cuDeviceGetPCIBusId") return as_pointer(device_text);
  if (name == "cuDeviceGetAttribute") return as_pointer(attribute);
  if (name == "cuDevicePrimaryCtxRetain") return as_pointer(retain);
  if (name == "cuDevicePrimaryCtxRelease") return as_pointer(release);
  if (name == "cuCtxSetCurrent") return as_pointer(set_current);
  if (name == "cuCtxGetCurrent") return as_pointer(get_current);
  if (name == "cuThreadExchangeStreamCaptureMode") return as_pointer(exchange_capture_mode);
  if (name == "cuStreamIsCapturing") return as_pointer(capturing);
  if (name == "cuStreamBeginCapture") return as_pointer(begin_capture);
  if (name == "cuStreamEndCapture") return as_pointer(end_capture);
  if (name == "cuGraphDestroy") return as_pointer(destroy_graph);
  if (name == "cuGraphInstantiateWithFlags") return as_pointer(instantiate);
  if (name == "cuGraphExecDestroy") return as_pointer(destroy_executable);
  if (name == "cuModuleLoadData") return as_pointer(load_module);
  if (name == "cuModuleUnload") return as_pointer(unload_module);
  if (name == "cuModuleGetFunction") return as_pointer(find_function);
  if (name == "cuLaunchKernel") return as_pointer(launch);
  if (name == "cuLaunchKernelEx") return as_pointer(launch_ex);
  if (name == "cuMemRetainAllocationHandle") return as_pointer(retain_mapping);
  if (name == "cuMemRelease") return as_pointer(release_mapping);
  if (name == "cuPointerGetAttributes") return as_pointer(pointer_attributes);
  if (name == "cuMemGetInfo") return as_pointer(mem_info);
  if (name == "cuMemAlloc") return as_pointer(mem_alloc);
  if (name == "cuMemFree") return as_pointer(mem_free);
  if (name == "cuMemHostAlloc") return as_pointer(host_alloc);
  if (name == "cuMemFreeHost") return as_pointer(host_free);
  if (name == "cuMemHostRegister") return as_pointer(host_register);
  if (name == "cuMemHostUnregister") return as_pointer(host_unregister);
  if (name == "cuMemHostGetDevicePointer") return as_pointer(device_pointer);
  if (name == "cuCtxGetStreamPriorityRange") return as_pointer(priorities);
  if (name == "cuStreamCreateWithPriority") return as_pointer(create_stream);
  if (name == "cuEventCreate") return as_pointer(create);
  if (name == "cuStreamDestroy" || name == "cuEventDestroy") return as_pointer(destroy);
  if (name == "cuStreamSynchronize") return as_pointer(synchronize);
  if (name == "cuEventRecord") return as_pointer(record);
  if (name == "cuEventQuery" || name == "cuStreamQuery") return as_pointer(query);
  if (name == "cuStreamWaitEvent") return as_pointer(wait_event);
  if (name == "cuStreamWaitValue32") return as_pointer(wait_value);
  if (name == "cuEventElapsedTime") return as_pointer(elapsed);
  if (name == "cuMemcpyHtoDAsync") return as_pointer(htod);
  if (name == "cuMemcpyDtoHAsync") return as_pointer(dtoh);
  if (name == "cuMemsetD8Async") return as_pointer(memset8);
  return as_pointer(unused);
}

}  // namespace

extern "C" Result cuGetProcAddress_v2(const char* name, void** function, int version, std::uint64_t, int*) {
  *function = find(name, version);
  return *function == nullptr ? kNotFound : kSuccess;
}

extern "C" FakeCuda* fake_cuda() { return &asked; }

/// The ordinal of the device whose context is current in this thread, -1: none.
extern "C" int fake_cuda_current() {
  return current == nullptr ? -1 : static_cast<int>(static_cast<int*>(current) - contexts);
}
/// Makes that of a device current; -1: none.
extern "C" void fake_cuda_use(int device) { current = device < 0 ? nullptr : contexts + device; }
