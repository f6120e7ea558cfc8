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
  /// What a copier of this device left, or a new one. Once its last owner is gone, it is left to the next copier.
  template <class... Arguments>
  static std::shared_ptr<Kept> take(const std::shared_ptr<Driver>& driver, Arguments... arguments) {
    std::unique_ptr<Kept> taken = left_on(driver);
    if (!taken) taken = std::make_unique<Kept>(driver, arguments...);
    return {taken.release(), leave};
  }

 private:
  static std::unique_ptr<Kept> left_on(const std::shared_ptr<Driver>& driver) {
    const std::lock_guard lock(all().mutex);
    auto& kept = all().kept;
    const auto of_device = std::ranges::find(kept, driver, [](const auto& spare) { return spare->driver(); });
    if (of_device == kept.end()) return nullptr;
    std::unique_ptr<Kept> taken = std::move(*of_device);
    kept.erase(of_device);
    return taken;
  }
  static void leave(Kept* left) {
    std::unique_ptr<Kept> owned(left);
    if (owned->empty()) return;
    const std::lock_guard lock(all().mutex);
    all().kept.push_back(std::move(owned));
  }
  static Spare& all() {
    static auto& spare = *new Spare;
    return spare;
  }

  std::mutex mutex;
  std::vector<std::unique_ptr<Kept>> kept;
};

}  // namespace kvbench
