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

  explicit Slots(const Region& first) : first_(first), begin_(first.begin), low_(begin_), high_(begin_) {}

  /// Adds a slot of this size. Returns false, and adds nothing, if its distance from the others shows no stride.
  bool add(Address begin);
  /// Removes the slots that had a part of this memory, which is another region's now.
  void remove(const Region& region);

  [[nodiscard]] bool several() const { return count_ > 1; }
  /// Whether the driver was asked about every slot from the lowest to the highest.
  [[nodiscard]] bool all() const { return (added_ - 1) * stride() == high_ - low_; }
  template <bool all>
  [[nodiscard]] Grid<all> grid() const {
    const Address begin = all ? low_ : begin_, last = all ? high_ : begin_ + (count_ - 1) * stride_;
    const auto bytes = static_cast<double>(first_.bytes), by = static_cast<double>(stride());
    return {{begin, last - begin + first_.bytes}, asked_.data(), count_ - 1, bytes, by, 1 / by};
  }
  [[nodiscard]] Span span() const { return all() ? Span{grid<true>()} : Span{grid<false>()}; }
  [[nodiscard]] bool holds(Address address, std::size_t size) const {
    return grid<false>().left_by(address - begin_, size) >> 63 == 0;
  }
  /// The slot that holds an address.
  [[nodiscard]] Region at(Address address) const {
    return {first_.place, address - (address - begin_) % stride(), first_.bytes};
  }

 private:
  bool stretch_to(Address begin, Address stride);
  void note(std::size_t index, bool asked);
  [[nodiscard]] Address stride() const { return std::max<Address>(stride_, first_.bytes); }

  Region first_;
  Address begin_;
  Address stride_ = 0;     ///< 0: of one slot
  std::size_t count_ = 1;  ///< slots that have a bit
  std::vector<std::uint64_t> asked_{1};
  Address low_, high_;     ///< the lowest slot that was added, and the highest
  std::size_t added_ = 1;  ///< slots whose bit is set
};

}  // namespace kvbench
