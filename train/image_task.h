// Image classification: a labelled image set and a model that gives a score for each class.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/augment.h"
#include "data/image_set.h"
#include "train/task.h"

namespace gpipe::train {

struct ImageTaskOptions {
  std::string model = "amoebanet-d:3,24,2,1";
  std::string torchscript;             // instead of the model: a TorchScript file
  bool deferred_batch_norm = false;    // of that
  std::string data = "fashion-mnist";  // or "cifar10"
  std::string data_dir;                // empty: where gpipe get-data puts it
  std::int64_t batch_size = 64;
  std::int64_t num_training = 0;  // use only so many of the training images; 0: all
  bool augment = false;           // random crop and flip
  double label_smoothing = 0;
  std::uint64_t seed = 0;
};

// What a model is given of the set `data`: its pixels [N, C, H, W] from 0 to 1, less the mean of each channel, in units
// of its deviation.
at::Tensor normalized_images(const std::string& data, const at::Tensor& pixels);

// Both sets are read when it is made: throws DataError if one is missing or bad. With `only_test`, there are no
// batches.
class ImageTask : public Task {
 public:
  ImageTask(const ImageTaskOptions& options, bool only_test);

  LayerChain chain() const override;
  const char* unit() const override { return "samples"; }
  std::string data_hash() const override;
  std::string test_hash() const override;
  std::vector<std::string> agreed_texts() const override;
  PipelineImpl::Loss loss() const override;
  std::vector<Measure> evaluate(Pipeline& pipeline, bool is_last, const GoesOn& goes_on) override;
  std::map<std::string, std::string> metadata() const override;

 private:
  TensorBatch to_tensors(const data::Batch& batch) const override;
  ImageTaskOptions options_;
  data::ImageSet training_;
  data::ImageSet test_;
  data::AugmentOptions augment_;
};

}  // namespace gpipe::train
