#include "timing/swap_loop.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <utility>

namespace kvbench {

HostGate::HostGate(std::shared_ptr<Driver> driver)
    : driver_(std::move(driver)), word_(driver_, MemoryKind::allocated, sizeof(std::uint32_t)) {
  std::ranges::fill(word_.host(sizeof(std::uint32_t)), static_cast<unsigned char>(0));
}

void HostGate::close(Stream stream) { driver_->wait_for_word(stream, word_.device_address(), ++closed_); }

void HostGate::open() {
  const std::atomic_ref word(*reinterpret_cast<std::uint32_t*>(word_.host(sizeof(std::uint32_t)).data()));
  word.store(closed_, std::memory_order_release);
}

SwapLoop::SwapLoop(std::shared_ptr<Driver> driver, Stream stream, std::function<void(Stream)> submit,
                   std::vector<ListColumn> columns, bool gated)
    : driver_(std::move(driver)),
      stream_(stream),
      submit_(std::move(submit)),
      columns_(std::move(columns)),
      done_(driver_, EventKind::mark) {
  for (const auto& [array, sets] : columns_) {
    if (array.empty() || sets.empty() || sets.size() % array.size() != 0) {
      throw std::invalid_argument("a column must hold whole sets of its array");
    }
  }
  if (gated) gate_.emplace(driver_);
  write_next();
}

LoopTimes SwapLoop::run(std::chrono::nanoseconds time) {
  driver_->bind_thread();
  LoopTimes times;
  const Clock::time_point until = Clock::now() + time;
  const std::int64_t cpu_start_ns = thread_cpu_ns();
  while (swap(times) < until) continue;
  times.cpu_us = to_us(thread_cpu_ns() - cpu_start_ns);
  return times;
}

void SwapLoop::finish() {
  driver_->bind_thread();
  submit_(stream_);
  driver_->synchronize(stream_);
}

Clock::time_point SwapLoop::swap(LoopTimes& times) {
  if (gate_) gate_->close(stream_);
  const Clock::time_point start = Clock::now();
  try {
    submit_(stream_);
  } catch (...) {
    if (gate_) gate_->open();
    throw;
  }
  const Clock::time_point returned = Clock::now();
  if (gate_) gate_->open();
  done_.record(stream_);
  write_next();
  done_.wait();
  const Clock::time_point ended = Clock::now();
  times.wall_us.push_back(to_us(ended - start));
  times.caller_us.push_back(to_us(returned - start));
  driver_->bind_thread();  // a submission from Python can have made another device current
  return ended;
}

void SwapLoop::write_next() {
  for (const auto& [array, sets] : columns_) {
    const std::size_t set = written_ % (sets.size() / array.size());
    std::ranges::copy(sets.subspan(set * array.size(), array.size()), array.begin());
  }
  ++written_;
}

}  // namespace kvbench
