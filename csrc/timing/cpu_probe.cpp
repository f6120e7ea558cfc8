#include <array>

#include "memory/content.hpp"
#include "timing/clock.hpp"

namespace kvbench {

double probe_cpu_us() {
  constexpr int kRepeats = 24;
  std::array<unsigned char, 16 * 1024> memory{};
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < kRepeats; ++i) fill_random(memory, memory[0] + static_cast<unsigned>(i));
  return to_us(Clock::now() - start);
}

}  // namespace kvbench
