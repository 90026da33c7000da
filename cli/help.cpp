#include "cli/help.h"

#include <memory>
#include <sstream>

#include "cli/wrap.h"

namespace gpipe::cli {
namespace {

constexpr std::size_t kWidth = 80;
constexpr std::size_t kColumn = 28;

class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(std::string usage) : usage_(std::move(usage)) {
    column_width(kColumn);
    label("Positionals", "Arguments");
  }

  std::string make_usage(const CLI::App*, std::string) const override { return "\nUsage: " + usage_ + "\n"; }

  // In the list of commands, the first line of a description is enough.
  std::string make_subcommand(const CLI::App* command) const override {
    const std::string description = command->get_description();
    std::ostringstream line;
    CLI::detail::format_help(line, command->get_name(), description.substr(0, description.find('\n')), 12);
    return line.str();
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_positional() ? "" : " " + option->get_type_name();
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(option->get_description(), kWidth - kColumn);
  }

  // As CLI11's, but the commands stand before the options, and one empty line between groups is enough.
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    std::string text = make_description(app) + make_usage(app, std::move(name)) + make_positionals(app) +
                       make_subcommands(app, mode) + make_groups(app, mode) + "\n" + make_footer(app);
    for (std::size_t at; (at = text.find("\n\n\n")) != std::string::npos;) text.erase(at, 1);
    return text;
  }

 private:
  std::string usage_;
};

}  // namespace

void set_help(CLI::App& command, const Help& help) {
  command.group("Commands");
  command.description(help.summary + (help.details.empty() ? "" : "\n\n" + wrapped(help.details, kWidth)));
  command.formatter(std::make_shared<HelpFormatter>(help.usage));
  command.footer("Examples:\n" + help.examples);
  command.set_help_flag("-h,--help", "Print this help")->group("Other");
}

}  // namespace gpipe::cli
