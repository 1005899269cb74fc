/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fetch: the bytes of remote-only versions, by ranges of one chunk, in
 * parallel over all fetches of the process. A chunk counts as there when its
 * checksum was right and it is written to the destination. Threads take the
 * chunk a reader waits for first, then those behind it, then the rest.
 *
 * Lock: fetcher.lock, a leaf; never held over I/O. A call on the remote may
 * hang for ever: fetcher_free() waits a while, then leaves such a thread to
 * itself; it holds the remote and its fetch, and touches nothing else.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <time.h>

#include "engine/checksum.h"
#include "engine/restore.h"
#include "engine/thread.h"
#include "metadata/log_message.h"

#define N_FETCHERS 6
#define STOP_PATIENCE_S 5
#define N_TRIES 12

enum chunk_state { CHUNK_MISSING, CHUNK_RUNNING, CHUNK_THERE, CHUNK_FAILED };

/* Guard: fetcher.lock, but for what is immutable. */
struct fetch {
	TAILQ_ENTRY(fetch) next;
	struct fetcher *fr;   /* immutable */
	char *path;           /* immutable */
	struct copy_rec copy; /* immutable; crcs owned, NULL: unverified */
	struct tier *dst;     /* immutable */
	uint64_t dst_id;      /* immutable */
	int fd;               /* immutable */
	void (*done)(void *arg, int err, const uint32_t *crcs);
	void *arg;
	unsigned refs; /* holders, and 1 while it is in the list */
	bool listed;
	struct remote_object *object; /* set once by opening */
	bool opening;
	int err;
	uint32_t n_chunks, n_there, n_running, wanted;
	uint8_t *state;
	uint32_t *crcs; /* as read */
};

struct fetcher {
	struct meta *m; /* not after `stop` */
	struct remote *r;
	struct mutex lock;
	pthread_cond_t work, changed;
	TAILQ_HEAD(, fetch) list;
	unsigned n_threads, refs;
	bool stop;
	_Atomic uint64_t bytes;
};

/* ---- life ------------------------------------------------------------- */

static void fetcher_put(struct fetcher *fr)
{
	bool last;

	mutex_lock(&fr->lock);
	last = --fr->refs == 0;
	mutex_unlock(&fr->lock);
	if (!last)
		return;
	remote_put(fr->r);
	mutex_fini(&fr->lock);
	pthread_cond_destroy(&fr->work);
	pthread_cond_destroy(&fr->changed);
	free(fr);
}

static void fetch_free(struct fetch *f)
{
	struct fetcher *fr = f->fr;

	if (f->object)
		fr->r->ops->close_object(f->object);
	close_p(&f->fd);
	free(f->path);
	free(f->copy.crcs);
	free(f->state);
	free(f->crcs);
	free(f);
	fetcher_put(fr);
}

static bool unref_locked(struct fetch *f)
{
	return --f->refs == 0;
}

void fetch_put(struct fetch *f)
{
	bool last;

	mutex_lock(&f->fr->lock);
	last = unref_locked(f);
	mutex_unlock(&f->fr->lock);
	if (last)
		fetch_free(f);
}

int fetch_fd(const struct fetch *f)
{
	return f->fd;
}

uint64_t fetch_dst_id(const struct fetch *f)
{
	return f->dst_id;
}

uint64_t fetcher_bytes(const struct fetcher *fr)
{
	return fr->bytes;
}

/* ---- choosing work ---------------------------------------------------- */

static bool next_chunk_locked(struct fetch *f, uint32_t *out)
{
	for (uint32_t i = 0; i < f->n_chunks; i++) {
		uint32_t at = (f->wanted + i) % f->n_chunks;

		if (f->state[at] == CHUNK_MISSING) {
			*out = at;
			return true;
		}
	}
	return false;
}

/* A fetch with something to do; round robin. */
static struct fetch *pick_locked(struct fetcher *fr, uint32_t *chunk)
{
	struct fetch *f;

	TAILQ_FOREACH(f, &fr->list, next)
	{
		if (f->err || !next_chunk_locked(f, chunk))
			continue;
		TAILQ_REMOVE(&fr->list, f, next);
		TAILQ_INSERT_TAIL(&fr->list, f, next);
		f->state[*chunk] = CHUNK_RUNNING;
		f->n_running++;
		f->refs++;
		return f;
	}
	return NULL;
}

/* ---- one chunk -------------------------------------------------------- */

/* Where the version's file is now, if its name has changed. */
static int path_now(struct fetcher *fr, uint64_t version, char *path)
{
	struct version_rec v;
	int r;

	r = view_version(meta_accepted(fr->m), version, &v);
	return r < 0 ? r : view_path(meta_accepted(fr->m), v.ino, path);
}

static int open_somewhere(struct fetch *f, struct remote_object **out)
{
	const struct remote_ops *ops = f->fr->r->ops;
	char path[META_PATH_MAX];
	int r;

	r = ops->open_object(f->fr->r, f->path, f->copy.object, out);
	if (r != -ENOENT)
		return r;
	mutex_lock(&f->fr->lock);
	r = f->fr->stop ? -ESHUTDOWN : 0;
	mutex_unlock(&f->fr->lock);
	if (r == 0)
		r = path_now(f->fr, f->copy.version, path);
	if (r < 0)
		return r == -ENOENT ? -EIO : r;
	r = ops->open_object(f->fr->r, path, f->copy.object, out);
	return r == -ENOENT ? -EIO : r;
}

/* One thread opens it, the others wait for that. */
static int object_of(struct fetch *f, struct remote_object **out)
{
	struct fetcher *fr = f->fr;
	int r = 0;

	mutex_lock(&fr->lock);
	while (!f->object && f->opening && !f->err && !fr->stop)
		pthread_cond_wait(&fr->changed, &fr->lock.m);
	*out = f->object;
	if (!f->object)
		r = f->err ? f->err : fr->stop ? -ESHUTDOWN : 1;
	if (r == 1)
		f->opening = true;
	mutex_unlock(&fr->lock);
	if (r != 1)
		return r;
	r = open_somewhere(f, out);
	mutex_lock(&fr->lock);
	f->opening = false;
	if (r == 0)
		f->object = *out;
	pthread_cond_broadcast(&fr->changed);
	mutex_unlock(&fr->lock);
	return r;
}

static int read_chunk(struct fetch *f, uint32_t chunk, void *buf, size_t len)
{
	const struct remote_ops *ops = f->fr->r->ops;
	uint64_t off = (uint64_t)chunk * CHUNK_LEN;
	struct remote_object *o = NULL;
	size_t at = 0;
	int r;

	r = object_of(f, &o);
	while (r == 0 && at < len) {
		ssize_t n = ops->read_object(o, (char *)buf + at, len - at,
					     off + at);

		if (n < 0)
			return (int)n;
		if (n == 0)
			return -EIO; /* shorter than it was */
		at += (size_t)n;
	}
	return r;
}

static int write_chunk(const struct fetch *f, uint32_t chunk, const void *buf,
		       size_t len)
{
	uint64_t off = (uint64_t)chunk * CHUNK_LEN;

	for (size_t at = 0; at < len;) {
		ssize_t n = pwrite(f->fd, (const char *)buf + at, len - at,
				   (off_t)(off + at));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		at += (size_t)n;
	}
	return 0;
}

static size_t chunk_len(const struct fetch *f, uint32_t chunk)
{
	uint64_t left = f->copy.size - (uint64_t)chunk * CHUNK_LEN;

	return left < CHUNK_LEN ? (size_t)left : CHUNK_LEN;
}

static void pause_before(unsigned try)
{
	struct timespec ts = { .tv_nsec = 50000000L << try };

	if (ts.tv_nsec >= 1000000000L) {
		ts.tv_sec = 1;
		ts.tv_nsec = 0;
	}
	nanosleep(&ts, NULL);
}

static bool stopping(struct fetcher *fr)
{
	bool stop;

	mutex_lock(&fr->lock);
	stop = fr->stop;
	mutex_unlock(&fr->lock);
	return stop;
}

static int get_chunk(struct fetch *f, uint32_t chunk, void *buf)
{
	size_t len = chunk_len(f, chunk);
	int r = -EIO;

	for (unsigned try = 0; try < N_TRIES; try++) {
		if (try)
			pause_before(try);
		if (stopping(f->fr))
			return -ESHUTDOWN;
		r = read_chunk(f, chunk, buf, len);
		if (r < 0)
			continue;
		f->crcs[chunk] = crc32c(0, buf, len);
		if (!f->copy.crcs || f->crcs[chunk] == f->copy.crcs[chunk])
			return write_chunk(f, chunk, buf, len);
		r = -EBADMSG;
		if (try)
			break; /* twice is no accident */
	}
	return r;
}

/* ---- the end of a fetch ----------------------------------------------- */

/* Out of the list with the result; done() runs once, in this thread. */
static void finish(struct fetch *f, int err)
{
	struct tier *t = f->dst;

	if (err == 0)
		err = t->ops->sync(t, f->fd);
	if (err)
		(void)!t->ops->remove(t, f->dst_id);
	if (err && err != -ESHUTDOWN)
		message_error("cannot fetch '%s' from %s: %s", f->path,
			      f->fr->r->name, strerror(-err));
	f->done(f->arg, err, err ? NULL : f->crcs);
}

/* Is this the moment to finish? Then it leaves the list. */
static bool leave_list_locked(struct fetch *f)
{
	bool over = f->n_there == f->n_chunks || (f->err && !f->n_running);

	if (!over || !f->listed)
		return false;
	TAILQ_REMOVE(&f->fr->list, f, next);
	f->listed = false;
	return true;
}

static void chunk_over(struct fetch *f, uint32_t chunk, int r)
{
	struct fetcher *fr = f->fr;
	bool over, last;

	mutex_lock(&fr->lock);
	f->n_running--;
	f->state[chunk] = r ? CHUNK_FAILED : CHUNK_THERE;
	if (r == 0)
		f->n_there++;
	else if (!f->err)
		f->err = r;
	over = !fr->stop && leave_list_locked(f);
	pthread_cond_broadcast(&fr->changed);
	mutex_unlock(&fr->lock);
	if (r == 0)
		fr->bytes += chunk_len(f, chunk);
	if (over)
		finish(f, f->err);
	mutex_lock(&fr->lock);
	last = unref_locked(f); /* this thread's */
	if (over && !last)
		last = unref_locked(f); /* the list's */
	mutex_unlock(&fr->lock);
	if (last)
		fetch_free(f);
}

static void *fetcher_run(void *arg)
{
	struct fetcher *fr = arg;
	void *buf = malloc(CHUNK_LEN);

	mutex_lock(&fr->lock);
	while (buf && !fr->stop) {
		uint32_t chunk;
		struct fetch *f = pick_locked(fr, &chunk);

		if (!f) {
			pthread_cond_wait(&fr->work, &fr->lock.m);
			continue;
		}
		mutex_unlock(&fr->lock);
		chunk_over(f, chunk, get_chunk(f, chunk, buf));
		mutex_lock(&fr->lock);
	}
	fr->n_threads--;
	pthread_cond_broadcast(&fr->changed);
	mutex_unlock(&fr->lock);
	free(buf);
	fetcher_put(fr);
	return NULL;
}

int fetcher_new(struct meta *m, struct remote *r, struct fetcher **out)
{
	struct fetcher *fr = calloc(1, sizeof(*fr));
	pthread_t thread;
	int err = 0;

	if (!fr)
		return -ENOMEM;
	fr->m = m;
	fr->r = remote_hold(r);
	fr->refs = 1;
	mutex_init(&fr->lock);
	condition_init(&fr->work);
	condition_init(&fr->changed);
	TAILQ_INIT(&fr->list);
	for (int i = 0; i < N_FETCHERS && !err; i++) {
		mutex_lock(&fr->lock);
		fr->refs++;
		fr->n_threads++;
		mutex_unlock(&fr->lock);
		err = thread_start(&thread, "ckpt-fetch", fetcher_run, fr);
		if (!err) {
			pthread_detach(thread);
			continue;
		}
		mutex_lock(&fr->lock);
		fr->refs--;
		fr->n_threads--;
		mutex_unlock(&fr->lock);
	}
	if (err) {
		fetcher_free(fr);
		return err;
	}
	*out = fr;
	return 0;
}

/* Those that are in the list still: told once, here. */
static void abandon_all(struct fetcher *fr)
{
	struct fetch *f;
	bool last;

	for (;;) {
		mutex_lock(&fr->lock);
		f = TAILQ_FIRST(&fr->list);
		if (f) {
			TAILQ_REMOVE(&fr->list, f, next);
			f->listed = false;
			if (!f->err)
				f->err = -ESHUTDOWN;
		}
		pthread_cond_broadcast(&fr->changed);
		mutex_unlock(&fr->lock);
		if (!f)
			return;
		finish(f, -ESHUTDOWN);
		mutex_lock(&fr->lock);
		last = unref_locked(f);
		mutex_unlock(&fr->lock);
		if (last)
			fetch_free(f);
	}
}

void fetcher_free(struct fetcher *fr)
{
	struct timespec until;

	if (!fr)
		return;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += STOP_PATIENCE_S;
	mutex_lock(&fr->lock);
	fr->stop = true;
	pthread_cond_broadcast(&fr->work);
	pthread_cond_broadcast(&fr->changed);
	while (fr->n_threads &&
	       !pthread_cond_timedwait(&fr->changed, &fr->lock.m, &until))
		;
	mutex_unlock(&fr->lock);
	abandon_all(fr);
	fetcher_put(fr);
}

/* ---- starting and waiting --------------------------------------------- */

static struct fetch *join_locked(struct fetcher *fr, uint64_t version)
{
	struct fetch *f;

	TAILQ_FOREACH(f, &fr->list, next)
	if (f->copy.version == version && !f->err) {
		f->refs++;
		return f;
	}
	return NULL;
}

static struct fetch *fetch_new(struct fetcher *fr, const struct fetch_config *c)
{
	struct fetch *f = calloc(1, sizeof(*f));
	uint32_t n = (uint32_t)N_CHUNKS(c->copy.size);
	bool known = c->copy.crcs && c->copy.n_chunks == n && c->copy.verified;

	if (!f)
		return NULL;
	mutex_lock(&fr->lock);
	fr->refs++;
	mutex_unlock(&fr->lock);
	f->fr = fr;
	f->fd = -1;
	f->refs = 2; /* the caller's and the list's */
	f->copy = c->copy;
	f->copy.crcs = known ? malloc((n + 1) * sizeof(uint32_t)) : NULL;
	f->path = strdup(c->path);
	f->dst = c->dst;
	f->dst_id = c->dst_id;
	f->done = c->done;
	f->arg = c->arg;
	f->n_chunks = n;
	f->state = calloc(n + 1, 1);
	f->crcs = calloc(n + 1, sizeof(uint32_t));
	if (!f->path || !f->state || !f->crcs || (known && !f->copy.crcs)) {
		fetch_free(f);
		return NULL;
	}
	if (known)
		memcpy(f->copy.crcs, c->copy.crcs, n * sizeof(uint32_t));
	return f;
}

static int make_file(struct fetch *f)
{
	struct tier *t = f->dst;
	int r = t->ops->create(t, f->dst_id, &f->fd);

	if (r < 0)
		return r;
	if (f->copy.size)
		r = t->ops->preallocate(t, f->fd, 0, f->copy.size);
	if (r == 0 && ftruncate(f->fd, (off_t)f->copy.size))
		r = -errno;
	if (r < 0)
		(void)!t->ops->remove(t, f->dst_id);
	return r;
}

int fetch_start(struct fetcher *fr, const struct fetch_config *config,
		struct fetch **out)
{
	struct fetch *f;
	bool empty;
	int r;

	mutex_lock(&fr->lock);
	f = join_locked(fr, config->copy.version);
	mutex_unlock(&fr->lock);
	if (f) {
		*out = f;
		return 0;
	}
	f = fetch_new(fr, config);
	if (!f)
		return -ENOMEM;
	r = make_file(f);
	if (r < 0) {
		fetch_free(f);
		return r;
	}
	empty = f->n_chunks == 0;
	if (empty) {
		finish(f, 0);
		f->refs = 1;
	} else {
		mutex_lock(&fr->lock);
		TAILQ_INSERT_HEAD(&fr->list, f, next);
		f->listed = true;
		pthread_cond_broadcast(&fr->work);
		mutex_unlock(&fr->lock);
	}
	*out = f;
	return 0;
}

static int chunks_state_locked(const struct fetch *f, uint32_t from,
			       uint32_t to, uint32_t *missing)
{
	for (uint32_t i = from; i < to; i++) {
		if (f->state[i] == CHUNK_THERE)
			continue;
		*missing = i;
		return f->err ? f->err : 1;
	}
	return 0;
}

int fetch_wait(struct fetch *f, uint64_t off, uint64_t len)
{
	struct fetcher *fr = f->fr;
	uint64_t end = off + len < off ? UINT64_MAX : off + len;
	uint32_t from, to, missing = 0;
	int r;

	if (end > f->copy.size)
		end = f->copy.size;
	if (off >= end)
		return 0;
	from = (uint32_t)(off / CHUNK_LEN);
	to = (uint32_t)N_CHUNKS(end);
	mutex_lock(&fr->lock);
	while ((r = chunks_state_locked(f, from, to, &missing)) == 1) {
		if (fr->stop) {
			r = -ESHUTDOWN;
			break;
		}
		f->wanted = missing;
		pthread_cond_broadcast(&fr->work);
		pthread_cond_wait(&fr->changed, &fr->lock.m);
	}
	mutex_unlock(&fr->lock);
	return r;
}
