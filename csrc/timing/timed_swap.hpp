#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "driver/resources.hpp"
#include "swap/swap.hpp"

namespace kvbench {

/// Whether work is pending on the stream when a swap is submitted. On an idle stream cuMemcpyBatchAsync copies up to
/// 24 KiB per descriptor on the CPU, inside the call, so the state must be set explicitly. A gated stream waits for an
/// event of another stream that is not reached, an opened one for an event that is. Unwaited is what benchmarks of
/// engines do: the start event is recorded right before the call and nobody waits for it, so whether the call meets
/// pending work depends on how soon the GPU gets to that event; unwaited_event has the wait for an event of another
/// stream before it, as vLLM's worker makes its transfer stream wait for the compute stream.
enum class StreamState : std::uint8_t { idle, busy, gated, opened, unwaited, unwaited_event };

/// The swaps queued before the measured one, each a submission of the same swap; requires a busy stream.
struct Queue {
  std::size_t depth = 0;       ///< number of queued swaps
  std::size_t streams = 1;     ///< number of streams; the queued and the measured swaps go to them round-robin
  std::uint64_t delay_ns = 0;  ///< added to the busy delay, which must outlast their submission
};

/// One timed swap, in microseconds. Each field says what it includes.
struct Sample {
  double caller_us = 0;  ///< host time from the caller's arrays to the return of the last call: preparation and
                         ///< submission
  double event_us = 0;   ///< between two events on the stream, from one that is over before the call (idle, opened) or
                        ///< recorded right before it (unwaited), the end of the delay (busy) or the opening of the gate
                        ///< to the end of the swap; idle, opened: 0 after `work`
  double wall_us = 0;   ///< from the caller's arrays until the host sees completion; sustained: a chain's, per swap
  double cpu_us = 0;    ///< CPU time of the thread inside caller_us; idle and opened: an upper bound, the smaller of
                        ///< caller_us and the thread's CPU time until completion
  double chain_us = 0;  ///< sustained: between events around the whole chain, for each of its swaps; otherwise 0
  bool pending_before = false;  ///< the start event, or the gate, had not retired when the submission began; unwaited:
                                ///< false, since asking would give the event the time to retire
  bool pending_after = false;   ///< busy, gated: also not when it returned, so event_us is execution only; idle: false
  bool depth_held = true;       ///< no queued swap had started when the submission began
};

/// The timed region of a swap: stream state, queue, events and clocks in one place.
class TimedRegion {
 public:
  /// Turns the caller's arrays into work on the given stream, and does not wait for it.
  using Submit = std::function<void(Stream)>;
  /// What the thread does before a swap, as an engine's thread between two steps.
  using Work = std::function<void()>;

  /// `busy_delay_ns`: length of the delay before a busy sample. `stream` is the first stream of a queue's pool.
  TimedRegion(std::shared_ptr<Driver> driver, Stream stream, std::uint64_t busy_delay_ns);

  /// Times one swap after `queue`; waits for the completion of both. On an idle or opened stream, `work` is the last
  /// before the submission: calls of the driver between them, such as the record of an event, would prepare it, and an
  /// engine makes none. Throws std::invalid_argument for a queue on an idle stream.
  Sample measure(const Submit& submit, StreamState state, const Queue& queue = {}, const Work& work = {});

  /// Times what one more swap takes if swaps follow each other without a delay or a wait: a chain on an idle stream, of
  /// which the first `lead` do not count, since the first meets no pending work. The thread prepares and submits a swap
  /// while the one before it runs. Events and the thread's times are of the others, the wall time is of the chain, each
  /// for one swap. Throws std::invalid_argument unless the chain has more swaps than its lead.
  Sample sustained(std::span<const Submit> swaps, std::size_t lead);

  /// Microseconds between two events for which the stream is really busy if a delay of `delay_ns` is requested.
  double measure_delay_us(std::uint64_t delay_ns);

 private:
  /// The first `count` streams of the pool, created on first use.
  std::span<const Stream> lanes(std::size_t count);
  /// Times a swap from `start`, which pending work holds up or which is over; `sample` is what is known before.
  Sample timed(const OwnedEvent& start, Sample sample, const Submit& submit, Stream stream);
  Sample take(const Submit& submit, StreamState state, const Queue& queue, const Work& work,
              std::span<const Stream> lanes);
  /// Submits the queue after a delay on every lane, then the start event on the lane of the measured swap; returns
  /// the fields of the sample known before its submission.
  Sample open_busy(const Submit& submit, const Queue& queue, std::span<const Stream> lanes, Stream measured);
  /// Makes the stream wait for the gate, which another stream reaches after `delay_ns`.
  void close_gate(std::uint64_t delay_ns, Stream measured);
  /// Waits for everything on `used`, even after errors, so that memory can be released.
  void settle(std::span<const Stream> used) noexcept;
  /// Returns once the start event has retired: a pending one would make the stream busy.
  void open_idle(Stream measured);
  /// Records the start event, behind an event of another stream if `state` has one, and waits for neither.
  void open_unwaited(StreamState state, Stream measured);

  std::shared_ptr<Driver> driver_;
  std::uint64_t busy_delay_ns_;
  std::vector<std::unique_ptr<OwnedStream>> pool_;
  std::vector<std::unique_ptr<OwnedEvent>> released_;  ///< per lane: the delay before its queue has ended
  std::vector<Stream> lanes_;
  OwnedStream gatekeeper_;
  OwnedEvent gate_;
  OwnedEvent start_;
  OwnedEvent led_;  ///< the end of what leads a chain
  OwnedEvent end_;
};

}  // namespace kvbench
