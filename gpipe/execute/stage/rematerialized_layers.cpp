#include "gpipe/execute/stage/rematerialized_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/plan/checked_rematerialization.h"

namespace gpipe::detail {
namespace {

// What is under way between two pieces: the tensors that go from layer to layer, and what is stashed until it is
// popped.
class UnderWay {
 public:
  // `names` are those of the stashed ones.
  void put(const std::vector<std::string>& names, Crossing crossing) {
    for (std::size_t index = 0; index < names.size(); ++index) {
      const std::size_t position = crossing.num_direct + index;
      stashed_[names[index]] = {std::move(crossing.tensors[position]), crossing.requires_grad[position],
                                crossing.versions[index]};
    }
    crossing.tensors.resize(crossing.num_direct);
    crossing.requires_grad.resize(crossing.num_direct);
    crossing.versions.clear();
    direct_ = std::move(crossing);
  }

  Crossing take(const std::vector<std::string>& names) {
    Crossing crossing = std::move(direct_);
    for (const std::string& name : names) {
      Item item = std::move(stashed_.at(name));
      stashed_.erase(name);
      crossing.tensors.push_back(std::move(item.tensor));
      crossing.requires_grad.push_back(item.requires_grad);
      crossing.versions.push_back(item.version);
    }
    return crossing;
  }

 private:
  struct Item {
    at::Tensor tensor;
    bool requires_grad = false;
    std::int64_t version = 0;
  };
  Crossing direct_;
  std::map<std::string, Item> stashed_;
};

// The gradients of the same on their way back.
class GradsUnderWay {
 public:
  void put(const std::vector<std::string>& names, Tensors grads) {
    const std::size_t num_direct = grads.size() - names.size();
    for (std::size_t index = 0; index < names.size(); ++index) {
      stashed_[names[index]] = std::move(grads[num_direct + index]);
    }
    grads.resize(num_direct);
    direct_ = std::move(grads);
  }

  Tensors take(const std::vector<std::string>& names) {
    Tensors grads = std::move(direct_);
    for (const std::string& name : names) grads.push_back(std::exchange(stashed_[name], {}));
    return grads;
  }

 private:
  Tensors direct_;
  std::map<std::string, at::Tensor> stashed_;
};

std::string name_of(const std::vector<ChainLayer>& layers) {
  if (layers.size() == 1) return fmt::format("layer {}", layers.front().index);
  return fmt::format("layers {}-{}", layers.front().index, layers.back().index);
}

}  // namespace

struct RematerializedLayers::Part {
  LayerRange range;
  // Of one that is dropped; null: it has a graph.
  std::unique_ptr<DroppedLayers> dropped;
  std::vector<Part> one_by_one;  // its layers, as the first forward runs them
  std::vector<Part> again;       // as the second does
};

// Makes parts of runs.
class RematerializedLayers::Cutter {
 public:
  Cutter(const std::vector<ChainLayer>& layers, const std::vector<SkipProfile>& skips)
      : layers_(layers), skips_(skips) {}

  std::vector<Part> cut(const LayerRange& around, const std::vector<RematerializedRun>& runs) const {
    std::vector<Part> parts;
    int next = around.begin;
    for (const RematerializedRun& run : runs) {
      if (next < run.begin) parts.push_back(with_graph(next, run.begin));
      parts.push_back(dropped(run));
      next = run.end;
    }
    if (next < around.end || around.with_loss) parts.push_back(with_graph(next, around.end));
    parts.back().range.with_loss = around.with_loss;
    return parts;
  }

 private:
  LayerRange range(int begin, int end) const {
    LayerRange result;
    result.begin = begin;
    result.end = end;
    for (const SkipProfile& skip : skips_) {
      const int from = skip.from - layers_.front().index;
      const int to = skip.to - layers_.front().index;
      if (from < begin && begin <= to && to < end) result.skips_in.push_back(skip.name);
      if (begin <= from && from < end && end <= to) result.skips_out.push_back(skip.name);
    }
    return result;
  }

  Part with_graph(int begin, int end) const {
    Part part;
    part.range = range(begin, end);
    return part;
  }

  Part dropped(const RematerializedRun& run) const {
    Part part = with_graph(run.begin, run.end);
    std::vector<ChainLayer> layers(layers_.begin() + run.begin, layers_.begin() + run.end);
    const std::string name = name_of(layers);
    part.dropped = std::make_unique<DroppedLayers>(name, std::move(layers), DroppedLayers::HandedOn::kCopy);
    for (int layer = run.begin; layer < run.end; ++layer) part.one_by_one.push_back(with_graph(layer, layer + 1));
    part.again = cut(part.range, run.nested);
    return part;
  }

  const std::vector<ChainLayer>& layers_;
  const std::vector<SkipProfile>& skips_;
};

bool share_a_parameter(const std::vector<ChainLayer>& layers) {
  std::map<const void*, int> layer_of;
  for (const ChainLayer& layer : layers) {
    for (const at::Tensor& parameter : layer.layer.module->parameters()) {
      if (layer_of.try_emplace(parameter.unsafeGetTensorImpl(), layer.index).first->second != layer.index) return true;
    }
  }
  return false;
}

RematerializedLayers::RematerializedLayers(const std::vector<ChainLayer>& layers, const std::vector<SkipProfile>& skips,
                                           const LayerRange& whole, const Rematerialization& rematerialization)
    : whole_(whole) {
  check_rematerialization(rematerialization, static_cast<int>(layers.size()));
  if (share_a_parameter(layers)) {
    throw InvalidArgument(
        fmt::format("two of the {} share a parameter, whose gradients would be added up in another order with a "
                    "rematerialization; leave it out, or give each layer a parameter and tie them",
                    name_of(layers)));
  }
  parts_ = Cutter(layers, skips).cut(whole_, rematerialization);
}

RematerializedLayers::~RematerializedLayers() = default;

void RematerializedLayers::forget() { forget(parts_); }

void RematerializedLayers::forget(std::vector<Part>& parts) {
  for (Part& part : parts) {
    if (part.dropped == nullptr) continue;
    part.dropped->forget();
    forget(part.again);
  }
}

Crossing RematerializedLayers::forward(Crossing entries, bool recomputing, const Run& run, RangeGraphs* graphs) {
  return run_parts(parts_, whole_, std::move(entries), recomputing, run, graphs);
}

Tensors RematerializedLayers::backward(RangeGraphs graphs, Tensors grads, const Run& run,
                                       const RunBackward& run_backward) {
  return backward_parts(parts_, whole_, std::move(graphs), std::move(grads), run, run_backward);
}

Crossing RematerializedLayers::run_parts(std::vector<Part>& parts, const LayerRange& around, Crossing entries,
                                         bool recomputing, const Run& run, RangeGraphs* graphs) {
  UnderWay under_way;
  under_way.put(around.skips_in, std::move(entries));
  for (Part& part : parts) {
    RangeGraph* const of_part = graphs != nullptr ? &graphs->emplace_back() : nullptr;
    Crossing entering = under_way.take(part.range.skips_in);
    under_way.put(part.range.skips_out, run_part(part, std::move(entering), recomputing, run, of_part));
  }
  return under_way.take(around.skips_out);
}

Crossing RematerializedLayers::run_part(Part& part, Crossing entries, bool recomputing, const Run& run,
                                        RangeGraph* graph) {
  if (part.dropped != nullptr) {
    const auto one_by_one = [&](Crossing entering) {
      return run_parts(part.one_by_one, part.range, std::move(entering), recomputing, run, nullptr);
    };
    return graph == nullptr ? one_by_one(std::move(entries))
                            : part.dropped->forward(std::move(entries), one_by_one, graph->dropped);
  }
  std::shared_ptr<Boundary> boundary = Boundary::enter(entries.tensors, entries.requires_grad);
  Crossing leaving = run(part.range, std::move(entries), recomputing);
  if (graph != nullptr) {
    graph->graph = {std::move(boundary), Roots(leaving.tensors)};
  }
  leaving.tensors = detached(leaving.tensors);
  return leaving;
}

Tensors RematerializedLayers::backward_parts(std::vector<Part>& parts, const LayerRange& around, RangeGraphs graphs,
                                             Tensors grads, const Run& run, const RunBackward& run_backward) {
  GradsUnderWay under_way;
  under_way.put(around.skips_out, std::move(grads));
  for (std::size_t index = parts.size(); index-- > 0;) {
    Part& part = parts[index];
    Tensors leaving = under_way.take(part.range.skips_out);
    under_way.put(part.range.skips_in,
                  backward_part(part, std::move(graphs[index]), std::move(leaving), run, run_backward));
  }
  return under_way.take(around.skips_in);
}

Tensors RematerializedLayers::backward_part(Part& part, RangeGraph graph, Tensors grads, const Run& run,
                                            const RunBackward& run_backward) {
  if (part.dropped == nullptr) return run_backward(std::move(graph.graph), std::move(grads));
  const bool is_needed = std::any_of(grads.begin(), grads.end(), [](const at::Tensor& grad) { return grad.defined(); });
  if (!is_needed) return Tensors(graph.dropped.entries.tensors.size());
  RangeGraphs again;
  part.dropped->again(std::move(graph.dropped), [&](Crossing entering) {
    return run_parts(part.again, part.range, std::move(entering), /*recomputing=*/true, run, &again);
  });
  return backward_parts(part.again, part.range, std::move(again), std::move(grads), run, run_backward);
}

}  // namespace gpipe::detail
