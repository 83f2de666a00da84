#include "core/enum_names.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace foreshard {
namespace {

enum class Fruit : std::uint8_t { kApple, kPear, kPlum };
enum class Single { kOnly };

static_assert(kEnumerators<Fruit> == 3);
static_assert(kEnumerators<Single> == 1);

constexpr EnumName<Fruit> kFruit[] = {
    {Fruit::kApple, "apple"}, {Fruit::kPear, "pear"}, {Fruit::kPlum, "plum"}};
constexpr EnumName<Fruit> kForgotten[] = {{Fruit::kApple, "apple"}, {Fruit::kPear, "pear"}};
constexpr EnumName<Fruit> kExchanged[] = {
    {Fruit::kApple, "apple"}, {Fruit::kPlum, "plum"}, {Fruit::kPear, "pear"}};
static_assert(names_each(kFruit));
static_assert(!names_each(kForgotten));
static_assert(!names_each(kExchanged));

TEST(EnumNames, AreFoundByValueWhateverTheirOrder) {
  EXPECT_EQ(name_in(kFruit, Fruit::kPlum), "plum");
  EXPECT_EQ(name_in(kExchanged, Fruit::kPear), "pear");
  EXPECT_EQ(name_in(kForgotten, Fruit::kPlum), "");
}

}  // namespace
}  // namespace foreshard
