// The plain model on one device: the yardstick of every other framework.

#include "schedules/planner/frameworks/framework.h"

namespace foreshard {
namespace {

class Unsharded final : public Framework {
 public:
  void initialize(Host& host) override { materialize_whole(host, locals_); }
  std::span<const LocalParameter> local_parameters() const override { return locals_; }
  bool at_rest() const override { return true; }

 private:
  std::vector<LocalParameter> locals_;
};

}  // namespace

std::unique_ptr<Framework> make_unsharded() { return std::make_unique<Unsharded>(); }

}  // namespace foreshard
