#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "driver/driver.hpp"

namespace kvbench {

/// What copiers that are gone leave to the next one of their device, with work in flight, for as long as the process
/// lives: to free it waits for the device, and libcuda may be gone when the process ends.
template <class Kept>
class Spare {
 public:
  /// What a copier of this device left, or null.
  static std::shared_ptr<Kept> take(const std::shared_ptr<Driver>& driver) {
    const std::lock_guard lock(all().mutex);
    auto& kept = all().kept;
    const auto found = std::ranges::find_if(kept, [&](const auto& one) { return one->driver() == driver; });
    if (found == kept.end()) return nullptr;
    std::shared_ptr<Kept> taken = std::move(*found);
    kept.erase(found);
    return taken;
  }
  static void keep(std::shared_ptr<Kept> left) {
    const std::lock_guard lock(all().mutex);
    all().kept.push_back(std::move(left));
  }

 private:
  static Spare& all() {
    static auto& spare = *new Spare;
    return spare;
  }

  std::mutex mutex;
  std::vector<std::shared_ptr<Kept>> kept;
};

}  // namespace kvbench
