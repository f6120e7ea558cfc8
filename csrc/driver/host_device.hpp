#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "driver/api.hpp"
#include "driver/driver.hpp"
#include "driver/pages.hpp"
#include "memory/content.hpp"
#include "timing/clock.hpp"

namespace kvbench {

using Microseconds = std::chrono::duration<double, std::micro>;

/// An in-order queue of tasks and the thread that runs them.
class HostStream {
 public:
  HostStream() : thread_([this](const std::stop_token& stop) { run(stop); }) {}

  void submit(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_all();
  }

  void synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return tasks_.empty() && !running_; });
  }

  bool idle() {
    const std::lock_guard lock(mutex_);
    return tasks_.empty() && !running_;
  }

  /// Called by a task: stops the stream until `is_over`, or until it is destroyed.
  void hang(const std::atomic<bool>& is_over) {
    std::unique_lock lock(mutex_);
    const std::stop_token stop = thread_.get_stop_token();
    while (!is_over && !stop.stop_requested()) {
      changed_.wait_for(lock, stop, std::chrono::milliseconds(1), [] { return false; });
    }
  }

 private:
  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    // A destroyed stream runs nothing more: the memory of queued copies can be gone.
    while (changed_.wait(lock, stop, [this] { return !tasks_.empty(); }) && !stop.stop_requested()) {
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      running_ = true;
      lock.unlock();
      task();
      lock.lock();
      running_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::function<void()>> tasks_;
  bool running_ = false;
  std::jthread thread_;  // last member: it uses the members above
};

/// One record of an event; streams that wait for it do so whatever is recorded afterwards, on any stream.
struct HostRecord {
  /// Whether its stream has come here. If not, lets the thread of that stream run; who waits for one that hangs sleeps.
  bool look() {
    if (reached) return true;
    ++looks < 250'000 ? std::this_thread::yield() : std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return false;
  }

  std::atomic<bool> reached{false};
  std::atomic<int> looks{0};
  std::atomic<Clock::rep> at{0};
};

struct HostEvent {
  HostEvent() { last->reached = true; }
  std::shared_ptr<HostRecord> last = std::make_shared<HostRecord>();
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

/// A device of plain memory: in-order asynchronous streams, one thread each. Copies are real. The streams copy one at a
/// time, like one copy engine: swaps queued on several streams write the same destination.
class HostDevice : public Driver {
 public:
  HostDevice(std::string title, bool with_batch) : with_batch_(with_batch) {
    info_.kind = "cpu";
    info_.title = std::move(title);
  }

  const DeviceInfo& info() const override { return info_; }
  BatchEntry batch_entry() const override { return with_batch_ ? BatchEntry::host : BatchEntry::none; }

  FreeMemory free_memory() const override {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return {static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)) * page,
            static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * page};
  }

  Previous enter() const noexcept override { return {}; }
  void leave(Previous) const noexcept override {}
  void bind_thread() const noexcept override {}

  Memory allocate(MemoryKind kind, std::size_t bytes) override {
    const auto begin = Clock::now();
    void* pointer = map_pages(kind, bytes);
    const double populate_s = to_us(Clock::now() - begin) / 1e6;
    const auto address = reinterpret_cast<Address>(pointer);
    const std::lock_guard lock(known_);
    if (kind == MemoryKind::mapped) return {address, address};
    allocated_[address] = {kind == MemoryKind::device ? Place::device : Place::pinned, address, bytes};
    return {address, address, populate_s};
  }
  void release(MemoryKind kind, const Memory& memory, std::size_t bytes) noexcept override {
    {
      const std::lock_guard lock(known_);
      allocated_.erase(memory.address);
    }
    unmap_pages(kind, reinterpret_cast<void*>(memory.address), bytes);
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
    return false;
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
    at(stream)->submit([awaited = reinterpret_cast<const HostEvent*>(event)->last] {
      while (!awaited->look()) continue;
    });
  }
  void wait_for_word(Stream stream, Address word, std::uint32_t least) override {
    at(stream)->submit([word, least] {
      const std::atomic_ref value(*reinterpret_cast<std::uint32_t*>(word));
      while (value.load(std::memory_order_acquire) < least) std::this_thread::yield();
    });
  }
  bool completed(Event event) override { return reinterpret_cast<const HostEvent*>(event)->last->look(); }
  double elapsed_us(Event start, Event end) override {
    const auto at = [](Event event) { return reinterpret_cast<const HostEvent*>(event)->last->at.load(); };
    return to_us(Clock::duration(at(end) - at(start)));
  }

  void copy(Address destination, Address source, std::size_t bytes, Direction, Stream stream) override {
    at(stream)->submit([=, this] { move(destination, source, bytes); });
  }

  void copy_arrays(const BatchArrays& arrays, Direction, Stream stream) override {
    check_batch(stream);
    at(stream)->submit([this, lists = Lists(arrays)] {
      for (std::size_t i = 0; i < lists.bytes.size(); ++i) move(lists.to[i], lists.from[i], lists.bytes[i]);
    });
  }

  void register_pages(Address address, std::size_t bytes) override {
    if (madvise(reinterpret_cast<void*>(address), bytes, MADV_POPULATE_WRITE) != 0) {
      throw DriverError("madvise", "ENOMEM");
    }
    const std::lock_guard lock(known_);
    registered_[address] = {Place::pinned, address, bytes};
  }
  void unregister_pages(Address address) override {
    const std::lock_guard lock(known_);
    if (registered_.erase(address) == 0) throw DriverError("unregister_pages", "HOST_MEMORY_NOT_REGISTERED");
  }

  void begin_capture(Stream) override { throw DriverError("begin_capture", "the cpu device has no graphs"); }
  Graph end_capture_into_graph(Stream) override { throw DriverError("end_capture", "the cpu device has no graphs"); }
  void launch_graph(Graph, Stream) override { throw DriverError("launch_graph", "the cpu device has no graphs"); }
  void destroy_graph(Graph) noexcept override {}

  void transfer(Address destination, Address source, std::size_t bytes, Direction direction, Stream stream) override {
    HostDevice::copy(destination, source, bytes, direction, stream);
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

 protected:
  /// The default streams, legacy and per thread, are one stream here, which starts when it is first used.
  HostStream* at(Stream stream) {
    if (stream > cuda::kStreamPerThread) return reinterpret_cast<HostStream*>(stream);
    if (!default_stream_) default_stream_.emplace();
    return &*default_stream_;
  }

  /// Refuses a batch as a driver does.
  void check_batch(Stream stream) const {
    if (!with_batch_) throw DriverError("copy_batch", "not found on this device");
    if (stream <= cuda::kStreamLegacy) throw DriverError("copy_batch", "INVALID_VALUE");
  }

  void move(Address destination, Address source, std::size_t bytes) {
    const std::lock_guard lock(engine_);
    std::memcpy(reinterpret_cast<void*>(destination), reinterpret_cast<const void*>(source), bytes);
  }

  std::mutex engine_;

 private:
  bool with_batch_;
  DeviceInfo info_;
  std::mutex known_;
  std::map<Address, Region> allocated_;
  std::map<Address, Region> registered_;
  std::set<Stream> streams_;
  std::optional<HostStream> default_stream_;
};

}  // namespace kvbench
