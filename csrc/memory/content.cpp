#include "memory/content.hpp"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <stdexcept>

#include "memory/parallel.hpp"

namespace kvbench {
namespace {

constexpr std::uint64_t kStretchBytes = std::uint64_t{256} << 10;
constexpr std::size_t kStretchesAThread = 4;

}  // namespace

std::vector<Stretch> stretches_of(std::uint64_t base, std::size_t memory_bytes, const Ranges& ranges) {
  const std::size_t count = ranges.bytes.size();
  if (ranges.offsets.size() != count || (ranges.sources.size() != count && !ranges.sources.empty())) {
    throw std::invalid_argument("ranges: arrays of different lengths");
  }
  std::vector<Stretch> stretches;
  stretches.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t offset = ranges.offsets[i];
    const std::uint64_t bytes = ranges.bytes[i];
    if (bytes > memory_bytes || offset > memory_bytes - bytes) {
      throw std::invalid_argument("ranges: a range leaves its memory");
    }
    const std::uint64_t source = ranges.sources.empty() ? 0 : ranges.sources[i];
    for (std::uint64_t at = 0; at < bytes; at += kStretchBytes) {
      stretches.push_back({base + offset + at, std::min(kStretchBytes, bytes - at), source + at});
    }
  }
  return stretches;
}

Audit audit_of(const AuditCount& found, std::uint64_t base, const Ranges& ranges) {
  Audit audit;
  audit.checked_bytes = std::accumulate(ranges.bytes.begin(), ranges.bytes.end(), std::uint64_t{0});
  audit.wrong_bytes = found.wrong_bytes;
  if (found.wrong_bytes == 0) return audit;
  audit.first_wrong_offset = found.first - base;
  for (std::size_t i = 0; i < ranges.bytes.size() && !audit.first_wrong_range; ++i) {
    const bool behind = audit.first_wrong_offset >= ranges.offsets[i];
    if (behind && audit.first_wrong_offset - ranges.offsets[i] < ranges.bytes[i]) audit.first_wrong_range = i;
  }
  return audit;
}

void write_stretches(std::span<const Stretch> stretches, const Content& content) {
  in_parallel(stretches.size(), kStretchesAThread, [&](std::size_t begin, std::size_t end) {
    for (const Stretch& stretch : stretches.subspan(begin, end - begin)) {
      for (u64 word = 0; word < words_of(stretch); ++word) write_word(stretch, word, content);
    }
  });
}

AuditCount audit_stretches(std::span<const Stretch> stretches, const Content& content) {
  AuditCount total{0, kNowhere};
  std::mutex merging;
  in_parallel(stretches.size(), kStretchesAThread, [&](std::size_t begin, std::size_t end) {
    AuditCount found{0, kNowhere};
    for (const Stretch& stretch : stretches.subspan(begin, end - begin)) {
      for (u64 word = 0; word < words_of(stretch); ++word) audit_word(stretch, word, content, found);
    }
    const std::lock_guard lock(merging);
    total.wrong_bytes += found.wrong_bytes;
    total.first = std::min(total.first, found.first);
  });
  return total;
}

}  // namespace kvbench
