#include "swap/pack_ids.hpp"

namespace kvbench {
namespace {

enum class Work { check_one_size, check_sizes, pack };

template <Work work, typename From, typename To>
[[gnu::always_inline]] inline EntryBits look(const Descriptors& list, From from, To to, std::size_t first,
                                             std::size_t end, Ids* ids) {
  EntryBits seen{.offsets = list.sizes.first};
  for (std::size_t i = first; i < end; ++i) {
    const Address source = list.sources[i] - from.begin, destination = list.destinations[i] - to.begin;
    const std::size_t size = work == Work::check_sizes ? list.bytes[i] : list.sizes.first;
    seen.left |= from.left_by(source, size) | to.left_by(destination, size);
    if constexpr (work != Work::pack) continue;
    seen.offsets |= source | destination;
    ids[i] = {static_cast<u32>(source >> kIdWord), static_cast<u32>(destination >> kIdWord)};
  }
  return seen;
}

#if defined(__x86_64__)
template <Work work, typename From, typename To>
[[gnu::target("avx2,fma")]] EntryBits look_wide(const Descriptors& list, From from, To to, std::size_t first,
                                                std::size_t end, Ids* ids) {
  return look<work>(list, from, to, first, end, ids);
}

template <Work work, typename From, typename To>
[[gnu::target("avx512f")]] EntryBits look_widest(const Descriptors& list, From from, To to, std::size_t first,
                                                 std::size_t end, Ids* ids) {
  return look<work>(list, from, to, first, end, ids);
}
#endif

/// By the loop for this CPU: with wide registers it takes half the time.
template <Work work, typename From, typename To>
EntryBits look_by(const Descriptors& list, From from, To to, std::size_t first, std::size_t end, Ids* ids) {
#if defined(__x86_64__)
  static const bool is_widest = __builtin_cpu_supports("avx512f") != 0;
  if (is_widest) return look_widest<work>(list, from, to, first, end, ids);
  static const bool is_wide = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  if (is_wide) return look_wide<work>(list, from, to, first, end, ids);
#endif
  return look<work>(list, from, to, first, end, ids);
}

template <typename Use>
EntryBits with(const PooledRegion& end, const Use& use) {
  if (!end.slots) return use(end.span());
  return end.slots->all() ? use(end.slots->grid<true>()) : use(end.slots->grid<false>());
}

template <Work work>
EntryBits look_between(const Descriptors& list, const Ends& ends, std::size_t first, std::size_t end, Ids* ids) {
  return with(ends.from, [&](auto from) {
    return with(ends.to, [&](auto to) { return look_by<work>(list, from, to, first, end, ids); });
  });
}

}  // namespace

EntryBits look_at(const Descriptors& list, const Ends& ends, std::size_t first, std::size_t end) {
  const auto look = list.sizes.equal() ? look_between<Work::check_one_size> : look_between<Work::check_sizes>;
  return look(list, ends, first, end, nullptr);
}

EntryBits pack_ids(const Descriptors& list, const Ends& ends, Ids* ids) {
  return look_between<Work::pack>(list, ends, 0, list.size(), ids);
}

}  // namespace kvbench
