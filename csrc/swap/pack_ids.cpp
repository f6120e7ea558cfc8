#include "swap/pack_ids.hpp"

namespace kvbench {
namespace {

template <bool sizes_read>
[[gnu::always_inline]] inline PackedIds pack(const Descriptors& list, std::size_t size, const Bounds& bounds,
                                             Ids* ids) {
  PackedIds packed{.offsets = size, .left = 0, .differing = 0};
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Address source = list.sources[i] - bounds.from_begin, destination = list.destinations[i] - bounds.to_begin;
    if constexpr (!sizes_read) packed.differing |= list.bytes[i] ^ size;
    packed.offsets |= source | destination;
    packed.left |= bounds.left_by(list.sources[i], list.destinations[i]);
    ids[i] = {static_cast<u32>(source >> kIdWord), static_cast<u32>(destination >> kIdWord)};
  }
  return packed;
}

using Packing = PackedIds (*)(const Descriptors&, std::size_t, const Bounds&, Ids*);

#if defined(__x86_64__)
template <bool sizes_read>
[[gnu::target("avx512f")]] PackedIds pack_wide(const Descriptors& list, std::size_t size, const Bounds& bounds,
                                               Ids* ids) {
  return pack<sizes_read>(list, size, bounds, ids);
}
#endif

/// The loop for this CPU: with wide registers it takes half the time.
Packing packing(bool sizes_read) {
#if defined(__x86_64__)
  static const bool is_wide = __builtin_cpu_supports("avx512f") != 0;
  if (is_wide) return sizes_read ? pack_wide<true> : pack_wide<false>;
#endif
  return sizes_read ? pack<true> : pack<false>;
}

}  // namespace

PackedIds pack_ids(const Descriptors& list, const BlockSizes& sizes, const Bounds& bounds, Ids* ids) {
  return packing(sizes.are == BlockSizes::Are::read)(list, sizes.first, bounds, ids);
}

}  // namespace kvbench
