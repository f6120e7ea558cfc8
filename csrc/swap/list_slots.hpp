#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "driver/resources.hpp"

namespace kvbench {

/// A list in pinned memory; `done` marks the last launch that read it.
struct ListSlot {
  ListSlot(const std::shared_ptr<Driver>& driver, std::size_t bytes)
      : pinned(driver, MemoryKind::allocated, bytes), done(driver) {}

  [[nodiscard]] bool serves(std::size_t bytes) const { return pinned.bytes() >= bytes && done.completed(); }

  Buffer pinned;
  OwnedEvent done;
};

/// Pinned memory for lists that kernels read in place. A list stays until the launch that reads it has completed. Slots
/// are made one by one, when a list needs one, and kept: to free pinned memory can wait for the device.
class ListSlots {
 public:
  /// The most lists that can be in flight. A caller that opens the gate which holds them must not wait for a slot.
  static constexpr std::size_t kMost = 64;

  /// For `count` lists in flight, if those are more.
  ListSlots(std::shared_ptr<Driver> driver, std::size_t count)
      : driver_(std::move(driver)), most_(std::max(kMost, count)) {}

  /// Makes slots until `count` lists of this size find one.
  void reserve(std::size_t bytes, std::size_t count) {
    auto have = std::ranges::count_if(slots_, [=](const auto& slot) { return slot->pinned.bytes() >= bytes; });
    for (; std::cmp_less(have, count); ++have) make(bytes);
  }

  /// A slot for a list of this size that no launch reads: the one that was used the longest ago, or a new one. If too
  /// many are in flight, waits for the oldest.
  ListSlot& take(std::size_t bytes) {
    auto taken = std::ranges::find_if(slots_, [=](const auto& slot) { return slot->serves(bytes); });
    if (taken == slots_.end()) taken = free_or_new(bytes);
    std::rotate(taken, taken + 1, slots_.end());
    return *slots_.back();
  }

 private:
  using Slots = std::vector<std::unique_ptr<ListSlot>>;

  Slots::iterator free_or_new(std::size_t bytes) {
    const auto in_flight = std::ranges::count_if(slots_, [](const auto& slot) { return !slot->done.completed(); });
    if (std::cmp_less(in_flight, most_)) return make(bytes);
    const auto has_room = [=](const auto& slot) { return slot->pinned.bytes() >= bytes; };
    const auto oldest = std::ranges::find_if(slots_, has_room);
    wait_for(oldest == slots_.end() ? *slots_.front() : **oldest);
    return oldest == slots_.end() ? make(bytes) : oldest;
  }

  Slots::iterator make(std::size_t bytes) {
    constexpr std::size_t kPage = 4096;
    const std::size_t room = (bytes + bytes / 4 + kPage - 1) / kPage * kPage;  // for lists that grow
    slots_.push_back(std::make_unique<ListSlot>(driver_, room));
    return slots_.end() - 1;
  }

  /// Leaves the CPU to others: a gate can stay closed for long.
  static void wait_for(const ListSlot& slot) {
    constexpr std::chrono::microseconds kLongest{500};
    for (std::chrono::microseconds pause{10}; !slot.done.completed(); pause = std::min(2 * pause, kLongest)) {
      std::this_thread::sleep_for(pause);
    }
  }

  std::shared_ptr<Driver> driver_;
  std::size_t most_;
  Slots slots_;  ///< in the order of their launches
};

}  // namespace kvbench
