// A training program that `gpipe verify` runs: faulty_program FAULT. Without a fault ("none") it is verified.
#include <gpipe/gpipe.h>
#include <torch/torch.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <thread>

namespace {

struct OwnGeneratorImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& input) {
    return input * std::uniform_real_distribution<float>(0.5, 1.5)(engine);
  }
  std::mt19937 engine{5};
};
TORCH_MODULE(OwnGenerator);

struct CounterImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& input) { return input * (1 + 0.01 * ++num_calls); }
  int num_calls = 0;
};
TORCH_MODULE(Counter);

struct UnregisteredImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& input) { return input * weight; }
  torch::Tensor weight = torch::ones({6}, torch::requires_grad());
};
TORCH_MODULE(Unregistered);

// A transport of the program's own, with one slot for all micro-batches.
struct Slot {
  std::array<float, 64 * 6> bytes{};
  std::atomic<int> micro_batch{-1};
};
Slot slot;

struct SendImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& input) {
    std::memcpy(slot.bytes.data(), input.data_ptr(), input.nbytes());
    slot.micro_batch = gpipe::LayerScope::current()->micro_batch;
    return input.clone();
  }
};
TORCH_MODULE(Send);

struct ReceiveImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& input) {
    // The race is seeded: for a while it waits for the sender to be ahead.
    const int own = gpipe::LayerScope::current()->micro_batch;
    for (int wait = 0; wait < 50 && slot.micro_batch == own; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    torch::Tensor received = torch::empty_like(input);
    std::memcpy(received.data_ptr(), slot.bytes.data(), received.nbytes());
    return input + received;
  }
};
TORCH_MODULE(Receive);

void add_suspect(const std::string& fault, gpipe::LayerChain& chain) {
  if (fault == "own-generator") {
    chain.add<OwnGenerator>("suspect");
  } else if (fault == "hidden-state") {
    chain.add<Counter>("suspect");
  } else if (fault == "unregistered-weight") {
    chain.add<Unregistered>("suspect");
  } else if (fault == "batch-statistics") {
    chain.add<torch::nn::BatchNorm1d>("suspect", 6);
  } else {
    chain.add<gpipe::nn::DeferredBatchNorm1d>("suspect", 6);
  }
}

gpipe::LayerChain make_model(const std::string& fault) {
  gpipe::LayerChain chain;
  chain.add<torch::nn::Linear>("in", 6, 6);
  if (fault == "race") {
    chain.add<Send>("send").add<torch::nn::Linear>("middle", 6, 6).add<Receive>("suspect");
  } else {
    add_suspect(fault, chain);
    chain.add<torch::nn::Tanh>("tanh");
  }
  return chain.add<torch::nn::Linear>("out", 6, 6);
}

// Rows of another number of values that count each.
torch::Tensor mean_over_values(const torch::Tensor& output, const torch::Tensor& target) {
  const torch::Tensor counts = target.gt(target.select(1, 0).unsqueeze(1)).to(torch::kFloat);
  return ((output - target).square() * counts).sum() / counts.sum().clamp_min(1);
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string fault = argc > 1 ? argv[1] : "none";
  if (fault == "fails") {
    std::fprintf(stderr, "this program always fails\n");
    return 7;
  }
  torch::set_num_threads(1);
  torch::manual_seed(fault == "unseeded-data" ? std::random_device()() : 0);
  const torch::Tensor input = torch::randn({32, 6});
  const torch::Tensor target = torch::randn({32, 6});
  const gpipe::World world = gpipe::read_world();
  const int num_stages = world.size > 1 ? world.num_stages() : 2;
  gpipe::Pipeline pipeline(
      make_model(fault),
      gpipe::PipelineOptions(num_stages)
          .num_micro_batches(4)
          .balance(num_stages == 2 ? std::vector<int>{3, fault == "race" ? 2 : 1} : std::vector<int>{}));
  torch::optim::SGD optimizer(pipeline->parameters(), 0.05);
  for (int step = 0; step < (fault == "endless" ? 1000000 : 3); ++step) {
    optimizer.zero_grad();
    pipeline->train_step(gpipe::replica_share(input, world), gpipe::replica_share(target, world),
                         [&](const torch::Tensor& output, const torch::Tensor& wanted) {
                           return fault == "loss-is-no-mean" ? mean_over_values(output, wanted)
                                                             : torch::mse_loss(output, wanted);
                         });
    optimizer.step();
  }
} catch (const gpipe::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
