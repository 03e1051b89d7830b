// Memory that one call needs and the next one takes over: the largest layer decides how much is kept.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <new>

namespace rewire {

class Scratch {
  public:
    template <class T> T *take(int64_t count) {
        const size_t size = sizeof(T) * size_t(count > 0 ? count : 1);
        if (size > size_) {
            std::free(data_);
            size_ = (size + size / 8 + 4095) / 4096 * 4096;
            data_ = std::aligned_alloc(4096, size_);
            if (!data_) throw std::bad_alloc();
        }
        return static_cast<T *>(data_);
    }
    ~Scratch() { std::free(data_); }

  private:
    void *data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace rewire
