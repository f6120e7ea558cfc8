#include "swap/slots.hpp"

#include <numeric>

namespace kvbench {
namespace {

/// Bits for more slots than this would take memory that others need.
constexpr std::size_t kMostSlots = std::size_t{1} << 22;

/// Doubles are to be exact.
constexpr Address kLongest = Address{1} << 50;

}  // namespace

void Slots::add(Address begin) {
  if (count_ == 0) return;
  const Address stride = std::gcd(stride_, begin > begin_ ? begin - begin_ : begin_ - begin);
  const bool is_new = stride > 0 && (stride != stride_ || begin < begin_ || (begin - begin_) / stride >= count_);
  if (is_new) stretch_to(begin, stride);
  note(begin, true);
}

void Slots::remove(Address begin) { note(begin, false); }

/// Notes whether the driver's answer about a slot holds.
void Slots::note(Address begin, bool asked) {
  const std::size_t index = begin < begin_ ? count_ : (begin - begin_) / std::max<Address>(stride_, 1);
  if (index >= count_) return;
  const std::uint64_t bit = std::uint64_t{1} << index % 64;
  if (((asked_[index / 64] & bit) != 0) == asked) return;
  asked_[index / 64] ^= bit;
  added_ += asked ? 1 : -1;
  low_ = std::min(low_, begin);
  high_ = std::max(high_, begin);
  all_ = added_ == (high_ - low_) / std::max<Address>(stride_, 1) + 1;
}

/// Leaves room on the side to which the slots grow: those that come one by one are not copied each time.
void Slots::stretch_to(Address begin, Address stride) {
  Address low = std::min(begin, begin_);
  const Address high = begin_ + (count_ - 1) * stride_;
  std::size_t count = (std::max(begin, high) - low) / stride + 1;
  if (stride < bytes_ || count > kMostSlots || stride > kLongest / (count + count / 2)) {
    count_ = 0;  // there is no stride
    return;
  }
  if (begin < begin_ || begin > high) {
    const std::size_t room = std::min<Address>(count / 2, begin < begin_ ? low / stride : count);
    if (begin < begin_) low -= room * stride;
    count += room;
  }
  std::vector<std::uint64_t> asked(count / 64 + 1);
  for (std::size_t i = 0; i < count_; ++i) {
    const std::size_t index = (begin_ + i * stride_ - low) / stride;
    asked[index / 64] |= (asked_[i / 64] >> i % 64 & 1) << index % 64;
  }
  asked_.swap(asked);
  begin_ = low;
  stride_ = stride;
  count_ = count;
}

}  // namespace kvbench
