#include "core/text.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace foreshard {
namespace {

TEST(Text, PartsKeepEmptyPieces) {
  using Parts = std::vector<std::string>;
  EXPECT_EQ(parts_of("a,bc", ','), (Parts{"a", "bc"}));
  EXPECT_EQ(parts_of("a,,b,", ','), (Parts{"a", "", "b", ""}));
  EXPECT_EQ(parts_of("", ','), (Parts{""}));
  EXPECT_EQ(parts_of("yes|no", '|'), (Parts{"yes", "no"}));
}

}  // namespace
}  // namespace foreshard
