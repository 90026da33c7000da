// What a pipeline agrees on with the other ranks before it does anything. See Note [One stage a process].
#include <fmt/format.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <algorithm>
#include <map>

#include "gpipe/error.h"
#include "gpipe/execute/gradient_reducer.h"
#include "gpipe/execute/pipeline.h"
#include "gpipe/execute/replicas.h"
#include "gpipe/transport/c10d/exchange.h"
#include "gpipe/transport/c10d/peers.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe {
namespace {

// Of two ranks that run the same stages.
void check_same_tensors(const Fingerprint& one, int rank, const Fingerprint& other, int other_rank) {
  const auto [a, b] = std::mismatch(one.begin(), one.end(), other.begin(), other.end());
  if (a == one.end() && b == other.end()) return;
  const auto text = [](auto at, auto end) {
    return at == end ? std::string("missing") : fmt::format("\"{}\" {}", at->first, at->second);
  };
  throw FingerprintError(
      fmt::format("the ranks have different models: {} on rank {}, but {} on rank {}; build the same on all",
                  text(a, one.end()), rank, text(b, other.end()), other_rank),
      a == one.end() ? b->first : a->first, other_rank);
}

}  // namespace

Fingerprint PipelineImpl::fingerprint(const LayerChain& chain) const {
  Fingerprint entries;
  const auto add = [&](const std::string& name, const auto& value) {
    entries.emplace_back(name, fmt::format("{}", value));
  };
  add("gpipe", GPIPE_VERSION);
  add("libtorch", TORCH_VERSION);
  // First what the program says in its own words. Of the options, only those are left out that a rank may have for
  // itself: devices, watchdog_seconds, on_stuck and peers.
  for (const std::string& text : options_.agreed_texts()) add(kAgreedText, text);
  add("num_stages", options_.num_stages());
  add("num_micro_batches", options_.num_micro_batches());
  add("schedule", options_.custom_schedule() ? to_csv(*options_.custom_schedule()) : options_.schedule());
  add("allow_noncanonical", options_.allow_noncanonical());
  add("chunks_per_worker", options_.chunks_per_worker());
  add("recompute", gpipe::name(options_.recompute()));
  for (const Recompute recompute : options_.recompute_by_stage()) add("recompute_by_stage", gpipe::name(recompute));
  for (const Rematerialization& stage : options_.rematerialization()) add("rematerialization", to_text(stage));
  add("optimizer_slots", options_.optimizer_slots());
  add("balance", fmt::format("{}", fmt::join(options_.balance(), ", ")));
  add("seed", options_.seed());
  add("threads_per_stage", options_.threads_per_stage());
  add("loss_reduction", options_.loss_reduction() == LossReduction::kMean ? "mean" : "sum");
  add("replicated_inputs", fmt::format("{}", fmt::join(options_.replicated_inputs(), ", ")));
  add("check_loss", options_.check_loss());
  add("measure_memory", options_.measure_memory());
  add("memory_limit_bytes", options_.memory_limit_bytes());
  for (int layer = 0; layer < chain.size(); ++layer) add(fmt::format("layer {}", layer), chain.name(layer));
  for (const TieNames& tie : chain.ties()) add("tie", fmt::format("{} = {}", tie.user, tie.owner));
  return entries;
}

StepCall PipelineImpl::make_call(const std::string& name) const {
  StepCall call;
  call.name = name;
  call.step = step_;
  call.training = is_training();
  call.grad_mode = at::GradMode::is_enabled();
  for (const auto& [key, pool] : pools_) {
    for (const auto& assembly : pool.idle) call.idle.push_back(assembly->number());
  }
  return call;
}

std::vector<StepCall> PipelineImpl::agree(StepCall call, const std::function<void(StepCall&)>& prepare,
                                          std::vector<detail::WireRecord>* given) {
  if (ranks_ == nullptr) {
    prepare(call);
    return {std::move(call)};
  }
  ranks_->peers().check();
  std::exception_ptr error;
  try {
    prepare(call);
  } catch (const std::exception& exception) {
    error = std::current_exception();
    call.refusal = exception.what();
    if (call.refusal.empty()) call.refusal = "an error without a text";
  }
  detail::WireRecord own = to_record(call);
  if (given != nullptr) own.append(given->front());
  std::vector<StepCall> of_rank;
  std::vector<detail::WireRecord> rests;
  for (const detail::WireRecord& record : ranks_->exchange().gather(own)) {
    of_rank.push_back(read_step_call(record, &rests.emplace_back()));
  }
  if (error != nullptr) std::rethrow_exception(error);
  std::vector<StepCall> agreed = gpipe::agree(of_rank, ranks_->num_replicas());
  if (given != nullptr) {
    *given = std::move(rests);
  } else {
    for (const detail::WireRecord& rest : rests) detail::WireReader(rest, "this is not a call of a rank").finish();
  }
  return agreed;
}

std::vector<ReducedParameter> PipelineImpl::reduced_parameters() const {
  std::map<const at::TensorImpl*, std::size_t> known;
  std::vector<ReducedParameter> parameters;
  for (const ChainLayer& layer : built_layers()) {
    for (const at::Tensor& parameter : layer.layer.module->parameters()) {
      if (!parameter.requires_grad()) continue;
      const auto [found, is_new] = known.try_emplace(parameter.unsafeGetTensorImpl(), parameters.size());
      if (is_new) {
        parameters.push_back({parameter, stage_of(layer.index), false});
      } else {
        parameters[found->second].is_late = true;  // its layers may be in several stages
      }
    }
  }
  for (const Tie& tie : ties_) {
    const auto found = known.find(tie.owner.weight.unsafeGetTensorImpl());
    if (found != known.end()) parameters[found->second].is_late = true;
  }
  return parameters;
}

void PipelineImpl::copy_first_replica() {
  if (reducer_ == nullptr) return;
  Tensors values;
  Fingerprint own;
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      values.push_back(item.value());
      own.emplace_back(item.key(), fmt::format("[{}] of {}", fmt::join(item.value().sizes(), ", "),
                                               c10::toString(item.value().scalar_type())));
    }
  };
  add(named_parameters());
  add(named_buffers());
  together([&] {
    Replicas& replicas = *ranks_->replicas();
    const std::vector<detail::WireRecord> of_replica = replicas.gather(to_record(own));
    for (int replica = 1; replica < replicas.size(); ++replica) {
      check_same_tensors(read_fingerprint(of_replica[0]), ranks_->rank_of_worker(ranks_->own_worker(), 0),
                         read_fingerprint(of_replica[replica]), ranks_->rank_of_worker(ranks_->own_worker(), replica));
    }
    replicas.copy_first(values);
  });
}

ReadyBatch PipelineImpl::ready(StepCall call, const Tensors& inputs, const Tensors* targets,
                               std::vector<MicroBatch>* target_batches) {
  const int count = options_.num_micro_batches();
  const std::vector<int>& replicated = options_.replicated_inputs();
  const bool given = std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) { return input.defined(); });
  ReadyBatch batch;
  const std::vector<StepCall> of_replica = agree(std::move(call), [&](StepCall& own) {
    if (runs_first()) batch.micro_batches = split_batch(inputs, count, replicated);
    if (targets != nullptr && runs_last()) *target_batches = split_batch(*targets, count, {}, "targets");
    own.input_rows = num_rows(inputs, replicated);
    if (targets != nullptr) own.target_rows = num_rows(*targets);
    if (ranks_ == nullptr && targets != nullptr && own.input_rows != own.target_rows) {
      throw InvalidArgument(
          fmt::format("the inputs have {} rows, but the targets have {}", own.input_rows, own.target_rows));
    }
    if (given || ranks_ == nullptr) {
      own.requires_grad.emplace();
      for (const at::Tensor& input : inputs) {
        own.requires_grad->push_back(own.needs_grad && input.defined() && input.requires_grad());
      }
    }
    if (ranks_ == nullptr || !runs_first()) return;
    const StepMode mode = targets != nullptr ? StepMode::kTogether
                          : own.needs_grad   ? StepMode::kApart
                                             : StepMode::kForwardOnly;
    const int num_micro_batches = static_cast<int>(batch.micro_batches.size());
    if (pools_.count({num_micro_batches, mode, is_training()}) != 0) return;
    make_schedule(num_micro_batches, mode);  // throws if there is none
  });
  const int replica = ranks_ == nullptr ? 0 : ranks_->own_replica();
  const StepCall& agreed = of_replica[replica];
  for (int other = 0; other < static_cast<int>(of_replica.size()); ++other) {
    const std::int64_t rows = of_replica[other].input_rows;
    batch.num_samples += rows;
    if (other >= replica) continue;
    batch.first_sample += rows;
    batch.first_micro_batch += static_cast<int>(std::min<std::int64_t>(rows, count));
  }
  if (!runs_first()) batch.micro_batches = split_rows(agreed.input_rows, count);
  if (targets != nullptr && !runs_last()) *target_batches = split_rows(agreed.input_rows, count);
  batch.requires_grad = agreed.requires_grad.value_or(std::vector<bool>());
  batch.needs_grad = agreed.needs_grad;
  batch.idle = agreed.idle;
  return batch;
}

}  // namespace gpipe
