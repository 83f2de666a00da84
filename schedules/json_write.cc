#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "core/atomic_file.h"
#include "core/json.h"
#include "schedules/json.h"
#include "schedules/names.h"
#include "schedules/structure.h"

namespace foreshard {
namespace {

/// Writes JSON text piece by piece. Strings are escaped; numbers are the shortest that read back
/// equal.
class Writer {
 public:
  explicit Writer(std::string& out) : out_(out) {}

  void raw(std::string_view text) { out_ += text; }
  void text(std::string_view s) {
    out_ += Json(s).dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  void plain(std::string_view s) {
    (out_ += '"').append(s) += '"';
  }  ///< For names that need no escape.
  void integer(std::int64_t n) { fmt::format_to(std::back_inserter(out_), "{}", n); }
  template <typename IdType>
  void id(IdType i) {
    i.valid() ? integer(i.value) : raw("null");
  }
  void real(double x) {
    if (std::isnan(x)) return plain("nan");
    if (std::isinf(x)) return plain(x > 0 ? "inf" : "-inf");
    fmt::format_to(std::back_inserter(out_), "{}", x);
  }
  void key(std::string_view k) { (((out_ += '"').append(k)) += "\": "); }

  /// [a, b, c] on one line; `write` writes one element.
  template <typename List, typename Write>
  void row(const List& list, Write write) {
    raw("[");
    bool first = true;
    for (const auto& x : list) {
      if (!first) raw(", ");
      first = false;
      write(x);
    }
    raw("]");
  }
  /// A key with one element per line.
  template <typename List, typename Write>
  void table(std::string_view k, const List& list, Write write) {
    key(k);
    raw("[");
    bool first = true;
    for (const auto& x : list) {
      raw(first ? "\n  " : ",\n  ");
      first = false;
      write(x);
    }
    raw(first ? "]" : "\n]");
  }
  void strings(std::string_view k, const std::vector<std::string>& list) {
    table(k, list, [this](const std::string& s) { text(s); });
  }
  void integers(const std::vector<std::int64_t>& list) {
    row(list, [this](std::int64_t n) { integer(n); });
  }

  /// One row of mixed values: `cell` puts the commas.
  void begin_row() {
    raw("[");
    first_ = true;
  }
  Writer& cell() {
    if (!first_) raw(", ");
    first_ = false;
    return *this;
  }
  void end_row() {
    raw("]");
    first_ = false;
  }

 private:
  std::string& out_;
  bool first_ = true;
};

void write_buffer(Writer& w, const Buffer& b) {
  w.begin_row();
  w.cell().integer(b.bytes.value);
  w.cell().integer(b.pool);
  w.cell().plain(name_of(b.space));
  w.cell().plain(name_of(b.category));
  w.cell().id(b.unit);
  w.cell().id(b.scope);
  w.cell().integer(b.name);
  w.end_row();
}

void write_tensor(Writer& w, const Tensor& t) {
  w.begin_row();
  w.cell().id(t.buffer);
  w.cell().plain(name_of(t.dtype));
  w.cell().id(t.group);
  w.cell().integer(t.offset);
  w.cell().integer(t.offset_per_rank);
  w.cell().raw("[");
  for (int d = 0; d < t.rank; ++d) w.raw(d ? ", " : ""), w.integer(t.shape[d]);
  w.raw("], [");
  for (int d = 0; d < t.rank; ++d) w.raw(d ? ", " : ""), w.integer(t.stride[d]);
  w.raw("]");
  w.end_row();
}

void write_launch(Writer& w, const RankProgram& p, const Launch& l) {
  w.begin_row();
  w.cell().plain(name_of(l.op));
  w.cell().plain(name_of(l.dtype));
  w.cell().integer(l.stream);
  w.cell().plain(name_of(l.phase));
  w.cell().integer(l.kernels);
  w.cell().integer(l.flops.value);
  w.cell().integer(l.read.value);
  w.cell().integer(l.written.value);
  w.cell().id(l.scope);
  const auto operands = [&](std::uint32_t first, std::uint32_t count) {
    w.cell().raw("[");
    for (std::uint32_t i = 0; i < count; ++i)
      w.raw(i ? ", " : ""), w.id(has_tensors(p) ? p.operands[first + i] : TensorId());
    w.raw("]");
  };
  operands(l.first_operand, l.inputs);
  operands(l.first_operand + l.inputs, l.outputs);
  w.cell().raw("[");
  for (int i = 0; i < l.attributes; ++i)
    w.raw(i ? ", " : ""), w.real(p.attributes[l.first_attribute + i]);
  w.raw("]");
  std::size_t used = l.dims.size();
  while (used > 0 && l.dims[used - 1] == 0) --used;
  w.cell().raw("[");
  for (std::size_t i = 0; i < used; ++i) w.raw(i ? ", " : ""), w.integer(l.dims[i]);
  w.raw("]");
  w.end_row();
}

void write_collective(Writer& w, const Collective& c) {
  w.begin_row();
  w.cell().plain(name_of(c.kind));
  w.cell().plain(name_of(c.op));
  w.cell().plain(name_of(c.dtype));
  w.cell().integer(c.stream);
  w.cell().plain(name_of(c.phase));
  w.cell().integer(c.group.value);
  w.cell().id(c.input);
  w.cell().id(c.output);
  w.cell().integer(c.bytes.value);
  w.cell().real(c.factor);
  w.cell().integer(c.root);
  w.cell().id(c.unit);
  if (c.launched_together.value > 0) w.cell().integer(c.launched_together.value);
  w.end_row();
}

void write_copy(Writer& w, const Copy& c) {
  w.begin_row();
  w.cell().plain(name_of(c.direction));
  w.cell().integer(c.stream);
  w.cell().plain(name_of(c.phase));
  w.cell().raw(c.blocks_host ? "true" : "false");
  w.cell().integer(c.bytes.value);
  w.cell().id(c.source);
  w.cell().id(c.destination);
  w.cell().integer(c.input);
  w.cell().integer(c.micro_batch);
  w.cell().raw(c.pageable ? "true" : "false");
  w.end_row();
}

void write_mark(Writer& w, const Mark& m) {
  w.begin_row();
  w.cell().plain(name_of(m.kind));
  w.cell().raw(m.begin ? "true" : "false");
  w.cell().plain(name_of(m.phase));
  w.cell().integer(m.number);
  w.cell().id(m.scope);
  w.cell().id(m.unit);
  w.cell().integer(m.name);
  w.end_row();
}

void write_instruction(Writer& w, const Instruction& i) {
  using K = InstructionKind;
  w.begin_row();
  w.cell().plain(name_of(i.kind));
  if (i.kind == K::kSyncStream) w.cell().integer(i.stream);
  if (i.kind != K::kSyncStream && i.kind != K::kSyncDevice) w.cell().integer(i.id);
  if (i.kind == K::kRecordStream || i.kind == K::kRecordEvent || i.kind == K::kWaitEvent)
    w.cell().integer(i.stream);
  w.end_row();
}

void write_unit(Writer& w, const ShardUnit& u) {
  w.raw("{\"name\": ");
  w.text(u.name);
  w.raw(", \"numel\": ");
  w.integer(u.numel.value);
  w.raw(", \"padded_numel\": ");
  w.integer(u.padded_numel.value);
  w.raw(", \"shard_numel\": ");
  w.integer(u.shard_numel.value);
  w.raw(", \"gather_dtype\": ");
  w.plain(name_of(u.gather_dtype));
  w.raw(", \"reduce_dtype\": ");
  w.plain(name_of(u.reduce_dtype));
  w.raw(",\n   \"modules\": ");
  w.row(u.modules, [&w](const std::string& s) { w.text(s); });
  w.raw(",\n   \"parameters\": ");
  w.row(u.parameters, [&w](const std::string& s) { w.text(s); });
  w.raw("}");
}

void write_parameter(Writer& w, const ParameterView& v) {
  w.raw("{\"name\": ");
  w.text(v.name);
  w.raw(", \"shape\": ");
  w.integers(v.shape);
  w.raw(", \"dtype\": ");
  w.plain(name_of(v.dtype));
  w.raw(v.trainable ? ", \"trainable\": true" : ", \"trainable\": false");
  w.raw(", \"local\": ");
  w.id(v.local);
  w.raw(", \"first_element\": ");
  w.integer(v.first_element);
  w.raw(", \"elements\": ");
  w.integer(v.elements);
  w.raw(", \"group\": ");
  w.id(v.group);
  w.raw(", \"first_element_per_rank\": ");
  w.integer(v.first_element_per_rank);
  w.raw(", \"shard_dim\": ");
  w.integer(v.shard_dim);
  w.raw("}");
}

void write_input(Writer& w, const ModelInput& in) {
  w.raw("{\"name\": ");
  w.text(in.name);
  w.raw(", \"kind\": ");
  w.plain(name_of(in.kind));
  w.raw(", \"shape\": ");
  w.integers(in.shape);
  w.raw(", \"dtype\": ");
  w.plain(name_of(in.dtype));
  w.raw(", \"vocabulary\": ");
  w.integer(in.vocabulary);
  w.raw("}");
}

void write_segment(Writer& w, const Segment& s) {
  w.begin_row();
  w.cell().integer(s.begin);
  w.cell().integer(s.end);
  w.end_row();
}

void write_program(Writer& w, const RankProgram& p) {
  const auto next = [&w] { w.raw(",\n"); };
  w.raw("{");
  w.table("streams", p.streams, [&w](const Stream& s) {
    w.raw("{\"name\": "), w.text(s.name), w.raw(", \"priority\": "), w.integer(s.priority);
    w.raw(s.on_host ? ", \"on_host\": true}" : "}");
  });
  next(), w.strings("names", p.names);
  next(), w.strings("scopes", p.scopes);
  next(), w.table("units", p.units, [&w](const ShardUnit& u) { write_unit(w, u); });
  next(),
      w.table("parameters", p.parameters, [&w](const ParameterView& v) { write_parameter(w, v); });
  next(), w.table("inputs", p.inputs, [&w](const ModelInput& in) { write_input(w, in); });
  next(), w.key("events"), w.integer(p.events);
  next(), w.key("init"), write_segment(w, p.init);
  next(), w.table("steps", p.steps, [&w](const Segment& s) { write_segment(w, s); });
  next(), w.table("carries", p.carries, [&w](const Carry& c) {
    write_segment(w, {c.before.value, c.now.value});
  });
  next(), w.table("buffers", p.buffers, [&w](const Buffer& b) { write_buffer(w, b); });
  next(), w.table("tensors", p.tensors, [&w](const Tensor& t) { write_tensor(w, t); });
  next(), w.table("launches", p.launches, [&](const Launch& l) { write_launch(w, p, l); });
  next(),
      w.table("collectives", p.collectives, [&w](const Collective& c) { write_collective(w, c); });
  next(), w.table("copies", p.copies, [&w](const Copy& c) { write_copy(w, c); });
  next(), w.table("host_work", p.host_work, [&w](const HostWork& h) {
    w.begin_row(), w.cell().integer(h.reference_ns), w.cell().integer(h.name), w.end_row();
  });
  next(), w.table("marks", p.marks, [&w](const Mark& m) { write_mark(w, m); });
  next(), w.table("instructions", p.instructions,
                  [&w](const Instruction& i) { write_instruction(w, i); });
  w.raw("}");
}

}  // namespace

void write_schedule(const Schedule& s, std::string& out, const Schedule* reference) {
  Writer w(out);
  const auto next = [&w] { w.raw(",\n"); };
  w.raw("{\"format\": \"foreshard-schedule\",\n");
  w.key("version"), w.integer(Schedule::kFormatVersion);
  next(), w.key("model"), w.text(s.model);
  next(), w.key("description"), w.text(s.description);
  next(), w.key("world"), w.integer(s.world);
  next(), w.key("tokens_per_step"), w.integer(s.tokens_per_step);
  next(), w.key("model_flops_per_step");
  if (s.model_flops_per_step < 0x1p53)
    w.integer(static_cast<std::int64_t>(s.model_flops_per_step));
  else
    w.real(s.model_flops_per_step);
  next(), w.strings("not_modelled", s.not_modelled);
  if (!s.remarks.empty()) next(), w.strings("remarks", s.remarks);
  next(), w.table("groups", s.groups, [&w](const Group& g) {
    w.raw("{\"name\": "), w.text(g.name), w.raw(", \"size\": "), w.integer(g.size);
    w.raw(", \"stride\": "), w.integer(g.stride), w.raw("}");
  });
  next(), w.key("program_of_rank");
  w.row(s.program_of_rank, [&w](std::uint32_t n) { w.integer(n); });
  next(), w.table("programs", s.programs, [&w](const RankProgram& p) { write_program(w, p); });
  if (reference != nullptr) {
    next(), w.key("reference");
    write_schedule(*reference, out);
  }
  w.raw("}\n");
}

void write_schedule_file(const Schedule& schedule, const std::filesystem::path& path,
                         const Schedule* reference) {
  std::string text;
  write_schedule(schedule, text, reference);
  write_file_atomically(path, text);
}

}  // namespace foreshard
