// The one rule of advice, by hand: a device of 100 bytes, of which advice leaves 5 free.

#include "study/headroom.h"

#include <gtest/gtest.h>

#include <vector>

namespace foreshard {
namespace {

struct Row {
  Time step;
  Bytes memory, allocated;
  std::int64_t retries;
  bool fits;
};

Row row(std::int64_t step, std::int64_t memory, std::int64_t allocated, std::int64_t retries = 0,
        bool fits = true) {
  return {Time(step), Bytes(memory), Bytes(allocated), retries, fits};
}

std::size_t chosen(const std::vector<Row>& rows) { return choose_row(rows, Bytes(100)).chosen; }

TEST(Headroom, ChoosesByRoomThenRetriesThenWhateverFits) {
  // 1 % slower may cost less memory, 2 % may not; 96 of 100 leaves too little.
  EXPECT_EQ(chosen({row(1000, 90, 1), row(1010, 80, 1), row(1020, 10, 1), row(500, 96, 1)}), 1U);
  // No room: what allocates least of those without retries.
  EXPECT_EQ(chosen({row(10, 99, 50, 1), row(20, 99, 70), row(30, 99, 60)}), 2U);
  // Retries only; of equal ones the fastest.
  EXPECT_EQ(chosen({row(20, 99, 50, 3), row(10, 99, 50, 9), row(5, 99, 60, 9)}), 1U);
  EXPECT_EQ(chosen({row(1, 200, 200, 0, false)}), 1U);
}

}  // namespace
}  // namespace foreshard
