/* Preloaded into a child: its FAIL_FDATASYNC_AT-th fdatasync fails with EIO, and every other one is the real one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

int fdatasync(int descriptor)
{
    static int calls;
    const char *at = getenv("FAIL_FDATASYNC_AT");
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");

    if (at != NULL && ++calls == atoi(at)) {
        errno = EIO;
        return -1;
    }
    return real(descriptor);
}
