// The quickstart, one stage in each process. The program is the same whoever starts it, and however often:
//
//   build/bin/gpipe launch -n 2 -- build/bin/05_processes
//   GPIPE_SECRET=$(openssl rand -hex 32) mpirun -n 2 -x GPIPE_SECRET build/bin/05_processes
//   GPIPE_SECRET=$(openssl rand -hex 32) torchrun --standalone --nproc-per-node 2 --no-python build/bin/05_processes
//   build/bin/05_processes
//
// Rank 0 prints the loss of every tenth step, a chart of the last one, in which both stages are, and "the same bits as on
// threads: yes". The last line is without a launcher: the stages are threads then.
#include <gpipe/gpipe.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>

std::vector<double> train(const gpipe::PipelineOptions& options, bool print) {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(64, 256), torch::nn::ReLU(), torch::nn::Dropout(0.1),
                              torch::nn::Linear(256, 256), torch::nn::ReLU(), torch::nn::Linear(256, 10));
  const torch::Tensor image = torch::randn({128, 64});
  const torch::Tensor label = image.narrow(1, 0, 10).argmax(1);

  gpipe::Pipeline pipeline(model, options);
  torch::optim::SGD optimizer(pipeline->parameters(), 0.1);
  std::vector<double> losses;
  for (int step = 0; step < 50; ++step) {
    optimizer.zero_grad();
    const gpipe::StepResult result = pipeline->train_step(image, label, torch::nn::CrossEntropyLoss());
    optimizer.step();
    losses.push_back(result.loss.item<double>());  // every rank has it
    if (print && step % 10 == 9) std::printf("step %2d  loss %.4f\n", step + 1, losses.back());
    if (print && step == 49) std::printf("\n%s\n", gpipe::to_gantt(result.timeline).c_str());
  }
  return losses;
}

int main() {
  torch::set_num_threads(1);
  const gpipe::World world = gpipe::read_world();
  const auto options = gpipe::PipelineOptions(std::max(world.size, 2)).num_micro_batches(8);
  const std::vector<double> losses = train(options, /*print=*/world.rank == 0);
  const std::vector<double> on_threads =
      train(gpipe::PipelineOptions(options).peers(gpipe::no_peers()), /*print=*/false);
  if (world.rank == 0) std::printf("the same bits as on threads: %s\n", losses == on_threads ? "yes" : "no");
}
