// Common definitions for headers that both kernels and host code include.
#pragma once

#ifdef __CUDACC__
#define KVBENCH_BOTH __host__ __device__ __forceinline__
#else
#define KVBENCH_BOTH inline
#endif

namespace kvbench {

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

/// A row to gather: its numbers on both sides, in rows from a base. One load reads both.
struct alignas(16) RowIds {
  u64 source;
  u64 destination;
};

}  // namespace kvbench
