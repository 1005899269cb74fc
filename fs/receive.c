/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading requests. Left to itself, the kernel wakes another of libfuse's
 * threads for each request, in turn: a cold one, on another CPU, while the one
 * that answered the last request has just gone to sleep. So one thread, the
 * *holder*, reads a request, answers it, and reads the next; the others wait
 * here.
 *
 * Nobody waits for a holder that is slow, because the role goes on
 *   - at once, if there are more requests than one thread answers, or if this
 *     one moves much data (receive_moves);
 *   - else to the *watcher*, one of those who wait: while requests come it
 *     looks each TICK_NS whether the holder still has the same one.
 *
 * Invariant: while a holder has a request, somebody watches, or all threads
 * have a request (libfuse then starts one more).
 */
#include "fs/receive.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/uio.h>
#include <time.h>

#include "fs/fs.h"

#define TICK_NS INT64_C(1000000)
#define CROWD 4 /* requests in turn that left one behind: too many for one */
#define QUICK_LEN 65536u /* copied about as fast as a thread wakes */

struct receive {
	struct mutex lock;
	pthread_cond_t vacant; /* the watcher's place, or the holder's */
	pthread_cond_t told;   /* the watcher waits for this */
	pthread_t holder;      /* lock; valid while held */
	bool held, busy;       /* lock; busy: the holder has a request */
	bool watched, asleep;  /* lock; asleep: the watcher must be woken */
	unsigned n_waiting;    /* lock; the watcher, too */
	uint64_t n_read;       /* lock */
	unsigned n_more;       /* lock; requests in turn that left one behind */
};

static int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int receive_new(struct receive **out)
{
	struct receive *r = calloc(1, sizeof(*r));
	pthread_condattr_t attr;

	if (!r)
		return -ENOMEM;
	mutex_init(&r->lock);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&r->told, &attr);
	pthread_cond_init(&r->vacant, &attr);
	pthread_condattr_destroy(&attr);
	*out = r;
	return 0;
}

void receive_free(struct receive *r)
{
	if (!r)
		return;
	pthread_cond_destroy(&r->told);
	pthread_cond_destroy(&r->vacant);
	mutex_fini(&r->lock);
	free(r);
}

/* ---- who reads -------------------------------------------------------- */

static bool is_holder(const struct receive *r)
{
	return r->held && pthread_equal(r->holder, pthread_self());
}

static void wait_tick_locked(struct receive *r) MUST_HOLD(r->lock);
static void wait_tick_locked(struct receive *r)
{
	int64_t until = now_ns() + TICK_NS;
	struct timespec ts = { .tv_sec = until / 1000000000,
			       .tv_nsec = until % 1000000000 };

	pthread_cond_timedwait(&r->told, &r->lock.m, &ts);
}

/* Until the role is free, or its holder has been busy for a tick. */
static void watch_locked(struct receive *r) MUST_HOLD(r->lock);
static void watch_locked(struct receive *r)
{
	while (r->held) {
		uint64_t seen = r->n_read;
		bool busy = r->busy;

		wait_tick_locked(r);
		if (!r->held || r->n_read != seen)
			continue;
		if (busy && r->busy)
			return;
		r->asleep = !r->busy;
		while (r->asleep)
			pthread_cond_wait(&r->told, &r->lock.m);
	}
}

/* libfuse cancels its threads when the session ends, also in a wait. */
TSA(no_thread_safety_analysis)
static void unlock(void *lock)
{
	mutex_unlock(lock);
}

static void become_holder_locked(struct receive *r) MUST_HOLD(r->lock);
static void become_holder_locked(struct receive *r)
{
	r->n_waiting++;
	while (r->held && r->watched)
		pthread_cond_wait(&r->vacant, &r->lock.m);
	if (r->held) {
		r->watched = true;
		watch_locked(r);
		r->watched = false;
	}
	r->n_waiting--;
	r->held = true;
	r->holder = pthread_self();
}

TSA(no_thread_safety_analysis)
static void read_begins(struct receive *r)
{
	mutex_lock(&r->lock);
	pthread_cleanup_push(unlock, &r->lock);
	if (!is_holder(r))
		become_holder_locked(r);
	r->busy = false;
	pthread_cleanup_pop(1);
}

static void pass_locked(struct receive *r) MUST_HOLD(r->lock);
static void pass_locked(struct receive *r)
{
	if (!is_holder(r))
		return;
	r->held = r->asleep = false;
	pthread_cond_signal(r->watched ? &r->told : &r->vacant);
}

void receive_moves(struct receive *r, size_t len)
{
	if (len <= QUICK_LEN)
		return;
	mutex_lock(&r->lock);
	pass_locked(r);
	mutex_unlock(&r->lock);
}

static bool is_pending(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) != 0;
}

/* The holder has a request. */
static void read_ended(struct receive *r, int fd)
{
	bool more = is_pending(fd);

	mutex_lock(&r->lock);
	r->n_read++;
	r->busy = true;
	r->n_more = more ? r->n_more + 1 : 0;
	if (r->n_more >= CROWD) {
		pass_locked(r);
	} else if (r->asleep) {
		r->asleep = false;
		pthread_cond_signal(&r->told);
	} else if (!r->watched && r->n_waiting) {
		pthread_cond_signal(&r->vacant);
	}
	mutex_unlock(&r->lock);
}

/* ---- reading ---------------------------------------------------------- */

static ssize_t io_read(int fd, void *buf, size_t len, void *userdata)
{
	struct receive *r = ((struct fs *)userdata)->receive;
	ssize_t n;

	read_begins(r);
	n = read(fd, buf, len);
	if (n >= 0) /* else libfuse comes again, or ends */
		read_ended(r, fd);
	return n;
}

static ssize_t io_splice_receive(int from, off_t *from_off, int to,
				 off_t *to_off, size_t len, unsigned int flags,
				 void *userdata)
{
	struct receive *r = ((struct fs *)userdata)->receive;
	ssize_t n;

	read_begins(r);
	n = splice(from, from_off, to, to_off, len, flags);
	if (n >= 0)
		read_ended(r, from);
	return n;
}

static ssize_t io_writev(int fd, struct iovec *iov, int n, void *userdata)
{
	(void)userdata;
	return writev(fd, iov, n);
}

static ssize_t io_splice_send(int from, off_t *from_off, int to, off_t *to_off,
			      size_t len, unsigned int flags, void *userdata)
{
	(void)userdata;
	return splice(from, from_off, to, to_off, len, flags);
}

int receive_use(struct fuse_session *se, int dev_fd)
{
	static const struct fuse_custom_io io = {
		.writev = io_writev,
		.read = io_read,
		.splice_receive = io_splice_receive,
		.splice_send = io_splice_send,
	};

	return fuse_session_custom_io(se, &io, dev_fd) ? -EIO : 0;
}
