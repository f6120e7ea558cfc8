#pragma once

#include <cstddef>

#include "kernels/piece_map.hpp"
#include "swap/swap.hpp"

namespace kvbench {

/// Bits over entries of a list.
struct EntryBits {
  Address offsets = 0;  ///< of the size, and of every offset from the memory of its end
  Address left = 0;     ///< has the highest bit set if an entry does not lie wholly in memory of the ends
};

/// Looks at the entries from `first` to `end`, for `left` alone.
EntryBits look_at(const Descriptors& list, const Ends& ends, std::size_t first, std::size_t end);
/// Writes the ids of a list of one size, which count from where the memory of its ends begins.
EntryBits pack_ids(const Descriptors& list, const Ends& ends, Ids* ids);

}  // namespace kvbench
