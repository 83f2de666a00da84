#pragma once

// The answer to "will it fit and how fast is it", as plain data: whoever computes it fills this in,
// the functions below show it. The order is always: verdict, the few numbers, why, what to try,
// what was not modelled.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/json_fwd.h"
#include "core/units.h"

namespace foreshard {

/// All collectives of one kind over one group.
struct AnswerCommunication {
  std::string kind, group;  ///< "all-gather", "shard"
  std::int64_t group_size = 1, count = 0;
  Bytes bytes;
  Time busy, exposed;
  Time shared;             ///< Part of `busy` that other transfers on the same links cost.
  std::string limited_by;  ///< "NVLink", "network", ...
};

struct AnswerOwner {
  std::string category, unit;
  Bytes bytes;
};

struct AnswerMemory {
  Bytes allocated_peak, reserved_peak, device_peak, capacity;
  Bytes context, communicators, host_peak;
  std::int64_t retries = 0, retries_total = 0;  ///< In the last step; in all simulated ones.
  Bytes host_node_peak, host_capacity;  ///< Of a node: all its ranks; its main memory (0: unknown).
  bool fits = true, fits_device = true, fits_host = true;  ///< Both; each alone.
  std::optional<Bytes> runs_with;  ///< Memory of a device that is enough, where this one is not.
  std::string peak_at;             ///< "backward of layers.31, step 1"
  /// Fits, but only as the allocator gives cached segments back and asks again.
  bool borderline() const { return fits && retries_total > 0; }
  bool tight = false;         ///< Fits, but leaves less free than advice does (study/headroom.h).
  std::string out_of_memory;  ///< Where and why a request failed; empty if it fits.
  std::vector<AnswerOwner> owners;  ///< At the peak, largest first.
};

struct AnswerShare {
  std::string resource;
  Time time;
  bool is_kernel = false;  ///< Work of the compute stream, not waiting for anything.
};

/// A change of one option and what it brings, found by computing it.
struct AnswerSuggestion {
  std::string change;  ///< "--micro-batch 2"
  Time step_time;
  Bytes memory_change;  ///< Of the device peak.
  double tokens_per_s_per_gpu = 0, samples_per_s_per_gpu = 0;
  double speedup = 1;  ///< Samples per second against the job as asked.
  bool fits = true;
};

struct AnswerProvenance {
  std::string quantity, value, source, kind;
};

/// One number's share in the uncertainty of the step time.
struct AnswerUncertainty {
  std::string quantity;
  double sd = 0,
         effect = 0;  ///< Relative: of the number; of the step if the number is one deviation off.
  std::string source;
};

struct StepAnswer {
  std::string model, model_size;  ///< "llama3-8b", "8.03 B parameters"
  std::string framework;          ///< "FSDP2, 34 units"
  std::string machines, precision, wrapping;
  std::string batch, training;  ///< "seq 4096 · micro-batch 1 · ...", "AdamW fused, clipping · ..."
  /// Options of a --config file that ask the same question again; numbers as digits.
  std::vector<std::pair<std::string, std::string>> configuration;
  std::int64_t gpus = 1;
  Time step_time;
  std::optional<std::pair<Time, Time>> step_range;  ///< p10 and p90, where known.
  double tokens_per_s_per_gpu = 0;                  ///< 0 for a model without tokens.
  double samples_per_s_per_gpu = 0;                 ///< Sequences or images.
  double mfu = 0,
         hfu = 0;    ///< Fractions of the dense peak; 0 if the device has none for this dtype.
  std::string peak;  ///< Which one: "bf16", "TF32".
  Time compute, exposed_communication, exposed_host, optimizer, idle;
  Time interference;  ///< Part of compute and optimizer that transfers and kernels beside cost.
  std::vector<AnswerCommunication> communication;
  std::vector<AnswerShare> critical_path;
  AnswerMemory memory;
  std::vector<AnswerSuggestion> suggestions;
  std::vector<std::string> remarks;  ///< What a reader should know of the job beside them.
  std::vector<std::string> not_modelled;
  std::vector<AnswerProvenance> provenance;
  std::vector<AnswerUncertainty> uncertainty;  ///< Largest effect first.
  std::vector<std::string> outside;            ///< Why the job lies outside what was calibrated.
};

/// How text is dressed. Colours and bars only for a terminal.
struct TextStyle {
  bool colour = false, bars = false;
  int width = 100;
};

/// One screen for people. With `explain`: also every communication row, the critical path, owners
/// and provenance.
std::string text_of(const StepAnswer& answer, const TextStyle& style, bool explain = false);
/// The keys of the contract of `simulate --json`.
Json to_json(const StepAnswer& answer);

}  // namespace foreshard
