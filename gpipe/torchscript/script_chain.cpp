#include "gpipe/torchscript/script_chain.h"

#include <memory>
#include <string>
#include <utility>

#include "gpipe/torchscript/layer_program.h"
#include "gpipe/torchscript/script_layer.h"
#include "gpipe/torchscript/script_layer_names.h"

namespace gpipe::detail {

LayerChain script_chain(const FlatGraph& flat, const GraphAliases& aliases, const std::vector<int>& cuts) {
  std::vector<LayerProgram> programs = make_programs(flat, aliases, cuts);
  const std::vector<std::string> names = script_layer_names(flat, cuts);
  LayerChain chain;
  for (std::size_t layer = 0; layer < programs.size(); ++layer) {
    programs[layer].name = names[layer];
    const auto program = std::make_shared<const LayerProgram>(std::move(programs[layer]));
    std::string flat_name = names[layer];
    for (char& c : flat_name) c = c == '.' ? '/' : c;
    chain.add(flat_name, std::make_shared<ScriptLayer>(program, flat.training));
  }
  return chain;
}

}  // namespace gpipe::detail
