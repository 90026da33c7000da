#include "data/data_error.h"

#include <algorithm>

namespace gpipe::data {
namespace {

std::string one_line(std::string text) {
  const auto is_control = [](char character) {
    return static_cast<unsigned char>(character) < 0x20 || static_cast<unsigned char>(character) == 0x7f;
  };
  std::replace_if(text.begin(), text.end(), is_control, '?');
  return text;
}

}  // namespace

DataError::DataError(const std::string& file, const std::string& problem, const std::string& remedy)
    : Error(one_line(file + ": " + problem + "; " + remedy)), file_(file), problem_(problem), remedy_(remedy) {}

DataError DataError::missing(const std::string& file, const std::string& problem, const std::string& remedy) {
  DataError error(file, problem, remedy);
  error.is_missing_ = true;
  return error;
}

DataError DataError::with_remedy(const std::string& remedy) const {
  const std::string generic = kFetchAgain;
  const std::size_t at = remedy_.size() < generic.size() ? std::string::npos : remedy_.size() - generic.size();
  if (at == std::string::npos || remedy_.compare(at, generic.size(), generic) != 0) return *this;
  DataError error(file_, problem_, remedy_.substr(0, at) + remedy);
  error.is_missing_ = is_missing_;
  return error;
}

}  // namespace gpipe::data
