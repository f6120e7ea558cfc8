#include "timing/swap_loop.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace kvbench {

SwapLoop::SwapLoop(std::shared_ptr<Driver> driver, Stream stream, std::vector<Launch> launches,
                   std::vector<ListColumn> columns, Bursts bursts)
    : driver_(std::move(driver)),
      stream_(stream),
      launches_(std::move(launches)),
      columns_(std::move(columns)),
      bursts_(bursts),
      done_(driver_, EventKind::mark) {
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
  const Clock::time_point began = Clock::now();
  const Clock::time_point until = began + time;
  Clock::time_point burst = began;
  Clock::time_point ended = began;  // of the last swap or pause
  std::size_t in_burst = 0;
  const std::int64_t cpu_start_ns = thread_cpu_ns();
  std::int64_t cpu_waited_ns = 0;
  while (times.wall_us.empty() || ended < until) {
    if (bursts_.swaps > 0 && in_burst == bursts_.swaps) {
      burst = std::max(burst + bursts_.period, Clock::now());
      in_burst = 0;
      const std::int64_t cpu_ns = thread_cpu_ns();
      wait_until(std::min(burst, until));
      cpu_waited_ns += thread_cpu_ns() - cpu_ns;
      ended = Clock::now();
      continue;
    }
    ended = swap(times);
    ++in_burst;
  }
  times.cpu_us = to_us(thread_cpu_ns() - cpu_start_ns - cpu_waited_ns);
  // without a period, what this loop does between two swaps is not theirs
  times.total_us = bursts_.swaps > 0 ? to_us(ended - began) : std::reduce(times.wall_us.begin(), times.wall_us.end());
  return times;
}

void SwapLoop::finish() {
  driver_->bind_thread();
  submit(Clock::now());
  driver_->synchronize(stream_);
}

Clock::time_point SwapLoop::swap(LoopTimes& times) {
  const Clock::time_point start = Clock::now();
  submit(start);
  const Clock::time_point returned = Clock::now();
  done_.record(stream_);
  write_next();
  done_.wait();
  const Clock::time_point ended = Clock::now();
  times.wall_us.push_back(to_us(ended - start));
  times.caller_us.push_back(to_us(returned - start));
  driver_->bind_thread();  // a submission from Python can have made another device current
  return ended;
}

void SwapLoop::submit(Clock::time_point due) {
  for (const auto& [submit_part, least] : launches_) {
    submit_part(stream_);
    if (least.count() > 0) wait_until(due += least);
  }
}

void SwapLoop::write_next() {
  for (const auto& [array, sets] : columns_) {
    const std::size_t set = written_ % (sets.size() / array.size());
    std::ranges::copy(sets.subspan(set * array.size(), array.size()), array.begin());
  }
  ++written_;
}

}  // namespace kvbench
