#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "check.hpp"
#include "swap/slots.hpp"

namespace {

using namespace kvbench;

constexpr Address kPage = 4096;
constexpr Address kFar = Address{1} << 62;

/// Slots, and the same as a set of where they begin.
struct Pool {
  Pool(Address first, std::size_t slot_bytes)
      : bytes(slot_bytes), slots({Place::pinned, first, slot_bytes}), begins{first}, added{first} {}

  bool add(Address begin) {
    if (!slots.add(begin)) return false;
    begins.insert(begin);
    added.insert(begin);
    return true;
  }
  /// Removes the slots that meet a region.
  void remove(const Region& region) {
    slots.remove(region);
    std::erase_if(begins, [&](Address begin) { return begin < region.end() && region.begin < begin + bytes; });
  }
  /// Whether none is missing between the lowest and the highest that were added.
  [[nodiscard]] bool all() const {
    Address stride = added.size() == 1 ? 1 : 0;
    for (const Address begin : added) stride = std::gcd(stride, begin - *added.begin());
    return begins.size() == (*added.rbegin() - *added.begin()) / stride + 1;
  }
  [[nodiscard]] bool has(Address address, std::size_t size) const {
    const auto after = begins.upper_bound(address);
    if (after == begins.begin()) return false;
    const Address offset = address - *std::prev(after);
    return offset < bytes && size <= bytes - offset;
  }
  /// Compares the two at the ends of a slot, and of what lies between it and the next.
  void check_around(Address begin, Address stride) const {
    check::equal(slots.all(), all(), "no slot is missing");
    for (const Address at : {begin, begin + bytes, begin + stride, begin - stride, begin + bytes / 2, begin + kFar}) {
      for (const Address near : {at - 1, at, at + 1, at - 512}) {
        for (const std::size_t size :
             {std::size_t{1}, std::size_t{512}, bytes, bytes + 1, std::size_t{kFar}, 2 * kFar - 1}) {
          check::equal(slots.holds(near, size), has(near, size), "holds a block");
          if (has(near, size)) check::equal(slots.at(near).begin, *std::prev(begins.upper_bound(near)), "its slot");
          if (!slots.all()) continue;
          const auto grid = slots.grid<true>();
          check::equal(grid.left_by(near - grid.begin, size) >> 63 == 0, has(near, size),
                       "holds a block, without bits");
        }
      }
    }
  }

  std::size_t bytes;
  Slots slots;
  std::set<Address> begins, added;
};

void exactly_the_slots_that_were_added_hold_blocks() {
  std::mt19937_64 random(3);
  for (int round = 0; round < 50; ++round) {
    const std::size_t bytes = (1 + random() % 40) * (round % 3 == 0 ? 1 : kPage) + (round % 5 == 0 ? 600 : 0);
    const Address stride = bytes + (round % 2 == 0 ? 0 : random() % (3 * bytes));  // adjacent, or with gaps
    const Address base = round % 7 == 0 ? 2 * bytes : random() % (Address{1} << 46);
    const std::size_t count = 1 + random() % 200;
    std::vector<std::size_t> order(count);
    for (std::size_t i = 0; i < count; ++i) order[i] = i;
    std::ranges::shuffle(order, random);
    Pool pool(base + order.front() * stride, bytes);
    for (std::size_t i = 1; i < count; ++i) {
      if (random() % 8 > 0) check::that(pool.add(base + order[i] * stride), "a slot");
    }
    for (const std::size_t index : order) pool.check_around(base + index * stride, stride);
    const Address gone = *std::next(pool.begins.begin(), static_cast<long>(random() % pool.begins.size()));
    pool.remove({Place::pinned, gone + random() % bytes - random() % stride, 1 + random() % (4 * stride)});
    for (const std::size_t index : order) pool.check_around(base + index * stride, stride);
  }
}

void a_region_that_fits_no_stride_is_left_out() {
  std::mt19937_64 random(5);
  for (int round = 0; round < 20; ++round) {
    const std::size_t bytes = 16 * kPage;
    Pool pool(Address{1} << 40, bytes);
    Address end = (Address{1} << 40) + bytes;
    std::size_t left_out = 0;
    for (int i = 0; i < 50; ++i) {
      const Address begin = end + random() % 64 * kPage;
      left_out += pool.add(begin) ? 0 : 1;
      end = begin + bytes;
    }
    check::that(left_out > 0, "some do not fit");
    for (Address at = (Address{1} << 40) - kPage; at < end; at += 1536) {
      for (const std::size_t size : {std::size_t{512}, bytes}) {
        check::equal(pool.slots.holds(at, size), pool.has(at, size), "holds a block");
      }
    }
  }
}

void slots_that_lie_far_apart_are_not_held_wrongly() {
  for (const unsigned far : {30U, 36U, 40U, 47U, 62U}) {
    for (const Address odd : {Address{0}, kPage, Address{1}}) {
      const std::size_t bytes = 64 * kPage;
      const Address stride = (Address{1} << far) + odd;
      Pool pool(bytes, bytes);
      for (const Address index : {1, 2}) {
        if (far < 62) pool.add(bytes + index * stride);
      }
      for (const Address at : {bytes, bytes + stride, bytes + 2 * stride, bytes + 3 * stride, ~Address{0} - bytes}) {
        for (const Address near : {at - 1, at, at + bytes - 512, at + bytes}) {
          check::that(!pool.slots.holds(near, 512) || pool.has(near, 512), "holds no block of nobody");
        }
      }
    }
  }
}

}  // namespace

int main() {
  return check::run({
      {"exactly the slots that were added hold blocks", exactly_the_slots_that_were_added_hold_blocks},
      {"a region that fits no stride is left out", a_region_that_fits_no_stride_is_left_out},
      {"slots that lie far apart are not held wrongly", slots_that_lie_far_apart_are_not_held_wrongly},
  });
}
