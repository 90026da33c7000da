// The state of libtorch's learning rate schedulers and samplers, as parts of a TrainingState.
#pragma once

#include <torch/data/samplers/base.h>
#include <torch/data/samplers/distributed.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/serialize/archive.h>

#include <functional>
#include <string>

#include "gpipe/checkpoint/checkpoint.h"

namespace gpipe {

// Puts how often the scheduler was stepped into state.learning_rate, before save_checkpoint. The rate itself is the
// optimizer's, which is saved with it.
void save_scheduler(TrainingState& state, const torch::optim::LRScheduler& scheduler);

// After load_checkpoint, with what that has returned: the scheduler goes on as the one that was saved. It is made as at
// the beginning of the training, before load_checkpoint, so that a scheduler that computes from the rates it began with
// has those. Throws InvalidArgument if the state holds no scheduler, or one of another type; nothing has changed then.
// Adds to state.warnings if the optimizer's learning rates are not those of the save.
void load_scheduler(TrainingState& state, torch::optim::LRScheduler& scheduler);

namespace detail {

// Throws InvalidArgument if there are several: each has another place in the data, and a checkpoint has one.
void check_num_replicas(std::size_t num_replicas);
void add_sampler(TrainingState& state, const std::string& name, torch::serialize::OutputArchive& archive);
void restore_sampler(const TrainingState& state, const std::string& name,
                     const std::function<void(torch::serialize::InputArchive&)>& load);

// Opens what a distributed sampler keeps for classes that are derived from it.
template <typename BatchRequest>
struct OpenSampler : torch::data::samplers::DistributedSampler<BatchRequest> {
  using Distributed = torch::data::samplers::DistributedSampler<BatchRequest>;
  static std::size_t num_replicas(const Distributed& sampler) { return sampler.*(&OpenSampler::num_replicas_); }
};

}  // namespace detail

// Puts into state.added, before save_checkpoint, which samples the sampler has given and in which order the others
// come, and the state of torch's default generator, which the next epoch's order is drawn from. So the training may be
// saved in the middle of an epoch or between two. `name` tells several samplers apart. Throws InvalidArgument for a
// sampler that keeps something else than tensors, and for one of several replicas: there, let all of them draw the same
// batches, and take replica_share of each.
//
// A sampler that was given to a torch::data::DataLoader is no longer at hand, and ahead of the batches that were used:
// take the batches of indices from the sampler, and read the samples by them.
template <typename BatchRequest>
void save_sampler(TrainingState& state, const torch::data::samplers::Sampler<BatchRequest>& sampler,
                  const std::string& name = "train") {
  using Open = detail::OpenSampler<BatchRequest>;
  if (const auto* shared = dynamic_cast<const typename Open::Distributed*>(&sampler)) {
    detail::check_num_replicas(Open::num_replicas(*shared));
  }
  torch::serialize::OutputArchive archive;
  sampler.save(archive);
  detail::add_sampler(state, name, archive);
}

// After load_checkpoint, with what that has returned: the sampler and torch's default generator go on as those that
// were saved. Call it after everything else that draws random numbers, such as making a model. Throws InvalidArgument
// if the state holds no sampler of that name, or not what the sampler needs.
template <typename BatchRequest>
void load_sampler(const TrainingState& state, torch::data::samplers::Sampler<BatchRequest>& sampler,
                  const std::string& name = "train") {
  detail::restore_sampler(state, name, [&](torch::serialize::InputArchive& archive) { sampler.load(archive); });
}

}  // namespace gpipe
