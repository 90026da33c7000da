#include "gpipe/simulate/schedule_search.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/plan/long_plan.h"
#include "gpipe/plan/stage_rematerialization.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/simulate/clock.h"
#include "gpipe/simulate/list_scheduler.h"
#include "gpipe/simulate/plan_trials.h"
#include "gpipe/text/require.h"

namespace gpipe {
namespace {

using detail::Clock;
using detail::CostTable;
using detail::is_faster;
using detail::list_schedule;
using detail::ListPolicy;
using detail::make_cost_table;
using detail::peak_bytes_by_worker;
using detail::plan_with_order;
using detail::require;
using detail::set_rematerialization;
using detail::TokenGame;
using detail::with_recompute;

// What a simulated second of work is: about as many actions as one core of 2020 goes through in it.
constexpr double kActionsPerSecond = 5e6;
// At most so much of the work is for list schedules before one of them is improved.
constexpr double kShareOfLists = 0.4;
// Stages a worker, at most, that are tried.
constexpr int kMostChunks = 4;
// Every point of the search is written out.
constexpr double kMostActions = 500'000;
constexpr double kForever = std::numeric_limits<double>::infinity();

// The costs of stages on their workers, as the simulator wants them.
struct CutCosts {
  Costs costs;
  FlowTable table;
  CostTable by_action;
  std::vector<StageBytes> bytes;
};

// One schedule with its cut.
struct Point {
  Schedule order;  // with its recomputes
  std::vector<int> layers_per_stage;
  std::vector<Recompute> modes;                      // one per stage
  std::vector<Rematerialization> rematerialization;  // one per stage, or none at all; with some, the cut stays
  std::shared_ptr<const CutCosts> cut;
  double seconds = kForever;
  std::vector<SpanRef> critical_path;
};

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  int below(int count) { return static_cast<int>(engine_() % static_cast<std::uint64_t>(count)); }
  bool coin() { return below(2) == 0; }

 private:
  std::mt19937_64 engine_;  // the standard says what it draws, unlike its distributions
};

// How much of the work is done.
class Work {
 public:
  using OnProgress = std::function<void(double share, double step_seconds)>;

  Work(double seconds, const OnProgress& on_progress)
      : budget_(seconds * kActionsPerSecond), on_progress_(on_progress) {}

  void spend(std::int64_t num_actions) { spent_ += static_cast<double>(num_actions); }
  double spent() const { return spent_; }
  double left() const { return std::max(0.0, budget_ - spent_); }

  void report(double step_seconds) {
    if (!on_progress_ || spent_ < next_report_) return;
    on_progress_(std::min(1.0, spent_ / budget_), step_seconds);
    next_report_ = spent_ + budget_ / 100;
  }

 private:
  const double budget_;
  const OnProgress& on_progress_;
  double spent_ = 0;
  double next_report_ = 0;
};

// Runs points in the simulator.
class Judge {
 public:
  Judge(const Profile& profile, const PlanOptions& options, Work& work)
      : profile_(profile), options_(options), work_(work) {}

  std::shared_ptr<const CutCosts> cut(const Schedule& placement, const std::vector<int>& layers_per_stage) const {
    Costs costs = stage_costs(profile_, layers_per_stage, options_.link, options_.optimizer_slots);
    costs.workers = options_.workers;
    return cut(placement, std::move(costs));
  }
  static std::shared_ptr<const CutCosts> cut(const Schedule& placement, Costs costs) {
    auto result = std::make_shared<CutCosts>();
    result->table = make_flow_table(placement, costs.routes);
    result->by_action = make_cost_table(placement, result->table, costs);
    result->bytes = stage_bytes(costs);
    result->costs = std::move(costs);
    return result;
  }

  // Fills the time and the critical path. False if it takes longer than `most`, does not fit, or cannot run.
  bool judge(Point& point, double most) {
    work_.spend(point.order.num_actions());
    Clock clock(point.order, point.cut->table, point.cut->by_action, /*record=*/true);
    if (!TokenGame<Clock>(point.order, point.cut->table, {}, clock).run()) return false;
    if (clock.makespan_seconds > most || !fits(point)) return false;
    point.seconds = clock.makespan_seconds;
    point.critical_path = clock.critical_path();
    return true;
  }

  Schedule listed(const Point& point, const ListPolicy& policy) {
    work_.spend(point.order.num_actions());
    std::vector<bool> recomputes;
    for (const Recompute mode : point.modes) recomputes.push_back(mode != Recompute::kNever);
    return with_recompute(list_schedule(point.order, point.cut->table, point.cut->by_action, recomputes, policy),
                          point.modes);
  }

  Work& work() { return work_; }

 private:
  bool fits(const Point& point) const {
    if (!options_.has_memory_limit()) return true;
    const std::vector<std::int64_t> peak_bytes = peak_bytes_by_worker(point.order, point.cut->bytes);
    for (int worker = 0; worker < point.order.num_workers(); ++worker) {
      if (peak_bytes[worker] > options_.memory_limit_of(worker)) return false;
    }
    return true;
  }

  const Profile& profile_;
  const PlanOptions& options_;
  Work& work_;
};

// Whether two actions of a worker have to stay in their order, as far as their stage is concerned. Between stages, the
// simulator tells.
bool keep_their_order(const Action& a, const Action& b) {
  if (a.stage != b.stage) return false;
  return a.micro_batch == b.micro_batch || a.kind == b.kind || (makes_input_grad(a.kind) && makes_input_grad(b.kind)) ||
         (makes_weight_grad(a.kind) && makes_weight_grad(b.kind));
}

// Whether a weight gradient stands right behind its input gradient, which is at `index`.
bool is_needlessly_split(const std::vector<Action>& actions, std::size_t index) {
  const Action& action = actions[index];
  return action.kind == ActionKind::kInputGrad && index + 1 < actions.size() &&
         actions[index + 1] == Action(ActionKind::kWeightGrad, action.stage, action.micro_batch);
}

void join(std::vector<Action>& actions, std::size_t index) {
  actions[index].kind = ActionKind::kBackward;
  actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(index) + 1);
}

// How many activations a worker holds before it begins no more, in each of the ways that are tried.
std::vector<int> max_live(int way, const Schedule& placement) {
  const int num_workers = placement.num_workers();
  const int chunks = placement.num_stages / num_workers;
  std::vector<int> live;
  for (int worker = 0; worker < num_workers; ++worker) {
    const int behind = num_workers - worker;
    const std::array<int, 7> ways = {chunks * num_workers,
                                     chunks * behind,
                                     chunks * (2 * behind - 1),
                                     chunks * (num_workers + 1) / 2,
                                     chunks * num_workers * 3 / 2,
                                     chunks * num_workers * 2,
                                     chunks * placement.num_micro_batches};
    live.push_back(std::max(1, ways[way]));
  }
  return live;
}
constexpr int kNumWaysToHold = 7;

constexpr std::array kKinds = {ListPolicy::Kind::kBackward, ListPolicy::Kind::kForward, ListPolicy::Kind::kInTurn};
constexpr std::array kStages = {ListPolicy::Stage::kLater, ListPolicy::Stage::kEarlier,
                                ListPolicy::Stage::kOldestMicroBatch};
constexpr std::array kPatience = {0.0, 0.5, 1.0};

std::vector<ListPolicy> all_policies(const Schedule& placement) {
  const bool has_chunks = placement.num_stages > placement.num_workers();
  std::vector<ListPolicy> policies;
  for (int way = 0; way < kNumWaysToHold; ++way) {
    for (const ListPolicy::Kind kind : kKinds) {
      for (const ListPolicy::Stage stage : kStages) {
        if (!has_chunks && stage != kStages.front()) continue;
        for (const double patience : kPatience) {
          policies.push_back({kind, stage, patience, /*splits_backward=*/true, max_live(way, placement)});
        }
        policies.push_back({kind, stage, 0, /*splits_backward=*/false, max_live(way, placement)});
      }
    }
  }
  return policies;
}

bool has_ends_in_place(const Schedule& schedule) {
  return schedule.worker_of_stage.front() == 0 && schedule.worker_of_stage.back() == schedule.num_workers() - 1;
}

// The random moves of Note [Schedule search].
class LocalSearch {
 public:
  LocalSearch(const PlanOptions& options, Judge& judge, Random& random)
      : leaves_recompute_(options.recompute == Recompute::kAuto && options.recompute_by_stage.empty() &&
                          options.has_memory_limit()),
        are_alike_(options.workers.empty()),
        keeps_ends_(options.search_keeps_ends),
        judge_(judge),
        random_(random) {}

  void improve(Point& point, double actions) {
    const double end = judge_.work().spent() + actions;
    while (judge_.work().spent() < end) {
      judge_.work().spend(1 + point.order.num_actions() / 4);  // of the move itself
      Point trial = point;
      if (move(trial) && judge_.judge(trial, point.seconds)) point = std::move(trial);
      judge_.work().report(point.seconds);
    }
  }

 private:
  // False if there is no such move.
  bool move(Point& point) {
    const int dice = random_.below(100);
    if (dice < 10) return point.rematerialization.empty() && move_layer(point);
    if (dice < 14) return leaves_recompute_ && point.rematerialization.empty() && change_recompute(point);
    if (dice < 16) return !are_alike_ && point.rematerialization.empty() && swap_workers(point);
    if (dice < 18) return list_anew(point);
    if (dice < 26) return join_or_split(point);
    return move_action(point);
  }

  bool move_action(Point& point) {
    if (point.critical_path.empty()) return false;
    const SpanRef at = point.critical_path[random_.below(static_cast<int>(point.critical_path.size()))];
    std::vector<Action>& actions = point.order.workers[at.worker];
    const int step = random_.coin() ? -1 : 1;
    int to = at.index;
    for (int left = 1 + random_.below(1 << random_.below(5)); left > 0; --left) {
      const int next = to + step;
      if (next < 0 || next >= static_cast<int>(actions.size())) break;
      if (keep_their_order(actions[next], actions[at.index])) break;
      to = next;
    }
    if (to == at.index) return false;
    const auto begin = actions.begin();
    if (to < at.index) std::rotate(begin + to, begin + at.index, begin + at.index + 1);
    if (to > at.index) std::rotate(begin + at.index, begin + at.index + 1, begin + to + 1);
    return true;
  }

  bool join_or_split(Point& point) {
    const int worker = random_.below(point.order.num_workers());
    std::vector<Action>& actions = point.order.workers[worker];
    const int index = random_.below(static_cast<int>(actions.size()));
    Action& action = actions[index];
    if (action.kind == ActionKind::kBackward) {
      action.kind = ActionKind::kInputGrad;
      actions.insert(actions.begin() + index + 1, {ActionKind::kWeightGrad, action.stage, action.micro_batch});
      return true;
    }
    if (!is_needlessly_split(actions, index)) return false;
    join(actions, index);
    return true;
  }

  bool move_layer(Point& point) {
    std::vector<int>& layers = point.layers_per_stage;
    if (layers.size() < 2) return false;
    const int stage = random_.below(static_cast<int>(layers.size()) - 1);
    const bool goes_on = random_.coin();
    int& from = layers[goes_on ? stage : stage + 1];
    int& to = layers[goes_on ? stage + 1 : stage];
    if (from == 1) return false;
    --from;
    ++to;
    point.cut = judge_.cut(point.order, layers);
    return random_.coin() || list_anew(point);
  }

  bool change_recompute(Point& point) {
    constexpr std::array kChoices = {Recompute::kNever, Recompute::kExceptLast, Recompute::kAlways};
    Recompute& mode = point.modes[random_.below(static_cast<int>(point.modes.size()))];
    mode = kChoices[random_.below(static_cast<int>(kChoices.size()))];
    point.order = with_recompute(std::move(point.order), point.modes);
    return true;
  }

  bool swap_workers(Point& point) {
    const int num_workers = point.order.num_workers();
    if (num_workers < 2) return false;
    const int a = random_.below(num_workers);
    const int b = (a + 1 + random_.below(num_workers - 1)) % num_workers;
    std::swap(point.order.workers[a], point.order.workers[b]);
    for (int& worker : point.order.worker_of_stage) {
      if (worker == a || worker == b) worker = a + b - worker;
    }
    if (keeps_ends_ && !has_ends_in_place(point.order)) return false;
    point.cut = judge_.cut(point.order, point.layers_per_stage);
    return true;
  }

  bool list_anew(Point& point) {
    ListPolicy policy;
    policy.kind = kKinds[random_.below(static_cast<int>(kKinds.size()))];
    policy.stage = kStages[random_.below(static_cast<int>(kStages.size()))];
    policy.patience = kPatience[random_.below(static_cast<int>(kPatience.size()))];
    policy.splits_backward = random_.below(4) != 0;
    policy.max_live = max_live(random_.below(kNumWaysToHold), point.order);
    for (int& live : policy.max_live) live = std::max(1, live - 1 + random_.below(3));
    point.order = judge_.listed(point, policy);
    return true;
  }

  const bool leaves_recompute_;
  const bool are_alike_;
  const bool keeps_ends_;
  Judge& judge_;
  Random& random_;
};

bool is_shorter(const Point& a, const Point& b) { return a.seconds < b.seconds; }

// The named schedules with what `plan` chooses for them.
struct Named {
  std::vector<Point> points;  // the fastest first
  std::vector<PlanCandidate> candidates;
  Plan best;  // the fastest; among equals the one that holds least
  double best_seconds = kForever;
};

std::int64_t fullest_bytes(const Plan& plan) {
  return *std::max_element(plan.predicted_peak_bytes.begin(), plan.predicted_peak_bytes.end());
}

std::vector<int> chunk_choices(const ScheduleInfo& info, int num_workers, std::size_t num_layers) {
  std::vector<int> choices;
  for (int chunks = 1; chunks <= kMostChunks; ++chunks) {
    const bool is_tried = info.chunks_step == 0 ? chunks == info.default_chunks : chunks >= 2;
    const std::size_t num_stages = static_cast<std::size_t>(num_workers) * static_cast<std::size_t>(chunks);
    if (is_tried && takes_chunks(info, chunks) && (chunks == 1 || num_stages <= num_layers)) choices.push_back(chunks);
  }
  return choices;
}

Named plan_named(const Profile& profile, PlanOptions options, Judge& judge) {
  Named named;
  std::optional<InfeasibleError> refused;
  for (const ScheduleInfo& info : schedule_registry()) {
    for (const int chunks : chunk_choices(info, options.num_stages, profile.layers.size())) {
      options.schedule = info.name;
      options.chunks = chunks;
      PlanSearch found;
      try {
        found = search_plans(profile, options);
      } catch (const InfeasibleError& error) {
        if (!refused || error.missing_bytes() < refused->missing_bytes()) refused.emplace(error);
        continue;
      }
      const Plan& plan = found.best;
      Point point;
      point.order = schedule_of(plan);
      if (!point.order.has_backward()) continue;
      if (options.search_keeps_ends && !has_ends_in_place(point.order)) continue;
      point.layers_per_stage = plan.layers_per_stage;
      point.modes = plan.recompute_by_stage.empty()
                        ? std::vector<Recompute>(plan.layers_per_stage.size(), plan.recompute)
                        : plan.recompute_by_stage;
      point.rematerialization = plan.rematerialization;
      point.cut = Judge::cut(point.order, plan.costs);
      if (!judge.judge(point, kForever)) continue;
      const bool is_equal =
          !is_faster(point.seconds, named.best_seconds) && !is_faster(named.best_seconds, point.seconds);
      if (is_equal ? fullest_bytes(plan) < fullest_bytes(named.best) : point.seconds < named.best_seconds) {
        named.best = plan;
        named.best_seconds = point.seconds;
      }
      named.candidates.push_back(found.candidates.front());
      named.points.push_back(std::move(point));
    }
  }
  if (named.points.empty() && refused) throw *refused;
  std::stable_sort(named.points.begin(), named.points.end(), is_shorter);
  std::stable_sort(named.candidates.begin(), named.candidates.end(),
                   [](const PlanCandidate& a, const PlanCandidate& b) { return a.step_seconds < b.step_seconds; });
  return named;
}

// Those with different stages or placements, the fastest first, at most two cuts of a placement.
std::vector<Point> places_to_list(const std::vector<Point>& named) {
  constexpr int kMostCuts = 2;
  std::vector<Point> places;
  for (const Point& point : named) {
    int num_cuts = 0;
    bool is_new = true;
    for (const Point& other : places) {
      if (other.order.worker_of_stage != point.order.worker_of_stage) continue;
      ++num_cuts;
      is_new = is_new && other.layers_per_stage != point.layers_per_stage;
    }
    if (!is_new || num_cuts == kMostCuts || !point.rematerialization.empty()) continue;
    places.push_back(point);
  }
  return places;
}

// The best list schedules of each place.
std::vector<Point> list_all(const std::vector<Point>& places, Judge& judge, double actions) {
  std::vector<std::vector<ListPolicy>> policies;
  std::size_t most = 0;
  for (const Point& place : places) {
    policies.push_back(all_policies(place.order));
    most = std::max(most, policies.back().size());
  }
  const double end = judge.work().spent() + actions;
  std::vector<Point> best = places;
  for (Point& point : best) point.seconds = kForever;
  for (std::size_t policy = 0; policy < most; ++policy) {
    for (std::size_t place = 0; place < places.size(); ++place) {
      if (policy >= policies[place].size()) continue;
      if (judge.work().spent() >= end) break;
      Point point = places[place];
      point.order = judge.listed(point, policies[place][policy]);
      if (judge.judge(point, best[place].seconds)) best[place] = std::move(point);
    }
  }
  best.erase(std::remove_if(best.begin(), best.end(), [](const Point& point) { return point.seconds == kForever; }),
             best.end());
  return best;
}

// Half of the points drop out after each round, until one is left, which gets what is left of the work.
Point improve_best(std::vector<Point> points, LocalSearch& search, Work& work) {
  constexpr std::size_t kMostPoints = 8;
  std::stable_sort(points.begin(), points.end(), is_shorter);
  if (points.size() > kMostPoints) points.resize(kMostPoints);
  const double left = work.left();
  while (points.size() > 1) {
    const double share = left / 4 / static_cast<double>(points.size());
    for (Point& point : points) search.improve(point, std::min(share, work.left()));
    std::stable_sort(points.begin(), points.end(), is_shorter);
    points.resize(points.size() / 2);
  }
  search.improve(points.front(), work.left());
  return std::move(points.front());
}

// The input gradients whose weight gradients stand right behind them.
std::vector<Action> needlessly_split(const Schedule& order) {
  std::vector<Action> found;
  for (const std::vector<Action>& actions : order.workers) {
    for (std::size_t index = 0; index < actions.size(); ++index) {
      if (is_needlessly_split(actions, index)) found.push_back(actions[index]);
    }
  }
  return found;
}

// Joins as many of [begin, end) as the step does not get slower by, in one piece or in halves.
void join_all(Point& point, const std::vector<Action>& all, std::size_t begin, std::size_t end, Judge& judge) {
  if (begin == end) return;
  Point trial = point;
  for (std::size_t index = begin; index < end; ++index) {
    std::vector<Action>& actions = trial.order.workers[trial.order.worker_of_stage[all[index].stage]];
    join(actions, static_cast<std::size_t>(std::find(actions.begin(), actions.end(), all[index]) - actions.begin()));
  }
  if (judge.judge(trial, point.seconds)) {
    point = std::move(trial);
    return;
  }
  if (end - begin == 1) return;
  const std::size_t middle = begin + (end - begin) / 2;
  join_all(point, all, begin, middle, judge);
  join_all(point, all, middle, end, judge);
}

double backward_seconds(const CostTable& costs, int stage) {
  return std::min(
      costs.seconds({ActionKind::kBackward, stage, 0}),
      costs.seconds({ActionKind::kInputGrad, stage, 0}) + costs.seconds({ActionKind::kWeightGrad, stage, 0}));
}

StepBound bound_of_cut(const Schedule& schedule, const CostTable& costs) {
  StepBound bound;
  std::vector<double> busy = costs.update_seconds;
  std::vector<double> head(schedule.num_workers(), kForever);  // before the first forward of the worker
  double forwards = 0;
  for (int stage = 0; stage < schedule.num_stages; ++stage) {
    const int worker = schedule.worker_of_stage[stage];
    const double forward = costs.seconds({ActionKind::kForward, stage, 0});
    const double backward = backward_seconds(costs, stage);
    busy[worker] += schedule.num_micro_batches * (forward + backward);
    head[worker] = std::min(head[worker], forwards);
    forwards += forward;
    bound.critical_path_seconds += forward + (stage == 0 ? backward
                                                         : std::min(costs.seconds({ActionKind::kInputGrad, stage, 0}),
                                                                    costs.seconds({ActionKind::kBackward, stage, 0})));
  }
  for (int worker = 0; worker < schedule.num_workers(); ++worker) {
    if (head[worker] != kForever) {
      bound.busiest_worker_seconds = std::max(bound.busiest_worker_seconds, head[worker] + busy[worker]);
    }
  }
  return bound;
}

StepBound bound_of_any_cut(const Profile& profile, const PlanOptions& options) {
  double speed = 0;
  double fastest = 0;
  for (int worker = 0; worker < options.num_stages; ++worker) {
    const double one = speed_of(options.workers, worker);
    speed += one;
    fastest = std::max(fastest, one);
  }
  StepBound bound;
  double work = 0;
  double longest_layer = 0;
  for (const LayerProfile& layer : profile.layers) {
    const double input_grad = std::min(input_grad_seconds(layer), layer.backward_seconds);
    const double both = std::min(layer.backward_seconds, input_grad_seconds(layer) + weight_grad_seconds(layer));
    work += layer.forward_seconds + both;
    longest_layer = std::max(longest_layer, layer.forward_seconds + both);
    bound.critical_path_seconds += (layer.forward_seconds + input_grad) / fastest;
  }
  bound.busiest_worker_seconds = options.num_micro_batches * std::max(work / speed, longest_layer / fastest);
  return bound;
}

Plan plan_of(const Profile& profile, PlanOptions options, Point point) {
  const bool is_one =
      std::all_of(point.modes.begin(), point.modes.end(), [&](Recompute mode) { return mode == point.modes.front(); });
  options.recompute = is_one ? point.modes.front() : Recompute::kAuto;
  options.recompute_by_stage = is_one ? std::vector<Recompute>() : point.modes;
  point.order.name = kSearchedSchedule;
  Plan plan = plan_with_order(profile, options, std::move(point.order), point.layers_per_stage);
  set_rematerialization(plan, profile, point.rematerialization);
  plan.predicted_step_seconds = point.seconds;
  plan.predicted_peak_bytes = peak_bytes_by_worker(*plan.order, stage_bytes(plan.costs));
  return plan;
}

}  // namespace

double StepBound::seconds() const { return std::max(busiest_worker_seconds, critical_path_seconds); }

double ScheduleSearch::gap() const {
  const double bound = of_any_cut.seconds();
  return bound > 0 ? best.predicted_step_seconds / bound - 1 : 0;
}

ScheduleSearch search_schedules(const Profile& measured, const PlanOptions& wanted,
                                const std::function<void(double share, double step_seconds)>& on_progress) {
  require(wanted.search_seconds > 0 && wanted.search_seconds <= 1e6,
          "a search of {} seconds; expected more than 0, at most 1000000", wanted.search_seconds);
  require(wanted.num_micro_batches > 0,
          "a search is for one number of micro-batches, and num_micro_batches is {}; expected 1 or more",
          wanted.num_micro_batches);
  require(wanted.chunks == 0, "a search chooses how many stages a worker has, and {} chunks are given; leave them out",
          wanted.chunks);
  require(wanted.recompute_by_stage.empty(),
          "a search chooses the stages, and recompute_by_stage is for {}; give recompute, for all of them",
          wanted.recompute_by_stage.size());
  const double actions_a_micro_batch = 4.0 * kMostChunks * std::max(1, wanted.num_stages);
  require(actions_a_micro_batch * wanted.num_micro_batches <= kMostActions,
          "{} workers and {} micro-batches are too many to search; ask for at most {:.0f} micro-batches",
          wanted.num_stages, wanted.num_micro_batches, std::max(1.0, kMostActions / actions_a_micro_batch));
  PlanOptions options = wanted;
  Profile profile = measured;
  if (options.mini_batch_samples > 0) {
    profile = for_micro_batches(measured, options.mini_batch_samples, options.num_micro_batches);
    options.mini_batch_samples = 0;
  }
  Work work(options.search_seconds, on_progress);
  Judge judge(profile, options, work);
  Random random(options.search_seed);
  LocalSearch local(options, judge, random);
  Named named = plan_named(profile, options, judge);
  std::vector<Point> points = list_all(places_to_list(named.points), judge, work.left() * kShareOfLists);
  points.insert(points.begin(), named.points.begin(), named.points.end());
  Point best = improve_best(std::move(points), local, work);
  const std::vector<Action> split = needlessly_split(best.order);
  join_all(best, split, 0, split.size(), judge);

  ScheduleSearch result;
  result.named = std::move(named.candidates);
  result.best =
      is_faster(best.seconds, named.best_seconds) ? plan_of(profile, options, std::move(best)) : std::move(named.best);
  const Schedule schedule = schedule_of(result.best);
  ValidateOptions proof;
  proof.routes = result.best.costs.routes;
  proof.compute_capacities = false;
  if (options.has_memory_limit()) {
    proof.stages = stage_bytes(result.best.costs);
    for (int worker = 0; worker < options.num_stages; ++worker) {
      proof.memory_limit_bytes.push_back(options.memory_limit_of(worker));
    }
  }
  validate(schedule, proof);
  result.of_cut = bound_of_cut(schedule, Judge::cut(schedule, result.best.costs)->by_action);
  result.of_any_cut = bound_of_any_cut(profile, options);
  return result;
}

}  // namespace gpipe
