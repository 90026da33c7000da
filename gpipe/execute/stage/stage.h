// Stage: consecutive layers run together. It takes and gives messages; what its layers do is the affair of StageLayers.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/execute/stage/earlier_gradients.h"
#include "gpipe/execute/stage/layer_range.h"
#include "gpipe/execute/stage/own_gradients.h"
#include "gpipe/execute/stage/stage_layers.h"
#include "gpipe/execute/stage/stage_parts.h"
#include "gpipe/execute/stage/step_settings.h"
#include "gpipe/model/micro_batch.h"
#include "gpipe/transport/packet.h"

namespace gpipe::detail {

// Confined to its worker during a step; the caller may touch it between steps.
class Stage {
 public:
  using Message = Packet;

  // Throws as RematerializedLayers does.
  explicit Stage(StageParts parts);

  // REQUIRES: `settings` outlives the step.
  void begin_step(const StepSettings& settings);
  // Lets go of everything held; also after a failed step. Gradients that are aside are put back.
  void end_step();
  // Of its device; null where there is none to compute on but the CPU.
  const std::shared_ptr<StageStream>& stream() const { return parts_.stream; }
  // Brings what the caller has given to its device. The caller may call it before a step's first action.
  void bring_given(Tensors& tensors) const;

  // See Executor.
  void forward(int micro_batch, std::vector<Packet> inputs, std::vector<Packet>& outputs);
  void recompute(int micro_batch);
  void backward(int micro_batch, std::vector<Packet> inputs, std::vector<Packet>& outputs);
  void input_grad(int micro_batch, std::vector<Packet> inputs, std::vector<Packet>& outputs);
  void weight_grad(int micro_batch);
  void give_tied(std::vector<Packet>& outputs);
  void take_tied(int source, Packet input);
  void settle();
  // Leaves the weights alone if the loss of the step has weights: then the gradients are not complete before its end.
  void update();

  int index() const { return parts_.index; }
  // See StageLayers.
  std::string where() const { return layers_.where(); }
  std::string failed_at() const { return layers_.failed_at(); }

  // Of the last stage, after its forward: the scaled loss (see StageLoss), or the outputs, detached, by micro-batch.
  const std::vector<Tensors>& results() const { return results_.outputs; }
  std::vector<Tensors> take_results() { return std::move(results_.outputs); }
  // Whether that result needs a gradient in any micro-batch.
  const std::vector<bool>& result_requires_grad() const { return results_.requires_grad; }
  // Of the last stage without a loss: the gradients of its outputs, set before the backward, by micro-batch.
  void set_output_grads(std::vector<Tensors> grads) { results_.output_grads = std::move(grads); }
  // Of the first stage, after its backward: the gradients of its inputs, by micro-batch.
  const std::vector<Tensors>& input_grads() const { return results_.input_grads; }
  // Those of before a step whose loss has weights, from its first backward until they are put together with those of
  // the step.
  EarlierGradients& earlier_gradients() { return earlier_gradients_; }
  // See StageLayers.
  const std::set<std::string>& unsplit_nodes() const { return layers_.unsplit_nodes(); }
  // The most it held of what other stages sent forward, since the step began; 0 unless its memory is measured.
  std::int64_t most_input_bytes() const { return most_input_bytes_; }

 private:
  // What is held of a micro-batch between its forward and its backward, or the two parts of that.
  struct Held {
    StageLayers::Graph graph;
    std::int64_t input_bytes = 0;  // of what is kept for the recompute, if memory is measured
    StageLayers::Deferred deferred;
  };
  // What the caller reads and writes between the workers' steps.
  struct Results {
    std::vector<Tensors> outputs;
    std::vector<bool> requires_grad;
    std::vector<Tensors> output_grads;
    std::vector<Tensors> input_grads;
  };

  bool is_first() const { return parts_.index == 0; }
  bool has_loss() const { return parts_.is_last && settings_->loss; }
  void receive(Packet& packet, int micro_batch) const;
  template <typename ReadyOn>
  void bring_here(Tensors& tensors, const ReadyOn& ready_on) const;
  Packet packet(int micro_batch, Tensors tensors) const;
  Crossing gather(int micro_batch, std::vector<Packet> inputs) const;
  // Whether the backward, with these messages, is of a loss with weights.
  bool loss_has_weights(const std::vector<Packet>& inputs) const;
  // Before the first action of a backward, or of its input gradient.
  void begin_backward(bool has_weights);
  // Before what adds the last gradients of a micro-batch: a backward or a weight gradient.
  void begin_last_part();
  // Of a backward or an input gradient: `run` turns the gradients of what left into those of what entered.
  template <typename Run>
  void run_backward(int micro_batch, std::vector<Packet> inputs, std::vector<Packet>& outputs, const Run& run);
  // The gradients of what left.
  Tensors gather_grads(int micro_batch, std::vector<Packet> inputs);
  void send(int micro_batch, const Crossing& exits, std::vector<Packet>& outputs);
  void send_grads(int micro_batch, Tensors entry_grads, std::vector<Packet>& outputs);
  void keep_result(int micro_batch, const Tensors& tensors, const std::vector<bool>& requires_grad);

  const StageParts parts_;
  StageLayers layers_;
  const StepSettings* settings_ = nullptr;
  std::vector<Held> held_;  // by micro-batch
  bool has_backward_begun_ = false;
  std::size_t num_last_parts_ = 0;
  EarlierGradients earlier_gradients_;
  OwnGradients own_gradients_;
  std::int64_t input_bytes_ = 0;
  std::int64_t most_input_bytes_ = 0;
  std::map<int, Tensors> tied_grads_;  // by the stage they came from
  Results results_;
};

}  // namespace gpipe::detail
