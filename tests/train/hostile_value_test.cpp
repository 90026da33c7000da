// Hostile numbers for every option of the commands on libtorch. Each runs in a process that this one forks, because
// libtorch takes longer to load than most of them run; so nothing here may call it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <torch/script.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gpipe/checkpoint/safetensors.h"
#include "hostile_values.h"
#include "tests/train/image_files.h"

int gpipe_train_main(int argc, char** argv);

namespace gpipe::cli {
namespace {

int run_program(const Arguments& arguments) {
  Arguments words = {"gpipe"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return gpipe_train_main(static_cast<int>(words.size()), pointers.data());
}

// Pages of help in two languages; which part of the data a page is in depends on its name.
void write_help(const TemporaryFolder& folder) {
  for (int page = 0; page < 60; ++page) {
    for (const auto& [language, text] : {std::make_pair("de", "Die Datei "), std::make_pair("en-US", "The file ")}) {
      const std::string dir = folder.path(std::string(language) + "/text/shared");
      std::filesystem::create_directories(dir);
      std::ofstream(dir + "/page" + std::to_string(page) + ".html")
          << "<html><body><p id=\"par_id0\">" << text << page << ".</p></body></html>";
    }
  }
}

// A module from elsewhere, with samples for it; by a process of its own, since this one must not call libtorch.
void write_module(const TemporaryFolder& folder) {
  const pid_t child = fork();
  if (child == 0) {
    torch::jit::Module module("module");
    module.register_parameter("weight", torch::ones({2, 2}).requires_grad_(), /*is_buffer=*/false);
    module.define("def forward(self, x):\n  return torch.matmul(x, self.weight)\n");
    module.save(folder.path("module.pt"));
    save_safetensors(folder.path("in.safetensors"), {{{"x", torch::ones({16, 2})}}, {}});
    save_safetensors(folder.path("targets.safetensors"), {{{"target", torch::ones({16, 2})}}, {}});
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_EQ(status, 0);
}

class HostileTrainingValue : public ::testing::Test {
 protected:
  HostileTrainingValue() {
    setenv("GPIPE_DATA_DIR", folder_.path("data").c_str(), 1);
    std::string text;
    for (int line = 0; line < 60; ++line) text += "the cat sat on the mat\n";
    text_ = folder_.write("text.txt", text);
  }

  // A training of one epoch of a few steps.
  HostileCase image() {
    write_images(folder_, "train", 16);
    write_images(folder_, "t10k", 4);
    return training("image", {{"--data-dir", folder_.path("")}, {"--model", "resnet-cifar:8"}, {"--batch-size", "8"}});
  }
  HostileCase lm() const {
    return training("lm", {{"--text", text_},
                           {"--model", "transformer-lm:1,8,8,1"},
                           {"--vocabulary", "270"},
                           {"--sequence-length", "8"},
                           {"--batch-size", "16"}});
  }
  HostileCase translate() const {
    write_help(folder_);
    return training("translate", {{"--data-dir", folder_.path("")},
                                  {"--languages", "de"},
                                  {"--model", "t:1,8,1,8"},
                                  {"--vocabulary", "284"},
                                  {"--max-tokens", "256"},
                                  {"--test-samples", "1"}});
  }

  HostileCase tensors() const {
    write_module(folder_);
    return training("tensors", {{"--torchscript", folder_.path("module.pt")},
                                {"--inputs", folder_.path("in.safetensors")},
                                {"--targets", folder_.path("targets.safetensors")},
                                {"--loss", "mse"},
                                {"--batch-size", "8"}});
  }

  // What the training leaves behind.
  std::string weights_of(const HostileCase& base, const std::string& name) const {
    Arguments arguments = base.command;
    for (const Arguments& option : base.options) {
      if (option.front() == "--checkpoint-dir" || option.front() == "--keep-last") continue;
      arguments.insert(arguments.end(), option.begin(), option.end());
    }
    arguments.insert(arguments.end(), {"--save", folder_.path(name)});
    const Outcome outcome = run_gpipe(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return folder_.path(name);
  }

  static HostileCase training(const char* task, const std::vector<Arguments>& options) {
    HostileCase base{{"train", task}, options};
    base.options.insert(base.options.end(), {{"--stages", "2"},
                                             {"--micro-batches", "2"},
                                             {"--epochs", "1"},
                                             {"--checkpoint-dir", "run"},
                                             {"--keep-last", "2"}});
    return base;
  }

  const TemporaryFolder folder_;
  std::string text_;
};

TEST_F(HostileTrainingValue, OfTheTrainingOfAnImageModel) { expect_clear_refusals(run_program, image()); }

TEST_F(HostileTrainingValue, OfTheTrainingOfALanguageModel) { expect_clear_refusals(run_program, lm()); }

TEST_F(HostileTrainingValue, OfTheTrainingOfATranslation) { expect_clear_refusals(run_program, translate()); }

TEST_F(HostileTrainingValue, OfTheTrainingAndUseOfAModuleFromElsewhere) {
  HostileCase training = tensors();
  training.options[5] = {"--stages", "1"};  // there is one operation
  expect_clear_refusals(run_program, training);
  const std::string weights = weights_of(training, "module.safetensors");
  expect_clear_refusals(run_program, {{"eval", "tensors"},
                                      {{"--weights", weights},
                                       {"--torchscript", folder_.path("module.pt")},
                                       {"--inputs", folder_.path("in.safetensors")},
                                       {"--targets", folder_.path("targets.safetensors")},
                                       {"--loss", "mse"}}});
}

TEST_F(HostileTrainingValue, OfTheUseOfAnImageModel) {
  const std::string weights = weights_of(image(), "image.safetensors");
  expect_clear_refusals(run_program, {{"eval", "image"}, {{"--weights", weights}, {"--data-dir", folder_.path("")}}});
}

TEST_F(HostileTrainingValue, OfTheUseOfALanguageModel) {
  const std::string weights = weights_of(lm(), "lm.safetensors");
  expect_clear_refusals(run_program, {{"eval"}, {{"--weights", weights}, {"--text", text_}}});
  expect_clear_refusals(run_program, {{"eval", "lm"}, {{"--weights", weights}, {"--text", text_}}});
  expect_clear_refusals(run_program, {{"generate"}, {{"--weights", weights}}, "", {}, {"--tokens"}});
  expect_clear_refusals(run_program, {{"inspect"}, {{weights}}});
  expect_clear_refusals(run_program, {{"convert"}, {{weights}, {"to"}}});
}

TEST_F(HostileTrainingValue, OfTheUseOfATranslation) {
  const std::string weights = weights_of(translate(), "t.safetensors");
  expect_clear_refusals(
      run_program,
      {{"eval", "translate"}, {{"--weights", weights}, {"--data-dir", folder_.path("")}, {"--test-samples", "1"}}});
  HostileCase lines{{"translate"}, {{"--weights", weights}}};
  lines.input = "Die Datei 3.\n";
  expect_clear_refusals(run_program, lines);
}

TEST_F(HostileTrainingValue, OfAProfile) {
  for (const char* model : {"resnet-cifar:8", "transformer-lm:1,8,8,1", "t:1,8,1,8"}) {
    expect_clear_refusals(
        run_program,
        {{"profile"}, {{"--model", model}, {"--samples", "2"}, {"--budget", "0.01"}, {"--sequence", "8"}}});
  }
  expect_clear_refusals(run_program, {{"profile"}, {{"--model", "resnet-cifar:8"}, {"--on-paper"}}});
}

TEST_F(HostileTrainingValue, OfABenchmark) {
  expect_clear_refusals(run_program, {{"bench"},
                                      {{"--workload", "tiny"},
                                       {"--quick"},
                                       {"--repeats", "1"},
                                       {"--rows", "plain,threads"},
                                       {"--schedules", "1f1b"}}});
}

TEST_F(HostileTrainingValue, OfACapacity) {
  for (const char* model : {"transformer", "amoebanet"}) {
    expect_clear_refusals(run_program, {{"capacity"}, {{"--model", model}, {"--predict-only"}}, "", {}, {"--memory"}});
  }
}

}  // namespace
}  // namespace gpipe::cli
