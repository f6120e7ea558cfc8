#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "driver/resources.hpp"
#include "timing/clock.hpp"

namespace kvbench {

/// One array of a swap's list, and its content for each set of blocks, one set after the other.
struct ListColumn {
  std::span<std::uint64_t> array;
  std::span<const std::uint64_t> sets;
};

/// Swaps that ended: times in microseconds, two for each swap.
struct LoopTimes {
  std::vector<double> caller_us;  ///< as in Sample
  std::vector<double> wall_us;    ///< from its submission, or from the end of the swap before it, if later, to its end
  double cpu_us = 0;              ///< CPU time of the thread in all swaps; to read its clock takes half a microsecond
};

/// Consecutive swaps on one stream. A swap is submitted while the one before it runs, as a queue of an engine's swaps
/// is: the stream has pending work at each call but the first. The next list is written while swaps run; it is not
/// needed once its swap is submitted. The arrays stay the caller's memory.
class SwapLoop {
 public:
  /// Writes the first list. Throws std::invalid_argument for a column that does not hold whole sets.
  SwapLoop(std::shared_ptr<Driver> driver, Stream stream, std::function<void(Stream)> submit,
           std::vector<ListColumn> columns);

  /// Swaps for this long, until one ended at least. The last swap is left running, and the next call goes on behind it.
  LoopTimes run(std::chrono::nanoseconds time);

  /// Waits for the swap that is left running, if any; returns its times.
  LoopTimes drain();

  /// Waits likewise, then runs the swap of the list that is written.
  void finish();

 private:
  /// A swap that was submitted and not waited for.
  struct Running {
    Clock::time_point start;
    double caller_us;
  };

  void write_next();
  void submit_next(LoopTimes& times);
  void wait_for(const Running& swap, const OwnedEvent& done, LoopTimes& times);

  std::shared_ptr<Driver> driver_;
  Stream stream_;
  std::function<void(Stream)> submit_;
  std::vector<ListColumn> columns_;
  std::size_t written_ = 0;
  std::optional<Running> running_;
  Clock::time_point ended_;           ///< the last swap that was waited for
  std::unique_ptr<OwnedEvent> done_;  ///< of the running swap
  std::unique_ptr<OwnedEvent> done_before_;
};

}  // namespace kvbench
