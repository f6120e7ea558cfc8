#include "swap/address_order.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace kvbench {
namespace {

constexpr unsigned kDigitBits = 11;
constexpr std::size_t kDigits = std::size_t{1} << kDigitBits;
// Below this, the counts of a digit take longer than comparing.
constexpr std::size_t kCompareBelow = 512;

std::size_t digit_of(Address key, unsigned shift) { return (key >> shift) & (kDigits - 1); }

}  // namespace

bool AddressOrder::sort(std::span<const Address> addresses) {
  if (std::ranges::is_sorted(addresses)) return true;
  Address varying = 0;
  entries_.resize(addresses.size());
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    entries_[i] = {addresses[i], static_cast<std::uint32_t>(i)};
    varying |= addresses[i] ^ addresses[0];
  }
  if (addresses.size() < kCompareBelow) {
    std::ranges::sort(entries_, {}, [](const Entry& entry) { return std::pair(entry.key, entry.index); });
    varying = 0;
  }
  scratch_.resize(entries_.size());
  // Digits that are equal in all addresses, such as the offset in a block, are skipped.
  for (unsigned shift = 0; shift < 64 && varying >> shift != 0;) {
    if ((varying >> shift & 1) == 0) {
      ++shift;
      continue;
    }
    std::array<std::uint32_t, kDigits> begins{};
    for (const Entry& entry : entries_) ++begins[digit_of(entry.key, shift)];
    std::uint32_t begin = 0;
    for (std::uint32_t& count : begins) begin += std::exchange(count, begin);
    for (const Entry& entry : entries_) scratch_[begins[digit_of(entry.key, shift)]++] = entry;
    entries_.swap(scratch_);
    shift += kDigitBits;
  }
  indices_.resize(entries_.size());
  std::ranges::transform(entries_, indices_.begin(), &Entry::index);
  return false;
}

Descriptors HostOrder::arrange(const Descriptors& descriptors) {
  sorted_ = !order_.sort(direction_ == Direction::h2d ? descriptors.sources : descriptors.destinations);
  return sorted_ ? ordered_.take(descriptors, order_.indices()) : descriptors;
}

}  // namespace kvbench
