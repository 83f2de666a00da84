#pragma once

// Recordings of PyTorch's allocator (2.15.0, on a device without kernels) and their replay against
// ours.
//
// A recording is NAME.txt.gz, one event a line: "a id bytes stream" | "f id" | "c id" (block
// reusable) | "S bytes stream" / "s bytes stream" (segment taken / returned) | "M" / "m" (pages
// mapped / unmapped) | "O bytes" |
// "# step k" | "# phase name allocated reserved active", and NAME.json with the settings and the
// statistics.

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "memory/caching_allocator.h"
#include "memory/virtual_segment_source.h"

namespace foreshard::fixture {

inline std::vector<std::string> read_gz_lines(const std::filesystem::path& path) {
  std::vector<std::string> lines;
  const gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) throw std::runtime_error("cannot open " + path.string());
  char buffer[512];
  while (gzgets(file, buffer, sizeof buffer) != nullptr) {
    std::string line = buffer;
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
    lines.push_back(std::move(line));
  }
  gzclose(file);
  return lines;
}

/// A decision about segments as recordings name it.
struct Decision {
  char kind;
  std::int64_t bytes;
  std::int64_t stream;
  auto operator<=>(const Decision&) const = default;
};

/// Device order between streams is by pointer in PyTorch and by index in ours: runs of returned
/// segments are compared as sets.
inline void sort_returns(std::vector<Decision>& decisions) {
  const auto returned = [](const Decision& d) { return d.kind == 's' || d.kind == 'm'; };
  for (auto it = decisions.begin(); it != decisions.end();) {
    auto end = std::find_if_not(it, decisions.end(), returned);
    std::sort(it, end);
    it = std::find_if(end, decisions.end(), returned);
  }
}

/// Streams complete as the recording says: event = block id.
class RecordedProgress final : public StreamProgress {
 public:
  Event record(std::uint32_t) override { return freeing; }
  bool reached(Event event) override { return done.count(event) > 0; }
  void synchronize(Event event) override { done[event] = true; }

  Event freeing = 0;
  std::map<Event, bool> done;
};

class DecisionLog final : public SegmentListener {
 public:
  void on_segment(const SegmentEvent& e) override {
    constexpr char kKinds[] = {'S', 's', 'M', 'm'};
    log.push_back({kKinds[static_cast<int>(e.kind)], e.bytes.value, e.stream});
  }
  std::vector<Decision> log;
};

/// Runs one recording; `differences` holds the first ones found, in words.
class Replay {
 public:
  Replay(const std::filesystem::path& folder, const std::string& name)
      : lines_(read_gz_lines(stream_file(folder, name))),
        facts_(read_json(folder / (name + ".json"))) {}

  static std::filesystem::path stream_file(const std::filesystem::path& folder,
                                           const std::string& name) {
    const auto inner = folder / "alloc" / (name + ".txt.gz");
    return std::filesystem::exists(inner) ? inner : folder / (name + ".txt.gz");
  }

  static nlohmann::json read_json(const std::filesystem::path& path) {
    std::ifstream in(path);
    return nlohmann::json::parse(in);
  }

  void run() {
    const auto& c = facts_.at("case");
    AllocatorOptions options = parse_alloc_conf(c.value("alloc_conf", std::string()));
    options.expandable_segments =
        options.expandable_segments || c.at("expandable_segments").get<bool>();
    VirtualSegmentSource source(Bytes(c.at("mem_bytes").get<std::int64_t>()));
    CachingAllocator allocator(options, source, progress_, &log_);
    allocator_ = &allocator;
    for (at_ = 0; at_ < lines_.size() && differences.size() < 5; ++at_) line();
    finish();
    allocator_ = nullptr;
  }

  std::vector<std::string> differences;
  std::size_t marks = 0;
  std::size_t phases = 0;
  std::size_t steps = 0;
  std::size_t decisions = 0;
  std::int64_t retries = 0;
  std::int64_t ooms = 0;

 private:
  static constexpr std::uint32_t kOtherStreams = 1000;  ///< First index that no recording uses.

  void differ(const std::string& what) {
    differences.push_back("line " + std::to_string(at_ + 1) + " (" +
                          (at_ < lines_.size() ? lines_[at_] : "end") + "): " + what);
  }

  template <typename T>
  void expect_equal(const std::string& what, T ours, T recorded) {
    if (ours != recorded)
      differ(what + " ours " + std::to_string(ours) + ", recorded " + std::to_string(recorded));
  }

  void line() {
    std::istringstream in(lines_[at_]);
    std::string kind;
    std::int64_t id = 0, bytes = 0, stream = 0;
    in >> kind;
    if (kind == "a") {
      in >> id >> bytes >> stream;
      const Allocation a = allocator_->allocate(Bytes(bytes), static_cast<std::uint32_t>(stream));
      if (!a.ok) return differ("ours is out of memory");
      live_[id] = a.block;
      compare_decisions();
    } else if (kind == "O") {
      in >> bytes;
      if (allocator_->allocate(Bytes(bytes), 0).ok)
        differ("recorded is out of memory, ours is not");
      compare_decisions();
    } else if (kind == "f") {
      in >> id;
      release(id);
    } else if (kind == "c") {
      in >> id;
      progress_.done[static_cast<std::uint64_t>(id)] = true;
    } else if (kind == "#") {
      mark(in);
    } else {
      in >> bytes >> stream;
      recorded_.push_back({kind[0], bytes, stream});
    }
  }

  void release(std::int64_t id) {
    const BlockHandle block = live_.at(id);
    live_.erase(id);
    const bool at_once = at_ + 1 < lines_.size() && lines_[at_ + 1] == "c " + std::to_string(id);
    if (!at_once) {
      progress_.freeing = static_cast<std::uint64_t>(id);
      allocator_->record_stream(block, kOtherStreams + static_cast<std::uint32_t>(id));
    }
    allocator_->free(block);
  }

  void compare_decisions() {
    sort_returns(recorded_);
    sort_returns(log_.log);
    if (recorded_ != log_.log) {
      std::string text = "decisions differ; recorded:";
      for (const Decision& d : recorded_)
        text += std::string(" ") + d.kind + std::to_string(d.bytes);
      text += "; ours:";
      for (const Decision& d : log_.log)
        text += std::string(" ") + d.kind + std::to_string(d.bytes);
      differ(text.substr(0, 600));
    }
    decisions += recorded_.size();
    recorded_.clear();
    log_.log.clear();
  }

  void mark(std::istringstream& in) {
    std::string what, name;
    in >> what;
    end_phase();
    if (what == "step") {
      end_step();
      in >> step_;
      phase_ = -1;
      return;
    }
    std::int64_t allocated = 0, reserved = 0, active = 0;
    if (in >> name >> allocated >> reserved >> active) {
      ++marks;
      expect_equal("allocated", allocator_->stats().allocated.current, allocated);
      expect_equal("reserved", allocator_->stats().reserved.current, reserved);
      expect_equal("active", allocator_->stats().active.current, active);
    }
    allocator_->reset_peaks();
    ++phase_;
  }

  const nlohmann::json* step_facts() const {
    const auto& all = facts_.at("steps");
    return step_ >= 0 && static_cast<std::size_t>(step_) < all.size()
               ? &all[static_cast<std::size_t>(step_)]
               : nullptr;
  }

  void end_phase() {
    const nlohmann::json* step = step_facts();
    if (step == nullptr || phase_ < 0 || !step->contains("phases")) return;
    const auto& rows = step->at("phases");
    if (static_cast<std::size_t>(phase_) >= rows.size()) return;
    const auto& row = rows[static_cast<std::size_t>(phase_)];
    ++phases;
    expect_equal("peak allocated", allocator_->stats().allocated.peak,
                 row.at("peak_allocated").get<std::int64_t>());
    expect_equal("peak reserved", allocator_->stats().reserved.peak,
                 row.at("peak_reserved").get<std::int64_t>());
    expect_equal("peak active", allocator_->stats().active.peak,
                 row.at("peak_active").get<std::int64_t>());
  }

  void end_step() {
    const nlohmann::json* step = step_facts();
    if (step == nullptr) return;
    ++steps;
    const AllocatorStats& s = allocator_->stats();
    expect_equal("allocated", s.allocated.current, step->at("allocated_end").get<std::int64_t>());
    expect_equal("reserved", s.reserved.current, step->at("reserved_end").get<std::int64_t>());
    expect_equal("requested", s.requested.current, step->at("requested_end").get<std::int64_t>());
    expect_equal("segments", s.segments.current, step->at("segments").get<std::int64_t>());
    expect_equal("inactive split", s.inactive_split.current,
                 step->at("inactive_split_bytes").get<std::int64_t>());
    expect_equal("retries", s.retries, step->at("num_alloc_retries").get<std::int64_t>());
    expect_equal("ooms", s.ooms, step->at("num_ooms").get<std::int64_t>());
  }

  void finish() {
    if (!differences.empty()) return;
    retries = allocator_->stats().retries;
    ooms = allocator_->stats().ooms;
    const auto& oom = facts_.contains("oom") ? facts_.at("oom") : nlohmann::json();
    if (oom.is_null()) {
      end_phase();
      expect_equal("ooms", ooms, std::int64_t{0});
      return;
    }
    expect_equal("retries", retries, oom.at("num_alloc_retries").get<std::int64_t>());
    expect_equal("ooms", ooms, oom.at("num_ooms").get<std::int64_t>());
  }

  std::vector<std::string> lines_;
  nlohmann::json facts_;
  RecordedProgress progress_;
  DecisionLog log_;
  CachingAllocator* allocator_ = nullptr;
  std::map<std::int64_t, BlockHandle> live_;
  std::vector<Decision> recorded_;
  std::size_t at_ = 0;
  std::int64_t step_ = -1;
  std::int64_t phase_ = -1;
};

/// Names of the recordings in a folder (with alloc/ inside, or flat), sorted.
inline std::vector<std::string> recording_names(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  const auto inner = folder / "alloc";
  const auto streams = std::filesystem::is_directory(inner) ? inner : folder;
  if (!std::filesystem::is_directory(streams)) return names;
  for (const auto& entry : std::filesystem::directory_iterator(streams)) {
    const std::string file = entry.path().filename().string();
    constexpr std::string_view kEnd = ".txt.gz";
    if (file.size() <= kEnd.size() || !file.ends_with(kEnd)) continue;
    const std::string name = file.substr(0, file.size() - kEnd.size());
    if (std::filesystem::exists(folder / (name + ".json"))) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace foreshard::fixture
