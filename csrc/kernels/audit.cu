// Writes the content of pools into stretches of device memory, and compares stretches with their expected content.
// Thread blocks take stretches in turn and their threads the words of each, so that adjacent threads access adjacent
// words.
#include "pool_words.hpp"

using namespace kvbench;

extern "C" __global__ void kvbench_write_content(const PoolWork work) {
  const Stretch* stretches = reinterpret_cast<const Stretch*>(work.stretches);
  for (u64 i = blockIdx.x; i < work.count; i += gridDim.x) {
    const Stretch stretch = stretches[i];
    const u64 words = words_of(stretch);
    for (u64 word = threadIdx.x; word < words; word += blockDim.x) write_word(stretch, word, work.seed);
  }
}

extern "C" __global__ void kvbench_audit_content(const PoolWork work) {
  const Stretch* stretches = reinterpret_cast<const Stretch*>(work.stretches);
  AuditCount mismatches{0, kNowhere};
  for (u64 i = blockIdx.x; i < work.count; i += gridDim.x) {
    const Stretch stretch = stretches[i];
    const u64 words = words_of(stretch);
    for (u64 word = threadIdx.x; word < words; word += blockDim.x) audit_word(stretch, word, work.seed, mismatches);
  }
  if (mismatches.wrong_bytes == 0) return;
  AuditCount* total = reinterpret_cast<AuditCount*>(work.mismatches);
  atomicAdd(&total->wrong_bytes, mismatches.wrong_bytes);
  atomicMin(&total->first, mismatches.first);
}
