#include "coordinator/api_json.h"
#include "coordinator/routes.h"

namespace farpage::coordinator {
namespace {

http::Reply create_image(Cluster& cluster, const http::Request& request) {
  const auto create = decode_image_create(request.body);
  if (!create) return http::problem_reply(create.error());
  const auto image = cluster.create_image(*create);
  if (!image) return http::problem_reply(image.error());
  http::Reply reply{image->upload == 1 ? 201 : 200, encode(*image)};
  reply.headers["Location"] = "/v1/images/" + image->name.value;
  return reply;
}

http::Reply show_image(Cluster& cluster, const http::Request& request) {
  const auto image = cluster.image(ImageId{request.ids[0]});
  if (!image) return http::problem_reply(image.error());
  return http::Reply{200, encode(*image)};
}

http::Reply remove_image(Cluster& cluster, const http::Request& request) {
  const auto force = request.query.find("force");
  if (force != request.query.end() && force->second != "true" && force->second != "false")
    return http::problem_reply(
        Error{ErrorCode::kInvalid, "the query parameter force must be true or false", 0});
  const bool forced = force != request.query.end() && force->second == "true";
  return reply_to(cluster.remove_image(ImageId{request.ids[0]}, forced));
}

http::Reply checkpoint_image(Cluster& cluster, const http::Request& request) {
  const auto progress = decode_image_progress(request.body);
  if (!progress) return http::problem_reply(progress.error());
  return reply_to(cluster.checkpoint_image(ImageId{request.ids[0]}, *progress));
}

http::Reply complete_image(Cluster& cluster, const http::Request& request) {
  const auto progress = decode_image_progress(request.body);
  if (!progress) return http::problem_reply(progress.error());
  return reply_to(cluster.complete_image(ImageId{request.ids[0]}, *progress));
}

// The only answer with the keys of an image.
http::Reply open_image(Cluster& cluster, const http::Request& request) {
  const auto reader = decode_image_reader(request.body);
  if (!reader) return http::problem_reply(reader.error());
  const auto opened = cluster.open_image(ImageId{request.ids[0]}, *reader);
  if (!opened) return http::problem_reply(opened.error());
  return http::Reply{200, encode(*opened)};
}

http::Reply renew_reader(Cluster& cluster, const http::Request& request) {
  const auto reader = decode_image_reader(request.body);
  if (!reader) return http::problem_reply(reader.error());
  const auto heard = cluster.renew_reader(ImageId{request.ids[0]}, *reader);
  if (!heard) return http::problem_reply(heard.error());
  return http::Reply{200, encode(*heard)};
}

http::Reply close_reader(Cluster& cluster, const http::Request& request) {
  const auto reader = decode_image_reader(request.body);
  if (!reader) return http::problem_reply(reader.error());
  return reply_to(cluster.close_reader(ImageId{request.ids[0]}, *reader));
}

}  // namespace

std::vector<http::Route> image_routes(RouteContext& context) {
  return {
      {"POST", "/v1/images", {}, context.with(create_image), http::Body::kJson},
      {"GET", "/v1/images", {}, context.with([](Cluster& cluster, const http::Request&) {
         return http::Reply{200, encode(cluster.images())};
       })},
      {"GET", "/v1/images/{id}", {}, context.with(show_image)},
      {"DELETE", "/v1/images/{id}", {"force"}, context.with(remove_image)},
      {"PUT", "/v1/images/{id}/checkpoint", {}, context.with(checkpoint_image), http::Body::kJson},
      {"POST", "/v1/images/{id}/complete", {}, context.with(complete_image), http::Body::kJson},
      {"POST", "/v1/images/{id}/open", {}, context.with(open_image), http::Body::kJson},
      {"PUT", "/v1/images/{id}/reader", {}, context.with(renew_reader), http::Body::kJson},
      {"POST", "/v1/images/{id}/close", {}, context.with(close_reader), http::Body::kJson},
  };
}

}  // namespace farpage::coordinator
