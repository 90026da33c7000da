// Checks that networks which somebody else wrote are trained to the same bytes in pieces, and tells how fast.
//
//   zoo_check FOLDER [--only NAME,...] [--quick] [--no-check] [--no-speed] [--save]
//
// FOLDER is what tests/zoo/export_zoo.py has written. For each network, with dropout on, three steps of SGD, and the
// losses, gradients, parameters and buffers compared byte for byte:
//   whole      its layers one after the other are what forward and backward of the whole module are
//   K=1 2 4    the pipeline is what its layers one after the other are, for the schedules gpipe, 1f1b and zb-v, and the
//              recompute modes never, except_last and always
// and the speed-up of two stages over a plain loop. Prints a table in Markdown; ends with 1 if anything differs, and
// names it. --quick checks fewer combinations of schedules and recompute modes. --save writes trained weights into the
// folder, for load_back.py.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "benchmarks/stopwatch.h"
#include "gpipe/model/layer_chain.h"
#include "gpipe/torchscript/cut_rules.h"
#include "gpipe/torchscript/flat_graph.h"
#include "gpipe/torchscript/graph_aliases.h"
#include "tests/zoo/network.h"
#include "tests/zoo/speed.h"
#include "tests/zoo/training.h"

namespace gpipe::zoo {
namespace {

struct Arguments {
  std::string folder;
  std::vector<std::string> only;
  bool quick = false;
  bool check = true;
  bool speed = true;
  bool save = false;
};

struct Combination {
  int num_stages = 1;
  std::string schedule;
  Recompute recompute = Recompute::kNever;

  std::string text() const { return fmt::format("K={}, {}, recompute {}", num_stages, schedule, name(recompute)); }
  int num_chunks() const { return schedule == "zb-v" ? 2 * num_stages : num_stages; }
};

std::vector<Combination> combinations(int num_stages, bool quick) {
  if (quick) {
    return {{num_stages, "1f1b", Recompute::kNever},
            {num_stages, "gpipe", Recompute::kAlways},
            {num_stages, "zb-v", Recompute::kExceptLast}};
  }
  std::vector<Combination> all;
  for (const char* schedule : {"gpipe", "1f1b", "zb-v"}) {
    for (const Recompute recompute : {Recompute::kNever, Recompute::kExceptLast, Recompute::kAlways}) {
      all.push_back({num_stages, schedule, recompute});
    }
  }
  return all;
}

std::vector<int> even_balance(int num_layers, int num_stages) {
  std::vector<int> balance(num_stages, num_layers / num_stages);
  for (int stage = 0; stage < num_layers % num_stages; ++stage) ++balance[stage];
  return balance;
}

// What is in one row of the table. A cell is "yes", "-" where it was not tried, or what is wrong.
struct Row {
  std::string operations = "-";
  std::string cuts = "-";
  std::string layers = "-";
  std::string whole = "-";
  std::vector<std::string> stages = {"-", "-", "-"};  // K = 1, 2, 4
  std::string speed = "- | - | -";                    // three cells
  std::vector<std::string> failures;
};

class Check {
 public:
  Check(const Network& network, const Arguments& arguments) : network_(network), arguments_(arguments) {}

  Row run() {
    std::optional<LayerChain> chain;
    guarded(row_.layers, "from_torchscript", [&] {
      chain = network_.cut();
      return std::to_string(chain->size());
    });
    if (!chain) return row_;
    guarded(row_.cuts, "find_cuts", [&] { return count_cuts(); });
    if (arguments_.check) check(*chain);
    if (arguments_.save) {
      try {
        save_trained(network_.cut(), network_, Lengths(), arguments_.folder);
      } catch (const std::exception& error) {
        add_failure("saving", error.what());
      }
    }
    if (arguments_.speed && row_.failures.empty()) {
      guarded(row_.speed, "speed", [&] {
        const Speed speed = measure_speed(network_, Effort());
        return fmt::format("{:.2f} | {:.2f} | {:.2f}", speed.speed_up(), speed.scaling(), speed.share_of_bound());
      });
    }
    return row_;
  }

 private:
  std::string count_cuts() {
    const detail::FlatGraph flat = detail::flatten(network_.load(), network_.input_names);
    const std::vector<bool> allowed = detail::find_cuts(flat, detail::GraphAliases(flat)).allowed;
    row_.operations = std::to_string(flat.num_nodes());
    return std::to_string(std::count(allowed.begin(), allowed.end(), true));
  }

  // The cell is what `work` says, or that it failed.
  template <typename Work>
  void guarded(std::string& cell, const std::string& what, const Work& work) {
    try {
      cell = work();
    } catch (const std::exception& error) {
      fail(cell, what, error.what());
    }
  }
  void fail(std::string& cell, const std::string& what, const std::string& why) {
    cell = "NO";
    add_failure(what, why);
  }
  // One line of it: libtorch's errors go on with a backtrace.
  void add_failure(const std::string& what, const std::string& why) {
    row_.failures.push_back(network_.name + ", " + what + ": " + why.substr(0, why.find('\n')));
  }

  void check(const LayerChain& chain) {
    Lengths lengths;
    guarded(row_.whole, "against the whole module", [&] {
      const std::string differs =
          difference_to_whole(train_layers(network_, network_.cut(), lengths), train_whole(network_, lengths));
      if (differs.empty()) return std::string("yes");
      fail(row_.whole, "against the whole module", differs);
      return row_.whole;
    });
    std::optional<Record> expected;
    guarded(row_.stages[0], "the layers one after the other", [&] {
      expected = train_plainly(network_.cut(), network_, lengths);
      return "";
    });
    if (!expected) return;
    for (const int index : {0, 1, 2}) check_stages(chain.size(), 1 << index, *expected, row_.stages[index]);
  }

  void check_stages(int num_layers, int num_stages, const Record& expected, std::string& cell) {
    int num_run = 0;
    int num_same = 0;
    const std::vector<Combination> tried = combinations(num_stages, arguments_.quick);
    for (const Combination& combination : tried) {
      if (combination.num_chunks() > num_layers) continue;
      ++num_run;
      std::string wrong;
      try {
        const auto options = PipelineOptions(num_stages)
                                 .schedule(combination.schedule)
                                 .recompute(combination.recompute)
                                 .balance(even_balance(num_layers, combination.num_chunks()));
        wrong = difference(train_pipeline(network_.cut(), network_, Lengths(), options), expected);
      } catch (const std::exception& error) {
        wrong = error.what();
      }
      if (wrong.empty()) ++num_same;
      if (!wrong.empty()) add_failure(combination.text(), wrong);
    }
    cell = num_same < num_run ? fmt::format("NO: {} of {}", num_same, num_run)
           : num_run == 0     ? "too few layers"
                              : "yes";
    if (num_run > 0 && num_run < static_cast<int>(tried.size()))
      cell += fmt::format(" ({} of {})", num_run, tried.size());
  }

  const Network& network_;
  const Arguments& arguments_;
  Row row_;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

std::optional<Arguments> parse(int argc, char** argv) {
  Arguments arguments;
  for (int index = 1; index < argc; ++index) {
    const std::string argument = argv[index];
    if (argument == "--quick") {
      arguments.quick = true;
    } else if (argument == "--no-check") {
      arguments.check = false;
    } else if (argument == "--no-speed") {
      arguments.speed = false;
    } else if (argument == "--save") {
      arguments.save = true;
    } else if (argument == "--only" && index + 1 < argc) {
      arguments.only = split(argv[++index]);
    } else if (arguments.folder.empty() && argument.rfind("--", 0) != 0) {
      arguments.folder = argument;
    } else {
      return std::nullopt;
    }
  }
  if (arguments.folder.empty()) return std::nullopt;
  return arguments;
}

int run(const Arguments& arguments) {
  at::set_num_threads(1);
  // Else the second run of a whole module has other bytes than its first, since it is rewritten in between.
  torch::jit::setGraphExecutorOptimize(false);
  std::vector<std::string> names = read_names(arguments.folder);
  if (!arguments.only.empty()) names = arguments.only;
  fmt::print(
      "| network | exported | operations | cuts allowed | layers | whole | K=1 | K=2 | K=4 | speed-up, K=2 | s2 | of "
      "bound |\n");
  fmt::print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  std::vector<std::string> failures;
  for (const std::string& name : names) {
    const Network network = read_network(arguments.folder, name);
    Row row;
    const double seconds = benchmarks::measure([&] { row = Check(network, arguments).run(); }).wall;
    fmt::print("| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", network.title, network.exported, row.operations,
               row.cuts, row.layers, row.whole, row.stages[0], row.stages[1], row.stages[2], row.speed);
    std::fflush(stdout);
    fmt::print(stderr, "{}: {:.0f} s\n", name, seconds);
    for (const std::string& failure : row.failures) fmt::print(stderr, "  {}\n", failure);
    failures.insert(failures.end(), row.failures.begin(), row.failures.end());
  }
  fmt::print("\n{} networks, {} failures\n", names.size(), failures.size());
  for (const std::string& failure : failures) fmt::print("- {}\n", failure);
  return failures.empty() ? 0 : 1;
}

}  // namespace
}  // namespace gpipe::zoo

int main(int argc, char** argv) {
  const auto arguments = gpipe::zoo::parse(argc, argv);
  if (!arguments) {
    fmt::print(stderr, "usage: zoo_check FOLDER [--only NAME,...] [--quick] [--no-check] [--no-speed] [--save]\n");
    return 2;
  }
  try {
    return gpipe::zoo::run(*arguments);
  } catch (const std::exception& error) {
    fmt::print(stderr, "zoo_check: {}\n", error.what());
    return 2;
  }
}
