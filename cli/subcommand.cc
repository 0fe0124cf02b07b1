#include "cli/subcommand.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/size.h"

namespace farpage::cli {
namespace {

// "--lend-bytes" -> "LEND_BYTES"
std::string upper_snake(const std::string& text) {
  std::string name;
  for (const char c : text.substr(text.find_first_not_of('-')))
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

// "-s,--size" -> "--size"
std::string long_form(const std::string& flag) {
  return flag.substr(flag.find(',') + 1);
}

// Converts the text into a plain number before CLI11 reads it.
CLI::Validator size_validator() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const Result<uint64_t> bytes = parse_size(text);
        if (!bytes) return bytes.error().context;
        text = std::to_string(*bytes);
        return {};
      },
      "");
}

std::string footer_of(const std::vector<std::string>& examples) {
  std::string footer = "Examples:";
  for (const std::string& example : examples) footer += "\n  " + example;
  return footer;
}

std::string format_duration(Milliseconds value) {
  const auto count = value.count();
  return count % 1000 == 0 ? fmt::format("{}s", count / 1000) : fmt::format("{}ms", count);
}

}  // namespace

Result<Milliseconds> parse_duration(const std::string& text) {
  uint64_t count = 0;
  const char* end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data(), end, count);
  const std::string unit(rest, end);
  uint64_t unit_ms = 0;
  if (unit == "ms") unit_ms = 1;
  if (unit == "s" || unit.empty()) unit_ms = 1000;
  if (unit == "m") unit_ms = 60'000;
  if (unit == "h") unit_ms = 3'600'000;
  constexpr uint64_t kMaxHours = uint64_t{366} * 24;
  constexpr uint64_t kMaxMs = kMaxHours * 3'600'000;
  if (problem == std::errc::invalid_argument || unit_ms == 0)
    return fail(ErrorCode::kInvalid,
                fmt::format("'{}' is not a duration: write a number with ms, s, m or h, such as "
                            "30s",
                            text));
  if (problem == std::errc::result_out_of_range || count > kMaxMs / unit_ms)
    return fail(ErrorCode::kInvalid, fmt::format("'{}' is too long: at most {}h", text, kMaxHours));
  return Milliseconds(count * unit_ms);
}

Subcommand::Subcommand(CLI::App& root, const std::string& name, const std::string& summary,
                       const std::vector<std::string>& examples)
    : app_(root.add_subcommand(name, summary)) {
  app_->footer(footer_of(examples));
  app_->fallthrough();  // --log-level and --config may follow the subcommand
}

void Subcommand::last(CLI::Option* option, const std::string& flag, Scope scope) {
  std::string prefix;
  if (scope == Scope::kOwn)
    for (const CLI::App* app = app_; app->get_parent() != nullptr; app = app->get_parent())
      prefix.insert(0, upper_snake(app->get_name()) + "_");
  option->envname("FARPAGE_" + prefix + upper_snake(long_form(flag)));
  last_ = option;
}

Subcommand& Subcommand::text(const std::string& flag, std::string& value, const std::string& help,
                             Scope scope) {
  last(app_->add_option(flag, value, help)->type_name("TEXT"), flag, scope);
  if (!value.empty()) last_->default_str(value);
  return *this;
}

Subcommand& Subcommand::texts(const std::string& flag, std::vector<std::string>& values,
                              const std::string& help) {
  CLI::Option* option = app_->add_option(flag, values, help)->type_name("TEXT");
  last(option->delimiter(',')->expected(1)->take_all(), flag, Scope::kOwn);
  return *this;
}

Subcommand& Subcommand::choice(const std::string& flag, std::string& value,
                               const std::vector<std::string>& allowed, const std::string& help,
                               Scope scope) {
  last(app_->add_option(flag, value, help)->default_str(value)->check(CLI::IsMember(allowed)), flag,
       scope);
  return *this;
}

Subcommand& Subcommand::number(const std::string& flag, int64_t& value, int64_t lowest,
                               int64_t highest, const std::string& help) {
  last(app_->add_option(flag, value, help)
           ->default_str(std::to_string(value))
           ->type_name("NUMBER")
           ->check(CLI::Range(lowest, highest)),
       flag, Scope::kOwn);
  return *this;
}

template <typename Value>
CLI::Option* Subcommand::add_size(const std::string& flag, Value& bytes, const std::string& help) {
  return app_->add_option(flag, bytes, help)->type_name("SIZE")->transform(size_validator());
}

Subcommand& Subcommand::size(const std::string& flag, uint64_t& bytes, const std::string& help) {
  last(add_size(flag, bytes, help)->default_str(format_size(bytes)), flag, Scope::kOwn);
  return *this;
}

Subcommand& Subcommand::size(const std::string& flag, std::optional<uint64_t>& bytes,
                             const std::string& help) {
  last(add_size(flag, bytes, help), flag, Scope::kOwn);
  return *this;
}

template <typename Value>
void Subcommand::add_duration(const std::string& flag, Value& value, const std::string& help) {
  // The text is parsed twice: for the error message, then for the value.
  const auto check = [](std::string& text) -> std::string {
    const Result<Milliseconds> parsed = parse_duration(text);
    return parsed ? std::string() : parsed.error().context;
  };
  const auto store = [&value](const std::string& text) {
    if (const Result<Milliseconds> parsed = parse_duration(text)) value = *parsed;
  };
  last(app_->add_option_function<std::string>(flag, store, help)
           ->type_name("DURATION")
           ->check(CLI::Validator(check, "")),
       flag, Scope::kOwn);
}

Subcommand& Subcommand::duration(const std::string& flag, Milliseconds& value,
                                 const std::string& help) {
  add_duration(flag, value, help);
  last_->default_str(format_duration(value));
  return *this;
}

Subcommand& Subcommand::duration(const std::string& flag, std::optional<Milliseconds>& value,
                                 const std::string& help) {
  add_duration(flag, value, help);
  return *this;
}

Subcommand& Subcommand::flag(const std::string& flag, bool& value, const std::string& help) {
  last(app_->add_flag(flag, value, help), flag, Scope::kOwn);
  return *this;
}

Subcommand& Subcommand::needs(const std::string& flag) {
  last_->needs(app_->get_option(flag));
  return *this;
}

Subcommand& Subcommand::excludes(const std::string& flag) {
  last_->excludes(app_->get_option(flag));
  return *this;
}

Subcommand& Subcommand::excludes_all_but(const std::vector<std::string>& flags) {
  std::vector<const CLI::Option*> others{last_, app_->get_help_ptr()};
  for (const std::string& flag : flags) others.push_back(app_->get_option(flag));
  for (CLI::Option* option : app_->get_options())
    if (std::find(others.begin(), others.end(), option) == others.end()) last_->excludes(option);
  return *this;
}

Subcommand& Subcommand::positional(const std::string& name, int64_t& value, int64_t lowest,
                                   int64_t highest, const std::string& help) {
  last_ = app_->add_option(name, value, help)
              ->type_name("")
              ->check(CLI::Range(lowest, highest))
              ->required()
              ->configurable(false);
  return *this;
}

Subcommand& Subcommand::positional(const std::string& name, std::string& value,
                                   const std::string& help) {
  last_ = app_->add_option(name, value, help)->type_name("")->required()->configurable(false);
  return *this;
}

Subcommand& Subcommand::required() {
  last_->required()->default_str("");
  return *this;
}

Subcommand& Subcommand::command_line(std::vector<std::string>& value, const std::string& help) {
  app_->fallthrough(false);
  app_->add_option("command", value, help)->required()->configurable(false);
  app_->positionals_at_end();
  return *this;
}

CLI::App& add_group(CLI::App& root, const std::string& name, const std::string& summary,
                    const std::vector<std::string>& examples) {
  CLI::App* group = root.add_subcommand(name, summary);
  group->footer(footer_of(examples));
  group->require_subcommand(1);
  group->fallthrough();
  return *group;
}

void Subcommand::on_run(Invocation& invocation, std::function<Result<int>()> run) {
  app_->callback([&invocation, run = std::move(run)] { invocation.run = run; });
}

}  // namespace farpage::cli
