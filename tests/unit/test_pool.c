/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The staging pool: bounded, honest about memory that does not come, and its
 * budget is nobody else's. Linked with --wrap=mmap64 (CMakeLists.txt).
 */
#include "providers/pool.h"

#include <stdbool.h>
#include <sys/mman.h>

#include "check.h"

#define LEN ((size_t)64 << 10)
#define BUFFER (LEN + pool_slack())
#define SOME_USER 54321

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

	CHECK_EQ(pool_new(LEN, 2 * BUFFER, 1 << 30, &p), 0);
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
	CHECK_EQ(pool_peak(p), 2 * BUFFER);
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

/* A file that somebody locks as a whole, as all shares. */
static int lock_all(int fd)
{
	struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

	CHECK(fd >= 0);
	CHECK_EQ(fcntl(fd, F_OFD_SETLK, &l), 0);
	return fd;
}

/* In a process of that user's: what a pool gives then. */
static void take_as(uid_t user, int expected)
{
	struct pool *p;
	void *a;
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (!pid) {
		CHECK_EQ(seteuid(user), 0);
		CHECK_EQ(pool_new(LEN, BUFFER, 1 << 30, &p), 0);
		CHECK_EQ(pool_take(p, 0, &a), expected);
		pool_free(p);
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
}

static void budget_of_another(void)
{
	char path[64];
	int fd;

	if (geteuid())
		return; /* cannot be another */
	snprintf(path, sizeof(path), "/dev/shm/ckpt-budget-%d", SOME_USER);
	unlink(path);

	fd = lock_all(open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
	CHECK_EQ(fchown(fd, SOME_USER, SOME_USER), 0);
	take_as(SOME_USER, -EAGAIN); /* its own: used up */
	CHECK_EQ(fchown(fd, 0, 0), 0);
	CHECK_EQ(fchmod(fd, 0666), 0);
	take_as(SOME_USER, 0);
	close(fd);
	unlink(path);

	CHECK_EQ(mkfifo(path, 0600), 0);
	CHECK_EQ(chown(path, SOME_USER, SOME_USER), 0);
	fd = lock_all(open(path, O_RDWR | O_CLOEXEC));
	take_as(SOME_USER, 0);
	close(fd);
	unlink(path);
}

int main(void)
{
	bounded();
	no_memory();
	budget_of_another();
	return 0;
}
