#pragma once

#include <atomic>
#include <ctime>
#include <map>
#include <memory>
#include <vector>

#include "driver/host_device.hpp"
#include "forwarding_driver.hpp"
#include "timing/clock.hpp"

namespace kvbench {

/// Holds streams of the host device until it is opened, however long that takes.
class Gate {
 public:
  Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() { open(); }

  void hold(Stream stream) {
    reinterpret_cast<HostStream*>(stream)->submit([is_open = is_open_] { is_open->wait(false); });
  }
  void open() {
    *is_open_ = true;
    is_open_->notify_all();
  }

 private:
  std::shared_ptr<std::atomic<bool>> is_open_ = std::make_shared<std::atomic<bool>>(false);
};

/// Keeps the thread at work for this much CPU time, however long other work on the machine holds it up.
inline void work_for(std::int64_t cpu_ns) {
  const std::int64_t end_ns = thread_cpu_ns() + cpu_ns;
  while (thread_cpu_ns() < end_ns) {
  }
}

/// The host device without clocks: a delay lasts until the host waits for a stream, or queries one event again, and
/// 100 us are between two events for each delay or submission (`works`, which tests count) that came between.
class GatedDriver : public ForwardingDriver {
 public:
  void delay(std::uint64_t delay_ns, Stream stream) override {
    delays_ns.push_back(delay_ns);
    was_idle.push_back(idle(stream));
    ++works;
    gate_->hold(stream);
  }
  void synchronize(Stream stream) override {
    open();
    ForwardingDriver::synchronize(stream);
  }
  void record(Event event, Stream stream) override {
    works_at_[event] = works;
    last_asked_ = 0;
    ForwardingDriver::record(event, stream);
  }
  bool completed(Event event) override {
    const bool done = ForwardingDriver::completed(event);
    if (event == last_asked_) open();
    last_asked_ = event;
    return done;
  }
  double elapsed_us(Event start, Event end) override { return 100.0 * (works_at_[end] - works_at_[start]); }

  int works = 0;
  std::vector<std::uint64_t> delays_ns;
  std::vector<bool> was_idle;  ///< whether nothing was pending on the stream of each delay

 private:
  void open() {
    gate_->open();
    gate_ = std::make_unique<Gate>();
  }

  std::map<Event, int> works_at_;
  Event last_asked_ = 0;
  std::unique_ptr<Gate> gate_ = std::make_unique<Gate>();
};

}  // namespace kvbench
