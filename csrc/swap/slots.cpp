#include "swap/slots.hpp"

#include <numeric>

namespace kvbench {

bool Slots::add(Address begin) {
  const Address stride = std::gcd(stride_, begin > begin_ ? begin - begin_ : begin_ - begin);
  const bool is_new = stride != stride_ || begin - begin_ > (count_ - 1) * stride_;
  if (is_new && !stretch_to(begin, stride)) return false;
  low_ = std::min(low_, begin);
  high_ = std::max(high_, begin);
  note((begin - begin_) / this->stride(), true);
  return true;
}

void Slots::remove(const Region& region) {
  std::size_t index = (std::max(region.begin, low_) - begin_) / stride();
  for (Address at = begin_ + index * stride(); at <= high_ && at < region.end(); at += stride(), ++index) {
    if (region.begin < at + first_.bytes) note(index, false);
  }
}

/// Notes whether the driver's answer about a slot holds.
void Slots::note(std::size_t index, bool asked) {
  const std::uint64_t bit = std::uint64_t{1} << index % 64;
  if (((asked_[index / 64] & bit) != 0) == asked) return;
  asked_[index / 64] ^= bit;
  added_ += asked ? 1 : -1;
}

/// Leaves room on the side to which the slots grow: those that come one by one are not copied each time.
bool Slots::stretch_to(Address begin, Address stride) {
  constexpr std::size_t kMostSlots = std::size_t{1} << 22;  // bits for more would take memory that others need
  constexpr Address kLongest = Address{1} << 50;            // doubles are to be exact
  Address low = std::min(begin, begin_);
  const Address high = begin_ + (count_ - 1) * stride_;
  std::size_t count = (std::max(begin, high) - low) / stride + 1;
  if (stride < first_.bytes || count > kMostSlots || stride > kLongest / (count + count / 2)) return false;
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
  return true;
}

}  // namespace kvbench
