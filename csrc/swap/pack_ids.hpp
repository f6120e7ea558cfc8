#pragma once

#include <cstddef>

#include "kernels/piece_map.hpp"
#include "swap/swap.hpp"

namespace kvbench {

inline constexpr unsigned kIdWord = 4;  ///< log2 of the bytes in which ids count

/// Bits over all entries of a list that was packed.
struct PackedIds {
  Address offsets;        ///< of the size, and of every offset from its region
  Address left;           ///< has the highest bit set if an entry leaves its regions
  std::size_t differing;  ///< in which a size differs from the first; 0 if sizes are known
};

/// Writes the ids of a list, which count from the start of `ends`.
PackedIds pack_ids(const Descriptors& list, const BlockSizes& sizes, const Ends& ends, Ids* ids);

}  // namespace kvbench
