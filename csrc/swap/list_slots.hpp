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
      : pinned(driver, MemoryKind::allocated, bytes), done(driver, EventKind::mark) {}

  [[nodiscard]] bool in_flight() const { return lost || !done.completed(); }
  /// Marks the launch that reads it. If that cannot be marked, nothing is known of its end.
  void launched(Stream stream) {
    lost = true;
    done.record(stream);
    lost = false;
  }

  Buffer pinned;
  OwnedEvent done;
  bool lost = false;
};

/// Pinned memory for lists that kernels read in place. A list stays until the launch that reads it has completed. Slots
/// are made one by one, when a list needs one, and kept: to free pinned memory waits for the device. Those of a copier
/// that is gone are for the next one (Spare): a list can wait behind a gate that its thread opens later.
class ListSlots {
 public:
  /// The most lists that can be in flight. A caller that opens the gate which holds them must not wait for a slot.
  static constexpr std::size_t kMost = 64;

  /// For `count` lists in flight, if those are more.
  ListSlots(std::shared_ptr<Driver> driver, std::size_t count)
      : driver_(std::move(driver)), most_(std::max(kMost, count)) {}

  [[nodiscard]] const std::shared_ptr<Driver>& driver() const { return driver_; }
  [[nodiscard]] bool empty() const { return slots_.empty(); }

  /// Makes slots until `count` lists of this size find one.
  void reserve(std::size_t bytes, std::size_t count) {
    auto have = std::ranges::count_if(slots_, [=](const auto& slot) { return slot->pinned.bytes() >= bytes; });
    for (; std::cmp_less(have, count); ++have) make(bytes);
  }

  /// A slot for a list of this size that no launch reads: the one that was used the longest ago, or a new one. If too
  /// many are in flight, waits for the oldest.
  ListSlot& take(std::size_t bytes) {
    std::size_t in_flight = 0;
    auto taken = slots_.begin();
    for (; taken != slots_.end(); ++taken) {
      if ((*taken)->in_flight()) {
        ++in_flight;
      } else if ((*taken)->pinned.bytes() >= bytes) {
        break;
      }
    }
    if (taken == slots_.end()) taken = in_flight < most_ ? make(bytes) : waited_for(bytes);
    std::rotate(taken, taken + 1, slots_.end());
    return *slots_.back();
  }

 private:
  using Slots = std::vector<std::unique_ptr<ListSlot>>;

  Slots::iterator waited_for(std::size_t bytes) {
    const auto is_marked = [](const auto& slot) { return !slot->lost; };
    const auto has_room = [=](const auto& slot) { return is_marked(slot) && slot->pinned.bytes() >= bytes; };
    const auto oldest = std::ranges::find_if(slots_, has_room);
    if (oldest != slots_.end()) return wait_for(**oldest), oldest;
    const auto first = std::ranges::find_if(slots_, is_marked);
    if (first != slots_.end()) wait_for(**first);
    return make(bytes);
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
    for (std::chrono::microseconds pause{10}; slot.in_flight(); pause = std::min(2 * pause, kLongest)) {
      std::this_thread::sleep_for(pause);
    }
  }

  std::shared_ptr<Driver> driver_;
  std::size_t most_;
  Slots slots_;  ///< in the order of their launches
};

}  // namespace kvbench
