#pragma once

// Measured collectives: the text output of NVIDIA's nccl-tests, and a CSV form of it with an index.

#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/units.h"
#include "schedules/schedule.h"

namespace foreshard {

/// One line of an nccl-tests table. Times in seconds; NaN where the source has none.
struct CollectiveRow {
  Bytes bytes;  ///< "size": the larger of send and receive buffer
  double out_of_place_s = std::nan("");
  double in_place_s = std::nan("");
  /// Out of place where measured, else in place.
  double seconds() const { return std::isnan(out_of_place_s) ? in_place_s : out_of_place_s; }
  /// For fits: as `seconds`, but the smaller of the two where they differ by more than a fifth.
  /// Both columns time the same work, and a disturbance only ever adds time.
  double undisturbed_seconds() const {
    const bool differ = in_place_s < out_of_place_s / 1.2;
    return differ ? in_place_s : seconds();
  }
};

/// One measured table and what is known about its machine. Rows ascend in bytes.
struct CollectiveTable {
  std::string id;  ///< file name without ending, or the index's id
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int ranks = 0, nodes = 0;
  int gpus_per_process = 0;  ///< 0 if not known
  std::string gpu, machine, network, source, quality;
  std::vector<std::string> notes;   ///< what the reader had to assume
  std::vector<std::string> faults;  ///< why its times may say nothing: wrong results, failed calls
  std::string unsupported;  ///< the index names a collective that is not modelled; then `kind` and
                            ///< `rows` say nothing
  std::vector<CollectiveRow> rows;
};

/// Reads the text output of any nccl-tests generation: with "bytes N type op" (2017, times in ms),
/// with "size count type redop ... error" (2019), with root and "#wrong" columns (2022 on, 2.18
/// with its opening and closing lines). `kind` is for logs that do not name their test; without it
/// the kind follows from busbw / algbw and the reduction. InputError for text that is no such log,
/// truncated lines, unknown units, times of zero, times that contradict the bandwidth column, a
/// `kind` that contradicts the log's name or its busbw / algbw.
CollectiveTable parse_nccl_log(std::string_view text, const std::string& file,
                               std::optional<CollectiveKind> kind = std::nullopt);

/// Reads "size_bytes,time_us_out_of_place,time_us_in_place,..." (further columns: algbw_GBps_oop,
/// busbw_GBps_oop).
std::vector<CollectiveRow> parse_collective_csv(std::string_view text, const std::string& file);

/// Reads an index (JSON list of {id, coll, ranks, nodes, gpu, machine, network, source, csv}) with
/// its CSV files beside it.
std::vector<CollectiveTable> read_collective_index(const std::filesystem::path& index);

/// "all_reduce", "all_gather_perf", "alltoall", ... as nccl-tests names its programs.
std::optional<CollectiveKind> parse_nccl_test_name(std::string_view name);

}  // namespace foreshard
