#include "timing/timed_swap.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "timing/clock.hpp"

namespace kvbench {
namespace {

void check(StreamState state, const Queue& queue) {
  if (queue.streams == 0) throw std::invalid_argument("a queue needs at least one stream");
  if (state != StreamState::busy && (queue.depth > 0 || queue.streams > 1)) {
    throw std::invalid_argument("queued swaps require a busy stream");
  }
}

}  // namespace

TimedRegion::TimedRegion(std::shared_ptr<Driver> driver, Stream stream, std::uint64_t busy_delay_ns)
    : driver_(std::move(driver)),
      busy_delay_ns_(busy_delay_ns),
      lanes_{stream},
      gatekeeper_(driver_),
      gate_(driver_),
      start_(driver_),
      led_(driver_),
      end_(driver_) {
  refuse_legacy_stream(stream);
}

std::span<const Stream> TimedRegion::lanes(std::size_t count) {
  while (lanes_.size() < count) {
    pool_.push_back(std::make_unique<OwnedStream>(driver_));
    lanes_.push_back(pool_.back()->handle());
  }
  return std::span(lanes_).first(count);
}

void TimedRegion::open_idle(Stream measured) {
  start_.record(measured);
  start_.wait();
}

void TimedRegion::open_unwaited(StreamState state, Stream measured) {
  if (state == StreamState::unwaited_event) {
    gate_.record(gatekeeper_.handle());
    gate_.hold(measured);
  }
  start_.record(measured);
}

void TimedRegion::close_gate(std::uint64_t delay_ns, Stream measured) {
  driver_->delay(delay_ns, gatekeeper_.handle());
  gate_.record(gatekeeper_.handle());
  gate_.hold(measured);
}

Sample TimedRegion::open_busy(const Submit& submit, const Queue& queue, std::span<const Stream> lanes,
                              Stream measured) {
  const std::size_t marks = queue.depth > 0 ? lanes.size() : 0;
  while (released_.size() < marks) released_.push_back(std::make_unique<OwnedEvent>(driver_));
  const std::span delays_ended = std::span(released_).first(marks);
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    driver_->delay(busy_delay_ns_ + queue.delay_ns, lanes[lane]);
    if (marks > 0) delays_ended[lane]->record(lanes[lane]);
  }
  for (std::size_t swap = 0; swap < queue.depth; ++swap) submit(lanes[swap % lanes.size()]);
  start_.record(measured);
  Sample sample;
  sample.pending_before = !start_.completed();
  sample.depth_held = std::ranges::none_of(delays_ended, [](const auto& ended) { return ended->completed(); });
  return sample;
}

Sample TimedRegion::timed(const OwnedEvent& start, Sample sample, const Submit& submit, Stream stream) {
  const bool behind = sample.pending_before;
  const std::int64_t cpu_start_ns = thread_cpu_ns();
  const std::int64_t start_ns = wall_ns();
  submit(stream);
  const std::int64_t returned_ns = wall_ns();
  std::int64_t cpu_end_ns = behind ? thread_cpu_ns() : 0;
  // On an idle stream, until the host sees completion, only calls that an engine would make.
  end_.record(stream);
  sample.pending_after = behind && !start.completed();
  end_.wait();
  const std::int64_t completed_ns = wall_ns();
  if (!behind) cpu_end_ns = thread_cpu_ns();
  sample.caller_us = to_us(returned_ns - start_ns);
  sample.wall_us = to_us(completed_ns - start_ns);
  sample.cpu_us = std::min(sample.caller_us, to_us(cpu_end_ns - cpu_start_ns));
  sample.event_us = end_.us_since(start);
  return sample;
}

Sample TimedRegion::take(const Submit& submit, StreamState state, const Queue& queue, const Work& work,
                         std::span<const Stream> lanes) {
  const Stream first = lanes.front();
  const bool pending = state == StreamState::busy || state == StreamState::gated;
  if (work && pending) work();  // later, it would outlast the delay
  Sample sample;
  if (state == StreamState::busy) {
    const Stream measured = lanes[queue.depth % lanes.size()];
    return timed(start_, open_busy(submit, queue, lanes, measured), submit, measured);
  }
  if (state == StreamState::gated) {
    close_gate(busy_delay_ns_ + queue.delay_ns, first);
    sample.pending_before = !gate_.completed();
    return timed(gate_, sample, submit, first);
  }
  if (state == StreamState::unwaited || state == StreamState::unwaited_event) {
    if (work) work();  // before the record, as in an engine: the event time does not contain it
    open_unwaited(state, first);
    return timed(start_, sample, submit, first);
  }
  if (state == StreamState::opened) {
    gate_.record(gatekeeper_.handle());
    gate_.wait();
  }
  open_idle(first);
  if (state == StreamState::opened) gate_.hold(first);
  if (work) work();
  sample = timed(start_, sample, submit, first);
  if (work) sample.event_us = 0;  // it contains the work
  return sample;
}

Sample TimedRegion::measure(const Submit& submit, StreamState state, const Queue& queue, const Work& work) {
  check(state, queue);
  const std::span<const Stream> used = lanes(queue.streams);
  try {
    driver_->bind_thread();  // the code between two swaps can make another device current
    driver_->synchronize(used.front());
    const Sample sample = take(submit, state, queue, work, used);
    for (const Stream lane : used) driver_->synchronize(lane);
    return sample;
  } catch (...) {
    settle(used);
    throw;
  }
}

void TimedRegion::settle(std::span<const Stream> used) noexcept {
  // Work submitted before a failure still accesses memory that the caller can release.
  for (const Stream lane : used) {
    try {
      driver_->synchronize(lane);
    } catch (const DriverError&) {  // report only the first failure
    }
  }
}

double TimedRegion::measure_delay_us(std::uint64_t delay_ns) {
  const Stream stream = lanes_.front();
  driver_->bind_thread();
  driver_->synchronize(stream);
  // After another delay, so that the submission time of this one does not count.
  driver_->delay(busy_delay_ns_, stream);
  start_.record(stream);
  driver_->delay(delay_ns, stream);
  end_.record(stream);
  end_.wait();
  return end_.us_since(start_);
}

Sample TimedRegion::sustained(std::span<const Submit> swaps, std::size_t lead) {
  if (lead == 0 || swaps.size() <= lead)
    throw std::invalid_argument("sustained: a chain must have more swaps than its lead");
  const std::span<const Stream> used = lanes(1);
  const Stream stream = used.front();
  const auto all = static_cast<double>(swaps.size()), measured = static_cast<double>(swaps.size() - lead);
  try {
    driver_->bind_thread();
    driver_->synchronize(stream);
    open_idle(stream);
    const std::int64_t start_ns = wall_ns();
    for (const Submit& submit : swaps.first(lead)) submit(stream);
    led_.record(stream);
    const std::int64_t cpu_led_ns = thread_cpu_ns();
    const std::int64_t led_ns = wall_ns();
    for (const Submit& submit : swaps.subspan(lead)) submit(stream);
    const std::int64_t returned_ns = wall_ns();
    const std::int64_t cpu_end_ns = thread_cpu_ns();
    end_.record(stream);
    end_.wait();
    const std::int64_t completed_ns = wall_ns();
    Sample sample;
    sample.event_us = end_.us_since(led_) / measured;
    sample.chain_us = end_.us_since(start_) / all;
    sample.caller_us = to_us(returned_ns - led_ns) / measured;
    sample.cpu_us = std::min(sample.caller_us, to_us(cpu_end_ns - cpu_led_ns) / measured);
    sample.wall_us = to_us(completed_ns - start_ns) / all;
    return sample;
  } catch (...) {
    settle(used);
    throw;
  }
}

}  // namespace kvbench
