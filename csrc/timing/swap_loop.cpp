#include "timing/swap_loop.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace kvbench {

SwapLoop::SwapLoop(std::shared_ptr<Driver> driver, Stream stream, std::function<void(Stream)> submit,
                   std::vector<ListColumn> columns)
    : driver_(std::move(driver)),
      stream_(stream),
      submit_(std::move(submit)),
      columns_(std::move(columns)),
      done_(std::make_unique<OwnedEvent>(driver_, EventKind::mark)),
      done_before_(std::make_unique<OwnedEvent>(driver_, EventKind::mark)) {
  for (const auto& [array, sets] : columns_) {
    if (array.empty() || sets.empty() || sets.size() % array.size() != 0) {
      throw std::invalid_argument("a column must hold whole sets of its array");
    }
  }
  write_next();
}

LoopTimes SwapLoop::run(std::chrono::nanoseconds time) {
  driver_->bind_thread();
  LoopTimes times;
  const Clock::time_point until = Clock::now() + time;
  const std::int64_t cpu_start_ns = thread_cpu_ns();
  do {
    submit_next(times);
  } while (times.wall_us.empty() || Clock::now() < until);
  times.cpu_us = to_us(thread_cpu_ns() - cpu_start_ns);
  return times;
}

LoopTimes SwapLoop::drain() {
  driver_->bind_thread();
  LoopTimes times;
  if (running_) wait_for(*running_, *done_, times);
  running_.reset();
  return times;
}

void SwapLoop::finish() {
  drain();
  submit_(stream_);
  driver_->synchronize(stream_);
}

void SwapLoop::submit_next(LoopTimes& times) {
  const Clock::time_point start = Clock::now();
  submit_(stream_);
  const Running submitted{.start = start, .caller_us = to_us(Clock::now() - start)};
  done_before_->record(stream_);
  std::swap(done_, done_before_);
  const std::optional<Running> before = std::exchange(running_, submitted);
  write_next();
  if (before) wait_for(*before, *done_before_, times);
  driver_->bind_thread();  // a submission from Python can have made another device current
}

void SwapLoop::wait_for(const Running& swap, const OwnedEvent& done, LoopTimes& times) {
  done.wait();
  const Clock::time_point now = Clock::now();
  times.wall_us.push_back(to_us(now - std::max(swap.start, ended_)));
  times.caller_us.push_back(swap.caller_us);
  ended_ = now;
}

void SwapLoop::write_next() {
  for (const auto& [array, sets] : columns_) {
    const std::size_t set = written_ % (sets.size() / array.size());
    std::ranges::copy(sets.subspan(set * array.size(), array.size()), array.begin());
  }
  ++written_;
}

}  // namespace kvbench
