#include <fmt/format.h>

#include <cmath>

#include "core/json.h"
#include "schedules/json.h"
#include "schedules/json_row.h"
#include "schedules/names.h"
#include "schedules/structure.h"

namespace foreshard {
namespace {

constexpr std::int64_t kAnyInt = INT64_MAX;

class ProgramReader {
 public:
  ProgramReader(const Json& json, std::string path, RankProgram& program, IssueList& issues)
      : reader_(json, path, issues), path_(std::move(path)), p_(program), issues_(issues) {}

  void run() {
    read_tables();
    rows("buffers", p_.buffers, [](Row& r) { return read_buffer(r); });
    rows("tensors", p_.tensors, [](Row& r) { return read_tensor(r); });
    rows("launches", p_.launches, [this](Row& r) { return read_launch(r); });
    rows("collectives", p_.collectives, [](Row& r) { return read_collective(r); });
    rows("copies", p_.copies, [](Row& r) { return read_copy(r); });
    rows("host_work", p_.host_work, [](Row& r) {
      const std::int64_t ns = r.integer(0, kAnyInt);
      return HostWork{ns, index(r)};
    });
    rows("marks", p_.marks, [](Row& r) { return read_mark(r); });
    rows("instructions", p_.instructions, [](Row& r) { return read_instruction(r); });
    rows("steps", p_.steps, [](Row& r) { return read_segment(r); });
    rows("carries", p_.carries, [](Row& r) {
      const BufferId before = r.id<BufferId>();
      return Carry{before, r.id<BufferId>()};
    });
    if (const Json* init = reader_.get("init")) {
      const std::string init_path = path_ + ".init";
      Row r(*init, init_path, issues_);
      p_.init = read_segment(r);
    }
    p_.events = static_cast<std::uint32_t>(reader_.integer("events", 0, 0, UINT32_MAX - 1));
    reader_.finish();
  }

 private:
  bool open() const { return issues_.issues().size() < kMostIssues; }

  template <typename T, typename Read>
  void rows(const char* key, std::vector<T>& out, Read read) {
    each(key, [&](const Json& x, const std::string& path) {
      Row row(x, path, issues_);
      out.push_back(read(row));
      row.end();
    });
  }
  template <typename Visit>
  void each(const char* key, Visit visit) {
    const Json* list = reader_.get(key);
    if (list == nullptr || list->is_null()) return;
    if (!list->is_array())
      return reader_.report(key, fmt::format("found {}, expected a list", describe_json(*list)));
    std::size_t i = 0;
    for (const Json& x : *list) {
      if (!open()) return;
      visit(x, fmt::format("{}.{}[{}]", path_, key, i++));
    }
  }

  void read_tables() {
    each("streams", [this](const Json& x, const std::string& path) {
      ObjectReader r(x, path, issues_);
      const std::string name = r.required_string("name");
      const int priority = static_cast<int>(r.integer("priority", 0, -100, 100));
      p_.streams.push_back({name, priority, r.boolean("on_host", false)});
      r.finish();
    });
    p_.names = reader_.string_list("names").value_or(std::vector<std::string>{""});
    p_.scopes = reader_.string_list("scopes").value_or(std::vector<std::string>{});
    each("units", [this](const Json& x, const std::string& path) { read_unit(x, path); });
    each("parameters", [this](const Json& x, const std::string& path) { read_parameter(x, path); });
    each("inputs", [this](const Json& x, const std::string& path) { read_input(x, path); });
  }

  DType dtype(ObjectReader& r, std::string_view key) {
    const std::string name = r.required_string(key);
    const auto found = parse_dtype(name);
    if (!found && !name.empty()) r.report(key, fmt::format("\"{}\" is no dtype", name));
    return found.value_or(DType::kFloat32);
  }
  static std::uint32_t index(Row& r) {
    return static_cast<std::uint32_t>(r.integer(0, UINT32_MAX - 1));
  }
  static StreamIndex stream(Row& r) {
    return static_cast<StreamIndex>(r.integer(0, kMostStreams - 1));
  }

  void read_unit(const Json& x, const std::string& path) {
    ObjectReader r(x, path, issues_);
    ShardUnit u;
    u.name = r.required_string("name");
    u.numel = Elements(r.required_integer("numel", 0, kAnyInt));
    u.padded_numel = Elements(r.required_integer("padded_numel", 0, kAnyInt));
    u.shard_numel = Elements(r.required_integer("shard_numel", 0, kAnyInt));
    u.gather_dtype = dtype(r, "gather_dtype");
    u.reduce_dtype = dtype(r, "reduce_dtype");
    u.modules = r.string_list("modules").value_or(std::vector<std::string>{});
    u.parameters = r.string_list("parameters").value_or(std::vector<std::string>{});
    r.finish();
    p_.units.push_back(std::move(u));
  }

  void read_parameter(const Json& x, const std::string& path) {
    ObjectReader r(x, path, issues_);
    ParameterView v;
    v.name = r.required_string("name");
    v.shape = r.integer_list("shape", 0, kLargestBuffer).value_or(std::vector<std::int64_t>{});
    v.dtype = dtype(r, "dtype");
    v.trainable = r.boolean("trainable", true);
    if (r.has("local"))
      v.local =
          TensorId(static_cast<std::uint32_t>(r.required_integer("local", 0, UINT32_MAX - 1)));
    v.first_element = r.integer("first_element", 0, 0, kAnyInt);
    v.elements = r.integer("elements", 0, 0, kAnyInt);
    if (r.has("group"))
      v.group = GroupId(static_cast<std::uint32_t>(r.required_integer("group", 0, UINT32_MAX - 1)));
    v.first_element_per_rank = r.integer("first_element_per_rank", 0, 0, kAnyInt);
    v.shard_dim = static_cast<int>(r.integer("shard_dim", 0, -1, kMaxRank - 1));
    r.finish();
    p_.parameters.push_back(std::move(v));
  }

  void read_input(const Json& x, const std::string& path) {
    ObjectReader r(x, path, issues_);
    ModelInput in;
    in.name = r.required_string("name");
    in.kind =
        parse_enum<InputKind>(r.choice("kind", "tokens", enum_names<InputKind>(kInputKindCount)),
                              kInputKindCount)
            .value_or(InputKind::kTokens);
    in.shape = r.integer_list("shape", 0, kLargestBuffer).value_or(std::vector<std::int64_t>{});
    in.dtype = dtype(r, "dtype");
    in.vocabulary = r.integer("vocabulary", 0, 0, kAnyInt);
    r.finish();
    p_.inputs.push_back(std::move(in));
  }

  static Segment read_segment(Row& r) {
    const std::uint32_t begin = index(r);
    return {begin, index(r)};
  }

  static Buffer read_buffer(Row& r) {
    Buffer b;
    b.bytes = Bytes(r.integer(0, kLargestBuffer));
    b.pool = stream(r);
    b.space = r.name<MemorySpace>(kMemorySpaceCount);
    b.category = r.name<BufferCategory>(kBufferCategoryCount);
    b.unit = r.id<UnitId>();
    b.scope = r.id<ScopeId>();
    b.name = index(r);
    return b;
  }

  static Tensor read_tensor(Row& r) {
    Tensor t;
    t.buffer = r.id<BufferId>();
    t.dtype = r.name<DType>(kDTypeCount);
    t.group = r.id<GroupId>();
    t.offset = r.integer(0, kLargestBuffer);
    t.offset_per_rank = r.integer(0, kLargestBuffer);
    int shape = 0, stride = 0;
    r.list(kMaxRank, [&](const Json& x) {
      t.shape[static_cast<std::size_t>(shape++)] = r.integer_of(x, 0, kLargestBuffer);
    });
    r.list(static_cast<std::size_t>(shape), [&](const Json& x) {
      t.stride[static_cast<std::size_t>(stride++)] = r.integer_of(x, 0, kLargestBuffer);
    });
    t.rank = static_cast<std::uint8_t>(shape);
    return t;
  }

  std::uint32_t read_operands(Row& r) {
    std::uint32_t count = 0;
    r.list(UINT32_MAX, [&](const Json& x) {
      p_.operands.push_back(
          x.is_null() ? TensorId()
                      : TensorId(static_cast<std::uint32_t>(r.integer_of(x, 0, UINT32_MAX - 1))));
      ++count;
    });
    return count;
  }

  Launch read_launch(Row& r) {
    Launch l;
    l.op = r.name<OpKind>(kOpKindCount);
    l.dtype = r.name<DType>(kDTypeCount);
    l.stream = stream(r);
    l.phase = r.name<Phase>(kPhaseCount);
    l.kernels = static_cast<std::uint32_t>(r.integer(0, kMostKernels));
    l.flops = Flops(r.integer(0, kAnyInt));
    l.read = Bytes(r.integer(0, kAnyInt));
    l.written = Bytes(r.integer(0, kAnyInt));
    l.scope = r.id<ScopeId>();
    l.first_operand = static_cast<std::uint32_t>(p_.operands.size());
    l.inputs = read_operands(r);
    l.outputs = read_operands(r);
    l.first_attribute = static_cast<std::uint32_t>(p_.attributes.size());
    r.list(UINT16_MAX,
           [&](const Json& x) { p_.attributes.push_back(r.real_of(x)), ++l.attributes; });
    std::size_t d = 0;
    r.list(l.dims.size(),
           [&](const Json& x) { l.dims[d++] = r.integer_of(x, INT64_MIN, kAnyInt); });
    return l;
  }

  static Collective read_collective(Row& r) {
    Collective c;
    c.kind = r.name<CollectiveKind>(kCollectiveKindCount);
    c.op = r.name<ReduceOp>(kReduceOpCount);
    c.dtype = r.name<DType>(kDTypeCount);
    c.stream = stream(r);
    c.phase = r.name<Phase>(kPhaseCount);
    c.group = GroupId(index(r));
    c.input = r.id<TensorId>();
    c.output = r.id<TensorId>();
    c.bytes = Bytes(r.integer(0, kLargestBuffer));
    c.factor = r.real();
    c.root = static_cast<std::int32_t>(r.integer(0, kLargestWorld));
    c.unit = r.id<UnitId>();
    if (r.left() > 0) c.launched_together = Bytes(r.integer(0, kLargestBuffer));
    return c;
  }

  static Copy read_copy(Row& r) {
    Copy c;
    c.direction = r.name<CopyDirection>(kCopyDirectionCount);
    c.stream = stream(r);
    c.phase = r.name<Phase>(kPhaseCount);
    c.blocks_host = r.boolean();
    c.bytes = Bytes(r.integer(0, kLargestBuffer));
    c.source = r.id<TensorId>();
    c.destination = r.id<TensorId>();
    c.input = static_cast<std::int32_t>(r.integer(-1, INT32_MAX));
    c.micro_batch = static_cast<std::int32_t>(r.integer(0, INT32_MAX));
    if (r.left() > 0) c.pageable = r.boolean();  // Absent in older files.
    return c;
  }

  static Mark read_mark(Row& r) {
    Mark m;
    m.kind = r.name<MarkKind>(kMarkKindCount);
    m.begin = r.boolean();
    m.phase = r.name<Phase>(kPhaseCount);
    m.number = static_cast<std::int32_t>(r.integer(INT32_MIN, INT32_MAX));
    m.scope = r.id<ScopeId>();
    m.unit = r.id<UnitId>();
    m.name = index(r);
    return m;
  }

  static Instruction read_instruction(Row& r) {
    using K = InstructionKind;
    Instruction i;
    i.kind = r.name<K>(kInstructionKindCount);
    if (i.kind == K::kSyncStream) i.stream = stream(r);
    if (i.kind != K::kSyncStream && i.kind != K::kSyncDevice) i.id = index(r);
    if (i.kind == K::kRecordStream || i.kind == K::kRecordEvent || i.kind == K::kWaitEvent)
      i.stream = stream(r);
    return i;
  }

  ObjectReader reader_;
  std::string path_;
  RankProgram& p_;
  IssueList& issues_;
};

void read_header(ObjectReader& r, Schedule& s) {
  const std::string format = r.required_string("format");
  if (format != "foreshard-schedule" && !format.empty())
    r.report("format", fmt::format("found \"{}\", expected \"foreshard-schedule\"", format));
  const std::int64_t version = r.required_integer("version", 0, kAnyInt);
  if (r.has("version") && version != Schedule::kFormatVersion)
    r.report("version",
             fmt::format("found {}, this program reads {}", version, Schedule::kFormatVersion));
  s.model = r.string("model", "");
  s.description = r.string("description", "");
  s.world = r.required_integer("world", 1, kLargestWorld);
  s.tokens_per_step = r.integer("tokens_per_step", 0, 0, kAnyInt);
  s.model_flops_per_step = r.number("model_flops_per_step", 0, 0, 1e300);
  s.not_modelled = r.string_list("not_modelled").value_or(std::vector<std::string>{});
  s.remarks = r.string_list("remarks").value_or(std::vector<std::string>{});
  for (const std::int64_t n :
       r.integer_list("program_of_rank", 0, UINT32_MAX - 1).value_or(std::vector<std::int64_t>{}))
    s.program_of_rank.push_back(static_cast<std::uint32_t>(n));
}

/// Visits a top-level list of objects.
template <typename Visit>
void each_of(ObjectReader& r, const char* key, Visit visit) {
  const Json* list = r.get(key);
  if (list == nullptr) return;
  if (!list->is_array())
    return r.report(key, fmt::format("found {}, expected a list", describe_json(*list)));
  std::size_t i = 0;
  for (const Json& x : *list) visit(x, fmt::format("{}[{}]", key, i++));
}

Schedule read_schedule(const Json& json, const std::string& file) {
  IssueList issues(file);
  Schedule s;
  ObjectReader r(json, "", issues);
  read_header(r, s);
  issues.throw_if_any();  // Not our format: its tables would only repeat that.
  each_of(r, "groups", [&](const Json& x, const std::string& path) {
    ObjectReader g(x, path, issues);
    const std::string name = g.required_string("name");
    const std::int64_t size = g.required_integer("size", 1, kLargestWorld);
    s.groups.push_back({name, size, g.integer("stride", 1, 1, kLargestWorld)});
    g.finish();
  });
  each_of(r, "programs", [&](const Json& x, const std::string& path) {
    if (issues.issues().size() >= kMostIssues) return;
    s.programs.emplace_back();
    ProgramReader(x, path, s.programs.back(), issues).run();
  });
  r.get("reference");  // A plan of its own, read when it is asked for.
  r.finish();
  if (issues.empty()) check_structure(s, issues);
  issues.throw_if_any();
  return s;
}

}  // namespace

Schedule parse_schedule(std::string_view text, const std::string& file) {
  return read_schedule(parse_json(text, file), file);
}

Schedule read_schedule_file(const std::filesystem::path& path) {
  return parse_schedule(read_text_file(path), path.string());
}

std::optional<Schedule> read_reference_file(const std::filesystem::path& path) {
  const Json json = parse_json(read_text_file(path), path.string());
  if (!json.is_object() || !json.contains("reference")) return std::nullopt;
  return read_schedule(json.at("reference"), path.string() + ": reference");
}

}  // namespace foreshard
