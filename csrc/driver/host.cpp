#include "driver/host.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "driver/api.hpp"
#include "driver/host_stream.hpp"
#include "memory/content.hpp"
#include "timing/clock.hpp"

namespace kvbench {
namespace {

using Microseconds = std::chrono::duration<double, std::micro>;

/// One record of an event; streams that wait for it do so whatever is recorded afterwards, on any stream.
struct HostRecord {
  std::atomic<bool> reached{false};
  std::atomic<Clock::rep> at{0};
};

struct HostEvent {
  HostEvent() { last->reached = true; }

  std::shared_ptr<HostRecord> last = std::make_shared<HostRecord>();
};

/// The fault of one copy, decided when it is submitted.
struct CopyFault {
  double delay_us = 0;
  bool corrupt = false;
  bool stray = false;
};

/// The arrays of a batch, copied.
struct Lists {
  explicit Lists(const BatchArrays& arrays)
      : to(arrays.destinations, arrays.destinations + arrays.count),
        from(arrays.sources, arrays.sources + arrays.count),
        bytes(arrays.bytes, arrays.bytes + arrays.count) {}
  std::vector<Address> to;
  std::vector<Address> from;
  std::vector<std::size_t> bytes;
};

std::string cpu_title() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.starts_with("model name")) {
      const auto start = line.find_first_not_of(" \t", line.find(':') + 1);
      if (start != std::string::npos) return line.substr(start);
    }
  }
  return "CPU";
}

/// The streams copy one at a time, like one copy engine: swaps queued on several streams write the same destination.
void run_copy(std::mutex& engine, Address destination, Address source, std::size_t bytes, CopyFault fault) {
  {
    const std::lock_guard lock(engine);
    auto* to = reinterpret_cast<unsigned char*>(destination);
    std::memcpy(to, reinterpret_cast<const void*>(source), bytes);
    if (fault.corrupt && bytes > 0) to[bytes - 1] ^= 0xFF;
    if (fault.stray) to[bytes] ^= 0xFF;
  }
  if (fault.delay_us > 0) {
    wait_until(Clock::now() + std::chrono::duration_cast<Clock::duration>(Microseconds(fault.delay_us)));
  }
}

class PlainHostDriver final : public HostDriver {
 public:
  explicit PlainHostDriver(bool with_batch) : with_batch_(with_batch) {
    info_.kind = "cpu";
    info_.title = cpu_title();
  }

  const DeviceInfo& info() const override { return info_; }
  BatchEntry batch_entry() const override { return with_batch_ ? BatchEntry::host : BatchEntry::none; }

  FreeMemory free_memory() const override {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return {static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)) * page,
            static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * page};
  }

  Previous enter() const override { return 0; }
  void leave(Previous) const noexcept override {}

  Memory allocate(MemoryKind kind, std::size_t bytes) override {
    void* pointer = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (pointer == MAP_FAILED) throw DriverError("mmap", "ENOMEM");
    const auto address = reinterpret_cast<Address>(pointer);
    const std::lock_guard lock(known_);
    allocated_[address] = {kind == MemoryKind::device ? Place::device : Place::pinned, address, bytes};
    return {address, address};
  }
  void release(MemoryKind, const Memory& memory, std::size_t bytes) noexcept override {
    {
      const std::lock_guard lock(known_);
      allocated_.erase(memory.address);
    }
    munmap(reinterpret_cast<void*>(memory.address), bytes);
  }

  Region region_of(Address address) override {
    const std::lock_guard lock(known_);
    const auto holding = [&](const auto& regions) {
      const auto after = regions.upper_bound(address);
      return after == regions.begin() ? Region{} : std::prev(after)->second;
    };
    const Region registered = holding(registered_);
    return registered.holds(address) ? registered : holding(allocated_).holds(address) ? holding(allocated_) : Region{};
  }

  Stream create_stream(Priority) override {
    const auto stream = reinterpret_cast<Stream>(new HostStream);
    const std::lock_guard lock(known_);
    streams_.insert(stream);
    return stream;
  }
  void destroy_stream(Stream stream) noexcept override {
    {
      const std::lock_guard lock(known_);
      streams_.erase(stream);
    }
    delete reinterpret_cast<HostStream*>(stream);
  }
  void synchronize(Stream stream) override { at(stream)->synchronize(); }
  bool idle(Stream stream) override { return at(stream)->idle(); }
  bool capturing(Stream stream) override {
    const std::lock_guard lock(known_);
    if (stream > cuda::kStreamPerThread && !streams_.contains(stream)) {
      throw std::invalid_argument("stream " + std::to_string(stream) + " is not the handle of a stream");
    }
    return capturing_ == stream;
  }

  Event create_event(EventKind) override { return reinterpret_cast<Event>(new HostEvent); }
  void destroy_event(Event event) noexcept override { delete reinterpret_cast<HostEvent*>(event); }
  void record(Event event, Stream stream) override {
    auto& last = reinterpret_cast<HostEvent*>(event)->last;
    last = std::make_shared<HostRecord>();
    at(stream)->submit([record = last] {
      record->at = Clock::now().time_since_epoch().count();
      record->reached = true;
    });
  }
  void wait(Stream stream, Event event) override {
    HostStream* waiting = at(stream);
    if (strikes(FaultKind::closed_gate, waits_++)) waiting->submit([waiting] { waiting->hang(); });
    waiting->submit([awaited = reinterpret_cast<const HostEvent*>(event)->last] {
      while (!awaited->reached) std::this_thread::yield();
    });
  }
  bool completed(Event event) override {
    if (reinterpret_cast<const HostEvent*>(event)->last->reached) return true;
    std::this_thread::yield();  // lets the stream's thread run on this core
    return false;
  }
  double elapsed_us(Event start, Event end) override {
    const Clock::duration elapsed(reinterpret_cast<const HostEvent*>(end)->last->at -
                                  reinterpret_cast<const HostEvent*>(start)->last->at);
    return Microseconds(elapsed).count();
  }

  void copy(Address destination, Address source, std::size_t bytes, Direction, Stream stream) override {
    begin_call("copy", stream);
    const CopyFault fault = begin_descriptor("copy", 0, destination, source, bytes);
    at(stream)->submit([=, this] { run_copy(engine_, destination, source, bytes, fault); });
    if (applies(FaultKind::synchronous, bytes)) synchronize(stream);
  }

  void copy_batch(std::span<const Address> destinations, std::span<const Address> sources,
                  std::span<const std::size_t> bytes, BatchAttributes attributes, Direction direction,
                  Stream stream) override {
    cuda::MemcpyAttributes attribute;
    attribute.src_access_order = static_cast<int>(attributes.order);
    const std::size_t first = 0;
    copy_arrays({destinations.data(), sources.data(), bytes.data(), bytes.size(), &attribute, &first, 1}, direction,
                stream);
  }

  void copy_arrays(const BatchArrays& arrays, Direction direction, Stream stream) override {
    if (!with_batch_) throw DriverError("copy_batch", "not found on this device");
    begin_call("copy_batch", stream);
    if (stream <= cuda::kStreamLegacy && !(fault_.kind == FaultKind::legacy_stream && arrays.count <= fault_.at)) {
      throw DriverError("copy_batch", "INVALID_VALUE");
    }
    if (capturing_ == stream) throw DriverError("copy_batch", "STREAM_CAPTURE_UNSUPPORTED");
    const AccessOrder order = order_of(arrays);
    std::vector<CopyFault> faults(arrays.count);
    for (std::size_t i = 0; i < arrays.count; ++i) {
      faults[i] = begin_descriptor("copy_batch", i, arrays.destinations[i], arrays.sources[i], arrays.bytes[i]);
    }
    const auto run = [this, faults = std::move(faults)](const Lists& lists) {
      for (std::size_t i = 0; i < faults.size(); ++i)
        run_copy(engine_, lists.to[i], lists.from[i], lists.bytes[i], faults[i]);
    };
    if (copies_inline(arrays, direction) && idle(stream)) return run(Lists(arrays));
    if (applies(FaultKind::late_arrays, arrays.count)) {
      at(stream)->submit([run, arrays] { run(Lists(arrays)); });
    } else if (order == AccessOrder::any && applies(FaultKind::late_source, arrays.count)) {
      at(stream)->submit([=, queue = at(stream), lists = Lists(arrays)] { queue->submit([=] { run(lists); }); });
    } else {
      at(stream)->submit([run, lists = Lists(arrays)] { run(lists); });
    }
  }

  void register_pages(Address address, std::size_t bytes) override {
    std::unique_lock lock(engine_, std::defer_lock);
    if (fault_.kind == FaultKind::pinning) {
      lock.lock();
      std::this_thread::sleep_for(Microseconds(fault_.delay_us));
    }
    if (applies(FaultKind::pin_limit, bytes)) throw DriverError("register_pages", "OUT_OF_MEMORY");
    if (madvise(reinterpret_cast<void*>(address), bytes, MADV_POPULATE_WRITE) != 0)
      throw DriverError("madvise", "ENOMEM");
    const std::lock_guard known(known_);
    registered_[address] = {Place::pinned, address, bytes};
  }
  void unregister_pages(Address address) override {
    const std::lock_guard known(known_);
    if (registered_.erase(address) == 0) throw DriverError("unregister_pages", "HOST_MEMORY_NOT_REGISTERED");
  }

  void begin_capture(Stream stream) override {
    const std::lock_guard lock(known_);
    capturing_ = stream;
  }
  std::size_t end_capture(Stream) override {
    const std::lock_guard lock(known_);
    capturing_.reset();
    return 0;
  }

  void transfer(Address destination, Address source, std::size_t bytes, Direction, Stream stream) override {
    at(stream)->submit([=, this] { run_copy(engine_, destination, source, bytes, {}); });
  }

  void fill(Address device_memory, std::uint8_t value, std::size_t bytes, Stream stream) override {
    at(stream)->submit([=] { std::memset(reinterpret_cast<void*>(device_memory), value, bytes); });
  }

  void write_content(std::span<const Stretch> stretches, std::uint64_t seed, Stream stream) override {
    synchronize(stream);
    write_stretches(stretches, seed);
  }
  AuditCount audit_content(std::span<const Stretch> stretches, std::uint64_t seed, Stream stream) override {
    synchronize(stream);
    return audit_stretches(stretches, seed);
  }
  void load_content_kernels(std::span<const std::byte>) override {}

  void delay(std::uint64_t delay_ns, Stream stream) override {
    at(stream)->submit([=] { wait_until(Clock::now() + std::chrono::nanoseconds(delay_ns)); });
  }

  void load_delay_kernel(std::span<const std::byte>) override {}
  Kernel load_kernel(std::span<const std::byte>, const char*, std::size_t) override {
    throw DriverError("load_kernel", "the cpu device runs no kernels");
  }
  void launch(Kernel, Grid, void**, Stream) override { throw DriverError("launch", "the cpu device runs no kernels"); }

  void arm(Fault fault) override {
    fault_ = fault;
    calls_ = 0;
    descriptors_ = 0;
    waits_ = 0;
  }

 private:
  /// The default streams, legacy and per thread, are one stream here, which starts when it is first used.
  HostStream* at(Stream stream) {
    if (stream > cuda::kStreamPerThread) return reinterpret_cast<HostStream*>(stream);
    if (!default_stream_) default_stream_.emplace();
    return &*default_stream_;
  }

  [[nodiscard]] bool strikes(FaultKind kind, std::uint64_t count) const {
    return fault_.kind == kind && fault_.at == count;
  }

  void begin_call(const char* call, Stream stream) {
    const std::uint64_t count = calls_++;
    if (strikes(FaultKind::error_at_call, count)) throw DriverError(call, "INJECTED_ERROR");
    if (strikes(FaultKind::crash, count)) std::raise(SIGSEGV);
    if (strikes(FaultKind::hang, count)) {
      at(stream)->submit([hung = at(stream)] { hung->hang(); });
    }
  }

  CopyFault begin_descriptor(const char* call, std::size_t index, Address to, Address from, std::size_t bytes) {
    const std::uint64_t count = descriptors_++;
    if (strikes(FaultKind::error_at_descriptor, count)) throw DriverError(call, "INJECTED_ERROR", index);
    if (applies(FaultKind::split, bytes) && (leaves_registration(to, bytes) || leaves_registration(from, bytes))) {
      throw DriverError(call, "INVALID_VALUE", index);
    }
    const bool slow = fault_.kind == FaultKind::slow || (fault_.kind == FaultKind::unaligned && (to | from) % 16 != 0);
    return {.delay_us = slow ? fault_.delay_us : 0.0,
            .corrupt = strikes(FaultKind::corrupt, count),
            .stray = strikes(FaultKind::stray, count)};
  }

  [[nodiscard]] bool applies(FaultKind kind, std::size_t number) const {
    return fault_.kind == kind && number >= fault_.at;
  }

  [[nodiscard]] AccessOrder order_of(const BatchArrays& arrays) const {
    const auto* attributes = static_cast<const volatile cuda::MemcpyAttributes*>(arrays.attributes);
    const std::size_t last = applies(FaultKind::reads_beyond, arrays.count) ? arrays.attribute_count : 0;
    int order = 0;
    for (std::size_t i = last + 1; i-- > 0;) order = attributes[i].src_access_order;
    return static_cast<AccessOrder>(order);
  }

  [[nodiscard]] bool copies_inline(const BatchArrays& arrays, Direction direction) const {
    return fault_.kind == FaultKind::inline_copies && direction == Direction::h2d &&
           std::all_of(arrays.bytes, arrays.bytes + arrays.count,
                       [this](std::size_t size) { return size <= fault_.at; });
  }

  [[nodiscard]] bool leaves_registration(Address address, std::size_t bytes) const {
    const auto after = registered_.upper_bound(address);
    if (after == registered_.begin()) return false;
    const Region& region = std::prev(after)->second;
    return region.holds(address) && !region.holds(address, bytes);
  }

  bool with_batch_;
  DeviceInfo info_;
  std::mutex engine_;
  Fault fault_;
  std::uint64_t calls_ = 0;
  std::uint64_t descriptors_ = 0;
  std::uint64_t waits_ = 0;
  std::mutex known_;
  std::map<Address, Region> allocated_;
  std::map<Address, Region> registered_;
  std::set<Stream> streams_;
  std::optional<Stream> capturing_;
  std::optional<HostStream> default_stream_;
};

}  // namespace

std::shared_ptr<HostDriver> open_host(bool with_batch) { return std::make_shared<PlainHostDriver>(with_batch); }

}  // namespace kvbench
