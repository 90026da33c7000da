// LineCutter: cuts the bytes of one stream into lines.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace gpipe::cli {

class LineCutter {
 public:
  using Take = std::function<void(std::string_view line)>;

  // `take` gets every line, without its end. One of more than `longest_bytes` (at least 4) arrives in several, none of
  // which ends within a letter of UTF-8.
  LineCutter(std::size_t longest_bytes, Take take);

  void add(std::string_view bytes);
  // What came after the last end of a line is a line, too.
  void finish();

 private:
  void take_too_long();

  std::size_t longest_bytes_;
  Take take_;
  std::string begun_;
};

}  // namespace gpipe::cli
