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

/// The swaps of a turn: times in microseconds, two for each swap as in Sample.
struct LoopTimes {
  std::vector<double> caller_us;
  std::vector<double> wall_us;
  double cpu_us = 0;  ///< CPU time of the thread in all swaps; to read its clock takes half a microsecond
};

/// Holds a stream from the host: it is closed before a submission and opened behind it, also by an exception.
class HostGate {
 public:
  explicit HostGate(std::shared_ptr<Driver> driver);

  /// Makes later work on the stream wait until the gate is opened.
  void close(Stream stream);
  void open();

 private:
  std::shared_ptr<Driver> driver_;
  Buffer word_;
  std::uint32_t closed_ = 0;  ///< how often; the word holds how often it was opened since
};

/// Consecutive swaps on one stream. The next list is written while a swap runs. The arrays stay the caller's memory.
class SwapLoop {
 public:
  /// Writes the first list. Of a `gated` loop, each submission meets a stream that waits, and its work begins when it
  /// returns. Throws std::invalid_argument for a column that does not hold whole sets.
  SwapLoop(std::shared_ptr<Driver> driver, Stream stream, std::function<void(Stream)> submit,
           std::vector<ListColumn> columns, bool gated);

  /// Swaps for this long, at least once; waits for each swap.
  LoopTimes run(std::chrono::nanoseconds time);

  /// Runs the swap of the list that is written.
  void finish();

 private:
  void write_next();
  /// Returns when the swap ended.
  Clock::time_point swap(LoopTimes& times);

  std::shared_ptr<Driver> driver_;
  Stream stream_;
  std::function<void(Stream)> submit_;
  std::vector<ListColumn> columns_;
  std::size_t written_ = 0;
  std::optional<HostGate> gate_;
  OwnedEvent done_;
};

}  // namespace kvbench
