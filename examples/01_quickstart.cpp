// A model is trained on two stages, in two threads: the loss falls, and every number of stages gives the same bits.
//
//   build/bin/01_quickstart
//
// prints the loss of every tenth step, a chart of the last one, and "the same bits as on one stage: yes".
#include <gpipe/gpipe.h>
#include <torch/torch.h>

#include <cstdio>

// Trains a fresh copy of the model for 50 steps; returns its parameters.
std::vector<torch::Tensor> train(int num_stages, bool print) {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(64, 256), torch::nn::ReLU(), torch::nn::Dropout(0.1),
                              torch::nn::Linear(256, 256), torch::nn::ReLU(), torch::nn::Linear(256, 10));
  const torch::Tensor image = torch::randn({128, 64});
  const torch::Tensor label = image.narrow(1, 0, 10).argmax(1);

  gpipe::Pipeline pipeline(model, gpipe::PipelineOptions(num_stages).num_micro_batches(8));
  torch::optim::SGD optimizer(pipeline->parameters(), 0.1);
  for (int step = 0; step < 50; ++step) {
    optimizer.zero_grad();
    const gpipe::StepResult result = pipeline->train_step(image, label, torch::nn::CrossEntropyLoss());
    optimizer.step();
    if (print && step % 10 == 9) std::printf("step %2d  loss %.4f\n", step + 1, result.loss.item<double>());
    if (print && step == 49) std::printf("\n%s\n", gpipe::to_gantt(result.timeline).c_str());
  }
  return pipeline->parameters();
}

int main() {
  torch::set_num_threads(1);
  const std::vector<torch::Tensor> two = train(/*num_stages=*/2, /*print=*/true);
  const std::vector<torch::Tensor> one = train(/*num_stages=*/1, /*print=*/false);
  bool same = true;
  for (std::size_t index = 0; index < two.size(); ++index) same = same && torch::equal(two[index], one[index]);
  std::printf("the same bits as on one stage: %s\n", same ? "yes" : "no");
}
