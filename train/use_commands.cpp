#include "train/use_commands.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <iostream>
#include <memory>
#include <string>

#include "cli/help.h"
#include "cli/option.h"
#include "cli/quantity.h"
#include "cli/terminal.h"
#include "models/registry.h"
#include "train/generator.h"
#include "train/image_task.h"
#include "train/lm_task.h"
#include "train/model_file.h"
#include "train/run_options.h"
#include "train/translate_task.h"
#include "train/translator.h"

namespace gpipe::train {
namespace {

using cli::add_value;
using cli::parse_count;
using cli::parse_index;
using cli::parse_path;

CLI::Option* add_weights(CLI::App& command, std::string& path) {
  return add_value(command, "--weights", path, parse_path, "What gpipe train --save has written")
      ->type_name("FILE")
      ->required();
}

void require_task(const ModelFile& file, const std::string& task, const char* command) {
  if (file.text("gpipe.task") == task) return;
  throw CheckpointError(fmt::format("{} was trained by 'gpipe train {}', but 'gpipe {}' needs one of 'gpipe train {}'",
                                    file.path(), file.text("gpipe.task"), command, task));
}

// One stage: there is nothing to overlap in reading a model.
Pipeline load_pipeline(const ModelFile& file, const LayerChain& chain) {
  Pipeline pipeline(chain, PipelineOptions(1).num_micro_batches(1));
  load_weights(file.content(), file.path(), *pipeline);
  pipeline->eval();
  return pipeline;
}

std::vector<std::string> parse_paths(std::string_view words) { return cli::parse_list(words, parse_path); }

struct EvalCommand {
  std::string weights;
  std::string data_dir;
  int num_stages = 1;
  std::vector<std::string> text_files;
  std::int64_t num_test = 0;
  std::int64_t beam_size = 4;
};

std::unique_ptr<Task> task_of(const ModelFile& file, const EvalCommand& command) {
  const std::string& task = file.text("gpipe.task");
  if (task == "image") {
    ImageTaskOptions options;
    options.model = file.text("gpipe.model");
    options.data = file.text("gpipe.data");
    options.data_dir = command.data_dir;
    return std::make_unique<ImageTask>(options, /*only_test=*/true);
  }
  if (task == "lm") {
    LmTaskOptions options;
    options.model = file.text("gpipe.model");
    options.data = file.text("gpipe.data");
    options.sequence_length = file.number("gpipe.sequence_length");
    options.text_files = command.text_files;
    if (options.data == kOwnText && options.text_files.empty()) {
      throw CheckpointError(fmt::format("{} was trained on a text of your own; name it with --text", file.path()));
    }
    return std::make_unique<LmTask>(options, file.vocabulary(), /*only_test=*/true);
  }
  if (task == "translate") {
    TranslateTaskOptions options;
    options.model = file.text("gpipe.model");
    options.data_dir = command.data_dir;
    options.languages = parse_paths(file.text("gpipe.languages"));
    options.max_length = file.number("gpipe.max_length");
    options.num_test = command.num_test;
    options.beam_size = command.beam_size;
    options.clip_logits = parse_number(file.text("gpipe.clip_logits"));
    return std::make_unique<TranslateTask>(options, file.vocabulary(), /*only_test=*/true);
  }
  throw CheckpointError(fmt::format("{} was trained for the unknown task \"{}\"", file.path(), task));
}

int eval(const EvalCommand& command) {
  const ModelFile file(command.weights);
  const std::unique_ptr<Task> task = task_of(file, command);
  Pipeline pipeline(task->chain(), PipelineOptions(command.num_stages));
  load_weights(file.content(), file.path(), *pipeline);
  pipeline->eval();
  const torch::NoGradGuard no_grad;
  for (const Measure& measure : task->evaluate(pipeline, /*is_last=*/true)) {
    cli::print(fmt::format("{}: {}\n", measure.name, measure.text));
  }
  return cli::kDone;
}

struct TranslateCommand {
  std::string weights;
  std::int64_t beam_size = 4;
  double length_penalty = 0.6;
};

int translate(const TranslateCommand& command) {
  const ModelFile file(command.weights);
  require_task(file, "translate", "translate");
  const data::Vocabulary vocabulary = file.vocabulary();
  const std::int64_t max_length = file.number("gpipe.max_length");
  const Pipeline pipeline = load_pipeline(
      file,
      models::translation_transformer(models::translation_model_options(file.text("gpipe.model"), vocabulary.size())
                                          .max_length(max_length)
                                          .logit_clip(parse_number(file.text("gpipe.clip_logits")))));
  const Translator translator(*pipeline, vocabulary, {command.beam_size, command.length_penalty, max_length, {}});
  // Line by line, so that it can be talked to.
  for (std::string line; std::getline(std::cin, line);) {
    cli::print(translator.translate({line}).front() + "\n");
    cli::flush_output();
  }
  return cli::kDone;
}

struct GenerateCommand {
  std::string weights;
  std::string prompt;
  GenerateOptions options;
};

int generate(const GenerateCommand& command) {
  const ModelFile file(command.weights);
  require_task(file, "lm", "generate");
  const data::Vocabulary vocabulary = file.vocabulary();
  const std::int64_t max_length = file.number("gpipe.sequence_length");
  const Pipeline pipeline =
      load_pipeline(file, language_chain(file.text("gpipe.model"), vocabulary.size(), max_length, /*dropout=*/0));
  cli::print(generate(*pipeline, vocabulary, command.prompt, max_length, command.options) + "\n");
  return cli::kDone;
}

std::string parse_text(std::string_view word) { return std::string(word); }

}  // namespace

void add_eval_command(CLI::App& app, cli::Run& chosen) {
  auto options = std::make_shared<EvalCommand>();
  CLI::App& command = *app.add_subcommand("eval");
  add_weights(command, options->weights);
  add_value(command, "--data-dir", options->data_dir, parse_path, "Where the data is [where scripts/get-data puts it]")
      ->type_name("DIR");
  add_value(command, "--text", options->text_files, parse_paths,
            "The text of a language model that was trained on your own")
      ->type_name("FILE,...");
  add_value(command, "--stages", options->num_stages, parse_count, "Workers, one thread each [1]")->type_name("K");
  add_value(command, "--test-samples", options->num_test, parse_count,
            "Translate so many test sentences a language for BLEU [all]")
      ->type_name("N");
  add_value(command, "--beam", options->beam_size, parse_count, "For BLEU [4]")->type_name("N");
  cli::set_help(command, {"gpipe eval --weights FILE [options]", "Measure a trained model on its test data", "",
                          "  gpipe eval --weights fashion.safetensors"});
  command.callback([&chosen, options] { chosen = [options] { return eval(*options); }; });
}

void add_translate_command(CLI::App& app, cli::Run& chosen) {
  auto options = std::make_shared<TranslateCommand>();
  CLI::App& command = *app.add_subcommand("translate");
  add_weights(command, options->weights);
  add_value(command, "--beam", options->beam_size, parse_count, "Hypotheses that are followed [4]")->type_name("N");
  add_value(command, "--length-penalty", options->length_penalty, parse_number, "More favours longer sentences [0.6]")
      ->type_name("X");
  cli::set_help(
      command, {"gpipe translate --weights FILE [options] < LINES", "Translate lines into English with a trained model",
                "Reads a sentence a line from standard input.",
                "  echo 'Wählen Sie eine Datei.' | gpipe translate --weights t.safetensors"});
  command.callback([&chosen, options] { chosen = [options] { return translate(*options); }; });
}

void add_generate_command(CLI::App& app, cli::Run& chosen) {
  auto options = std::make_shared<GenerateCommand>();
  CLI::App& command = *app.add_subcommand("generate");
  add_weights(command, options->weights);
  add_value(command, "--prompt", options->prompt, parse_text, "What the text begins with [nothing]")->type_name("TEXT");
  add_value(command, "--tokens", options->options.num_tokens, parse_count, "How much of it [100]")->type_name("N");
  add_value(command, "--temperature", options->options.temperature, parse_number,
            "Less is more predictable; 0 is the most likely token each time [0.8]")
      ->type_name("X");
  add_value(command, "--top-k", options->options.top_k, parse_index, "Choose among so many, 0 for all [40]")
      ->type_name("N");
  add_value(command, "--seed", options->options.seed, parse_index, "[0]")->type_name("N");
  cli::set_help(command, {"gpipe generate --weights FILE [options]", "Continue a text with a trained language model",
                          "", "  gpipe generate --weights kjv.safetensors --prompt \"In the beginning\""});
  command.callback([&chosen, options] { chosen = [options] { return generate(*options); }; });
}

}  // namespace gpipe::train
