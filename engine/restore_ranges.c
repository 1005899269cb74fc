/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranges of a remote-only version, for those who do not want all of it. Each
 * call on the remote has a thread and a buffer of its own, for it may hang:
 * then who asked goes his way at fetcher_end(), and the thread is left to
 * itself like any other of the fetcher. What a chunk costs on its way from a
 * remote makes a thread and a copy cheap.
 */
#include <errno.h>
#include <string.h>

#include "engine/restore_fetch.h"

enum ask { ASK_OBJECT, ASK_CHUNK, ASK_BYTES };

struct call {
	struct fetch *f; /* held */
	enum ask ask;
	uint64_t at; /* the chunk, or the first byte */
	size_t len;  /* of buf; ASK_CHUNK: what the chunk has */
	void *buf;   /* the thread's until done */
	/* guarded by the fetcher's lock */
	unsigned refs;
	bool done;
	int err;
};

static void call_put(struct call *c)
{
	struct fetcher *fr = c->f->fr;
	bool last;

	mutex_lock(&fr->lock);
	last = --c->refs == 0;
	mutex_unlock(&fr->lock);
	if (!last)
		return;
	fetch_put(c->f);
	free(c->buf);
	free(c);
}

static int call_new(struct fetch *f, enum ask ask, uint64_t at, size_t len,
		    struct call **out)
{
	struct call *c = calloc(1, sizeof(*c));

	if (c)
		c->buf = malloc(len ? len : 1);
	if (!c || !c->buf) {
		free(c);
		return -ENOMEM;
	}
	c->f = fetch_get(f);
	c->ask = ask;
	c->at = at;
	c->len = len;
	c->refs = 1;
	*out = c;
	return 0;
}

/* ---- the thread ------------------------------------------------------- */

static int find_object(struct fetch *f)
{
	struct remote_object *o = NULL;
	int err = fetch_find(f, &o);

	mutex_lock(&f->fr->lock);
	f->object = err ? NULL : o;
	mutex_unlock(&f->fr->lock);
	return err;
}

static int run(struct call *c)
{
	switch (c->ask) {
	case ASK_OBJECT:
		return find_object(c->f);
	case ASK_CHUNK:
		return fetch_read_chunk(c->f, (size_t)c->at, c->buf);
	case ASK_BYTES:
		return fetch_read_range(c->f, c->f->object, c->buf, c->len,
					c->at);
	}
	return -EINVAL;
}

static void *call_main(void *arg)
{
	struct call *c = arg;
	struct fetcher *fr = c->f->fr;
	int err = run(c);

	mutex_lock(&fr->lock);
	c->err = err;
	c->done = true;
	fr->n_threads--;
	pthread_cond_broadcast(&fr->changed);
	mutex_unlock(&fr->lock);
	call_put(c);
	return NULL;
}

/* ---- who asks --------------------------------------------------------- */

static int start(struct call *c)
{
	struct fetcher *fr = c->f->fr;
	pthread_t thread;
	int err = -ESHUTDOWN;

	mutex_lock(&fr->lock);
	if (!fr->stop) {
		err = thread_start(&thread, "fetch-range", call_main, c);
		if (!err) {
			pthread_detach(thread);
			c->refs++;
			fr->n_threads++;
		}
	}
	mutex_unlock(&fr->lock);
	return err;
}

/* Starts c and waits for it, but not beyond the fetcher's end. */
static int call(struct call *c)
{
	struct fetcher *fr = c->f->fr;
	int err = start(c);

	if (err)
		return err;
	mutex_lock(&fr->lock);
	while (!c->done && !fr->stop)
		pthread_cond_wait(&fr->changed, &fr->lock.m);
	err = c->done ? c->err : -ESHUTDOWN;
	mutex_unlock(&fr->lock);
	return err;
}

static int ask(struct fetch *f, enum ask what, uint64_t at, void *buf,
	       size_t len)
{
	struct call *c;
	int err = call_new(f, what, at, len, &c);

	if (err)
		return err;
	err = call(c);
	if (!err && len) {
		memcpy(buf, c->buf, len);
		f->fr->bytes += len;
	}
	call_put(c);
	return err;
}

int ranges_open(struct fetcher *fr, const char *path,
		const struct copy_rec *copy, struct fetch **out)
{
	struct fetch_config config = { .path = path, .copy = *copy };
	struct fetch *f;
	int err = fetch_new(fr, &config, &f);

	if (err)
		return err;
	f->refs = 1; /* not among the active ones */
	err = ask(f, ASK_OBJECT, 0, NULL, 0);
	if (err)
		fetch_put(f);
	else
		*out = f;
	return err;
}

int ranges_read_chunk(struct fetch *f, size_t i, void *buf, size_t *len)
{
	size_t n = fetch_chunk_len(f, i);
	int err = ask(f, ASK_CHUNK, i, buf, n);

	if (!err)
		*len = n;
	return err;
}

int ranges_peek(struct fetch *f, void *buf, size_t len, uint64_t off)
{
	return ask(f, ASK_BYTES, off, buf, len);
}

/* ---- the end of an object --------------------------------------------- */

struct closing {
	struct remote *r; /* held */
	struct remote_object *o;
};

static void *close_main(void *arg)
{
	struct closing *c = arg;

	c->r->ops->close_object(c->o);
	remote_put(c->r);
	free(c);
	return NULL;
}

void object_close(struct remote *r, struct remote_object *o)
{
	struct closing *c = malloc(sizeof(*c));
	pthread_t thread;

	if (!c) {
		r->ops->close_object(o);
		return;
	}
	*c = (struct closing){ .r = remote_hold(r), .o = o };
	if (thread_start(&thread, "fetch-close", close_main, c))
		close_main(c);
	else
		pthread_detach(thread);
}
