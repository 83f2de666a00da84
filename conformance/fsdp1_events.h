#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/json.h"
#include "schedules/planner/frameworks/fsdp1_event.h"
#include "schedules/planner/frameworks/fsdp1_unit.h"
#include "schedules/planner/host/decision_sink.h"

namespace foreshard {

/// Turns what a run under FSDP1 did into the events of the recordings.
class Fsdp1Events final : public DecisionSink, public fsdp1::Observer {
 public:
  Fsdp1Events(const Model& model, const std::vector<fsdp1::Unit>& units)
      : model_(model), units_(units), events_(Json::array()) {}

  void on_decision(const Decision& d) override;
  void on_event(const fsdp1::Event& e) override;
  void add(Json event) { events_.push_back(std::move(event)); }
  /// Events of the rate limiter are numbered inside a step.
  void begin_step(std::int64_t step);
  Json& events() { return events_; }

 private:
  Json named(const std::string& name, const fsdp1::Event& e) const;
  Json hook(const fsdp1::Event& e) const;
  Json storage(const fsdp1::Event& e) const;
  Json reduction(const fsdp1::Event& e) const;
  Json collective(const fsdp1::Event& e) const;
  Json limit(const fsdp1::Event& e);
  std::string limit_name(const fsdp1::Event& e) const;

  const Model& model_;
  const std::vector<fsdp1::Unit>& units_;
  Json events_;
  std::map<std::int64_t, std::size_t> pushed_;  ///< Of this step: running number to number in it.
};

}  // namespace foreshard
