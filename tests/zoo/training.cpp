#include "tests/zoo/training.h"

#include <torch/optim/sgd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "gpipe/checkpoint/weights.h"
#include "gpipe/hash/content_hash.h"
#include "tests/execute/plain_chain.h"
#include "tests/model/same_bits.h"

namespace gpipe::zoo {
namespace {

constexpr double kLearningRate = 0.01;
constexpr std::uint64_t kSeed = 7;
constexpr const char* kGradient = "gradient of ";
constexpr const char* kUnchanged = "unchanged buffer ";

// What can be trained: something with parameters and buffers, and a step that adds to the parameters' gradients.
struct Trainee {
  NamedTensors parameters;
  NamedTensors buffers;
  std::function<at::Tensor()> train_step;  // gives the loss
};

// What stands for a tensor in a record: a copy of a small one, and the hash of a large one, since a network has some
// hundred million values and is trained in thirty ways.
at::Tensor recorded(const at::Tensor& tensor) {
  constexpr std::int64_t kMostCopied = 4096;
  if (!tensor.defined()) return tensor;
  const at::Tensor values = test::readable(tensor);
  if (values.numel() <= kMostCopied) return values.clone();
  const std::string hash = content_hash_of({static_cast<const char*>(values.data_ptr()), values.nbytes()});
  at::Tensor digits = at::empty({static_cast<std::int64_t>(hash.size())}, at::kByte);
  std::copy(hash.begin(), hash.end(), digits.data_ptr<std::uint8_t>());
  return digits;
}

template <typename Ordered>
NamedTensors pairs_of(const Ordered& named) {
  NamedTensors pairs;
  for (const auto& item : named) pairs.emplace_back(item.key(), item.value());
  return pairs;
}

void add_gradients(Record& record, const Trainee& trainee, int step) {
  for (const auto& [name, parameter] : trainee.parameters) {
    const at::Tensor& gradient = parameter.grad();
    record.emplace_back(kGradient + name + " in step " + std::to_string(step + 1), recorded(gradient));
  }
}

Record train(const Trainee& trainee, int num_steps) {
  Record record;
  NamedTensors first_buffers;
  for (const auto& [name, buffer] : trainee.buffers) first_buffers.emplace_back(name, buffer.clone());
  Tensors distinct;
  std::set<const c10::TensorImpl*> seen;
  for (const auto& [name, parameter] : trainee.parameters) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) distinct.push_back(parameter);
  }
  torch::optim::SGD optimizer(distinct, torch::optim::SGDOptions(kLearningRate));
  for (int step = 0; step < num_steps; ++step) {
    optimizer.zero_grad();
    torch::manual_seed(kSeed + step);
    record.emplace_back("loss of step " + std::to_string(step + 1), recorded(trainee.train_step()));
    if (step == 0 || step == num_steps - 1) add_gradients(record, trainee, step);
    optimizer.step();
  }
  for (const auto& [name, parameter] : trainee.parameters) {
    record.emplace_back("parameter " + name, recorded(parameter));
  }
  for (std::size_t index = 0; index < trainee.buffers.size(); ++index) {
    const auto& [name, buffer] = trainee.buffers[index];
    const char* what = test::same_bits(buffer, first_buffers[index].second) ? kUnchanged : "buffer ";
    record.emplace_back(what + name, recorded(buffer));
  }
  return record;
}

// Adds up the gradients of the micro-batches, as PlainChain does.
template <typename Forward>
at::Tensor accumulate(const Network& network, const Lengths& lengths, const Forward& forward) {
  at::Tensor sum;
  const auto inputs = split_batch(network.first_inputs(lengths.rows), lengths.num_micro_batches);
  const auto targets = split_batch(network.first_targets(lengths.rows), lengths.num_micro_batches);
  for (std::size_t index = 0; index < inputs.size(); ++index) {
    const double share = static_cast<double>(inputs[index].num_samples) / static_cast<double>(lengths.rows);
    const at::Tensor value = loss(forward(inputs[index].tensors), targets[index].tensors).loss * share;
    value.backward();
    sum = sum.defined() ? sum + value.detach() : value.detach();
  }
  return sum;
}

bool begins_with(const std::string& text, const std::string& begin) {
  return text.compare(0, begin.size(), begin) == 0;
}

// The value of that name; null if there is none.
const at::Tensor* find(const std::map<std::string, at::Tensor>& record, const std::string& name) {
  const auto found = record.find(name);
  return found == record.end() ? nullptr : &found->second;
}

// Under whatever name.
bool has_value(const Record& record, const at::Tensor& value) {
  return std::any_of(record.begin(), record.end(),
                     [&](const auto& entry) { return test::same_bits(entry.second, value); });
}

std::map<std::string, at::Tensor> by_name(const Record& record) { return {record.begin(), record.end()}; }

}  // namespace

Record train_whole(const Network& network, const Lengths& lengths) {
  torch::jit::Module module = network.load();
  Trainee trainee;
  for (const auto& parameter : module.named_parameters())
    trainee.parameters.emplace_back(parameter.name, parameter.value);
  for (const auto& buffer : module.named_buffers()) trainee.buffers.emplace_back(buffer.name, buffer.value);
  trainee.train_step = [&] {
    return accumulate(network, lengths, [&](const Tensors& inputs) {
      return flatten(module.forward(arguments_of(module, network.input_names, inputs)));
    });
  };
  return train(trainee, lengths.num_steps);
}

Record train_layers(const Network& network, const LayerChain& chain, const Lengths& lengths) {
  std::vector<Layer> layers;
  Trainee trainee;
  for (int layer = 0; layer < chain.size(); ++layer) layers.push_back(chain.build(layer, /*seed=*/0));
  const std::vector<detail::Tie> ties = detail::bind_ties(chain, layers);
  for (const Layer& layer : layers) {
    for (const auto& pair : pairs_of(layer.module->named_parameters())) trainee.parameters.push_back(pair);
    for (const auto& pair : pairs_of(layer.module->named_buffers())) trainee.buffers.push_back(pair);
  }
  trainee.train_step = [&] {
    const at::Tensor sum = accumulate(network, lengths, [&](Tensors tensors) {
      for (const Layer& layer : layers) tensors = layer.forward(std::move(tensors));
      return tensors;
    });
    for (const detail::Tie& tie : ties) {
      at::Tensor& gradient = tie.owner.weight.mutable_grad();
      for (const detail::Tie::Use& user : tie.users) {
        if (!user.weight.grad().defined()) continue;
        gradient = gradient.defined() ? gradient + user.weight.grad() : user.weight.grad();
      }
      detail::forget_user_grads(tie);
    }
    return sum;
  };
  return train(trainee, lengths.num_steps);
}

Record train_plainly(const LayerChain& chain, const Network& network, const Lengths& lengths) {
  test::PlainChain plain(chain, PipelineOptions(1).num_micro_batches(lengths.num_micro_batches).seed(kSeed));
  Trainee trainee{pairs_of(plain.model().named_parameters()), pairs_of(plain.model().named_buffers()), {}};
  trainee.train_step = [&] {
    return plain.train_step(network.first_inputs(lengths.rows), network.first_targets(lengths.rows), loss);
  };
  return train(trainee, lengths.num_steps);
}

Record train_pipeline(const LayerChain& chain, const Network& network, const Lengths& lengths,
                      PipelineOptions options) {
  Pipeline pipeline(chain, options.num_micro_batches(lengths.num_micro_batches).seed(kSeed));
  Trainee trainee{pairs_of(pipeline->named_parameters()), pairs_of(pipeline->named_buffers()), {}};
  trainee.train_step = [&] {
    return pipeline->train_step(network.first_inputs(lengths.rows), network.first_targets(lengths.rows), loss).loss;
  };
  return train(trainee, lengths.num_steps);
}

void save_trained(const LayerChain& chain, const Network& network, const Lengths& lengths, const std::string& folder) {
  Pipeline pipeline(chain, PipelineOptions(2).num_micro_batches(lengths.num_micro_batches).seed(kSeed));
  torch::optim::SGD optimizer(pipeline->parameters(), torch::optim::SGDOptions(kLearningRate));
  for (int step = 0; step < lengths.num_steps; ++step) {
    optimizer.zero_grad();
    pipeline->train_step(network.first_inputs(lengths.rows), network.first_targets(lengths.rows), loss);
    optimizer.step();
  }
  save_weights(folder + "/" + network.name + ".weights.safetensors", *pipeline);
  pipeline->eval();
  const torch::NoGradGuard no_grad;
  const Tensors outputs = pipeline->forward_tensors(network.first_inputs(lengths.rows));
  save_safetensors(folder + "/" + network.name + ".outputs.safetensors", {{{"output", outputs.front()}}, {}});
}

std::string difference(const Record& got, const Record& expected) {
  const auto values = by_name(got);
  for (const auto& [name, value] : expected) {
    const at::Tensor* other = find(values, name);
    if (other == nullptr) return name + ": it is not there";
    const auto same = test::same_bits(*other, value);
    if (!same) return name + ": " + same.message();
  }
  return got.size() == expected.size() ? "" : "it has more parameters or buffers than expected";
}

std::string difference_to_whole(const Record& layers, const Record& whole) {
  const auto expected = by_name(whole);
  for (const auto& [name, value] : layers) {
    const at::Tensor* other = find(expected, name);
    if (other == nullptr) return name + ": the whole module does not have it";
    const auto same = test::same_bits(value, *other);
    if (!same) return name + ": " + same.message();
  }
  const auto values = by_name(layers);
  for (const auto& [name, value] : whole) {
    if (find(values, name) != nullptr || begins_with(name, kUnchanged) || begins_with(name, "parameter ")) continue;
    const bool is_there = begins_with(name, kGradient) && (!value.defined() || has_value(layers, value));
    if (!is_there) return name + ": no layer has it";
  }
  return "";
}

}  // namespace gpipe::zoo
