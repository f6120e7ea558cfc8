#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "driver/host_device.hpp"

namespace kvbench {

enum class FaultKind : std::uint8_t {
  none,
  error_at_call,        ///< the k-th copy call (a single copy or a batch) fails
  error_at_descriptor,  ///< the k-th descriptor fails, in a batch or as a single copy
  closed_gate,          ///< the k-th wait of a stream for an event never ends
  hang,                 ///< the stream stops forever at the k-th call
  crash,                ///< the process dies by SIGSEGV at the k-th call
  slow,                 ///< every copy takes `delay_us` longer
  corrupt,              ///< the k-th descriptor's last byte arrives wrong
  stray,                ///< the k-th descriptor also writes the byte after its destination
  late_source,          ///< batches with order any, of k or more descriptors, read sources after the stream's next work
  inline_copies,        ///< h2d batches of blocks up to k bytes on an idle stream copy inside the call
  split,                ///< copies of k or more bytes across two registrations fail
  synchronous,          ///< copies of k or more bytes return when they are done
  pinning,              ///< registering memory holds up all copies for `delay_us`
  pin_limit,            ///< registering k or more bytes at once fails
};

/// Their names, in their order.
inline constexpr std::array kFaultNames{
    "none",  "error_at_call", "error_at_descriptor", "closed_gate", "hang",        "crash",   "slow",     "corrupt",
    "stray", "late_source",   "inline_copies",       "split",       "synchronous", "pinning", "pin_limit"};

/// A fault to inject; `at` counts from 0 since the fault was armed.
struct Fault {
  FaultKind kind = FaultKind::none;
  std::uint64_t at = 0;
  double delay_us = 0;
};

/// The host device, with a fault.
class HostDriver : public HostDevice {
 public:
  using HostDevice::HostDevice;
  /// Counts calls and descriptors from 0 again and injects `fault` from now on. What hangs by the fault before it goes
  /// on.
  virtual void arm(Fault fault) = 0;
};

/// With `with_batch` false, the device has no batched copy, like an old driver.
std::shared_ptr<HostDriver> open_host(bool with_batch = true);

}  // namespace kvbench
