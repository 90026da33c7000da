// DataError: bad data, said in one line: which file, where in it, what is wrong, what to do.
#pragma once

#include <string>

#include "gpipe/error.h"

namespace gpipe::data {

class DataError : public Error {
 public:
  // `file` may be a folder or the name of a data set. `problem` says what is wrong and where in the file; `remedy` is an
  // imperative. The message is "file: problem; remedy", with a '?' for every control character: it stays one line.
  DataError(const std::string& file, const std::string& problem, const std::string& remedy);
  const std::string& file() const { return file_; }

 private:
  std::string file_;
};

}  // namespace gpipe::data
