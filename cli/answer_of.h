#pragma once

#include <vector>

#include "report/answer.h"
#include "report/memory_explanation.h"
#include "study/evaluate.h"
#include "study/memory_study.h"
#include "study/predict.h"
#include "study/suggest.h"

namespace foreshard::cli {

/// What report/ shows of a prediction.
StepAnswer answer_of(const Job& job, const Prediction& prediction);
/// The answer of `--explain-memory`.
MemoryExplanation memory_explanation_of(const Job& job, const Evaluation& evaluation,
                                        const MemoryStudy& study);
/// The memory of a measured run in the same form: the rank with the highest peak of the last step.
AnswerMemory memory_of(const Trace& trace, Bytes capacity);

}  // namespace foreshard::cli
