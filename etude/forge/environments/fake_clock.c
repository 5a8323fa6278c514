/* Loaded before the C library: shifts the time of day, and nothing else, by ETUDE_CLOCK_SHIFT seconds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long shift(void) {
    const char *given = getenv("ETUDE_CLOCK_SHIFT");
    return given ? atol(given) : 0;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(which, now);
    if (!failed && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec fine;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &fine);
    if (!failed && now) { now->tv_sec = fine.tv_sec; now->tv_usec = fine.tv_nsec / 1000; }
    return failed;
}

time_t time(time_t *kept) {
    struct timespec fine;
    if (clock_gettime(CLOCK_REALTIME, &fine)) return (time_t)-1;
    if (kept) *kept = fine.tv_sec;
    return fine.tv_sec;
}
