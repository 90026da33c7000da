#include "data/html_paragraphs.h"

#include <fmt/format.h>
#include <libxml/HTMLparser.h>
#include <libxml/parserInternals.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <utility>

#include "data/data_error.h"
#include "gpipe/text/utf8.h"

namespace gpipe::data {
namespace {

using detail::find_invalid_utf8;
using detail::normalized_space;

// Listens to libxml2, which reports every element's start and end in balance, also where the page leaves them out. The
// parser is C: an exception waits until it has returned.
class Listener {
 public:
  void start(std::string_view name, const char* id) {
    ++depth_;
    if (dropped_depth_ > 0) return;
    const bool is_mac = id != nullptr && std::strncmp(id, "MAC", 3) == 0;
    if (is_mac || name == "script" || name == "style") {
      dropped_depth_ = depth_;
    } else if (name == "br") {
      text_ += ' ';
    } else if (paragraph_depth_ == 0 && id != nullptr && is_paragraph(name)) {
      paragraph_depth_ = depth_;
      paragraphs_.push_back({id, ""});
      text_.clear();
    }
  }

  void end() {
    if (depth_ == paragraph_depth_) {
      paragraphs_.back().text = normalized_space(text_);
      paragraph_depth_ = 0;
    }
    if (depth_ == dropped_depth_) dropped_depth_ = 0;
    if (depth_ > 0) --depth_;
  }

  void characters(std::string_view text) {
    if (paragraph_depth_ > 0 && dropped_depth_ == 0) text_ += text;
  }

  // Runs an event; after one that has thrown, none.
  template <typename Event>
  void guarded(const Event& event) noexcept {
    if (exception_ != nullptr) return;
    try {
      event();
    } catch (...) {
      exception_ = std::current_exception();
    }
  }

  std::vector<Paragraph> take() {
    if (exception_ != nullptr) std::rethrow_exception(exception_);
    return std::move(paragraphs_);
  }

 private:
  static bool is_paragraph(std::string_view name) {
    return name == "p" || (name.size() == 2 && name[0] == 'h' && name[1] >= '1' && name[1] <= '6');
  }

  std::int64_t depth_ = 0;            // elements that are open
  std::int64_t paragraph_depth_ = 0;  // that of the open paragraph, 0 if there is none
  std::int64_t dropped_depth_ = 0;    // that of the outermost element that is left out, 0 if there is none
  std::string text_;
  std::vector<Paragraph> paragraphs_;
  std::exception_ptr exception_;
};

const char* as_chars(const xmlChar* text) { return reinterpret_cast<const char*>(text); }

void on_start(void* listener, const xmlChar* name, const xmlChar** attributes) {
  const char* id = nullptr;
  for (; attributes != nullptr && *attributes != nullptr; attributes += 2) {
    if (std::strcmp(as_chars(attributes[0]), "id") == 0 && attributes[1] != nullptr) id = as_chars(attributes[1]);
  }
  auto* self = static_cast<Listener*>(listener);
  self->guarded([&] { self->start(as_chars(name), id); });
}

void on_end(void* listener, const xmlChar* /*name*/) {
  auto* self = static_cast<Listener*>(listener);
  self->guarded([&] { self->end(); });
}

void on_characters(void* listener, const xmlChar* text, int size) {
  auto* self = static_cast<Listener*>(listener);
  self->guarded([&] { self->characters({as_chars(text), static_cast<std::size_t>(size)}); });
}

void check_text(std::string_view html, const std::string& file) {
  const std::size_t at = std::min(find_invalid_utf8(html), html.find('\0'));
  if (at != std::string_view::npos) {
    throw DataError(file, fmt::format("not UTF-8 text at byte {}", at), kFetchAgain);
  }
  if (html.size() > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    throw DataError(file, "longer than 2 GiB", "is it a page of the help?");
  }
}

}  // namespace

std::vector<Paragraph> html_paragraphs(std::string_view html, const std::string& file) {
  check_text(html, file);
  static const bool is_initialized = (xmlInitParser(), true);  // not safe to run in two threads at a time
  static_cast<void>(is_initialized);
  if (html.empty()) return {};
  Listener listener;
  const std::unique_ptr<htmlParserCtxt, void (*)(htmlParserCtxtPtr)> parser(
      htmlCreateMemoryParserCtxt(html.data(), static_cast<int>(html.size())), htmlFreeParserCtxt);
  if (parser == nullptr) throw std::bad_alloc();
  htmlCtxtUseOptions(parser.get(), HTML_PARSE_NONET | HTML_PARSE_IGNORE_ENC);
  *parser->sax = {};  // no tree, no messages: only these
  parser->sax->startElement = on_start;
  parser->sax->endElement = on_end;
  parser->sax->characters = on_characters;
  parser->sax->ignorableWhitespace = on_characters;
  parser->userData = &listener;
  xmlSwitchEncoding(parser.get(), XML_CHAR_ENCODING_UTF8);  // whatever the page says
  htmlParseDocument(parser.get());
  return listener.take();
}

}  // namespace gpipe::data
