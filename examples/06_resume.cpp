// A training is saved half-way on two stages, and resumed on three: it ends with the same bits as one without a break.
//
//   build/bin/06_resume
//
// prints where the checkpoint is, how long the training was held up by it, and "the same bits as without a break: yes".
#include <gpipe/gpipe.h>
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <system_error>

namespace {

gpipe::LayerChain make_model() {
  return gpipe::LayerChain()
      .add<torch::nn::Linear>("in", 32, 64)
      .add<gpipe::nn::DeferredBatchNorm1d>("norm", 64)
      .add<torch::nn::ReLU>("relu")
      .add<torch::nn::Dropout>("dropout", 0.2)
      .add<torch::nn::Linear>("out", 64, 8);
}

// One training, wherever and whenever its steps are taken.
struct Training {
  explicit Training(int num_stages)
      : pipeline(make_model(), gpipe::PipelineOptions(num_stages).num_micro_batches(4)),
        optimizer(pipeline->parameters(), torch::optim::AdamWOptions(1e-2)) {}

  void take_steps(int count) {
    for (; count > 0; --count, ++step) {
      torch::manual_seed(step);  // the data of a step are a function of its number
      const torch::Tensor input = torch::randn({64, 32});
      optimizer.zero_grad();
      pipeline->train_step(input, input.narrow(1, 0, 8).argmax(1), torch::nn::CrossEntropyLoss());
      optimizer.step();
    }
  }

  gpipe::Pipeline pipeline;
  torch::optim::AdamW optimizer;
  int step = 0;
};

}  // namespace

int main() {
  torch::set_num_threads(1);
  const std::string folder = std::filesystem::temp_directory_path() / "gpipe_06_resume";
  std::error_code ignored;  // run as several processes, all of them remove it
  std::filesystem::remove_all(folder, ignored);

  Training first(/*num_stages=*/2);
  first.take_steps(20);
  {
    gpipe::CheckpointWriter writer(folder);  // writes while the training goes on
    gpipe::TrainingState state;
    state.step = first.step;
    writer.save(first.pipeline, first.optimizer, state);
    first.take_steps(20);
    const auto saved = writer.wait();
    std::printf("saved %s, held up for %.1f ms\n", saved->path.c_str(), 1e3 * saved->pause_seconds);
  }

  Training second(/*num_stages=*/3);
  second.step = static_cast<int>(gpipe::load_checkpoint(folder, second.pipeline, second.optimizer).step);
  std::printf("resumed after step %d on 3 stages\n", second.step);
  second.take_steps(20);

  bool same = true;
  for (std::size_t index = 0; index < first.pipeline->parameters().size(); ++index) {
    same = same && torch::equal(first.pipeline->parameters()[index], second.pipeline->parameters()[index]);
  }
  std::printf("the same bits as without a break: %s\n", same ? "yes" : "no");
  std::filesystem::remove_all(folder, ignored);
}
