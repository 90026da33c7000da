#include "train/bench_partner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "cli/text.h"

namespace gpipe::train {
namespace {

constexpr double kMostWaitingSeconds = 900;  // for an answer: a step of the largest workload on a slow machine
constexpr double kMostEndingSeconds = 10;
constexpr int kCannotExecute = 127;

std::string turns_of(const std::string& folder, int rank) { return fmt::format("{}/turn.{}", folder, rank); }
std::string answers_of(const std::string& folder, int rank) { return fmt::format("{}/answer.{}", folder, rank); }

// This process holds both ends of it: so opening does not wait for the other side, and nobody gets SIGPIPE.
int make_named_pipe(const std::string& path) {
  if (mkfifo(path.c_str(), 0600) != 0)
    throw PartnerError(fmt::format("cannot make {}: {}", path, std::strerror(errno)));
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) throw PartnerError(fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  return descriptor;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Partner::Partner(std::vector<std::string> program, const nlohmann::json& spec, int num_ranks) {
  std::string pattern = (std::filesystem::temp_directory_path() / "gpipe-bench-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    throw PartnerError(fmt::format("cannot make a folder {}: {}", pattern, std::strerror(errno)));
  }
  folder_ = pattern;
  try {
    std::ofstream(folder_ + "/spec.json") << spec.dump();
    log_ = open((folder_ + "/log").c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ranks_.resize(num_ranks);
    for (int rank = 0; rank < num_ranks; ++rank) {
      ranks_[rank].turns = make_named_pipe(turns_of(folder_, rank));
      ranks_[rank].answers = make_named_pipe(answers_of(folder_, rank));
    }
    program.push_back(folder_);
    start(std::move(program));
    for (Rank& rank : ranks_) greetings_.push_back(read_answer(rank));
  } catch (...) {
    end();
    throw;
  }
  remove_folder();  // all have opened what is in it
}

Partner::~Partner() { end(); }

void Partner::start(std::vector<std::string> program) {
  std::vector<char*> words;
  for (std::string& word : program) words.push_back(word.data());
  words.push_back(nullptr);
  const pid_t parent = getpid();
  process_ = fork();
  if (process_ < 0) throw PartnerError(fmt::format("cannot start {}: {}", program.front(), std::strerror(errno)));
  if (process_ > 0) return;
  // From here on nothing may be allocated: this process has threads.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(kCannotExecute);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(nothing, STDIN_FILENO);
  dup2(log_, STDOUT_FILENO);
  dup2(log_, STDERR_FILENO);
  execvp(words[0], words.data());
  _exit(kCannotExecute);
}

std::vector<nlohmann::json> Partner::ask(const std::string& line) {
  const std::string text = line + "\n";
  for (const Rank& rank : ranks_) {
    if (write(rank.turns, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      throw PartnerError(fmt::format("cannot write to a partner: {}", std::strerror(errno)));
    }
  }
  std::vector<nlohmann::json> answers;
  for (Rank& rank : ranks_) answers.push_back(read_answer(rank));
  return answers;
}

nlohmann::json Partner::read_answer(Rank& rank) {
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    const std::size_t end = rank.unread.find('\n');
    if (end != std::string::npos) {
      const std::string line = rank.unread.substr(0, end);
      rank.unread.erase(0, end + 1);
      nlohmann::json answer = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!answer.is_object())
        throw PartnerError("a partner has answered what cannot be read: " + cli::on_one_line(line));
      if (answer.contains("error")) throw PartnerError(cli::on_one_line(answer["error"].get<std::string>()));
      return answer;
    }
    pollfd wanted{rank.answers, POLLIN, 0};
    if (poll(&wanted, 1, /*timeout=*/200) > 0) {
      char bytes[4096];
      const ssize_t count = read(rank.answers, bytes, sizeof bytes);
      if (count > 0) rank.unread.append(bytes, static_cast<std::size_t>(count));
      continue;
    }
    int status = 0;
    if (waitpid(process_, &status, WNOHANG) == process_) {
      process_ = -1;
      const bool is_missing = WIFEXITED(status) && WEXITSTATUS(status) == kCannotExecute;
      throw PartnerError((is_missing ? "it cannot be started: " : "it has ended: ") + last_words());
    }
    if (seconds_since(start) > kMostWaitingSeconds) throw PartnerError("it does not answer: " + last_words());
  }
}

std::string Partner::last_words() const {
  char bytes[2000];
  const off_t size = lseek(log_, 0, SEEK_END);
  const off_t begin = size > static_cast<off_t>(sizeof bytes) ? size - static_cast<off_t>(sizeof bytes) : 0;
  const ssize_t count = pread(log_, bytes, sizeof bytes, begin);
  std::string text(bytes, static_cast<std::size_t>(count > 0 ? count : 0));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const std::size_t last_line = text.rfind('\n');
  if (last_line != std::string::npos) text.erase(0, last_line + 1);
  return text.empty() ? "it said nothing" : cli::printable(text);
}

void Partner::remove_folder() {
  std::error_code error;  // what is left is a small folder for temporary files
  if (!folder_.empty()) std::filesystem::remove_all(folder_, error);
  folder_.clear();
}

void Partner::end() {
  for (Rank& rank : ranks_) {
    if (rank.turns >= 0) close(rank.turns);
    if (rank.answers >= 0) close(rank.answers);
    rank.turns = rank.answers = -1;
  }
  const auto start = std::chrono::steady_clock::now();
  bool is_told = false;
  while (process_ > 0 && waitpid(process_, nullptr, WNOHANG) == 0) {
    const double waited = seconds_since(start);
    if (waited > kMostEndingSeconds && !is_told) {
      kill(process_, SIGTERM);  // a launcher ends its ranks
      is_told = true;
    }
    if (waited > 2 * kMostEndingSeconds) {
      kill(process_, SIGKILL);
      waitpid(process_, nullptr, 0);
      break;
    }
    poll(nullptr, 0, /*timeout=*/5);
  }
  process_ = -1;
  if (log_ >= 0) close(log_);
  log_ = -1;
  remove_folder();
}

PartnerSide::PartnerSide(const std::string& folder, int rank) {
  std::ifstream file(folder + "/spec.json");
  spec_ = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  turns_ = std::fopen(turns_of(folder, rank).c_str(), "re");
  answers_ = std::fopen(answers_of(folder, rank).c_str(), "we");
  if (!spec_.is_object() || turns_ == nullptr || answers_ == nullptr) {
    throw InvalidArgument(fmt::format("{} is not a folder of gpipe bench", cli::printable_name(folder)));
  }
}

PartnerSide::~PartnerSide() {
  if (turns_ != nullptr) std::fclose(turns_);
  if (answers_ != nullptr) std::fclose(answers_);
}

void PartnerSide::answer(const nlohmann::json& json) {
  std::fputs((json.dump() + "\n").c_str(), answers_);
  std::fflush(answers_);
}

bool PartnerSide::next(std::string& line) {
  line.clear();
  for (int letter = std::fgetc(turns_); letter != EOF; letter = std::fgetc(turns_)) {
    if (letter == '\n') return true;
    line += static_cast<char>(letter);
  }
  return false;
}

}  // namespace gpipe::train
