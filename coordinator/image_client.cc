#include "coordinator/image_client.h"

#include <fmt/format.h>

#include "coordinator/api_json.h"
#include "coordinator/leader_caller.h"

namespace farpage::coordinator {
namespace {

class HttpImageClient final : public ImageClient {
 public:
  HttpImageClient(std::unique_ptr<LeaderCaller> caller, Milliseconds timeout)
      : caller_(std::move(caller)), timeout_(timeout) {}

  Result<ImageInfo> create_image(const ImageCreate& image) override {
    FARPAGE_TRY(answer, call("POST", "/v1/images", encode(image)));
    return decode_image_info(answer);
  }
  Status checkpoint(const ImageId& image, const ImageProgress& progress) override {
    return call_for_status("PUT", of_image(image, "/checkpoint"), encode(progress));
  }
  Status complete(const ImageId& image, const ImageProgress& progress) override {
    return call_for_status("POST", of_image(image, "/complete"), encode(progress));
  }
  Result<OpenedImage> open(const ImageId& image, const ImageReader& reader) override {
    FARPAGE_TRY(answer, call("POST", of_image(image, "/open"), encode(reader)));
    return decode_opened_image(answer);
  }
  Result<ReaderHeard> renew(const ImageId& image, const ImageReader& reader) override {
    FARPAGE_TRY(answer, call("PUT", of_image(image, "/reader"), encode(reader)));
    if (answer.empty()) return ReaderHeard{};  // of a release that repairs no images
    return decode_reader_heard(answer);
  }
  Status close(const ImageId& image, const ImageReader& reader) override {
    return call_for_status("POST", of_image(image, "/close"), encode(reader));
  }
  Result<std::vector<ImageInfo>> images() override {
    FARPAGE_TRY(answer, call("GET", "/v1/images", ""));
    return decode_image_list(answer);
  }
  Result<ImageInfo> image(const ImageId& image) override {
    FARPAGE_TRY(answer, call("GET", of_image(image, ""), ""));
    return decode_image_info(answer);
  }
  Status remove(const ImageId& image, bool force) override {
    // The coordinator calls the nodes meanwhile.
    const auto answer = caller_->call("DELETE", of_image(image, force ? "?force=true" : ""), "",
                                      timeout_ + kAgentAllowance);
    if (!answer) return tl::unexpected(answer.error());
    return {};
  }

 private:
  Result<std::string> call(const char* method, const std::string& path,
                           const std::string& body) const {
    return caller_->call(method, path, body, timeout_);
  }
  Status call_for_status(const char* method, const std::string& path,
                         const std::string& body) const {
    const auto answer = call(method, path, body);
    if (!answer) return tl::unexpected(answer.error());
    return {};
  }
  static std::string of_image(const ImageId& image, std::string_view rest) {
    return fmt::format("/v1/images/{}{}", image.value, rest);
  }

  const std::unique_ptr<LeaderCaller> caller_;
  const Milliseconds timeout_;
};

}  // namespace

Result<std::unique_ptr<ImageClient>> ImageClient::create(const ClientOptions& options) {
  FARPAGE_TRY(caller, LeaderCaller::create(options.url, options.token));
  if (options.timeout <= Milliseconds(0))
    return fail(ErrorCode::kInvalid, "coordinator: timeout must be more than 0 ms");
  return std::make_unique<HttpImageClient>(std::move(caller), options.timeout);
}

}  // namespace farpage::coordinator
