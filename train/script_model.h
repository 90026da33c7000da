// ScriptModel: the TorchScript file that --torchscript names, as the model of a task.
#pragma once

#include <string>
#include <vector>

#include "gpipe/gpipe.h"

namespace gpipe::train {

// What the file of a model that was trained from TorchScript calls the model.
constexpr const char* kScriptModel = "torchscript";

class ScriptModel {
 public:
  // Throws UsageError if there is no such file.
  explicit ScriptModel(std::string path);

  // See from_torchscript; `inputs` are the names of the mini-batch's tensors. Throws CheckpointError for a file that is
  // no TorchScript, UsageError for a module that cannot be cut or does not take them.
  LayerChain chain(const std::vector<std::string>& inputs = {}, bool deferred_batch_norm = false) const;

  // What ranks compare: the path may differ from host to host.
  std::string agreed_text() const;

 private:
  std::string path_;
};

// Of the file at `path`; nothing if that is empty.
std::vector<std::string> agreed_texts_of(const std::string& path);

}  // namespace gpipe::train
