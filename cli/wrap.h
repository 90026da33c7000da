// Text on lines of a given width.
#pragma once

#include <cstddef>
#include <string>

namespace gpipe::cli {

// The words of `text` on lines of at most `width` letters (a longer word gets a line of its own); lines after the first
// start with `indent` blanks that count as none of them.
std::string wrapped(const std::string& text, std::size_t width, std::size_t indent = 0);

// `text` with its front replaced by ".." if it is longer than `width`: dotted names of layers differ at the end.
std::string shortened(const std::string& text, std::size_t width);

}  // namespace gpipe::cli
