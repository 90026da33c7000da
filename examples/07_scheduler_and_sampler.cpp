// A training with a learning rate scheduler and a random sampler of libtorch is saved in the middle of its second
// epoch, and resumed on other stages: rate, order of the data and weights are those of one without a break.
//
//   build/bin/07_scheduler_and_sampler
//
// prints where it was resumed, and "the same bits as without a break: yes".
#include <gpipe/gpipe.h>
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>

namespace {

struct Training {
  explicit Training(int num_stages)
      : pipeline(gpipe::LayerChain()
                     .add<torch::nn::Linear>("in", 16, 32)
                     .add("relu", torch::nn::ReLU())
                     .add<torch::nn::Linear>("out", 32, 4),
                 gpipe::PipelineOptions(num_stages).num_micro_batches(4)),
        optimizer(pipeline->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
        scheduler(optimizer, /*step_size=*/2, /*gamma=*/0.5),
        sampler(/*size=*/96) {}

  // Batches of 16, so an epoch has six; the rate is halved after every second epoch.
  void take_steps(const torch::Tensor& data, int count) {
    for (; count > 0; --count, ++step) {
      auto rows = sampler.next(16);
      if (!rows) {
        scheduler.step();
        sampler.reset();  // draws the order of the next epoch
        rows = sampler.next(16);
      }
      const torch::Tensor input = data.index_select(0, torch::tensor(std::vector<int64_t>(rows->begin(), rows->end())));
      optimizer.zero_grad();
      pipeline->train_step(input, input.narrow(1, 0, 4).argmax(1), torch::nn::CrossEntropyLoss());
      optimizer.step();
    }
  }

  gpipe::Pipeline pipeline;
  torch::optim::SGD optimizer;
  torch::optim::StepLR scheduler;
  torch::data::samplers::RandomSampler sampler;
  int64_t step = 0;
};

}  // namespace

int main() {
  torch::set_num_threads(1);
  torch::manual_seed(0);
  const std::string folder = std::filesystem::temp_directory_path() / "gpipe_07_scheduler_and_sampler";
  std::filesystem::remove_all(folder);
  const torch::Tensor data = torch::randn({96, 16});

  Training first(/*num_stages=*/2);
  first.take_steps(data, 16);
  gpipe::TrainingState state;
  state.step = first.step;
  gpipe::save_scheduler(state, first.scheduler);
  gpipe::save_sampler(state, first.sampler);
  gpipe::save_checkpoint(folder, first.pipeline, first.optimizer, state);
  first.take_steps(data, 24);

  Training second(/*num_stages=*/3);
  gpipe::TrainingState resumed = gpipe::load_checkpoint(folder, second.pipeline, second.optimizer);
  gpipe::load_scheduler(resumed, second.scheduler);
  gpipe::load_sampler(resumed, second.sampler);
  for (const std::string& warning : resumed.warnings) std::printf("%s\n", warning.c_str());
  second.step = resumed.step;
  std::printf("resumed after step %d, in the middle of an epoch\n", static_cast<int>(second.step));
  second.take_steps(data, 24);

  bool same = true;
  for (std::size_t index = 0; index < first.pipeline->parameters().size(); ++index) {
    same = same && torch::equal(first.pipeline->parameters()[index], second.pipeline->parameters()[index]);
  }
  std::printf("the same bits as without a break: %s\n", same ? "yes" : "no");
  std::filesystem::remove_all(folder);
}
