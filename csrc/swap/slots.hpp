#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "driver/driver.hpp"

namespace kvbench {

/// Equal regions at equal distances, such as the slots of a pool that were registered one by one: a base, a stride, a
/// length, and a bit for each slot that the driver was asked about. The stride is learned: the largest number that
/// divides every distance.
class Slots {
 public:
  /// What a loop over blocks needs. Distances are divided by the stride with a multiplication: without the zeros at
  /// their ends, both have 31 bits.
  struct Grid {
    Address begin;
    std::size_t bytes;           ///< of a slot
    const std::uint64_t* asked;  ///< a bit for each slot
    Address last;                ///< index of the last slot
    unsigned zeros;              ///< at the end of the stride
    unsigned shift;              ///< of a product with `inverse`
    std::uint32_t stride;        ///< without its zeros
    std::uint32_t inverse;       ///< of the stride, rounded up

    /// Has the highest bit set if a block does not lie wholly in one slot that the driver was asked about: without a
    /// branch, so that loops are vectorized.
    [[nodiscard]] Address left_by(Address address, std::size_t size) const {
      const Address offset = address - begin;
      const auto words = static_cast<std::uint32_t>(offset >> zeros);
      const Address index = std::min(std::uint64_t{words} * inverse >> shift, last);
      const Address within = offset - (std::uint64_t{static_cast<std::uint32_t>(index)} * stride << zeros);
      const Address known = asked[index >> 6] >> (index & 63);
      return within | (bytes - size - within) | ~known << 63;
    }
  };

  Slots(Address begin, std::size_t bytes) : bytes_(bytes), begin_(begin), asked_{1} { make_grid(); }

  /// Adds a slot of this size. If its distance shows that there is no stride, the slots hold nothing from then on.
  void add(Address begin);
  /// Removes a slot, whose memory was freed.
  void remove(Address begin);

  [[nodiscard]] bool several() const { return count_ > 1; }
  [[nodiscard]] const Grid& grid() const { return grid_; }
  [[nodiscard]] bool holds(Address address, std::size_t size) const { return grid_.left_by(address, size) >> 63 == 0; }

 private:
  void stretch_to(Address begin, Address stride);
  void give_up();
  void make_grid();

  std::size_t bytes_;
  Address begin_;
  Address stride_ = 0;     ///< 0: of one slot
  std::size_t count_ = 1;  ///< slots that have a bit
  std::vector<std::uint64_t> asked_;
  Grid grid_{};
};

}  // namespace kvbench
