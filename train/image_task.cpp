#include "train/image_task.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>

#include "data/cifar10.h"
#include "data/data_dir.h"
#include "models/registry.h"
#include "train/script_model.h"

namespace gpipe::train {
namespace {

struct KnownSet {
  const char* name;
  data::ImageSet (*read)(const std::string& dir, data::Split split);
  std::vector<float> mean;  // of a channel's pixels, from 0 to 1
  std::vector<float> deviation;
};

// Those of CIFAR-10 are ImageNet's: what its public weights were trained with.
const std::vector<KnownSet>& known_sets() {
  static const auto* sets =
      new std::vector<KnownSet>{{"fashion-mnist", data::read_fashion_mnist, {0.2860F}, {0.3530F}},
                                {"cifar10", data::read_cifar10, {0.485F, 0.456F, 0.406F}, {0.229F, 0.224F, 0.225F}}};
  return *sets;
}

const KnownSet& known_set(const std::string& name) {
  for (const KnownSet& set : known_sets()) {
    if (set.name == name) return set;
  }
  throw InvalidArgument(fmt::format("there is no image set \"{}\"; there are fashion-mnist and cifar10", name));
}

// One value a channel, for images [N, C, H, W].
at::Tensor by_channel(const std::vector<float>& values) { return at::tensor(values).view({-1, 1, 1}); }

std::string hash_of_images(const data::ImageSet& set) {
  ContentHash hash;
  hash.add(set.pixels.data(), set.pixels.size());
  hash.add(set.labels.data(), set.labels.size());
  return hash.finish();
}

at::Tensor tensor_of(std::vector<std::uint8_t>& bytes) {
  return at::from_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size())}, at::kByte);
}

}  // namespace

at::Tensor normalized_images(const std::string& data, const at::Tensor& pixels) {
  const KnownSet& set = known_set(data);
  return pixels.to(at::kFloat).div_(255).sub_(by_channel(set.mean)).div_(by_channel(set.deviation));
}

ImageTask::ImageTask(const ImageTaskOptions& options, bool only_test) : options_(options) {
  const KnownSet& set = known_set(options_.data);
  const std::string dir = options_.data_dir.empty() ? data::find_data_set(options_.data) : options_.data_dir;
  test_ = set.read(dir, data::Split::kTest);
  if (only_test) return;
  training_ = set.read(dir, data::Split::kTrain);
  std::int64_t num_training = training_.num;
  if (options_.num_training != 0) num_training = std::min(num_training, options_.num_training);
  augment_.seed = options_.seed;
  augment_.padding = training_.height / 8;
  data::BatchOptions batching;
  batching.seed = options_.seed;
  batching.drop_last = num_training >= options_.batch_size;
  batches_.emplace(num_training, options_.batch_size, batching);
}

LayerChain ImageTask::chain() const {
  if (!options_.torchscript.empty()) return ScriptModel(options_.torchscript).chain({}, options_.deferred_batch_norm);
  return models::make_image_model(
      options_.model, models::ImageModelOptions().in_channels(test_.channels).num_classes(test_.num_classes));
}

std::string ImageTask::data_hash() const { return hash_of_images(training_); }

std::string ImageTask::test_hash() const { return hash_of_images(test_); }

std::vector<std::string> ImageTask::agreed_texts() const { return agreed_texts_of(options_.torchscript); }

TensorBatch ImageTask::to_tensors(const data::Batch& batch) const {
  const auto count = static_cast<std::int64_t>(batch.samples.size());
  at::Tensor pixels = at::empty({count, training_.channels, training_.height, training_.width}, at::kByte);
  at::Tensor labels = at::empty({count}, at::kLong);
  auto* pixel = pixels.data_ptr<std::uint8_t>();
  auto* label = labels.data_ptr<std::int64_t>();
  for (const std::int64_t sample : batch.samples) {
    if (options_.augment) {
      const data::Augmentation drawn = data::draw_augmentation(augment_, batch.position.epoch, sample);
      data::augment_image(training_, sample, drawn, augment_.padding, pixel);
    } else {
      std::memcpy(pixel, training_.pixels.data() + sample * training_.image_bytes(), training_.image_bytes());
    }
    pixel += training_.image_bytes();
    *label++ = training_.labels[sample];
  }
  return {{normalized_images(options_.data, pixels)}, {labels}, count, {}, {}};
}

PipelineImpl::Loss ImageTask::loss() const {
  return [smoothing = options_.label_smoothing](const Tensors& outputs, const Tensors& targets) {
    const auto options = torch::nn::functional::CrossEntropyFuncOptions().label_smoothing(smoothing);
    return torch::nn::functional::cross_entropy(outputs.front().to(at::kFloat), targets.front(), options);
  };
}

std::vector<Measure> ImageTask::evaluate(Pipeline& pipeline, bool /*is_last*/, const GoesOn& goes_on) {
  const at::Tensor pixels = tensor_of(test_.pixels).view({test_.num, test_.channels, test_.height, test_.width});
  const at::Tensor labels = tensor_of(test_.labels).to(at::kLong);
  std::int64_t num_right = 0;
  double loss = 0;
  for (std::int64_t begin = 0; begin < test_.num; begin += options_.batch_size) {
    if (!goes_on({"evaluate", unit(), begin, test_.num})) return {};
    const std::int64_t end = std::min(begin + options_.batch_size, test_.num);
    const at::Tensor scores =
        pipeline->forward(normalized_images(options_.data, pixels.slice(0, begin, end))).to(at::kFloat);
    const at::Tensor wanted = labels.slice(0, begin, end);
    num_right += scores.argmax(1).eq(wanted).sum().item<std::int64_t>();
    loss += at::cross_entropy_loss(scores, wanted, {}, at::Reduction::Sum).item<double>();
  }
  const auto count = static_cast<double>(test_.num);
  const double accuracy = static_cast<double>(num_right) / count;
  return {{"test_accuracy", accuracy, fmt::format("{:.2f} % of {} images", 100 * accuracy, test_.num)},
          {"test_loss", loss / count, fmt::format("{:.4f}", loss / count)}};
}

std::map<std::string, std::string> ImageTask::metadata() const {
  const std::string model = options_.torchscript.empty() ? options_.model : kScriptModel;
  return {{"gpipe.task", "image"}, {"gpipe.model", model}, {"gpipe.data", options_.data}};
}

}  // namespace gpipe::train
