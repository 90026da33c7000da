// Skip connections and a tied weight: a tensor that jumps over layers, and a weight that two layers share, across
// stages.
//
//   build/bin/03_skips_and_ties
//
// prints which skips were found and that three stages train to the same bits as one.
#include <gpipe/gpipe.h>
#include <torch/torch.h>

#include <cstdio>

// Two layers that belong together: what Enter stashes, Leave pops.
struct EnterImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    gpipe::stash("shortcut", x);
    return x;
  }
};
TORCH_MODULE(Enter);

struct LeaveImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x + gpipe::pop("shortcut"); }
};
TORCH_MODULE(Leave);

gpipe::LayerChain make_model() {
  gpipe::LayerChain chain;
  chain.add<torch::nn::Embedding>("embedding", 50, 32);
  for (const std::string block : {"a", "b"}) {
    chain.add<Enter>("enter_" + block);
    chain.add<torch::nn::Linear>("linear_" + block, 32, 32);
    chain.add<torch::nn::GELU>("gelu_" + block);
    chain.add<Leave>("leave_" + block);
    // Both blocks use the name "shortcut"; a namespace keeps them apart.
    chain.isolate("enter_" + block, block).isolate("leave_" + block, block);
  }
  chain.add<torch::nn::Linear>("head", 32, 50);
  chain.tie("embedding.weight", "head.weight");  // one parameter, one update
  return chain;
}

std::vector<torch::Tensor> train(int num_stages) {
  torch::manual_seed(0);
  const torch::Tensor token = torch::randint(50, {64}, torch::kLong);
  const torch::Tensor next = (token + 1) % 50;
  gpipe::Pipeline pipeline(make_model(), gpipe::PipelineOptions(num_stages).num_micro_batches(4));
  torch::optim::Adam optimizer(pipeline->parameters(), 1e-2);
  double loss = 0;
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    loss = pipeline->train_step(token, next, torch::nn::CrossEntropyLoss()).loss.item<double>();
    optimizer.step();
  }
  std::printf("%d stage(s): %zu parameters, loss %.4f\n", num_stages, pipeline->parameters().size(), loss);
  for (const gpipe::SkipProfile& skip : pipeline->profile().skips) {
    std::printf("  skip %s from layer %d to layer %d\n", skip.name.c_str(), skip.from, skip.to);
  }
  return pipeline->parameters();
}

int main() {
  const auto one = train(1);
  const auto three = train(3);
  bool same = true;
  for (std::size_t index = 0; index < one.size(); ++index) same = same && torch::equal(one[index], three[index]);
  std::printf("the same bits on three stages as on one: %s\n", same ? "yes" : "no");
}
