#include "tests/planner/memory_support.h"

#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "core/dtype.h"
#include "models/plain/plain_models.h"
#include "schedules/planner/framework_table.h"
#include "tests/shared_folder.h"

namespace foreshard::fixture {
namespace {

using nlohmann::json;

std::string read_gzip(const std::string& path) {
  const gzFile f = gzopen(path.c_str(), "rb");
  if (!f) throw std::runtime_error("cannot open " + path);
  std::string text(1 << 16, '\0'), all;
  for (int n = 0; (n = gzread(f, text.data(), static_cast<unsigned>(text.size()))) > 0;)
    all.append(text, 0, static_cast<std::size_t>(n));
  gzclose(f);
  return all;
}

std::optional<DType> dtype_or_none(const json& j) {
  if (j.is_null()) return std::nullopt;
  return parse_dtype(j.get<std::string>());
}

Model model_of(const json& m, const std::string& dtype) {
  PlainModelOptions o;
  o.layers = m.at("layers");
  o.hidden = m.at("hidden");
  o.heads = m.at("heads");
  o.kv_heads = m.at("kv_heads");
  o.ffn = m.at("ffn");
  o.vocabulary = m.at("vocab");
  o.max_sequence = m.at("max_seq");
  o.tied = m.at("tied");
  o.head_dim = m.value("head_dim", 0);
  o.qk_norm = m.value("qk_norm", false);
  o.dropout = m.value("dropout", 0.0);
  o.dtype = *parse_dtype(dtype);
  return m.at("kind") == "llama" ? plain_llama(o) : plain_gpt2(o);
}

Reshard reshard_of(const json& j) {
  if (j.is_null()) return {};
  if (j.is_boolean()) return j.get<bool>() ? Reshard::yes() : Reshard::no();
  return Reshard::to_group(j.get<std::int64_t>());
}

void read_fsdp1(const json& c, Fsdp1Options& o) {
  using S = Fsdp1Options::Strategy;
  using B = Fsdp1Options::BackwardPrefetch;
  o.strategy = std::map<std::string, S>{
      {"FULL_SHARD", S::kFullShard},
      {"SHARD_GRAD_OP", S::kShardGradOp},
      {"HYBRID_SHARD",
       S::kHybrid}}.at(c.at("sharding_strategy"));
  o.backward_prefetch = std::map<std::string, B>{
      {"BACKWARD_PRE", B::kPre},
      {"BACKWARD_POST", B::kPost},
      {"none", B::kNone}}.at(c.at("backward_prefetch_mode"));
  o.forward_prefetch = c.at("forward_prefetch") != 0;
  o.limit_all_gathers = c.at("limit_all_gathers");
  o.use_orig_params = c.at("use_orig_params");
}

ParallelConfig config_of(const json& c) {
  ParallelConfig p;
  const std::string framework = c.at("framework");
  const std::int64_t world = c.at("world"), replicas = c.at("hsdp_replicas");
  p.framework = find_framework(framework)->kind;
  p.shard = framework == "ddp" ? 1 : world / replicas;
  p.replicate = framework == "ddp" ? world : replicas;
  p.micro_batch = c.at("micro_batch");
  p.sequence = c.at("seq");
  p.accumulate = c.at("grad_accum");
  p.sync_each_micro_batch = c.at("sync_each_microbatch");
  const std::string wrap = c.at("wrap");
  p.wrap.root_split = c.at("root_split");
  if (wrap == "none")
    p.wrap.kind = WrapPolicy::Kind::kRootOnly;
  else if (wrap != "block")
    p.wrap.kind = WrapPolicy::Kind::kEveryK, p.wrap.every = std::stoll(wrap);
  p.reshard = reshard_of(c.at("reshard_after_forward"));
  p.root_reshard = reshard_of(c.at("root_reshard"));
  if (const std::int64_t n =
          c.at("forward_prefetch").is_boolean() ? 0 : c.at("forward_prefetch").get<std::int64_t>())
    p.prefetch_forward = n;
  if (!c.at("backward_prefetch").is_null())
    p.prefetch_backward = c.at("backward_prefetch").get<std::int64_t>();
  p.precision.param = dtype_or_none(c.at("param_dtype"));
  p.precision.reduce = dtype_or_none(c.at("reduce_dtype"));
  p.ddp.verify_parameters =
      false;  // Left out when they were recorded: the device computes nothing to compare.
  p.model_dtype = *parse_dtype(c.at("model_dtype").get<std::string>());
  p.autocast = c.at("autocast");
  const std::string ac = c.at("activation_checkpointing");
  if (ac == "full") p.checkpoint = CheckpointKind::kFull;
  if (ac.starts_with("every_"))
    p.checkpoint = CheckpointKind::kEveryK, p.checkpoint_every = std::stoll(ac.substr(6));
  if (ac == "selective_op") p.checkpoint = CheckpointKind::kSelectiveOp;
  const std::map<std::string, OptimizerKind> kinds{{"adamw", OptimizerKind::kAdamWForeach},
                                                   {"adamw_fused", OptimizerKind::kAdamWFused},
                                                   {"adamw_for", OptimizerKind::kAdamWForLoop},
                                                   {"sgd", OptimizerKind::kSgd},
                                                   {"none", OptimizerKind::kNone}};
  p.optimizer = kinds.at(c.at("optimizer"));
  p.momentum = 0;
  p.weight_decay = 0.1;
  p.clip = c.at("clip_grad");
  p.offload = c.at("cpu_offload").get<bool>() ? OffloadKind::kParameters : OffloadKind::kNone;
  p.attention = c.at("attention") == "flash" ? AttentionKind::kFlash : AttentionKind::kSdpa;
  p.loss = c.at("loss") == "ce_float" ? LossKind::kCrossEntropyFloat : LossKind::kCrossEntropy;
  p.reduce_scatter_max_inputs = c.at("rs_max_input_buffers");
  p.unshard_async = c.at("unshard_async");
  if (!c.at("bucket_cap_mb").is_null()) p.ddp.bucket_cap_mib = c.at("bucket_cap_mb").get<double>();
  p.ddp.gradient_as_bucket_view = c.at("gradient_as_bucket_view");
  p.ddp.static_graph = c.at("static_graph");
  if (p.framework == FrameworkKind::kFsdp1) read_fsdp1(c, p.fsdp1);
  if (c.contains("float8") && !c.at("float8").is_null()) {
    p.float8 =
        std::map<std::string, Float8Kind>{{"tensorwise", Float8Kind::kTensorwise},
                                          {"rowwise", Float8Kind::kRowwise},
                                          {"rowwise_with_gw_hp", Float8Kind::kRowwiseHighPrecision}}
            .at(c.at("float8"));
    p.float8_all_gather = c.at("float8_all_gather");
    p.float8_precompute_scales = c.at("float8_precompute");
  }
  return p;
}

Stream recorded_of(const std::string& text) {
  Stream s;
  std::istringstream in(text);
  std::string line, step = "init", phase;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string kind, what;
    words >> kind;
    if (kind == "#") {
      words >> what;
      if (what == "step")
        words >> step;
      else
        words >> phase;
      continue;
    }
    if (kind != "a" && kind != "f") continue;
    Request r;
    words >> r.id;
    if (kind == "a") words >> r.size >> r.stream;
    s.requests.push_back(r);
    s.phases.push_back(step + "/" + phase);
  }
  return s;
}

}  // namespace

std::string memory_goldens() { return (shared_folder() / "golden" / "memory").string(); }

MemoryCase read_memory_case(const std::string& folder, const std::string& id) {
  std::ifstream in(folder + "/" + id + ".json");
  const json c = json::parse(in).at("case");
  MemoryCase m;
  m.id = id;
  m.model = model_of(c.at("model"), c.at("model_dtype"));
  m.config = config_of(c);
  m.rank = c.at("rank");
  m.steps = c.at("steps");
  m.recorded = recorded_of(read_gzip(folder + "/alloc/" + id + ".txt.gz"));
  return m;
}

Stream requests_of(const RankProgram& program) {
  Stream s;
  std::map<std::uint32_t, std::int64_t> number;
  std::string phase = "init";
  std::size_t next_step = 0;
  for (std::uint32_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& op = program.instructions[i];
    if (op.kind == InstructionKind::kMark && program.marks[op.id].kind == MarkKind::kStep &&
        program.marks[op.id].begin)
      ++next_step;
    if (op.kind == InstructionKind::kMark && program.marks[op.id].kind == MarkKind::kPhase)
      phase = std::string(name_of(program.marks[op.id].phase));
    if (op.kind != InstructionKind::kAlloc && op.kind != InstructionKind::kFree) continue;
    const Buffer& b = program.buffers[op.id];
    if (b.space != MemorySpace::kDevice) continue;
    Request r;
    if (op.kind == InstructionKind::kAlloc) {
      r = {static_cast<std::int64_t>(number.size()), b.bytes.value, b.pool};
      number.emplace(op.id, r.id);
    } else {
      r.id = number.at(op.id);
    }
    s.requests.push_back(r);
    s.phases.push_back((next_step == 0 ? "init" : std::to_string(next_step - 1)) + "/" + phase);
  }
  return s;
}

std::string first_difference(const Stream& expected, const Stream& found) {
  std::map<int, int> renamed;
  const auto text = [](const Request& r) {
    return (r.size > 0 ? "a" : "f") + std::to_string(r.id) +
           (r.size > 0 ? ":" + std::to_string(r.size) + "@" + std::to_string(r.stream) : "");
  };
  const std::size_t n = std::min(expected.requests.size(), found.requests.size());
  std::size_t i = 0;
  for (; i < n; ++i) {
    const Request &e = expected.requests[i], &f = found.requests[i];
    if (e.id != f.id || e.size != f.size) break;
    if (e.size > 0 && renamed.emplace(e.stream, f.stream).first->second != f.stream) break;
  }
  if (i == n && expected.requests.size() == found.requests.size()) return {};
  std::string out = "request " + std::to_string(i) + " of " +
                    std::to_string(expected.requests.size()) + " (found " +
                    std::to_string(found.requests.size()) + ")";
  const auto list = [&](const char* title, const Stream& s) {
    out += std::string("\n  ") + title + (i < s.phases.size() ? s.phases[i] : "end") + ":";
    for (std::size_t k = i > 12 ? i - 12 : 0; k < std::min(s.requests.size(), i + 14); ++k)
      out += (k == i ? "  >>" : " ") + text(s.requests[k]);
  };
  list("expected ", expected);
  list("found    ", found);
  return out;
}

}  // namespace foreshard::fixture
