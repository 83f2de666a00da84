#pragma once

#include <functional>
#include <vector>

#include "report/html.h"
#include "study/tune.h"

namespace foreshard::cli {

/// The wrap study of a job, as points of the report's curve.
std::vector<WrapPoint> wrap_points(const Job& job, const std::function<void(int, int)>& progress);
std::vector<WrapPoint> wrap_points(const TuneResult& result);

}  // namespace foreshard::cli
