#pragma once

#include "core/json.h"
#include "schedules/planner/host/decision_sink.h"
#include "schedules/planner/host/host.h"

namespace foreshard {

/// Turns what a run under DDP did into the events of the recordings, and collects the buckets of
/// each backward.
class DdpEvents final : public DecisionSink {
 public:
  explicit DdpEvents(const Model& model) : model_(model) {}

  /// Must come before anything is reported.
  void attach(Host& host) { host_ = &host; }
  void on_decision(const Decision& d) override;
  void add(Json event) { events_.push_back(std::move(event)); }
  /// Buckets that follow belong to this forward and backward.
  void begin_micro_batch(std::int64_t step, std::int64_t micro);

  Json& events() { return events_; }
  /// Launches of each backward; one that equals the one before is left out.
  Json buckets() const;

 private:
  void add_module_event(const char* name, const Decision& d);
  void add_collective(const Decision& d);
  void add_bucket(const Decision& d);

  const Model& model_;
  Host* host_ = nullptr;
  Json events_ = Json::array(), backwards_ = Json::array();
};

}  // namespace foreshard
