#include "cli/import_job.h"

#include <fmt/format.h>

#include "cli/foreign/foreign_job.h"
#include "cli/job_options.h"
#include "cli/output.h"
#include "core/atomic_file.h"
#include "core/json.h"

namespace foreshard::cli {
namespace {

constexpr std::uintmax_t kLargestJobFile = 1 << 20;

ForeignJob read_foreign_job(const std::string& kind, const std::string& file, std::int64_t gpus) {
  const std::string text = read_text_file(file);
  if (text.size() > kLargestJobFile)
    throw InputError(Issue{
        file, "", fmt::format("{} bytes; a job file has at most {}", text.size(), kLargestJobFile),
        ""});
  if (kind == "accelerate") return import_accelerate(text, file, gpus);
  if (kind == "torchtitan") return import_torchtitan(text, file, gpus);
  return import_deepspeed(text, file, gpus);
}

}  // namespace

int import_job(Arguments& a) {
  const std::int64_t gpus = a.integer("gpus", 0, 1, kMostGpus);
  a.check();
  const ForeignJob job = read_foreign_job(a.positional(0), a.positional(1), gpus);
  const std::string output = a.text("output");
  if (!output.empty()) write_file_atomically(output, options_file(job));
  if (a.flag("json")) return print_json(to_json(job)), kOk;
  if (output.empty()) return print(options_file(job)), kOk;
  print(describe(job) +
        fmt::format("wrote {0}; foreshard simulate MODEL --gpus N --on HARDWARE --config {0}\n",
                    output));
  return kOk;
}

}  // namespace foreshard::cli
