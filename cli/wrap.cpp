#include "cli/wrap.h"

#include <sstream>

#include "gpipe/text/utf8.h"

namespace gpipe::cli {

using detail::continues_character;

std::string wrapped(const std::string& text, std::size_t width, std::size_t indent) {
  std::string lines;
  std::size_t used = 0;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const bool fits = used + 1 + word.size() <= width;
    if (used > 0) lines += fits ? " " : "\n" + std::string(indent, ' ');
    used = used > 0 && fits ? used + 1 + word.size() : word.size();
    lines += word;
  }
  return lines;
}

std::string shortened(const std::string& text, std::size_t width) {
  if (text.size() <= width || width < 2) return text;
  std::size_t begin = text.size() - (width - 2);
  while (begin < text.size() && continues_character(text[begin])) ++begin;
  return ".." + text.substr(begin);
}

}  // namespace gpipe::cli
