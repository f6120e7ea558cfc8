#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "driver/driver.hpp"

namespace kvbench {

/// Where a driver's memory lies, as far as it was asked: adjoining regions of one place become one.
class Places {
 public:
  explicit Places(std::shared_ptr<Driver> driver) : driver_(std::move(driver)) { regions_.reserve(64); }

  /// The known region around an address; a pageable region is empty.
  Region around(Address address) {
    const auto after = std::ranges::upper_bound(regions_, address, {}, &Region::begin);
    if (after != regions_.begin() && std::prev(after)->holds(address)) return *std::prev(after);
    Region region = driver_->region_of(address);
    if (region.place == Place::pageable) return region;
    // Of pools that were freed.
    std::erase_if(regions_, [&](const Region& old) {
      return old.begin < region.begin + region.bytes && region.begin < old.begin + old.bytes;
    });
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

 private:
  static bool adjoin(const Region& one, const Region& next) {
    return one.place == next.place && one.begin + one.bytes == next.begin;
  }

  std::shared_ptr<Driver> driver_;
  std::vector<Region> regions_;  ///< in ascending order
};

/// The regions of one entry's ends. Every entry of a list has to go from one place to another; most have the same
/// regions.
struct Ends {
  Region from, to;

  /// Has the highest bit set if an entry leaves these regions: without a branch, so that loops are vectorized.
  [[nodiscard]] Address left_by(Address source, Address destination) const {
    return (source - from.begin) | (from.begin + from.bytes - 1 - source) | (destination - to.begin) |
           (to.begin + to.bytes - 1 - destination);
  }
};

/// The route of a list: from pinned memory to the device, or back.
class Route {
 public:
  explicit Route(std::shared_ptr<Driver> driver) : places_(std::move(driver)) {}

  /// Begins with the first entry of a list. Throws std::invalid_argument if it does not go such a route.
  Direction begin(Address source, Address destination) {
    ends_ = {places_.around(source), places_.around(destination)};
    if (ends_.from.place == Place::pinned && ends_.to.place == Place::device) return Direction::h2d;
    if (ends_.from.place == Place::device && ends_.to.place == Place::pinned) return Direction::d2h;
    throw std::invalid_argument("blocks must go from pinned host memory to device memory, or from device to pinned");
  }

  /// The regions of the last entry that was checked.
  [[nodiscard]] const Ends& ends() const { return ends_; }

  /// Throws std::invalid_argument if one of these entries goes another route than the first one of the list.
  void check(std::span<const Address> sources, std::span<const Address> destinations) {
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (follow(ends_.from, sources[i]) && follow(ends_.to, destinations[i])) continue;
      throw std::invalid_argument(
          "all blocks of a list must go from pinned host memory to device memory, or all from device to pinned");
    }
  }

 private:
  bool follow(Region& end, Address address) {
    if (end.holds(address)) return true;
    const Region region = places_.around(address);
    if (region.place != end.place) return false;
    end = region;
    return true;
  }

  Places places_;
  Ends ends_;
};

/// Calls `each` for the index of every entry, and checks the entries against a route, if there is one.
template <typename Each>
void for_each_on(Route* route, std::span<const Address> sources, std::span<const Address> destinations,
                 const Each& each) {
  constexpr std::size_t kAtOnce = 512;
  if (!route) {
    for (std::size_t i = 0; i < sources.size(); ++i) each(i);
    return;
  }
  for (std::size_t begin = 0; begin < sources.size(); begin += kAtOnce) {
    const std::size_t end = std::min(begin + kAtOnce, sources.size());
    const Ends ends = route->ends();
    Address left = 0;
    for (std::size_t i = begin; i < end; ++i) {
      left |= ends.left_by(sources[i], destinations[i]);
      each(i);
    }
    if (left >> 63) {
      route->check(sources.subspan(begin, end - begin), destinations.subspan(begin, end - begin));
    }
  }
}

/// Checks every entry of a list against a route that its first entry began.
inline void check_entries(Route& route, std::span<const Address> sources, std::span<const Address> destinations) {
  for_each_on(&route, sources, destinations, [](std::size_t) {});
}

}  // namespace kvbench
