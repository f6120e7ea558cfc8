#pragma once

#include <cstddef>

#include "kernels/piece_map.hpp"
#include "swap/swap.hpp"

namespace kvbench {

/// A list of blocks: one row per block if all have the same size, else one row and one length per piece of
/// `piece_bytes`.
class BlockListing {
 public:
  BlockListing(Descriptors descriptors, std::size_t piece_bytes, Direction direction);

  /// The head for a kernel with pieces of this size.
  [[nodiscard]] List head(std::size_t piece_bytes) const;
  /// 0 if nothing is to be copied.
  [[nodiscard]] std::size_t table_bytes() const {
    return rows_ * (sizeof(Row) + (descriptors_.sizes.equal() ? 0 : sizeof(u32)));
  }
  /// Writes the list and checks its route. Returns the bitwise or of its addresses and sizes.
  Address write(void* table) const;

  /// The length of the same list in half of the bytes, by ids (see List); 0 if there can be none.
  [[nodiscard]] std::size_t packed_bytes() const;
  /// Writes that, checks its route, and completes its head. Returns false if it cannot be: addresses and sizes must be
  /// multiples of 16, all sizes those of the first block, all blocks within 32 GiB of it.
  bool pack(void* table, List& head) const;

 private:
  static constexpr Address kReach = Address{1} << (32 + kIdWord);

  /// Packs the list by ids. Returns false if it leaves the ends, or cannot be packed.
  bool pack_within(const Ends& ends, Route* route, void* table, List& head) const;

  Descriptors descriptors_;
  std::size_t piece_bytes_;
  List head_{};
  std::size_t rows_ = 0;
};

}  // namespace kvbench
