// What a searched schedule is worth: simulated steps on measured profiles of four models, against the best named
// schedule and against the lower bounds.
//
//   search_benchmark [seconds]       work of each search, default: 20; some minutes
//
// The profiles are measured once, at the start; everything after that is computed and the same in every run on the same
// profiles.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/stopwatch.h"
#include "gpipe/gpipe.h"
#include "models/amoebanet.h"
#include "models/transformer_lm.h"
#include "models/translation_transformer.h"
#include "models/unet.h"

namespace gpipe::benchmarks {
namespace {

std::vector<std::pair<std::string, Profile>> profiles() {
  using namespace gpipe::models;  // NOLINT(google-build-using-namespace)
  const auto tokens = [](std::int64_t samples, std::int64_t length) {
    return torch::randint(1000, {samples, length}, torch::kLong);
  };
  const at::Tensor images = torch::randn({2, 3, 64, 64});
  ProfileOptions options;
  options.repeats = 5;
  std::vector<std::pair<std::string, Profile>> result;
  const auto add = [&](const std::string& name, const LayerChain& chain, const Tensors& sample) {
    result.emplace_back(name, profile(chain, sample, options));
    fmt::print("{}: {} layers, forward {:.1f} ms\n", name, chain.size(), [&] {
      double seconds = 0;
      for (const LayerProfile& layer : result.back().second.layers) seconds += 1e3 * layer.forward_seconds;
      return seconds;
    }());
    std::fflush(stdout);
  };
  add("amoebanet-d (18, 32)", amoebanet_d(AmoebaNetOptions(18, 32).num_classes(10)), {images});
  add("u-net (4, 2, 16)", unet(UNetOptions(4, 2, 16)), {images});
  add("translation-6, tied", translation_transformer(TranslationTransformerOptions(6, 512, 4).width(128)),
      {tokens(4, 40), tokens(4, 41)});
  add("transformer-24, large head",
      transformer_lm(TransformerLmOptions(32000, 24).width(128).feed_forward_width(512).num_heads(4)), {tokens(2, 64)});
  return result;
}

void run(double seconds) {
  const auto all = profiles();
  fmt::print("\n{:<27} {:>2} {:>3} {:>12} {:>10} {:>10} {:>8} {:>10} {:>9} {:>7}\n", "", "K", "M", "best named", "ms",
             "search ms", "faster", "of stages", "of any", "took s");
  double sum = 0;
  double any_sum = 0;
  int count = 0;
  for (const auto& [name, profile] : all) {
    for (const int num_workers : {2, 4, 8}) {
      PlanOptions options;
      options.num_stages = num_workers;
      options.num_micro_batches = 4 * num_workers;
      options.search_seconds = seconds;
      ScheduleSearch search;
      const double took = measure([&] { search = search_schedules(profile, options); }).cpu;
      const double step = search.best.predicted_step_seconds;
      const double above = step / search.of_cut.seconds() - 1;
      fmt::print("{:<27} {:>2} {:>3} {:>12} {:>10.2f} {:>10.2f} {:>6.2f} % {:>8.2f} % {:>7.2f} % {:>7.1f}\n", name,
                 num_workers, options.num_micro_batches,
                 fmt::format("{} {}", search.named.front().schedule, search.named.front().chunks),
                 1e3 * search.named.front().step_seconds, 1e3 * step,
                 100 * (search.named.front().step_seconds / step - 1), 100 * above, 100 * search.gap(), took);
      std::fflush(stdout);
      sum += above;
      any_sum += search.gap();
      ++count;
    }
  }
  fmt::print("mean above the lower bound of its stages: {:.2f} %, of any stages: {:.2f} %\n", 100 * sum / count,
             100 * any_sum / count);
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  gpipe::benchmarks::run(argc > 1 ? std::max(0.01, std::atof(argv[1])) : 20);
}
