/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - a host program as an interpreter is one: it links nothing of tessera, loads a large user
 * of thread-local storage first, then the binding (module.c), which needs libtessera.so. */
#include <dlfcn.h>
#include <stdio.h>

typedef char *(*touch_fn)(int value);
typedef int (*run_fn)(touch_fn touch, int *passed);

static void *load(const char *path, const char *name)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *symbol = handle ? dlsym(handle, name) : NULL;
    if (!symbol) printf("FAIL loading %s: %s\n", path, dlerror());
    return symbol;
}

int main(void)
{
    touch_fn touch;
    run_fn run;
    *(void **)&touch = load(TS_HOG, "hog_touch");
    if (touch) (void)touch(1);
    *(void **)&run = load(TS_MODULE, "binding_run");
    int passed = 0, failed = touch && run ? run(touch, &passed) : 1;
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
