#pragma once

// Tables of measured training runs: a CSV file with the columns below, one run a row
// (docs/formats/measured-runs.md).

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace foreshard {

/// One measured run as its source states it. Absent: the source does not say.
struct MeasuredRun {
  std::string source_id, row_id, model;
  std::optional<double> params_b;
  std::optional<std::int64_t> n_layers, d_model, n_heads, n_kv_heads, d_ff, vocab, seq_len;
  std::string gpu;
  std::optional<std::int64_t> n_gpus, gpus_per_node;
  std::string inter_node_link, strategy;
  std::optional<std::int64_t> dp_shard, dp_replicate, tp, pp, cp, micro_batch, grad_accum;
  std::string precision, ac_mode, compile, attention_impl;
  std::optional<double> tokens_per_s_per_gpu, step_time_s, peak_mem_gib;
  std::string mem_kind, notes;
};

struct RunsTable {
  std::string file;
  std::vector<MeasuredRun> runs;
  std::vector<std::string> further_columns;  ///< Of the file, not read.
};

/// The measured step time in seconds: stated, or what follows from tokens/s.
std::optional<double> measured_step_s(const MeasuredRun& run);

/// Reads a table; columns may stand in any order, only model, n_gpus, strategy and one that was
/// measured must be there. Without `row_id` a row is called after its line, without `source_id`
/// after the file. InputError with line numbers: missing columns, a further column whose name is
/// near that of an absent one, wrong field counts, fields that are not numbers, an unterminated
/// quote, a row id twice.
RunsTable read_runs_table(const std::filesystem::path& path);

}  // namespace foreshard
