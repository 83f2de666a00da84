#pragma once

#include <string>

#include "core/json.h"
#include "schedules/planner/frameworks/fsdp2.h"
#include "schedules/planner/host/decision_sink.h"

namespace foreshard {

/// Turns decisions of a run under FSDP2 into the events of the recordings.
class Fsdp2Events final : public DecisionSink {
 public:
  explicit Fsdp2Events(const Model& model);

  /// Before the run starts.
  void attach(const fsdp2::Fsdp2& framework, Host& host) { framework_ = &framework, host_ = &host; }
  void on_decision(const Decision& d) override;
  /// An event of the script itself.
  void add(Json event);
  Json& events() { return events_; }

  // Where the script is; events of collectives carry it.
  std::string phase = "init";
  std::int64_t step = -1, micro = -1;

 private:
  void add_unit_event(const char* name, const Decision& d, Json rest);
  void add_collective(const Decision& d);
  void add_module_event(const char* name, const Decision& d);
  std::string unit(UnitId id) const;
  std::string root(const Decision& d) const;
  void on_gradients(const Decision& d);
  void on_reduced(const Decision& d);
  void on_gathering(const Decision& d);

  const Model& model_;
  const fsdp2::Fsdp2* framework_ = nullptr;
  Host* host_ = nullptr;
  int recomputing_ = 0;
  Json events_;
};

}  // namespace foreshard
