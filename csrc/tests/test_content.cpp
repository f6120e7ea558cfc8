#include <algorithm>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "driver/host.hpp"
#include "driver/resources.hpp"

namespace {

using namespace kvbench;
using Offsets = std::vector<std::uint64_t>;

constexpr std::uint64_t kSeed = 42;
constexpr std::uint64_t kOther = 43;

unsigned char expected(std::uint64_t seed, std::uint64_t offset) {
  return static_cast<unsigned char>(pool_word(seed, offset / 8) >> (8 * (offset % 8)));
}

/// A pool on each side of the host device, and ranges in it: `sizes` bytes, any alignment, apart from each other.
struct Bench {
  Bench(MemoryKind kind, std::size_t pool_bytes) : pool(driver, kind, pool_bytes), stream(driver), size(pool_bytes) {
    whole(kSeed);
  }

  void whole(std::uint64_t seed) {
    const Offsets zero{0}, all{size};
    pool.write({zero, all, zero}, seed, stream.handle());
  }

  void take(const std::vector<std::size_t>& sizes) {
    std::mt19937_64 random(7);
    std::uint64_t at = 0;
    for (const std::size_t one : sizes) {
      at += 1 + random() % 19;
      offsets.push_back(at);
      bytes.push_back(one);
      sources.push_back(random() % 100'000);
      at += one;
    }
  }

  Ranges ranges() const { return {offsets, bytes, sources}; }
  Audit audit(std::uint64_t seed) const { return pool.audit(ranges(), seed, stream.handle()); }
  unsigned char* byte(std::uint64_t offset) const { return reinterpret_cast<unsigned char*>(pool.address()) + offset; }

  std::shared_ptr<HostDriver> driver = open_host();
  Buffer pool;
  OwnedStream stream;
  std::size_t size;
  Offsets offsets, bytes, sources;
};

const std::vector<std::size_t> kSizes{0, 1, 2, 7, 8, 9, 15, 16, 17, 100, 576, 4096, 4097, (256 << 10) + 5, 900'001};

void every_byte_is_known_from_its_place() {
  for (const MemoryKind kind : {MemoryKind::device, MemoryKind::allocated}) {
    const Bench bench(kind, 1003);
    for (std::size_t i = 0; i < bench.size; ++i) check::equal(*bench.byte(i), expected(kSeed, i), "a byte of the pool");
  }
  std::vector<unsigned char> filled(1003);
  fill_random(filled, kSeed);
  for (std::size_t i = 0; i < filled.size(); ++i) check::equal(filled[i], expected(kSeed, i), "fill_random agrees");
}

void seeds_that_follow_each_other_share_no_words() {
  int shared = 0;
  for (std::uint64_t i = 0; i < 100; ++i) shared += pool_word(kSeed, i + 1) == pool_word(kOther, i);
  check::equal(shared, 0, "words at a shift");
}

void ranges_of_any_size_and_alignment_are_written_and_nothing_else_is() {
  for (const MemoryKind kind : {MemoryKind::device, MemoryKind::allocated}) {
    Bench bench(kind, std::size_t{2} << 20);
    bench.take(kSizes);
    bench.pool.write(bench.ranges(), kOther, bench.stream.handle());
    std::vector<bool> inside(bench.size);
    for (std::size_t i = 0; i < bench.offsets.size(); ++i) {
      for (std::uint64_t at = 0; at < bench.bytes[i]; ++at) {
        inside[bench.offsets[i] + at] = true;
        const bool right = *bench.byte(bench.offsets[i] + at) == expected(kOther, bench.sources[i] + at);
        check::that(right, "a byte of a range is that of its source");
      }
    }
    for (std::size_t i = 0; i < bench.size; ++i) {
      if (!inside[i]) check::that(*bench.byte(i) == expected(kSeed, i), "a byte beside the ranges stays");
    }
    const Audit audit = bench.audit(kOther);
    check::equal(audit.wrong_bytes, 0U, "wrong bytes");
    std::uint64_t total = 0;
    for (const std::uint64_t one : bench.bytes) total += one;
    check::equal(audit.checked_bytes, total, "checked bytes");
    check::that(!audit.first_wrong_range.has_value(), "no range is wrong");
  }
}

void wrong_bytes_are_counted_and_the_first_is_named() {
  for (const MemoryKind kind : {MemoryKind::device, MemoryKind::allocated}) {
    Bench bench(kind, std::size_t{2} << 20);
    bench.take(kSizes);
    bench.pool.write(bench.ranges(), kOther, bench.stream.handle());
    const std::size_t last = kSizes.size() - 1;
    *bench.byte(bench.offsets[last] + 900'000) ^= 1;
    *bench.byte(bench.offsets[last] - 1) ^= 1;  // beside the range
    for (const std::size_t range : {last, std::size_t{9}, std::size_t{1}}) {
      *bench.byte(bench.offsets[range]) ^= 1;
      const Audit audit = bench.audit(kOther);
      check::equal(audit.first_wrong_offset, bench.offsets[range], "offset");
      check::equal(audit.first_wrong_range.value_or(99), range, "range");
    }
    check::equal(bench.audit(kOther).wrong_bytes, 4U, "wrong bytes");
  }
}

void ranges_outside_of_the_pool_are_refused() {
  Bench bench(MemoryKind::device, 64);
  const auto refused = [&](Offsets offsets, Offsets bytes, Offsets sources) {
    check::thrown<std::invalid_argument>(
        [&] { bench.pool.write({offsets, bytes, sources}, kSeed, bench.stream.handle()); });
  };
  refused({1}, {64}, {0});
  refused({65}, {0}, {0});
  refused({~std::uint64_t{0}}, {2}, {0});
  refused({0}, {~std::uint64_t{0}}, {0});
  refused({0, 1}, {1}, {0});
  refused({0, 1}, {1, 1}, {0});
}

}  // namespace

int main() {
  return check::run({
      {"every byte is known from its place", every_byte_is_known_from_its_place},
      {"seeds that follow each other share no words", seeds_that_follow_each_other_share_no_words},
      {"ranges of any size and alignment are written, and nothing else",
       ranges_of_any_size_and_alignment_are_written_and_nothing_else_is},
      {"wrong bytes are counted and the first is named", wrong_bytes_are_counted_and_the_first_is_named},
      {"ranges outside of the pool are refused", ranges_outside_of_the_pool_are_refused},
  });
}
