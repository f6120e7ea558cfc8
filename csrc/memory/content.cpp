#include "memory/content.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>

namespace kvbench {
namespace {

constexpr std::size_t kGrainBytes = std::size_t{1} << 20;  // for one thread at least
constexpr std::uint64_t kStretchBytes = std::uint64_t{256} << 10;

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

/// The minimum number of stretches per thread.
std::size_t grain_of(std::span<const Stretch> stretches) {
  std::uint64_t bytes = 0;
  for (const Stretch& stretch : stretches) bytes += stretch.bytes;
  return bytes == 0 ? 1 : std::max<std::size_t>(1, stretches.size() * kGrainBytes / bytes);
}

/// Whether a stretch and its content are whole words: nearly all are, and their loops are much faster.
bool is_of_words(const Stretch& stretch) { return (stretch.address | stretch.bytes | stretch.source) % 8 == 0; }

/// Writes `words` words of a pool from `start` on.
[[gnu::always_inline]] inline void put(u64* to, u64 start, u64 words) {
  for (u64 word = 0; word < words; ++word) to[word] = splitmix64(start + word);
}

/// The bits in which any of `words` words differs from the words of a pool from `start` on.
[[gnu::always_inline]] inline u64 difference(const u64* have, u64 start, u64 words) {
  u64 bits = 0;
  for (u64 word = 0; word < words; ++word) bits |= have[word] ^ splitmix64(start + word);
  return bits;
}

#if defined(__x86_64__)
[[gnu::target("avx512f,avx512dq")]] void put_wide(u64* to, u64 start, u64 words) { put(to, start, words); }
[[gnu::target("avx512f,avx512dq")]] u64 difference_wide(const u64* have, u64 start, u64 words) {
  return difference(have, start, words);
}
#endif

/// The loops for this CPU: with instructions that multiply several words at once, they are several times as fast.
struct Loops {
  void (*put)(u64* to, u64 start, u64 words);
  u64 (*difference)(const u64* have, u64 start, u64 words);
};

const Loops& loops() {
  static const Loops fastest = [] {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512dq")) return Loops{put_wide, difference_wide};
#endif
    return Loops{put, difference};
  }();
  return fastest;
}

void write_stretch(const Stretch& stretch, std::uint64_t seed) {
  if (!is_of_words(stretch)) {
    for (u64 word = 0; word < words_of(stretch); ++word) write_word(stretch, word, seed);
    return;
  }
  const u64 start = pool_start(seed) + stretch.source / 8;
  loops().put(reinterpret_cast<u64*>(stretch.address), start, stretch.bytes / 8);
}

void audit_stretch(const Stretch& stretch, std::uint64_t seed, AuditCount& mismatches) {
  if (is_of_words(stretch)) {
    const u64 start = pool_start(seed) + stretch.source / 8;
    if (loops().difference(reinterpret_cast<const u64*>(stretch.address), start, stretch.bytes / 8) == 0) return;
  }
  for (u64 word = 0; word < words_of(stretch); ++word) audit_word(stretch, word, seed, mismatches);
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

std::vector<Stretch> stretches_of(std::uint64_t base, std::size_t memory_bytes, const Ranges& ranges) {
  const std::size_t count = ranges.bytes.size();
  if (ranges.offsets.size() != count || ranges.sources.size() != count) {
    throw std::invalid_argument("ranges: the arrays have different lengths");
  }
  std::vector<Stretch> stretches;
  stretches.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t offset = ranges.offsets[i];
    const std::uint64_t bytes = ranges.bytes[i];
    if (bytes > memory_bytes || offset > memory_bytes - bytes) {
      throw std::invalid_argument("ranges: a range exceeds its memory");
    }
    for (std::uint64_t at = 0; at < bytes; at += kStretchBytes) {
      stretches.push_back({base + offset + at, std::min(kStretchBytes, bytes - at), ranges.sources[i] + at});
    }
  }
  return stretches;
}

Audit audit_of(const AuditCount& mismatches, std::uint64_t base, const Ranges& ranges) {
  Audit audit;
  audit.checked_bytes = std::accumulate(ranges.bytes.begin(), ranges.bytes.end(), std::uint64_t{0});
  audit.wrong_bytes = mismatches.wrong_bytes;
  if (mismatches.wrong_bytes == 0) return audit;
  audit.first_wrong_offset = mismatches.first - base;
  for (std::size_t i = 0; i < ranges.bytes.size() && !audit.first_wrong_range; ++i) {
    const bool behind = audit.first_wrong_offset >= ranges.offsets[i];
    if (behind && audit.first_wrong_offset - ranges.offsets[i] < ranges.bytes[i]) audit.first_wrong_range = i;
  }
  return audit;
}

void write_stretches(std::span<const Stretch> stretches, std::uint64_t seed) {
  in_parallel(stretches.size(), grain_of(stretches), [&](std::size_t begin, std::size_t end) {
    for (const Stretch& stretch : stretches.subspan(begin, end - begin)) write_stretch(stretch, seed);
  });
}

AuditCount audit_stretches(std::span<const Stretch> stretches, std::uint64_t seed) {
  AuditCount total{0, kNowhere};
  std::mutex merging;
  in_parallel(stretches.size(), grain_of(stretches), [&](std::size_t begin, std::size_t end) {
    AuditCount mismatches{0, kNowhere};
    for (const Stretch& stretch : stretches.subspan(begin, end - begin)) audit_stretch(stretch, seed, mismatches);
    const std::lock_guard lock(merging);
    total.wrong_bytes += mismatches.wrong_bytes;
    total.first = std::min(total.first, mismatches.first);
  });
  return total;
}

}  // namespace kvbench
