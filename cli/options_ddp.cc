#include <fmt/format.h>


#include "cli/framework_options.h"
#include "core/parse_number.h"
#include "schedules/planner/config_names.h"

namespace foreshard::cli {
namespace {

void read_bucket_list(Arguments& a, DdpOptions& o) {
  for (const std::string& text : a.list("ddp-bucket-cap-mb-list")) {
    const auto mib = parse_number<double>(text);
    if (!mib || !(*mib > 0 && *mib < 1e6)) {
      a.report("ddp-bucket-cap-mb-list", fmt::format("\"{}\" is not a size in MiB", text),
               "e.g. 1,25,100");
    } else {
      o.bucket_cap_mib_list.push_back(*mib);
    }
  }
}

void check_power_sgd(Arguments& a, ParallelConfig& c) {
  if (c.ddp.comm_hook == DdpCommHook::kPowerSgd) return;
  for (const char* name : {"ddp-powersgd-rank", "ddp-powersgd-min-compression",
                           "ddp-powersgd-error-feedback", "ddp-powersgd-warm-start"})
    if (a.has(name)) a.report(name, "no gradient is compressed", "add --ddp-comm-hook powersgd");
}

}  // namespace

FrameworkOptions ddp_options() {
  using O = DdpOptions;
  const OptionMaker<O> make(&ParallelConfig::ddp, {FrameworkKind::kDdp});
  return {
      .title = "DDP",
      .options =
          {make.custom("ddp-bucket-cap-mb", "MIB", "Bucket size (default 25, the first 1)",
                       [](Arguments& a, O& o) {
                         o.bucket_cap_mib = a.number("ddp-bucket-cap-mb", 25, 1e-3, 1e6);
                       }),
           make.yes_no("ddp-gradient-as-bucket-view", "Default no", &O::gradient_as_bucket_view),
           make.yes_no("ddp-static-graph", "Default no", &O::static_graph),
           make.custom("ddp-bucket-cap-mb-list", "A,B,...",
                       "A size for each bucket, the last one repeats", read_bucket_list),
           make.yes_no("ddp-find-unused-parameters", "Default no", &O::find_unused_parameters),
           make.yes_no("ddp-broadcast-buffers", "Before every forward (default yes)",
                       &O::broadcast_buffers),
           make.yes_no("ddp-batched-grad-copy", "One copy for each bucket (default no)",
                       &O::batched_grad_copy),
           make.choice("ddp-comm-hook", "NAME", "What buckets pass on their way (default none)",
                       kCommHookNames, &O::comm_hook),
           make.custom("ddp-powersgd-rank", "R", "Columns of PowerSGD's factors (default 1)",
                       [](Arguments& a, O& o) {
                         o.power_sgd.rank = a.integer("ddp-powersgd-rank", 1, 1, 4096);
                       }),
           make.custom("ddp-powersgd-min-compression", "X",
                       "Only matrices that shrink by more than this go out as factors (default 2)",
                       [](Arguments& a, O& o) {
                         o.power_sgd.min_compression_rate =
                             a.number("ddp-powersgd-min-compression",
                                      o.power_sgd.min_compression_rate, 1e-3, 1e6);
                       }),
           make.custom("ddp-powersgd-error-feedback", "yes|no", "Default yes",
                       [](Arguments& a, O& o) {
                         o.power_sgd.error_feedback = a.yes_no("ddp-powersgd-error-feedback", true);
                       },
                       {"yes", "no"}),
           make.custom("ddp-powersgd-warm-start", "yes|no", "Default yes",
                       [](Arguments& a, O& o) {
                         o.power_sgd.warm_start = a.yes_no("ddp-powersgd-warm-start", true);
                       },
                       {"yes", "no"}),
           // Read with the other dtypes (job.cc), which it turns into DDP's own.
           make.custom("ddp-mixed-precision", "yes|no",
                       "DDP's own: parameters cast to --param-dtype, reduced in --reduce-dtype "
                       "(default no)",
                       [](Arguments&, O&) {}, {"yes", "no"}),
           make.yes_no("ddp-lazy-buckets",
                       "lazy_bucket_allocation: buckets only live in backward (default no)",
                       &O::lazy_bucket_allocation),
           make.yes_no("ddp-skip-unused",
                       "Buckets without a used parameter are not reduced (default no)",
                       &O::skip_all_reduce_unused)},
      .finish = check_power_sgd};
}

}  // namespace foreshard::cli
