// Model: the layers of a pipeline, as far as this process has them, with their ties, buffers and listeners.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpipe/execute/model/scope_tree.h"
#include "gpipe/model/changing_buffers.h"
#include "gpipe/model/layer.h"
#include "gpipe/model/layer_chain.h"
#include "gpipe/model/micro_batch.h"
#include "gpipe/model/module_modes.h"
#include "gpipe/model/step_listener.h"
#include "gpipe/model/tie.h"
#include "gpipe/model/weight_names.h"
#include "gpipe/transport/fingerprint.h"

namespace gpipe::detail {

// Thread-compatible.
class Model {
 public:
  using IsOwn = std::function<bool(int layer)>;

  // Whether two layers may hold the very same parameter or buffer: not if several threads would change it.
  enum class Sharing { kAllowed, kRefused };

  // Builds the layers of the chain that are this process's own, and registers them in `face`, see Note [One tree of
  // modules]. Throws InvalidArgument for layers that share what they may not. REQUIRES: `face` outlives it.
  Model(torch::nn::Module& face, const LayerChain& chain, std::uint64_t seed, const IsOwn& is_own, Sharing sharing);

  // The names and shapes of the parameters of the layers for which `is_wanted` holds.
  Fingerprint shapes(const IsOwn& is_wanted) const;

  // Throws as detail::bind_ties does.
  void bind_ties(const LayerChain& chain);
  // Parameters that were tied are separate again, with the values they had in common.
  void untie();
  // Points tied weights at the same memory again, where a cast, a load or a move to a device has separated them.
  void relink_ties() const;
  // Drops what a step that failed has left as gradients of tied weights.
  void forget_tied_grads() const;
  const std::vector<Tie>& ties() const { return ties_; }

  // Lets go of the layers that other ranks run, and empties them, so that nobody takes their values for trained ones.
  void keep_own(const IsOwn& is_own);

  int num_layers() const { return static_cast<int>(layers_.size()); }
  std::vector<std::string> layer_names() const;
  // Of all layers, wherever they are built.
  const WeightNames& weight_names() const { return weight_names_; }
  const ScopeTree& scopes() const { return scopes_; }
  // All of them; those that other ranks run are not built.
  const std::vector<ChainLayer>& layers() const { return layers_; }
  std::vector<ChainLayer> built_layers() const;
  const std::vector<StepListener*>& listeners() const { return listeners_; }

  // Switches the modules of parts between training and evaluation, where they have no module of their own in the face.
  void train_parts(bool on) const;
  // The module that its layers are children of.
  const torch::nn::Module& face() const { return face_; }
  bool is_training() const { return face_.is_training(); }
  // Copies of the buffers that a forward changes.
  BufferCopies snapshot_buffers();
  // After that forward: reduces the snapshot to those that have changed.
  void learn_buffers(BufferCopies& snapshot) { buffers_.learn(snapshot); }
  void put_back_buffers(const BufferCopies& snapshot) const { buffers_.put_back(snapshot); }

 private:
  void register_layers();

  torch::nn::Module& face_;
  const WeightNames weight_names_;
  const ScopeTree scopes_;
  std::vector<ChainLayer> layers_;
  std::vector<Tie> ties_;
  ModuleModes modes_{{}};
  ChangingBuffers buffers_{{}};
  std::vector<StepListener*> listeners_;  // among the layers' modules
};

// "[3, 4] of Float"
std::string describe_shape(const at::Tensor& tensor);

}  // namespace gpipe::detail
