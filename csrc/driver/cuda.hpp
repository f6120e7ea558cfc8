#pragma once

#include <memory>
#include <string>

#include "driver/driver.hpp"

namespace kvbench {

/// Opens GPU `ordinal` through the driver library (found at run time; nothing is linked).
/// Throws DriverError if the library, the device, or an entry point of CUDA 12.0 is missing.
std::shared_ptr<Driver> open_cuda(int ordinal, const std::string& library = "libcuda.so.1");

/// The same once for this process, which keeps it until it ends: to unload a kernel waits for the device, which a gate
/// can hold that the caller has yet to open.
std::shared_ptr<Driver> shared_cuda(int ordinal, const std::string& library = "libcuda.so.1");

/// Returns the number of GPUs of the driver library; throws DriverError if there is no library.
int count_cuda_devices(const std::string& library = "libcuda.so.1");

}  // namespace kvbench
