#include "study/runs_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <variant>

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
    if (error != std::errc{} || end != s.data() + s.size() || !std::isfinite(v) || v <= 0) {
      complain(column, s, "a number above 0");
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

/// A column, where it goes, and whether no row can do without it.
struct Column {
  const char* name;
  std::variant<std::string MeasuredRun::*, std::optional<double> MeasuredRun::*,
               std::optional<std::int64_t> MeasuredRun::*>
      member;
  bool required = false;
};

const std::vector<Column>& columns() {
  using R = MeasuredRun;
  static const std::vector<Column> all = {{"source_id", &R::source_id},
                                          {"row_id", &R::row_id},
                                          {"model", &R::model, true},
                                          {"params_b", &R::params_b},
                                          {"n_layers", &R::n_layers},
                                          {"d_model", &R::d_model},
                                          {"n_heads", &R::n_heads},
                                          {"n_kv_heads", &R::n_kv_heads},
                                          {"d_ff", &R::d_ff},
                                          {"vocab", &R::vocab},
                                          {"seq_len", &R::seq_len},
                                          {"gpu", &R::gpu},
                                          {"n_gpus", &R::n_gpus, true},
                                          {"gpus_per_node", &R::gpus_per_node},
                                          {"inter_node_link", &R::inter_node_link},
                                          {"strategy", &R::strategy, true},
                                          {"dp_shard", &R::dp_shard},
                                          {"dp_replicate", &R::dp_replicate},
                                          {"tp", &R::tp},
                                          {"pp", &R::pp},
                                          {"cp", &R::cp},
                                          {"micro_batch", &R::micro_batch},
                                          {"grad_accum", &R::grad_accum},
                                          {"precision", &R::precision},
                                          {"ac_mode", &R::ac_mode},
                                          {"compile", &R::compile},
                                          {"attention_impl", &R::attention_impl},
                                          {"tokens_per_s_per_gpu", &R::tokens_per_s_per_gpu},
                                          {"step_time_s", &R::step_time_s},
                                          {"peak_mem_gib", &R::peak_mem_gib},
                                          {"mem_kind", &R::mem_kind},
                                          {"notes", &R::notes}};
  return all;
}

constexpr std::array kMeasured{"step_time_s", "tokens_per_s_per_gpu", "peak_mem_gib"};

/// Where each column of ours stands in the file; the others go to `further`.
std::map<std::string, std::size_t> read_header(const Record& header, IssueList& issues,
                                               std::vector<std::string>& further) {
  std::map<std::string, std::size_t> at;
  for (std::size_t i = 0; i < header.fields.size(); ++i) {
    if (!at.emplace(header.fields[i], i).second && !header.fields[i].empty())
      issues.add("line 1", "column \"" + header.fields[i] + "\" stands here twice");
  }
  std::vector<std::string> absent;
  for (const Column& c : columns()) {
    if (at.count(c.name) != 0) continue;
    absent.emplace_back(c.name);
    if (!c.required) continue;
    const std::string near = nearest_name(c.name, header.fields);
    issues.add("line 1", fmt::format("no column \"{}\"", c.name),
               near.empty() ? "docs/formats/measured-runs.md says what it holds"
                            : "the nearest is \"" + near + "\"");
  }
  if (std::none_of(kMeasured.begin(), kMeasured.end(),
                   [&](const char* name) { return at.count(name) != 0; }))
    issues.add("line 1", "no column of a measurement",
               fmt::format("one of {}", fmt::join(kMeasured, ", ")));
  for (const std::string& name : header.fields) {
    if (std::any_of(columns().begin(), columns().end(),
                    [&](const Column& c) { return name == c.name; }))
      continue;
    further.push_back(name);
    const std::string near = nearest_name(name, absent);
    if (!near.empty())
      issues.add("line 1", fmt::format("unknown column \"{}\"", name),
                 "the nearest is \"" + near + "\"");
  }
  return at;
}

MeasuredRun read_run(const RowReader& row, const std::map<std::string, std::size_t>& at) {
  MeasuredRun run;
  for (const Column& c : columns()) {
    if (at.count(c.name) == 0) continue;
    if (const auto* text = std::get_if<std::string MeasuredRun::*>(&c.member))
      run.** text = row.text(c.name);
    else if (const auto* number = std::get_if<std::optional<double> MeasuredRun::*>(&c.member))
      run.** number = row.number(c.name);
    else
      run.*std::get<std::optional<std::int64_t> MeasuredRun::*>(c.member) = row.count(c.name);
  }
  return run;
}

}  // namespace

std::optional<double> measured_step_s(const MeasuredRun& run) {
  if (run.step_time_s || !run.tokens_per_s_per_gpu || *run.tokens_per_s_per_gpu <= 0 ||
      !run.seq_len)
    return run.step_time_s;
  const double tokens =
      static_cast<double>(*run.seq_len * run.micro_batch.value_or(1) * run.grad_accum.value_or(1));
  return tokens / *run.tokens_per_s_per_gpu;
}

RunsTable read_runs_table(const std::filesystem::path& path) {
  RunsTable table{path.string(), {}, {}};
  IssueList issues(table.file);
  std::string text = read_text_file(path);
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);  // Byte order mark of spreadsheets.
  const std::vector<Record> records = split(text, issues);
  if (records.empty())
    issues.add("", "no header line",
               "a CSV file with the columns of docs/formats/measured-runs.md");
  issues.throw_if_any();
  const auto at = read_header(records[0], issues, table.further_columns);
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
    MeasuredRun& run = table.runs.emplace_back(read_run(RowReader(at, record, issues), at));
    if (run.row_id.empty()) run.row_id = fmt::format("line {}", record.line);
    if (run.source_id.empty()) run.source_id = path.stem().string();
    if (!ids.insert(run.row_id).second) {
      issues.add(fmt::format("line {}, column row_id", record.line),
                 "found \"" + run.row_id + "\" again", "each row once");
    }
  }
  issues.throw_if_any();
  return table;
}

}  // namespace foreshard
