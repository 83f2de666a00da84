#pragma once

#include <string>

#include "core/json.h"
#include "schedules/planner/frameworks/zero.h"
#include "schedules/planner/host/decision_sink.h"

namespace foreshard {

/// Cause of the waits that read the engine's timers; recordings do not name it.
inline constexpr const char* kEngineTimers = "wall_clock";

/// Turns what a run under ZeRO did into the events of the recordings.
class ZeroEvents final : public DecisionSink, public zero::Observer {
 public:
  explicit ZeroEvents(const Model& model) : model_(model), events_(Json::array()) {}

  void on_decision(const Decision& d) override;
  void on_event(const zero::Event& e) override;
  void add(Json event) { events_.push_back(std::move(event)); }
  Json& events() { return events_; }

 private:
  std::string name(ModuleId m) const;
  Json names(const zero::Event& e) const;
  Json collective(const zero::Event& e) const;

  const Model& model_;
  Json events_;
};

}  // namespace foreshard
