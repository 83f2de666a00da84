#include <algorithm>
#include <fstream>
#include <set>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/job_options.h"
#include "cli/output.h"
#include "core/format.h"
#include "core/json.h"
#include "models/catalogue.h"
#include "models/describe.h"
#include "models/load_model.h"
#include "schedules/planner/framework_table.h"
#include "schedules/planner/model_costs.h"
#include "schedules/planner/op_graph_of.h"
#include "schedules/planner/unit_facts.h"
#include "schedules/planner/wrap_policy.h"

namespace foreshard::cli {
namespace {

int list_models(Arguments& a) {
  a.check();
  Json json = Json::array();
  std::string text = fmt::format("  {:<20} {:>14}  {}\n", "name", "parameters", "architecture");
  for (const CatalogueModel& m : model_catalogue()) {
    const Model model = load_model(m.name);
    const std::int64_t n = model.parameter_count().value;
    json.push_back({{"name", m.name},
                    {"aliases", m.aliases},
                    {"architecture", model.architecture},
                    {"parameters", n},
                    {"source", m.source}});
    text += fmt::format("  {:<20} {:>14}  {}\n", m.name, format_count(static_cast<double>(n)),
                        model.architecture);
  }
  text +=
      "\nAny Hugging Face config.json of these architectures works too: foreshard models describe "
      "path/config.json\n";
  if (a.flag("json"))
    print_json(json);
  else
    print(text);
  return kOk;
}

/// Those that form units.
std::vector<std::string> unit_frameworks() {
  std::vector<std::string> names;
  for (const FrameworkRow& row : frameworks())
    if (row.forms_units()) names.emplace_back(row.name);
  return names;
}

/// What checkpointing the first block of each class would change.
std::vector<CheckpointFacts> checkpoints_of(const Model& model, const OpGraph& graph) {
  std::vector<CheckpointFacts> all;
  std::set<std::string> classes;
  for (const ModuleId id : model.roles.blocks) {
    const Module& block = model.at(id);
    if (classes.insert(block.class_name).second) all.push_back(graph.checkpoint(block.name));
  }
  return all;
}

void write_graph(const std::string& file, const OpGraph& graph) {
  std::ofstream out(file);
  const bool dot = file.size() > 4 && file.compare(file.size() - 4, 4, ".dot") == 0;
  out << (dot ? graph.dot() : graph.json().dump(1)) << '\n';
  if (!out)
    throw InputError(Issue{file, "", "cannot be written", "a file in a folder that exists"});
}

/// What forms the units. Sizes are FSDP1's policy, so they ask for it where no framework is named.
ParallelConfig unit_config(Arguments& a) {
  ParallelConfig c;
  read_wrap(a, c.framework, c.wrap);
  if (c.wrap.kind == WrapPolicy::Kind::kSize) c.framework = FrameworkKind::kFsdp1;
  if (const FrameworkRow* row = find_framework(a.text("framework"))) c.framework = row->kind;
  c.wrap.root_split = a.yes_no("root-split", row_of(c.framework).root_split);
  return c;
}

std::int64_t usual_length(const Model& model) {
  const std::int64_t usual = std::max(ParallelConfig{}.sequence, model.shortest_sequence);
  return model.longest_sequence > 0 ? std::min(usual, model.longest_sequence) : usual;
}

/// Costs that nobody asked for by name are left out where the model cannot take the usual sample.
void add_usual_costs(const Model& model, std::int64_t length, ModelFacts& facts) {
  try {
    facts.costs = model_costs(model, 1, length);
  } catch (const InputError&) {
    facts.costs.reset();
  }
}

/// "1 sequence of 2,048 tokens", "8 samples".
std::string sample_text(const Model& model, std::int64_t batch, std::int64_t length) {
  const bool tokens = model.takes_sequences();
  std::string out = fmt::format("{} {}{}", with_thousands(batch), tokens ? "sequence" : "sample",
                                batch == 1 ? "" : "s");
  return tokens ? out + fmt::format(" of {} tokens", with_thousands(length)) : out;
}

int describe_model(Arguments& a) {
  std::vector<std::string> warnings;
  std::optional<Model> model;
  const ParallelConfig config = unit_config(a);
  const std::int64_t seq = a.count("seq", 0, 1, 1 << 26, kThousandTokens),
                     batch = a.integer("micro-batch", 1, 1, 1 << 20);
  try {
    model = load_model(with_adapters(a.positional(0), a), &warnings);
  } catch (const InputError& e) {
    a.report(e);
  }
  a.check();
  ModelFacts facts = model_facts(*model);
  facts.units = unit_facts(*model, config);
  const std::int64_t length = seq > 0 ? seq : usual_length(*model);
  std::vector<CheckpointFacts> checkpoints;
  if (seq > 0 || a.has("micro-batch") || a.has("graph")) {
    facts.costs = model_costs(*model, batch, length);
    const OpGraph graph = op_graph_of(*model, batch, length);
    checkpoints = checkpoints_of(*model, graph);
    if (a.has("graph")) write_graph(a.text("graph"), graph);
  } else {
    add_usual_costs(*model, length, facts);
  }
  for (const std::string& w : warnings) warn(w);
  if (a.flag("json")) {
    Json json = facts_to_json(facts);
    for (const CheckpointFacts& c : checkpoints) {
      json["checkpoint"].push_back({{"module", c.module},
                                    {"saved_bytes", c.saved.value},
                                    {"kept_bytes", c.kept.value},
                                    {"recompute_flops", c.recomputed.value}});
    }
    print_json(json);
  } else {
    std::string text = facts_to_text(facts, sample_text(*model, batch, length));
    for (const CheckpointFacts& c : checkpoints) {
      text += fmt::format("checkpoint  {:>20}  kept instead of {} saved, {} again: {}\n",
                          format_memory(c.kept), format_memory(c.saved), flops_text(c.recomputed),
                          c.module);
    }
    print(text);
  }
  return kOk;
}

}  // namespace

CommandSpec models_command() {
  CommandSpec c;
  c.name = "models";
  c.summary = "Lists the models known by name.";
  c.examples = {{"foreshard models", "names, sizes, architectures"}};
  c.groups = {{"Answer", {{"json", "", "One JSON document instead of text", {}, false}}}};
  c.run = list_models;
  return c;
}

CommandSpec models_describe_command() {
  CommandSpec c;
  c.name = "models describe";
  c.summary = "Parameters, tensors, units and FLOPs of one model.";
  c.examples = {
      {"foreshard models describe llama3-8b", "a page"},
      {"foreshard models describe config.json --wrap every:2 --seq 4096 --micro-batch 1 --json",
       "units of two blocks; FLOPs and saved bytes of one sample"}};
  c.positionals = {model_argument()};
  c.groups = {{"Question",
               {{"wrap", "POLICY", fmt::format("{} (default blocks)", kWrapForms), {}, false},
                {"framework", "NAME", "Whose units (default fsdp2; fsdp1 for size:N)",
                 unit_frameworks(), false},
                {"root-split", "yes|no", wrap_options()[1].help, {"yes", "no"}, false},
                {"seq",
                 "S",
                 "Tokens of the sample for FLOPs and saved bytes (default 2048); also what "
                 "checkpoints of a block would keep",
                 {},
                 false},
                {"micro-batch", "B", "Sequences of the sample (default 1)", {}, false}}},
              adapter_options(),
              {"Answer",
               {{"graph",
                 "FILE",
                 "The ops of forward and backward as a graph: FILE.dot for Graphviz, else JSON",
                 {},
                 false},
                {"json", "", "One JSON document instead of text", {}, false}}}};
  c.run = describe_model;
  return c;
}

}  // namespace foreshard::cli
