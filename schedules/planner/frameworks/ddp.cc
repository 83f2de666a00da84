// DistributedDataParallel: whole parameters on every rank, gradients all-reduced in buckets while backward runs (rules D-*).
// Sources: torch/nn/parallel/distributed.py, torch/csrc/distributed/c10d/reducer.cpp (2.15), spec corrections.

#include <algorithm>
#include <map>
#include <utility>

#include "core/error.h"
#include "schedules/planner/foreach.h"
#include "schedules/planner/frameworks/framework.h"
#include "schedules/planner/host/host_time.h"

namespace foreshard {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kFirstBucketBytes = kMiB, kBroadcastBytes = 250 * kMiB;
constexpr double kDefaultCapMib = 25;

using Indices = std::vector<std::size_t>;

/// compute_bucket_assignment_by_size (D-2): per dtype, a bucket closes when it reaches its limit; the last limit repeats.
std::vector<Indices> assign_buckets(const std::vector<SymTensor>& tensors, const Indices& order,
                                    const std::vector<std::int64_t>& limits, bool sort) {
  struct Open {
    Indices indices;
    std::int64_t bytes = 0;
    std::size_t limit = 0;
  };
  std::map<DType, Open> open;
  std::vector<DType> seen;
  std::vector<Indices> buckets;
  for (const std::size_t i : order) {
    const DType dtype = tensors[i]->dtype;
    if (std::find(seen.begin(), seen.end(), dtype) == seen.end()) seen.push_back(dtype);
    Open& o = open[dtype];
    o.indices.push_back(i);
    o.bytes += tensors[i]->bytes();
    if (o.bytes < limits[o.limit]) continue;
    buckets.push_back(std::move(o.indices));
    o.indices.clear();
    o.bytes = 0;
    o.limit = std::min(o.limit + 1, limits.size() - 1);
  }
  for (const DType d : seen) if (!open[d].indices.empty()) buckets.push_back(std::move(open[d].indices));
  if (sort) {
    std::stable_sort(buckets.begin(), buckets.end(), [](const Indices& a, const Indices& b) {
      return *std::min_element(a.begin(), a.end()) < *std::min_element(b.begin(), b.end());
    });
  }
  return buckets;
}

Indices all_of(std::size_t n) {
  Indices all(n);
  for (std::size_t i = 0; i < n; ++i) all[i] = i;
  return all;
}

class Ddp final : public Framework {
 public:
  explicit Ddp(const ParallelConfig& config) : options_(config.ddp), world_(config.world()) {}

  void initialize(Host& host) override;
  std::span<const LocalParameter> local_parameters() const override { return locals_; }

  void begin_micro_batch(Host&, std::int64_t, bool sync) override { sync_ = sync; }
  void before_model(Host& host, bool training) override;
  void after_model(Host& host, std::span<SymTensor> outputs) override;
  void on_accumulated(Host& host, std::uint32_t parameter) override;
  void on_function_backward(Host& host, std::uint32_t) override {
    if (options_.static_graph && synced_backwards_ == 0) host.queue_callback(kDelayedReduction);
  }
  void on_backward_callback(Host& host, std::uint32_t what) override {
    if (what == kDelayedReduction) return delayed_reduction(host);
    finalize(host);
  }

 private:
  static constexpr std::uint32_t kDelayedReduction = 1;
  struct Bucket {
    Indices parameters;
    std::vector<SymTensor> views;           ///< One for each parameter, in its shape.
    SymTensor buffer;
    UnitId unit;
    std::size_t pending = 0;
    EventId reduced;
  };

  void make_buckets(Host& host, const std::vector<Indices>& assignment);
  void reset_pending();
  void broadcast_coalesced(Host& host, const std::vector<SymTensor>& tensors);
  void broadcast(Host& host, const SymTensor& t);
  void rebuild(Host& host);
  void sync_indices(Host& host, std::int64_t count);
  void mark_ready(Host& host, std::size_t parameter, bool unused);
  void launch_ready_buckets(Host& host);
  void reduce_used_map(Host& host);
  void delayed_reduction(Host& host);
  void finalize(Host& host);
  EventId collective(Host& host, CollectiveKind kind, const SymTensor& t, UnitId unit);

  bool rebuilds() const { return options_.static_graph || !options_.find_unused_parameters; }
  std::vector<std::int64_t> limits() const {
    if (options_.bucket_cap_mib) return {static_cast<std::int64_t>(*options_.bucket_cap_mib * static_cast<double>(kMiB))};
    return {kFirstBucketBytes, static_cast<std::int64_t>(kDefaultCapMib * static_cast<double>(kMiB))};
  }

  DdpOptions options_;
  std::int64_t world_;
  GroupId group_;
  StreamIndex stream_ = 0;
  std::vector<LocalParameter> locals_;
  std::vector<SymTensor> parameters_, buffers_;
  std::vector<Ref<AutogradNode>> accumulators_;
  std::vector<Bucket> buckets_;
  std::vector<std::pair<std::size_t, std::size_t>> place_;   ///< Bucket and position of each parameter.
  SymTensor used_map_;
  Indices arrival_;                         ///< Order in which gradients became ready.
  std::size_t next_bucket_ = 0;
  std::int64_t synced_backwards_ = 0;
  bool sync_ = true, broadcasts_next_ = true, rebuilt_ = false, expects_backward_ = false;
};

// ---------------------------------------------------------------------------------------------- construction

void Ddp::initialize(Host& host) {
  group_ = host.add_group("replicate", world_, 1);
  stream_ = host.program().add_stream("communicator", 0);
  materialize_whole(host, locals_);
  const Model& model = host.model();
  for (const Module& m : model.modules) {
    for (std::size_t b = 0; b < m.buffers.size(); ++b) buffers_.push_back(host.buffer(m, static_cast<std::int64_t>(b)));
  }
  std::vector<SymTensor> states;
  for (const ParameterId p : parameter_order(model)) states.push_back(host.parameter(p));
  states.insert(states.end(), buffers_.begin(), buffers_.end());
  broadcast_coalesced(host, states);
  for (const LocalParameter& p : locals_) {
    parameters_.push_back(p.local);
    accumulators_.push_back(host.grad_accumulator(p.local));
    host.register_accumulate_hook(accumulators_.back(), static_cast<std::uint32_t>(accumulators_.size() - 1));
  }
  // D-4: one bucket in iteration 0 unless parameters may be unused.
  const std::vector<std::int64_t> limit = rebuilds() ? std::vector<std::int64_t>{INT64_MAX} : limits();
  std::vector<Indices> assignment = assign_buckets(parameters_, all_of(parameters_.size()), limit, true);
  std::reverse(assignment.begin(), assignment.end());
  make_buckets(host, assignment);
  if (options_.find_unused_parameters || options_.static_graph) {
    used_map_ = host.empty({static_cast<std::int64_t>(parameters_.size())}, DType::kInt32, BufferCategory::kBucket);
    host.launch(OpKind::kFill, {}, {used_map_}, {0.0});
  }
}

void Ddp::make_buckets(Host& host, const std::vector<Indices>& assignment) {
  buckets_.resize(assignment.size());
  place_.assign(parameters_.size(), {});
  for (std::size_t b = 0; b < assignment.size(); ++b) {
    Bucket& bucket = buckets_[b];
    bucket.parameters = assignment[b];
    ShardUnit unit;
    unit.name = "bucket " + std::to_string(b) + (rebuilt_ ? "" : " (first)");
    std::int64_t numel = 0;
    for (const std::size_t i : bucket.parameters) {
      unit.parameters.push_back(host.model().at(locals_[i].id).name);
      numel += parameters_[i]->numel;
    }
    unit.numel = unit.padded_numel = unit.shard_numel = Elements(numel);
    const DType dtype = parameters_[bucket.parameters[0]]->dtype;
    unit.gather_dtype = unit.reduce_dtype = dtype;
    bucket.unit = host.program().add_unit(std::move(unit));
    bucket.buffer = host.empty({numel}, dtype, BufferCategory::kBucket, bucket.unit);
    bucket.views.clear();
    std::int64_t offset = 0;
    for (std::size_t k = 0; k < bucket.parameters.size(); ++k) {
      const SymTensor& p = parameters_[bucket.parameters[k]];
      bucket.views.push_back(host.view_as(bucket.buffer, p->shape, offset));
      place_[bucket.parameters[k]] = {b, k};
      offset += p->numel;
    }
  }
}

// ---------------------------------------------------------------------------------------------- collectives

EventId Ddp::collective(Host& host, CollectiveKind kind, const SymTensor& t, UnitId unit) {
  host.wait_stream(stream_, host.stream());
  Collective c;
  c.kind = kind;
  c.op = kind == CollectiveKind::kAllReduce ? ReduceOp::kSum : ReduceOp::kNone;
  c.dtype = t->dtype;
  c.stream = stream_;
  c.group = group_;
  c.input = c.output = host.id_of(t);
  c.bytes = Bytes(t->bytes());
  c.unit = unit;
  Decision d;
  d.kind = DecisionKind::kCollective;
  d.unit = unit;
  d.bytes = t->bytes();
  d.collective = host.collective(c);
  host.decide(d);
  return host.record_event(stream_);
}

void Ddp::broadcast(Host& host, const SymTensor& t) {
  const EventId done = collective(host, CollectiveKind::kBroadcast, t, {});
  host.wait_event(host.stream(), done);
}

/// dist._broadcast_coalesced: buckets of 250 MiB are put together, sent and copied back; two are under way at a time.
void Ddp::broadcast_coalesced(Host& host, const std::vector<SymTensor>& tensors) {
  struct Work {
    SymTensor flat;
    Indices indices;
    EventId done;
  };
  std::vector<Work> in_flight;
  const auto finish_first = [&] {
    Work w = std::move(in_flight.front());
    in_flight.erase(in_flight.begin());
    host.wait_event(host.stream(), w.done);
    std::int64_t offset = w.flat->offset;
    for (const std::size_t i : w.indices) {
      host.launch(OpKind::kCopy, {host.view_as(w.flat, tensors[i]->shape, offset)}, {tensors[i]});
      offset += tensors[i]->numel;
    }
  };
  if (tensors.empty()) return;
  for (const Indices& bucket : assign_buckets(tensors, all_of(tensors.size()), {kBroadcastBytes}, true)) {
    if (in_flight.size() >= 2) finish_first();
    Work w;
    w.indices = bucket;
    if (bucket.size() == 1) {
      w.flat = host.view_as(tensors[bucket[0]], {tensors[bucket[0]]->numel});
    } else {
      TensorList parts;
      std::int64_t numel = 0;
      for (const std::size_t i : bucket) {
        parts.push_back(host.view_as(tensors[i], {tensors[i]->numel}));
        numel += tensors[i]->numel;
      }
      const TensorList flat{host.empty({numel}, tensors[bucket[0]]->dtype, BufferCategory::kBucket)};
      launch_lists(host, OpKind::kCat, {&parts}, {&flat}, {0.0});
      w.flat = flat[0];
    }
    w.done = collective(host, CollectiveKind::kBroadcast, w.flat, {});
    in_flight.push_back(std::move(w));
  }
  while (!in_flight.empty()) finish_first();
}

// ---------------------------------------------------------------------------------------------- forward

void Ddp::before_model(Host& host, bool training) {
  if (training && rebuilds() && !rebuilt_ && !arrival_.empty()) rebuild(host);
  if (options_.broadcast_buffers && broadcasts_next_ && !buffers_.empty()) broadcast_coalesced(host, buffers_);
}

void Ddp::after_model(Host& host, std::span<SymTensor> outputs) {
  broadcasts_next_ = host.grad_enabled() && sync_;
  expects_backward_ = broadcasts_next_;
  if (!expects_backward_) return;
  reset_pending();
  const bool delays = options_.static_graph && synced_backwards_ == 0;
  const bool searches = options_.find_unused_parameters && !options_.static_graph;
  if (!delays && !searches) return;
  // _DDPSink: outputs are cloned; its backward is where a static graph's first reduction is put off to the end (D-9).
  for (SymTensor& t : outputs) {
    if (!host.requires_grad(t)) continue;
    t = host.clone(t);
  }
  host.apply_function(outputs, 0);
  if (!searches) return;
  const std::vector<const SymTensorImpl*> used = host.leaves_of(outputs);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (std::find(used.begin(), used.end(), parameters_[i].get()) == used.end()) mark_ready(host, i, true);
  }
}

void Ddp::reset_pending() {
  next_bucket_ = 0;
  for (Bucket& b : buckets_) b.pending = b.parameters.size();
}

/// D-4: buckets in the order of arrival; rank 0's order is sent to all.
void Ddp::rebuild(Host& host) {
  const std::vector<Indices> assignment = assign_buckets(parameters_, arrival_, limits(), false);
  sync_indices(host, static_cast<std::int64_t>(assignment.size()));
  rebuilt_ = true;
  for (Bucket& b : buckets_) {
    b.views.clear();
    b.buffer.reset();
  }
  buckets_.clear();
  make_buckets(host, assignment);
  host.decide({.kind = DecisionKind::kBucketRebuilt, .number = static_cast<std::int32_t>(assignment.size())});
  arrival_.clear();
}

void Ddp::sync_indices(Host& host, std::int64_t count) {
  const auto send = [&](std::int64_t n) {
    SymTensor t = host.empty({n}, DType::kInt32, BufferCategory::kWorkspace);
    Copy up;
    up.bytes = Bytes(t->bytes());
    up.destination = host.id_of(t);
    up.blocks_host = true;
    host.copy(up);
    broadcast(host, t);
    Copy down;
    down.direction = CopyDirection::kDeviceToHost;
    down.bytes = Bytes(t->bytes());
    down.source = host.id_of(t);
    down.blocks_host = true;
    host.copy(down);
    return t;
  };
  const SymTensor indices = send(static_cast<std::int64_t>(parameters_.size()) + 1);
  send(count);
}

// ---------------------------------------------------------------------------------------------- backward

void Ddp::on_accumulated(Host& host, std::uint32_t parameter) {
  if (!expects_backward_) return;
  spend_host(host, kDdpHookUs, "gradient hooks");
  host.decide({.kind = DecisionKind::kGradientReady, .target = UnitId(parameter)});
  if (options_.static_graph && synced_backwards_ == 0) {
    return;                                 // D-9: in the first iteration everything is reduced at the end.
  }
  if (rebuilds() && !rebuilt_) arrival_.push_back(parameter);
  mark_ready(host, parameter, false);
}

/// D-6: gradient / W into its place; the bucket goes when all of it is there and all lower buckets went.
void Ddp::mark_ready(Host& host, std::size_t parameter, bool unused) {
  const auto [b, k] = place_[parameter];
  Bucket& bucket = buckets_[b];
  SymTensor& grad = parameters_[parameter]->grad;
  const double factor = 1.0 / static_cast<double>(world_);
  if (unused || !grad) {
    host.launch(OpKind::kFill, {}, {bucket.views[k]}, {0.0});
  } else if (grad->storage.get() == bucket.buffer->storage.get()) {
    host.launch(OpKind::kMulScalar, {bucket.views[k]}, {bucket.views[k]}, {factor});
  } else {
    host.launch(OpKind::kMulScalar, {grad}, {bucket.views[k]}, {factor});
    if (options_.gradient_as_bucket_view) grad = bucket.views[k];
  }
  if (--bucket.pending == 0) launch_ready_buckets(host);
}

void Ddp::launch_ready_buckets(Host& host) {
  const std::size_t before = next_bucket_;
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].pending == 0) {
    Bucket& b = buckets_[next_bucket_++];
    host.decide({.kind = DecisionKind::kBucketReady, .unit = b.unit});
    b.reduced = collective(host, CollectiveKind::kAllReduce, b.buffer, b.unit);
  }
  const bool delayed = options_.static_graph && synced_backwards_ == 0;
  if (next_bucket_ == buckets_.size() && before < next_bucket_ && host.in_backward() && !delayed) {
    if (options_.find_unused_parameters && !options_.static_graph) reduce_used_map(host);
    host.queue_callback(0);
  }
}

void Ddp::reduce_used_map(Host& host) {
  const EventId done = collective(host, CollectiveKind::kAllReduce, used_map_, {});
  host.wait_event(host.stream(), done);
}

/// Reducer::delay_all_reduce: every gradient at once, in the order of parameters.
void Ddp::delayed_reduction(Host& host) {
  reduce_used_map(host);
  for (std::size_t i = 0; i < parameters_.size(); ++i) mark_ready(host, i, !parameters_[i]->grad);
  finalize(host);
}

/// D-7.
void Ddp::finalize(Host& host) {
  for (Bucket& b : buckets_) {
    host.wait_event(host.stream(), b.reduced);
    if (options_.gradient_as_bucket_view) continue;
    for (std::size_t k = 0; k < b.parameters.size(); ++k) {
      const SymTensor& grad = parameters_[b.parameters[k]]->grad;
      if (grad) host.launch(OpKind::kCopy, {b.views[k]}, {grad});
    }
  }
  ++synced_backwards_;
  expects_backward_ = false;
}

}  // namespace

std::unique_ptr<Framework> make_ddp(const ParallelConfig& config) { return std::make_unique<Ddp>(config); }

}  // namespace foreshard
