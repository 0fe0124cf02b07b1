#include "serve/pager_messages.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "uffd/handover.h"

namespace farpage::serve {
namespace {

// The text of an error of this code.
template <typename Value>
std::string refused(const Result<Value>& result, ErrorCode code = ErrorCode::kInvalid) {
  if (result.has_value()) return "it was taken";
  EXPECT_EQ(result.error().code, code);
  return result.error().message();
}

std::string with_version(const std::string& members) {
  return "{\"version\":" + std::to_string(uffd::handover::kVersion) + "," + members + "}";
}

TEST(PagerMessages, RequestsArriveAsTheyWereSent) {
  for (const auto fork :
       {pager::ForkMode::kRefuse, pager::ForkMode::kPullIn, pager::ForkMode::kShare}) {
    const std::string line = to_line(PagerRequest(BeginRun{"so\nrt", 5 << 20, fork}));
    EXPECT_EQ(line.find('\n'), line.size() - 1);
    const auto request = request_from_line(line);
    ASSERT_TRUE(request) << request.error().message();
    const auto* begin = std::get_if<BeginRun>(&*request);
    ASSERT_NE(begin, nullptr);
    EXPECT_EQ(begin->program, "so\nrt");
    EXPECT_EQ(begin->local_bytes, 5U << 20);
    EXPECT_EQ(begin->fork, fork);
  }
  const auto finish = request_from_line(to_line(PagerRequest(FinishRun{137})));
  ASSERT_TRUE(finish);
  EXPECT_EQ(std::get<FinishRun>(*finish).exit_status, 137);
  const auto upgrade = request_from_line(to_line(PagerRequest(Upgrade{"/opt/new/farpage", 3})));
  ASSERT_TRUE(upgrade);
  EXPECT_EQ(std::get<Upgrade>(*upgrade).binary, "/opt/new/farpage");
  EXPECT_EQ(std::get<Upgrade>(*upgrade).state_version, 3U);
  const auto status = request_from_line(to_line(PagerRequest(AskStatus{})));
  ASSERT_TRUE(status);
  EXPECT_TRUE(std::holds_alternative<AskStatus>(*status));
}

TEST(PagerMessages, AWrongRequestNamesItsField) {
  const auto problem = [](const std::string& members) {
    return refused(request_from_line(with_version(members)));
  };
  EXPECT_NE(refused(request_from_line("begin")).find("not a JSON object"), std::string::npos);
  EXPECT_NE(refused(request_from_line("[]")).find("not a JSON object"), std::string::npos);
  EXPECT_NE(refused(request_from_line("{}")).find("version"), std::string::npos);
  EXPECT_NE(refused(request_from_line(R"({"version":1,"status":{}})"), ErrorCode::kUnsupported)
                .find("another version"),
            std::string::npos);
  EXPECT_NE(problem(R"("x":{})").find("begin, finish, status, report or upgrade"),
            std::string::npos);
  EXPECT_NE(problem(R"("begin":7)").find("begin, finish, status, report or upgrade"),
            std::string::npos);
  EXPECT_NE(problem(R"("begin":{"program":7})").find("program"), std::string::npos);
  EXPECT_NE(problem(R"("begin":{"program":"a"})").find("local_bytes"), std::string::npos);
  EXPECT_NE(problem(R"("begin":{"program":"a","local_bytes":-1})").find("local_bytes"),
            std::string::npos);
  EXPECT_NE(problem(R"("begin":{"program":"a","local_bytes":1})").find("fork"), std::string::npos);
  EXPECT_NE(problem(R"("begin":{"program":"a","local_bytes":1,"fork":"maybe"})").find("fork"),
            std::string::npos);
  EXPECT_NE(problem(R"("finish":{"exit_status":"good"})").find("exit_status"), std::string::npos);
  EXPECT_NE(problem(R"("upgrade":{"binary":7,"state_version":1})").find("binary"),
            std::string::npos);
  EXPECT_NE(problem(R"("upgrade":{"binary":"a"})").find("state_version"), std::string::npos);
}

TEST(PagerMessages, ARefusalIsTheErrorThatItCarries) {
  const std::string line = to_line(Error{ErrorCode::kExhausted, "8M of it is left", 0});
  const auto expect_it = [](const Error& error) {
    EXPECT_EQ(error.code, ErrorCode::kExhausted);
    EXPECT_EQ(error.message(), "8M of it is left");
  };
  expect_it(accepted_from_line(line).error());
  expect_it(report_from_line(line).error());
  expect_it(status_from_line(line).error());
  EXPECT_TRUE(accepted_from_line(accepted_line()));
}

TEST(PagerMessages, AnswersArriveAsTheyWereSent) {
  const auto report = report_from_line(
      to_line(RunReport{"two\nlines\n", "{\"a\":1}\n", {.local_bytes = 3, .far_bytes = 9}}));
  ASSERT_TRUE(report);
  EXPECT_EQ(report->text, "two\nlines\n");
  EXPECT_EQ(report->json, "{\"a\":1}\n");
  EXPECT_EQ(report->memory.local_bytes, 3U);
  EXPECT_EQ(report->memory.far_bytes, 9U);

  const TargetStatus target{"sort", 12, "shm,tcp", 100, 90, 800, 7, 1.5};
  const PagerStatus sent{
      7, "farpage", 1000, {{"sort big.txt", 11, 1000, 200, {target, target}}, {}}};
  const auto status = status_from_line(to_line(sent));
  ASSERT_TRUE(status);
  EXPECT_EQ(json_of(*status), json_of(sent));
  EXPECT_EQ(status->runs.at(0).targets.at(1).faults, 7U);
  EXPECT_EQ(nlohmann::json::parse(json_of(sent))["runs"][0]["targets"][0]["fault_p99_us"], 1.5);
}

TEST(PagerMessages, ASnapshotPagerTellsOfItsGuests) {
  PagerStatus sent{.engine = 7, .binary = "farpage", .local_bytes = 0, .runs = {}, .guests = 3};
  auto status = status_from_line(to_line(sent));
  ASSERT_TRUE(status);
  EXPECT_EQ(status->guests, 3U);
  sent.guests.reset();
  status = status_from_line(to_line(sent));
  ASSERT_TRUE(status);
  EXPECT_FALSE(status->guests.has_value());
}

TEST(PagerMessages, ARequestHasAVersion) {
  EXPECT_TRUE(is_request(to_line(PagerRequest(AskStatus{}))));
  EXPECT_TRUE(is_request(R"({"version":0})"));
  for (const char* line : {"", "[]", "{}", R"({"image":"a","socket":"b"})", R"({"version":)"})
    EXPECT_FALSE(is_request(line)) << line;
}

TEST(PagerMessages, AnAnswerOfAnotherBuildIsAnError) {
  for (const char* line :
       {"", "{}", R"({"report":7})", R"({"accepted":{}})", R"({"error":{"code":7}})"})
    EXPECT_NE(refused(report_from_line(line), report_from_line(line).error().code), "") << line;
  EXPECT_NE(refused(report_from_line(R"({"report":{"text":"a"}})"), ErrorCode::kUnsupported), "");
  EXPECT_NE(refused(status_from_line(
                        R"({"pager":{"engine":7,"binary":"a","local_bytes":"a","runs":[]}})"),
                    ErrorCode::kUnsupported),
            "");
}

}  // namespace
}  // namespace farpage::serve
