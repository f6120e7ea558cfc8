#pragma once

#include <algorithm>
#include <cstddef>
#include <thread>
#include <vector>

namespace kvbench {

inline constexpr std::size_t kGrainBytes = std::size_t{1} << 20;

/// Runs work(begin, end) over [0, count) on several threads, each with at least `grain` items.
template <typename Work>
void in_parallel(std::size_t count, std::size_t grain, const Work& work) {
  const std::size_t cores = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, 16);
  const std::size_t parts = std::clamp<std::size_t>(count / std::max<std::size_t>(grain, 1), 1, cores);
  std::vector<std::jthread> threads;
  for (std::size_t part = 1; part < parts; ++part) {
    threads.emplace_back([&, part] { work(count * part / parts, count * (part + 1) / parts); });
  }
  work(0, count / parts);
}

}  // namespace kvbench
