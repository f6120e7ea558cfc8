#include "swap/route.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <stdexcept>
#include <string>

#include "swap/pack_ids.hpp"
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

void refuse_read_only(const Region& region, Address address, std::size_t entry) {
  if (region.read_only) refuse(entry, "destination", address, " is pinned host memory that was registered read-only");
}

/// The last of the regions that begin before an address, if it holds the block there; null: it does not.
const Region* holding(const std::map<Address, Region>& regions, Address address, std::size_t bytes) {
  const auto after = regions.upper_bound(address);
  if (after == regions.begin() || !std::prev(after)->second.holds(address, bytes)) return nullptr;
  return &std::prev(after)->second;
}

/// Whether regions overlap, or are parts of one mapping that adjoin.
bool meet(const Region& left, const Region& right) {
  const Address adjoin = left.mapped && right.mapped ? 1 : 0;
  return left.begin < right.end() + adjoin && right.begin < left.end() + adjoin;
}

}  // namespace

void Places::vouch(Address begin, std::size_t bytes) {
  Region region = driver_->region_of(begin);
  const Region last = driver_->region_of(begin + bytes - 1);
  const bool is_known = region.place == Place::device || region.place == Place::pinned;
  if (bytes == 0 || begin + bytes < begin || !is_known || last.place != region.place) {
    throw std::invalid_argument("begins in " + name_of(region) + " and ends in " + name_of(last) +
                                "; it must be pinned host memory or device memory");
  }
  other_address_ |= region.other_address || last.other_address;
  region.read_only |= last.read_only;
  region.begin = begin;
  region.bytes = bytes;
  if (holding(vouched_, begin, bytes)) return;
  // None has another within it, so that of those that begin before a block the last to begin is the last to end.
  auto next = vouched_.lower_bound(begin);
  while (next != vouched_.end() && next->second.end() <= region.end()) next = vouched_.erase(next);
  vouched_.emplace(begin, region);
  pool_of(region);
}

PooledRegion Places::around(Address address, std::size_t bytes) {
  for (const Slots* pool : pools_) {
    if (pool->holds(address, bytes)) return {pool->at(address), pool};
  }
  if (const Region* pool = holding(vouched_, address, bytes)) return {*pool};
  if (const Region* region = holding(regions_, address, bytes)) return {*region};
  PooledRegion last = ask(address);
  while (last.region.mapped && !last.region.holds(address, bytes)) {
    const PooledRegion next = ask(last.region.end());
    if (!next.region.holds(address)) break;
    last = next;
  }
  return last;
}

PooledRegion Places::ask(Address address) {
  Region region = driver_->region_of(address);
  if (region.place != Place::device && region.place != Place::pinned) return {region};
  other_address_ |= region.other_address;
  for (Slots* pool : pools_) pool->remove(region);  // of a pool that was freed, or that has grown
  auto next = regions_.lower_bound(region.begin);
  if (next != regions_.begin() && meet(std::prev(next)->second, region)) --next;
  while (next != regions_.end() && meet(next->second, region)) {
    const Region& old = next->second;
    if (old.mapped && region.mapped) {
      const Address end = std::max(old.end(), region.end());
      region.begin = std::min(old.begin, region.begin);
      region.bytes = end - region.begin;
    } else if (const auto slots = slots_.find({old.place, old.bytes}); slots != slots_.end()) {
      slots->second.remove(region);
    }
    next = regions_.erase(next);
  }
  const Slots* pool = pool_of(region);
  if (!pool) regions_.emplace_hint(next, region.begin, region);
  return {region, pool};
}

/// Blocks may lie across memory that is mapped, and nothing is copied to memory that is read alone: neither is a slot.
const Slots* Places::pool_of(const Region& region) {
  constexpr std::size_t kMostPools = 64;  // each lookup goes through them
  if (region.mapped || region.read_only) return nullptr;
  Slots& slots = slots_.try_emplace({region.place, region.bytes}, region).first->second;
  if (!slots.add(region.begin)) return nullptr;
  if (slots.several() && pools_.size() < kMostPools) pools_.insert(&slots);
  return pools_.contains(&slots) ? &slots : nullptr;
}

Direction Route::begin(const Descriptors& list) {
  const Address source = list.sources.front(), destination = list.destinations.front();
  ends_ = {places_.around(source), places_.around(destination)};
  const Place from = ends_.from.region.place, to = ends_.to.region.place;
  const bool is_h2d = from == Place::pinned && to == Place::device;
  if (!is_h2d && !(from == Place::device && to == Place::pinned)) {
    const bool from_is_bad = from != Place::pinned && from != Place::device;
    const Region& region = from_is_bad ? ends_.from.region : ends_.to.region;
    refuse(0, from_is_bad ? "source" : "destination", from_is_bad ? source : destination,
           " is " + name_of(region) + "; " + kRoutes);
  }
  refuse_read_only(ends_.to.region, destination, 0);
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
  for (std::size_t begin = 0; begin < list.size(); begin += kAtOnce) {
    const std::size_t end = std::min(begin + kAtOnce, list.size());
    if (look_at(list, ends_, begin, end).left >> 63 != 0) check(list, begin, end);
  }
}

bool Route::in_one_region(Address source, Address destination, std::size_t bytes) {
  return ends_.hold(source, destination, bytes) ||
         Ends{places_.around(source), places_.around(destination)}.hold(source, destination, bytes);
}

void Route::follow(PooledRegion& end, const char* side, Address address, std::size_t bytes, std::size_t entry) {
  if (end.holds(address, bytes)) return;
  const PooledRegion next = places_.around(address, bytes);
  const Region& region = next.region;
  if (region.place != end.region.place) {
    refuse(entry, side, address, " is " + name_of(region) + "; all " + kRoutes);
  }
  if (!region.holds(address, bytes)) {
    refuse(entry, side, address,
           " has " + std::to_string(region.end() - address) + " bytes left in its " + name_of(region) +
               ", fewer than the block's " + std::to_string(bytes));
  }
  if (&end == &ends_.to) refuse_read_only(region, address, entry);
  end = next;
}

}  // namespace kvbench
