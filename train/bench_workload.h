// What `gpipe bench` trains: models of known sizes on made-up data.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"

namespace gpipe::train {

struct Workload {
  std::string name;
  std::string description;  // of its sizes, a sentence without the full stop
  // A new, equal model each time. Layers that are built already are shared by the pipelines that are made of one chain.
  std::function<LayerChain()> make;
  Tensors inputs;
  at::Tensor target;
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)> loss;
  // The same sizes for a peer in another language, as a JSON object; empty if there is no such peer.
  std::string sizes_json;

  std::int64_t num_samples() const { return target.size(0); }
};

// In the order in which they are run.
const std::vector<std::string>& workload_names();

// `quick`: of sizes that take milliseconds, for a first look. REQUIRES: a name of the list.
Workload make_workload(const std::string& name, bool quick);

}  // namespace gpipe::train
