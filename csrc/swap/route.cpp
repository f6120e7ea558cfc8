#include "swap/route.hpp"

#include <array>
#include <charconv>
#include <iterator>

#include "swap/swap.hpp"

namespace kvbench {
namespace {

constexpr const char* kRoutes =
    "blocks must go from pinned host memory to device memory, or all from device memory to pinned";

std::string name_of(const Region& region) {
  const std::string device = "cuda:" + std::to_string(region.device);
  switch (region.place) {
    case Place::device:
      return "device memory";
    case Place::pinned:
      return "pinned host memory";
    case Place::managed:
      return "managed memory of " + device;
    case Place::other_device:
      return "memory of " + device + ", which is not the copier's device";
    case Place::pageable:
      break;
  }
  return "pageable memory, or memory of nobody";
}

[[noreturn]] void refuse(std::size_t entry, const char* side, Address address, const std::string& why) {
  // Not by a stream: with a static libstdc++, a number in a stream crashes where torch has loaded another one (GCC 13).
  std::array<char, 16> digits{};
  const auto written = std::to_chars(digits.begin(), digits.end(), address, 16);
  throw InvalidEntry(entry, std::string(side) + " 0x" + std::string(digits.begin(), written.ptr) + why);
}

template <bool equal>
Address left_by_all(const Descriptors& list, const Ends& ends, std::size_t first, std::size_t end) {
  const Bounds bounds = ends.bounds(equal ? list.sizes.first : 0);
  Address left = 0;
  for (std::size_t i = first; i < end; ++i) {
    const Address source = list.sources[i], destination = list.destinations[i];
    left |= bounds.left_by(source, destination);
    if constexpr (!equal) {
      left |= (bounds.from_last - source - list.bytes[i]) | (bounds.to_last - destination - list.bytes[i]);
    }
  }
  return left;
}

}  // namespace

const Region* Places::known(Address address) const {
  const auto after = std::ranges::upper_bound(regions_, address, {}, &Region::begin);
  return after != regions_.begin() && std::prev(after)->holds(address) ? &*std::prev(after) : nullptr;
}

Region Places::around(Address address, std::size_t bytes) {
  const Region* region = known(address);
  if (region && region->holds(address, bytes)) return *region;
  Region found = ask(address);
  while (found.mapped && !found.holds(address, bytes)) {
    const Address end = found.end();
    ask(end);
    found = known(address) ? *known(address) : found;
    if (found.end() == end) break;
  }
  return found;
}

Region Places::ask(Address address) {
  Region region = driver_->region_of(address);
  if (region.place != Place::device && region.place != Place::pinned) return region;
  other_address_ |= region.other_address;
  // Of pools that were freed, or that have grown.
  std::erase_if(regions_, [&](const Region& old) { return old.begin < region.end() && region.begin < old.end(); });
  const auto adjoin = [](const Region& one, const Region& next) {
    return one.mapped && next.mapped && one.end() == next.begin;
  };
  auto at = std::ranges::lower_bound(regions_, region.begin, {}, &Region::begin);
  if (at != regions_.end() && adjoin(region, *at)) {
    region.bytes += at->bytes;
    at = regions_.erase(at);
  }
  if (at != regions_.begin() && adjoin(*std::prev(at), region)) {
    std::prev(at)->bytes += region.bytes;
    return *std::prev(at);
  }
  return *regions_.insert(at, region);
}

Direction Route::begin(const Descriptors& list) {
  const Address source = list.sources.front(), destination = list.destinations.front();
  ends_ = {places_.around(source), places_.around(destination)};
  const bool is_h2d = ends_.from.place == Place::pinned && ends_.to.place == Place::device;
  if (!is_h2d && !(ends_.from.place == Place::device && ends_.to.place == Place::pinned)) {
    const bool from_is_bad = ends_.from.place != Place::pinned && ends_.from.place != Place::device;
    const Region& region = from_is_bad ? ends_.from : ends_.to;
    refuse(0, from_is_bad ? "source" : "destination", from_is_bad ? source : destination,
           " is " + name_of(region) + "; " + kRoutes);
  }
  check(list, 0, 1);
  return is_h2d ? Direction::h2d : Direction::d2h;
}

void Route::check(const Descriptors& list, std::size_t first, std::size_t end) {
  for (std::size_t i = first; i < end; ++i) {
    follow(ends_.from, "source", list.sources[i], list.bytes[i], i);
    follow(ends_.to, "destination", list.destinations[i], list.bytes[i], i);
  }
}

void Route::check(const Descriptors& list) {
  constexpr std::size_t kAtOnce = 512;
  const auto left_by = list.sizes.equal() ? left_by_all<true> : left_by_all<false>;
  for (std::size_t begin = 0; begin < list.size(); begin += kAtOnce) {
    const std::size_t end = std::min(begin + kAtOnce, list.size());
    if (left_by(list, ends_, begin, end) >> 63) check(list, begin, end);
  }
}

bool Route::in_one_region(Address source, Address destination, std::size_t bytes) {
  if (ends_.hold(source, destination, bytes)) return true;
  return places_.around(source).holds(source, bytes) && places_.around(destination).holds(destination, bytes);
}

void Route::follow(Region& end, const char* side, Address address, std::size_t bytes, std::size_t entry) {
  if (end.holds(address, bytes)) return;
  const Region region = places_.around(address, bytes);
  if (region.place != end.place) {
    refuse(entry, side, address, " is " + name_of(region) + "; all " + kRoutes);
  }
  if (!region.holds(address, bytes)) {
    refuse(entry, side, address,
           " has " + std::to_string(region.end() - address) + " bytes left in its " + name_of(region) +
               ", fewer than the block's " + std::to_string(bytes));
  }
  end = region;
}

}  // namespace kvbench
