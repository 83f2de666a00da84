// How updated parts of parameters reach the other ranks.

#include <algorithm>

#include "core/integers.h"
#include "schedules/planner/foreach.h"
#include "schedules/planner/frameworks/sharded_optimizer.h"
#include "schedules/planner/host/host_time.h"

namespace foreshard {
namespace {

/// Microseconds of the reference CPU (docs/host-time.md): a view, a cat, a copy; 1.2 times the
/// tight loop, as measured for the optimizer's calls in real models.
constexpr double kViewUs = 1.2 * 0.83, kCatUs = 1.2 * 1.9, kCopyUs = 1.2 * 1.75;
/// Tensors that one kernel of torch.cat takes.
constexpr std::int64_t kMostCatInputs = 128;

}  // namespace

void ShardedOptimizer::after_optimizer(Host& host) {
  TensorList updated, places;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    updated.push_back(masters_[i].local);
    places.push_back(part(host, parameters_[i]));
    masters_[i].local->grad.reset();
  }
  launch_lists(host, OpKind::kForeachCopy, {&updated}, {&places});
  updated.clear();
  places.clear();
  if (shard_ > 1) send_parameters(host);
}

void ShardedOptimizer::send_parameters(Host& host) {
  if (options_.gather_lists) return gather_through_lists(host);
  host.wait_stream(stream_, host.stream());
  if (options_.owners_broadcast) {
    // Owners hold whole tensors, as even a load as these allow: what each owns goes out in one
    // broadcast.
    const auto tensors = static_cast<std::int64_t>(parameters_.size());
    const std::int64_t owners = std::min(shard_, tensors);
    for (std::int64_t o = 0; o < owners; ++o) {
      Collective c;
      c.kind = CollectiveKind::kBroadcast;
      c.stream = stream_;
      c.group = shard_group_;
      c.root = static_cast<std::int32_t>(o);
      c.dtype = parameters_[0]->dtype;
      for (std::int64_t i = o; i < tensors; i += owners)
        c.bytes += Bytes(parameters_[static_cast<std::size_t>(i)]->bytes());
      c.input = c.output = host.id_of(parameters_[static_cast<std::size_t>(o)]);
      host.collective(c);
    }
  } else {
    for (const SymTensor& p : parameters_) {
      if (divides(p))
        collective(host, CollectiveKind::kAllGather, shard_group_, part(host, p), p);
      else
        collective_for_each_part(host, CollectiveKind::kBroadcast, shard_group_, p);
    }
  }
  host.wait_stream(host.stream(), stream_);
}

/// nanotron's all_gather_coalesced (distributed.py): the present parts of all tensors are copied
/// into one flat tensor for each rank, c10d gathers into another buffer and copies the flat tensors
/// out, and each part of each tensor is copied back. Flat tensors of different sizes are broadcast
/// in one NCCL group, without that buffer.
void ShardedOptimizer::gather_through_lists(Host& host) {
  const auto tensors = static_cast<std::int64_t>(parameters_.size());
  const auto ranks = static_cast<double>(shard_);
  TensorList own, whole = parameters_;
  std::int64_t numel = 0, part_numel = 0;
  for (const SymTensor& p : parameters_) {
    own.push_back(part(host, p));
    numel += p->numel;
    part_numel += own.back()->numel;
  }
  const DType dtype = parameters_[0]->dtype;
  const auto copies = [&](const TensorList& from, const TensorList& to, std::int64_t kernels) {
    LaunchRequest q;
    q.op = OpKind::kForeachCopy;
    q.inputs = from;
    q.outputs = to;
    q.kernels = kernels;
    host.launch(q);
  };
  spend_host(host, ranks * (static_cast<double>(tensors) * kViewUs + kCatUs),
             "lists for each rank");
  const TensorList mine{host.empty({part_numel}, dtype, BufferCategory::kBucket)};
  copies(own, mine, 1);
  const TensorList lists{host.empty({numel}, dtype, BufferCategory::kBucket)};
  copies(whole, lists, shard_ * ceil_div(tensors, kMostCatInputs));
  if (std::all_of(whole.begin(), whole.end(), [&](const SymTensor& p) { return divides(p); })) {
    const TensorList gathered{host.empty({numel}, dtype, BufferCategory::kBucket)};
    host.wait_stream(stream_, host.stream());
    collective(host, CollectiveKind::kAllGather, shard_group_, mine[0], gathered[0]);
    host.wait_stream(host.stream(), stream_);
    spend_host(host, ranks * kCopyUs, "lists from the collective");
    copies(gathered, lists, shard_);
  } else {
    host.wait_stream(stream_, host.stream());
    std::int64_t start = 0;
    for (std::int64_t r = 0; r < shard_; ++r) {
      std::int64_t n = 0;
      for (const SymTensor& p : whole) n += part_size(p->numel, r);
      const SymTensor list = host.view_as(lists[0], {n}, start);
      const SymTensor& source = r == own_index(host) ? mine[0] : list;
      collective(host, CollectiveKind::kBroadcast, shard_group_, source, list, ReduceOp::kNone,
                 {r, Bytes(lists[0]->bytes())});
      start += n;
    }
    host.wait_stream(host.stream(), stream_);
  }
  spend_host(host, ranks * static_cast<double>(tensors) * (kViewUs + kCopyUs),
             "parts from the lists");
  copies(lists, whole, shard_ * tensors);
}

void ShardedOptimizer::zero_gradients(Host& host) {
  for (const SymTensor& p : parameters_) p->grad.reset();
  if (!options_.accumulate_in_float32) return;
  host.launch(OpKind::kFill, {}, {all_sums_}, {0.0});
  // nanotron ends each step with dist.barrier(), for which the host waits (train_step_logs): an
  // all-reduce of one zero (ProcessGroupNCCL::barrier).
  const SymTensor token = host.empty({1}, DType::kFloat32, BufferCategory::kWorkspace);
  host.launch(OpKind::kFill, {}, {token}, {0.0});
  host.wait_stream(stream_, host.stream());
  collective(host, CollectiveKind::kAllReduce, data_group_, token, token);
  host.wait_stream(host.stream(), stream_);
  host.program().sync_stream(host.stream());
}

}  // namespace foreshard
