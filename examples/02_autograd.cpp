// The pipeline as a drop-in module: autograd goes through it, and loss.backward() is pipelined, too.
//
//   build/bin/02_autograd
//
// prints the loss before and after 30 steps; it falls below 0.5.
#include <gpipe/gpipe.h>
#include <torch/torch.h>

#include <cstdio>

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(64, 128), torch::nn::ReLU(), torch::nn::Linear(128, 10));
  const torch::Tensor image = torch::randn({96, 64});
  const torch::Tensor label = image.narrow(1, 0, 10).argmax(1);

  gpipe::Pipeline pipeline(
      model, gpipe::PipelineOptions(/*num_stages=*/2).num_micro_batches(4).recompute(gpipe::Recompute::kAlways));
  torch::optim::Adam optimizer(pipeline->parameters(), 3e-3);
  double first = 0;
  double last = 0;
  for (int step = 0; step < 30; ++step) {
    optimizer.zero_grad();
    const torch::Tensor output = pipeline->forward(image);
    const torch::Tensor loss = torch::nn::functional::cross_entropy(output, label);
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  std::printf("loss %.3f -> %.3f, learnt: %s\n", first, last, last < 0.5 ? "yes" : "no");
}
