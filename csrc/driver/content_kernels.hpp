#pragma once

#include <cstddef>
#include <span>

#include "driver/driver.hpp"

namespace kvbench {

/// Memory that grows to the largest requested size and is kept, because pinning a page takes longer than comparing a
/// swap.
class Scratch {
 public:
  Scratch(Driver& driver, MemoryKind kind) : driver_(driver), kind_(kind) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { release(); }

  const Memory& of(std::size_t bytes);

 private:
  void release() noexcept;

  Driver& driver_;
  MemoryKind kind_;
  Memory memory_{};
  std::size_t bytes_ = 0;
};

/// The kernels of kernels/audit.cu, loaded on one device; they work on stretches of its memory. One thread at a time.
class ContentKernels {
 public:
  /// `cubin` is that source, compiled for the device of `driver`, which must outlive this object.
  ContentKernels(Driver& driver, std::span<const std::byte> cubin);

  /// Writes the stretches, which must not overlap, after the work on `stream`, and returns when they are written.
  void write(std::span<const Stretch> stretches, std::uint64_t seed, Stream stream);
  /// Compares the stretches after the work on `stream`.
  AuditCount audit(std::span<const Stretch> stretches, std::uint64_t seed, Stream stream);

 private:
  void launch(Kernel kernel, std::span<const Stretch> stretches, Address mismatches, std::uint64_t seed, Stream stream);

  Driver& driver_;
  Kernel write_;
  Kernel audit_;
  Scratch table_{driver_, MemoryKind::allocated};  ///< the stretches, each of which a kernel reads once
  Scratch counted_{driver_, MemoryKind::device};
  Scratch staged_{driver_, MemoryKind::allocated};
};

}  // namespace kvbench
