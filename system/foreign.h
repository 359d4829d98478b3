/* Libraries that are not linked: opened when first asked for, their functions found by name.  Why not goes into `why`. */

#ifndef HK_FOREIGN_H
#define HK_FOREIGN_H

#include <dlfcn.h>
#include <stdio.h>

static inline void *hk_foreign_open(const char *path, char *why, size_t room) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        snprintf(why, room, "%s", dlerror());
    return library;
}

static inline void *hk_foreign_find(void *library, const char *path, const char *name, char *why, size_t room) {
    void *found = dlsym(library, name);
    if (found == NULL)
        snprintf(why, room, "%s has no %s", path, name);
    return found;
}

#endif
