#pragma once

#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace kvbench {

/// A failed driver call: the call, the driver's name of the error, and the index of the descriptor if it is known.
class DriverError : public std::runtime_error {
 public:
  DriverError(std::string call, std::string name, std::optional<std::size_t> descriptor = std::nullopt)
      : std::runtime_error(text(call, name, descriptor)),
        call_(std::move(call)),
        name_(std::move(name)),
        descriptor_(descriptor) {}

  [[nodiscard]] const std::string& call() const noexcept { return call_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] std::optional<std::size_t> descriptor() const noexcept { return descriptor_; }

  /// The same error for descriptor `index` of the swap.
  [[nodiscard]] DriverError at(std::size_t index) const { return {call_, name_, index}; }

 private:
  static std::string text(const std::string& call, const std::string& name, std::optional<std::size_t> descriptor) {
    std::string message = call + ": " + name;
    if (descriptor) message += " (descriptor " + std::to_string(*descriptor) + ")";
    return message;
  }

  std::string call_;
  std::string name_;
  std::optional<std::size_t> descriptor_;
};

/// An entry of a list that is not valid, by its index in the list.
class InvalidEntry : public std::invalid_argument {
 public:
  InvalidEntry(std::size_t entry, std::string why)
      : std::invalid_argument("entry " + std::to_string(entry) + ": " + why), entry_(entry), why_(std::move(why)) {}

  [[nodiscard]] std::size_t entry() const noexcept { return entry_; }
  /// The same error for entry `index` of the caller's list.
  [[nodiscard]] InvalidEntry at(std::size_t index) const { return {index, why_}; }

 private:
  std::size_t entry_;
  std::string why_;
};

}  // namespace kvbench
