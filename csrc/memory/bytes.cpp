#include "memory/bytes.hpp"

#include <cstring>

#include "kernels/pool_words.hpp"
#include "memory/parallel.hpp"

namespace kvbench {
void fill_random(std::span<unsigned char> memory, std::uint64_t seed) {
  const std::size_t words = memory.size() / sizeof(std::uint64_t);
  in_parallel(words, kGrainBytes / sizeof(std::uint64_t), [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const std::uint64_t word = pool_word(seed, i);
      std::memcpy(memory.data() + i * sizeof(word), &word, sizeof(word));
    }
  });
  const std::uint64_t last = pool_word(seed, words);
  std::memcpy(memory.data() + words * sizeof(last), &last, memory.size() % sizeof(last));
}

void fill_value(std::span<unsigned char> memory, unsigned char value) {
  in_parallel(memory.size(), kGrainBytes,
              [&](std::size_t begin, std::size_t end) { std::memset(memory.data() + begin, value, end - begin); });
}

}  // namespace kvbench
