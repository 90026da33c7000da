// Partner: a program that is started once, and takes its turns when it is told to: ranks of a pipeline, or a script.
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gpipe/error.h"

namespace gpipe::train {

// A partner that could not be started, or that ended when it should not have: says why, with its last words.
class PartnerError : public Error {
 public:
  using Error::Error;
};

// Note [Turns]
// A partner of several ranks is told and answers through a folder with a pipe to each rank and one from it, `turn.0`
// and `answer.0`, and with `spec.json`, which says what to run. A rank writes a line of JSON when it is ready, and then
// one for every line that it reads, until there are no more. So it ends by itself when this process does, however that
// ends.
//
// Confined to its thread.
class Partner {
 public:
  // Starts the program, with the folder as its last argument, and waits until all ranks are ready.
  Partner(std::vector<std::string> program, const nlohmann::json& spec, int num_ranks = 1);
  // Tells it that there are no more turns, and waits for it; a partner that does not end is killed.
  ~Partner();
  Partner(const Partner&) = delete;
  Partner& operator=(const Partner&) = delete;

  // What the ranks said when they were ready.
  const std::vector<nlohmann::json>& greetings() const { return greetings_; }
  // What all ranks answer to this line.
  std::vector<nlohmann::json> ask(const std::string& line);

 private:
  struct Rank {
    int turns = -1;
    int answers = -1;
    std::string unread;
  };

  void start(std::vector<std::string> program);
  nlohmann::json read_answer(Rank& rank);
  std::string last_words() const;
  void remove_folder();
  void end();

  std::string folder_;
  int log_ = -1;
  std::vector<Rank> ranks_;
  pid_t process_ = -1;
  std::vector<nlohmann::json> greetings_;
};

// The other side: of a rank in that folder.
class PartnerSide {
 public:
  PartnerSide(const std::string& folder, int rank);
  ~PartnerSide();
  PartnerSide(const PartnerSide&) = delete;
  PartnerSide& operator=(const PartnerSide&) = delete;

  const nlohmann::json& spec() const { return spec_; }
  void answer(const nlohmann::json& json);
  // The next line; false if there are no more.
  bool next(std::string& line);

 private:
  nlohmann::json spec_;
  std::FILE* turns_ = nullptr;
  std::FILE* answers_ = nullptr;
};

}  // namespace gpipe::train
