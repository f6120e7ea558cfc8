#include "swap/slots.hpp"

#include <bit>
#include <numeric>

namespace kvbench {
namespace {

/// Bits for more slots than this would take memory that others need.
constexpr std::size_t kMostSlots = std::size_t{1} << 22;

void set_bit(std::vector<std::uint64_t>& bits, std::size_t index) {
  bits[index / 64] |= std::uint64_t{1} << index % 64;
}

}  // namespace

void Slots::add(Address begin) {
  if (count_ == 0) return;
  const Address stride = std::gcd(stride_, begin > begin_ ? begin - begin_ : begin_ - begin);
  if (stride == 0) return;  // the first slot, again
  if (stride < bytes_) return give_up();
  if (stride != stride_ || begin < begin_ || (begin - begin_) / stride >= count_) stretch_to(begin, stride);
  if (count_ > 0) set_bit(asked_, (begin - begin_) / stride_);
}

void Slots::remove(Address begin) {
  if (count_ == 0 || begin < begin_) return;
  const std::size_t index = stride_ == 0 ? 0 : (begin - begin_) / stride_;
  if (index < count_) asked_[index / 64] &= ~(std::uint64_t{1} << index % 64);
}

/// Leaves room on the side to which the slots grow: those that come one by one are not copied each time.
void Slots::stretch_to(Address begin, Address stride) {
  Address low = std::min(begin, begin_);
  const Address high = begin_ + (count_ - 1) * stride_;
  std::size_t count = (std::max(begin, high) - low) / stride + 1;
  const bool too_far = (stride >> std::countr_zero(stride)) > (std::size_t{1} << 31) / (count + count / 2);
  if (count > kMostSlots || too_far) return give_up();
  if (begin < begin_ || begin > high) {
    const std::size_t room = std::min<Address>(count / 2, begin < begin_ ? low / stride : count);
    if (begin < begin_) low -= room * stride;
    count += room;
  }
  std::vector<std::uint64_t> asked(count / 64 + 1);
  for (std::size_t i = 0; i < count_; ++i) {
    if (asked_[i / 64] >> i % 64 & 1) set_bit(asked, (begin_ + i * stride_ - low) / stride);
  }
  asked_.swap(asked);
  begin_ = low;
  stride_ = stride;
  count_ = count;
  make_grid();
}

void Slots::give_up() {
  count_ = 0;
  asked_.assign(1, 0);
  make_grid();
}

void Slots::make_grid() {
  const unsigned zeros = stride_ == 0 ? 0 : static_cast<unsigned>(std::countr_zero(stride_));
  const Address stride = std::max<Address>(stride_ >> zeros, 1);
  const unsigned shift = 31 + static_cast<unsigned>(std::bit_width(stride - 1));
  const Address inverse = ((Address{1} << shift) + stride - 1) / stride;
  grid_ = {begin_,
           bytes_,
           asked_.data(),
           std::max<std::size_t>(count_, 1) - 1,
           zeros,
           shift,
           static_cast<std::uint32_t>(stride),
           static_cast<std::uint32_t>(inverse)};
}

}  // namespace kvbench
