// DataError: bad data, said in one line: which file, where in it, what is wrong, what to do.
#pragma once

#include <string>

#include "gpipe/error.h"

namespace gpipe::data {

// The remedy where nobody knows yet which data set the file is of.
constexpr const char* kFetchAgain = "fetch or copy it again";

class DataError : public Error {
 public:
  // `file` may be a folder or the name of a data set. `problem` says what is wrong and where in the file; `remedy` is
  // an imperative. The message is "file: problem; remedy", with a '?' for every control character: it stays one line.
  DataError(const std::string& file, const std::string& problem, const std::string& remedy);
  // The same for a file or a data set that is not there.
  static DataError missing(const std::string& file, const std::string& problem, const std::string& remedy);
  const std::string& file() const { return file_; }
  bool is_missing() const { return is_missing_; }

  // The same with `remedy` in the place of kFetchAgain, at the end; another remedy stays.
  DataError with_remedy(const std::string& remedy) const;

 private:
  std::string file_;
  std::string problem_;
  std::string remedy_;
  bool is_missing_ = false;
};

// What `read` returns; its errors get the remedy.
template <typename Read>
auto read_with_remedy(const std::string& remedy, const Read& read) {
  try {
    return read();
  } catch (const DataError& error) {
    throw error.with_remedy(remedy);
  }
}

}  // namespace gpipe::data
