#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bleu/corpus_bleu.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/files.h"
#include "cli/terminal.h"
#include "gpipe/text/json.h"
#include "gpipe/text/utf8.h"

namespace gpipe::cli {
namespace {

using detail::find_invalid_utf8;
using detail::indented_json;

struct BleuCommand {
  std::string hypothesis;
  std::vector<std::string> references;
  bleu::Tokenizer tokenizer = bleu::Tokenizer::k13a;
  bool json = false;
};

bleu::Tokenizer parse_tokenizer(std::string_view word) {
  return static_cast<bleu::Tokenizer>(parse_choice(word, bleu::tokenizer_names()));
}

// Only "\n" ends a line: the "\r" before it is whitespace like any other, and so are U+0085 and U+2028 within one.
std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::vector<std::string> read_segments(const std::string& path) {
  const std::string text = read_input_file(path);
  refuse_if(text.compare(0, 2, "\x1f\x8b") == 0, fmt::format("{} is gzip", input_name(path)),
            "use zcat FILE | gpipe bleu --reference FILE -");
  std::vector<std::string> lines = split_lines(text);
  for (std::size_t line = 0; line < lines.size(); ++line) {
    if (find_invalid_utf8(lines[line]) != std::string_view::npos) {
      throw UsageError(fmt::format("{}: line {} is not UTF-8", input_name(path), line + 1),
                       "give plain text, one segment a line; iconv converts other encodings");
    }
  }
  return lines;
}

std::string describe_lines(std::size_t count) { return fmt::format("{} line{}", count, count == 1 ? "" : "s"); }

void check_files(const BleuCommand& command) {
  refuse_if(command.hypothesis.empty(), "which translation? No HYPOTHESIS is given",
            "name a file, or '-' for standard input");
  refuse_if(command.references.empty(), "--reference is missing", "add --reference FILE, one segment a line");
  const std::vector<std::string>& references = command.references;
  const auto from_input = std::count(references.begin(), references.end(), "-") + (command.hypothesis == "-" ? 1 : 0);
  refuse_if(from_input > 1, "standard input can be read only once", "give a file for all but one '-'");
}

std::string bleu_json(const bleu::BleuScore& score, const std::string& signature) {
  nlohmann::ordered_json json = {
      {"name", "BLEU"}, {"score", score.score}, {"signature", signature}, {"verbose_score", bleu::details(score)}};
  for (std::size_t begin = 0; begin < signature.size();) {
    const std::size_t colon = signature.find(':', begin);
    const std::size_t end = std::min(signature.find('|', colon), signature.size());
    json[signature.substr(begin, colon - begin)] = signature.substr(colon + 1, end - colon - 1);
    begin = end + 1;
  }
  json["precisions"] = score.precisions;
  json["bp"] = score.brevity_penalty;
  json["ratio"] = score.length_ratio();
  json["sys_len"] = score.statistics.hypothesis_length;
  json["ref_len"] = score.statistics.reference_length;
  json["counts"] = score.statistics.counts;
  json["totals"] = score.statistics.totals;
  return indented_json(json);
}

int run_bleu(const BleuCommand& command) {
  check_files(command);
  const std::vector<std::string> hypotheses = read_segments(command.hypothesis);
  refuse_if(hypotheses.empty(), fmt::format("{} is empty", input_name(command.hypothesis)),
            "there is nothing to score");
  std::vector<std::vector<std::string>> references;
  for (const std::string& path : command.references) {
    references.push_back(read_segments(path));
    if (references.back().size() != hypotheses.size()) {
      throw UsageError(
          fmt::format("{} has {}, but reference {} has {}", input_name(command.hypothesis),
                      describe_lines(hypotheses.size()), input_name(path), describe_lines(references.back().size())),
          "line N of a reference is the translation of line N of the hypothesis");
    }
  }
  const bleu::BleuScore score = bleu::corpus_bleu(hypotheses, references, command.tokenizer);
  const std::string signature = bleu::signature(static_cast<int>(references.size()), command.tokenizer);
  print(command.json ? bleu_json(score, signature) : bleu::to_text(score, signature) + "\n");
  return kDone;
}

}  // namespace

void add_bleu_command(CLI::App& app, Run& chosen) {
  const auto command = std::make_shared<BleuCommand>();
  CLI::App& sub = *app.add_subcommand("bleu");
  add_value(sub, "HYPOTHESIS", command->hypothesis, parse_path,
            "The translation, one segment a line; '-' reads standard input");
  const OptionGroup score{sub, "Score"};
  score.add_each("FILE", "--reference", command->references, parse_path,
                 "What it should say, one segment a line; may be repeated");
  score.add("HOW", "--tokenize", command->tokenizer, parse_tokenizer,
            "13a (mteval), none (split at whitespace) or char [13a]");
  OptionGroup{sub, "Output"}.add_flag("--json", command->json, "Print one JSON object");
  set_help(
      sub,
      {"gpipe bleu --reference FILE HYPOTHESIS|- [options]", "Score a translation with corpus BLEU, as sacreBLEU does.",
       "The files are UTF-8 and have the same number of lines. With several references, each segment is compared "
       "with all of them. The signature says how the score was made.",
       "  gpipe bleu --reference english.txt output.txt\n"
       "  gpipe bleu --reference a.txt --reference b.txt --json - < output.txt\n"
       "  gpipe bleu --reference japanese.txt --tokenize char output.txt"});
  sub.callback([&chosen, command] { chosen = [command] { return run_bleu(*command); }; });
}

}  // namespace gpipe::cli
