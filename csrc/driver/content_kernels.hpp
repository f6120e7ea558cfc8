#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "driver/driver.hpp"

namespace kvbench {

/// The kernels of kernels/audit.cu, loaded on one device; they work on stretches of its memory.
class ContentKernels {
 public:
  /// `cubin` is that source, compiled for the device of `driver`.
  ContentKernels(Driver& driver, std::span<const std::byte> cubin);

  /// Writes the stretches, which do not overlap, behind what is on `stream`, and returns once they are written.
  void write(const std::shared_ptr<Driver>& driver, std::span<const Stretch> stretches, const Content& content,
             Stream stream) const;
  /// Compares the stretches behind what is on `stream`.
  AuditCount audit(const std::shared_ptr<Driver>& driver, std::span<const Stretch> stretches, const Content& content,
                   Stream stream) const;

 private:
  Kernel write_;
  Kernel audit_;
};

}  // namespace kvbench
