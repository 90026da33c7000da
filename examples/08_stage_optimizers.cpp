// Every stage is updated on its own worker, at the same time as the others, by an optimizer of libtorch's that is used
// like one over all parameters, and trains to the same bits.
//
//   build/bin/08_stage_optimizers
//
// prints the loss before and after, and "the same bits as with one optimizer: yes".
#include <gpipe/gpipe.h>
#include <torch/torch.h>

#include <cstdio>

namespace {

gpipe::Pipeline make_pipeline() {
  return gpipe::Pipeline(gpipe::LayerChain()
                             .add<torch::nn::Linear>("in", 16, 64)
                             .add("relu", torch::nn::ReLU())
                             .add<torch::nn::Linear>("out", 64, 4),
                         gpipe::PipelineOptions(/*num_stages=*/2).num_micro_batches(4).balance({2, 1}));
}

// The first and the last loss.
std::pair<float, float> train(gpipe::Pipeline& pipeline, torch::optim::Optimizer& optimizer) {
  torch::manual_seed(0);
  torch::optim::StepLR scheduler(optimizer, /*step_size=*/10, /*gamma=*/0.5);
  std::pair<float, float> losses;
  for (int step = 0; step < 30; ++step) {
    const torch::Tensor input = torch::randn({32, 16});
    optimizer.zero_grad();
    const gpipe::StepResult result =
        pipeline->train_step(input, input.narrow(1, 0, 4).argmax(1), torch::nn::CrossEntropyLoss());
    gpipe::clip_grad_norm_(pipeline, /*max_norm=*/1.0);
    optimizer.step();
    scheduler.step();
    (step == 0 ? losses.first : losses.second) = result.loss.item<float>();
  }
  return losses;
}

}  // namespace

int main() {
  torch::set_num_threads(1);
  gpipe::Pipeline pipeline = make_pipeline();
  gpipe::StageOptimizers<torch::optim::AdamW> optimizer(pipeline, torch::optim::AdamWOptions(0.01));
  const auto [first, last] = train(pipeline, optimizer);
  std::printf("loss %.2f, then %.2f\n", first, last);

  gpipe::Pipeline other = make_pipeline();
  torch::optim::AdamW one(other->parameters(), torch::optim::AdamWOptions(0.01));
  train(other, one);
  bool same = true;
  for (std::size_t index = 0; index < pipeline->parameters().size(); ++index) {
    same = same && torch::equal(pipeline->parameters()[index], other->parameters()[index]);
  }
  std::printf("the same bits as with one optimizer: %s\n", same ? "yes" : "no");
}
