/* Kernels by name, and their arguments out of a `void **`. */
#pragma once

#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace emulator {

/* Copies the arguments and gives what one CUDA thread does. */
using Bind = std::function<std::function<void()>(void **params)>;

struct Entry {
    Bind bind;
    std::vector<size_t> sizes; /* of the parameters */
};

std::map<std::string, Entry> &registry();

template <class... A, size_t... I>
std::function<void()> bound(void (*kernel)(A...), void **params, std::index_sequence<I...>) {
    std::tuple<std::remove_const_t<A>...> copies(*static_cast<std::remove_const_t<A> *>(params[I])...);
    return [kernel, copies] { std::apply(kernel, copies); };
}

struct Registered {
    template <class... A> Registered(const char *name, void (*kernel)(A...)) {
        registry()[name] = {
            [kernel](void **params) { return bound(kernel, params, std::index_sequence_for<A...>{}); }, {sizeof(A)...}};
    }
};

} // namespace emulator
