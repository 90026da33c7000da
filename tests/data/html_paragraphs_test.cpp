// Paragraphs of HTML pages, good and broken.
#include "data/html_paragraphs.h"

#include <gmock/gmock.h>

#include "gpipe/text/utf8.h"
#include "tests/data/files.h"

namespace gpipe::data {
namespace {

using detail::find_invalid_utf8;
using detail::normalized_space;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// "id=text" of every paragraph.
std::vector<std::string> paragraphs(const std::string& html) {
  std::vector<std::string> shown;
  for (const Paragraph& paragraph : html_paragraphs(html, "page.html")) {
    shown.push_back(paragraph.id + "=" + paragraph.text);
  }
  return shown;
}

const std::string kPage = R"(<!DOCTYPE html>
<html lang="de"><head><meta http-equiv="Content-Type" content="text/html; charset=utf-8"><title>Titel</title>
<script type="text/javascript">if (a < b) document.write("<p id='no'>no</p>");</script>
<style>p { color: red }</style></head>
<body><p dir="auto">without id</p>
<div id="DisplayArea"><h1 id="hd_1" dir="auto">
<a name="x"></a>Über  uns</h1>
<ul><li><p id="par_2" class="listitem">Drücken Sie <span class="switchinline"><span id="MACx"
class="MAC">Befehl</span><span id="defaultx">Strg</span></span>+Z.</p></li></ul>
<p id="par_3"></p><h6 id="hd_4">a &lt;b&gt; &amp; &quot;c&quot;&nbsp;&#8230; &#x20AC;</h6>
<p id="par_5">one<br>two<script>var x = "three";</script></p></div></body></html>)";

TEST(HtmlParagraphs, AreThoseWithAnId) {
  EXPECT_THAT(paragraphs(kPage), ElementsAre("hd_1=Über uns", "par_2=Drücken Sie Strg+Z.",
                                             "par_3=", "hd_4=a <b> & \"c\" … €", "par_5=one two"));
}

TEST(HtmlParagraphs, LeaveOutEverythingInsideAMacElement) {
  EXPECT_THAT(paragraphs("<p id=a>x<span id=MAC1><b>y<i>z</i></b></span>w</p>"), ElementsAre("a=xw"));
  EXPECT_THAT(paragraphs("<div id=MACdiv><p id=a>x</p></div><p id=b>y</p>"), ElementsAre("b=y"));
  EXPECT_THAT(paragraphs("<p id=a>x<span id=mac1>y</span></p>"), ElementsAre("a=xy"));
}

TEST(HtmlParagraphs, EndWhereBrowsersEndThem) {
  EXPECT_THAT(paragraphs("<p id=a>x<p id=b>y"), ElementsAre("a=x", "b=y"));
  EXPECT_THAT(paragraphs("<p id=a>x</span></div>y</p>z"), ElementsAre("a=xy"));
  EXPECT_THAT(paragraphs("<h1 id=a>x</h2>y"), ElementsAre("a=xy"));
}

TEST(HtmlParagraphs, HaveNormalizedWhiteSpace) {
  EXPECT_THAT(paragraphs("<p id=a> \t x\r\n\n y\xc2\xa0\xe2\x80\x89 z&#9;w </p>"), ElementsAre("a=x y z w"));
}

TEST(HtmlParagraphs, AreReadAsUtf8WhateverThePageSays) {
  EXPECT_THAT(paragraphs("<meta charset=iso-8859-1><p id=a>\xc3\xa4</p>"), ElementsAre("a=\xc3\xa4"));
}

TEST(HtmlParagraphs, OfAPageWithoutAnyAreNone) {
  EXPECT_THAT(paragraphs(""), IsEmpty());
  EXPECT_THAT(paragraphs("plain text"), IsEmpty());
  EXPECT_THAT(paragraphs("<p id>x</p>"), IsEmpty());
}

TEST(HtmlParagraphs, OfWhatIsNoTextAreRefused) {
  EXPECT_THAT(refusal([] { html_paragraphs("<p id=a>\xff</p>", "page.html"); }),
              HasSubstr("page.html: not UTF-8 text at byte 8"));
  EXPECT_THAT(refusal([] { html_paragraphs(std::string("<p\0id=a>", 8), "page.html"); }), HasSubstr("at byte 2"));
}

TEST(HtmlParagraphs, AreFoundHoweverDeepTheyAre) {
  std::string html;
  for (int depth = 0; depth < 5000; ++depth) html += "<div>";
  EXPECT_THAT(paragraphs(html + "<p id=a>x</p>"), ElementsAre("a=x"));
}

TEST(HtmlParagraphs, ArbitraryPagesAreReadOrRefusedAndNothingElse) {
  std::mt19937 random(1);
  int num_read = 0;
  for (int round = 0; round < 5000; ++round) {
    const std::string html = mutated(kPage, random);
    try {
      for (const Paragraph& paragraph : html_paragraphs(html, "page.html")) {
        EXPECT_EQ(find_invalid_utf8(paragraph.text), std::string::npos);
        EXPECT_EQ(normalized_space(paragraph.text), paragraph.text);
      }
      ++num_read;
    } catch (const DataError&) {
    }
  }
  EXPECT_GT(num_read, 2000);
  EXPECT_LT(num_read, 5000);
}

}  // namespace
}  // namespace gpipe::data
