// The commands of gpipe-train. Each adds itself to the program, and leaves in `chosen` what to run if it was named.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.h"

namespace gpipe::train {

// `gpipe train image|lm|translate`: train a model on real data, in stages.
void add_train_command(CLI::App& app, cli::Run& chosen);
// `gpipe eval`: a trained model measured on its test data.
void add_eval_command(CLI::App& app, cli::Run& chosen);
// `gpipe translate` and `gpipe generate`: a trained model at work.
void add_translate_command(CLI::App& app, cli::Run& chosen);
void add_generate_command(CLI::App& app, cli::Run& chosen);
// `gpipe profile`: what each layer of a model costs, for `gpipe plan`.
void add_profile_command(CLI::App& app, cli::Run& chosen);
// `gpipe capacity`: Table 1 of the GPipe paper, measured in miniature or planned with the paper's own figures.
void add_capacity_command(CLI::App& app, cli::Run& chosen);
// `gpipe bench`: a step of a pipeline against plain libtorch and others, side by side.
void add_bench_command(CLI::App& app, cli::Run& chosen);
// `gpipe inspect` and `gpipe convert`: what is in checkpoints and files of weights; the weights in another form.
void add_inspect_command(CLI::App& app, cli::Run& chosen);
void add_convert_command(CLI::App& app, cli::Run& chosen);

}  // namespace gpipe::train
