#include "swap/list_slots.hpp"

#include <mutex>

namespace kvbench {
namespace {

/// The slots that no copier has, for as long as the process lives.
struct Spare {
  std::mutex mutex;
  std::vector<std::shared_ptr<ListSlots>> slots;
};

Spare& spare_slots() {
  static auto& spare = *new Spare;
  return spare;
}

}  // namespace

std::shared_ptr<ListSlots> ListSlots::spare(const std::shared_ptr<Driver>& driver, std::size_t count) {
  Spare& spare = spare_slots();
  const std::lock_guard lock(spare.mutex);
  const auto kept = std::ranges::find(spare.slots, driver, &ListSlots::driver_);
  if (kept == spare.slots.end()) return std::make_shared<ListSlots>(driver, count);
  std::shared_ptr<ListSlots> slots = std::move(*kept);
  spare.slots.erase(kept);
  return slots;
}

void ListSlots::keep(std::shared_ptr<ListSlots> slots) {
  if (slots->slots_.empty()) return;
  Spare& spare = spare_slots();
  const std::lock_guard lock(spare.mutex);
  spare.slots.push_back(std::move(slots));
}

}  // namespace kvbench
