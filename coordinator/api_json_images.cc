#include <nlohmann/json.hpp>

#include "base/strong.h"
#include "coordinator/api_json_parts.h"

namespace farpage::coordinator {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxImagePages = kMaxImageBytes >> kPageShift;

void read_image_shape(http::JsonReader& reader, ImageId& base, uint64_t& bytes, uint32_t& replicas,
                      uint64_t& slab_bytes) {
  if (reader.has("base")) base = ImageId{reader.name("base")};
  bytes = reader.number("bytes", kPageBytes, kMaxImageBytes);
  if (reader.ok() && bytes % kPageBytes != 0) reader.refuse("bytes", "must be whole 4 KiB pages");
  replicas = static_cast<uint32_t>(reader.number_or("replicas", 1, kMaxReplicas, 1));
  read_slab_bytes(reader, slab_bytes);
}

bool is_digest(const std::string& text) {
  return text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

void read_image_info(http::JsonReader& reader, ImageInfo& image) {
  image.name = ImageId{reader.name("name")};
  const std::string state = reader.text("state", http::kMaxNameBytes);
  image.state =
      state == to_string(ImageState::kComplete) ? ImageState::kComplete : ImageState::kUploading;
  read_image_shape(reader, image.base, image.bytes, image.replicas, image.slab_bytes);
  image.generations = static_cast<uint32_t>(reader.number("generations", 1, kMaxGenerations));
  image.region = RegionId{reader.name("region")};
  image.upload = reader.number("upload", 1, http::kMaxU64);
  image.pages = reader.number("pages", 0, kMaxImagePages);
  image.digest = reader.text_or_empty("digest", kMaxDigestBytes);
  image.readers = static_cast<uint32_t>(reader.number_or("readers", 0, http::kMaxU32, 0));
  image.lost_leases = static_cast<uint32_t>(reader.number_or("lost_leases", 0, http::kMaxU32, 0));
}

Json json_of(const ImageInfo& image) {
  Json json{{"name", image.name.value},
            {"state", to_string(image.state)},
            {"bytes", image.bytes},
            {"replicas", image.replicas},
            {"slab_bytes", image.slab_bytes},
            {"generations", image.generations},
            {"region", image.region.value},
            {"upload", image.upload},
            {"pages", image.pages},
            {"readers", image.readers},
            {"lost_leases", image.lost_leases}};
  if (!image.base.value.empty()) json["base"] = image.base.value;
  if (!image.digest.empty()) json["digest"] = image.digest;
  return json;
}

}  // namespace

Result<ImageCreate> decode_image_create(std::string_view body) {
  return decode_with<ImageCreate>(
      body, http::UnknownFields::kRefuse, [](http::JsonReader& reader, ImageCreate& image) {
        image.name = ImageId{reader.name("name")};
        read_image_shape(reader, image.base, image.bytes, image.replicas, image.slab_bytes);
      });
}

Result<ImageProgress> decode_image_progress(std::string_view body) {
  return decode_with<ImageProgress>(
      body, http::UnknownFields::kRefuse, [](http::JsonReader& reader, ImageProgress& progress) {
        progress.upload = reader.number("upload", 1, http::kMaxU64);
        progress.pages = reader.number("pages", 0, kMaxImagePages);
        progress.digest = reader.text("digest", kMaxDigestBytes);
        if (reader.ok() && !is_digest(progress.digest))
          reader.refuse("digest", "must be lower-case hexadecimal digits");
      });
}

Result<ImageReader> decode_image_reader(std::string_view body) {
  return decode_with<ImageReader>(
      body, http::UnknownFields::kRefuse,
      [](http::JsonReader& reader, ImageReader& image) { image.name = reader.name("reader"); });
}

std::string encode(const ImageCreate& image) {
  Json json{{"name", image.name.value},
            {"bytes", image.bytes},
            {"replicas", image.replicas},
            {"slab_bytes", image.slab_bytes}};
  if (!image.base.value.empty()) json["base"] = image.base.value;
  return json.dump();
}

std::string encode(const ImageProgress& progress) {
  return Json{{"upload", progress.upload}, {"pages", progress.pages}, {"digest", progress.digest}}
      .dump();
}

std::string encode(const ImageReader& reader) {
  return Json{{"reader", reader.name}}.dump();
}

Result<ImageInfo> decode_image_info(std::string_view body) {
  return decode_with<ImageInfo>(body, http::UnknownFields::kIgnore, read_image_info);
}

Result<std::vector<ImageInfo>> decode_image_list(std::string_view body) {
  return decode_with<std::vector<ImageInfo>>(
      body, http::UnknownFields::kIgnore,
      [](http::JsonReader& reader, std::vector<ImageInfo>& images) {
        reader.each("images", http::kMaxU32, [&](http::JsonReader& entry) {
          read_image_info(entry, images.emplace_back());
        });
      });
}

Result<OpenedImage> decode_opened_image(std::string_view body) {
  return decode_with<OpenedImage>(
      body, http::UnknownFields::kIgnore, [](http::JsonReader& reader, OpenedImage& opened) {
        reader.each("image", 1,
                    [&](http::JsonReader& entry) { read_image_info(entry, opened.image); });
        if (reader.ok() && opened.image.name.value.empty()) reader.refuse("image", "must be one");
        opened.session_group =
            static_cast<uint32_t>(reader.number("session_group", 1, http::kMaxU32));
        opened.time_to_live =
            Milliseconds(static_cast<int64_t>(reader.number("time_to_live_ms", 1, http::kMaxU32)));
        opened.leases_version = reader.number_or("leases_version", 0, http::kMaxU64, 0);
        reader.each("regions", kMaxGenerations, [&](http::JsonReader& entry) {
          read_region_info(entry, opened.regions.emplace_back());
        });
        if (reader.ok() && opened.regions.size() != opened.image.generations)
          reader.refuse("regions", "must be one for each generation");
      });
}

Result<ReaderHeard> decode_reader_heard(std::string_view body) {
  return decode_with<ReaderHeard>(
      body, http::UnknownFields::kIgnore, [](http::JsonReader& reader, ReaderHeard& heard) {
        heard.leases_version = reader.number("leases_version", 0, http::kMaxU64);
      });
}

std::string encode(const ImageInfo& image) {
  return json_of(image).dump();
}

std::string encode(const std::vector<ImageInfo>& images) {
  Json list = Json::array();
  for (const ImageInfo& image : images) list.push_back(json_of(image));
  return Json{{"images", std::move(list)}}.dump();
}

std::string encode(const OpenedImage& opened) {
  Json regions = Json::array();
  for (const RegionInfo& region : opened.regions)
    regions.push_back(json_of_region(region, Secrets::kShow));
  return Json{{"image", Json::array({json_of(opened.image)})},
              {"session_group", opened.session_group},
              {"time_to_live_ms", opened.time_to_live.count()},
              {"leases_version", opened.leases_version},
              {"regions", std::move(regions)}}
      .dump();
}

std::string encode(const ReaderHeard& heard) {
  return Json{{"leases_version", heard.leases_version}}.dump();
}

}  // namespace farpage::coordinator
