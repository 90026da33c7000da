// Which options ranks compare, and what they say of them.
#include "train/agreed_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "cli/command.h"
#include "train/commands.h"

namespace gpipe::train {
namespace {

using ::testing::Contains;
using ::testing::IsSupersetOf;
using ::testing::Not;

// The commands as gpipe-train has them, and what they leave to be run.
struct Commands {
  Commands() : app("", "gpipe") {
    add_train_command(app, chosen);
    add_eval_command(app, chosen);
  }
  CLI::App& task(const std::string& name) { return *app.get_subcommand("train")->get_subcommand(name); }

  CLI::App app;
  cli::Run chosen;
};

// A new option of these commands has to be put into one of the two lists: ranks that were given different values of it
// either train something wrong, or they do not.
TEST(AgreedOptions, AreDecidedForEveryOptionThereIs) {
  const std::set<std::string> compared = {"--augment",
                                          "--balance",
                                          "--batch-size",
                                          "--beam",
                                          "--checkpoint-dir",
                                          "--chunks",
                                          "--clip",
                                          "--clip-logits",
                                          "--data",
                                          "--deferred-batch-norm",
                                          "--dropout",
                                          "--epochs",
                                          "--checkpoint-every",
                                          "--keep-every",
                                          "--keep-last",
                                          "--languages",
                                          "--label-smoothing",
                                          "--loss",
                                          "--lr",
                                          "--lr-schedule",
                                          "--max-length",
                                          "--max-tokens",
                                          "--memory-limit",
                                          "--micro-batches",
                                          "--model",
                                          "--momentum",
                                          "--optimizer",
                                          "--precision",
                                          "--recompute",
                                          "--samples",
                                          "--save",
                                          "--scale-init",
                                          "--schedule",
                                          "--seed",
                                          "--sequence-length",
                                          "--stages",
                                          "--steps",
                                          "--test-samples",
                                          "--threads-per-stage",
                                          "--vocabulary",
                                          "--warmup",
                                          "--weight-decay"};
  const std::set<std::string> left_to_each = {
      "--data-dir",    "--force",   "--metrics", "--plan",    "--resume",      "--text",         "--trace",
      "--tensorboard", "--weights", "--inputs",  "--targets", "--test-inputs", "--test-targets", "--torchscript"};
  Commands commands;
  std::set<std::string> found;
  std::vector<CLI::App*> apps = {commands.app.get_subcommand("eval")};
  for (const char* command : {"train", "eval"}) {
    for (const char* task : {"image", "lm", "translate", "tensors"}) {
      apps.push_back(commands.app.get_subcommand(command)->get_subcommand(task));
    }
  }
  for (CLI::App* const app : apps) {
    for (const CLI::Option* option : app->get_options()) {
      if (option == app->get_help_ptr()) continue;
      const std::string name = option->get_name();
      found.insert(name);
      EXPECT_EQ(compared.count(name) + left_to_each.count(name), 1U) << name << " is in neither list, or in both";
      EXPECT_EQ(agreement_on(name) == Agreement::kNone, left_to_each.count(name) == 1) << name;
    }
  }
  EXPECT_EQ(found.size(), compared.size() + left_to_each.size());  // nor does a list name what is no option
}

TEST(AgreedOptions, SayTheValuesHoweverTheyAreSpelledAndWhetherTheyAreGivenOrNot) {
  Commands commands;
  commands.app.parse("train image --lr 1e-1 --precision bf16 --balance 3,4 --augment --save a --metrics b", false);
  const std::vector<std::string> texts = agreed_options(commands.task("image"));
  EXPECT_THAT(texts, IsSupersetOf({"--lr 0.1", "--precision bf16", "--balance 3,4", "--augment true", "--save",
                                   "--clip 1", "--optimizer adamw", "--lr-schedule cosine", "--warmup by default",
                                   "--recompute never", "no --checkpoint-dir", "--model amoebanet-d:3,24,2,1"}));
  EXPECT_THAT(texts, Not(Contains("--metrics b")));

  Commands others;
  others.app.parse("train image --augment --balance 3,4 --precision bf16 --clip 1.0 --save elsewhere --lr 0.1", false);
  EXPECT_EQ(agreed_options(others.task("image")), texts);
}

}  // namespace
}  // namespace gpipe::train
