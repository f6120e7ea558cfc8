#include "timing/cpu_probe.hpp"

#include <array>
#include <chrono>

#include "memory/bytes.hpp"

namespace kvbench {

double probe_cpu_us() {
  constexpr int kRepeats = 24;
  std::array<unsigned char, 16 * 1024> memory{};
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kRepeats; ++i) fill_random(memory, memory[0] + static_cast<unsigned>(i));
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace kvbench
