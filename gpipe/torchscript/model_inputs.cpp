#include "gpipe/torchscript/model_inputs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <map>
#include <set>

#include "gpipe/error.h"

namespace gpipe::detail {
namespace {

using c10::TypePtr;
using torch::jit::Graph;
using torch::jit::Value;

class InputPass {
 public:
  InputPass(Graph& graph, const c10::FunctionSchema& schema, const std::vector<std::string>& names)
      : graph_(graph), schema_(schema), is_given_(!names.empty()), names_(names) {
    for (const std::string& name : names) {
      if (!is_new_.insert(name).second) throw InvalidArgument(fmt::format("the input \"{}\" is named twice", name));
      tensors_[name] = add_tensor();
    }
  }

  std::vector<std::string> run(std::size_t num_arguments) {
    for (std::size_t index = 0; index < num_arguments; ++index) {
      const c10::Argument& argument = schema_.arguments()[index + 1];
      Value* const made = make_argument(argument);
      graph_.inputs()[index + 1]->replaceAllUsesWith(made);
    }
    for (std::size_t index = num_arguments; index > 0; --index) graph_.eraseInput(index);
    if (!is_new_.empty() && is_given_) {
      throw InvalidArgument(
          fmt::format("the module's forward has no tensor \"{}\"; it is {}", *is_new_.begin(), signature()));
    }
    return names_;
  }

 private:
  Value* make_argument(const c10::Argument& argument) {
    if (argument.default_value() && !is_meant(argument.name())) return constant(*argument.default_value(), argument);
    if (argument.type()->kind() == c10::TypeKind::OptionalType && !is_meant(argument.name())) {
      return constant({}, argument);
    }
    return make(argument.name(), argument.type());
  }

  // Whether a name that was given is the argument's or within it.
  bool is_meant(const std::string& name) const {
    return std::any_of(is_new_.begin(), is_new_.end(), [&](const std::string& given) {
      return given == name || given.compare(0, name.size() + 1, name + ".") == 0;
    });
  }

  Value* constant(const c10::IValue& value, const c10::Argument& argument) {
    const auto inserted = torch::jit::tryInsertConstant(graph_, value);
    if (!inserted) {
      throw InvalidArgument(fmt::format("the default of \"{}\" cannot be kept; {}", argument.name(), kWrap));
    }
    return *inserted;
  }

  Value* add_tensor() {
    Value* const input = graph_.addInput();
    input->setType(c10::TensorType::get());
    return input;
  }

  Value* tensor(const std::string& name) {
    if (!is_given_) {
      names_.push_back(name);
      return add_tensor();
    }
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      throw InvalidArgument(fmt::format("the module's forward needs \"{}\", which is not among the inputs {}; it is {}",
                                        name, fmt::join(names_, ", "), signature()));
    }
    is_new_.erase(name);
    return found->second;
  }

  Value* make(const std::string& name, const TypePtr& type) {
    switch (type->kind()) {
      case c10::TypeKind::TensorType:
        return tensor(name);
      case c10::TypeKind::OptionalType:
        return make(name, type->expectRef<c10::OptionalType>().getElementType());
      case c10::TypeKind::TupleType:
        return make_tuple(name, type->expect<c10::TupleType>());
      case c10::TypeKind::ListType:
        return make_list(name, type->expectRef<c10::ListType>().getElementType());
      case c10::TypeKind::DictType:
        return make_dict(name, type->expectRef<c10::DictType>());
      default:
        throw InvalidArgument(fmt::format("\"{}\" of the module's forward is {}, no tensor, and has no default; {}",
                                          name, type->repr_str(), kWrap));
    }
  }

  Value* make_tuple(const std::string& name, const c10::TupleTypePtr& type) {
    std::vector<Value*> elements;
    for (std::size_t index = 0; index < type->elements().size(); ++index) {
      elements.push_back(make(fmt::format("{}.{}", name, index), type->elements()[index]));
    }
    return graph_.insertNode(graph_.createTuple(elements, type->schema() ? type : nullptr))->output();
  }

  Value* make_list(const std::string& name, const TypePtr& element) {
    std::vector<Value*> elements;
    while (is_meant(fmt::format("{}.{}", name, elements.size()))) {
      elements.push_back(make(fmt::format("{}.{}", name, elements.size()), element));
    }
    if (elements.empty()) refuse_unnamed(name, "a list", name + ".0");
    return graph_.insertNode(graph_.createList(element, elements))->output();
  }

  Value* make_dict(const std::string& name, const c10::DictType& type) {
    std::vector<Value*> keys;
    std::vector<Value*> values;
    for (const std::string& given : names_) {
      if (given.compare(0, name.size() + 1, name + ".") != 0 || !is_given_) continue;
      keys.push_back(graph_.insertConstant(given.substr(name.size() + 1)));
      values.push_back(make(given, type.getValueType()));
    }
    if (keys.empty() || type.getKeyType()->kind() != c10::TypeKind::StringType) {
      refuse_unnamed(name, "a dictionary", name + ".key");
    }
    return graph_.insertNode(graph_.createDict(type.getKeyType(), type.getValueType(), keys, values))->output();
  }

  [[noreturn]] static void refuse_unnamed(const std::string& name, const char* kind, const std::string& example) {
    throw InvalidArgument(
        fmt::format("\"{}\" of the module's forward is {}: name its tensors, in the order in which the mini-batch has "
                    "them, in TorchScriptOptions::inputs, as \"{}\"",
                    name, kind, example));
  }

  std::string signature() const {
    std::string text;
    for (std::size_t index = 1; index < schema_.arguments().size(); ++index) {
      const c10::Argument& argument = schema_.arguments()[index];
      text += fmt::format("{}{}: {}", index == 1 ? "" : ", ", argument.name(), argument.type()->repr_str());
    }
    return "forward(" + text + ")";
  }

  static constexpr const char* kWrap = "write a module around it whose forward takes tensors only";

  Graph& graph_;
  const c10::FunctionSchema& schema_;
  const bool is_given_;
  std::vector<std::string> names_;
  std::map<std::string, Value*> tensors_;
  std::set<std::string> is_new_;  // of the names that were given, those that nothing has taken yet
};

}  // namespace

std::vector<std::string> take_tensors(const std::shared_ptr<Graph>& graph, const c10::FunctionSchema& schema,
                                      const std::vector<std::string>& names) {
  const std::size_t num_arguments = graph->inputs().size() - 1;
  const torch::jit::WithInsertPoint at_start(*graph->nodes().begin());
  return InputPass(*graph, schema, names).run(num_arguments);
}

}  // namespace gpipe::detail
