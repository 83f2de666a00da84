#include "bench/simgrid_job.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <simgrid/s4u.hpp>
#include <string>

namespace foreshard::bench {
namespace {

namespace sg = simgrid::s4u;

struct Exchange {
  FluidJob job;
  int ranks = 1, rounds = 1;
  std::vector<sg::Mailbox*> boxes;

  /// One collective as rank `rank` sees it: to the next neighbour and from the one before, `rounds`
  /// times.
  void collective(int rank) const {
    static int token = 0;
    const auto bytes = static_cast<std::uint64_t>(job.transfer_bytes(ranks) / rounds);
    sg::Mailbox* next = boxes[static_cast<std::size_t>((rank + 1) % ranks)];
    sg::Mailbox* mine = boxes[static_cast<std::size_t>(rank)];
    for (int r = 0; r < rounds; ++r) {
      int* got = nullptr;
      auto receive = mine->get_async<int>(&got);
      auto send = next->put_async(&token, bytes);
      send->wait();
      receive->wait();
    }
  }
};

void add_rank(sg::Host* host, int rank, const Exchange* x) {
  auto gathered = sg::Semaphore::create(0),
       slots = sg::Semaphore::create(static_cast<unsigned>(x->job.prefetch));
  auto gradient = sg::Semaphore::create(0);
  const int blocks = x->job.blocks;
  sg::Actor::create("communication", host, [=] {
    for (int i = 0; i < 2 * blocks; ++i) {
      slots->acquire();
      x->collective(rank);
      gathered->release();
      if (i <= blocks) continue;
      gradient->acquire();
      x->collective(rank);
    }
    gradient->acquire();
    x->collective(rank);
  });
  sg::Actor::create("compute", host, [=] {
    for (int i = 0; i < 2 * blocks; ++i) {
      gathered->acquire();
      sg::this_actor::execute(x->job.forward_flop * (i < blocks ? 1 : 2));
      slots->release();
      if (i >= blocks) gradient->release();
    }
  });
}

/// Plain max-min fluid links: no TCP window, no bandwidth or latency factors, no cross traffic of
/// acknowledgements.
ForeignRun simulate_here(const FluidJob& job, int ranks, bool rounds) {
  int argc = 1;
  std::string name = "simgrid";
  char* argv[] = {name.data(), nullptr};
  sg::Engine engine(&argc, argv);
  sg::Engine::set_config("network/model:CM02");
  sg::Engine::set_config("network/TCP-gamma:0");
  sg::Engine::set_config("network/crosstraffic:0");
  auto* zone = sg::create_star_zone("star");
  std::vector<sg::Host*> hosts;
  for (int i = 0; i < ranks; ++i) {
    auto* host = zone->create_host("h" + std::to_string(i), job.speed)->seal();
    auto* link = zone->create_split_duplex_link("l" + std::to_string(i), job.bandwidth)
                     ->set_latency(job.latency_s / 2)
                     ->seal();
    zone->add_route(host->get_netpoint(), nullptr, nullptr, nullptr,
                    {{link, sg::LinkInRoute::Direction::UP}}, true);
    hosts.push_back(host);
  }
  zone->seal();
  Exchange x{job, ranks, rounds ? ranks - 1 : 1, {}};
  for (int i = 0; i < ranks; ++i) x.boxes.push_back(sg::Mailbox::by_name("m" + std::to_string(i)));
  for (int i = 0; i < ranks; ++i) add_rank(hosts[static_cast<std::size_t>(i)], i, &x);
  const auto begin = std::chrono::steady_clock::now();
  engine.run();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  return {sg::Engine::get_clock(), wall.count()};
}

}  // namespace

ForeignRun run_simgrid(const FluidJob& job, int ranks, bool rounds) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) std::abort();
  const pid_t child = fork();
  if (child == 0) {
    const ForeignRun run = simulate_here(job, ranks, rounds);
    const bool written = write(pipe_ends[1], &run, sizeof run) == static_cast<ssize_t>(sizeof run);
    _exit(written ? 0 : 1);
  }
  close(pipe_ends[1]);
  ForeignRun run;
  if (read(pipe_ends[0], &run, sizeof run) != static_cast<ssize_t>(sizeof run)) std::abort();
  close(pipe_ends[0]);
  waitpid(child, nullptr, 0);
  return run;
}

}  // namespace foreshard::bench
