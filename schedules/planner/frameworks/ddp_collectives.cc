// Collectives of DDP: all on the communicator's own stream, which waits for the caller's.

#include <utility>

#include "schedules/planner/foreach.h"
#include "schedules/planner/frameworks/ddp.h"

namespace foreshard::ddp {
namespace {

constexpr std::int64_t kBroadcastBytes = std::int64_t{250}
                                         << 20;  // DistributedDataParallel.broadcast_bucket_size
constexpr std::size_t kBroadcastsInFlight = 2;

}  // namespace

EventId Ddp::collective(Host& host, CollectiveKind kind, const SymTensor& input,
                        const SymTensor& output, UnitId unit) {
  host.wait_stream(stream_, host.stream());
  Collective c;
  c.kind = kind;
  c.op = kind == CollectiveKind::kAllReduce ? ReduceOp::kSum : ReduceOp::kNone;
  c.dtype = output->dtype;
  c.stream = stream_;
  c.group = group_;
  c.input = host.id_of(input);
  c.output = host.id_of(output);
  c.bytes = Bytes(output->bytes());
  c.unit = unit;
  Decision d;
  d.kind = DecisionKind::kCollective;
  d.unit = unit;
  d.bytes = input->bytes();
  d.bytes2 = output->bytes();
  d.collective = host.collective(c);
  host.decide(d);
  return host.record_event(stream_);
}

void Ddp::broadcast(Host& host, const SymTensor& t) {
  const EventId done = collective(host, CollectiveKind::kBroadcast, t, t);
  host.wait_event(host.stream(), done);
}

/// dist._broadcast_coalesced (comm.cpp): buckets of 250 MiB are put together, sent and copied back;
/// two are under way.
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
  for (Indices& bucket : assign_buckets(tensors, {kBroadcastBytes}).buckets) {
    if (in_flight.size() >= kBroadcastsInFlight) finish_first();
    Work w;
    if (bucket.size() == 1) {
      w.flat = host.view_as(tensors[bucket[0]], {tensors[bucket[0]]->numel});
    } else {
      TensorList parts;
      parts.reserve(bucket.size());
      std::int64_t numel = 0;
      for (const std::size_t i : bucket) {
        parts.push_back(host.view_as(tensors[i], {tensors[i]->numel}));
        numel += tensors[i]->numel;
      }
      const TensorList flat{
          host.empty({numel}, tensors[bucket[0]]->dtype, BufferCategory::kBucket)};
      launch_lists(host, OpKind::kCat, {&parts}, {&flat}, {0.0});
      w.flat = flat[0];
    }
    w.indices = std::move(bucket);
    w.done = collective(host, CollectiveKind::kBroadcast, w.flat, w.flat);
    in_flight.push_back(std::move(w));
  }
  while (!in_flight.empty()) finish_first();
}

}  // namespace foreshard::ddp
