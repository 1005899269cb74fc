/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The publisher's thread: reads a window of events behind R, stages their
 * bytes in parallel, then gives names in log order. R is synced before and
 * after every event whose repetition would hurt (remove, rename), so that
 * after a crash at most one of them is met again, and that one is recognised.
 *
 * An error of the remote stops only R: the window is thrown away and begun
 * again from R, after 50 ms, doubling up to 10 s, with jitter.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/core.h"
#include "engine/publish_core.h"
#include "engine/thread.h"
#include "metadata/log_message.h"

#define MS INT64_C(1000000)
#define BACKOFF_MIN (50 * MS)
#define BACKOFF_MAX (10000 * MS)
#define LINGER (200 * MS)
#define STOP_PATIENCE (5000 * MS)

static void wait_ns(struct publisher *p, int64_t ns, bool for_kick)
{
	int64_t until = now_mono_ns() + ns;

	mutex_lock(&p->lock);
	while (!p->stop && now_mono_ns() < until && !(for_kick && p->kicked))
		cond_wait_ns(&p->wake, &p->lock, until - now_mono_ns());
	if (for_kick)
		p->kicked = false;
	mutex_unlock(&p->lock);
}

bool publish_stopping(struct publisher *p)
{
	bool stop;

	mutex_lock(&p->lock);
	stop = p->stop;
	mutex_unlock(&p->lock);
	return stop;
}

int remote_back(struct publisher *p, int err)
{
	mutex_lock(&p->lock);
	while (p->abandoned) /* for ever: engine and meta may be gone */
		pthread_cond_wait(&p->wake, &p->lock.m);
	mutex_unlock(&p->lock);
	return err;
}

static void set_status(struct publisher *p, int err, const char *what)
{
	char text[200] = "";
	bool news;

	if (err)
		snprintf(text, sizeof(text), "%.120s: %s", what,
			 strerror(-err));
	mutex_lock(&p->lock);
	news = !p->status.error[0] != !text[0];
	snprintf(p->status.error, sizeof(p->status.error), "%s", text);
	p->status.connected = !err;
	mutex_unlock(&p->lock);
	if (news && err)
		message_warning("publishing to %s stands still: %s", p->r->name,
				text);
	else if (news)
		message_info("publishing to %s goes on", p->r->name);
}

static int attach(struct publisher *p, char *why, size_t why_len)
{
	char uuid[REMOTE_IDENTITY_LEN + 1];
	int r = 0;

	if (!p->attached)
		r = remote_back(p, remote_attach(p->m, p->r, why, why_len));
	if (r < 0)
		return r;
	p->attached = true;
	if (p->cleaned)
		return 0;
	remote_identity(p->m, 0, uuid);
	uuid[32] = '\0';
	r = remote_back(p, p->r->ops->unstage_all(p->r, uuid));
	p->cleaned = r == 0;
	return r;
}

static int mark(struct publisher *p, uint64_t seq)
{
	int r;

	if (seq <= meta_remote_seq(p->m))
		return 0;
	r = remote_back(p, p->r->ops->sync(p->r));
	return r < 0 ? r : meta_set_remote_seq(p->m, seq, true);
}

static const char *name_of(const struct event *ev)
{
	return ev->n_paths ? ev->paths[0] : "";
}

static int apply_all(struct publisher *p, struct pub_events *w, uint64_t *done,
		     char *what, size_t len)
{
	struct pub_event *pe;
	int r = 0;

	STAILQ_FOREACH(pe, w, next)
	{
		bool drastic = event_is_drastic(&pe->ev);

		if (publish_stopping(p))
			return -ECANCELED;
		if (drastic)
			r = mark(p, *done);
		if (r == 0)
			r = event_apply(p, pe);
		if (r != 0) {
			snprintf(what, len, "'%s'", name_of(&pe->ev));
			return r;
		}
		*done = pe->ev.seq;
		if (drastic)
			r = mark(p, *done);
		if (r != 0)
			return r;
	}
	return 0;
}

/* Names came and went: the folders they are in have their times back. Those
 * of the same folder stand together, as a rule: once is enough. */
static int all_folder_times(struct publisher *p, struct pub_events *w,
			    uint64_t done)
{
	const struct view *v = meta_accepted(p->m);
	const char *last = NULL;
	struct pub_event *pe;
	int r = 0;

	STAILQ_FOREACH(pe, w, next)
	{
		const char *path = name_of(&pe->ev);
		size_t len = strrchr(path, '/')
				     ? (size_t)(strrchr(path, '/') - path)
				     : 0;

		if (r < 0 || pe->ev.seq > done)
			break;
		if (pe->ev.path2)
			r = folder_times(p, v, pe->ev.path2);
		if (r == 0 && !(last && !strncmp(last, path, len + 1)))
			r = folder_times(p, v, path);
		last = len ? path : NULL;
	}
	return r;
}

/* One window. What is done is marked even if the rest fails. */
static int publish_window(struct publisher *p, char *what, size_t len)
{
	struct pub_events w = STAILQ_HEAD_INITIALIZER(w);
	uint64_t from = meta_remote_seq(p->m), done = from, last = from;
	int r, marked;

	r = window_read(p, from, &w, &last);
	if (r == 0) {
		window_stage(p, &w);
		r = apply_all(p, &w, &done, what, len);
	}
	marked = all_folder_times(p, &w, done);
	if (r == 0)
		done = last;
	if (marked == 0)
		marked = mark(p, done);
	if (r == 0)
		r = marked;
	if (r == PUBLISH_STEP)
		r = step_to_now(p);
	window_free(&w);
	return r;
}

static int publish_once(struct publisher *p)
{
	char what[220] = "", why[200] = "";
	int r;

	r = attach(p, why, sizeof(why));
	if (r == 0)
		r = publish_window(p, what, sizeof(what));
	if (r == -ECANCELED)
		return r;
	if (r < 0)
		p->attached = false;
	set_status(p, r, why[0] ? why : what[0] ? what : "cannot publish");
	return r;
}

static void *publish_main(void *arg)
{
	struct publisher *p = arg;
	unsigned seed = (unsigned)now_mono_ns();
	int64_t backoff = 0;

	thread_lower_priority();
	while (!publish_stopping(p)) {
		int r = 0;

		if (meta_remote_seq(p->m) < meta_nvme_seq(p->m) || !p->attached)
			r = publish_once(p);
		if (r == 0) {
			backoff = 0;
			if (meta_remote_seq(p->m) >= meta_nvme_seq(p->m))
				wait_ns(p, LINGER, true);
			continue;
		}
		backoff = backoff ? backoff * 2 : BACKOFF_MIN;
		if (backoff > BACKOFF_MAX)
			backoff = BACKOFF_MAX;
		wait_ns(p, backoff / 2 + rand_r(&seed) % (backoff / 2), false);
	}
	mutex_lock(&p->lock);
	p->ended = true;
	pthread_cond_broadcast(&p->over);
	mutex_unlock(&p->lock);
	return NULL;
}

int publish_start(struct engine *e, struct meta *m, struct remote *r,
		  struct publisher **out)
{
	struct publisher *p = calloc(1, sizeof(*p));
	int err;

	if (!p)
		return -ENOMEM;
	p->e = e;
	p->m = m;
	p->r = remote_hold(r);
	p->pin = UINT64_MAX;
	mutex_init(&p->lock);
	condition_init(&p->wake);
	condition_init(&p->over);
	err = thread_start(&p->thread, "ckpt-publish", publish_main, p);
	if (err) {
		remote_put(p->r);
		free(p);
		return err;
	}
	*out = p;
	return 0;
}

void publish_stop(struct publisher *p)
{
	int64_t until = now_mono_ns() + STOP_PATIENCE;
	bool ended;

	if (!p)
		return;
	mutex_lock(&p->lock);
	p->stop = true;
	pthread_cond_broadcast(&p->wake);
	while (!p->ended && now_mono_ns() < until)
		cond_wait_ns(&p->over, &p->lock, until - now_mono_ns());
	ended = p->ended;
	p->abandoned = !ended;
	mutex_unlock(&p->lock);
	if (!ended) {
		message_warning("%s does not answer: its thread is left",
				p->r->name);
		pthread_detach(p->thread);
		return;
	}
	pthread_join(p->thread, NULL);
	remote_put(p->r);
	mutex_fini(&p->lock);
	free(p);
}

void publish_kick(struct publisher *p)
{
	mutex_lock(&p->lock);
	p->kicked = true;
	pthread_cond_broadcast(&p->wake);
	mutex_unlock(&p->lock);
}

uint64_t publish_pin(const struct publisher *p)
{
	return p->pin;
}

void publish_status(struct publisher *p, struct publish_status *out)
{
	mutex_lock(&p->lock);
	*out = p->status;
	mutex_unlock(&p->lock);
	out->bytes_done = p->bytes_done;
}
