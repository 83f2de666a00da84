#pragma once

// The reader of graph files (docs/formats/model.md). Include in graph_*.cc only.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/json_fwd.h"
#include "models/module_tree.h"

namespace foreshard {

class ObjectReader;

/// A graph file into a model, in one pass over the modules; programs, ties and aliases name modules
/// that may come later, and wait for the end.
class GraphFileReader {
 public:
  static constexpr std::int64_t kMostModules = 200'000, kMostStatements = 4'000'000,
                                kLargestSize = std::int64_t{1} << 40;

  explicit GraphFileReader(const std::string& file) : issues_(file), builder_("Model") {}

  Model read(const Json& json);

 private:
  struct PendingProgram {
    ModuleId module;
    const Json* json;
    std::string path;
  };
  struct PendingTie {
    ModuleId owner;
    std::string name, source, path;
  };
  struct PendingAlias {
    ModuleId parent;
    std::string name, target, path;
  };

  void read_module(const Json& json, ModuleId id, const std::string& path);
  void read_child(const Json& json, ModuleId parent, const std::string& name,
                  const std::string& path);
  bool read_leaf(ObjectReader& r, ModuleId parent, const std::string& name);
  void read_parameters(const Json& json, ModuleId id, const std::string& path);
  void read_buffers(const Json& json, ModuleId id, const std::string& path);
  void read_arguments(ObjectReader& top);
  void read_roles(ObjectReader& top);
  void resolve();
  void read_program(const PendingProgram& pending);
  void read_statement(const Json& json, ModuleId id, const std::string& path);
  void read_call(ObjectReader& r, ModuleId id);
  std::vector<std::string> names(ObjectReader& r, std::string_view key);
  std::vector<ModuleId> modules_of(const std::string& pattern, ModuleId from);
  DType dtype(ObjectReader& r, DType fallback);
  bool may_add_module(const std::string& path);

  IssueList issues_;
  ModelBuilder builder_;
  std::vector<PendingProgram> programs_;
  std::vector<PendingTie> ties_;
  std::vector<PendingAlias> aliases_;
  std::int64_t statements_ = 0;  ///< So far.
};

}  // namespace foreshard
