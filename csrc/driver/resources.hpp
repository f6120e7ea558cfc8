#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>

#include "driver/driver.hpp"
#include "memory/content.hpp"

namespace kvbench {

/// Memory of a device or pinned on the host, released with the object.
class Buffer {
 public:
  Buffer(std::shared_ptr<Driver> driver, MemoryKind kind, std::size_t bytes)
      : driver_(std::move(driver)), kind_(kind), bytes_(bytes), memory_(driver_->allocate(kind, bytes)) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { driver_->release(kind_, memory_, bytes_); }

  [[nodiscard]] Address address() const { return memory_.address; }
  [[nodiscard]] Address device_address() const { return memory_.device_address; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] double populate_s() const { return memory_.populate_s; }
  [[nodiscard]] double register_s() const { return memory_.register_s; }

  /// The first `bytes` of a host buffer; throws std::out_of_range for a device buffer or too many bytes.
  [[nodiscard]] std::span<unsigned char> host(std::size_t bytes) {
    if (kind_ == MemoryKind::device) throw std::out_of_range("the buffer is on the device");
    if (bytes > bytes_) throw std::out_of_range("the buffer has fewer bytes");
    return {reinterpret_cast<unsigned char*>(memory_.address), bytes};
  }

  /// Writes the content of `seed` into ranges, which must not overlap, after the work on `stream`; returns when it is
  /// written. Throws std::invalid_argument for a range outside of the buffer.
  void write(const Ranges& ranges, std::uint64_t seed, Stream stream) {
    // The device also writes pinned memory: over the link it is faster than the CPUs.
    driver_->write_content(stretches_of(device_address(), bytes_, ranges), seed, stream);
  }

  /// Compares ranges with the content of `seed` after the work on `stream`, on the side of the buffer; throws as
  /// write().
  [[nodiscard]] Audit audit(const Ranges& ranges, std::uint64_t seed, Stream stream) const {
    const auto stretches = stretches_of(address(), bytes_, ranges);
    if (kind_ == MemoryKind::device) {
      return audit_of(driver_->audit_content(stretches, seed, stream), address(), ranges);
    }
    driver_->synchronize(stream);
    return audit_of(audit_stretches(stretches, seed), address(), ranges);
  }

 private:
  std::shared_ptr<Driver> driver_;
  MemoryKind kind_;
  std::size_t bytes_;
  Memory memory_;
};

/// A non-blocking stream.
class OwnedStream {
 public:
  explicit OwnedStream(std::shared_ptr<Driver> driver, Priority priority = Priority::normal)
      : driver_(std::move(driver)), handle_(driver_->create_stream(priority)) {}
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  ~OwnedStream() { driver_->destroy_stream(handle_); }

  [[nodiscard]] Stream handle() const { return handle_; }
  void synchronize() { driver_->synchronize(handle_); }

 private:
  std::shared_ptr<Driver> driver_;
  Stream handle_;
};

/// A mark on a stream that shows whether everything before it has completed.
class OwnedEvent {
 public:
  explicit OwnedEvent(std::shared_ptr<Driver> driver, EventKind kind = EventKind::timed)
      : driver_(std::move(driver)), handle_(driver_->create_event(kind)) {}
  OwnedEvent(const OwnedEvent&) = delete;
  OwnedEvent& operator=(const OwnedEvent&) = delete;
  ~OwnedEvent() { driver_->destroy_event(handle_); }

  void record(Stream stream) { driver_->record(handle_, stream); }
  /// Makes later work on `stream` wait for the last record.
  void hold(Stream stream) const { driver_->wait(stream, handle_); }
  [[nodiscard]] bool completed() const { return driver_->completed(handle_); }
  void wait() const {
    while (!completed()) continue;
  }
  /// Microseconds between this event and `start`, which completed before it; both timed.
  [[nodiscard]] double us_since(const OwnedEvent& start) const { return driver_->elapsed_us(start.handle_, handle_); }

 private:
  std::shared_ptr<Driver> driver_;
  Event handle_;
};

}  // namespace kvbench
