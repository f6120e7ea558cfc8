#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "driver/driver.hpp"

namespace kvbench {

/// Where blocks may lie, as a loop over them looks at it. left_by() takes a block by its offset from `begin`, and has
/// the highest bit set if it leaves: without a branch, so that loops are vectorized.
struct Span {
  Address begin;
  std::size_t bytes;

  [[nodiscard]] Address left_by(Address offset, std::size_t size) const {
    const Address room = bytes - size;
    return offset | room | (room - offset);
  }
};

/// Equal regions at equal distances, such as the slots of a pool that were registered one by one: a base, a stride, a
/// length, and a bit for each slot that the driver was asked about. The stride is learned: the largest number that
/// divides every distance.
class Slots {
 public:
  /// From the first slot to the last; `all`: the driver was asked about each. Computes in doubles, which are exact
  /// below 2^52, as CPUs have no multiplication of vectors of 64-bit integers.
  template <bool all>
  struct Grid : Span {
    static constexpr double kOne = 0x1p52, kNearest = 0x1.8p52;  ///< the lowest bit of their fractions counts 1

    const std::uint64_t* asked;  ///< a bit for each slot
    Address last;                ///< index of the last slot
    double slot_bytes, stride, inverse;

    static double number(Address below_2_52) {
      return std::bit_cast<double>(below_2_52 | std::bit_cast<Address>(kOne)) - kOne;
    }
    [[nodiscard]] Address left_by(Address offset, std::size_t size) const {
      const double at = number(offset);
      const double index = (at - (slot_bytes - 1) / 2) * inverse + kNearest;  // of the slot with the nearest middle
      const double within = at - (index - kNearest) * stride;
      const double room = slot_bytes - number(size) - within;
      const Address left = Span::left_by(offset, size) | std::bit_cast<Address>(within) | std::bit_cast<Address>(room);
      if constexpr (all) return left;
      const Address bit = std::min(std::bit_cast<Address>(index) - std::bit_cast<Address>(kNearest), last);
      return left | ~(asked[bit >> 6] >> (bit & 63)) << 63;
    }
  };

  Slots(Address begin, std::size_t bytes) : bytes_(bytes), begin_(begin), low_(begin), high_(begin) {}

  /// Adds a slot of this size. If its distance shows that there is no stride, the slots hold nothing from then on.
  void add(Address begin);
  /// Removes a slot, whose memory was freed.
  void remove(Address begin);

  [[nodiscard]] bool several() const { return count_ > 1; }
  /// Whether the driver was asked about every slot from the lowest to the highest.
  [[nodiscard]] bool all() const { return all_; }
  template <bool all>
  [[nodiscard]] Grid<all> grid() const {
    const Address begin = all ? low_ : begin_, last = all ? high_ : begin_ + (count_ - 1) * stride_;
    const auto stride = static_cast<double>(std::max<Address>(stride_, bytes_));
    return {{begin, last - begin + bytes_}, asked_.data(), count_ - 1, static_cast<double>(bytes_), stride, 1 / stride};
  }
  [[nodiscard]] Span span() const { return all_ ? Span{grid<true>()} : Span{grid<false>()}; }
  [[nodiscard]] bool holds(Address address, std::size_t size) const {
    return count_ > 0 && grid<false>().left_by(address - begin_, size) >> 63 == 0;
  }

 private:
  void stretch_to(Address begin, Address stride);
  void note(Address begin, bool asked);

  std::size_t bytes_;
  Address begin_;
  Address stride_ = 0;     ///< 0: of one slot
  std::size_t count_ = 1;  ///< slots that have a bit; 0: none, as there is no stride
  std::vector<std::uint64_t> asked_{1};
  Address low_, high_;     ///< the lowest slot that was added, and the highest
  std::size_t added_ = 1;  ///< slots whose bit is set
  bool all_ = true;
};

}  // namespace kvbench
