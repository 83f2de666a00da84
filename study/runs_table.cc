#include "study/runs_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "core/error.h"
#include "core/json.h"

namespace foreshard {
namespace {

constexpr std::size_t kMostRows = 1'000'000;

struct Record {
  std::size_t line = 0;
  std::vector<std::string> fields;
};

/// Splits CSV text (RFC 4180: quoted fields may hold commas, quotes doubled, line ends) into
/// records.
std::vector<Record> split(const std::string& text, IssueList& issues) {
  std::vector<Record> records;
  Record record{1, {}};
  std::string field;
  bool quoted = false, any = false;
  std::size_t line = 1;
  const auto end_field = [&] {
    record.fields.push_back(std::move(field));
    field.clear();
  };
  const auto end_record = [&] {
    end_field();
    if (any && records.size() < kMostRows) records.push_back(std::move(record));
    record = Record{line + 1, {}};
    any = false;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') {
      if (quoted)
        field += c;
      else
        end_record();
      ++line;
      if (!quoted) record.line = line;
    } else if (quoted) {
      if (c != '"')
        field += c;
      else if (i + 1 < text.size() && text[i + 1] == '"')
        field += text[++i];
      else
        quoted = false;
    } else if (c == '"' && field.empty()) {
      quoted = any = true;
    } else if (c == ',') {
      any = true;
      end_field();
    } else if (c != '\r') {
      any = true;
      field += c;
    }
  }
  if (quoted) issues.add(fmt::format("line {}", record.line), "a quoted field never ends");
  if (any) end_record();
  return records;
}

/// Reads the fields of one record by column name.
class RowReader {
 public:
  RowReader(const std::map<std::string, std::size_t>& columns, const Record& record,
            IssueList& issues)
      : columns_(columns), record_(record), issues_(issues) {}

  std::string text(const char* column) const { return record_.fields[columns_.at(column)]; }

  std::optional<double> number(const char* column) const {
    const std::string s = text(column);
    if (s.empty()) return std::nullopt;
    double v = 0;
    const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), v);
    if (error != std::errc{} || end != s.data() + s.size() || !std::isfinite(v) || v < 0) {
      complain(column, s, "a number, not negative");
      return std::nullopt;
    }
    return v;
  }

  std::optional<std::int64_t> count(const char* column) const {
    const std::string s = text(column);
    if (s.empty()) return std::nullopt;
    std::int64_t v = 0;
    const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), v);
    if (error != std::errc{} || end != s.data() + s.size() || v < 1 ||
        v > (std::int64_t{1} << 40)) {
      complain(column, s, "a whole number from 1");
      return std::nullopt;
    }
    return v;
  }

 private:
  void complain(const char* column, const std::string& found, const char* allowed) const {
    issues_.add(fmt::format("line {}, column {}", record_.line, column),
                "found \"" + found.substr(0, 60) + "\"", allowed);
  }

  const std::map<std::string, std::size_t>& columns_;
  const Record& record_;
  IssueList& issues_;
};

const std::vector<std::string> kColumns = {"source_id",
                                           "row_id",
                                           "model",
                                           "params_b",
                                           "n_layers",
                                           "d_model",
                                           "n_heads",
                                           "n_kv_heads",
                                           "d_ff",
                                           "vocab",
                                           "seq_len",
                                           "gpu",
                                           "n_gpus",
                                           "gpus_per_node",
                                           "inter_node_link",
                                           "strategy",
                                           "dp_shard",
                                           "dp_replicate",
                                           "tp",
                                           "pp",
                                           "cp",
                                           "micro_batch",
                                           "grad_accum",
                                           "precision",
                                           "ac_mode",
                                           "compile",
                                           "attention_impl",
                                           "tokens_per_s_per_gpu",
                                           "step_time_s",
                                           "peak_mem_gib",
                                           "mem_kind",
                                           "notes"};

std::map<std::string, std::size_t> read_header(const Record& header, IssueList& issues) {
  std::map<std::string, std::size_t> columns;
  for (std::size_t i = 0; i < header.fields.size(); ++i) columns[header.fields[i]] = i;
  for (const std::string& name : kColumns) {
    if (columns.count(name) == 0) {
      const std::string near = nearest_name(name, header.fields);
      issues.add("line 1", "no column \"" + name + "\"",
                 near.empty() ? "" : "the nearest is \"" + near + "\"");
      columns[name] = 0;
    }
  }
  return columns;
}

MeasuredRun read_run(const RowReader& row) {
  MeasuredRun r;
  r.source_id = row.text("source_id");
  r.row_id = row.text("row_id");
  r.model = row.text("model");
  r.params_b = row.number("params_b");
  r.n_layers = row.count("n_layers");
  r.d_model = row.count("d_model");
  r.n_heads = row.count("n_heads");
  r.n_kv_heads = row.count("n_kv_heads");
  r.d_ff = row.count("d_ff");
  r.vocab = row.count("vocab");
  r.seq_len = row.count("seq_len");
  r.gpu = row.text("gpu");
  r.n_gpus = row.count("n_gpus");
  r.gpus_per_node = row.count("gpus_per_node");
  r.inter_node_link = row.text("inter_node_link");
  r.strategy = row.text("strategy");
  r.dp_shard = row.count("dp_shard");
  r.dp_replicate = row.count("dp_replicate");
  r.tp = row.count("tp");
  r.pp = row.count("pp");
  r.cp = row.count("cp");
  r.micro_batch = row.count("micro_batch");
  r.grad_accum = row.count("grad_accum");
  r.precision = row.text("precision");
  r.ac_mode = row.text("ac_mode");
  r.compile = row.text("compile");
  r.attention_impl = row.text("attention_impl");
  r.tokens_per_s_per_gpu = row.number("tokens_per_s_per_gpu");
  r.step_time_s = row.number("step_time_s");
  r.peak_mem_gib = row.number("peak_mem_gib");
  r.mem_kind = row.text("mem_kind");
  r.notes = row.text("notes");
  return r;
}

}  // namespace

RunsTable read_runs_table(const std::filesystem::path& path) {
  RunsTable table{path.string(), {}};
  IssueList issues(table.file);
  const std::vector<Record> records = split(read_text_file(path), issues);
  if (records.empty())
    issues.add("", "no header line", "a CSV file with the columns of docs/formats/runs.md");
  issues.throw_if_any();
  const auto columns = read_header(records[0], issues);
  issues.throw_if_any();
  std::set<std::string> ids;
  for (std::size_t i = 1; i < records.size(); ++i) {
    const Record& record = records[i];
    if (record.fields.size() != records[0].fields.size()) {
      issues.add(fmt::format("line {}", record.line),
                 fmt::format("{} fields, the header has {}", record.fields.size(),
                             records[0].fields.size()));
      continue;
    }
    table.runs.push_back(read_run(RowReader(columns, record, issues)));
    if (!ids.insert(table.runs.back().row_id).second) {
      issues.add(fmt::format("line {}", record.line),
                 "row_id \"" + table.runs.back().row_id + "\" stands here twice");
    }
  }
  issues.throw_if_any();
  return table;
}

}  // namespace foreshard
