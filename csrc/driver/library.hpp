#pragma once

#include <string>

#include "driver/api.hpp"

namespace kvbench::cuda {

/// Loads the driver library at `path` and every entry point in it; throws DriverError, which names what is missing.
/// A driver older than 12.8 has no batched copy: both of its entries stay null.
Api load_api(const std::string& path);

}  // namespace kvbench::cuda
