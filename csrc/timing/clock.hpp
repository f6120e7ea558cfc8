#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>
#include <thread>

namespace kvbench {

using Clock = std::chrono::steady_clock;

inline std::int64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

inline std::int64_t wall_ns() { return clock_ns(CLOCK_MONOTONIC); }
inline std::int64_t thread_cpu_ns() { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }
inline double to_us(std::int64_t ns) { return static_cast<double>(ns) / 1e3; }
inline double to_us(Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

inline void wait_until(Clock::time_point end) {
  // Sleeping is coarse: the last part spins, so that short delays are accurate.
  constexpr auto kCoarse = std::chrono::microseconds(200);
  if (const auto now = Clock::now(); end - now > kCoarse) std::this_thread::sleep_until(end - kCoarse);
  while (Clock::now() < end) std::this_thread::yield();
}

/// Microseconds that a fixed piece of work takes on the current CPU. The work fills the core's execution units and its
/// first-level cache, so that a busy sibling thread of the core, or a lower clock, is visible.
double probe_cpu_us();

}  // namespace kvbench
