/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The threads of the fetcher: each takes what is most wanted of all fetches.
 * A chunk counts as there once its checksum was right and its bytes are in
 * the backing file.
 */
#include <errno.h>
#include <stdlib.h>

#include "engine/fd_io.h"
#include "engine/restore_fetch.h"
#include "metadata/fault.h"
#include "metadata/log_message.h"

#define N_FETCHERS 6

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

static int write_chunk(const struct fetch *f, size_t i, const uint8_t *buf)
{
	int err = FAULT("fetch.write", -ENOSPC);

	return err ? err
		   : pwrite_all(f->fd, buf, fetch_chunk_len(f, i),
				(uint64_t)i * CHUNK_LEN);
}

static void run_open(struct fetch *f)
{
	struct fetcher *fr = f->fr;
	struct remote_object *o = NULL;
	int err = fetch_find(f, &o);

	mutex_lock(&fr->lock);
	f->opening = false;
	f->object = err ? NULL : o;
	f->err = err;
	mutex_unlock(&fr->lock);
}

static void run_chunk(struct fetch *f, size_t i, uint8_t *buf)
{
	struct fetcher *fr = f->fr;
	int err = fetch_read_chunk(f, i, buf);

	if (!err)
		err = write_chunk(f, i, buf);
	if (!err)
		fr->bytes += fetch_chunk_len(f, i);
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
void fetch_finish(struct fetch *f, int err)
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
	fetch_finish(f, err);
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

int fetch_threads(struct fetcher *fr)
{
	int err = 0;

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
	return err;
}
