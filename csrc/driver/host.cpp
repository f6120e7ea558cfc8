#include "driver/host.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace kvbench {
namespace {

/// The fault of one copy, decided when it is submitted.
struct CopyFault {
  double delay_us = 0;
  bool corrupt = false;
  bool stray = false;
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

/// A host device that does one thing wrong.
class FaultyDevice final : public HostDriver {
 public:
  using HostDriver::HostDriver;

  void arm(Fault fault) override {
    *hang_is_over_ = true;
    hang_is_over_ = std::make_shared<std::atomic<bool>>(false);
    fault_ = fault;
    calls_ = 0;
    descriptors_ = 0;
    waits_ = 0;
  }

  void wait(Stream stream, Event event) override {
    if (strikes(FaultKind::closed_gate, waits_++)) hang(stream);
    HostDevice::wait(stream, event);
  }

  void copy(Address destination, Address source, std::size_t bytes, Direction, Stream stream) override {
    begin_call("copy", stream);
    const CopyFault fault = begin_descriptor("copy", 0, destination, source, bytes);
    at(stream)->submit([=, this] {
      move(destination, source, bytes);
      spoil(destination, bytes, fault);
    });
    if (applies(FaultKind::synchronous, bytes)) synchronize(stream);
  }

  void copy_arrays(const BatchArrays& arrays, Direction direction, Stream stream) override {
    begin_call("copy_batch", stream);
    check_batch(stream);
    const auto* attributes = static_cast<const cuda::MemcpyAttributes*>(arrays.attributes);
    const auto order = static_cast<AccessOrder>(attributes->src_access_order);
    std::vector<CopyFault> faults(arrays.count);
    for (std::size_t i = 0; i < arrays.count; ++i) {
      faults[i] = begin_descriptor("copy_batch", i, arrays.destinations[i], arrays.sources[i], arrays.bytes[i]);
    }
    const auto run = [this, faults = std::move(faults)](const Lists& lists) {
      for (std::size_t i = 0; i < faults.size(); ++i) {
        move(lists.to[i], lists.from[i], lists.bytes[i]);
        spoil(lists.to[i], lists.bytes[i], faults[i]);
      }
    };
    if (copies_inline(arrays, direction) && idle(stream)) return run(Lists(arrays));
    if (order == AccessOrder::any && applies(FaultKind::late_source, arrays.count)) {
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
    HostDevice::register_pages(address, bytes);
  }

 private:
  [[nodiscard]] bool strikes(FaultKind kind, std::uint64_t count) const {
    return fault_.kind == kind && fault_.at == count;
  }

  [[nodiscard]] bool applies(FaultKind kind, std::size_t number) const {
    return fault_.kind == kind && number >= fault_.at;
  }

  void hang(Stream stream) {
    at(stream)->submit([hung = at(stream), is_over = hang_is_over_] { hung->hang(*is_over); });
  }

  void begin_call(const char* call, Stream stream) {
    const std::uint64_t count = calls_++;
    if (strikes(FaultKind::error_at_call, count)) throw DriverError(call, "INJECTED_ERROR");
    if (strikes(FaultKind::crash, count)) std::raise(SIGSEGV);
    if (strikes(FaultKind::hang, count)) hang(stream);
  }

  CopyFault begin_descriptor(const char* call, std::size_t index, Address to, Address from, std::size_t bytes) {
    const std::uint64_t count = descriptors_++;
    if (strikes(FaultKind::error_at_descriptor, count)) throw DriverError(call, "INJECTED_ERROR", index);
    if (applies(FaultKind::split, bytes) && (leaves_its_region(to, bytes) || leaves_its_region(from, bytes))) {
      throw DriverError(call, "INVALID_VALUE", index);
    }
    return {.delay_us = fault_.kind == FaultKind::slow ? fault_.delay_us : 0.0,
            .corrupt = strikes(FaultKind::corrupt, count),
            .stray = strikes(FaultKind::stray, count)};
  }

  void spoil(Address destination, std::size_t bytes, CopyFault fault) {
    if (fault.corrupt || fault.stray) {
      const std::lock_guard lock(engine_);
      auto* to = reinterpret_cast<unsigned char*>(destination);
      if (fault.corrupt && bytes > 0) to[bytes - 1] ^= 0xFF;
      if (fault.stray) to[bytes] ^= 0xFF;
    }
    if (fault.delay_us > 0) {
      wait_until(Clock::now() + std::chrono::duration_cast<Clock::duration>(Microseconds(fault.delay_us)));
    }
  }

  [[nodiscard]] bool copies_inline(const BatchArrays& arrays, Direction direction) const {
    return fault_.kind == FaultKind::inline_copies && direction == Direction::h2d &&
           std::all_of(arrays.bytes, arrays.bytes + arrays.count,
                       [this](std::size_t size) { return size <= fault_.at; });
  }

  bool leaves_its_region(Address address, std::size_t bytes) {
    const Region region = region_of(address);
    return region.holds(address) && !region.holds(address, bytes);
  }

  Fault fault_;
  std::shared_ptr<std::atomic<bool>> hang_is_over_ = std::make_shared<std::atomic<bool>>(false);
  std::uint64_t calls_ = 0;
  std::uint64_t descriptors_ = 0;
  std::uint64_t waits_ = 0;
};

}  // namespace

std::shared_ptr<HostDriver> open_host(bool with_batch) {
  return std::make_shared<FaultyDevice>(cpu_title(), with_batch);
}

}  // namespace kvbench
