#pragma once

#include <cstddef>

#include "kernels/piece_map.hpp"
#include "swap/swap.hpp"

namespace kvbench {

/// Bits over all entries of a list that was packed.
struct PackedIds {
  Address offsets;  ///< of the size, and of every offset from its region
  Address left;     ///< has the highest bit set if an entry leaves its bounds
};

/// Writes the ids of a list of one size, which count from where the bounds begin.
PackedIds pack_ids(const Descriptors& list, const Bounds& bounds, Ids* ids);

}  // namespace kvbench
