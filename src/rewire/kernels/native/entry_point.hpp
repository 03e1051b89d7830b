// Functions that Python calls. Each is defined with EXPORT and followed by REGISTER(name), which records its signature, so
// that `rewire/kernels/library.py` can compare it with its table of entry points when it loads the library.
#pragma once
#include <cstdint>
#include <type_traits>

#define EXPORT extern "C" __attribute__((visibility("default")))
#define REGISTER(function) static const rewire::EntryPoint registered_##function(#function, &function)

namespace rewire {

// One letter for each type that crosses the C interface.
template <class Type> constexpr char type_code() {
    static_assert(std::is_void_v<Type> || std::is_pointer_v<Type> || std::is_same_v<Type, int32_t> ||
                  std::is_same_v<Type, int64_t> || std::is_same_v<Type, float>);
    if constexpr (std::is_void_v<Type>) return 'v';
    else if constexpr (std::is_pointer_v<Type>) return 'p';
    else if constexpr (std::is_same_v<Type, int32_t>) return 'i';
    else if constexpr (std::is_same_v<Type, int64_t>) return 'q';
    else return 'f';
}

// The result's letter and those of the arguments.
template <class Result, class... Arguments> struct Signature {
    static constexpr char text[] = {type_code<Result>(), type_code<Arguments>()..., '\0'};
};

struct EntryPoint {
    const char *name, *signature;
    const EntryPoint *next;
    static const EntryPoint *first;  // all entry points of the library, as a linked list

    template <class Result, class... Arguments>
    EntryPoint(const char *name, Result (*)(Arguments...))
        : name(name), signature(Signature<Result, Arguments...>::text), next(first) {
        first = this;
    }
};

}  // namespace rewire
