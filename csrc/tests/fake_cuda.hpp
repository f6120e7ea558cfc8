#pragma once

#include <cstddef>
#include <set>

/// What the fake driver was asked for, for tests of what reaches it.
struct FakeCuda {
  std::set<void*> registered;  ///< memory that is registered now
  int batch_version = 0;       ///< CUDA version for which the batched copy was last asked, 0: never
  int order = 0;               ///< of the last batched copy
  unsigned flags = 0;          ///< of the last batched copy
  int waits = 0;               ///< of a stream for an event
  int priority = 0;            ///< of the last stream
  int allocated_on = 0;        ///< the device whose context was current when memory was last allocated
  bool hints = false;          ///< whether the last batched copy named locations
};
