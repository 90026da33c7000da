#include <fmt/format.h>
#include <torch/torch.h>

#include <iostream>
#include <memory>
#include <string>

#include "cli/command_line.h"
#include "cli/quantity.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "models/registry.h"
#include "train/commands.h"
#include "train/generator.h"
#include "train/lm_task.h"
#include "train/model_file.h"
#include "train/option_group.h"
#include "train/run_options.h"
#include "train/script_model.h"
#include "train/translator.h"

namespace gpipe::train {
namespace {

using cli::parse_count;
using cli::parse_index;
using cli::parse_number;
using cli::parse_path;

void add_weights(const OptionGroup& group, std::string& path) {
  group.add("FILE", "--weights", path, parse_path, "What gpipe train --save has written, or a checkpoint")->required();
}

// One stage: there is nothing to overlap in reading a model.
Pipeline load_pipeline(const ModelFile& file, const LayerChain& chain) {
  file.check_size(chain);
  Pipeline pipeline(chain, PipelineOptions(1).num_micro_batches(1));
  load_weights(file.content(), file.path(), *pipeline);
  pipeline->eval();
  return pipeline;
}

struct TranslateTextCommand {
  std::string weights;
  TranslatorOptions options;
};

int translate(TranslateTextCommand& command) {
  const ModelFile file(command.weights);
  file.require_task("translate", "translate");
  const data::Vocabulary vocabulary = file.vocabulary();
  command.options.max_length = file.number("gpipe.max_length", 2, kMaxLength);
  const Pipeline pipeline = load_pipeline(
      file,
      models::translation_transformer(models::translation_model_options(file.text("gpipe.model"), vocabulary.size())
                                          .max_length(command.options.max_length)
                                          .logit_clip(file.real("gpipe.clip_logits"))));
  const Translator translator(*pipeline, vocabulary, command.options);
  // Line by line, so that it can be talked to.
  for (std::string line; std::getline(std::cin, line);) {
    // Sub-words of one byte can make anything, line breaks, too.
    const std::string translation = translator.translate({line}).front();
    cli::print(cli::on_one_line(translation) + "\n");
    cli::flush_output();
  }
  return cli::kDone;
}

struct GenerateCommand {
  std::string weights;
  std::string torchscript;
  std::string prompt;
  GenerateOptions options;
};

int generate(const GenerateCommand& command) {
  const ModelFile file(command.weights);
  file.require_task("lm", "generate");
  const data::Vocabulary vocabulary = file.vocabulary();
  const std::int64_t max_length = file.number("gpipe.sequence_length", 1, kMaxLength);
  file.require_script(command.torchscript);
  const bool is_script = !command.torchscript.empty();
  const Pipeline pipeline = load_pipeline(
      file, is_script ? ScriptModel(command.torchscript).chain()
                      : language_chain(file.text("gpipe.model"), vocabulary.size(), max_length, /*dropout=*/0));
  const NextLogits next_logits = is_script ? logits_of_module(pipeline) : logits_of_transformer(pipeline);
  cli::print(generate(next_logits, vocabulary, command.prompt, max_length, command.options) + "\n");
  return cli::kDone;
}

std::string parse_text(std::string_view word) { return std::string(word); }

}  // namespace

void add_translate_command(CLI::App& app, cli::Run& chosen) {
  auto options = std::make_shared<TranslateTextCommand>();
  CLI::App& command = *app.add_subcommand("translate");
  const OptionGroup group{command, "Options"};
  add_weights(group, options->weights);
  group.add_default("N", "--beam", options->options.beam_size, parse_beam, "Hypotheses that are followed");
  group.add_default("X", "--length-penalty", options->options.length_penalty, parse_number,
                    "More favours longer sentences");
  cli::set_help(
      command, {"gpipe translate --weights FILE [options] < LINES", "Translate lines into English with a trained model",
                "Reads a sentence a line from standard input.",
                "  echo 'Wählen Sie eine Datei.' | gpipe translate --weights t.safetensors"});
  command.callback([&chosen, options] { chosen = [options] { return translate(*options); }; });
}

void add_generate_command(CLI::App& app, cli::Run& chosen) {
  auto options = std::make_shared<GenerateCommand>();
  CLI::App& command = *app.add_subcommand("generate");
  const OptionGroup group{command, "Options"};
  add_weights(group, options->weights);
  group.add("FILE", "--torchscript", options->torchscript, cli::parse_path,
            "The TorchScript file that the weights are of");
  group.add("TEXT", "--prompt", options->prompt, parse_text, "What the text begins with [nothing]");
  group.add_default("N", "--tokens", options->options.num_tokens, parse_count, "How much of it");
  group.add_default("X", "--temperature", options->options.temperature, parse_number,
                    "Less is more predictable; 0 is the most likely token each time");
  group.add_default("N", "--top-k", options->options.top_k, parse_index, "Choose among so many, 0 for all");
  group.add_default("N", "--seed", options->options.seed, parse_index, "");
  cli::set_help(command, {"gpipe generate --weights FILE [options]", "Continue a text with a trained language model",
                          "", "  gpipe generate --weights kjv.safetensors --prompt \"In the beginning\""});
  command.callback([&chosen, options] { chosen = [options] { return generate(*options); }; });
}

}  // namespace gpipe::train
