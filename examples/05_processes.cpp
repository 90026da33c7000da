// The quickstart, one stage in each process. The program is the same whoever starts it, and however often:
//
//   build/bin/gpipe launch -n 2 -- build/bin/05_processes
//   build/bin/gpipe launch -n 4 --replicas 2 -- build/bin/05_processes
//   GPIPE_SECRET=$(openssl rand -hex 32) mpirun -n 2 -x GPIPE_SECRET build/bin/05_processes
//   GPIPE_SECRET=$(openssl rand -hex 32) torchrun --standalone --nproc-per-node 2 --no-python build/bin/05_processes
//   build/bin/05_processes
//
// Rank 0 prints the loss of every tenth step, a chart of the last one, in which both stages are, and "the same bits as
// on threads: yes". Of two replicas, each trains on half of the batch; their gradients are added up in another order
// than those of one pipeline, so that the last bits differ. The last line is without a launcher: the stages are threads
// then.
#include <gpipe/gpipe.h>
#include <torch/torch.h>

#include <cstdio>

std::vector<double> train(const gpipe::PipelineOptions& options, const gpipe::World& world, bool print) {
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
    const gpipe::StepResult result = pipeline->train_step(
        gpipe::replica_share(image, world), gpipe::replica_share(label, world), torch::nn::CrossEntropyLoss());
    optimizer.step();
    losses.push_back(result.loss.item<double>());  // every rank has it
    if (print && step % 10 == 9) std::printf("step %2d  loss %.4f\n", step + 1, losses.back());
    if (print && step == 49) std::printf("\n%s\n", gpipe::to_gantt(result.timeline).c_str());
  }
  return losses;
}

int main() try {
  torch::set_num_threads(1);
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // a line at a time, also under a launcher
  const gpipe::World world = gpipe::read_world();
  const auto options = gpipe::PipelineOptions(world.size > 1 ? world.num_stages() : 2).num_micro_batches(8);
  const std::vector<double> losses = train(options, world, /*print=*/world.rank == 0);
  const std::vector<double> on_threads =
      train(gpipe::PipelineOptions(options).peers(gpipe::no_peers()), gpipe::World(), /*print=*/false);
  if (world.rank == 0 && world.num_replicas == 1)
    std::printf("the same bits as on threads: %s\n", losses == on_threads ? "yes" : "no");
} catch (const gpipe::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
