#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "memory/bytes.hpp"

namespace {

using kvbench::CopiedRanges;
using kvbench::Verdict;
using Bytes = std::vector<unsigned char>;
using Offsets = std::vector<std::uint64_t>;

constexpr unsigned char kPoison = 0xA5;

/// A source, a destination into which its ranges were copied, and the ranges.
struct Copied {
  Bytes source;
  Bytes destination;
  Offsets from;
  Offsets to;
  Offsets bytes;

  Verdict verify() const { return kvbench::verify(destination, source, CopiedRanges{from, to, bytes}, kPoison); }
};

Copied copied(std::size_t size, std::size_t block) {
  Copied swap{Bytes(size), Bytes(size, kPoison), {}, {}, {}};
  kvbench::fill_random(swap.source, 42);
  for (std::size_t at = 3; at + 2 * block < size; at += 2 * block + 1) {
    swap.from.push_back(size - at - block);
    swap.to.push_back(at);
    swap.bytes.push_back(block);
    std::copy_n(swap.source.begin() + static_cast<std::ptrdiff_t>(size - at - block), block,
                swap.destination.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return swap;
}

void a_right_copy_has_no_wrong_byte() {
  for (const std::size_t size : {std::size_t{4096}, std::size_t{20} << 20}) {
    const Copied swap = copied(size, 1000);
    const Verdict verdict = swap.verify();
    check::equal(verdict.wrong_bytes, 0U, "wrong bytes");
    check::equal(verdict.checked_bytes, size, "checked bytes");
  }
}

void every_kind_of_wrong_byte_is_found_where_it_is() {
  const Copied right = copied(std::size_t{20} << 20, 1000);
  const std::size_t many = right.to.size() / 2;
  for (const std::uint64_t offset :
       {std::uint64_t{0}, right.to[0], right.to[many] + 999, right.to[many] + 1000, right.destination.size() - 1}) {
    Copied wrong = right;
    wrong.destination[offset] ^= 1;
    const Verdict verdict = wrong.verify();
    check::equal(verdict.wrong_bytes, 1U, "wrong bytes");
    check::equal(verdict.first_wrong_offset, offset, "offset");
    const bool inside = offset == right.to[0] || offset == right.to[many] + 999;
    check::equal(verdict.first_wrong_range.has_value(), inside, "inside of a range");
  }
}

void the_first_of_several_is_named() {
  Copied wrong = copied(std::size_t{20} << 20, 1000);
  wrong.destination[wrong.to.back()] ^= 1;
  wrong.destination[wrong.to[5] + 17] ^= 1;
  const Verdict verdict = wrong.verify();
  check::equal(verdict.wrong_bytes, 2U, "wrong bytes");
  check::equal(verdict.first_wrong_offset, wrong.to[5] + 17, "offset");
  check::equal(verdict.first_wrong_range.value_or(0), 5U, "range");
}

void overlapping_and_outlying_ranges_are_refused() {
  Copied swap{Bytes(100), Bytes(100), {0, 10}, {0, 9}, {10, 10}};
  check::thrown<std::invalid_argument>([&] { swap.verify(); });
  swap = {Bytes(100), Bytes(100), {0}, {91}, {10}};
  check::thrown<std::invalid_argument>([&] { swap.verify(); });
}

void random_fill_reaches_the_last_byte_and_follows_the_seed() {
  Bytes a(1003, 0), b(1003, 0), c(1003, 0);
  kvbench::fill_random(a, 1);
  kvbench::fill_random(b, 1);
  kvbench::fill_random(c, 2);
  check::that(a == b, "one seed, one content");
  check::that(a != c, "another seed, another content");
  const auto zeros = std::count(a.begin(), a.end(), 0);
  check::that(zeros < 30, "no stretch is left unfilled");
}

}  // namespace

int main() {
  return check::run({
      {"a right copy has no wrong byte", a_right_copy_has_no_wrong_byte},
      {"every kind of wrong byte is found where it is", every_kind_of_wrong_byte_is_found_where_it_is},
      {"the first of several is named", the_first_of_several_is_named},
      {"overlapping and outlying ranges are refused", overlapping_and_outlying_ranges_are_refused},
      {"random fill reaches the last byte", random_fill_reaches_the_last_byte_and_follows_the_seed},
  });
}
