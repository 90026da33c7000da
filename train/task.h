// Task: what is trained on what. The loop in trainer.h knows nothing else about it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/batches.h"
#include "data/split.h"
#include "gpipe/gpipe.h"
#include "train/progress.h"

namespace gpipe::train {

// A mini-batch as tensors.
struct TensorBatch {
  Tensors inputs;
  Tensors targets;
  std::int64_t num_items = 0;  // samples or tokens that the loss is a mean over, for the speed
  data::Position position;
  data::Position next;  // of the batch after it
};

// A number that an evaluation found, in the order of the report.
struct Measure {
  std::string name;  // "accuracy"
  double value = 0;
  std::string text;  // "91.2 %"
};

// What an evaluation tells between batches: how far it is. False, on all ranks alike, ends it without a result.
using GoesOn = std::function<bool(const Evaluated&)>;

// next_batch is confined to one thread, which may be another than that of the rest.
class Task {
 public:
  Task() = default;
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  virtual LayerChain chain() const = 0;
  virtual const char* unit() const = 0;  // of the items: "samples", "tokens"

  virtual std::string data_hash() const = 0;  // of what it is trained on
  virtual std::string test_hash() const = 0;  // of what it is evaluated on
  // What else has to be alike on all ranks, as texts that begin with the option: the content of other files.
  virtual std::vector<std::string> agreed_texts() const { return {}; }

  // REQUIRES: it was made to be trained, not only tested.
  std::int64_t num_batches() const { return batches_->num_batches(); }  // of an epoch
  TensorBatch next_batch();
  // The next one will be that of the position. Throws InvalidArgument if an epoch has no such batch.
  void seek(const data::Position& position) { batches_->seek(position); }

  // A mean over the items of the mini-batch.
  virtual PipelineImpl::Loss loss() const = 0;

  // The last evaluation of a run may take longer. Returns nothing if it was stopped. REQUIRES: the pipeline is in
  // evaluation, without gradients.
  virtual std::vector<Measure> evaluate(Pipeline& pipeline, bool is_last, const GoesOn& goes_on) = 0;

  // What another command needs to use the weights: goes into their file.
  virtual std::map<std::string, std::string> metadata() const = 0;
  virtual NamedTensors added_tensors() const { return {}; }

 protected:
  std::optional<data::Batches> batches_;  // nothing in a task that is only tested

 private:
  // Without the positions.
  virtual TensorBatch to_tensors(const data::Batch& batch) const = 0;
};

inline TensorBatch Task::next_batch() {
  const data::Batch batch = batches_->next();
  TensorBatch tensors = to_tensors(batch);
  tensors.position = batch.position;
  tensors.next = batch.next;
  return tensors;
}

}  // namespace gpipe::train
