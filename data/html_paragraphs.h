// The paragraphs of an HTML page that have an id.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpipe::data {

struct Paragraph {
  std::string id;
  std::string text;  // entities unescaped, white space normalized; may be empty
};

// The p and h1 to h6 elements with an id, in the order of the page. Left out is what stands in script and style
// elements, and in elements whose id starts with MAC: LibreOffice's help has two texts there, of which a browser shows
// one. Broken HTML is read as browsers do. Throws DataError, with `file` in its message, if the page is not UTF-8 text.
std::vector<Paragraph> html_paragraphs(std::string_view html, const std::string& file);

}  // namespace gpipe::data
