#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

/// What the fake driver says of an address.
struct FakeMemory {
  unsigned type = 0;
  unsigned managed = 0;
  int device = 0;
  std::uint64_t kernel_offset = 0;  ///< of its address for kernels
  bool mapped = false;
  bool read_only = false;
  std::size_t range = 4096;  ///< regions are as large, and begin at its multiples
  std::uint64_t hole = 0;    ///< an address of a mapping in whose 2 MiB nothing is mapped
};

/// What the fake driver was asked for, for tests of what reaches it.
struct FakeCuda {
  std::string failing;            ///< the call that fails, of those after which a caller has to clean up
  int contexts = 0;               ///< primary ones that are retained
  int graphs = 0;                 ///< that exist
  int executables = 0;            ///< graphs to launch that exist
  int pinned = 0;                 ///< allocations of pinned memory that exist
  void* pages = nullptr;          ///< memory that was last registered, or failed to be
  std::set<void*> registered;     ///< memory that is registered now
  int batch_version = 0;          ///< CUDA version for which the batched copy was last asked, 0: never
  int order = 0;                  ///< of the last batched copy
  unsigned flags = 0;             ///< of the last batched copy
  int waits = 0;                  ///< of a stream for an event
  std::uint64_t waited_word = 0;  ///< of the last wait of a stream for a word of at least a value
  std::uint32_t waited_value = 0;
  int priority = 0;        ///< of the last stream
  int allocated_on = 0;    ///< the device whose context was current when memory was last allocated or registered
  bool hints = false;      ///< whether the last batched copy named locations
  int modules = 0;         ///< that are loaded
  unsigned grid = 0;       ///< thread blocks of the last launch
  unsigned cluster = 0;    ///< of the last launch, 0: it asked for none
  int mappings = 0;        ///< whose handles are held
  int capture_status = 0;  ///< of every stream
  bool captures = false;   ///< another thread captures a graph in the mode global
  bool spoiled = false;    ///< that capture was ended by an unsafe call
  FakeMemory memory;       ///< of every address
};
