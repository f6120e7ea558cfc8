#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "driver/api.hpp"
#include "driver/error.hpp"
#include "kernels/pool_words.hpp"

/// The interface between the swap engine and its device: libcuda (cuda_driver) or plain memory (host_driver).
namespace kvbench {

using Address = std::uint64_t;
using Stream = std::uintptr_t;
using Event = std::uintptr_t;
using Kernel = std::uintptr_t;
using Graph = std::uintptr_t;

enum class Direction : std::uint8_t { h2d, d2h };

/// The priority of a stream on its device; the cpu device ignores it.
enum class Priority : std::uint8_t { normal, low, high };

/// CUmemcpySrcAccessOrder, by the driver's values.
enum class AccessOrder : std::uint8_t { stream = 1, during_api_call = 2, any = 3 };

/// What an address points to. Managed memory and memory of another device are places of their own, since nothing is
/// copied from or to them; pageable: memory that the driver does not know.
enum class Place : std::uint8_t { device, pinned, pageable, managed, other_device };

/// Memory that was allocated or registered in one piece, or a part of what was mapped. A pageable region has no bytes.
struct Region {
  Place place = Place::pageable;
  Address begin = 0;
  std::size_t bytes = 0;
  bool mapped = false;         ///< by cuMemMap: adjoining mappings are one region to copies and kernels
  bool other_address = false;  ///< kernels reach this host memory at another address
  bool read_only = false;      ///< by the device
  int device = -1;             ///< the ordinal of the device whose memory it is, if known

  [[nodiscard]] Address end() const { return begin + bytes; }
  [[nodiscard]] bool holds(Address address, std::size_t size = 1) const {
    return address - begin < bytes && size <= bytes - (address - begin);
  }
};

/// Whether an event has a time stamp, or only marks completion.
enum class EventKind : std::uint8_t { timed, mark };

/// The location of a buffer. All but `device` is pinned memory of the host: allocated by the driver, or mapped and then
/// registered: pages of the process, of a file in /dev/shm, or huge pages. `mapped` are pages of such a file of which
/// the caller registers parts, and only these take memory.
enum class MemoryKind : std::uint8_t { device, allocated, registered, shared, huge_2mib, huge_1gib, mapped };

/// The resolved signature of cuMemcpyBatchAsync: 12.8 reports the index that failed, 13.0 does not.
enum class BatchEntry : std::uint8_t { none, cuda_12_8, cuda_13_0, host };

struct BatchAttributes {
  AccessOrder order = AccessOrder::stream;
  bool prefer_overlap = false;
};

/// The arguments of a batched copy as the driver's call takes them: they stay the caller's memory. `attributes` are
/// CUmemcpyAttributes; entry i applies from descriptor attribute_firsts[i] on.
struct BatchArrays {
  const Address* destinations = nullptr;
  const Address* sources = nullptr;
  const std::size_t* bytes = nullptr;
  std::size_t count = 0;
  const void* attributes = nullptr;
  const std::size_t* attribute_firsts = nullptr;
  std::size_t attribute_count = 0;
};

struct DeviceInfo {
  std::string kind;   ///< "cpu" or "cuda"
  std::string title;  ///< the driver's name of the device
  std::string pci_bus_id;
  int compute_major = 0;
  int compute_minor = 0;
  int sm_count = 0;
  int shared_bytes = 0;     ///< maximum shared memory of a thread block, static and dynamic
  int numa_node = -1;       ///< host node nearest to the device, -1 if unknown
  bool integrated = false;  ///< its memory is the host's
};

struct Memory {
  Address address = 0;
  Address device_address = 0;  ///< the address for kernels; differs from `address` on some hosts
  double populate_s = 0;       ///< how long its pages took; those that the driver allocates are pinned in this time
  double register_s = 0;       ///< how long it then took to pin them
};

/// The shape of a launch; `shared_bytes` is the dynamic shared memory per block. From sm_90 on, each `cluster` blocks
/// in a row, of which `blocks` is a multiple, run side by side in one part of the GPU.
struct Grid {
  unsigned blocks = 1;
  unsigned threads = 1;
  unsigned shared_bytes = 0;
  unsigned cluster = 1;
};

struct FreeMemory {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
};

/// Entry points of a device. Failed calls throw DriverError. Copies and `delay` are asynchronous and in stream
/// order.
class Driver {
 public:
  Driver() = default;
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;
  virtual ~Driver() = default;

  [[nodiscard]] virtual const DeviceInfo& info() const = 0;
  [[nodiscard]] virtual BatchEntry batch_entry() const = 0;
  [[nodiscard]] virtual FreeMemory free_memory() const = 0;
  /// What was current in a thread before this device, and what graph captures of other threads allowed it to do.
  struct Previous {
    std::uintptr_t context = 0;
    int capture_mode = 0;
  };
  /// Makes the device current for the calling thread, and lets it allocate and ask although another one captures a
  /// graph, until leave(). Calls that create or fill something do both themselves; before submissions (copy,
  /// copy_batch, launch, record) the caller does it, outside the timed region.
  virtual Previous enter() const noexcept = 0;
  virtual void leave(Previous previous) const noexcept = 0;
  /// Makes the device current for the calling thread and leaves it so.
  virtual void bind_thread() const noexcept = 0;

  virtual Memory allocate(MemoryKind kind, std::size_t bytes) = 0;
  virtual void release(MemoryKind kind, const Memory& memory, std::size_t bytes) noexcept = 0;

  /// The region that holds an address.
  [[nodiscard]] virtual Region region_of(Address address) = 0;

  virtual Stream create_stream(Priority priority) = 0;
  virtual void destroy_stream(Stream stream) noexcept = 0;
  virtual void synchronize(Stream stream) = 0;
  /// Whether nothing is pending on the stream.
  [[nodiscard]] virtual bool idle(Stream stream) = 0;
  /// Whether a graph is being captured on the stream. Throws std::invalid_argument for a handle that is no stream, as
  /// far as this can be known.
  [[nodiscard]] virtual bool capturing(Stream stream) = 0;

  virtual Event create_event(EventKind kind) = 0;
  virtual void destroy_event(Event event) noexcept = 0;
  virtual void record(Event event, Stream stream) = 0;
  /// Makes later work on the stream wait for the event's last record.
  virtual void wait(Stream stream, Event event) = 0;
  /// Makes later work on the stream wait until a word of pinned memory, at a device address, is `least` or more.
  virtual void wait_for_word(Stream stream, Address word, std::uint32_t least) = 0;
  /// Whether everything before the event's record has completed.
  [[nodiscard]] virtual bool completed(Event event) = 0;
  [[nodiscard]] virtual double elapsed_us(Event start, Event end) = 0;

  virtual void copy(Address destination, Address source, std::size_t bytes, Direction direction, Stream stream) = 0;
  virtual void copy_batch(std::span<const Address> destinations, std::span<const Address> sources,
                          std::span<const std::size_t> bytes, BatchAttributes attributes, Direction direction,
                          Stream stream) {
    cuda::MemcpyAttributes attribute;
    attribute.src_access_order = static_cast<int>(attributes.order);
    attribute.flags = attributes.prefer_overlap ? cuda::kFlagPreferOverlapWithCompute : 0;
    const std::size_t first = 0;  // attrsIdxs has numAttrs entries, the first 0
    copy_arrays({destinations.data(), sources.data(), bytes.data(), bytes.size(), &attribute, &first, 1}, direction,
                stream);
  }
  virtual void copy_arrays(const BatchArrays& arrays, Direction direction, Stream stream) = 0;
  /// Pins pages that the caller mapped, until `unregister_pages`.
  virtual void register_pages(Address address, std::size_t bytes) = 0;
  virtual void unregister_pages(Address address) = 0;
  virtual void begin_capture(Stream stream) = 0;
  /// Ends the capture and returns its graph, ready to be launched until destroy_graph().
  virtual Graph end_capture_into_graph(Stream stream) = 0;
  virtual void launch_graph(Graph graph, Stream stream) = 0;
  virtual void destroy_graph(Graph graph) noexcept = 0;
  /// A plain copy outside of swaps (filling, comparing): faults do not apply to it.
  virtual void transfer(Address destination, Address source, std::size_t bytes, Direction direction, Stream stream) {
    copy(destination, source, bytes, direction, stream);
  }
  virtual void fill(Address device_memory, std::uint8_t value, std::size_t bytes, Stream stream) = 0;
  /// Writes stretches of device memory, which must not overlap, after the work on `stream`; returns when they are
  /// written.
  virtual void write_content(std::span<const Stretch> stretches, std::uint64_t seed, Stream stream) = 0;
  /// Compares stretches of device memory after the work on `stream`.
  virtual AuditCount audit_content(std::span<const Stretch> stretches, std::uint64_t seed, Stream stream) = 0;
  /// Loads the kernels of write_content and audit_content; the host device needs none.
  virtual void load_content_kernels(std::span<const std::byte> cubin) = 0;
  /// Keeps the stream busy for a bounded time.
  virtual void delay(std::uint64_t delay_ns, Stream stream) = 0;
  /// Loads the kernel of `delay`, compiled for this device; the host device needs none.
  virtual void load_delay_kernel(std::span<const std::byte> cubin) = 0;
  /// Loads kernel `name` of a module compiled for this device; it lives as long as the driver.
  virtual Kernel load_kernel(std::span<const std::byte> cubin, const char* name, std::size_t shared_bytes) = 0;
  virtual void launch(Kernel kernel, Grid grid, void** arguments, Stream stream) = 0;
};

/// Makes a device current for the calling thread, and at its end what was current before.
class CurrentDevice {
 public:
  explicit CurrentDevice(const Driver& driver) noexcept : driver_(driver), previous_(driver.enter()) {}
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice() { driver_.leave(previous_); }

 private:
  const Driver& driver_;
  Driver::Previous previous_;
};

}  // namespace kvbench
