#include <cstdint>
#include <random>
#include <vector>

#include "check.hpp"
#include "kernels/piece_map.hpp"

namespace {

using kvbench::Accesses;
using kvbench::Part;
using kvbench::Share;
using kvbench::u32;
using kvbench::u64;

constexpr int kDraws = 20'000;

std::mt19937_64& random_bits() {
  static std::mt19937_64 generator(20261121);
  return generator;
}

/// A number from 0 to `most`, small ones as likely as large ones.
u64 draw(u64 most) {
  const u64 bits = random_bits()() >> (random_bits()() % 64);
  return bits % (most + 1);
}

void shares_are_contiguous_and_even() {
  for (int i = 0; i < kDraws; ++i) {
    const u32 pieces = static_cast<u32>(draw(0xFFFFFFFF)), workers = static_cast<u32>(draw(4095)) + 1;
    const u32 worker = static_cast<u32>(draw(workers - 1));
    const Share share = kvbench::share_of(pieces, workers, worker);
    const u32 count = share.last - share.first;
    check::that(share.first <= share.last && share.last <= pieces, "a share lies inside the list");
    check::that(count == pieces / workers || count == pieces / workers + 1, "shares differ by one piece at most");
    const u32 end = worker + 1 == workers ? pieces : kvbench::share_of(pieces, workers, worker + 1).first;
    check::equal(share.last, end, "the next share begins where this one ends");
    if (worker == 0) check::equal(share.first, 0U, "the first share begins the list");
  }
}

void parts_cover_every_byte_once() {
  for (int i = 0; i < 500; ++i) {
    const u64 block_bytes = draw(1 << 20) + 1;
    const u32 piece_bytes = u32{1} << (6 + draw(8)), rows = static_cast<u32>(draw(6)) + 1;
    const u32 pieces_a_block = static_cast<u32>((block_bytes + piece_bytes - 1) / piece_bytes);
    u64 covered = 0;
    u32 row = 0;
    for (u32 piece = 0; piece < rows * pieces_a_block; ++piece) {
      const Part part = kvbench::part_of(piece, block_bytes, piece_bytes, pieces_a_block);
      if (part.row != row) {
        check::equal(covered, block_bytes, "a row is whole before the next begins");
        check::equal(part.row, row + 1, "rows follow each other");
        covered = 0;
        ++row;
      }
      check::equal(part.offset, covered, "parts adjoin");
      check::that(part.bytes > 0 && part.bytes <= piece_bytes, "a part is neither empty nor too large");
      covered += part.bytes;
    }
    check::equal(covered, block_bytes, "the last row is whole");
  }
}

void accesses_cover_a_piece_and_are_aligned_and_widest() {
  for (int i = 0; i < kDraws; ++i) {
    const u64 source = draw(~u64{0} >> 8), destination = draw(~u64{0} >> 8);
    const u32 bytes = static_cast<u32>(draw(1 << 20));
    const Accesses accesses = kvbench::accesses_of(source, destination, bytes);
    check::equal(u64{accesses.head} + u64{accesses.words} * accesses.width + accesses.tail, u64{bytes}, "every byte");
    check::that(accesses.head < accesses.width && accesses.tail < accesses.width, "single bytes are few");
    if (accesses.words > 0) {
      check::equal((source + accesses.head) % accesses.width, u64{0}, "source words are aligned");
      check::equal((destination + accesses.head) % accesses.width, u64{0}, "destination words are aligned");
    }
    const bool wider = accesses.width < 16 && source % (2 * accesses.width) == destination % (2 * accesses.width);
    check::that(!wider, "no wider access fits both sides");
  }
}

}  // namespace

int main() {
  return check::run({
      {"shares are contiguous and even", shares_are_contiguous_and_even},
      {"parts cover every byte once", parts_cover_every_byte_once},
      {"accesses cover a piece, aligned and widest", accesses_cover_a_piece_and_are_aligned_and_widest},
  });
}
