#include "gpipe/schedule/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/schedule/generators.h"

namespace gpipe {
namespace {

template <typename Selects>
bool has_action(const Schedule& schedule, const Selects& selects) {
  return std::any_of(schedule.workers.begin(), schedule.workers.end(), [&](const std::vector<Action>& actions) {
    return std::any_of(actions.begin(), actions.end(), [&](const Action& action) { return selects(action.kind); });
  });
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f'; }

// What a message may quote of hostile input: printable, and short.
std::string quoted(std::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, 24)) shown += c >= ' ' && c <= '~' ? c : '?';
  if (text.size() > 24) shown += "...";
  return "\"" + shown + "\"";
}

// One token of a line, with the place it stands at for the error message.
struct Token {
  std::string_view text;
  std::int64_t line = 0;
  std::int64_t column = 0;

  [[noreturn]] void fail(const std::string& what) const {
    throw ParseError(fmt::format("line {}, column {}: {}", line, column, what), line, column);
  }
};

// Reads the digits at `position`; -1 if there are none.
int read_number(const Token& token, std::size_t& position, const char* what, std::int64_t end) {
  if (position >= token.text.size() || !is_digit(token.text[position])) return -1;
  std::int64_t value = 0;
  for (; position < token.text.size() && is_digit(token.text[position]); ++position) {
    value = value * 10 + (token.text[position] - '0');
    if (value >= end) token.fail(fmt::format("{}: {} end at {}", quoted(token.text), what, end - 1));
  }
  return static_cast<int>(value);
}

std::optional<ActionKind> kind_of(char c) {
  for (int kind = 0; kind < kNumActionKinds; ++kind) {
    if (c == letter(static_cast<ActionKind>(kind))) return static_cast<ActionKind>(kind);
  }
  return std::nullopt;
}

[[noreturn]] void fail_action(const Token& token) {
  for (const char* word : {"SEND", "RECV", "SHARD", "REDUCE"}) {
    if (token.text.find(word) != std::string_view::npos) {
      token.fail(
          fmt::format("{}: communication is not part of a schedule here, it follows from the actions; "
                      "export the compute actions only",
                      quoted(token.text)));
    }
  }
  token.fail(
      fmt::format("{} is not an action; expected stage, one of F R B I W, micro-batch, such as 1B2, or an "
                  "update, such as 1U",
                  quoted(token.text)));
}

// `default_stage` is the stage of a token that names none; -1 if it must.
Action parse_action(const Token& token, int default_stage) {
  std::size_t position = 0;
  Action action;
  const int stage = read_number(token, position, "stages", kMaxStages);
  action.stage = stage >= 0 ? stage : default_stage;
  const std::optional<ActionKind> kind = position < token.text.size() ? kind_of(token.text[position++]) : std::nullopt;
  if (!kind) fail_action(token);
  action.kind = *kind;
  if (action.kind != ActionKind::kUpdate) {
    action.micro_batch = read_number(token, position, "micro-batches", std::numeric_limits<std::int32_t>::max());
  }
  if (action.micro_batch < 0 || position != token.text.size()) fail_action(token);
  if (action.stage < 0)
    token.fail(fmt::format("{} names no stage; in CSV every cell does, such as 0F0", quoted(token.text)));
  return action;
}

// The actions of a cell of CSV: one, or the two of "(0F5;7B2)OVERLAP_F_B".
std::vector<Action> parse_cell(const Token& cell) {
  constexpr std::string_view kEnd = ")OVERLAP_F_B";
  const std::string_view text = cell.text;
  const bool is_pair =
      text.front() == '(' && text.size() > kEnd.size() && text.substr(text.size() - kEnd.size()) == kEnd;
  if (!is_pair) return {parse_action(cell, -1)};
  const std::string_view inside = text.substr(1, text.size() - kEnd.size() - 1);
  const std::size_t middle = std::min(inside.find(';'), inside.size());
  const std::string_view second = inside.substr(std::min(middle + 1, inside.size()));
  const Action forward = parse_action({inside.substr(0, middle), cell.line, cell.column + 1}, -1);
  Action backward = parse_action({second, cell.line, cell.column + 2 + static_cast<std::int64_t>(middle)}, -1);
  if (forward.kind != ActionKind::kForward || backward.kind != ActionKind::kBackward) {
    cell.fail(fmt::format("{}: a cell of two actions has a forward and a backward, in this order", quoted(text)));
  }
  backward.shares_cell = true;
  return {forward, backward};
}

// Calls `on_line(text without comment, line number)` for every line.
template <typename OnLine>
void for_each_line(std::string_view text, const OnLine& on_line) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.substr(0, kByteOrderMark.size()) == kByteOrderMark) text.remove_prefix(kByteOrderMark.size());
  for (std::int64_t line = 1; !text.empty(); ++line) {
    const std::size_t end = text.find('\n');
    std::string_view content = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    on_line(content.substr(0, content.find('#')), line);
  }
}

// Actions stand between blanks in the text form, and between commas, with blanks around them, in CSV. In the text form
// the stage of an action that names none is that of the line's number.
Schedule parse(std::string_view text, bool is_csv) {
  std::vector<std::vector<Action>> workers;
  std::int64_t count = 0;
  for_each_line(text, [&](std::string_view line, std::int64_t number) {
    if (std::all_of(line.begin(), line.end(), is_blank)) return;
    const int default_stage = static_cast<int>(workers.size());
    auto& actions = workers.emplace_back();
    const auto separates = [is_csv](char c) { return is_csv ? c == ',' : is_blank(c); };
    for (std::size_t begin = 0, end = 0; begin < line.size(); begin = end + 1) {
      end = static_cast<std::size_t>(std::find_if(line.begin() + begin, line.end(), separates) - line.begin());
      std::size_t first = begin;
      std::size_t last = end;
      while (first < last && is_blank(line[first])) ++first;
      while (last > first && is_blank(line[last - 1])) --last;
      if (first == last) continue;
      const Token token{line.substr(first, last - first), number, static_cast<std::int64_t>(first) + 1};
      for (const Action& action : is_csv ? parse_cell(token) : std::vector{parse_action(token, default_stage)}) {
        actions.push_back(action);
        // A file may not have more actions than a generator makes.
        if (++count > kMaxActions) token.fail(fmt::format("a schedule has at most {} actions", kMaxActions));
      }
    }
  });
  Schedule schedule = schedule_from_actions(std::move(workers));
  if (count == 0) throw ParseError("there is no action in it", 0, 0);
  return schedule;
}

// How actions are put together, and the two of a cell.
struct Form {
  std::string_view separator;
  bool with_stages = true;
  std::string_view before_pair;
  std::string_view in_pair;
  std::string_view behind_pair;
};

std::string joined(const Schedule& schedule, const Form& form) {
  std::string text;
  for (const auto& actions : schedule.workers) {
    for (std::size_t index = 0; index < actions.size(); ++index) {
      const Action& action = actions[index];
      const bool ends_pair = index > 0 && action.shares_cell && actions[index - 1].kind == ActionKind::kForward;
      const bool begins_pair =
          index + 1 < actions.size() && action.kind == ActionKind::kForward && actions[index + 1].shares_cell;
      if (index > 0) text += ends_pair ? form.in_pair : form.separator;
      if (begins_pair) text += form.before_pair;
      if (form.with_stages) fmt::format_to(std::back_inserter(text), "{}", action.stage);
      text += letter(action.kind);
      if (action.kind != ActionKind::kUpdate) fmt::format_to(std::back_inserter(text), "{}", action.micro_batch);
      if (ends_pair) text += form.behind_pair;
    }
    text += '\n';
  }
  return text;
}

}  // namespace

std::int64_t Schedule::num_actions() const {
  std::int64_t count = 0;
  for (const auto& actions : workers) count += static_cast<std::int64_t>(actions.size());
  return count;
}

bool Schedule::splits_backward() const {
  return has_action(*this, [](ActionKind kind) { return kind == ActionKind::kInputGrad; });
}

bool Schedule::has_updates() const {
  return has_action(*this, [](ActionKind kind) { return kind == ActionKind::kUpdate; });
}

bool Schedule::has_backward() const {
  return has_action(*this, [](ActionKind kind) { return kind != ActionKind::kForward; });
}

bool operator==(const Schedule& a, const Schedule& b) {
  return a.num_stages == b.num_stages && a.num_micro_batches == b.num_micro_batches &&
         a.worker_of_stage == b.worker_of_stage && a.workers == b.workers;
}

bool operator!=(const Schedule& a, const Schedule& b) { return !(a == b); }

Schedule first_micro_batches(Schedule schedule, int count) {
  schedule.num_micro_batches = std::min(schedule.num_micro_batches, count);
  for (std::vector<Action>& actions : schedule.workers) {
    actions.erase(std::remove_if(actions.begin(), actions.end(),
                                 [&](const Action& action) { return action.micro_batch >= count; }),
                  actions.end());
  }
  return schedule;
}

Schedule without_updates(Schedule schedule) {
  for (std::vector<Action>& actions : schedule.workers) {
    actions.erase(std::remove_if(actions.begin(), actions.end(),
                                 [](const Action& action) { return action.kind == ActionKind::kUpdate; }),
                  actions.end());
  }
  return schedule;
}

Schedule with_updates(Schedule schedule) {
  schedule = without_updates(std::move(schedule));
  for (std::vector<Action>& actions : schedule.workers) {
    std::vector<int> done;  // stages, the last first
    for (auto action = actions.rbegin(); action != actions.rend(); ++action) {
      if (!makes_weight_grad(action->kind)) continue;
      if (std::count(done.begin(), done.end(), action->stage) == 0) done.push_back(action->stage);
    }
    for (auto stage = done.rbegin(); stage != done.rend(); ++stage) actions.push_back({ActionKind::kUpdate, *stage, 0});
  }
  return schedule;
}

Schedule schedule_from_actions(std::vector<std::vector<Action>> workers, std::string name) {
  Schedule schedule;
  schedule.name = std::move(name);
  schedule.workers = std::move(workers);
  for (int worker = 0; worker < schedule.num_workers(); ++worker) {
    for (const Action& action : schedule.workers[worker]) {
      if (action.stage < 0 || action.stage >= kMaxStages || action.micro_batch < 0 ||
          action.micro_batch == std::numeric_limits<std::int32_t>::max()) {
        throw InvalidArgument(
            fmt::format("worker {} has an action of stage {} and micro-batch {}; both count from 0, and "
                        "stages end at {}",
                        worker, action.stage, action.micro_batch, kMaxStages - 1));
      }
      schedule.num_stages = std::max(schedule.num_stages, action.stage + 1);
      schedule.num_micro_batches = std::max(schedule.num_micro_batches, action.micro_batch + 1);
      schedule.worker_of_stage.resize(schedule.num_stages, -1);
      int& owner = schedule.worker_of_stage[action.stage];
      if (owner < 0) owner = worker;
    }
  }
  return schedule;
}

std::string to_text(const Schedule& schedule) {
  std::vector<int> identity(schedule.worker_of_stage.size());
  std::iota(identity.begin(), identity.end(), 0);
  const bool stage_is_worker = schedule.worker_of_stage == identity && schedule.num_workers() == schedule.num_stages;
  return joined(schedule, {" ", !stage_is_worker, "", " ", ""});
}

std::string to_csv(const Schedule& schedule) { return joined(schedule, {",", true, "(", ";", ")OVERLAP_F_B"}); }

Schedule parse_text(std::string_view text) { return parse(text, false); }

Schedule parse_csv(std::string_view text) { return parse(text, true); }

Schedule parse_schedule(std::string_view text) {
  bool has_comma = false;
  for_each_line(text,
                [&](std::string_view line, std::int64_t) { has_comma |= line.find(',') != std::string_view::npos; });
  return has_comma ? parse_csv(text) : parse_text(text);
}

}  // namespace gpipe
