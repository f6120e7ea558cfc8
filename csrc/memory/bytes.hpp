#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace kvbench {

/// Fills `memory` with the words of a pool of `seed` (kernels/pool_words.hpp), on several threads.
void fill_random(std::span<unsigned char> memory, std::uint64_t seed);

/// Fills `memory` with one byte value, on several threads.
void fill_value(std::span<unsigned char> memory, unsigned char value);

/// The copied ranges: range i has bytes[i] bytes, from source_offsets[i] to destination_offsets[i].
struct CopiedRanges {
  std::span<const std::uint64_t> source_offsets;
  std::span<const std::uint64_t> destination_offsets;
  std::span<const std::uint64_t> bytes;
};

struct Verdict {
  std::uint64_t wrong_bytes = 0;
  std::uint64_t first_wrong_offset = 0;          ///< in the destination, valid if wrong_bytes > 0
  std::optional<std::size_t> first_wrong_range;  ///< empty if the byte is outside of every range
  std::uint64_t checked_bytes = 0;
};

/// Checks a destination that was filled with `poison` before the copies: every range must hold its source's bytes, and
/// every other byte still poison. Throws std::invalid_argument if ranges overlap or exceed the destination or source.
Verdict verify(std::span<const unsigned char> destination, std::span<const unsigned char> source,
               const CopiedRanges& ranges, unsigned char poison);

}  // namespace kvbench
