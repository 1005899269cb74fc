/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The staging pool: bounded, honest about memory that does not come.
 * Linked with --wrap=mmap64 (CMakeLists.txt).
 */
#include "providers/pool.h"

#include <stdbool.h>
#include <sys/mman.h>

#include "check.h"

#define LEN ((size_t)64 << 10)

static bool no_mmap;

void *__real_mmap64(void *at, size_t len, int prot, int flags, int fd,
		    off_t off);
void *__wrap_mmap64(void *at, size_t len, int prot, int flags, int fd,
		    off_t off);

void *__wrap_mmap64(void *at, size_t len, int prot, int flags, int fd,
		    off_t off)
{
	if (no_mmap) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	return __real_mmap64(at, len, prot, flags, fd, off);
}

/* Without the node's budget, which others use meanwhile. */
static struct pool *pool_alone(void)
{
	struct pool *p;

	CHECK_EQ(pool_new(LEN, 2 * LEN, 1 << 30, &p), 0);
	pool_forget(p);
	return p;
}

static void bounded(void)
{
	struct pool *p = pool_alone();
	void *a, *b, *c;

	CHECK_EQ(pool_take(p, 0, &a), 0);
	CHECK_EQ(pool_take(p, 0, &b), 0);
	CHECK_EQ(pool_take(p, 30, &c), -EAGAIN);
	pool_put(p, a);
	CHECK_EQ(pool_take(p, 0, &c), 0);
	CHECK(c == a);
	CHECK_EQ(pool_peak(p), 2 * LEN);
	pool_put(p, b);
	pool_put(p, c);
	pool_rest(p);
	pool_free(p);
}

/* Who waits for a buffer that nobody has waits for ever. */
static void no_memory(void)
{
	struct pool *p = pool_alone();
	void *a, *b;

	no_mmap = true;
	CHECK_EQ(pool_take(p, 0, &a), -ENOMEM);
	CHECK_EQ(pool_take(p, 20000, &a), -ENOMEM);
	no_mmap = false;
	CHECK_EQ(pool_take(p, 0, &a), 0);
	no_mmap = true;
	CHECK_EQ(pool_take(p, 0, &b), -EAGAIN); /* a will come back */
	pool_put(p, a);
	CHECK_EQ(pool_take(p, 0, &b), 0);
	no_mmap = false;
	pool_put(p, b);
	pool_free(p);
}

int main(void)
{
	bounded();
	no_memory();
	return 0;
}
