// The smallest program that uses gpipe: makes a schedule, proves it, and prints the most activations a worker holds.
#include <gpipe/gpipe.h>
#ifdef GPIPE_WITH_TORCH
#include <torch/torch.h>
#endif

#include <algorithm>
#include <cstdio>

int main() {
  const gpipe::Schedule schedule = gpipe::schedules::one_f_one_b(/*num_workers=*/4, /*num_micro_batches=*/8);
  const gpipe::Certificate certificate = gpipe::validate(schedule);
  const auto& peaks = certificate.peak_activations;
  std::printf("peak activations: %g\n", *std::max_element(peaks.begin(), peaks.end()));

#ifdef GPIPE_WITH_TORCH
  torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Linear(4, 2));
  gpipe::Pipeline pipeline(model, gpipe::PipelineOptions(/*num_stages=*/2).num_micro_batches(2));
  pipeline->train_step(torch::ones({4, 4}), torch::ones({4, 2}), torch::nn::MSELoss());
  std::printf("trained on %zu stages\n", pipeline->layers_per_stage().size());
#endif
}
