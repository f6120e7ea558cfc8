#include "driver/host.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "memory/content.hpp"

namespace kvbench {
namespace {

using Clock = std::chrono::steady_clock;
using Microseconds = std::chrono::duration<double, std::micro>;

struct HostEvent {
  std::atomic<bool> completed{true};
  std::atomic<Clock::rep> at{0};
};

/// The fault of one copy, decided when it is submitted.
struct CopyFault {
  double delay_us = 0;
  bool corrupt = false;
  bool stray = false;
};

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

  /// Called by a task: stops the stream until it is destroyed.
  void hang() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, thread_.get_stop_token(), [] { return false; });
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

void wait_until(Clock::time_point end) {
  // Sleeping is coarse: the last part spins, so that short delays are accurate.
  constexpr auto kCoarse = std::chrono::microseconds(200);
  if (const auto now = Clock::now(); end - now > kCoarse) std::this_thread::sleep_until(end - kCoarse);
  while (Clock::now() < end) std::this_thread::yield();
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

  void bind_thread() override {}

  Memory allocate(MemoryKind, std::size_t bytes) override {
    void* pointer = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (pointer == MAP_FAILED) throw DriverError("mmap", "ENOMEM");
    return {reinterpret_cast<Address>(pointer), reinterpret_cast<Address>(pointer)};
  }
  void release(MemoryKind, const Memory& memory, std::size_t bytes) noexcept override {
    munmap(reinterpret_cast<void*>(memory.address), bytes);
  }

  Stream create_stream(Priority) override { return reinterpret_cast<Stream>(new HostStream); }
  void destroy_stream(Stream stream) noexcept override { delete at(stream); }
  void synchronize(Stream stream) override { at(stream)->synchronize(); }
  bool idle(Stream stream) override { return at(stream)->idle(); }

  Event create_event(EventKind) override { return reinterpret_cast<Event>(new HostEvent); }
  void destroy_event(Event event) noexcept override { delete reinterpret_cast<HostEvent*>(event); }
  void record(Event event, Stream stream) override {
    auto* recorded = reinterpret_cast<HostEvent*>(event);
    recorded->completed = false;
    at(stream)->submit([recorded] {
      recorded->at = Clock::now().time_since_epoch().count();
      recorded->completed = true;
    });
  }
  bool completed(Event event) override {
    if (reinterpret_cast<const HostEvent*>(event)->completed) return true;
    std::this_thread::yield();  // lets the stream's thread run on this core
    return false;
  }
  double elapsed_us(Event start, Event end) override {
    const Clock::duration elapsed(reinterpret_cast<const HostEvent*>(end)->at -
                                  reinterpret_cast<const HostEvent*>(start)->at);
    return Microseconds(elapsed).count();
  }

  void copy(Address destination, Address source, std::size_t bytes, Direction, Stream stream) override {
    begin_call("copy", stream);
    const CopyFault fault = begin_descriptor("copy", 0);
    at(stream)->submit([=, this] { run_copy(engine_, destination, source, bytes, fault); });
  }

  void copy_batch(std::span<const Address> destinations, std::span<const Address> sources,
                  std::span<const std::size_t> bytes, BatchAttributes, Direction, Stream stream) override {
    if (!with_batch_) throw DriverError("copy_batch", "not found on this device");
    begin_call("copy_batch", stream);
    std::vector<CopyFault> faults(bytes.size());
    for (std::size_t i = 0; i < bytes.size(); ++i) faults[i] = begin_descriptor("copy_batch", i);
    at(stream)->submit([this, to = std::vector(destinations.begin(), destinations.end()),
                        from = std::vector(sources.begin(), sources.end()),
                        sizes = std::vector(bytes.begin(), bytes.end()), faults = std::move(faults)] {
      for (std::size_t i = 0; i < sizes.size(); ++i) run_copy(engine_, to[i], from[i], sizes[i], faults[i]);
    });
  }

  void transfer(Address destination, Address source, std::size_t bytes, Direction, Stream stream) override {
    at(stream)->submit([=, this] { run_copy(engine_, destination, source, bytes, {}); });
  }

  void fill(Address device_memory, std::uint8_t value, std::size_t bytes, Stream stream) override {
    at(stream)->submit([=] { std::memset(reinterpret_cast<void*>(device_memory), value, bytes); });
  }

  void write_content(std::span<const Stretch> stretches, const Content& content, Stream stream) override {
    synchronize(stream);
    write_stretches(stretches, content);
  }
  AuditCount audit_content(std::span<const Stretch> stretches, const Content& content, Stream stream) override {
    synchronize(stream);
    return audit_stretches(stretches, content);
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
  }

 private:
  static HostStream* at(Stream stream) { return reinterpret_cast<HostStream*>(stream); }

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

  CopyFault begin_descriptor(const char* call, std::size_t index) {
    const std::uint64_t count = descriptors_++;
    if (strikes(FaultKind::error_at_descriptor, count)) throw DriverError(call, "INJECTED_ERROR", index);
    return {.delay_us = fault_.kind == FaultKind::slow ? fault_.delay_us : 0.0,
            .corrupt = strikes(FaultKind::corrupt, count),
            .stray = strikes(FaultKind::stray, count)};
  }

  bool with_batch_;
  DeviceInfo info_;
  std::mutex engine_;
  Fault fault_;
  std::uint64_t calls_ = 0;
  std::uint64_t descriptors_ = 0;
};

}  // namespace

std::shared_ptr<HostDriver> open_host(bool with_batch) { return std::make_shared<PlainHostDriver>(with_batch); }

}  // namespace kvbench
