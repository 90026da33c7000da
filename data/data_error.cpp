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
    : Error(one_line(file + ": " + problem + "; " + remedy)), file_(file) {}

}  // namespace gpipe::data
