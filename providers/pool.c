/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging buffers and the node's budget; pool.h has the idea. The locks are
 * those of the open file description (F_OFD_SETLK): other files that this
 * process opens and closes do not touch them.
 */
#include "providers/pool.h"
#include "providers/cleanup.h"
#include "providers/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define SHARE_LEN (UINT64_C(64) << 20)
#define LOOK_MS 20 /* for a share that another process gives back */

struct buffer {
	struct buffer *next; /* free ones; lies in the buffer itself */
};

struct pool {
	size_t buffer_len, n_max; /* immutable */
	uint64_t n_shares;        /* of the node; immutable */
	int fd;                   /* the budget's file, or -1: none */

	pthread_mutex_t lock;
	pthread_cond_t freed;
	struct buffer *free;   /* guarded by lock, as all below */
	size_t n_made, n_used; /* buffers */
	size_t n_peak;
	uint64_t n_held;     /* shares */
	unsigned char *held; /* n_shares of them: which */
};

/* Anyone may make files in /dev/shm: who made it could lock all shares. */
static bool is_ours(int fd)
{
	struct stat st;

	return !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid();
}

static int budget_open(void)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/dev/shm/ckpt-budget-%u",
		 (unsigned)geteuid());
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	/* Without it each process has its own bound, which is better than no
	 * checkpoint. */
	if (fd >= 0 && !is_ours(fd)) {
		close(fd);
		return -1;
	}
	return fd;
}

int pool_new(size_t chunk_len, size_t len, uint64_t budget_len,
	     struct pool **out)
{
	struct pool *p = calloc(1, sizeof(*p));
	pthread_condattr_t attr;

	if (!p)
		return -ENOMEM;
	p->buffer_len = chunk_len + pool_slack();
	p->n_max = len / p->buffer_len ? len / p->buffer_len : 1;
	p->n_shares = budget_len / SHARE_LEN ? budget_len / SHARE_LEN : 1;
	p->held = calloc(p->n_shares, 1);
	if (!p->held) {
		free(p);
		return -ENOMEM;
	}
	p->fd = budget_open();
	pthread_mutex_init(&p->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&p->freed, &attr);
	pthread_condattr_destroy(&attr);
	*out = p;
	return 0;
}

static bool share_lock(struct pool *p, uint64_t i, short type)
{
	struct flock l = { .l_type = type,
			   .l_whence = SEEK_SET,
			   .l_start = (off_t)i,
			   .l_len = 1 };

	return !fcntl(p->fd, F_OFD_SETLK, &l);
}

/* One more share, if any is left. */
static bool share_take_locked(struct pool *p)
{
	if (p->fd < 0)
		return true;
	for (uint64_t i = 0; i < p->n_shares; i++) {
		if (p->held[i] || !share_lock(p, i, F_WRLCK))
			continue;
		p->held[i] = 1;
		p->n_held++;
		return true;
	}
	return false;
}

static void shares_give_locked(struct pool *p)
{
	for (uint64_t i = 0; i < p->n_shares && p->n_held; i++) {
		if (!p->held[i])
			continue;
		share_lock(p, i, F_UNLCK);
		p->held[i] = 0;
		p->n_held--;
	}
}

static bool has_share_locked(struct pool *p)
{
	uint64_t want =
		((p->n_made + 1) * p->buffer_len + SHARE_LEN - 1) / SHARE_LEN;

	while (p->fd >= 0 && p->n_held < want)
		if (!share_take_locked(p))
			return false;
	return true;
}

static int make_locked(struct pool *p, struct buffer **out)
{
	void *buf;

	if (p->n_made >= p->n_max || !has_share_locked(p))
		return -EAGAIN;
	buf = mmap(NULL, p->buffer_len, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	/* What is in use comes back; if nothing is, there is nothing to wait
	 * for. */
	if (buf == MAP_FAILED)
		return p->n_used ? -EAGAIN : -ENOMEM;
	p->n_made++;
	*out = buf;
	return 0;
}

static int take_locked(struct pool *p, struct buffer **out)
{
	struct buffer *b = p->free;
	int r = 0;

	if (b)
		p->free = b->next;
	else
		r = make_locked(p, &b);
	if (r < 0)
		return r;
	if (++p->n_used > p->n_peak)
		p->n_peak = p->n_used;
	*out = b;
	return 0;
}

int pool_take(struct pool *p, int timeout_ms, void **out)
{
	struct buffer *b;
	int r;

	pthread_mutex_lock(&p->lock);
	r = take_locked(p, &b);
	while (r == -EAGAIN && timeout_ms > 0) {
		int ms = timeout_ms < LOOK_MS ? timeout_ms : LOOK_MS;
		struct timespec until = capture_timespec(capture_now_ns() +
							 ms * INT64_C(1000000));

		pthread_cond_timedwait(&p->freed, &p->lock, &until);
		timeout_ms -= ms;
		r = take_locked(p, &b);
	}
	pthread_mutex_unlock(&p->lock);
	if (r < 0)
		return r;
	*out = b;
	return 0;
}

void pool_put(struct pool *p, void *buf)
{
	struct buffer *b = buf;

	pthread_mutex_lock(&p->lock);
	b->next = p->free;
	p->free = b;
	p->n_used--;
	pthread_cond_signal(&p->freed);
	pthread_mutex_unlock(&p->lock);
}

static void free_unused_locked(struct pool *p)
{
	while (p->free) {
		struct buffer *b = p->free;

		p->free = b->next;
		munmap(b, p->buffer_len);
		p->n_made--;
	}
}

void pool_rest(struct pool *p)
{
	pthread_mutex_lock(&p->lock);
	if (!p->n_used) {
		free_unused_locked(p);
		shares_give_locked(p);
	}
	pthread_mutex_unlock(&p->lock);
}

uint64_t pool_peak(struct pool *p)
{
	uint64_t peak;

	pthread_mutex_lock(&p->lock);
	peak = (uint64_t)p->n_peak * p->buffer_len;
	p->n_peak = p->n_used;
	pthread_mutex_unlock(&p->lock);
	return peak;
}

void pool_forget(struct pool *p)
{
	close_p(&p->fd);
	p->fd = -1;
}

void pool_free(struct pool *p)
{
	if (!p)
		return;
	free_unused_locked(p);
	close_p(&p->fd);
	free(p->held);
	pthread_cond_destroy(&p->freed);
	pthread_mutex_destroy(&p->lock);
	free(p);
}
