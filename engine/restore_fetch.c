/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remote-only versions on demand. A few threads read chunks of all fetches:
 * first those a reader waits for, then onward from where the last reader
 * waited, and round to the start. A chunk counts as there once its checksum
 * was right and its bytes are in the backing file.
 *
 * A chunk that is wrong twice is bad: its waiters get -EBADMSG, the others
 * their bytes, and the fetch as a whole fails. A remote that fails for some
 * seconds fails the fetch at once.
 *
 * As in the publisher, a thread that hangs in the remote is left to itself at
 * the end; it finds out in remote_end() and then touches nothing but memory
 * of its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/queue.h>
#include <time.h>

#include "engine/checksum.h"
#include "engine/fd_io.h"
#include "engine/moves.h"
#include "engine/restore.h"
#include "engine/thread.h"
#include "metadata/fault.h"
#include "metadata/log_message.h"

#define N_FETCHERS 6
#define N_TRIES 6
#define MS INT64_C(1000000)
#define SECOND (1000 * MS)
#define BACKOFF_MIN (100 * MS)
#define PATIENCE (5 * SECOND)

enum { TODO, RUNNING, THERE, BAD };

struct chunk {
	uint8_t state;
	bool wanted; /* somebody waits for it */
};

struct fetch {
	LIST_ENTRY(fetch) next;
	struct fetcher *fr; /* held */
	char *path;         /* immutable, like these: */
	uint64_t version, size, dst_id;
	char identity[64];
	bool verified;
	struct tier *dst;
	int fd;
	int (*done)(void *arg, int err, const uint32_t *crcs);
	void *arg;
	size_t n_chunks;
	/* guarded by fr->lock */
	unsigned refs;      /* holders, threads, and 1 while it is active */
	unsigned n_running; /* threads at work on it */
	bool opening, finishing;
	bool ended; /* done() has been called */
	int err;    /* it failed as a whole */
	struct remote_object *object;
	struct chunk *chunks;
	size_t cursor, n_left, n_wanted, n_bad;
	/* an entry: its thread's, until its chunk is there */
	uint32_t *crcs;
};

struct fetcher {
	struct meta *m; /* not after `abandoned` */
	struct remote *r;
	struct mutex lock;
	pthread_cond_t work, changed;
	LIST_HEAD(, fetch) active;          /* guarded by lock */
	bool stop, abandoned;               /* guarded by lock */
	unsigned n_threads, n_remote, refs; /* guarded by lock */
	_Atomic uint64_t bytes;
};

/* ---- holds ------------------------------------------------------------ */

static void fetcher_put(struct fetcher *fr)
{
	bool last;

	mutex_lock(&fr->lock);
	last = --fr->refs == 0;
	mutex_unlock(&fr->lock);
	if (!last)
		return;
	remote_put(fr->r);
	pthread_cond_destroy(&fr->work);
	pthread_cond_destroy(&fr->changed);
	mutex_fini(&fr->lock);
	free(fr);
}

static void fetch_free(struct fetch *f)
{
	struct fetcher *fr = f->fr;

	if (f->object)
		fr->r->ops->close_object(f->object);
	if (f->fd >= 0)
		close(f->fd);
	free(f->chunks);
	free(f->crcs);
	free(f->path);
	free(f);
	fetcher_put(fr);
}

void fetch_put(struct fetch *f)
{
	struct fetcher *fr = f->fr;
	bool last;

	mutex_lock(&fr->lock);
	last = --f->refs == 0;
	mutex_unlock(&fr->lock);
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

/* ---- calls on the remote ---------------------------------------------- */

static int remote_begin(struct fetcher *fr)
{
	bool stop;

	mutex_lock(&fr->lock);
	stop = fr->stop;
	if (!stop)
		fr->n_remote++;
	mutex_unlock(&fr->lock);
	return stop ? -ESHUTDOWN : 0;
}

/* err, or -ESHUTDOWN if meta and tier must not be touched any more. */
static int remote_end(struct fetcher *fr, int err)
{
	bool abandoned;

	mutex_lock(&fr->lock);
	fr->n_remote--;
	abandoned = fr->abandoned;
	pthread_cond_broadcast(&fr->changed);
	mutex_unlock(&fr->lock);
	return abandoned ? -ESHUTDOWN : err;
}

/* Waits longer each time, then sees that the remote is attached. */
static int wait_to_retry(struct fetcher *fr, unsigned n)
{
	char why[200];
	struct timespec until;
	int64_t ns;
	bool stop;
	int rc = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	ns = until.tv_nsec + (BACKOFF_MIN << n);
	until.tv_sec += ns / SECOND;
	until.tv_nsec = ns % SECOND;
	mutex_lock(&fr->lock);
	while (!fr->stop && rc != ETIMEDOUT)
		rc = pthread_cond_timedwait(&fr->changed, &fr->lock.m, &until);
	stop = fr->stop;
	mutex_unlock(&fr->lock);
	if (stop)
		return -ESHUTDOWN;
	(void)!remote_attach(fr->m, fr->r, why, sizeof(why));
	return 0;
}

/* ---- finding the object ----------------------------------------------- */

struct finding {
	struct fetch *f;
	struct remote_object *object;
};

static int try_open(void *arg, const char *path)
{
	struct finding *g = arg;
	struct fetcher *fr = g->f->fr;
	int err = remote_begin(fr);

	if (!err)
		err = remote_end(fr, fr->r->ops->open_object(fr->r, path,
							     g->f->identity,
							     &g->object));
	if (err == -ENOENT || err == -EINVAL)
		return 0; /* not there: elsewhere? */
	return err ? err : 1;
}

static int take_move(void *arg, const struct event *ev)
{
	return moves_add(arg, ev);
}

/* The remote is at R, and shows the names of then. */
static int try_names(struct finding *g, const char *path)
{
	CLEANUP(moves_fini) struct moves moves = { 0 };
	struct meta *m = g->f->fr->m;
	int err = meta_events(m, meta_remote_seq(m), take_move, &moves);

	return err ? err : moves_back(&moves, path, try_open, g);
}

static int path_now(struct fetch *f, char path[META_PATH_MAX])
{
	const struct view *v = meta_accepted(f->fr->m);
	struct version_rec rec;
	int err = view_version(v, f->version, &rec);

	return err ? err : view_path(v, rec.ino, path);
}

/* 0: found. -ENOENT: nowhere. */
static int find_object(struct fetch *f, struct remote_object **out)
{
	struct finding g = { .f = f };
	char path[META_PATH_MAX];
	int err = 0;

	if (f->path[0])
		err = try_names(&g, f->path);
	if (!err && !path_now(f, path) && strcmp(path, f->path) != 0)
		err = try_names(&g, path);
	if (g.object) {
		*out = g.object;
		return 0;
	}
	return err ? err : -ENOENT;
}

/* ---- one chunk -------------------------------------------------------- */

static size_t chunk_len(const struct fetch *f, size_t i)
{
	uint64_t off = (uint64_t)i * CHUNK_LEN;

	return f->size - off < CHUNK_LEN ? (size_t)(f->size - off) : CHUNK_LEN;
}

static int read_range(struct fetch *f, struct remote_object *o, void *buf,
		      size_t len, uint64_t off)
{
	struct fetcher *fr = f->fr;
	ssize_t n;
	int err = remote_begin(fr);

	if (err)
		return err;
	n = fr->r->ops->read_object(o, buf, len, off);
	err = remote_end(fr, n < 0 ? (int)n : 0);
	if (!err)
		err = FAULT("fetch.read", -EIO);
	if (err)
		return err;
	/* Shorter than its record: somebody cut it. */
	return (size_t)n == len ? 0 : -EBADMSG;
}

static int read_once(struct fetch *f, struct remote_object *o, size_t i,
		     void *buf)
{
	return read_range(f, o, buf, chunk_len(f, i), (uint64_t)i * CHUNK_LEN);
}

static int check(struct fetch *f, size_t i, const void *buf)
{
	uint32_t crc = crc32c(0, buf, chunk_len(f, i));

	if (f->verified)
		return crc == f->crcs[i] ? 0 : -EBADMSG;
	if (f->dst) /* one thread a chunk */
		f->crcs[i] = crc;
	return 0;
}

/* Through an object opened for this, for the one held may be stale. */
static int read_anew(struct fetch *f, size_t i, void *buf)
{
	struct remote_object *o;
	int err = find_object(f, &o);

	if (err)
		return err;
	err = read_once(f, o, i, buf);
	if (!err)
		err = check(f, i, buf);
	f->fr->r->ops->close_object(o);
	return err;
}

static int read_chunk(struct fetch *f, size_t i, void *buf)
{
	unsigned n_wrong = 0;
	int err = read_once(f, f->object, i, buf);

	if (!err)
		err = check(f, i, buf);
	for (unsigned n = 0; err && err != -ESHUTDOWN && n < N_TRIES; n++) {
		if (err == -EBADMSG && n_wrong++)
			break; /* twice */
		if (wait_to_retry(f->fr, err == -EBADMSG ? 0 : n))
			return -ESHUTDOWN;
		err = read_anew(f, i, buf);
	}
	return err == -ENOENT ? -EIO : err;
}

static int write_chunk(const struct fetch *f, size_t i, const uint8_t *buf)
{
	int err = FAULT("fetch.write", -ENOSPC);

	return err ? err
		   : pwrite_all(f->fd, buf, chunk_len(f, i),
				(uint64_t)i * CHUNK_LEN);
}

/* ---- what to do next -------------------------------------------------- */

enum task_kind { TASK_OPEN, TASK_CHUNK, TASK_FINISH };

struct task {
	struct fetch *f;
	enum task_kind kind;
	size_t chunk;
};

/* From the cursor on and round; the wanted ones first. */
static bool pick_chunk_locked(struct fetcher *fr, struct fetch *f, size_t *out)
	MUST_HOLD(fr->lock);
static bool pick_chunk_locked(struct fetcher *fr, struct fetch *f, size_t *out)
{
	(void)fr; /* whose lock it is */
	for (size_t n = 0; n < f->n_chunks; n++) {
		size_t i = (f->cursor + n) % f->n_chunks;
		struct chunk *c = &f->chunks[i];

		if (c->state != TODO || (f->n_wanted && !c->wanted))
			continue;
		f->n_wanted -= c->wanted;
		c->wanted = false;
		c->state = RUNNING;
		f->cursor = (i + 1) % f->n_chunks;
		*out = i;
		return true;
	}
	return false;
}

static bool pick_in_locked(struct fetcher *fr, struct fetch *f, struct task *t)
	MUST_HOLD(fr->lock);
static bool pick_in_locked(struct fetcher *fr, struct fetch *f, struct task *t)
{
	t->f = f;
	if (f->finishing || f->opening)
		return false;
	if (f->err || !f->n_left) {
		t->kind = TASK_FINISH;
		f->finishing = !f->n_running;
		return f->finishing;
	}
	if (!f->object) {
		t->kind = TASK_OPEN;
		f->opening = true;
		return true;
	}
	t->kind = TASK_CHUNK;
	return pick_chunk_locked(fr, f, &t->chunk);
}

static bool pick_locked(struct fetcher *fr, struct task *t) MUST_HOLD(fr->lock);
static bool pick_locked(struct fetcher *fr, struct task *t)
{
	struct fetch *f;

	LIST_FOREACH(f, &fr->active, next)
	if (f->n_wanted && pick_in_locked(fr, f, t))
		return true;
	LIST_FOREACH(f, &fr->active, next)
	if (pick_in_locked(fr, f, t))
		return true;
	return false;
}

static bool take_task(struct fetcher *fr, struct task *t)
{
	bool found = false;

	mutex_lock(&fr->lock);
	while (!fr->stop && !(found = pick_locked(fr, t)))
		pthread_cond_wait(&fr->work, &fr->lock.m);
	if (found) {
		t->f->refs++;
		t->f->n_running++;
	}
	mutex_unlock(&fr->lock);
	return found;
}

/* ---- the tasks -------------------------------------------------------- */

static void run_open(struct fetch *f)
{
	struct fetcher *fr = f->fr;
	struct remote_object *o = NULL;
	int err = find_object(f, &o);

	for (unsigned n = 0; err && err != -ESHUTDOWN && n < N_TRIES; n++) {
		err = wait_to_retry(fr, n);
		if (!err)
			err = find_object(f, &o);
	}
	mutex_lock(&fr->lock);
	f->opening = false;
	f->object = err ? NULL : o;
	f->err = err == -ENOENT ? -EIO : err;
	mutex_unlock(&fr->lock);
}

static void run_chunk(struct fetch *f, size_t i, uint8_t *buf)
{
	struct fetcher *fr = f->fr;
	int err = read_chunk(f, i, buf);

	if (!err)
		err = write_chunk(f, i, buf);
	if (!err)
		fr->bytes += chunk_len(f, i);
	mutex_lock(&fr->lock);
	if (!err || err == -EBADMSG) {
		f->chunks[i].state = err ? BAD : THERE;
		f->n_bad += err != 0;
		f->n_left--;
	} else {
		f->chunks[i].state = TODO;
		f->err = f->err ? f->err : err;
	}
	mutex_unlock(&fr->lock);
}

static int make_durable(struct fetch *f)
{
	int err = f->dst->ops->sync(f->dst, f->fd);

	return err ? err : f->dst->ops->sync_names(f->dst);
}

/* The end of an active fetch: nobody else works on it. */
static void finish(struct fetch *f, int err)
{
	struct fetcher *fr = f->fr;

	if (!err)
		err = make_durable(f);
	if (err)
		(void)!f->dst->ops->remove(f->dst, f->dst_id);
	err = f->done(f->arg, err, err ? NULL : f->crcs);
	mutex_lock(&fr->lock);
	if (err && err != -EBADMSG)
		f->err = err;
	f->ended = true;
	LIST_REMOVE(f, next);
	pthread_cond_broadcast(&fr->changed);
	mutex_unlock(&fr->lock);
	fetch_put(f);
}

static void run_finish(struct fetch *f)
{
	struct fetcher *fr = f->fr;
	int err;

	mutex_lock(&fr->lock);
	err = f->err ? f->err : f->n_bad ? -EBADMSG : 0;
	mutex_unlock(&fr->lock);
	finish(f, err);
}

static void end_task(struct task *t)
{
	struct fetcher *fr = t->f->fr;

	mutex_lock(&fr->lock);
	t->f->n_running--;
	pthread_cond_broadcast(&fr->work);
	pthread_cond_broadcast(&fr->changed);
	mutex_unlock(&fr->lock);
	fetch_put(t->f);
}

static void fetch_loop(struct fetcher *fr, uint8_t *buf)
{
	struct task t;

	while (take_task(fr, &t)) {
		switch (t.kind) {
		case TASK_OPEN:
			run_open(t.f);
			break;
		case TASK_CHUNK:
			run_chunk(t.f, t.chunk, buf);
			break;
		case TASK_FINISH:
			run_finish(t.f);
			break;
		}
		end_task(&t);
	}
}

static void *fetcher_main(void *arg)
{
	struct fetcher *fr = arg;
	uint8_t *buf = malloc(CHUNK_LEN);

	if (buf)
		fetch_loop(fr, buf);
	else
		message_error("no memory for a thread that fetches");
	free(buf);
	mutex_lock(&fr->lock);
	fr->n_threads--;
	pthread_cond_broadcast(&fr->changed);
	mutex_unlock(&fr->lock);
	fetcher_put(fr);
	return NULL;
}

/* ---- for callers ------------------------------------------------------ */

static struct fetch *join(struct fetcher *fr, uint64_t version)
{
	struct fetch *f, *found = NULL;

	mutex_lock(&fr->lock);
	LIST_FOREACH(f, &fr->active, next)
	if (f->version == version && !f->err && !f->n_bad)
		found = f;
	if (found)
		found->refs++;
	mutex_unlock(&fr->lock);
	return found;
}

static int take_crcs(struct fetch *f, const struct copy_rec *copy)
{
	f->n_chunks = (size_t)N_CHUNKS(copy->size);
	f->chunks = calloc(f->n_chunks + 1, sizeof(*f->chunks));
	f->crcs = calloc(f->n_chunks + 1, sizeof(*f->crcs));
	if (!f->chunks || !f->crcs)
		return -ENOMEM;
	f->verified = copy->verified && copy->chunk_len == CHUNK_LEN &&
		      copy->n_chunks == f->n_chunks;
	if (f->verified && f->n_chunks)
		memcpy(f->crcs, copy->crcs, f->n_chunks * sizeof(*f->crcs));
	f->n_left = f->n_chunks;
	return 0;
}

static int make_file(struct fetch *f)
{
	int err = f->dst->ops->create(f->dst, f->dst_id, O_RDWR, &f->fd);

	if (err)
		return err;
	if (f->size)
		err = f->dst->ops->preallocate(f->dst, f->fd, 0, f->size);
	if (err == -EOPNOTSUPP)
		err = 0;
	if (!err && ftruncate(f->fd, (off_t)f->size))
		err = -errno;
	if (err)
		(void)!f->dst->ops->remove(f->dst, f->dst_id);
	return err;
}

static int fetch_new(struct fetcher *fr, const struct fetch_config *config,
		     struct fetch **out)
{
	struct fetch *f = calloc(1, sizeof(*f));
	int err;

	if (!f)
		return -ENOMEM;
	mutex_lock(&fr->lock);
	fr->refs++;
	mutex_unlock(&fr->lock);
	f->fr = fr;
	f->fd = -1;
	f->refs = 2;
	f->version = config->copy.version;
	f->size = config->copy.size;
	f->dst = config->dst;
	f->dst_id = config->dst_id;
	f->done = config->done;
	f->arg = config->arg;
	memcpy(f->identity, config->copy.object, sizeof(f->identity));
	f->path = strdup(config->path);
	err = f->path ? take_crcs(f, &config->copy) : -ENOMEM;
	if (!err && f->dst)
		err = make_file(f);
	if (err)
		fetch_free(f);
	else
		*out = f;
	return err;
}

int fetch_start(struct fetcher *fr, const struct fetch_config *config,
		struct fetch **out)
{
	struct fetch *f = join(fr, config->copy.version);
	bool stop;
	int err;

	if (f) {
		*out = f;
		return 0;
	}
	err = fetch_new(fr, config, &f);
	if (err)
		return err;
	mutex_lock(&fr->lock);
	stop = fr->stop;
	if (!stop) {
		LIST_INSERT_HEAD(&fr->active, f, next);
		pthread_cond_broadcast(&fr->work);
	}
	mutex_unlock(&fr->lock);
	if (stop) {
		(void)!f->dst->ops->remove(f->dst, f->dst_id);
		fetch_free(f);
		return -ESHUTDOWN;
	}
	*out = f;
	return 0;
}

/* ---- ranges ----------------------------------------------------------- */

int ranges_open(struct fetcher *fr, const char *path,
		const struct copy_rec *copy, struct fetch **out)
{
	struct fetch_config config = { .path = path, .copy = *copy };
	struct fetch *f;
	int err = fetch_new(fr, &config, &f);

	if (err)
		return err;
	f->refs = 1; /* no thread's */
	run_open(f);
	if (f->err) {
		err = f->err;
		fetch_put(f);
		return err;
	}
	*out = f;
	return 0;
}

int ranges_read_chunk(struct fetch *f, size_t i, void *buf, size_t *len)
{
	int err = read_chunk(f, i, buf);

	if (err)
		return err;
	*len = chunk_len(f, i);
	f->fr->bytes += *len;
	return 0;
}

int ranges_peek(struct fetch *f, void *buf, size_t len, uint64_t off)
{
	int err = read_range(f, f->object, buf, len, off);

	if (!err)
		f->fr->bytes += len;
	return err;
}

/* 0: there; 1: not yet. */
static int look_locked(struct fetcher *fr, struct fetch *f, size_t i)
	MUST_HOLD(fr->lock);
static int look_locked(struct fetcher *fr, struct fetch *f, size_t i)
{
	struct chunk *c = &f->chunks[i];

	if (c->state == THERE)
		return 0;
	if (c->state == BAD)
		return -EBADMSG;
	if (f->err)
		return f->err;
	if (c->state == TODO && !c->wanted) {
		c->wanted = true;
		f->n_wanted++;
		f->cursor = i;
		pthread_cond_broadcast(&fr->work);
	}
	return 1;
}

int fetch_wait(struct fetch *f, uint64_t off, uint64_t len)
{
	struct fetcher *fr = f->fr;
	size_t i, last;
	int err = 0;

	if (off >= f->size || !len)
		return 0;
	if (len > f->size - off)
		len = f->size - off;
	i = (size_t)(off / CHUNK_LEN);
	last = (size_t)((off + len - 1) / CHUNK_LEN);
	mutex_lock(&fr->lock);
	for (; i <= last && !err; i++)
		while ((err = look_locked(fr, f, i)) == 1)
			pthread_cond_wait(&fr->changed, &fr->lock.m);
	mutex_unlock(&fr->lock);
	return err;
}

int fetch_result(struct fetch *f)
{
	struct fetcher *fr = f->fr;
	int err = -EAGAIN;

	mutex_lock(&fr->lock);
	if (f->ended)
		err = f->err ? f->err : f->n_bad ? -EBADMSG : 0;
	mutex_unlock(&fr->lock);
	return err;
}

int fetch_wait_ended(struct fetch *f)
{
	struct fetcher *fr = f->fr;

	mutex_lock(&fr->lock);
	while (!f->ended)
		pthread_cond_wait(&fr->changed, &fr->lock.m);
	mutex_unlock(&fr->lock);
	return fetch_result(f);
}

struct fetch *fetch_get(struct fetch *f)
{
	mutex_lock(&f->fr->lock);
	f->refs++;
	mutex_unlock(&f->fr->lock);
	return f;
}

int fetcher_new(struct meta *m, struct remote *r, struct fetcher **out)
{
	struct fetcher *fr = calloc(1, sizeof(*fr));
	int err = 0;

	if (!fr)
		return -ENOMEM;
	mutex_init(&fr->lock);
	condition_init(&fr->work);
	condition_init(&fr->changed);
	LIST_INIT(&fr->active);
	fr->m = m;
	fr->r = remote_hold(r);
	fr->refs = 1;
	for (int i = 0; i < N_FETCHERS && !err; i++) {
		pthread_t thread;

		mutex_lock(&fr->lock);
		fr->refs++;
		fr->n_threads++;
		mutex_unlock(&fr->lock);
		err = thread_start(&thread, "fetch", fetcher_main, fr);
		if (!err) {
			pthread_detach(thread);
			continue;
		}
		mutex_lock(&fr->lock);
		fr->refs--;
		fr->n_threads--;
		mutex_unlock(&fr->lock);
	}
	if (err)
		fetcher_free(fr);
	else
		*out = fr;
	return err;
}

static bool stop_threads(struct fetcher *fr)
{
	struct timespec until;
	bool abandoned;
	int rc = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += PATIENCE / SECOND;
	mutex_lock(&fr->lock);
	fr->stop = true;
	pthread_cond_broadcast(&fr->work);
	pthread_cond_broadcast(&fr->changed);
	while (fr->n_threads && rc != ETIMEDOUT)
		rc = pthread_cond_timedwait(&fr->changed, &fr->lock.m, &until);
	fr->abandoned = abandoned = fr->n_threads != 0;
	while (fr->n_threads > fr->n_remote)
		pthread_cond_wait(&fr->changed, &fr->lock.m);
	mutex_unlock(&fr->lock);
	return abandoned;
}

void fetcher_free(struct fetcher *fr)
{
	struct fetch *f;

	if (!fr)
		return;
	if (stop_threads(fr))
		message_warning("%s does not answer: reads under way from it "
				"are left to themselves",
				fr->r->name);
	for (;;) {
		mutex_lock(&fr->lock);
		f = LIST_FIRST(&fr->active);
		mutex_unlock(&fr->lock);
		if (!f)
			break;
		finish(f, -ESHUTDOWN);
	}
	fetcher_put(fr);
}
