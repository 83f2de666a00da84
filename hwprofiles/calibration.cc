#include "hwprofiles/calibration.h"

#include <fmt/format.h>

#include "core/json.h"
#include "hwprofiles/embedded_catalogue.h"
#include "hwprofiles/fact_text.h"
#include "hwprofiles/profile_fields.h"

namespace foreshard {
namespace {

void apply(const Json& facts, const std::string& path, IssueList& issues, GpuProfile& gpu) {
  ObjectReader object(facts, path, issues);
  for (const EfficiencyName& name : efficiency_names()) {
    Fact fact;
    read_fact(object, name.key, name.dimension, {}, fact);
    if (!fact.known()) continue;
    Fact& present = gpu.efficiency[std::string(name.key)];
    fact.prior = present.value;
    present = fact;
  }
  object.finish();
}

}  // namespace

void apply_catalogue_calibrations(std::string_view name, GpuProfile& gpu) {
  for (const EmbeddedFile& file : embedded_catalogue()) {
    if (file.folder != "calibrations") continue;
    const std::string title = fmt::format("catalogue {}/{}", file.folder, file.name);
    const Json json = parse_json(file.text, title);
    const auto gpus = json.find("gpus");
    if (gpus == json.end()) continue;
    const auto facts = gpus->find(std::string(name));
    if (facts == gpus->end()) continue;
    IssueList issues(title);
    apply(*facts, fmt::format("gpus.{}", name), issues, gpu);
    issues.throw_if_any();
  }
}

std::optional<CalibrationCoverage> training_coverage() {
  for (const EmbeddedFile& file : embedded_catalogue()) {
    if (file.folder != "calibrations") continue;
    const Json json = parse_json(file.text, fmt::format("catalogue {}/{}", file.folder, file.name));
    const auto coverage = json.find("coverage");
    if (coverage == json.end()) continue;
    const auto range = [&](const char* key) {
      const Json& r = coverage->at(key);
      return CalibrationCoverage::Range{r.at(0).get<std::int64_t>(), r.at(1).get<std::int64_t>()};
    };
    return CalibrationCoverage{range("gpus"), range("sequence"), range("tokens"),
                               range("million_parameters")};
  }
  return std::nullopt;
}

std::string uncalibrated_source(std::string_view gpu, std::string_view efficiency) {
  std::string name(gpu);
  while (!name.empty()) {
    Json json;
    for (const EmbeddedFile& file : embedded_catalogue()) {
      if (file.folder == "gpus" && file.name == name) json = parse_json(file.text, name);
    }
    if (!json.is_object()) break;
    const Json facts = json.value("efficiency", Json::object());
    const auto fact = facts.find(std::string(efficiency));
    if (fact != facts.end()) return fact->value("source", std::string());
    name = json.value("efficiency_as", json.value("base", std::string()));
  }
  return {};
}

void forget_calibration(GpuProfile& gpu) {
  for (auto& [key, fact] : gpu.efficiency) {
    if (!std::isnan(fact.prior)) fact.value = fact.prior;
  }
}

}  // namespace foreshard
