#include "sim/shapes.h"

#include <algorithm>
#include <bit>

#include "sim/layout.h"

namespace foreshard::sim {
namespace {

/// Open-addressing table from launch shape to the first launch that had it.
class LaunchCache {
 public:
  LaunchCache(const RankProgram& program, std::size_t expected) : program_(program) {
    slots_.assign(std::bit_ceil(std::max<std::size_t>(64, expected / 2)), kNone);
  }

  /// Index of an earlier launch of equal cost, or kNone; then `index` becomes the one for its
  /// shape.
  std::uint32_t find_or_insert(std::uint32_t index) {
    if (2 * ++used_ > slots_.size()) grow();
    const Launch& launch = program_.launches[index];
    std::size_t slot = hash(launch) & (slots_.size() - 1);
    while (slots_[slot] != kNone) {
      if (equal(program_.launches[slots_[slot]], launch)) {
        --used_;
        return slots_[slot];
      }
      slot = (slot + 1) & (slots_.size() - 1);
    }
    slots_[slot] = index;
    return kNone;
  }

  /// Of equal cost.
  bool equal(const Launch& a, const Launch& b) const {
    return a.op == b.op && a.dtype == b.dtype && a.phase == b.phase && a.kernels == b.kernels &&
           a.dims == b.dims && a.flops == b.flops && a.read == b.read && a.written == b.written &&
           a.inputs == b.inputs && a.outputs == b.outputs && a.attributes == b.attributes &&
           program_.streams[a.stream].on_host == program_.streams[b.stream].on_host &&
           equal_attributes(a, b);
  }

 private:
  static std::uint64_t mix(std::uint64_t h, std::uint64_t v) {
    h = (h ^ v) * 0x9E3779B97F4A7C15ull;
    return h ^ (h >> 29);
  }
  static std::uint64_t hash(const Launch& l) {
    std::uint64_t h = static_cast<std::uint64_t>(l.op) | static_cast<std::uint64_t>(l.dtype) << 8 |
                      static_cast<std::uint64_t>(l.phase) << 16 | std::uint64_t{l.kernels} << 32;
    for (const std::int64_t d : l.dims) h = mix(h, static_cast<std::uint64_t>(d));
    h = mix(h, static_cast<std::uint64_t>(l.flops.value));
    return mix(h, static_cast<std::uint64_t>(l.read.value) * 3 +
                      static_cast<std::uint64_t>(l.written.value));
  }
  bool equal_attributes(const Launch& a, const Launch& b) const {
    if (program_.attributes.empty()) return true;
    const auto first = program_.attributes.begin();
    return std::equal(first + a.first_attribute, first + a.first_attribute + a.attributes,
                      first + b.first_attribute);
  }
  void grow() {
    std::vector<std::uint32_t> old(slots_.size() * 2, kNone);
    old.swap(slots_);
    for (const std::uint32_t index : old) {
      if (index == kNone) continue;
      std::size_t slot = hash(program_.launches[index]) & (slots_.size() - 1);
      while (slots_[slot] != kNone) slot = (slot + 1) & (slots_.size() - 1);
      slots_[slot] = index;
    }
  }

  const RankProgram& program_;
  std::vector<std::uint32_t> slots_;
  std::size_t used_ = 0;
};

bool equal_cost(const Collective& a, const Collective& b) {
  return a.kind == b.kind && a.bytes == b.bytes && a.dtype == b.dtype && a.op == b.op &&
         a.group == b.group && a.root == b.root && a.launched_together == b.launched_together;
}

/// Blocks repeat: after a launch like an earlier one comes mostly what came after that.
void find_launch_shapes(const RankProgram& program, ProgramShapes& s) {
  const auto n = static_cast<std::uint32_t>(program.launches.size());
  s.launch_shape.reserve(n);
  LaunchCache cache(program, std::min<std::size_t>(n, 4096));
  std::vector<std::uint32_t> last;  // by shape: the last launch of it
  std::uint32_t like = 0;           // an earlier launch that the present one may be equal to
  for (std::uint32_t i = 0; i < n; ++i, ++like) {
    if (like == i || !cache.equal(program.launches[like], program.launches[i])) {
      const std::uint32_t known = cache.find_or_insert(i);
      if (known == kNone) {
        s.launch_shape.push_back(static_cast<std::uint32_t>(s.launches.size()));
        s.launches.push_back(i);
        s.launch_count.push_back(1);
        last.push_back(i);
        like = i;
        continue;
      }
      like = last[s.launch_shape[known]];
    }
    const std::uint32_t shape = s.launch_shape[like];
    s.launch_shape.push_back(shape);
    ++s.launch_count[shape];
    last[shape] = i;
  }
}

}  // namespace

ProgramShapes find_shapes(const RankProgram& program) {
  ProgramShapes s;
  find_launch_shapes(program, s);
  s.collective_shape.reserve(program.collectives.size());
  for (std::uint32_t i = 0; i < program.collectives.size(); ++i) {
    const auto known =
        std::find_if(s.collectives.begin(), s.collectives.end(), [&](std::uint32_t d) {
          return equal_cost(program.collectives[d], program.collectives[i]);
        });
    s.collective_shape.push_back(static_cast<std::uint32_t>(known - s.collectives.begin()));
    if (known == s.collectives.end()) s.collectives.push_back(i);
  }
  s.timeless_memory =
      std::none_of(program.instructions.begin(), program.instructions.end(),
                   [](const Instruction& in) { return in.kind == InstructionKind::kRecordStream; });
  return s;
}

}  // namespace foreshard::sim
