// Skip tracer: finds out which layer stashes and which pops what, when layers are run one after the other.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/model/boundary.h"
#include "gpipe/model/micro_batch.h"
#include "gpipe/model/skip_store.h"
#include "gpipe/plan/profile.h"

namespace gpipe::detail {

// Goes on where a name is wrong, so that all that are wrong come to light. What is popped enters the graph of its layer
// anew.
class SkipTracer : public SkipStore {
 public:
  struct Use {
    int stash_layer = -1;
    int pop_layer = -1;
    Stashed stashed;
    std::int64_t bytes = 0;
  };
  // What is known after some layers.
  struct State {
    std::map<std::string, Use> uses;  // by the name of the skip
    std::vector<std::string> violations;
  };

  // `names` are those of the layers. Goes on from a state, which may come from another process.
  explicit SkipTracer(std::vector<std::string> names, State state = {})
      : names_(std::move(names)), uses_(std::move(state.uses)), violations_(std::move(state.violations)) {}
  State state() const { return {uses_, violations_}; }

  void begin_layer(int layer, const Tensors& inputs);
  void put(const std::string& name, Stashed stashed) override;
  Stashed take(const std::string& name) override;

  // What the layer at work has stashed.
  const Tensors& stashed_now() const { return stashed_now_; }
  // The stashed tensors leave the graph they were made in.
  void end_layer();

  bool failed() const { return !violations_.empty(); }
  // Throws SkipError if there is any violation. `complete` says that all layers were run.
  std::vector<SkipProfile> finish(bool complete);

 private:
  std::string describe(int layer) const;

  const std::vector<std::string> names_;
  int layer_ = 0;
  at::Tensor stand_in_;
  std::map<std::string, Use> uses_;
  Tensors stashed_now_;
  std::vector<std::string> stashed_names_;  // by the layer at work
  std::vector<std::shared_ptr<Boundary>> boundaries_;
  std::vector<std::string> violations_;
};

}  // namespace gpipe::detail
