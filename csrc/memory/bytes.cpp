#include "memory/bytes.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "kernels/pool_words.hpp"
#include "memory/parallel.hpp"

namespace kvbench {
namespace {

void count_wrong(Verdict& verdict, std::uint64_t offset, std::optional<std::size_t> range) {
  if (verdict.wrong_bytes == 0 || offset < verdict.first_wrong_offset) {
    verdict.first_wrong_offset = offset;
    verdict.first_wrong_range = range;
  }
  ++verdict.wrong_bytes;
}

void check_poison(Verdict& verdict, std::span<const unsigned char> destination, std::uint64_t begin, std::uint64_t end,
                  unsigned char poison) {
  if (begin == end) return;
  const unsigned char* gap = destination.data() + begin;
  const std::size_t length = end - begin;
  // Comparing the gap with itself, shifted by one byte, is a memcmp for "all bytes equal".
  if (gap[0] == poison && std::memcmp(gap, gap + 1, length - 1) == 0) return;
  for (std::size_t i = 0; i < length; ++i) {
    if (gap[i] != poison) count_wrong(verdict, begin + i, std::nullopt);
  }
}

void check_range(Verdict& verdict, std::span<const unsigned char> destination, std::span<const unsigned char> source,
                 const CopiedRanges& ranges, std::size_t index) {
  const unsigned char* have = destination.data() + ranges.destination_offsets[index];
  const unsigned char* want = source.data() + ranges.source_offsets[index];
  const std::size_t length = ranges.bytes[index];
  if (std::memcmp(have, want, length) == 0) return;
  for (std::size_t i = 0; i < length; ++i) {
    if (have[i] != want[i]) count_wrong(verdict, ranges.destination_offsets[index] + i, index);
  }
}

Verdict merge(const Verdict& left, const Verdict& right) {
  Verdict sum = left;
  if (right.wrong_bytes > 0 && (left.wrong_bytes == 0 || right.first_wrong_offset < left.first_wrong_offset)) {
    sum.first_wrong_offset = right.first_wrong_offset;
    sum.first_wrong_range = right.first_wrong_range;
  }
  sum.wrong_bytes += right.wrong_bytes;
  return sum;
}

}  // namespace

void fill_random(std::span<unsigned char> memory, std::uint64_t seed) {
  const std::size_t words = memory.size() / sizeof(std::uint64_t);
  in_parallel(words, kGrainBytes / sizeof(std::uint64_t), [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const std::uint64_t word = pool_word(seed, i);
      std::memcpy(memory.data() + i * sizeof(word), &word, sizeof(word));
    }
  });
  const std::uint64_t last = pool_word(seed, words);
  std::memcpy(memory.data() + words * sizeof(last), &last, memory.size() % sizeof(last));
}

void fill_value(std::span<unsigned char> memory, unsigned char value) {
  in_parallel(memory.size(), kGrainBytes,
              [&](std::size_t begin, std::size_t end) { std::memset(memory.data() + begin, value, end - begin); });
}

Verdict verify(std::span<const unsigned char> destination, std::span<const unsigned char> source,
               const CopiedRanges& ranges, unsigned char poison) {
  const std::size_t count = ranges.bytes.size();
  if (ranges.source_offsets.size() != count || ranges.destination_offsets.size() != count) {
    throw std::invalid_argument("verify: the arrays have different lengths");
  }
  std::vector<std::size_t> ascending(count);
  std::iota(ascending.begin(), ascending.end(), std::size_t{0});
  std::ranges::sort(ascending, {}, [&](std::size_t i) { return ranges.destination_offsets[i]; });
  const auto end_of = [&](std::size_t i) { return ranges.destination_offsets[i] + ranges.bytes[i]; };
  for (std::size_t k = 0; k < count; ++k) {
    const std::size_t i = ascending[k];
    const bool inside = end_of(i) <= destination.size() && ranges.source_offsets[i] + ranges.bytes[i] <= source.size();
    const bool apart = k == 0 || end_of(ascending[k - 1]) <= ranges.destination_offsets[i];
    if (!inside || !apart) throw std::invalid_argument("verify: ranges overlap or exceed their memory");
  }
  constexpr std::size_t kParts = 64;
  const std::size_t parts_a_thread = destination.size() < 8 * kGrainBytes ? kParts : 1;
  std::vector<Verdict> verdicts(kParts);
  in_parallel(kParts, parts_a_thread, [&](std::size_t begin, std::size_t end) {
    for (std::size_t part = begin; part < end; ++part) {
      const std::size_t first = count * part / kParts;
      const std::size_t last = count * (part + 1) / kParts;
      for (std::size_t k = first; k < last; ++k) {
        const std::uint64_t gap_begin = k == 0 ? 0 : end_of(ascending[k - 1]);
        check_poison(verdicts[part], destination, gap_begin, ranges.destination_offsets[ascending[k]], poison);
        check_range(verdicts[part], destination, source, ranges, ascending[k]);
      }
    }
  });
  Verdict verdict;
  for (const Verdict& part : verdicts) verdict = merge(verdict, part);
  Verdict tail;
  check_poison(tail, destination, count == 0 ? 0 : end_of(ascending.back()), destination.size(), poison);
  verdict = merge(verdict, tail);
  verdict.checked_bytes = destination.size();
  return verdict;
}

}  // namespace kvbench
