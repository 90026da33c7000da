#include "tests/zoo/network.h"

#include <torch/csrc/jit/serialization/import.h>
#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "gpipe/checkpoint/safetensors.h"
#include "gpipe/torchscript/from_torchscript.h"

namespace gpipe::zoo {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

at::Tensor tensor_named(const Safetensors& content, const std::string& name) {
  for (const auto& [key, tensor] : content.tensors) {
    if (key == name) return tensor.clone();  // from the file's pages
  }
  throw std::runtime_error("there is no tensor " + name);
}

std::string entry(const Safetensors& content, const std::string& key) {
  const auto found = content.metadata.find(key);
  if (found == content.metadata.end()) throw std::runtime_error("the inputs do not say their " + key);
  return found->second;
}

Tensors first_rows(Tensors tensors, std::int64_t rows) {
  for (at::Tensor& tensor : tensors) tensor = tensor.narrow(0, 0, rows);
  return tensors;
}

// What one argument of forward is made of.
class Argument {
 public:
  Argument(const std::vector<std::string>& names, const Tensors& tensors) : names_(names), tensors_(tensors) {}

  c10::IValue make(const std::string& name, const c10::TypePtr& type) const {
    if (type->kind() == c10::TypeKind::TupleType) return make_tuple(name, *type);
    if (type->kind() == c10::TypeKind::ListType) return make_list(name);
    if (type->kind() == c10::TypeKind::DictType) return make_dictionary(name);
    return tensors_[position(name)];
  }
  bool is_given(const std::string& name) const {
    return std::any_of(names_.begin(), names_.end(), [&](const std::string& each) {
      return each == name || each.compare(0, name.size() + 1, name + ".") == 0;
    });
  }

 private:
  std::size_t position(const std::string& name) const {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end()) throw std::runtime_error("there is no input " + name);
    return found - names_.begin();
  }
  c10::IValue make_tuple(const std::string& name, const c10::Type& type) const {
    std::vector<c10::IValue> elements;
    for (const c10::TypePtr& element : type.containedTypes()) {
      elements.push_back(make(name + "." + std::to_string(elements.size()), element));
    }
    return c10::ivalue::Tuple::create(std::move(elements));
  }
  c10::IValue make_list(const std::string& name) const {
    c10::List<at::Tensor> list;
    while (is_given(name + "." + std::to_string(list.size()))) {
      list.push_back(tensors_[position(name + "." + std::to_string(list.size()))]);
    }
    return list;
  }
  c10::IValue make_dictionary(const std::string& name) const {
    c10::Dict<std::string, at::Tensor> dictionary;
    for (std::size_t index = 0; index < names_.size(); ++index) {
      if (names_[index].compare(0, name.size() + 1, name + ".") != 0) continue;
      dictionary.insert(names_[index].substr(name.size() + 1), tensors_[index]);
    }
    return dictionary;
  }

  const std::vector<std::string>& names_;
  const Tensors& tensors_;
};

// Undefined if the output does not fit the classes.
at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& classes) {
  namespace F = torch::nn::functional;
  const bool fits = output.dim() == classes.dim() + 1 && output.sizes().slice(0, classes.dim()) == classes.sizes();
  return fits ? F::cross_entropy(output.flatten(0, -2), classes.flatten()) : at::Tensor();
}

}  // namespace

Tensors Network::first_inputs(std::int64_t rows) const { return first_rows(inputs, rows); }
Tensors Network::first_targets(std::int64_t rows) const { return first_rows(targets, rows); }

torch::jit::Module Network::load() const {
  torch::jit::Module module = torch::jit::load(file);
  module.train();
  return module;
}

LayerChain Network::cut() const { return from_torchscript(file, TorchScriptOptions().inputs(input_names)); }

Network read_network(const std::string& folder, const std::string& name) {
  const std::string path = folder + "/" + name;
  const Safetensors inputs = load_safetensors(path + ".inputs.safetensors");
  Network network;
  network.name = name;
  network.title = entry(inputs, "title");
  network.file = path + ".pt";
  network.exported = entry(inputs, "exported");
  network.input_names = split(entry(inputs, "inputs"), ',');
  for (const std::string& input : network.input_names) network.inputs.push_back(tensor_named(inputs, input));
  network.targets = {tensor_named(load_safetensors(path + ".targets.safetensors"), "target")};
  return network;
}

std::vector<std::string> read_names(const std::string& folder) {
  std::ifstream file(folder + "/models.txt");
  if (!file) throw std::runtime_error("there is no " + folder + "/models.txt; tests/zoo/export_zoo.py writes it");
  std::vector<std::string> names;
  for (std::string name; std::getline(file, name);) names.push_back(name);
  return names;
}

std::vector<c10::IValue> arguments_of(const torch::jit::Module& module, const std::vector<std::string>& names,
                                      const Tensors& tensors) {
  const Argument argument(names, tensors);
  std::vector<c10::IValue> values;
  const auto schema = module.get_method("forward").function().getSchema();
  for (const c10::Argument& each : schema.arguments()) {
    if (each.name() != "self" && argument.is_given(each.name()))
      values.push_back(argument.make(each.name(), each.type()));
  }
  return values;
}

Tensors flatten(const c10::IValue& output) {
  if (output.isNone()) return {at::Tensor()};
  if (output.isTensor()) return {output.toTensor()};
  Tensors tensors;
  const auto add = [&](const c10::IValue& element) {
    const Tensors inner = flatten(element);
    tensors.insert(tensors.end(), inner.begin(), inner.end());
  };
  if (output.isTuple()) {
    for (const c10::IValue& element : output.toTupleRef().elements()) add(element);
  } else if (output.isList()) {
    for (const c10::IValue& element : output.toListRef()) add(element);
  } else {
    for (const auto& pair : output.toGenericDict()) add(pair.value());
  }
  return tensors;
}

LossValue loss(const Tensors& outputs, const Tensors& targets) {
  const at::Tensor& target = targets.front();
  at::Tensor sum;
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.is_floating_point()) continue;
    at::Tensor part;
    if (target.is_floating_point()) {
      part = !sum.defined() ? at::mse_loss(output, target) : output.pow(2).mean();
    } else {
      part = cross_entropy(output, target);
      if (!part.defined()) part = output.pow(2).mean();
    }
    sum = sum.defined() ? sum + part : part;
  }
  if (!sum.defined()) throw std::runtime_error("the network has no output that a loss can be computed of");
  return sum;
}

}  // namespace gpipe::zoo
