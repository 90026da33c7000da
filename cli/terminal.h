// Standard output and standard error: what the terminal can show, and writing to them.
#pragma once

#include <string>
#include <string_view>

namespace gpipe::cli {

// The value of a variable of the environment; empty if it is not set.
std::string environment(const char* variable);

enum class Colour { kAuto, kAlways, kNever };

// "auto", "always", "never". Throws InvalidArgument for any other word, naming the nearest valid one.
Colour parse_colour(std::string_view word);

// With kAuto: `fd` is a terminal, NO_COLOR is unset or empty and TERM is not "dumb".
bool shows_colour(Colour colour, int fd = 1);

// Columns of the terminal on `fd` (or COLUMNS, where it does not tell); 100 when output goes elsewhere.
int output_width(int fd = 1);

// The columns of a text chart: a whole number from 20 to 10000. Throws InvalidArgument for anything else.
int parse_width(std::string_view word);

// Throws UsageError when standard output cannot take it, except for a reader that has gone away (`| head`): nobody is
// left to be told.
void print(std::string_view text);
void flush_output();

// "gpipe: <message>" and the hint, indented, on standard error. Then what was left by tell_after_error.
void print_error(std::string_view message, std::string_view hint = "");
// Keeps a message for the next print_error: what else went wrong because of an error that is still on its way.
void tell_after_error(std::string message);

}  // namespace gpipe::cli
