// C++ client of the images of the coordinator's REST API. Whoever pushes or reads an image uses it,
// never on the fault path.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "coordinator/api.h"
#include "coordinator/client.h"

namespace farpage::coordinator {

// Threads: any; each call makes its own request and blocks up to the timeout. Fails as Client.
class ImageClient {
 public:
  static Result<std::unique_ptr<ImageClient>> create(const ClientOptions& options);
  virtual ~ImageClient() = default;

  // -- as who pushes it; its slabs are leased by Client::lease_slabs() --
  virtual Result<ImageInfo> create_image(const ImageCreate& image) = 0;
  virtual Status checkpoint(const ImageId& image, const ImageProgress& progress) = 0;
  virtual Status complete(const ImageId& image, const ImageProgress& progress) = 0;

  // -- as a reader --
  virtual Result<OpenedImage> open(const ImageId& image, const ImageReader& reader) = 0;
  virtual Result<ReaderHeard> renew(const ImageId& image, const ImageReader& reader) = 0;
  virtual Status close(const ImageId& image, const ImageReader& reader) = 0;

  // -- as any client --
  virtual Result<std::vector<ImageInfo>> images() = 0;
  virtual Result<ImageInfo> image(const ImageId& image) = 0;
  // kConflict: another image is made of it; or, without `force`, it has readers.
  virtual Status remove(const ImageId& image, bool force) = 0;
};

}  // namespace farpage::coordinator
