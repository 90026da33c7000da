#include "models/registry.h"

#include <fmt/format.h>

#include <charconv>

#include "models/amoebanet.h"
#include "models/checks.h"
#include "models/resnet.h"
#include "models/resnet_cifar.h"

namespace gpipe::models {
namespace {

using Sizes = std::vector<std::int64_t>;

// Beyond them a name is a slip of the finger; the first size is the number of layers, or goes with it.
constexpr std::int64_t kMaxDepth = 100'000;
constexpr std::int64_t kMaxSize = 1'000'000;

// One model: its name, how it is used, and how many sizes follow the name.
struct Entry {
  ModelName shown;
  std::string name;
  std::size_t min_sizes;
  std::size_t max_sizes;
  LayerChain (*make)(const Sizes& sizes, const ImageModelOptions& options);  // null unless it classifies images
};

LayerChain make_amoebanet(const Sizes& sizes, const ImageModelOptions& options) {
  AmoebaNetOptions amoebanet(sizes[0], sizes[1]);
  if (sizes.size() > 2) amoebanet.stem_stride(sizes[2]);
  if (sizes.size() > 3) amoebanet.stem_reductions(sizes[3]);
  return amoebanet_d(amoebanet.in_channels(options.in_channels())
                         .num_classes(options.num_classes())
                         .deferred_batch_norm(options.deferred_batch_norm()));
}

template <int depth>
LayerChain make_resnet(const Sizes& /*sizes*/, const ImageModelOptions& options) {
  return resnet(ResNetOptions(depth)
                    .in_channels(options.in_channels())
                    .num_classes(options.num_classes())
                    .deferred_batch_norm(options.deferred_batch_norm()));
}

LayerChain make_resnet_cifar(const Sizes& sizes, const ImageModelOptions& options) {
  return resnet_cifar(ResNetCifarOptions(sizes[0])
                          .in_channels(options.in_channels())
                          .num_classes(options.num_classes())
                          .deferred_batch_norm(options.deferred_batch_norm()));
}

// Under the name that public weights go by.
template <int depth>
LayerChain make_known_resnet_cifar(const Sizes& /*sizes*/, const ImageModelOptions& options) {
  return make_resnet_cifar({depth}, options);
}

const std::vector<Entry>& entries() {
  static const auto* all = new std::vector<Entry>{
      {{Task::kImage, "amoebanet-d:L,D[,STRIDE[,REDUCTIONS]]",
        "AmoebaNet-D of L normal cells and D filters; a stem of stride 2 and 2 reductions, or as given"},
       "amoebanet-d",
       2,
       4,
       make_amoebanet},
      {{Task::kImage, "resnet18", "ResNet-18 as for ImageNet"}, "resnet18", 0, 0, make_resnet<18>},
      {{Task::kImage, "resnet50", "ResNet-50"}, "resnet50", 0, 0, make_resnet<50>},
      {{Task::kImage, "resnet101", "ResNet-101"}, "resnet101", 0, 0, make_resnet<101>},
      {{Task::kImage, "resnet20", "the ResNet for 32 x 32 images, of depth 20"},
       "resnet20",
       0,
       0,
       make_known_resnet_cifar<20>},
      {{Task::kImage, "resnet32", "of depth 32"}, "resnet32", 0, 0, make_known_resnet_cifar<32>},
      {{Task::kImage, "resnet44", "of depth 44"}, "resnet44", 0, 0, make_known_resnet_cifar<44>},
      {{Task::kImage, "resnet56", "of depth 56"}, "resnet56", 0, 0, make_known_resnet_cifar<56>},
      {{Task::kImage, "resnet-cifar:DEPTH", "the ResNet for 32 x 32 images, of depth 8, 14, 20 and so on"},
       "resnet-cifar",
       1,
       1,
       make_resnet_cifar},
      {{Task::kLanguage, "transformer-lm:L,WIDTH,FFN,HEADS", "a Transformer language model of L blocks"},
       "transformer-lm",
       4,
       4,
       nullptr},
      {{Task::kTranslation, "t:L,H,A[,WIDTH]",
        "the Transformer T(L,H,A): L encoder and L decoder layers, feed-forward H, A heads, width 1024 or as given"},
       "t",
       3,
       4,
       nullptr},
  };
  return *all;
}

std::string usages(Task task) {
  std::string text;
  for (const Entry& entry : entries()) {
    if (entry.shown.task == task) text += (text.empty() ? "" : ", ") + entry.shown.usage;
  }
  return text;
}

const Entry& find(const std::string& name, Task task) {
  for (const Entry& entry : entries()) {
    if (entry.name == name && entry.shown.task == task) return entry;
  }
  throw InvalidArgument(fmt::format("there is no model \"{}\" for this task; there are {}", name, usages(task)));
}

std::int64_t parse_size(const std::string& text, const Entry& entry) {
  std::int64_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (error == std::errc() && end == text.data() + text.size() && size >= 0 && size <= kMaxSize) return size;
  throw InvalidArgument(fmt::format("\"{}\" is not a size from 0 to {}; write {}", text, kMaxSize, entry.shown.usage));
}

struct Parsed {
  const Entry& entry;
  Sizes sizes;
};

Parsed parse(const std::string& spec, Task task) {
  const std::size_t colon = spec.find(':');
  Parsed parsed{find(spec.substr(0, colon), task), {}};
  for (std::size_t begin = colon; begin != std::string::npos;) {
    const std::size_t end = spec.find(',', begin + 1);
    parsed.sizes.push_back(parse_size(spec.substr(begin + 1, end - begin - 1), parsed.entry));
    begin = end;
  }
  if (parsed.sizes.size() < parsed.entry.min_sizes || parsed.sizes.size() > parsed.entry.max_sizes) {
    throw InvalidArgument(
        fmt::format("\"{}\" has {} sizes; write {}", spec, parsed.sizes.size(), parsed.entry.shown.usage));
  }
  if (!parsed.sizes.empty()) check_at_most(fmt::format("the depth of \"{}\"", spec), parsed.sizes.front(), kMaxDepth);
  return parsed;
}

}  // namespace

const std::vector<ModelName>& model_names() {
  static const auto* names = [] {
    auto* all = new std::vector<ModelName>;
    for (const Entry& entry : entries()) all->push_back(entry.shown);
    return all;
  }();
  return *names;
}

Task task_of(const std::string& spec) {
  const std::string name = spec.substr(0, spec.find(':'));
  std::string all;
  for (const Entry& entry : entries()) {
    if (entry.name == name) return entry.shown.task;
    all += (all.empty() ? "" : ", ") + entry.shown.usage;
  }
  throw InvalidArgument(fmt::format("there is no model \"{}\"; there are {}", name, all));
}

LayerChain make_image_model(const std::string& spec, const ImageModelOptions& options) {
  const Parsed parsed = parse(spec, Task::kImage);
  return parsed.entry.make(parsed.sizes, options);
}

TransformerLmOptions language_model_options(const std::string& spec, std::int64_t vocabulary_size) {
  const Sizes sizes = parse(spec, Task::kLanguage).sizes;
  return TransformerLmOptions(vocabulary_size, sizes[0])
      .width(sizes[1])
      .feed_forward_width(sizes[2])
      .num_heads(sizes[3]);
}

TranslationTransformerOptions translation_model_options(const std::string& spec, std::int64_t vocabulary_size) {
  const Sizes sizes = parse(spec, Task::kTranslation).sizes;
  TranslationTransformerOptions options(sizes[0], sizes[1], sizes[2]);
  if (sizes.size() > 3) options.width(sizes[3]);
  return options.vocabulary_size(vocabulary_size);
}

}  // namespace gpipe::models
