// Every model on Meta tensors, layer by layer: the shapes, bytes and FLOPs of the same run on the CPU, without its
// memory.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/model/skip_store.h"
#include "models/registry.h"
#include "models/unet.h"

namespace gpipe::test {
namespace {

using namespace gpipe::models;  // NOLINT(google-build-using-namespace)

struct Figures {
  std::string outputs;  // types and shapes
  std::int64_t forward_flops = 0;
  std::int64_t backward_flops = 0;
  std::int64_t forward_product_flops = 0;
  std::int64_t backward_product_flops = 0;
  std::int64_t saved_bytes = 0;  // live after the forward
  std::int64_t forward_peak_bytes = 0;
  std::int64_t backward_peak_bytes = 0;
  std::int64_t gradient_bytes = 0;  // live after the backward
  std::int64_t output_bytes = 0;
  std::int64_t num_channels = 0;  // of all samples of the first output
};

constexpr std::int64_t kNoBound = std::numeric_limits<std::int64_t>::max();

// What a layer pops does not lead back to where it was stashed.
class CutStore : public detail::SkipStore {
 public:
  void put(const std::string& name, detail::Stashed stashed) override {
    if (stashed.tensor.requires_grad()) put_now.push_back(stashed.tensor);
    stashed_[name] = stashed.tensor.detach();
  }

  detail::Stashed take(const std::string& name) override {
    const at::Tensor taken = stashed_.at(name).clone().requires_grad_(at::isFloatingType(stashed_[name].scalar_type()));
    stashed_.erase(name);
    return {taken, static_cast<std::int64_t>(taken._version())};
  }

  Tensors put_now;  // by the layer at work

 private:
  std::map<std::string, at::Tensor> stashed_;
};

at::Tensor as_input(const at::Tensor& tensor) {
  const at::Tensor cut = tensor.detach().clone();
  // A clone again, because a layer may change its input in place.
  return cut.is_floating_point() ? cut.requires_grad_().clone() : cut;
}

std::string describe(const Tensors& tensors) {
  std::string text;
  for (const at::Tensor& tensor : tensors) {
    text += fmt::format("{}[{}]({}) ", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ","),
                        fmt::join(tensor.strides(), ","));
  }
  return text;
}

// One layer forward and backward; its outputs.
Tensors run_layer(const Layer& layer, int index, const Tensors& inputs, CutStore& store, Figures& figures) {
  Tensors cut;
  for (const at::Tensor& input : inputs) cut.push_back(as_input(input));
  store.put_now.clear();
  LayerRun run;
  run.layer = index;
  const LayerScope layer_scope(run);
  const auto account = std::make_shared<MemoryAccount>("layer");
  const MemoryScope memory_scope(account);
  FlopCounter counter;
  Tensors outputs = layer.forward(std::move(cut));
  figures.outputs = describe(outputs);
  for (const at::Tensor& output : outputs) figures.output_bytes += static_cast<std::int64_t>(output.nbytes());
  figures.num_channels = outputs.front().size(0) * outputs.front().size(1);
  figures.forward_flops = counter.flops();
  figures.forward_product_flops = counter.product_flops();
  figures.saved_bytes = account->live_bytes();
  figures.forward_peak_bytes = account->peak_bytes();

  counter.reset();
  account->reset_peak();
  Tensors roots = store.put_now;
  std::copy_if(outputs.begin(), outputs.end(), std::back_inserter(roots),
               [](const at::Tensor& output) { return output.requires_grad(); });
  Tensors grads;
  for (const at::Tensor& root : roots) grads.push_back(at::ones_like(root));
  torch::autograd::backward(roots, grads);
  figures.backward_flops = counter.flops();
  figures.backward_product_flops = counter.product_flops();
  figures.backward_peak_bytes = account->peak_bytes();
  figures.gradient_bytes = account->live_bytes();
  return outputs;
}

std::vector<Figures> run_chain(const LayerChain& chain, Tensors tensors, bool on_meta) {
  if (on_meta) {
    for (at::Tensor& tensor : tensors) tensor = tensor.to(at::kMeta);
  }
  CutStore store;
  const detail::SkipScope skips(store);
  std::vector<Figures> all(chain.size());
  for (int layer = 0; layer < chain.size(); ++layer) {
    const Layer built = on_meta ? build_on_meta(chain, layer) : chain.build(layer, 0);
    tensors = run_layer(built, layer, tensors, store, all[layer]);
  }
  return all;
}

struct Case {
  std::string name;
  std::function<LayerChain()> make;
  std::function<Tensors()> inputs;
};

void PrintTo(const Case& test, std::ostream* stream) { *stream << test.name; }

at::Tensor ids(std::int64_t length) { return torch::randint(13, {3, length}, torch::kLong); }

Case image_case(const std::string& name, const std::string& spec, std::int64_t size, bool deferred = true) {
  return {name,
          [=] { return make_image_model(spec, ImageModelOptions().num_classes(5).deferred_batch_norm(deferred)); },
          [=] {
            return Tensors{torch::randn({3, 3, size, size})};
          }};
}

std::vector<Case> cases() {
  return {
      image_case("amoebanet", "amoebanet-d:3,32", 64),
      image_case("resnet18", "resnet18", 64),
      image_case("resnet50", "resnet50", 33),
      image_case("resnet_cifar", "resnet-cifar:20", 32),
      image_case("resnet_cifar_with_plain_batch_norm", "resnet-cifar:20", 32, false),
      {"unet", [] { return unet(UNetOptions(2, 2, 8)); },
       [] {
         return Tensors{torch::randn({2, 3, 32, 32})};
       }},
      {"transformer_lm", [] { return transformer_lm(language_model_options("transformer-lm:2,32,64,4", 13)); },
       [] { return Tensors{ids(16)}; }},
      {"translation", [] { return translation_transformer(translation_model_options("t:2,64,4,32", 13)); },
       [] {
         return Tensors{ids(16), ids(12)};
       }},
  };
}

// Note [Scratch memory]
// ~~~~~~~~~~~~~~~~~~~~~
// A CPU kernel allocates more than it returns, and frees it at once. A Meta kernel does not, so a peak may be lower:
//
//   convolution           weights, images and gradients in the layout of oneDNN, as it likes: no bound
//   batch norm, instance  forward 8 bytes a channel (of all samples for the latter), backward a copy of the image
//   upsampling            forward, of libtorch 2: copies of the small image and of the large one
//   all others            less than 2 KiB: sums by thread, indices, scalars
struct Scratch {
  std::int64_t forward_bytes = 2048;
  std::int64_t backward_bytes = 2048;
};

template <typename... Modules>
bool contains(const torch::nn::Module& module) {
  for (const auto& part : module.modules()) {
    if (((dynamic_cast<const Modules*>(part.get()) != nullptr) || ...)) return true;
  }
  return false;
}

Scratch most_scratch(const std::string& layer, const torch::nn::Module& module, const Figures& figures) {
  if (contains<torch::nn::Conv2dImpl>(module)) return {kNoBound, kNoBound};
  if (contains<torch::nn::BatchNorm2dImpl, torch::nn::InstanceNorm2dImpl, nn::DeferredBatchNorm2dImpl>(module)) {
    return {figures.num_channels * 8, figures.output_bytes + 2048};
  }
  if (layer.find(".upsample") != std::string::npos) return {figures.output_bytes * 5 / 4 + 2048, 2048};
  return {};
}

class OnPaper : public ::testing::TestWithParam<Case> {};

TEST_P(OnPaper, EveryLayerHasTheFiguresOfTheCpu) {
  const LayerChain chain = GetParam().make();
  const Tensors inputs = GetParam().inputs();
  const std::vector<Figures> all_on_cpu = run_chain(chain, inputs, /*on_meta=*/false);
  const std::vector<Figures> all_on_meta = run_chain(chain, inputs, /*on_meta=*/true);
  for (int layer = 0; layer < chain.size(); ++layer) {
    SCOPED_TRACE(chain.name(layer));
    const Figures& on_cpu = all_on_cpu[layer];
    const Figures& on_meta = all_on_meta[layer];
    EXPECT_EQ(on_meta.outputs, on_cpu.outputs);
    EXPECT_EQ(on_meta.forward_flops, on_cpu.forward_flops);
    EXPECT_EQ(on_meta.backward_flops, on_cpu.backward_flops);
    EXPECT_EQ(on_meta.saved_bytes, on_cpu.saved_bytes);
    EXPECT_EQ(on_meta.gradient_bytes, on_cpu.gradient_bytes);
    // See Note [Scratch memory].
    const Scratch most = most_scratch(chain.name(layer), *build_on_meta(chain, layer).module, on_meta);
    EXPECT_LE(on_meta.forward_peak_bytes, on_cpu.forward_peak_bytes);
    EXPECT_LE(on_cpu.forward_peak_bytes - on_meta.forward_peak_bytes, most.forward_bytes);
    EXPECT_LE(on_meta.backward_peak_bytes, on_cpu.backward_peak_bytes);
    EXPECT_LE(on_cpu.backward_peak_bytes - on_meta.backward_peak_bytes, most.backward_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, OnPaper, ::testing::ValuesIn(cases()),
                         [](const auto& param_info) { return param_info.param.name; });

// A block of the language model: exact in everything, with and without what may be left out of it.
TEST(OnPaperTest, ATransformerBlockHasThePeaksOfTheCpuToTheByte) {
  for (const bool plain : {true, false}) {
    const LayerChain chain =
        transformer_lm(language_model_options("transformer-lm:1,32,64,4", 13).bias(!plain).norm_parameters(!plain));
    const Figures on_cpu = run_chain(chain, {ids(16)}, /*on_meta=*/false)[1];
    const Figures on_meta = run_chain(chain, {ids(16)}, /*on_meta=*/true)[1];
    EXPECT_EQ(on_meta.forward_peak_bytes, on_cpu.forward_peak_bytes);
    EXPECT_EQ(on_meta.backward_peak_bytes, on_cpu.backward_peak_bytes);
  }
}

// The models of the paper, layer by layer.
class PaperRun {
 public:
  explicit PaperRun(const LayerChain& chain) : chain_(chain) {}

  Figures run(int layer, Tensors& tensors) {
    Figures figures;
    const detail::SkipScope skips(store_);
    tensors = run_layer(build_on_meta(chain_, layer), layer, tensors, store_, figures);
    return figures;
  }

 private:
  const LayerChain& chain_;
  CutStore store_;
};

std::int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * std::int64_t{1024};
}

template <typename Function>
double seconds(const Function& function) {
  const auto start = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(OnPaperTest, ABlockOfThePaperSTransformerFollowsTheFormulaAndTakesNoMemory) {
  constexpr std::int64_t T = 1024;
  constexpr std::int64_t d = 2048;
  constexpr std::int64_t f = 8192;
  const LayerChain chain = transformer_lm(language_model_options("transformer-lm:1,2048,8192,32", 32000));
  const Tensors sentence = {torch::empty({1, T, d}, torch::kMeta)};
  PaperRun paper(chain);
  Tensors warm_up = sentence;
  paper.run(1, warm_up);
  const std::int64_t resident_before = peak_resident_bytes();
  Tensors tensors = sentence;
  Figures figures;
  const double run_seconds = seconds([&] { figures = paper.run(1, tensors); });
  const std::int64_t forward = 2 * T * (4 * d * d + 2 * d * f) + 2 * (2 * T * T * d);
  EXPECT_EQ(figures.forward_product_flops, forward);
  EXPECT_EQ(figures.backward_product_flops, 2 * forward);
  EXPECT_LT(figures.forward_flops, forward * 1.01);
  EXPECT_GT(figures.saved_bytes, std::int64_t{32} * T * T * 4);  // of the attention's weights
  EXPECT_LT(peak_resident_bytes() - resident_before, 16 << 20);
  RecordProperty("microseconds", static_cast<int>(run_seconds * 1e6));
}

TEST(OnPaperTest, AConvolutionFollowsTheFormula) {
  LayerChain chain;
  chain.add<torch::nn::Conv2d>("conv", torch::nn::Conv2dOptions(64, 128, 3).stride(2).padding(1).groups(2).bias(false));
  Tensors tensors = {torch::empty({4, 64, 56, 56}, torch::kMeta)};
  const Figures figures = PaperRun(chain).run(0, tensors);
  const std::int64_t forward = 2 * (4 * 128 * 28 * 28) * (32 * 3 * 3);
  EXPECT_EQ(figures.forward_flops, forward);
  EXPECT_EQ(figures.backward_product_flops, 2 * forward);
}

TEST(OnPaperTest, TheLargestAmoebaNetOfThePaperRunsWithoutMemory) {
  const LayerChain chain = make_image_model("amoebanet-d:72,512", ImageModelOptions().num_classes(1000));
  Tensors tensors = {torch::empty({1, 3, 224, 224}, torch::kMeta)};
  PaperRun paper(chain);
  paper.run(0, tensors);
  const std::int64_t resident_before = peak_resident_bytes();
  std::int64_t saved_bytes = 0;
  std::int64_t flops = 0;
  const double run_seconds = seconds([&] {
    for (int layer = 1; layer < chain.size(); ++layer) {
      const Figures figures = paper.run(layer, tensors);
      saved_bytes += figures.saved_bytes;
      flops += figures.forward_flops;
    }
  });
  EXPECT_EQ(tensors.front().sizes(), at::IntArrayRef({1, 1000}));
  EXPECT_GT(saved_bytes, std::int64_t{1} << 30);
  EXPECT_GT(flops, 1e11);
  EXPECT_LT(peak_resident_bytes() - resident_before, 64 << 20);
  RecordProperty("milliseconds_a_cell", static_cast<int>(run_seconds * 1e3 / chain.size()));
}

}  // namespace
}  // namespace gpipe::test
