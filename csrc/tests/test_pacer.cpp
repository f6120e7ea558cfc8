#include <cmath>
#include <vector>

#include "check.hpp"
#include "kernels/pacer.hpp"

namespace {

using namespace kvbench;

constexpr u32 kPieceBytes = 4096;
constexpr u32 kPsPerByte = 500;
constexpr u32 kMadeUp = 8;
constexpr u64 kSlotNs = u64{kPieceBytes} * kPsPerByte / 1000;
constexpr u64 kBegin = 1'800'000'000'000'000'000;  // a global timer counts from 1970

/// Counts up by 10 ns with each look, and shows multiples of `step_ns`.
struct Timer {
  u64 now_ns() const { return (now += 10) / step_ns * step_ns; }

  u64 step_ns = 1;
  mutable u64 now = kBegin;
};

/// When each of `pieces` moves, in ns from the begin; the warp is `late_ns` late before piece `late_at`.
std::vector<u64> times(Pacer pacer, u32 pieces, u32 late_at = 0, u64 late_ns = 0, u64 step_ns = 1) {
  Timer timer{step_ns};
  std::vector<u64> passed;
  for (u32 i = 0; i < pieces; ++i) {
    if (i == late_at) timer.now += late_ns;
    pacer.wait(timer, kPieceBytes);
    passed.push_back(timer.now - kBegin);
  }
  return passed;
}

Pacer pacer(u32 rank = 0, u32 warps = 1) { return {kPsPerByte, kPieceBytes, rank, warps, kMadeUp, kBegin}; }

/// Whether a time is `want_ns`, or as much later as the looks at the timer take.
bool at(u64 ns, u64 want_ns) { return ns >= want_ns && ns <= want_ns + 40; }

void each_piece_has_its_slot() {
  const std::vector<u64> passed = times(pacer(), 1000);
  for (u64 i = 0; i < passed.size(); ++i) check::that(at(passed[i], i * kSlotNs), "a piece moves in its slot");
}

void the_slots_of_warps_are_offset_against_each_other() {
  for (u32 rank = 0; rank < 32; ++rank) {
    const std::vector<u64> passed = times(pacer(rank, 32), 20);
    for (u64 i = 0; i < passed.size(); ++i) {
      check::that(at(passed[i], i * kSlotNs + rank * kSlotNs / 32), "a warp moves a share of a slot later");
    }
  }
}

void a_slot_is_as_long_as_the_bytes_of_its_piece() {
  Pacer one = pacer();
  const Timer timer;
  u64 due = 0;
  for (const u32 bytes : {4096U, 16U, 512U, 4096U, 1024U}) {
    one.wait(timer, bytes);
    check::that(at(timer.now - kBegin, due), "a piece follows after the bytes of the one before");
    due += u64{bytes} * kPsPerByte / 1000;
  }
}

void a_late_warp_makes_up_for_it_without_a_burst() {
  const std::vector<u64> passed = times(pacer(), 200, 50, 3 * kSlotNs);
  for (std::size_t i = 51; i < passed.size(); ++i) {
    check::that(passed[i] - passed[i - 1] >= kSlotNs - kSlotNs / kMadeUp - 40, "pieces keep their distance");
  }
  check::that(passed[51] > 52 * kSlotNs, "what is late is not made up for at once");
  for (std::size_t i = 100; i < passed.size(); ++i) check::that(at(passed[i], i * kSlotNs), "the rate is kept");
}

void what_is_too_late_is_given_up() {
  constexpr u64 kLate = 100 * kSlotNs;
  const std::vector<u64> passed = times(pacer(), 400, 50, kLate);
  const u64 given_up = kLate - (Pacer::kMostBehind + 1) * kSlotNs;  // one slot passes before the first late piece
  const u64 last = passed.back() - (passed.size() - 1) * kSlotNs;
  check::that(last >= given_up && last <= given_up + 2 * kSlotNs, "no more is made up for than a few slots");
}

void the_rate_does_not_depend_on_the_steps_of_the_timer() {
  for (const u64 step_ns : {32, 1000, 1024}) {
    const std::vector<u64> passed = times(pacer(), 1000, 0, 0, step_ns);
    const u64 want = 999 * kSlotNs;
    check::that(passed.back() >= want && passed.back() <= want + 2 * step_ns, "the last piece moves when it is due");
  }
}

void a_timer_that_begins_earlier_is_waited_for() {
  Pacer one = pacer();
  Timer timer;
  timer.now -= 50;
  for (u32 i = 0; i < 3; ++i) {
    one.wait(timer, kPieceBytes);
    check::that(at(timer.now, (i == 0 ? timer.now : kBegin + i * kSlotNs)), "a piece moves in its slot");
  }
}

}  // namespace

int main() {
  return check::run({
      {"each piece has its slot", each_piece_has_its_slot},
      {"the slots of warps are offset against each other", the_slots_of_warps_are_offset_against_each_other},
      {"a slot is as long as the bytes of its piece", a_slot_is_as_long_as_the_bytes_of_its_piece},
      {"a late warp makes up for it without a burst", a_late_warp_makes_up_for_it_without_a_burst},
      {"what is too late is given up", what_is_too_late_is_given_up},
      {"a timer that begins earlier is waited for", a_timer_that_begins_earlier_is_waited_for},
      {"the rate does not depend on the steps of the timer", the_rate_does_not_depend_on_the_steps_of_the_timer},
  });
}
