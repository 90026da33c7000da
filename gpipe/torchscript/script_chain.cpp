#include "gpipe/torchscript/script_chain.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/torchscript/cut_rules.h"
#include "gpipe/torchscript/layer_choice.h"
#include "gpipe/torchscript/layer_program.h"
#include "gpipe/torchscript/operation_weights.h"
#include "gpipe/torchscript/script_layer.h"
#include "gpipe/torchscript/script_layer_names.h"

namespace gpipe::detail {

LayerChain script_chain(const FlatGraph& flat, const GraphAliases& aliases, const std::vector<int>& cuts,
                        std::int64_t most_shared_bytes) {
  std::vector<LayerProgram> programs = make_programs(flat, aliases, cuts, most_shared_bytes);
  const std::vector<std::string> names = script_layer_names(flat, cuts);
  const auto training = std::make_shared<const std::map<std::string, bool>>(flat.training);
  std::map<std::string, std::string> owners;  // layers, by the names of parameters
  LayerChain chain;
  for (std::size_t layer = 0; layer < programs.size(); ++layer) {
    programs[layer].name = names[layer];
    for (const AttributeSlot& slot : programs[layer].slots) {
      if (!slot.is_tied_user) owners[slot.name()] = names[layer];
      if (slot.is_tied_user) chain.tie({owners.at(slot.name()), slot.name()}, {names[layer], slot.name()});
    }
    const auto program = std::make_shared<const LayerProgram>(std::move(programs[layer]));
    const auto build = [program, training] { return std::make_shared<ScriptLayer>(program, *training); };
    chain.add_part(names[layer], names_of_weights(*build()), [build] { return make_layer(build()); });
  }
  return chain;
}

LayerChain script_chain(const FlatGraph& flat, const TorchScriptOptions& options) {
  if (options.min_layers() < 1) {
    throw InvalidArgument(fmt::format("min_layers is {}; it must be 1 or more", options.min_layers()));
  }
  if (options.most_shared_bytes() < 0) {
    throw InvalidArgument(fmt::format("most_shared_bytes is {}; it must be 0 or more", options.most_shared_bytes()));
  }
  const GraphAliases aliases(flat);
  const CutCosts costs = cut_costs(flat, find_cuts(flat, aliases));
  return script_chain(flat, aliases, choose_cuts(costs, options.min_layers()), options.most_shared_bytes());
}

}  // namespace gpipe::detail
