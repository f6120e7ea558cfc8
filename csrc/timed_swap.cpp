#include "timed_swap.hpp"

#include <ctime>
#include <utility>

namespace kvbench {
namespace {

std::int64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

std::int64_t wall_ns() { return clock_ns(CLOCK_MONOTONIC); }
std::int64_t thread_cpu_ns() { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }
Stream own(Stream stream) {
  refuse_legacy_stream(stream);
  return stream;
}
double to_us(std::int64_t ns) { return static_cast<double>(ns) / 1e3; }

}  // namespace

TimedRegion::TimedRegion(std::shared_ptr<Driver> driver, Stream stream, std::uint64_t busy_delay_ns)
    : driver_(std::move(driver)), stream_(own(stream)), busy_delay_ns_(busy_delay_ns), start_(driver_->create_event()) {
  try {
    end_ = driver_->create_event();
  } catch (...) {
    driver_->destroy_event(start_);
    throw;
  }
}

TimedRegion::~TimedRegion() {
  driver_->destroy_event(start_);
  driver_->destroy_event(end_);
}

Sample TimedRegion::open(StreamState state) {
  driver_->synchronize(stream_);
  Sample sample;
  if (state == StreamState::busy) {
    driver_->delay(busy_delay_ns_, stream_);
    driver_->record(start_, stream_);
    sample.pending_before = !driver_->completed(start_);
    return sample;
  }
  driver_->record(start_, stream_);
  // A start event that is still pending makes the stream busy: wait until it has retired.
  while (!driver_->completed(start_)) {
  }
  return sample;
}

Sample TimedRegion::measure(const std::function<void()>& prepare, const std::function<void()>& submit,
                            StreamState state) {
  const std::int64_t prepare_start_ns = wall_ns();
  prepare();
  const std::int64_t prepared_ns = wall_ns();
  Sample sample = open(state);
  const std::int64_t opened_ns = wall_ns();
  const std::int64_t cpu_start_ns = thread_cpu_ns();
  const std::int64_t start_ns = wall_ns();
  submit();
  const std::int64_t returned_ns = wall_ns();
  const std::int64_t cpu_end_ns = thread_cpu_ns();
  driver_->record(end_, stream_);
  sample.pending_after = !driver_->completed(start_);
  while (!driver_->completed(end_)) {
  }
  const std::int64_t completed_ns = wall_ns();
  sample.prepare_us = to_us(prepared_ns - prepare_start_ns);
  sample.submit_us = to_us(returned_ns - start_ns);
  sample.wall_us = to_us(completed_ns - start_ns);
  sample.cpu_us = to_us(cpu_end_ns - cpu_start_ns);
  sample.gap_us = state == StreamState::idle ? to_us(start_ns - opened_ns) : 0;
  sample.gpu_us = driver_->elapsed_us(start_, end_);
  return sample;
}

Sample TimedRegion::measure(Swap& swap, StreamState state) {
  Sample sample = measure([&] { swap.prepare(); }, [&] { swap.submit(stream_); }, state);
  sample.coalesce_us = swap.coalesce_us();
  return sample;
}

}  // namespace kvbench
