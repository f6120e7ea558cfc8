#include "memory/bytes.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

namespace kvbench {
namespace {

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

constexpr std::size_t kGrainBytes = std::size_t{1} << 20;

std::uint64_t splitmix64(std::uint64_t state) {
  state += 0x9E3779B97F4A7C15;
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EB;
  return state ^ (state >> 31);
}

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
  // Comparing the gap with itself, one byte on, is a memcmp for "all bytes alike".
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
      const std::uint64_t word = splitmix64(seed + i);
      std::memcpy(memory.data() + i * sizeof(word), &word, sizeof(word));
    }
  });
  const std::uint64_t last = splitmix64(seed + words);
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
    throw std::invalid_argument("verify: arrays of different lengths");
  }
  std::vector<std::size_t> ascending(count);
  std::iota(ascending.begin(), ascending.end(), std::size_t{0});
  std::ranges::sort(ascending, {}, [&](std::size_t i) { return ranges.destination_offsets[i]; });
  const auto end_of = [&](std::size_t i) { return ranges.destination_offsets[i] + ranges.bytes[i]; };
  for (std::size_t k = 0; k < count; ++k) {
    const std::size_t i = ascending[k];
    const bool inside = end_of(i) <= destination.size() && ranges.source_offsets[i] + ranges.bytes[i] <= source.size();
    const bool apart = k == 0 || end_of(ascending[k - 1]) <= ranges.destination_offsets[i];
    if (!inside || !apart) throw std::invalid_argument("verify: ranges overlap or leave their memory");
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
