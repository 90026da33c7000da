// Your own schedule: written as text, proven before it runs, executed, and compared with what the simulator said.
//
//   build/bin/04_own_schedule
//
// prints the schedule as it was predicted and as it ran, and how a wrong one is refused.
#include <gpipe/gpipe.h>
#include <torch/torch.h>

#include <cstdio>

// Two workers, four micro-batches. Worker 1 does each backward at once; worker 0 runs two micro-batches ahead.
constexpr const char* kSchedule = R"(
F0 F1 F2 B0 F3 B1 B2 B3
F0 B0 F1 B1 F2 B2 F3 B3
)";

int main() {
  const gpipe::Schedule schedule = gpipe::parse_schedule(kSchedule);
  const gpipe::Certificate proof = gpipe::validate(schedule);
  std::printf("proven; accumulates in ascending order: %s\n", proof.canonical ? "yes" : "no");

  torch::manual_seed(0);
  gpipe::LayerChain chain;
  for (int layer = 0; layer < 4; ++layer) chain.add<torch::nn::Linear>("linear" + std::to_string(layer), 256, 256);
  gpipe::Pipeline pipeline(chain, gpipe::PipelineOptions(2).custom_schedule(schedule).balance({2, 2}));
  const torch::Tensor input = torch::randn({256, 256});
  gpipe::StepResult step;
  for (int warm_up = 0; warm_up < 3; ++warm_up) step = pipeline->train_step(input, input, torch::nn::MSELoss());

  // The same type for both, so the same drawing.
  const gpipe::Timeline predicted = gpipe::simulate(schedule, gpipe::uniform_costs(schedule));
  std::printf("predicted\n%s\nmeasured\n%s\n", gpipe::to_gantt(predicted).c_str(),
              gpipe::to_gantt(step.timeline).c_str());

  // Worker 0 wants a gradient before it has sent what worker 1 needs for it.
  try {
    gpipe::validate(gpipe::parse_schedule("F0 B1 F1 B0\nF0 B0 F1 B1\n"));
  } catch (const gpipe::ScheduleError& error) {
    std::printf("refused: %s\n", error.what());
  }
}
