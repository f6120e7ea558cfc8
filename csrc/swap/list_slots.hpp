#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "driver/resources.hpp"

namespace kvbench {

/// A list in pinned memory; `done` marks the last launch that read it.
struct ListSlot {
  ListSlot(const std::shared_ptr<Driver>& driver, std::size_t bytes)
      : pinned(driver, MemoryKind::allocated, bytes), done(driver) {}

  Buffer pinned;
  OwnedEvent done;
};

/// Pinned memory for lists that kernels read in place. A list stays until the launch that reads it has completed.
class ListSlots {
 public:
  /// The most lists that can be in flight. A caller that opens the gate which holds them must not wait for a slot.
  static constexpr std::size_t kMost = 64;

  /// Begins with `count` slots.
  ListSlots(std::shared_ptr<Driver> driver, std::size_t count) : driver_(std::move(driver)), count_(count) {}

  /// Makes room for lists of this size. Slots that are too small are kept, since launches may read them: to free pinned
  /// memory can wait for the device.
  void reserve(std::size_t bytes) {
    if (bytes <= bytes_) return;
    const std::size_t room = std::bit_ceil(bytes);
    std::vector<std::unique_ptr<ListSlot>> larger;
    // As many as were in flight at once, so that lists after this one find theirs.
    const std::size_t count = std::max(count_, slots_.size());
    for (std::size_t i = 0; i < count; ++i) larger.push_back(std::make_unique<ListSlot>(driver_, room));
    std::ranges::move(slots_, std::back_inserter(outgrown_));
    slots_ = std::move(larger);
    bytes_ = room;
    next_ = 0;
  }

  /// A slot for a list of this size that no launch reads. If all are in flight, a new one; the last resort is to wait
  /// for the oldest.
  ListSlot& take(std::size_t bytes) {
    reserve(bytes);
    next_ = (next_ + 1) % slots_.size();
    if (slots_[next_]->done.completed()) return *slots_[next_];
    const auto oldest = slots_.begin() + static_cast<std::ptrdiff_t>(next_);
    const auto free = std::ranges::find_if(slots_, [](const auto& slot) { return slot->done.completed(); });
    if (free != slots_.end()) {
      std::swap(*oldest, *free);
    } else if (slots_.size() < std::max(kMost, count_)) {
      slots_.insert(oldest, std::make_unique<ListSlot>(driver_, bytes_));
    } else {
      (*oldest)->done.wait();
    }
    return *slots_[next_];
  }

 private:
  std::shared_ptr<Driver> driver_;
  std::size_t count_;
  std::size_t bytes_ = 0;
  std::vector<std::unique_ptr<ListSlot>> slots_;  ///< from `next_` on, about in the order of their launches
  std::vector<std::unique_ptr<ListSlot>> outgrown_;
  std::size_t next_ = 0;
};

}  // namespace kvbench
