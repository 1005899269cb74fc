/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One chunk of a remote-only version: found, read, tried again, checked.
 *
 * A thread that hangs in the remote is left to itself at the end; it finds
 * out in remote_end() and then touches nothing but memory of its own.
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "engine/checksum.h"
#include "engine/moves.h"
#include "engine/restore_fetch.h"
#include "metadata/fault.h"

#define N_TRIES 6
#define SECOND INT64_C(1000000000)
#define BACKOFF_MIN (SECOND / 10)

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
	char known[2][64]; /* as which the object may be there */
	struct remote_object *object;
};

static int open_as(struct finding *g, const char *path, const char *known)
{
	struct fetcher *fr = g->f->fr;
	int err = remote_begin(fr);

	return err ? err
		   : remote_end(fr, fr->r->ops->open_object(fr->r, path, known,
							    &g->object));
}

static int try_open(void *arg, const char *path)
{
	struct finding *g = arg;
	int err = open_as(g, path, g->known[0]);

	if (err == -ENOENT && strcmp(g->known[0], g->known[1]) != 0)
		err = open_as(g, path, g->known[1]);
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

/*
 * The record says it as of now: the publisher changes it as it changes the
 * time of a file of others, or makes it an object of ours (which it may have
 * done already and not come to note).
 */
static void look_up_known(struct finding *g)
{
	CLEANUP(copy_rec_fini) struct copy_rec copy = { 0 };
	const struct fetch *f = g->f;

	if (meta_copy(f->fr->m, f->version, COPY_REMOTE, &copy))
		memcpy(copy.object, f->object_name, sizeof(copy.object));
	memcpy(g->known[0], copy.object, sizeof(g->known[0]));
	if (remote_object_is_of_others(copy.object))
		remote_identity(f->fr->m, f->version, g->known[1]);
	else
		memcpy(g->known[1], copy.object, sizeof(g->known[1]));
}

/* 0: found. -ENOENT: nowhere. */
static int find_object(struct fetch *f, struct remote_object **out)
{
	struct finding g = { .f = f };
	char path[META_PATH_MAX];
	int err = 0;

	look_up_known(&g);
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

int fetch_find(struct fetch *f, struct remote_object **out)
{
	int err = find_object(f, out);

	for (unsigned n = 0; err && err != -ESHUTDOWN && n < N_TRIES; n++) {
		err = wait_to_retry(f->fr, n);
		if (!err)
			err = find_object(f, out);
	}
	return err == -ENOENT ? -EIO : err;
}

/* ---- one chunk -------------------------------------------------------- */

size_t fetch_chunk_len(const struct fetch *f, size_t i)
{
	uint64_t off = (uint64_t)i * CHUNK_LEN;

	return f->size - off < CHUNK_LEN ? (size_t)(f->size - off) : CHUNK_LEN;
}

int fetch_read_range(struct fetch *f, struct remote_object *o, void *buf,
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
	return fetch_read_range(f, o, buf, fetch_chunk_len(f, i),
				(uint64_t)i * CHUNK_LEN);
}

static int check(struct fetch *f, size_t i, const void *buf)
{
	uint32_t crc = crc32c(0, buf, fetch_chunk_len(f, i));

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

int fetch_read_chunk(struct fetch *f, size_t i, void *buf)
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
