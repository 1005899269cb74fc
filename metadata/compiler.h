/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small things every file needs: attributes, the cleanup idiom, and the two
 * locks, annotated for clang's -Wthread-safety. Header only.
 */
#ifndef CKPT_METADATA_COMPILER_H
#define CKPT_METADATA_COMPILER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#define MUST_CHECK __attribute__((warn_unused_result))
#define PRINTF(f, a) __attribute__((format(printf, f, a)))
#define CLEANUP(fn) __attribute__((cleanup(fn)))
#define MOVE(p)                          \
	({                               \
		__auto_type moved = (p); \
		(p) = NULL;              \
		moved;                   \
	})
#define CONTAINER_OF(ptr, type, member) \
	((type *)((char *)(ptr)-offsetof(type, member)))

#if defined(__clang__)
#define TSA(x) __attribute__((x))
#else
#define TSA(x)
#endif
#define MUST_HOLD(...) TSA(requires_capability(__VA_ARGS__))
#define MUST_NOT_HOLD(...) TSA(locks_excluded(__VA_ARGS__))
#define ACQUIRES(...) TSA(acquire_capability(__VA_ARGS__))
#define RELEASES(...) TSA(release_capability(__VA_ARGS__))

struct TSA(capability("mutex")) mutex {
	pthread_mutex_t m;
};

#define MUTEX_INIT                        \
	{                                 \
		PTHREAD_MUTEX_INITIALIZER \
	}

static inline void mutex_init(struct mutex *m)
{
	pthread_mutex_init(&m->m, NULL);
}

static inline void mutex_fini(struct mutex *m)
{
	pthread_mutex_destroy(&m->m);
}

static inline void mutex_lock(struct mutex *m) ACQUIRES(m)
	TSA(no_thread_safety_analysis);
static inline void mutex_lock(struct mutex *m)
{
	pthread_mutex_lock(&m->m);
}

/* For where the analysis cannot follow. */
static inline bool mutex_trylock(struct mutex *m)
{
	return pthread_mutex_trylock(&m->m) == 0;
}

static inline void mutex_unlock(struct mutex *m) RELEASES(m)
	TSA(no_thread_safety_analysis);
static inline void mutex_unlock(struct mutex *m)
{
	pthread_mutex_unlock(&m->m);
}

static inline void free_p(void *p)
{
	free(*(void **)p);
}

static inline void close_p(const int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

#endif
