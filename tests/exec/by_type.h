#pragma once

// Tests of kernels that hold for every floating-point dtype.

#include <string>

#include <gtest/gtest.h>

#include "tests/exec/host_tensor.h"

namespace foreshard::fixture {

class ByType : public ::testing::TestWithParam<DType> {
 protected:
  DType type = GetParam();
  /// Error of one rounding of the result plus that of the fp32 arithmetic inside.
  double tolerance = rounding_of(GetParam()) * 1.01 + 1e-6;
};

inline const auto kFloatingTypes =
    ::testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16);

inline std::string type_name(const ::testing::TestParamInfo<DType>& i) {
  return std::string(name_of(i.param));
}

}  // namespace foreshard::fixture
