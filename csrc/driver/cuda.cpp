#include "driver/cuda.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include "driver/content_kernels.hpp"
#include "driver/pages.hpp"
#include "timing/clock.hpp"

namespace kvbench {
namespace {

using cuda::Api;
using cuda::Result;

std::string name_of(Result result, const Api& api) {
  const char* text = nullptr;
  if (api.get_error_name(result, &text) == cuda::kSuccess && text != nullptr) return text;
  return "CUresult " + std::to_string(result);
}

class CudaDriver final : public Driver {
 public:
  CudaDriver(int ordinal, const std::string& library) : api_(cuda::load_api(library)), ordinal_(ordinal) {
    check(api_.init(0), "cuInit");
    check(api_.device_get(&device_, ordinal), "cuDeviceGet");
    check(api_.primary_ctx_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
    try {
      describe();
    } catch (...) {
      api_.primary_ctx_release(device_);
      throw;
    }
  }

  ~CudaDriver() override {
    {
      const CurrentDevice current(*this);
      content_kernels_.reset();  // while the context that owns its memory still exists
      for (const auto& [cubin, module] : modules_) api_.module_unload(module);
    }
    api_.primary_ctx_release(device_);
  }

  const DeviceInfo& info() const override { return info_; }

  BatchEntry batch_entry() const override {
    if (api_.batch_async_13_0 != nullptr) return BatchEntry::cuda_13_0;
    return api_.batch_async_12_8 != nullptr ? BatchEntry::cuda_12_8 : BatchEntry::none;
  }

  FreeMemory free_memory() const override {
    FreeMemory memory;
    const CurrentDevice current(*this);
    check(api_.mem_get_info(&memory.free_bytes, &memory.total_bytes), "cuMemGetInfo");
    return memory;
  }

  /// torch and other libraries change the context of the thread, and expect it as they left it. While another thread
  /// captures a graph in the mode global, what is unsafe in a graph would fail here and end that capture. Where the
  /// driver fails here, it fails in the call that follows.
  Previous enter() const noexcept override {
    cuda::Context before = nullptr;
    api_.ctx_get_current(&before);
    if (before != context_) bind_thread();
    int capture_mode = cuda::kCaptureRelaxed;
    api_.thread_exchange_capture_mode(&capture_mode);
    return {reinterpret_cast<std::uintptr_t>(before), capture_mode};
  }
  void leave(Previous previous) const noexcept override {
    api_.thread_exchange_capture_mode(&previous.capture_mode);
    if (handle(previous.context) != context_) api_.ctx_set_current(handle(previous.context));
  }
  void bind_thread() const noexcept override { api_.ctx_set_current(context_); }

  Memory allocate(MemoryKind kind, std::size_t bytes) override {
    const CurrentDevice current(*this);
    if (kind == MemoryKind::device) {
      cuda::DevicePointer pointer = 0;
      check(api_.mem_alloc(&pointer, bytes), "cuMemAlloc");
      return {pointer, pointer};
    }
    const bool is_mapped = kind != MemoryKind::allocated;
    const auto begin = Clock::now();
    void* pointer = is_mapped ? map_pages(kind, bytes) : allocate_pinned(bytes);
    const auto populated = Clock::now();
    const double populate_s = to_us(populated - begin) / 1e6;
    if (kind == MemoryKind::mapped) {
      const auto pages = reinterpret_cast<Address>(pointer);
      return {pages, pages, populate_s};
    }
    if (is_mapped) {
      const Result registered = api_.mem_host_register(pointer, bytes, 0);
      if (registered != cuda::kSuccess) unmap_pages(kind, pointer, bytes);
      check(registered, "cuMemHostRegister");
    }
    const double register_s = to_us(Clock::now() - populated) / 1e6;
    cuda::DevicePointer device_pointer = 0;
    const Result result = api_.mem_host_get_device_pointer(&device_pointer, pointer, 0);
    const Memory memory{reinterpret_cast<Address>(pointer), device_pointer, populate_s, register_s};
    if (result != cuda::kSuccess) {
      release(kind, memory, bytes);
      check(result, "cuMemHostGetDevicePointer");
    }
    return memory;
  }

  void release(MemoryKind kind, const Memory& memory, std::size_t bytes) noexcept override {
    void* pointer = reinterpret_cast<void*>(memory.address);
    const CurrentDevice current(*this);
    switch (kind) {
      case MemoryKind::device:
        api_.mem_free(memory.address);
        break;
      case MemoryKind::allocated:
        api_.mem_free_host(pointer);
        break;
      default:
        if (kind != MemoryKind::mapped) api_.mem_host_unregister(pointer);
        unmap_pages(kind, pointer, bytes);
    }
  }

  Region region_of(Address address) override {
    unsigned type = 0, managed = 0;  // type stays 0 for memory that the driver does not know
    int device = -1, access = 0;
    cuda::DevicePointer begin = 0, for_kernels = 0;
    std::size_t bytes = 0;
    std::array attributes{cuda::kPointerMemoryType,    cuda::kPointerIsManaged,  cuda::kPointerDeviceOrdinal,
                          cuda::kPointerDevicePointer, cuda::kPointerRangeStart, cuda::kPointerRangeSize,
                          cuda::kPointerAccessFlags};
    std::array<void*, 7> values{&type, &managed, &device, &for_kernels, &begin, &bytes, &access};
    check(api_.pointer_get_attributes(attributes.size(), attributes.data(), values.data(), address),
          "cuPointerGetAttributes");
    Region region{.begin = begin, .bytes = bytes, .device = device};
    if (managed != 0) {
      region.place = Place::managed;
    } else if (type == cuda::kMemoryTypeHost) {
      region.place = Place::pinned;
    } else if (type == cuda::kMemoryTypeDevice) {
      region.place = device == ordinal_ ? Place::device : Place::other_device;
    } else {
      return {};
    }
    region.other_address = region.place == Place::pinned && for_kernels != address;
    region.read_only = access == cuda::kAccessRead;
    return is_mapped(address) ? mapped_part(region, address) : region;
  }

  Stream create_stream(Priority priority) override {
    const CurrentDevice current(*this);
    int least = 0;  // a smaller number has the higher priority; 0 is the default
    int greatest = 0;
    check(api_.ctx_get_stream_priority_range(&least, &greatest), "cuCtxGetStreamPriorityRange");
    const int number = priority == Priority::high ? greatest : priority == Priority::low ? least : 0;
    cuda::StreamHandle stream = nullptr;
    check(api_.stream_create_with_priority(&stream, cuda::kStreamNonBlocking, number), "cuStreamCreateWithPriority");
    return reinterpret_cast<Stream>(stream);
  }
  void destroy_stream(Stream stream) noexcept override { api_.stream_destroy(handle(stream)); }
  void synchronize(Stream stream) override { check(api_.stream_synchronize(handle(stream)), "cuStreamSynchronize"); }

  bool idle(Stream stream) override {
    const Result result = api_.stream_query(handle(stream));
    if (result == cuda::kErrorNotReady) return false;
    check(result, "cuStreamQuery");
    return true;
  }

  bool capturing(Stream stream) override {
    // A handle is the address of a structure of the driver, which reads it. These are none.
    constexpr Stream kLowest = 1 << 16, kHighest = Stream{1} << 56;
    if (stream > cuda::kStreamPerThread && (stream < kLowest || stream >= kHighest || stream % sizeof(void*) != 0)) {
      throw std::invalid_argument("stream " + std::to_string(stream) + " is not the handle of a CUDA stream");
    }
    int status = 0;  // 1: a capture, 2: one that an error has ended
    check(api_.stream_is_capturing(handle(stream), &status), "cuStreamIsCapturing");
    return status != 0;
  }

  Event create_event(EventKind kind) override {
    const CurrentDevice current(*this);
    cuda::EventHandle event = nullptr;
    check(api_.event_create(&event, kind == EventKind::timed ? cuda::kEventDefault : cuda::kEventDisableTiming),
          "cuEventCreate");
    return reinterpret_cast<Event>(event);
  }
  void destroy_event(Event event) noexcept override { api_.event_destroy(handle(event)); }
  void record(Event event, Stream stream) override {
    check(api_.event_record(handle(event), handle(stream)), "cuEventRecord");
  }
  void wait(Stream stream, Event event) override {
    check(api_.stream_wait_event(handle(stream), handle(event), 0), "cuStreamWaitEvent");
  }
  void wait_for_word(Stream stream, Address word, std::uint32_t least) override {
    constexpr unsigned kAtLeast = 0;  // CU_STREAM_WAIT_VALUE_GEQ
    check(api_.stream_wait_value(handle(stream), word, least, kAtLeast), "cuStreamWaitValue32");
  }
  bool completed(Event event) override {
    const Result result = api_.event_query(handle(event));
    if (result == cuda::kErrorNotReady) return false;
    check(result, "cuEventQuery");
    return true;
  }
  double elapsed_us(Event start, Event end) override {
    float milliseconds = 0;
    check(api_.event_elapsed_time(&milliseconds, handle(start), handle(end)), "cuEventElapsedTime");
    return static_cast<double>(milliseconds) * 1e3;
  }

  void copy(Address destination, Address source, std::size_t bytes, Direction direction, Stream stream) override {
    if (direction == Direction::h2d) {
      check(api_.memcpy_htod_async(destination, reinterpret_cast<const void*>(source), bytes, handle(stream)),
            "cuMemcpyHtoDAsync");
    } else {
      check(api_.memcpy_dtoh_async(reinterpret_cast<void*>(destination), source, bytes, handle(stream)),
            "cuMemcpyDtoHAsync");
    }
  }

  void transfer(Address destination, Address source, std::size_t bytes, Direction direction, Stream stream) override {
    const CurrentDevice current(*this);
    copy(destination, source, bytes, direction, stream);
  }

  void copy_arrays(const BatchArrays& arrays, Direction, Stream stream) override {
    static_assert(sizeof(cuda::DevicePointer) == sizeof(Address));
    // The driver declares its arrays as mutable but does not write them.
    auto* to = reinterpret_cast<cuda::DevicePointer*>(const_cast<Address*>(arrays.destinations));
    auto* from = reinterpret_cast<cuda::DevicePointer*>(const_cast<Address*>(arrays.sources));
    auto* sizes = const_cast<std::size_t*>(arrays.bytes);
    auto* attributes = static_cast<cuda::MemcpyAttributes*>(const_cast<void*>(arrays.attributes));
    auto* firsts = const_cast<std::size_t*>(arrays.attribute_firsts);
    if (api_.batch_async_13_0 != nullptr) {
      check(api_.batch_async_13_0(to, from, sizes, arrays.count, attributes, firsts, arrays.attribute_count,
                                  handle(stream)),
            "cuMemcpyBatchAsync");
      return;
    }
    std::size_t failed = arrays.count;
    const Result result = api_.batch_async_12_8(to, from, sizes, arrays.count, attributes, firsts,
                                                arrays.attribute_count, &failed, handle(stream));
    if (result != cuda::kSuccess) {
      const DriverError error("cuMemcpyBatchAsync", name_of(result, api_));
      throw failed < arrays.count ? error.at(failed) : error;
    }
  }

  void register_pages(Address address, std::size_t bytes) override {
    const CurrentDevice current(*this);
    check(api_.mem_host_register(reinterpret_cast<void*>(address), bytes, 0), "cuMemHostRegister");
  }
  void unregister_pages(Address address) override {
    const CurrentDevice current(*this);
    check(api_.mem_host_unregister(reinterpret_cast<void*>(address)), "cuMemHostUnregister");
  }

  void begin_capture(Stream stream) override {
    check(api_.stream_begin_capture(handle(stream), cuda::kCaptureOfThread), "cuStreamBeginCapture");
  }
  Graph end_capture_into_graph(Stream stream) override {
    cuda::Graph graph = nullptr;
    check(api_.stream_end_capture(handle(stream), &graph), "cuStreamEndCapture");
    cuda::ExecutableGraph executable = nullptr;
    const Result instantiated = api_.graph_instantiate(&executable, graph, 0);
    api_.graph_destroy(graph);
    check(instantiated, "cuGraphInstantiateWithFlags");
    return reinterpret_cast<Graph>(executable);
  }
  void launch_graph(Graph graph, Stream stream) override {
    check(api_.graph_launch(handle(graph), handle(stream)), "cuGraphLaunch");
  }
  void destroy_graph(Graph graph) noexcept override { api_.graph_exec_destroy(handle(graph)); }

  void fill(Address device_memory, std::uint8_t value, std::size_t bytes, Stream stream) override {
    const CurrentDevice current(*this);
    check(api_.memset_d8_async(device_memory, value, bytes, handle(stream)), "cuMemsetD8Async");
  }

  void write_content(std::span<const Stretch> stretches, std::uint64_t seed, Stream stream) override {
    if (!content_kernels_) throw DriverError("write_content", "its kernel was not loaded");
    const CurrentDevice current(*this);
    content_kernels_->write(stretches, seed, stream);
  }

  AuditCount audit_content(std::span<const Stretch> stretches, std::uint64_t seed, Stream stream) override {
    if (!content_kernels_) throw DriverError("audit_content", "its kernel was not loaded");
    const CurrentDevice current(*this);
    return content_kernels_->audit(stretches, seed, stream);
  }

  void load_content_kernels(std::span<const std::byte> cubin) override {
    std::call_once(content_kernels_made_, [&] { content_kernels_.emplace(*this, cubin); });
  }

  void delay(std::uint64_t delay_ns, Stream stream) override {
    if (delay_kernel_ == 0) throw DriverError("delay", "its kernel was not loaded");
    std::array<void*, 1> arguments{&delay_ns};
    launch(delay_kernel_, {}, arguments.data(), stream);
  }

  void load_delay_kernel(std::span<const std::byte> cubin) override {
    delay_kernel_ = load_kernel(cubin, "kvbench_delay", 0);
  }

  Kernel load_kernel(std::span<const std::byte> cubin, const char* name, std::size_t shared_bytes) override {
    const CurrentDevice current(*this);
    const std::lock_guard lock(loading_);
    cuda::Module& module = modules_[std::string(reinterpret_cast<const char*>(cubin.data()), cubin.size())];
    if (module == nullptr) check(api_.module_load_data(&module, cubin.data()), "cuModuleLoadData");
    cuda::Function function = nullptr;
    check(api_.module_get_function(&function, module, name), "cuModuleGetFunction");
    if (shared_bytes > 0) {
      check(api_.func_set_attribute(function, cuda::kFuncMaxDynamicSharedSizeBytes, static_cast<int>(shared_bytes)),
            "cuFuncSetAttribute");
    }
    return reinterpret_cast<Kernel>(function);
  }

  void launch(Kernel kernel, Grid grid, void** arguments, Stream stream) override {
    if (grid.cluster > 1) {
      cuda::LaunchAttribute cluster{.id = cuda::kLaunchClusterDimension, .dimensions = {grid.cluster, 1, 1}};
      const cuda::LaunchConfig config{.blocks = {grid.blocks, 1, 1},
                                      .threads = {grid.threads, 1, 1},
                                      .shared_bytes = grid.shared_bytes,
                                      .stream = handle(stream),
                                      .attributes = &cluster,
                                      .attribute_count = 1};
      check(api_.launch_kernel_ex(&config, handle(kernel), arguments, nullptr), "cuLaunchKernelEx");
      return;
    }
    check(api_.launch_kernel(handle(kernel), grid.blocks, 1, 1, grid.threads, 1, 1, grid.shared_bytes, handle(stream),
                             arguments, nullptr),
          "cuLaunchKernel");
  }

 private:
  /// Whether memory was mapped by cuMemMap, as torch's expandable segments are.
  bool is_mapped(Address address) const {
    cuda::MappedHandle mapping = 0;
    if (api_.mem_retain_allocation_handle(&mapping, handle(address)) != cuda::kSuccess) return false;
    api_.mem_release(mapping);
    return true;
  }

  /// Whether something is mapped at an address of a range that was reserved.
  bool is_backed(Address address) const {
    int backed = 0, attribute_of_it = cuda::kPointerMapped;
    void* value = &backed;
    return api_.pointer_get_attributes(1, &attribute_of_it, &value, address) == cuda::kSuccess && backed != 0;
  }

  /// What is mapped around an address, so far on each side that a pool takes few questions: the driver knows no more
  /// than the range that was reserved, which can have holes.
  Region mapped_part(Region reserved, Address address) const {
    constexpr Address kPiece = 2 << 20, kReach = 64 * kPiece;  // mappings are multiples of 2 MiB
    Region part = reserved;
    part.mapped = true;
    part.begin = std::max(reserved.begin, address / kPiece * kPiece);
    Address end = std::min(reserved.end(), (address / kPiece + 1) * kPiece);
    while (end < reserved.end() && end - address < kReach && is_backed(end)) {
      end = std::min(reserved.end(), end + kPiece);
    }
    while (part.begin > reserved.begin && address - part.begin < kReach && is_backed(part.begin - 1)) {
      part.begin = std::max(reserved.begin, (part.begin - 1) / kPiece * kPiece);
    }
    part.bytes = end - part.begin;
    return part;
  }

  static void* handle(std::uintptr_t value) { return reinterpret_cast<void*>(value); }

  void check(Result result, const char* call) const {
    if (result != cuda::kSuccess) throw DriverError(call, name_of(result, api_));
  }

  void* allocate_pinned(std::size_t bytes) {
    void* pointer = nullptr;
    check(api_.mem_host_alloc(&pointer, bytes, 0), "cuMemHostAlloc");
    return pointer;
  }

  int attribute(cuda::DeviceAttribute which) const {
    int value = 0;
    check(api_.device_get_attribute(&value, which, device_), "cuDeviceGetAttribute");
    return value;
  }

  void describe() {
    std::array<char, 256> text{};
    info_.kind = "cuda";
    check(api_.device_get_name(text.data(), static_cast<int>(text.size()), device_), "cuDeviceGetName");
    info_.title = text.data();
    check(api_.device_get_pci_bus_id(text.data(), static_cast<int>(text.size()), device_), "cuDeviceGetPCIBusId");
    info_.pci_bus_id = text.data();
    info_.compute_major = attribute(cuda::kComputeCapabilityMajor);
    info_.compute_minor = attribute(cuda::kComputeCapabilityMinor);
    info_.sm_count = attribute(cuda::kMultiprocessorCount);
    info_.shared_bytes = attribute(cuda::kMaxSharedMemoryPerBlockOptin);
    info_.integrated = attribute(cuda::kIntegrated) != 0;
    int node = -1;
    // Drivers before 12.2 do not have this attribute.
    if (api_.device_get_attribute(&node, cuda::kHostNumaId, device_) == cuda::kSuccess) info_.numa_node = node;
  }

  Api api_;
  int ordinal_;
  cuda::Device device_ = 0;
  cuda::Context context_ = nullptr;
  std::mutex loading_;
  std::map<std::string, cuda::Module> modules_;  ///< by their code, which is loaded once
  std::atomic<Kernel> delay_kernel_ = 0;
  std::once_flag content_kernels_made_;
  std::optional<ContentKernels> content_kernels_;
  DeviceInfo info_;
};

}  // namespace

std::shared_ptr<Driver> open_cuda(int ordinal, const std::string& library) {
  return std::make_shared<CudaDriver>(ordinal, library);
}

std::shared_ptr<Driver> shared_cuda(int ordinal, const std::string& library) {
  static std::mutex opening;
  static auto& opened = *new std::map<std::tuple<pid_t, int, std::string>, std::shared_ptr<Driver>>;
  const std::lock_guard lock(opening);
  std::shared_ptr<Driver>& driver = opened[{getpid(), ordinal, library}];
  if (!driver) driver = open_cuda(ordinal, library);
  return driver;
}

int count_cuda_devices(const std::string& library) {
  const Api api = cuda::load_api(library);
  const Result started = api.init(0);
  if (started != cuda::kSuccess) throw DriverError("cuInit", name_of(started, api));
  int count = 0;
  api.device_get_count(&count);
  return count;
}

}  // namespace kvbench
