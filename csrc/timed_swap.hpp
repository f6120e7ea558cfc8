#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "swap.hpp"

namespace kvbench {

/// Whether work is pending on the stream when a swap is submitted. cuMemcpyBatchAsync copies up to 24 KiB a descriptor
/// on the CPU, inside the call, when the stream is idle at that moment: the state has to be set, not left to chance.
enum class StreamState : std::uint8_t { idle, busy };

/// One timed swap, in microseconds. See each field for what it includes.
struct Sample {
  double prepare_us = 0;        ///< descriptors -> driver's arrays, before the start event
  double coalesce_us = 0;       ///< part of prepare_us that merged adjacent descriptors
  double submit_us = 0;         ///< host time inside the submission
  double gpu_us = 0;            ///< between the events around the submission; on an idle stream includes gap_us
  double wall_us = 0;           ///< from just before the submission until the host sees completion
  double cpu_us = 0;            ///< CPU time of the submitting thread inside the submission
  double gap_us = 0;            ///< idle: from seeing the start event retired to the submission; busy: 0
  bool pending_before = false;  ///< the start event had not retired when the submission began
  bool pending_after = false;   ///< nor when it returned: then gpu_us is execution only
};

/// The timed region of a swap on one stream: stream state, events and clocks in one place.
class TimedRegion {
 public:
  /// `busy_delay_ns`: length of the delay in front of a busy sample.
  TimedRegion(std::shared_ptr<Driver> driver, Stream stream, std::uint64_t busy_delay_ns);
  TimedRegion(const TimedRegion&) = delete;
  TimedRegion& operator=(const TimedRegion&) = delete;
  ~TimedRegion();

  /// Prepares and times one submission of `swap`, waits for its completion.
  Sample measure(Swap& swap, StreamState state);

  /// The same for a submission made elsewhere; `submit` must submit on stream() and not wait.
  Sample measure(const std::function<void()>& prepare, const std::function<void()>& submit, StreamState state);

  [[nodiscard]] Stream stream() const { return stream_; }

 private:
  /// Brings the stream into `state` behind the start event; returns what the sample knows before the submission.
  Sample open(StreamState state);

  std::shared_ptr<Driver> driver_;
  Stream stream_;
  std::uint64_t busy_delay_ns_;
  Event start_;
  Event end_;
};

}  // namespace kvbench
