/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remote-only versions on demand. A few threads (restore_task.c) read chunks
 * (restore_chunk.c) of all fetches: first those a reader waits for, then
 * onward from where the last reader waited, and round to the start.
 *
 * A chunk that is wrong twice is bad: its waiters get -EBADMSG, the others
 * their bytes, and the fetch as a whole fails. A remote that fails for some
 * seconds fails the fetch at once.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>

#include "engine/restore_fetch.h"
#include "metadata/log_message.h"

/* ---- holds ------------------------------------------------------------ */

void fetcher_put(struct fetcher *fr)
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
		object_close(fr->r, f->object);
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

int fetch_new(struct fetcher *fr, const struct fetch_config *config,
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
	memcpy(f->object_name, config->copy.object, sizeof(f->object_name));
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

/* ---- waiting ---------------------------------------------------------- */

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
	if (fr->stop)
		return -ESHUTDOWN;
	if (c->state == TODO && !c->wanted) {
		c->wanted = true;
		f->n_wanted++;
		f->cursor = i;
		pthread_cond_broadcast(&fr->work);
	}
	return 1;
}

int fetch_wait(struct fetch *f, uint64_t off, uint64_t len, bool patient)
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
		while ((err = look_locked(fr, f, i)) == 1 && patient)
			pthread_cond_wait(&fr->changed, &fr->lock.m);
	mutex_unlock(&fr->lock);
	return err == 1 ? -EINPROGRESS : err;
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

int fetch_wait_ended(struct fetch *f, bool patient)
{
	struct fetcher *fr = f->fr;
	bool stop;
	int err;

	mutex_lock(&fr->lock);
	while (!f->ended && patient && !fr->stop)
		pthread_cond_wait(&fr->changed, &fr->lock.m);
	stop = fr->stop;
	mutex_unlock(&fr->lock);
	err = fetch_result(f);
	if (err == -EAGAIN)
		err = stop ? -ESHUTDOWN : -EINPROGRESS;
	return err;
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
	int err;

	if (!fr)
		return -ENOMEM;
	mutex_init(&fr->lock);
	condition_init(&fr->work);
	condition_init(&fr->changed);
	LIST_INIT(&fr->active);
	fr->m = m;
	fr->r = remote_hold(r);
	fr->refs = 1;
	err = fetch_threads(fr);
	if (err)
		fetcher_free(fr);
	else
		*out = fr;
	return err;
}

void fetcher_end(struct fetcher *fr)
{
	mutex_lock(&fr->lock);
	fr->stop = true;
	pthread_cond_broadcast(&fr->work);
	pthread_cond_broadcast(&fr->changed);
	mutex_unlock(&fr->lock);
}

static bool stop_threads(struct fetcher *fr)
{
	struct timespec until;
	bool abandoned;
	int rc = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += FETCH_PATIENCE_S;
	fetcher_end(fr);
	mutex_lock(&fr->lock);
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
		fetch_finish(f, -ESHUTDOWN);
	}
	fetcher_put(fr);
}
