#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "driver/driver.hpp"
#include "swap/slots.hpp"

namespace kvbench {

struct Descriptors;

/// A region, and the pool of which it is a slot; null: none.
struct PooledRegion {
  Region region;
  const Slots* slots = nullptr;

  [[nodiscard]] Span span() const { return slots ? slots->span() : Span{region.begin, region.bytes}; }
  [[nodiscard]] bool holds(Address address, std::size_t bytes) const {
    return region.holds(address, bytes) || (slots && slots->holds(address, bytes));
  }
};

/// Cache of the driver's memory regions. What a region takes does not depend on how many are known.
class Places {
 public:
  explicit Places(std::shared_ptr<Driver> driver) : driver_(std::move(driver)) {}

  /// Takes memory for one region, as its caller vouches, though the driver may know it in several. Throws
  /// std::invalid_argument if its first and its last byte are not of one kind that can be copied.
  void vouch(Address begin, std::size_t bytes);
  /// The region that holds a block. Asks the driver for memory that is not known, or that was smaller when it was asked
  /// for; the region of a block that leaves its memory holds its first byte alone.
  PooledRegion around(Address address, std::size_t bytes = 1);
  /// Whether kernels reach some region at another address than the host.
  [[nodiscard]] bool other_address() const { return other_address_; }

 private:
  PooledRegion ask(Address address);
  const Slots* pool_of(const Region& region);

  std::shared_ptr<Driver> driver_;
  std::map<Address, Region> vouched_, regions_;           ///< by where they begin; regions_ has no slots of pools
  std::map<std::pair<Place, std::size_t>, Slots> slots_;  ///< by where they are, and the size of each
  std::set<Slots*> pools_;                                ///< those of several slots
  bool other_address_ = false;
};

/// The memory of a block's ends.
struct Ends {
  PooledRegion from, to;

  [[nodiscard]] bool hold(Address source, Address destination, std::size_t bytes) const {
    return from.holds(source, bytes) && to.holds(destination, bytes);
  }
};

/// The route of a list, from pinned memory to the device or back. Every entry must lie wholly in one region at each
/// end; most entries have the same regions as the one before, or others of their slots.
class Route {
 public:
  explicit Route(std::shared_ptr<Driver> driver) : places_(std::move(driver)) {}

  void vouch(Address begin, std::size_t bytes) { places_.vouch(begin, bytes); }
  /// Begins with the first entry of a list. Throws InvalidEntry if there is no route for it.
  Direction begin(const Descriptors& list);
  /// The regions of the last entry that was looked up.
  [[nodiscard]] const Ends& ends() const { return ends_; }
  /// Throws InvalidEntry for the first of the entries from `first` to `end` that does not follow the route.
  void check(const Descriptors& list, std::size_t first, std::size_t end);
  /// Checks all entries, at less cost than one by one.
  void check(const Descriptors& list);
  /// Whether memory from these addresses on lies in one region at each end; its first block was checked.
  [[nodiscard]] bool in_one_region(Address source, Address destination, std::size_t bytes);
  [[nodiscard]] bool other_address() const { return places_.other_address(); }

 private:
  void follow(PooledRegion& end, const char* side, Address address, std::size_t bytes, std::size_t entry);

  Places places_;
  Ends ends_;
};

}  // namespace kvbench
