#include "swap/list_slots.hpp"

#include "swap/spare.hpp"

namespace kvbench {

std::shared_ptr<ListSlots> ListSlots::spare(const std::shared_ptr<Driver>& driver, std::size_t count) {
  auto slots = Spare<ListSlots>::take(driver);
  return slots ? slots : std::make_shared<ListSlots>(driver, count);
}

void ListSlots::keep(std::shared_ptr<ListSlots> slots) {
  if (!slots->slots_.empty()) Spare<ListSlots>::keep(std::move(slots));
}

}  // namespace kvbench
