#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/pool_words.hpp"

/// Pools whose every byte is determined by its place: swaps in them are checked range by range, at any place, without
/// access to the rest of the pool.
namespace kvbench {

/// Fills `memory` with the words of a pool of `seed` (kernels/pool_words.hpp), on several threads.
void fill_random(std::span<unsigned char> memory, std::uint64_t seed);

/// Fills `memory` with one byte value, on several threads.
void fill_value(std::span<unsigned char> memory, unsigned char value);

/// Range i has bytes[i] bytes at offsets[i] of its memory; it holds the bytes of a pool from sources[i] on. Ranges can
/// have any size and alignment.
struct Ranges {
  std::span<const std::uint64_t> offsets;
  std::span<const std::uint64_t> bytes;
  std::span<const std::uint64_t> sources;
};

struct Audit {
  std::uint64_t wrong_bytes = 0;
  std::uint64_t first_wrong_offset = 0;  ///< in the memory, valid if wrong_bytes > 0
  std::optional<std::size_t> first_wrong_range;
  std::uint64_t checked_bytes = 0;
};

/// Divides `ranges` of the memory at `base` into stretches, the unit of work. Throws std::invalid_argument if the
/// arrays differ in length or a range exceeds the memory.
std::vector<Stretch> stretches_of(std::uint64_t base, std::size_t memory_bytes, const Ranges& ranges);

/// Converts `mismatches` to the result for `ranges`, whose memory is at `base`.
Audit audit_of(const AuditCount& mismatches, std::uint64_t base, const Ranges& ranges);

/// Writes stretches of host memory, which must not overlap, on several threads.
void write_stretches(std::span<const Stretch> stretches, std::uint64_t seed);
/// Compares stretches of host memory on several threads.
AuditCount audit_stretches(std::span<const Stretch> stretches, std::uint64_t seed);

}  // namespace kvbench
