#include <algorithm>
#include <vector>

#include "check.hpp"
#include "memory/content.hpp"

namespace {

using Bytes = std::vector<unsigned char>;

void random_fill_reaches_the_last_byte_and_follows_the_seed() {
  Bytes a(1003, 0), b(1003, 0), c(1003, 0);
  kvbench::fill_random(a, 1);
  kvbench::fill_random(b, 1);
  kvbench::fill_random(c, 2);
  check::that(a == b, "one seed, one content");
  check::that(a != c, "another seed, another content");
  const auto zeros = std::count(a.begin(), a.end(), 0);
  check::that(zeros < 30, "no stretch is left unfilled");
}

}  // namespace

int main() {
  return check::run({
      {"random fill reaches the last byte", random_fill_reaches_the_last_byte_and_follows_the_seed},
  });
}
