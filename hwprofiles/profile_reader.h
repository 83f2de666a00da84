#pragma once

// Reading profile parts from parsed JSON. Each reader overlays what the text says on what the part
// already holds, so that a file may start from a base. Problems are collected in the issue list.

#include "core/error.h"
#include "core/json_fwd.h"
#include "hwprofiles/fact_text.h"
#include "hwprofiles/profile.h"

namespace foreshard {

/// Finds the bases that files name. Each returns false if there is no such name.
class BaseFinder {
 public:
  virtual ~BaseFinder() = default;
  virtual bool gpu(const std::string& name, GpuProfile& into) = 0;
  virtual bool machine(const std::string& name, HardwareProfile& into) = 0;
  virtual bool network(const std::string& name, NetworkProfile& into) = 0;
  virtual std::vector<std::string> known_gpus() = 0;
  virtual std::vector<std::string> known_machines() = 0;
  virtual std::vector<std::string> known_networks() = 0;
};

void read_gpu(const Json& json, const std::string& path, FactDefaults defaults, BaseFinder& bases,
              IssueList& issues, GpuProfile& gpu);
void read_network(const Json& json, const std::string& path, FactDefaults defaults,
                  BaseFinder& bases, IssueList& issues, NetworkProfile& network);
/// A whole machine file ("base", "gpu", "node", "network", "collectives").
void read_machine(const Json& json, BaseFinder& bases, IssueList& issues, HardwareProfile& machine);
/// Reports missing numbers and contradictions of a finished profile.
void check_machine(const HardwareProfile& machine, IssueList& issues);

}  // namespace foreshard
