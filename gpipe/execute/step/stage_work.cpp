#include "gpipe/execute/step/stage_work.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/execute/runner/caller_state.h"
#include "gpipe/transport/stage_stream.h"

namespace gpipe::detail {
namespace {

// The stages of each worker of this process.
std::vector<std::vector<int>> own_stages_by_worker(const Engine& engine) {
  const std::vector<int>& worker_of_stage = engine.cut().worker_of_stage;
  std::vector<std::vector<int>> by_worker(worker_of_stage.size());
  for (int stage = 0; stage < engine.cut().num_stages(); ++stage) {
    if (engine.runs_stage(stage)) by_worker[static_cast<std::size_t>(worker_of_stage[stage])].push_back(stage);
  }
  std::vector<std::vector<int>> own;
  for (std::vector<int>& stages : by_worker) {
    if (!stages.empty()) own.push_back(std::move(stages));
  }
  return own;
}

}  // namespace

void run_on_stages(Engine& engine, const std::function<void(int stage)>& work) {
  const std::vector<std::vector<int>> own = own_stages_by_worker(engine);
  const Split& split = *engine.split();
  std::vector<std::shared_ptr<StageStream>> streams;
  for (const std::vector<int>& stages : own) {
    for (const int stage : stages) streams.push_back(split.stream(stage));
  }
  const CallerState caller(at::GradMode::is_enabled());
  CallerOrder order(std::move(streams));
  engine.runner().workers().run(
      [&](int worker) {
        if (static_cast<std::size_t>(worker) >= own.size()) return;
        caller.run([&] {
          for (const int stage : own[static_cast<std::size_t>(worker)]) {
            std::optional<StageStream::Guard> guard;
            if (const std::shared_ptr<StageStream> stream = split.stream(stage)) guard.emplace(*stream);
            work(stage);
          }
        });
      },
      [] {});
  order.make_caller_wait();
}

}  // namespace gpipe::detail
