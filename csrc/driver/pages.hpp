#pragma once

#include <cstddef>

#include "driver/driver.hpp"

namespace kvbench {

/// Maps pages for a buffer that is registered afterwards, populated unless that is in parts. Throws DriverError if
/// there are not as many, for huge pages with the number of those that are free.
void* map_pages(MemoryKind kind, std::size_t bytes);
void unmap_pages(MemoryKind kind, void* pages, std::size_t bytes) noexcept;

}  // namespace kvbench
