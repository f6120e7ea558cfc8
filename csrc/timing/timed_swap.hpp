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

/// Whether work is pending on the stream when a swap is submitted. cuMemcpyBatchAsync copies up to 24 KiB a descriptor
/// on the CPU, inside the call, when the stream is idle at that moment: the state has to be set, not left to chance.
enum class StreamState : std::uint8_t { idle, busy };

/// The swaps that wait in front of the measured one, each a submission of the same swap; a busy stream only.
struct Queue {
  std::size_t depth = 0;       ///< how many
  std::size_t streams = 1;     ///< number of streams, over which they and the measured one are dealt in turn
  std::uint64_t delay_ns = 0;  ///< added to the busy delay, which has to outlast their submission
};

/// One timed swap, in microseconds. See each field for what it includes.
struct Sample {
  double prepare_us = 0;        ///< descriptors -> driver's arrays, before the start event
  double coalesce_us = 0;       ///< part of prepare_us that merged adjacent descriptors
  double submit_us = 0;         ///< host time inside the submission
  double gpu_us = 0;            ///< between the events around the submission; on an idle stream includes gap_us
  double wall_us = 0;           ///< from just before the submission until the host sees completion; on an idle stream
                                ///< it holds the submission, one event record and its queries, nothing else
  double cpu_us = 0;            ///< CPU time of the submitting thread inside the submission; idle: no more than this,
                                ///< the lesser of submit_us and the thread's CPU time until completion
  double gap_us = 0;            ///< idle: from seeing the start event retired to the submission; busy: 0
  bool pending_before = false;  ///< the start event had not retired when the submission began
  bool pending_after = false;   ///< busy: nor when it returned, then gpu_us is execution only; idle: false
  bool depth_held = true;       ///< no queued swap had started when the submission began
};

/// One swap of a chain: what prepares it, and what submits it on the stream that it is given, without waiting.
struct Submission {
  std::function<void()> prepare;
  std::function<void(Stream)> submit;
};

/// The timed region of a swap: stream state, queue, events and clocks in one place.
class TimedRegion {
 public:
  using Submit = std::function<void(Stream)>;

  /// `busy_delay_ns`: length of the delay in front of a busy sample. `stream` is the first of a queue's pool.
  TimedRegion(std::shared_ptr<Driver> driver, Stream stream, std::uint64_t busy_delay_ns);

  /// Prepares and times one submission of `swap` behind `queue`, waits for its completion and the queue's.
  /// Throws std::invalid_argument for a queue on an idle stream.
  Sample measure(Swap& swap, StreamState state, const Queue& queue = {});

  /// The same for a submission made elsewhere; `submit` must submit on the stream that it is given and not wait.
  Sample measure(const std::function<void()>& prepare, const Submit& submit, StreamState state,
                 const Queue& queue = {});

  /// Times what one more swap takes where swaps follow each other without a delay or a wait: a chain of the first `few`
  /// of `swaps` against one of all others, each prepared before its chain begins and waited for at its end. Every time
  /// is the difference of the two over the difference in swaps, prepare_us the mean; the first swaps of either chain,
  /// which meet an idle stream, cancel. Throws std::invalid_argument unless the second chain is the longer one, and
  /// std::runtime_error where it keeps ending sooner.
  Sample sustained(std::span<const Submission> swaps, std::size_t few);

  /// How long the stream is really busy, in microseconds between two events, when a delay of `delay_ns` is asked for.
  double measure_delay_us(std::uint64_t delay_ns);

 private:
  /// The first `count` streams of the pool, made when they are first asked for.
  std::span<const Stream> lanes(std::size_t count);
  Sample timed(const std::function<void()>& prepare, const Submit& submit, StreamState state, const Queue& queue,
               std::span<const Stream> lanes);
  /// Submits `swaps` one behind the other on the idle stream; the times are of all together, until the last completed.
  Sample chain(std::span<const Submission> swaps, Stream stream);
  /// Submits the queue behind a delay on every lane, then the start event on the lane of the measured swap; returns
  /// what the sample knows before its submission.
  Sample open_busy(const Submit& submit, const Queue& queue, std::span<const Stream> lanes, Stream measured);
  /// Waits for everything on `used`, whatever became of it, so that memory may be released.
  void settle(std::span<const Stream> used) noexcept;
  /// Returns once the start event has retired: one that is still pending would make the stream busy.
  void open_idle(Stream measured);

  std::shared_ptr<Driver> driver_;
  std::uint64_t busy_delay_ns_;
  std::vector<std::unique_ptr<OwnedStream>> pool_;
  std::vector<std::unique_ptr<OwnedEvent>> released_;  ///< of each lane: the delay in front of its queue has ended
  std::vector<Stream> lanes_;
  OwnedEvent start_;
  OwnedEvent end_;
};

}  // namespace kvbench
