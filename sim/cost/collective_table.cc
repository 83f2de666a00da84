#include "sim/cost/collective_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/json.h"
#include "core/parse_number.h"

namespace foreshard {
namespace {

std::vector<std::string_view> split(std::string_view line, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const auto at = line.find(separator);
    parts.push_back(line.substr(0, at));
    if (at == std::string_view::npos) return parts;
    line.remove_prefix(at + 1);
  }
}

constexpr std::string_view kColumns[] = {"size_bytes", "time_us_out_of_place", "time_us_in_place",
                                         "algbw_GBps_oop", "busbw_GBps_oop"};

/// Which of the known columns stands where; reports the unknown ones.
std::vector<int> read_header(std::string_view line, IssueList& issues) {
  std::vector<int> order;
  for (const auto name : split(line, ',')) {
    const auto* found = std::find(std::begin(kColumns), std::end(kColumns), name);
    if (found == std::end(kColumns)) {
      issues.add("line 1", fmt::format("unknown column \"{}\"", name),
                 fmt::format("known: {}", fmt::join(kColumns, ", ")));
    }
    order.push_back(static_cast<int>(found - std::begin(kColumns)));
  }
  const auto has = [&](int column) {
    return std::find(order.begin(), order.end(), column) != order.end();
  };
  if (!has(0) || (!has(1) && !has(2))) {
    issues.add("line 1", "the columns size_bytes and a time are needed",
               "size_bytes,time_us_out_of_place,...");
  }
  return order;
}

void read_row(std::string_view line, int number, const std::vector<int>& order, IssueList& issues,
              std::vector<CollectiveRow>& rows) {
  const auto place = fmt::format("line {}", number);
  const auto cells = split(line, ',');
  if (cells.size() != order.size()) {
    return issues.add(place,
                      fmt::format("{} cells where the header has {}", cells.size(), order.size()));
  }
  CollectiveRow row;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (order[i] == 0) {
      const auto bytes = parse_number<std::int64_t>(cells[i]);
      if (!bytes || *bytes < 0)
        return issues.add(place, fmt::format("\"{}\" is no size in bytes", cells[i]));
      row.bytes = Bytes(*bytes);
    } else if (order[i] <= 2 && !cells[i].empty()) {
      const auto us = parse_number<double>(cells[i]);
      if (!us || !(*us > 0 && *us < 1e12))
        return issues.add(place, fmt::format("\"{}\" is no time in us", cells[i]));
      (order[i] == 1 ? row.out_of_place_s : row.in_place_s) = *us * 1e-6;
    }
  }
  if (std::isnan(row.seconds())) return issues.add(place, "a row without a time");
  rows.push_back(row);
}

}  // namespace

std::optional<CollectiveKind> parse_nccl_test_name(std::string_view name) {
  if (name.ends_with("_perf")) name.remove_suffix(5);
  struct Entry {
    std::string_view name;
    CollectiveKind kind;
  };
  constexpr Entry entries[] = {{"all_gather", CollectiveKind::kAllGather},
                               {"reduce_scatter", CollectiveKind::kReduceScatter},
                               {"all_reduce", CollectiveKind::kAllReduce},
                               {"broadcast", CollectiveKind::kBroadcast},
                               {"reduce", CollectiveKind::kReduce},
                               {"alltoall", CollectiveKind::kAllToAll},
                               {"all_to_all", CollectiveKind::kAllToAll},
                               {"sendrecv", CollectiveKind::kSendReceive}};
  for (const auto& entry : entries) {
    if (entry.name == name) return entry.kind;
  }
  return std::nullopt;
}

std::vector<CollectiveRow> parse_collective_csv(std::string_view text, const std::string& file) {
  IssueList issues(file);
  std::vector<CollectiveRow> rows;
  std::vector<int> order;
  int number = 0;
  for (auto line : split(text, '\n')) {
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (number == 1) {
      order = read_header(line, issues);
      issues.throw_if_any();
    } else if (!line.empty()) {
      read_row(line, number, order, issues, rows);
      if (issues.issues().size() > 20) break;
    }
  }
  if (rows.empty() && issues.empty()) issues.add("", "no rows", "one line for each size");
  issues.throw_if_any();
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  return rows;
}

std::vector<CollectiveTable> read_collective_index(const std::filesystem::path& index) {
  const Json json = read_json_file(index);
  IssueList issues(index.string());
  if (!json.is_array())
    issues.add("", describe_json(json) + " is no list of tables",
               "[{id, coll, ranks, nodes, csv}]");
  issues.throw_if_any();
  std::vector<CollectiveTable> tables;
  for (std::size_t i = 0; i < json.size(); ++i) {
    ObjectReader object(json[i], fmt::format("[{}]", i), issues);
    CollectiveTable table;
    const auto coll = object.required_string("coll");
    const auto kind = parse_nccl_test_name(coll);
    if (!kind) table.unsupported = "the collective \"" + coll + "\" is not modelled";
    table.kind = kind.value_or(CollectiveKind::kAllReduce);
    table.ranks = static_cast<int>(object.required_integer("ranks", 2, 1'000'000));
    table.nodes = static_cast<int>(object.required_integer("nodes", 1, 1'000'000));
    table.gpu = object.required_string("gpu");
    table.machine = object.string("machine", "");
    table.network = object.string("network", "");
    table.source = object.string("source", "");
    table.quality = object.string("quality", "");
    const auto csv = object.required_string("csv");
    table.id = object.string("id", csv);
    if (!issues.empty()) continue;
    if (!table.unsupported.empty()) {
      tables.push_back(std::move(table));
      continue;
    }
    const auto path = index.parent_path() / csv;
    table.rows = parse_collective_csv(read_text_file(path), path.string());
    tables.push_back(std::move(table));
  }
  issues.throw_if_any();
  return tables;
}

}  // namespace foreshard
