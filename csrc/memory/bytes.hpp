#pragma once

#include <cstdint>
#include <span>

namespace kvbench {

/// Fills `memory` with the words of a pool of `seed` (kernels/pool_words.hpp), on several threads.
void fill_random(std::span<unsigned char> memory, std::uint64_t seed);

/// Fills `memory` with one byte value, on several threads.
void fill_value(std::span<unsigned char> memory, unsigned char value);

}  // namespace kvbench
