// --torchscript from end to end: models that these tests write as Python would, trained, measured and read back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/checkpoint/safetensors.h"
#include "run_command.h"
#include "tests/model/same_bits.h"
#include "tests/train/image_files.h"

namespace gpipe::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// x -> block -> dropout -> block -> scores of 3 classes; `mask`, if it is given, is multiplied with the first features.
torch::jit::Module classifier() {
  torch::manual_seed(4);
  const auto block = [](int inputs, int outputs) {
    torch::jit::Module module("Block");
    module.register_parameter("weight", torch::randn({outputs, inputs}) * 0.3, /*is_buffer=*/false);
    module.register_parameter("bias", torch::zeros({outputs}), /*is_buffer=*/false);
    module.define(R"(
      def forward(self, x):
          return torch.tanh(torch.linear(x, self.weight, self.bias))
    )");
    return module;
  };
  torch::jit::Module module("Classifier");
  module.register_attribute("training", c10::BoolType::get(), true);
  module.register_module("first", block(6, 12));
  module.register_module("second", block(12, 12));
  module.register_module("third", block(12, 12));
  module.register_module("head", block(12, 3));
  return module;
}

torch::jit::Module one_input() {
  torch::jit::Module module = classifier();
  module.define(R"(
    def forward(self, x):
        x = self.second.forward(self.first.forward(x))
        x = torch.dropout(x, 0.25, self.training)
        return self.head.forward(self.third.forward(x))
  )");
  return module;
}

torch::jit::Module two_inputs() {
  torch::jit::Module module = classifier();
  module.define(R"(
    def forward(self, x, mask):
        x = self.second.forward(self.first.forward(x)) * mask
        return self.head.forward(self.third.forward(x))
  )");
  return module;
}

class TorchScript : public ::testing::Test {
 protected:
  TorchScript() {
    one_input().save(model_);
    torch::manual_seed(1);
    const at::Tensor x = torch::randn({40, 6});
    const at::Tensor classes = x.slice(1, 0, 3).argmax(1);
    save("in", {{"anything", x}});
    save("classes", {{"target", classes}});
    save("numbers", {{"target", x.slice(1, 0, 3).contiguous()}});
    save("both", {{"mask", torch::ones({40, 12})}, {"x", x}});
    save("fewer", {{"target", classes.slice(0, 0, 39).contiguous()}});
  }

  std::string file(const std::string& name) const { return folder_.path(name + ".safetensors"); }
  void save(const std::string& name, const NamedTensors& tensors) const { save_safetensors(file(name), {tensors, {}}); }

  // What is not in `more` is that of a training which goes well.
  Arguments command(const Arguments& more) const {
    Arguments command = {"train", "tensors"};
    for (const auto& [option, value] :
         std::vector<std::pair<std::string, std::string>>{{"--torchscript", model_},
                                                          {"--inputs", file("in")},
                                                          {"--targets", file("classes")},
                                                          {"--test-inputs", file("in")},
                                                          {"--test-targets", file("classes")},
                                                          {"--batch-size", "16"},
                                                          {"--micro-batches", "4"},
                                                          {"--steps", "4"}}) {
      if (std::find(more.begin(), more.end(), option) == more.end()) command.insert(command.end(), {option, value});
    }
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }
  Outcome train(const Arguments& more) const { return run_gpipe(command(more)); }

  // Exit code 2, and one line.
  void expect_refusal(const Arguments& arguments, const ::testing::Matcher<std::string>& message) const {
    const Outcome outcome = run_gpipe(arguments);
    EXPECT_NE(outcome.exit_code, 0) << outcome.out;
    EXPECT_THAT(outcome.err, message);
    EXPECT_LE(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 2) << outcome.err;
  }

  const TemporaryFolder folder_;
  const std::string model_ = folder_.path("model.pt");
};

TEST_F(TorchScript, TrainsToTheSameBytesOnAnyNumberOfStagesAndProcesses) {
  for (const char* stages : {"1", "2", "3"}) {
    const Outcome outcome = train({"--stages", stages, "--save", file(stages)});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("test_accuracy"));
    EXPECT_EQ(read_file(file(stages)), read_file(file("1"))) << stages;
  }
  Arguments launch = {"launch", "-n", "2", "--", GPIPE_COMMAND};
  const Arguments trained = command({"--save", file("processes")});
  launch.insert(launch.end(), trained.begin(), trained.end());
  const Outcome processes = run_gpipe(launch);
  ASSERT_EQ(processes.exit_code, 0) << processes.out << processes.err;
  EXPECT_EQ(read_file(file("processes")), read_file(file("1")));
}

TEST_F(TorchScript, WeightsGoBackUnderTheNamesOfTheModule) {
  ASSERT_EQ(train({"--stages", "2", "--save", file("trained")}).exit_code, 0);
  const Safetensors trained = load_safetensors(file("trained"));
  std::set<std::string> names;
  for (const auto& item : trained.tensors) names.insert(item.first);
  std::set<std::string> expected;
  torch::jit::Module module = torch::jit::load(model_);
  for (const auto& item : module.named_parameters()) expected.insert(item.name);
  EXPECT_EQ(names, expected);
  EXPECT_EQ(names.count("third.weight"), 1U);
  EXPECT_EQ(trained.metadata.at("gpipe.task"), "tensors");
}

TEST_F(TorchScript, ATrainingGoesOnFromItsCheckpointOnAnotherNumberOfStages) {
  const Arguments checkpoints = {"--lr-schedule", "constant", "--checkpoint-dir", folder_.path("checkpoints"),
                                 "--warmup",      "0"};
  const auto with = [&](const Arguments& more) {
    Arguments all = checkpoints;
    all.insert(all.end(), more.begin(), more.end());
    return train(all);
  };
  ASSERT_EQ(
      train({"--stages", "1", "--lr-schedule", "constant", "--warmup", "0", "--save", file("straight")}).exit_code, 0);
  ASSERT_EQ(with({"--stages", "1", "--steps", "2"}).exit_code, 0);
  const Outcome resumed = with({"--stages", "3", "--steps", "4", "--resume", "--save", file("resumed")});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("after step 2"));
  EXPECT_EQ(read_file(file("resumed")), read_file(file("straight")));
}

TEST_F(TorchScript, EvalReadsTheWeightsAndSaysWhatTheTrainingSaid) {
  const Outcome trained = train({"--stages", "2", "--save", file("trained")});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const Arguments eval = {"eval",     "--weights", file("trained"), "--torchscript", model_,
                          "--inputs", file("in"),  "--targets",     file("classes")};
  const Outcome one = run_gpipe(eval);
  ASSERT_EQ(one.exit_code, 0) << one.err;
  EXPECT_THAT(one.out, AllOf(HasSubstr("test_accuracy: "), HasSubstr("% of 40 classes"), HasSubstr("test_loss: ")));
  const std::string accuracy = one.out.substr(one.out.find("test_accuracy: ") + 15, 5);
  EXPECT_THAT(trained.out, HasSubstr(accuracy));
  Arguments more = eval;
  more.insert(more.end(), {"--stages", "3"});
  EXPECT_EQ(run_gpipe(more).out, one.out);
  expect_refusal({"eval", "--weights", file("trained"), "--inputs", file("in"), "--targets", file("classes")},
                 AllOf(HasSubstr("holds the weights of a TorchScript model"), HasSubstr("add --torchscript FILE")));
  expect_refusal({"eval", "--weights", file("trained"), "--torchscript", model_, "--inputs", file("in")},
                 HasSubstr("--targets is missing"));
}

TEST_F(TorchScript, TensorsOfAFileAreForwardsArgumentsByTheirNames) {
  two_inputs().save(model_);
  const Outcome outcome =
      run_gpipe({"train", "tensors", "--torchscript", model_, "--inputs", file("both"), "--targets", file("numbers"),
                 "--loss", "mse", "--steps", "2", "--stages", "2", "--metrics", folder_.path("metrics")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(read_file(folder_.path("metrics")), HasSubstr("\"loss\""));
  save("other names", {{"mask", torch::ones({40, 12})}, {"y", torch::ones({40, 6})}});
  expect_refusal({"train", "tensors", "--torchscript", model_, "--inputs", file("other names"), "--targets",
                  file("numbers"), "--loss", "mse"},
                 AllOf(HasSubstr("--torchscript"), HasSubstr("y")));
}

TEST_F(TorchScript, WhatDoesNotFitIsToldInOneLineWithARemedy) {
  expect_refusal(command({"--torchscript", folder_.path("none.pt")}), HasSubstr("none.pt"));
  expect_refusal(command({"--torchscript", file("in")}),
                 AllOf(HasSubstr("in.safetensors"), HasSubstr("torch.jit.script")));
  expect_refusal(command({"--targets", file("fewer")}),
                 AllOf(HasSubstr("has 40 samples"), HasSubstr("fewer.safetensors has 39")));
  expect_refusal(command({"--targets", file("numbers")}),
                 AllOf(HasSubstr("cross-entropy needs the numbers of classes"), HasSubstr("--loss mse")));
  expect_refusal(command({"--loss", "mse"}),
                 AllOf(HasSubstr("mse needs floating-point"), HasSubstr("--loss cross-entropy")));
  expect_refusal(command({"--targets", file("both")}), HasSubstr("holds 2 tensors, mask, x; the loss takes one"));
  expect_refusal(command({"--inputs", file("nowhere")}), HasSubstr("nowhere.safetensors"));
  save("wide", {{"anything", torch::randn({40, 7})}});
  expect_refusal(command({"--inputs", file("wide"), "--test-inputs", file("wide")}), HasSubstr("7"));
  save("pairs", {{"target", torch::randn({40, 2})}});
  expect_refusal({"train", "tensors", "--torchscript", model_, "--inputs", file("in"), "--targets", file("pairs"),
                  "--loss", "mse", "--stages", "1"},
                 AllOf(HasSubstr("mse needs a target of the shape"), HasSubstr("2]")));
  save("no samples", {{"anything", torch::tensor(3.0)}});
  expect_refusal(command({"--inputs", file("no samples")}), HasSubstr("the first dimension is the sample"));
}

TEST_F(TorchScript, RanksWithOtherModelsEndAtOnceAndNameTheOption) {
  const std::string other = folder_.path("other.pt");
  torch::jit::Module module = one_input();
  {
    const torch::NoGradGuard no_grad;
    module.attr("head").toModule().attr("bias").toTensor().fill_(1);
  }
  module.save(other);
  const Arguments train = {"train", "tensors", "--inputs", file("in"), "--targets", file("classes"), "--steps", "1"};
  const std::string choose = "[ \"$GPIPE_RANK\" = 0 ] && set -- \"$@\" --torchscript '" + model_ +
                             "' || set -- \"$@\" --torchscript '" + other + "'; exec \"$@\"";
  Arguments launch = {"launch", "-n", "2", "--", "sh", "-c", choose, "sh", GPIPE_COMMAND};
  launch.insert(launch.end(), train.begin(), train.end());
  const Outcome outcome = run_gpipe(launch);
  EXPECT_EQ(outcome.exit_code, 1) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("'--torchscript: a file of "), HasSubstr("on rank 1")));
}

TEST_F(TorchScript, ImagesAreTrainedOnAndEvaluated) {
  write_images(folder_, "train", 64);
  write_images(folder_, "t10k", 20);
  torch::manual_seed(2);
  torch::jit::Module module("Images");
  torch::jit::Module conv("Conv");
  conv.register_parameter("weight", torch::randn({4, 1, 7, 7}) * 0.1, false);
  conv.define("def forward(self, x):\n    return torch.relu(torch.conv2d(x, self.weight, None, [7, 7]))\n");
  torch::jit::Module head("Head");
  head.register_parameter("weight", torch::randn({10, 64}) * 0.1, false);
  head.define("def forward(self, x):\n    return torch.linear(torch.flatten(x, 1), self.weight)\n");
  module.register_module("conv", conv);
  module.register_module("head", head);
  module.define("def forward(self, x):\n    return self.head.forward(self.conv.forward(x))\n");
  module.save(model_);
  const Arguments image = {"train",           "image", "--data-dir",   folder_.path(""),
                           "--torchscript",   model_,  "--batch-size", "16",
                           "--micro-batches", "4",     "--steps",      "2",
                           "--stages",        "2",     "--save",       file("images")};
  const Outcome trained = run_gpipe(image);
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const Outcome evaluated =
      run_gpipe({"eval", "--weights", file("images"), "--torchscript", model_, "--data-dir", folder_.path("")});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_THAT(evaluated.out, HasSubstr("test_accuracy"));
  expect_refusal({"eval", "--weights", file("images"), "--data-dir", folder_.path("")},
                 HasSubstr("add --torchscript FILE"));
  Arguments both = image;
  both.insert(both.end(), {"--model", "resnet20"});
  EXPECT_EQ(run_gpipe(both).exit_code, 2);
}

TEST_F(TorchScript, ALanguageModelIsTrainedAndGenerates) {
  std::string text;
  for (int line = 0; line < 300; ++line) text += "the cat sat on the mat and the dog ran off\n";
  const std::string words = folder_.write("text.txt", text);
  torch::manual_seed(2);
  torch::jit::Module module("Words");
  module.register_parameter("table", torch::randn({275, 8}), false);
  module.register_parameter("scores", torch::randn({275, 8}), false);
  module.define(R"(
    def forward(self, tokens):
        x = torch.embedding(self.table, tokens)
        return torch.linear(torch.cumsum(x, 1), self.scores)
  )");
  module.save(model_);
  const Outcome trained =
      run_gpipe({"train",           "lm",         "--torchscript",     model_, "--text",       words,
                 "--vocabulary",    "275",        "--sequence-length", "8",    "--batch-size", "8",
                 "--micro-batches", "2",          "--steps",           "2",    "--stages",     "2",
                 "--save",          file("words")});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("dev_perplexity"));
  const Outcome generated =
      run_gpipe({"generate", "--weights", file("words"), "--torchscript", model_, "--tokens", "3"});
  EXPECT_EQ(generated.exit_code, 0) << generated.err;
  expect_refusal({"generate", "--weights", file("words")}, HasSubstr("add --torchscript FILE"));
}

TEST_F(TorchScript, IsProfiledAndPlanned) {
  const Outcome profiled = run_gpipe({"profile", "--torchscript", model_, "--inputs", file("in"), "--targets",
                                      file("classes"), "--samples", "4", "--repeats", "1", "--json"});
  ASSERT_EQ(profiled.exit_code, 0) << profiled.err;
  EXPECT_THAT(profiled.out, AllOf(HasSubstr("first"), HasSubstr("\"parameter_bytes\"")));
  const Outcome planned = run_gpipe({"plan", "--torchscript", model_, "--inputs", file("in"), "--samples", "4",
                                     "--stages", "2", "--micro-batches", "4", "--out", folder_.path("plan.json")});
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("simulated"));
  const Outcome trained = run_gpipe({"train", "tensors", "--torchscript", model_, "--inputs", file("in"), "--targets",
                                     file("classes"), "--plan", folder_.path("plan.json"), "--steps", "2"});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  const Outcome no_file =
      run_gpipe({"plan", "--torchscript", folder_.path("none.pt"), "--stages", "2", "--micro-batches", "4"});
  EXPECT_EQ(no_file.exit_code, 2);
  EXPECT_THAT(no_file.err, HasSubstr("none.pt"));
  EXPECT_THAT(run_gpipe({"plan", "--inputs", file("in"), "--stages", "2", "--micro-batches", "4"}).err,
              HasSubstr("--profile is missing"));
}

}  // namespace
}  // namespace gpipe::cli
