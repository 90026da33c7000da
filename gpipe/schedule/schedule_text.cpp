// The text and CSV forms of a schedule, both ways.
#include <fmt/format.h>

#include <limits>
#include <numeric>

#include "gpipe/error.h"
#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {
namespace {

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

bool read_kind(char c, ActionKind& kind) {
  for (const ActionKind candidate : {ActionKind::kForward, ActionKind::kRecompute, ActionKind::kBackward,
                                     ActionKind::kInputGrad, ActionKind::kWeightGrad}) {
    if (c == letter(candidate)) {
      kind = candidate;
      return true;
    }
  }
  return false;
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
  token.fail(fmt::format("{} is not an action; expected stage, one of F R B I W, micro-batch, such as 1B2",
                         quoted(token.text)));
}

// Appends an action; a file may not have more of them than a generator makes.
void append(std::vector<Action>& actions, const Action& action, std::int64_t& count, const Token& token) {
  if (++count > kMaxActions) token.fail(fmt::format("a schedule has at most {} actions", kMaxActions));
  actions.push_back(action);
}

// `default_stage` is the stage of a token that names none; -1 if it must.
Action parse_action(const Token& token, int default_stage) {
  std::size_t position = 0;
  Action action;
  const int stage = read_number(token, position, "stages", kMaxStages);
  action.stage = stage >= 0 ? stage : default_stage;
  if (position >= token.text.size() || !read_kind(token.text[position], action.kind)) fail_action(token);
  ++position;
  action.micro_batch = read_number(token, position, "micro-batches", std::numeric_limits<std::int32_t>::max());
  if (action.micro_batch < 0 || position != token.text.size()) fail_action(token);
  if (action.stage < 0)
    token.fail(fmt::format("{} names no stage; in CSV every cell does, such as 0F0", quoted(token.text)));
  return action;
}

// The two tokens of a cell such as "(0F5;7B2)OVERLAP_F_B"; empty if it is another one.
std::vector<Token> tokens_of_pair(const Token& cell) {
  constexpr std::string_view kEnd = ")OVERLAP_F_B";
  const std::string_view text = cell.text;
  if (text.front() != '(' || text.size() < kEnd.size() || text.substr(text.size() - kEnd.size()) != kEnd) return {};
  const std::string_view inside = text.substr(1, text.size() - kEnd.size() - 1);
  const std::size_t middle = inside.find(';');
  if (middle == std::string_view::npos) return {};
  return {{inside.substr(0, middle), cell.line, cell.column + 1},
          {inside.substr(middle + 1), cell.line, cell.column + 2 + static_cast<std::int64_t>(middle)}};
}

// Appends the actions of a cell.
void append_cell(std::vector<Action>& actions, const Token& cell, std::int64_t& count) {
  const std::vector<Token> pair = tokens_of_pair(cell);
  if (pair.empty()) {
    append(actions, parse_action(cell, -1), count, cell);
    return;
  }
  const Action forward = parse_action(pair[0], -1);
  Action backward = parse_action(pair[1], -1);
  if (forward.kind != ActionKind::kForward || backward.kind != ActionKind::kBackward) {
    cell.fail(fmt::format("{}: a cell of two actions has a forward and a backward, in this order", quoted(cell.text)));
  }
  backward.shares_cell = true;
  append(actions, forward, count, pair[0]);
  append(actions, backward, count, pair[1]);
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

bool is_empty_line(std::string_view line) {
  for (const char c : line) {
    if (!is_blank(c)) return false;
  }
  return true;
}

Schedule finish(std::vector<std::vector<Action>> workers) {
  Schedule schedule = schedule_from_actions(std::move(workers));
  if (schedule.num_actions() == 0) throw ParseError("there is no action in it", 0, 0);
  return schedule;
}

}  // namespace

std::string to_text(const Schedule& schedule) {
  std::vector<int> identity(schedule.worker_of_stage.size());
  std::iota(identity.begin(), identity.end(), 0);
  const bool stage_is_worker = schedule.worker_of_stage == identity && schedule.num_workers() == schedule.num_stages;
  std::string text;
  for (const auto& actions : schedule.workers) {
    bool first = true;
    for (const Action& action : actions) {
      if (!first) text += ' ';
      first = false;
      if (!stage_is_worker) fmt::format_to(std::back_inserter(text), "{}", action.stage);
      fmt::format_to(std::back_inserter(text), "{}{}", letter(action.kind), action.micro_batch);
    }
    text += '\n';
  }
  return text;
}

Schedule parse_text(std::string_view text) {
  std::vector<std::vector<Action>> workers;
  std::int64_t count = 0;
  for_each_line(text, [&](std::string_view line, std::int64_t number) {
    if (is_empty_line(line)) return;
    const int worker = static_cast<int>(workers.size());
    auto& actions = workers.emplace_back();
    for (std::size_t begin = 0; begin < line.size();) {
      if (is_blank(line[begin])) {
        ++begin;
        continue;
      }
      std::size_t end = begin;
      while (end < line.size() && !is_blank(line[end])) ++end;
      const Token token{line.substr(begin, end - begin), number, static_cast<std::int64_t>(begin) + 1};
      append(actions, parse_action(token, worker), count, token);
      begin = end;
    }
  });
  return finish(std::move(workers));
}

std::string to_csv(const Schedule& schedule) {
  std::string text;
  for (const auto& actions : schedule.workers) {
    for (std::size_t index = 0; index < actions.size(); ++index) {
      if (index > 0) text += ',';
      const bool is_pair = index + 1 < actions.size() && actions[index].kind == ActionKind::kForward &&
                           actions[index + 1].kind == ActionKind::kBackward && actions[index + 1].shares_cell;
      text += is_pair ? fmt::format("({};{})OVERLAP_F_B", to_string(actions[index]), to_string(actions[index + 1]))
                      : to_string(actions[index]);
      if (is_pair) ++index;
    }
    text += '\n';
  }
  return text;
}

Schedule parse_csv(std::string_view text) {
  std::vector<std::vector<Action>> workers;
  std::int64_t count = 0;
  for_each_line(text, [&](std::string_view line, std::int64_t number) {
    if (is_empty_line(line)) return;
    auto& actions = workers.emplace_back();
    for (std::size_t begin = 0; begin <= line.size();) {
      std::size_t end = line.find(',', begin);
      if (end == std::string_view::npos) end = line.size();
      std::size_t first = begin;
      std::size_t last = end;
      while (first < last && is_blank(line[first])) ++first;
      while (last > first && is_blank(line[last - 1])) --last;
      if (first < last) {
        const Token token{line.substr(first, last - first), number, static_cast<std::int64_t>(first) + 1};
        append_cell(actions, token, count);
      }
      begin = end + 1;
    }
  });
  return finish(std::move(workers));
}

Schedule parse_schedule(std::string_view text) {
  bool has_comma = false;
  for_each_line(text,
                [&](std::string_view line, std::int64_t) { has_comma |= line.find(',') != std::string_view::npos; });
  return has_comma ? parse_csv(text) : parse_text(text);
}

}  // namespace gpipe
