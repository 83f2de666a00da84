#pragma once

// The physical floor of simulating a sharded step: the cheapest pass over a ready task graph that
// still answers step time and memory peak. Tasks of four first-in first-out streams in issue order,
// finish = max(stream free, dependencies) + duration; then starts and ends are merged in time order
// to find the most bytes held at once. No host, no links, no allocator.

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace foreshard::bench {

class Floor {
 public:
  static constexpr int kStreams = 4;  ///< compute, all-gather, reduce-scatter, copy

  /// At least `tasks` tasks: steps of 32 blocks of 6 kernels, gathers at most two blocks ahead.
  explicit Floor(std::uint32_t tasks) {
    std::vector<std::uint32_t> last_kernel;
    while (size() < tasks) {
      last_kernel.clear();
      for (int pass = 0; pass < 2; ++pass) {
        for (int block = 0; block < 32; ++block) add_block(pass == 1, last_kernel);
      }
    }
    first_.push_back(static_cast<std::uint32_t>(before_.size()));
    finish_.resize(size());
  }

  std::uint32_t size() const { return static_cast<std::uint32_t>(stream_.size()); }

  struct Answer {
    double time = 0;
    std::int64_t peak = 0;
  };
  Answer run() {
    std::array<double, kStreams> free{};
    for (std::uint32_t i = 0; i < size(); ++i) {
      double t = free[stream_[i]];
      for (std::uint32_t e = first_[i]; e < first_[i + 1]; ++e)
        t = std::max(t, finish_[before_[e]]);
      finish_[i] = free[stream_[i]] = t + duration_[i];
    }
    return {*std::max_element(free.begin(), free.end()), peak()};
  }

 private:
  std::uint32_t add(int stream, std::int32_t bytes, std::initializer_list<std::uint32_t> after) {
    random_ = random_ * 1664525U + 1013904223U;
    first_.push_back(static_cast<std::uint32_t>(before_.size()));
    before_.insert(before_.end(), after);
    stream_.push_back(static_cast<std::uint8_t>(stream));
    duration_.push_back(1.0F + static_cast<float>(random_ >> 24U) / 64.0F);
    bytes_.push_back(bytes);
    released_by_.push_back(size() - 1);
    of_stream_[static_cast<std::size_t>(stream)].push_back(size() - 1);
    return size() - 1;
  }

  void add_block(bool backward, std::vector<std::uint32_t>& last_kernel) {
    const std::size_t n = last_kernel.size();
    const std::uint32_t gather = n >= 2 ? add(1, 404, {last_kernel[n - 2]}) : add(1, 404, {});
    std::uint32_t kernel = add(0, backward ? 2 : 8, {gather});
    for (int k = 1; k < 6; ++k) kernel = add(0, backward ? 2 : 8, {});
    released_by_[gather] = kernel;
    last_kernel.push_back(kernel);
    if (!backward) return;
    const std::uint32_t reduction = add(2, 404, {kernel});
    add(3, 1, {reduction});
  }

  /// Starts ascend within a stream, and so do ends: eight sorted sequences are merged.
  std::int64_t peak() {
    std::array<std::size_t, kStreams> start{}, end{};
    held_.assign(size(), 0);
    for (std::uint32_t i = 0; i < size(); ++i) held_[released_by_[i]] += bytes_[i];
    std::int64_t now = 0, most = 0;
    for (;;) {
      double best = 1e300;
      int stream = -1;
      bool ends = false;
      for (int s = 0; s < kStreams; ++s) {
        const auto& tasks = of_stream_[static_cast<std::size_t>(s)];
        const auto is = static_cast<std::size_t>(s);
        if (end[is] < tasks.size() && finish_[tasks[end[is]]] < best) {
          best = finish_[tasks[end[is]]];
          stream = s;
          ends = true;
        }
        if (start[is] < tasks.size() &&
            finish_[tasks[start[is]]] - static_cast<double>(duration_[tasks[start[is]]]) < best) {
          best = finish_[tasks[start[is]]] - static_cast<double>(duration_[tasks[start[is]]]);
          stream = s;
          ends = false;
        }
      }
      if (stream < 0) return most;
      const auto is = static_cast<std::size_t>(stream);
      if (ends) {
        now -= held_[of_stream_[is][end[is]++]];
      } else {
        now += bytes_[of_stream_[is][start[is]++]];
        most = std::max(most, now);
      }
    }
  }

  std::vector<std::uint32_t> first_, before_, released_by_;
  std::vector<std::uint8_t> stream_;
  std::vector<float> duration_;
  std::vector<std::int32_t> bytes_;
  std::vector<std::int64_t> held_;
  std::array<std::vector<std::uint32_t>, kStreams> of_stream_;
  std::vector<double> finish_;
  std::uint32_t random_ = 12345;
};

}  // namespace foreshard::bench
