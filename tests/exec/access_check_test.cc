// Ordering of accesses across streams.

#include <gtest/gtest.h>

#include "exec/access_check.h"

namespace foreshard {
namespace {

constexpr AccessCheck::Range kBlock{0, 64};

/// Stream 2 writes a block, stream 0 reads it; it is freed with record_stream on stream 1 and used
/// again by stream 2.
std::string reuse(bool stream1_waits_for_reader) {
  AccessCheck check(3, 2);
  check.allocate(kBlock);
  check.begin_work(2, 1);
  EXPECT_EQ(check.write(kBlock), "");
  check.record_event(EventId(0), 2);
  check.wait_event(EventId(0), 0);
  check.begin_work(0, 2);
  EXPECT_EQ(check.read(kBlock), "");
  check.record_event(EventId(1), 0);
  if (stream1_waits_for_reader) check.wait_event(EventId(1), 1);
  check.forget(kBlock, {1});
  check.allocate(kBlock);
  check.begin_work(2, 3);
  return check.write(kBlock);
}

/// The allocator waits for stream 1, which waited for the reader.
TEST(AccessCheck, RecordedStreamsStandForWhatTheyWaitedFor) { EXPECT_EQ(reuse(true), ""); }

TEST(AccessCheck, AReaderThatNobodyWaitedForIsAnError) {
  EXPECT_NE(reuse(false).find("stream 0 reads"), std::string::npos);
}

}  // namespace
}  // namespace foreshard
