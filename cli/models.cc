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
#include "schedules/planner/model_costs.h"
#include "schedules/planner/op_graph_of.h"

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

int describe_model(Arguments& a) {
  std::vector<std::string> warnings;
  UnitSpec units;
  std::optional<Model> model;
  try {
    if (a.has("wrap")) units = parse_unit_spec(a.text("wrap"));
  } catch (const InputError& e) {
    a.report(e);
  }
  units.root_split = a.yes_no("root-split", false);
  const std::int64_t seq = a.integer("seq", 0, 1, 1 << 26),
                     batch = a.integer("micro-batch", 1, 1, 1 << 20);
  try {
    model = load_model(with_adapters(a.positional(0), a), &warnings);
  } catch (const InputError& e) {
    a.report(e);
  }
  a.check();
  ModelFacts facts = model_facts(*model, units);
  const std::int64_t length = seq > 0 ? seq : 2048;
  std::vector<CheckpointFacts> checkpoints;
  if (seq > 0 || a.has("micro-batch") || a.has("graph")) {
    facts.costs = model_costs(*model, batch, length);
    const OpGraph graph = op_graph_of(*model, batch, length);
    checkpoints = checkpoints_of(*model, graph);
    if (a.has("graph")) write_graph(a.text("graph"), graph);
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
    std::string text = facts_to_text(facts);
    for (const CheckpointFacts& c : checkpoints) {
      text +=
          fmt::format("checkpoint  {:>20}  bytes kept instead of {} saved, {} FLOPs again: {}\n",
                      c.kept.value, c.saved.value, c.recomputed.value, c.module);
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
               {{"wrap",
                 "POLICY",
                 "blocks | every:K | root | size:N | modules:a,b,c (default blocks)",
                 {},
                 false},
                {"root-split",
                 "yes|no",
                 "Embedding and head as units of their own (default no)",
                 {"yes", "no"},
                 false},
                {"seq", "S", "Also FLOPs and saved bytes for sequences of S tokens", {}, false},
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
