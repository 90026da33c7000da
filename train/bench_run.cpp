#include "train/bench_run.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "cli/text.h"
#include "train/bench_contender.h"
#include "train/bench_partner.h"

namespace gpipe::train {
namespace {

constexpr int kProcessRanks = 2;
constexpr double kSearchSeconds = 5;
constexpr double kLeastTurnSeconds = 0.1;  // of the plain loop
constexpr double kMostStepsPerTurn = 100;
constexpr const char* kHowToGetPipe =
    "not installed: apt-get install --no-install-recommends python3-torch (make bench-peers-deps does it)";

// A row that is being measured.
struct Entrant {
  BenchRow row;
  std::unique_ptr<Contender> contender;  // null: it does not run
  bool has_same_bits = false;            // as the plain loop's, it must
  int own_baseline = -1;                 // index of the entrant that is its own plain loop
  bool is_shown = true;
  std::vector<double> seconds = {};
  std::vector<double> cpu_seconds = {};
  std::vector<double> bubble = {};
  std::vector<double> inside = {};
};

std::string folder_of_this_program() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

bool are_same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// How much faster than one thread a schedule can be with equal stages and free communication.
double bound_of(const Schedule& schedule) {
  constexpr double kForward = 1;
  constexpr double kBackward = 2;
  StageCosts share;
  share.forward_seconds = kForward;
  share.backward_seconds = kBackward;
  const double alone = schedule.num_workers() * schedule.num_micro_batches * (kForward + kBackward);
  return alone / simulate(schedule, uniform_costs(schedule, share)).makespan_seconds;
}

// Ranks of a pipeline, which `gpipe launch` has started.
class Ranks : public Contender {
 public:
  Ranks(const Workload& workload, const Plan& plan, bool quick)
      : partner_(command(),
                 {{"workload", workload.name},
                  {"quick", quick},
                  {"micro_batches", plan.num_micro_batches},
                  {"balance", plan.layers_per_stage},
                  {"schedule", plan.schedule},
                  {"recompute", name(plan.recompute)}},
                 kProcessRanks),
        worker_of_stage_(schedule_of(plan).worker_of_stage) {}

  // The first rank says how long it took: all ranks end a step together.
  TurnResult take_turn() override {
    const nlohmann::json answer = partner_.ask("turn").front();
    return {answer.at("seconds").get<double>(), 0, answer.at("loss").get<double>()};
  }
  std::optional<BenchPeak> measure_peak() override {
    std::vector<StageMemory> memory;
    const std::vector<nlohmann::json> answers = partner_.ask("peak");
    for (const nlohmann::json& bytes : answers.front().at("peak_bytes")) {
      memory.emplace_back();
      memory.back().peak_bytes = bytes.get<std::int64_t>();
    }
    return peak_of(memory, worker_of_stage_);
  }
  bool is_in_this_process() const override { return false; }

 private:
  static std::vector<std::string> command() {
    const std::string gpipe = folder_of_this_program() + "/gpipe";
    return {gpipe, "launch", "-n", std::to_string(kProcessRanks), "--no-prefix", "--", gpipe, "bench", "--as-rank"};
  }

  Partner partner_;
  const std::vector<int> worker_of_stage_;
};

// One of the things that the script does: "plain" or "pipe".
class PeerScript : public Contender {
 public:
  PeerScript(std::shared_ptr<Partner> script, std::string what) : script_(std::move(script)), what_(std::move(what)) {}

  TurnResult take_turn() override {
    const nlohmann::json answer = script_->ask(what_).front();
    return {answer.at("seconds").get<double>(), 0, answer.at("loss").get<double>()};
  }
  // Both partitions of Pipe are in the memory of one process.
  std::optional<BenchPeak> measure_peak() override {
    BenchPeak peak;
    peak.total_bytes = script_->ask("peak " + what_).front().at("peak_bytes").get<std::int64_t>();
    if (what_ == "plain") peak.fullest_bytes = peak.total_bytes;
    return peak;
  }
  bool is_in_this_process() const override { return false; }

 private:
  const std::shared_ptr<Partner> script_;
  const std::string what_;
};

// Makes the rows of a run, and measures them in turns.
class RunInTurns {
 public:
  RunInTurns(const Workload& workload, int num_micro_batches, const BenchOptions& options)
      : workload_(workload), num_micro_batches_(num_micro_batches), options_(options) {
    chain_ = workload.make();
    models_ = {std::make_shared<PlainModel>(chain_), std::make_shared<PlainModel>(workload.make())};
    add_plain_loops();
    if (wants("data-parallel")) add_data_parallel();
    if (wants("threads") || wants("processes") || wants("peers")) profile_ = profile_of_a_micro_batch();
    if (wants("threads")) add_pipelines();
    if (wants("processes")) add_processes();
    if (wants("peers")) add_pipe();
  }

  BenchRun run(const BenchProgress& progress) {
    const int num_all = (options_.num_repeats + 2) * static_cast<int>(entrants_.size());
    int num_done = 0;
    for (int repeat = -1; repeat < options_.num_repeats; ++repeat) {  // the first warms up
      if (repeat == 0) choose_steps_per_turn();
      for (Entrant& entrant : entrants_) {
        progress(num_done++, num_all);
        run_or_give_up(entrant, [&] { take_turn(entrant, repeat >= 0); });
      }
    }
    for (Entrant& entrant : entrants_) {
      progress(num_done++, num_all);
      run_or_give_up(entrant, [&] { entrant.row.peak = entrant.contender->measure_peak(); });
    }
    return result();
  }

 private:
  bool wants(const std::string& kind) const {
    return options_.rows.empty() || std::find(options_.rows.begin(), options_.rows.end(), kind) != options_.rows.end();
  }
  bool wants_stages(int num_stages) const {
    return std::find(options_.num_stages.begin(), options_.num_stages.end(), num_stages) != options_.num_stages.end();
  }

  Entrant& add(const std::string& name, const std::string& kind) {
    Entrant entrant;
    entrant.row.name = name;
    entrant.row.kind = kind;
    entrant.row.num_micro_batches = num_micro_batches_;
    entrants_.push_back(std::move(entrant));
    return entrants_.back();
  }

  void add_plain_loop(const std::string& name, int num_micro_batches, int num_threads) {
    Entrant& entrant = add(name, "plain");
    entrant.row.num_micro_batches = num_micro_batches;
    entrant.row.num_threads = num_threads;
    entrant.contender = make_plain_loop(workload_, models_[0], num_micro_batches, num_threads);
  }

  // The first is what all others are compared with.
  void add_plain_loops() {
    add_plain_loop("plain, 1 thread", num_micro_batches_, 1);
    if (std::thread::hardware_concurrency() > 1) {
      Entrant& both = add("two plain loops", "plain");
      both.contender = make_two_loops(workload_, models_, num_micro_batches_);
      both.has_same_bits = true;
      both.is_shown = false;
    }
    if (!wants("plain")) return;
    const auto threads = static_cast<int>(std::thread::hardware_concurrency());
    if (num_micro_batches_ > 1) add_plain_loop("plain, whole batch", 1, 1);
    if (threads <= 1) return;
    add_plain_loop(fmt::format("plain, {} threads", threads), num_micro_batches_, threads);
    if (num_micro_batches_ > 1) add_plain_loop(fmt::format("{} threads, whole batch", threads), 1, threads);
  }

  void add_data_parallel() {
    Entrant& entrant = add("data parallel x2", "data-parallel");
    entrant.row.num_micro_batches = std::max(1, num_micro_batches_ / 2);
    if (workload_.num_samples() < 2) {
      entrant.row.why_not = "one sample cannot be halved";
    } else {
      entrant.contender = make_data_parallel(workload_, models_, entrant.row.num_micro_batches);
    }
  }

  // With the other cores at work.
  Profile profile_of_a_micro_batch() const {
    const std::int64_t rows = split_batch(workload_.inputs, num_micro_batches_).front().num_samples;
    Tensors sample;
    for (const at::Tensor& input : workload_.inputs) sample.push_back(input.narrow(0, 0, rows));
    const at::Tensor target = workload_.target.narrow(0, 0, rows);
    ProfileOptions options;
    options.busy_neighbours = std::thread::hardware_concurrency() > 1 ? 1 : 0;
    options.loss = [&](const Tensors& outputs) { return workload_.loss(outputs.front(), target); };
    return profile(chain_, sample, options);
  }

  Plan plan_for(int num_stages, const std::string& schedule, Recompute recompute) const {
    PlanOptions options;
    options.num_stages = num_stages;
    options.num_micro_batches = num_micro_batches_;
    options.schedule = schedule;
    options.recompute = recompute;
    options.optimizer_slots = 0;
    options.search_seconds = kSearchSeconds;
    return plan(profile_, options);
  }

  // Of rows that are there once, whatever the schedules.
  const std::string& usual_schedule() const {
    const auto found = std::find(options_.schedules.begin(), options_.schedules.end(), "1f1b");
    return found == options_.schedules.end() ? options_.schedules.front() : *found;
  }

  void add_pipelines() {
    for (const Recompute recompute : options_.recompute) {
      for (const int num_stages : options_.num_stages) {
        for (const std::string& schedule : options_.schedules) {
          // One worker has nothing to schedule: one row is enough.
          if (num_stages == 1 && schedule != usual_schedule()) continue;
          const std::string mode = recompute == Recompute::kNever ? "" : fmt::format(", {}", name(recompute));
          add_pipeline(fmt::format("{}, K={}{}", schedule, num_stages, mode), "threads", num_stages, schedule,
                       recompute);
        }
      }
    }
  }

  void add_processes() {
    if (!wants_stages(kProcessRanks) || usual_schedule() == kSearchedSchedule) return;  // that is on threads only
    const std::string& schedule = usual_schedule();
    add_pipeline(fmt::format("{}, K={}, processes", schedule, kProcessRanks), "processes", kProcessRanks, schedule,
                 options_.recompute.front());
  }

  void add_pipeline(const std::string& name, const std::string& kind, int num_stages, const std::string& schedule,
                    Recompute recompute) {
    Entrant& entrant = add(name, kind);
    BenchRow& row = entrant.row;
    row.num_stages = num_stages;
    row.schedule = schedule;
    row.recompute = gpipe::name(recompute);
    try {
      const Plan found = plan_for(num_stages, schedule, recompute);
      row.layers_per_stage = fmt::format("{}", fmt::join(found.layers_per_stage, "+"));
      row.predicted_bytes = *std::max_element(found.predicted_peak_bytes.begin(), found.predicted_peak_bytes.end());
      if (num_stages <= static_cast<int>(std::thread::hardware_concurrency())) row.bound = bound_of(schedule_of(found));
      if (kind == "processes") {
        entrant.contender = std::make_unique<Ranks>(workload_, found, options_.quick);
      } else {
        entrant.contender = make_pipelined(workload_, chain_, found);
      }
      entrant.has_same_bits = true;
    } catch (const Error& error) {
      row.why_not = cli::on_one_line(error.what());
    }
  }

  // torch.distributed.pipeline.sync.Pipe runs all partitions that are on the processor in one thread. It gets the cut
  // that our own two stages have.
  void add_pipe() {
    const std::string name = "Pipe of python3-torch";
    const auto refuse = [&](const std::string& why) { add(name, "peer").row.why_not = why; };
    if (workload_.sizes_json.empty()) {
      refuse("this model is not written for it");
      return;
    }
    try {
      const Plan cut = plan_for(2, "gpipe", Recompute::kNever);
      const std::string script = folder_of_this_program() + "/" GPIPE_LIBEXEC "/bench-pipe";
      const auto partner =
          std::make_shared<Partner>(std::vector<std::string>{options_.python, script},
                                    nlohmann::json{{"workload", workload_.name},
                                                   {"sizes", nlohmann::json::parse(workload_.sizes_json)},
                                                   {"micro_batches", num_micro_batches_},
                                                   {"balance", cut.layers_per_stage}});
      if (partner->greetings().front().contains("missing")) {
        refuse(kHowToGetPipe);
        return;
      }
      const int own_plain_loop = static_cast<int>(entrants_.size());
      add("python3-torch, plain", "peer").contender = std::make_unique<PeerScript>(partner, "plain");
      Entrant& pipe = add(name, "peer");
      pipe.row.num_stages = 2;
      pipe.row.schedule = "gpipe";
      pipe.row.recompute = gpipe::name(Recompute::kNever);
      pipe.row.layers_per_stage = fmt::format("{}", fmt::join(cut.layers_per_stage, "+"));
      pipe.contender = std::make_unique<PeerScript>(partner, "pipe");
      pipe.own_baseline = own_plain_loop;
    } catch (const Error& error) {
      refuse(cli::on_one_line(error.what()));
    }
  }

  // A partner that fails is a row that did not run; the others go on.
  template <typename Work>
  static void run_or_give_up(Entrant& entrant, const Work& work) {
    if (entrant.contender == nullptr) return;
    try {
      work();
    } catch (const PartnerError& error) {
      entrant.row.why_not = cli::on_one_line(error.what());
      entrant.contender.reset();
    } catch (const nlohmann::json::exception& error) {
      entrant.row.why_not = fmt::format("its answer is not what was asked for: {}", cli::on_one_line(error.what()));
      entrant.contender.reset();
    }
  }

  // Several steps, if one is short.
  void take_turn(Entrant& entrant, bool counts) {
    const bool is_watched = counts && entrant.contender->is_in_this_process();
    TurnResult sum;
    if (is_watched) guard_.begin();
    for (int step = 0; step < steps_per_turn_; ++step) {
      const TurnResult result = entrant.contender->take_turn();
      check_loss(entrant, result.loss);
      sum.seconds += result.seconds;
      sum.cpu_seconds += result.cpu_seconds;
      sum.bubble = result.bubble;
      sum.inside = result.inside;
    }
    if (is_watched) guard_.end();
    if (!counts) return;
    entrant.seconds.push_back(sum.seconds / steps_per_turn_);
    entrant.cpu_seconds.push_back(sum.cpu_seconds / steps_per_turn_);
    if (sum.bubble) entrant.bubble.push_back(*sum.bubble);
    if (sum.inside) entrant.inside.push_back(*sum.inside);
  }

  void check_loss(Entrant& entrant, double loss) {
    entrant.row.loss = loss;
    if (!baseline_loss_) baseline_loss_ = loss;
    if (!entrant.has_same_bits) return;
    entrant.row.same_loss = entrant.row.same_loss.value_or(true) && are_same_bits(loss, *baseline_loss_);
  }

  // From the second step of the plain loop on.
  void choose_steps_per_turn() {
    if (options_.quick) return;
    const double seconds = entrants_.front().contender->take_turn().seconds;
    steps_per_turn_ = static_cast<int>(std::clamp(std::ceil(kLeastTurnSeconds / seconds), 1.0, kMostStepsPerTurn));
  }

  BenchRun result() {
    BenchRun run;
    run.workload = workload_.name;
    run.description = workload_.description;
    run.num_micro_batches = num_micro_batches_;
    run.num_repeats = options_.num_repeats;
    run.steps_per_turn = steps_per_turn_;
    run.noise.others_share = guard_.others_share();
    const std::vector<double>& baseline = entrants_.front().seconds;
    run.noise.baseline_seconds = spread_of(baseline);
    for (Entrant& entrant : entrants_) {
      if (entrant.is_shown || entrant.contender == nullptr) continue;
      std::vector<double> scaling = ratios_turn_by_turn(baseline, entrant.seconds);
      for (double& value : scaling) value *= 2;
      run.noise.two_threads = spread_of(scaling);
    }
    for (Entrant& entrant : entrants_) {
      if (entrant.contender != nullptr) fill(entrant, run.noise);
      if (entrant.is_shown) run.rows.push_back(std::move(entrant.row));
    }
    return run;
  }

  void fill(Entrant& entrant, const Noise& noise) const {
    BenchRow& row = entrant.row;
    row.seconds = spread_of(entrant.seconds);
    row.speed_up = spread_of(ratios_turn_by_turn(entrants_.front().seconds, entrant.seconds));
    row.cpu_seconds = quantile(entrant.cpu_seconds, 0.5);
    if (!entrant.bubble.empty()) row.bubble = quantile(entrant.bubble, 0.5);
    if (!entrant.inside.empty()) row.inside = quantile(entrant.inside, 0.5);
    // What two threads lose on this machine, no schedule can get back.
    if (row.bound && row.num_stages > 1 && noise.two_threads) *row.bound *= noise.two_threads->median / 2;
    if (entrant.own_baseline < 0 || entrants_[entrant.own_baseline].contender == nullptr) return;
    row.own_speed_up = spread_of(ratios_turn_by_turn(entrants_[entrant.own_baseline].seconds, entrant.seconds));
  }

  const Workload& workload_;
  const int num_micro_batches_;
  const BenchOptions& options_;
  // The first account makes all tensors count that are allocated after it.
  const std::shared_ptr<MemoryAccount> counted_ = std::make_shared<MemoryAccount>("bench");
  LayerChain chain_;
  std::vector<std::shared_ptr<PlainModel>> models_;
  Profile profile_;
  std::vector<Entrant> entrants_;
  NoiseGuard guard_;
  std::optional<double> baseline_loss_;
  int steps_per_turn_ = 1;
};

}  // namespace

const std::vector<std::string>& bench_row_kinds() {
  static const auto* kinds = new std::vector<std::string>{"plain", "data-parallel", "threads", "processes", "peers"};
  return *kinds;
}

BenchRun run_bench(const Workload& workload, int num_micro_batches, const BenchOptions& options,
                   const BenchProgress& progress) {
  at::set_num_threads(1);
  return RunInTurns(workload, num_micro_batches, options).run(progress);
}

void run_bench_rank(const std::string& folder) {
  at::set_num_threads(1);
  const World world = read_world();
  PartnerSide side(folder, world.rank);
  const nlohmann::json& spec = side.spec();
  const auto counted = std::make_shared<MemoryAccount>("bench");  // see RunInTurns
  const Workload workload = make_workload(spec.at("workload").get<std::string>(), spec.at("quick").get<bool>());
  const PipelineOptions options = PipelineOptions(world.num_stages())
                                      .num_micro_batches(spec.at("micro_batches").get<int>())
                                      .balance(spec.at("balance").get<std::vector<int>>())
                                      .schedule(spec.at("schedule").get<std::string>())
                                      .recompute(parse_recompute(spec.at("recompute").get<std::string>()));
  Pipeline pipeline(workload.make(), options);
  side.answer({{"ready", true}});
  for (std::string line; side.next(line);) {
    if (line == "turn") {
      pipeline->zero_grad();
      const TurnResult result = step_of(workload, pipeline);
      side.answer({{"seconds", result.seconds}, {"loss", result.loss}});
      continue;
    }
    Pipeline measuring(workload.make(), PipelineOptions(options).measure_memory(true));
    std::vector<StageMemory> memory;
    step_of(workload, measuring, &memory);
    std::vector<std::int64_t> bytes;  // of all stages: every rank gets them
    for (const StageMemory& stage : memory) bytes.push_back(stage.peak_bytes);
    side.answer({{"peak_bytes", bytes}});
  }
}

}  // namespace gpipe::train
