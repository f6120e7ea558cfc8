#include "swap/address_order.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <utility>

namespace kvbench {
namespace {

// The counts of a digit fit the first cache of a core.
constexpr unsigned kDigitBits = 12;
// Below this, the counts of a digit take longer than comparing.
constexpr std::size_t kCompareBelow = 512;

}  // namespace

bool AddressOrder::sort(std::span<const Address> addresses) {
  if (std::ranges::is_sorted(addresses)) return true;
  Address varying = 0;
  for (const Address address : addresses) varying |= address ^ addresses[0];
  // Bits that are equal in all addresses, such as the offset in a block, are left out: a word then has room for the
  // index too, and half the memory goes through the caches.
  const auto equal_bits = static_cast<unsigned>(std::countr_zero(varying));
  const auto key_bits = static_cast<unsigned>(std::bit_width(varying)) - equal_bits;
  const auto index_bits = static_cast<unsigned>(std::bit_width(addresses.size()));
  indices_.resize(addresses.size());
  if (addresses.size() < kCompareBelow || key_bits + index_bits > 64) {
    std::iota(indices_.begin(), indices_.end(), 0U);
    std::ranges::sort(indices_, {}, [&](std::uint32_t index) { return std::pair(addresses[index], index); });
    return false;
  }
  entries_.resize(addresses.size());
  scratch_.resize(addresses.size());
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    entries_[i] = (addresses[i] & varying) >> equal_bits << index_bits | i;
  }
  const unsigned digits = (key_bits + kDigitBits - 1) / kDigitBits, digit_bits = (key_bits + digits - 1) / digits;
  const Address digit_mask = (Address{1} << digit_bits) - 1, index_mask = (Address{1} << index_bits) - 1;
  for (unsigned shift = index_bits; shift < index_bits + key_bits; shift += digit_bits) {
    std::array<std::uint32_t, std::size_t{1} << kDigitBits> begins{};
    for (const Address entry : entries_) ++begins[entry >> shift & digit_mask];
    std::uint32_t begin = 0;
    for (std::uint32_t& count : begins) begin += std::exchange(count, begin);
    for (const Address entry : entries_) scratch_[begins[entry >> shift & digit_mask]++] = entry;
    entries_.swap(scratch_);
  }
  std::ranges::transform(entries_, indices_.begin(), [=](Address entry) { return entry & index_mask; });
  return false;
}

Descriptors HostOrder::arrange(const Descriptors& descriptors) {
  sorted_ = !order_.sort(direction_ == Direction::h2d ? descriptors.sources : descriptors.destinations);
  return sorted_ ? ordered_.take(descriptors, order_.indices()) : descriptors;
}

}  // namespace kvbench
