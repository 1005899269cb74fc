/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Start and stop of the movers. Start order: state directory and its lock →
 * DRAM place → databases → tiers → reserve → remote → recovery (→ import) →
 * threads. What was started is taken back on failure by engine_free().
 */
#include "engine/engine.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include "engine/chunk_cache.h"
#include "engine/core.h"
#include "engine/start.h"
#include "engine/tensors.h"
#include "engine/thread.h"
#include "metadata/fault.h"
#include "metadata/log_message.h"

#define META_TMPFS (UINT64_C(1) << 30)
#define RESERVE_LEN (UINT64_C(32) << 20)

int64_t now_mono_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t now_wall_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

void cond_wait_ns(pthread_cond_t *c, struct mutex *m, int64_t ns)
{
	struct timespec ts;
	int64_t until = now_mono_ns() + (ns > 0 ? ns : 0);

	ts.tv_sec = until / 1000000000;
	ts.tv_nsec = until % 1000000000;
	pthread_cond_timedwait(c, &m->m, &ts);
}

struct meta *engine_meta(struct engine *e)
{
	return e->meta;
}

bool engine_passes_through(const struct engine *e)
{
	return e->passthrough;
}

void engine_use_passthrough(struct engine *e, const struct backing_hooks *hooks)
{
	e->hooks = *hooks;
	e->passthrough = true;
}

void engine_set_io_note(struct engine *e, const char *note)
{
	snprintf(e->io_note, sizeof(e->io_note), "%s", note);
}

/* ---- start ------------------------------------------------------------ */

int start_fail(struct start *s, int err, const char *fmt, ...)
{
	va_list ap;

	if (s->why[0])
		return err; /* the first reason is the right one */
	va_start(ap, fmt);
	vsnprintf(s->why, s->why_len, fmt, ap);
	va_end(ap);
	return err;
}

static bool has_entries(const char *dir)
{
	const struct dirent *entry = NULL;
	DIR *d = opendir(dir);

	while (d && (entry = readdir(d)) && entry->d_name[0] == '.')
		;
	if (d)
		closedir(d);
	return entry != NULL;
}

/* A new database would call every file of the old one nobody's, and have it
 * removed. */
static int check_complete(struct start *s)
{
	struct engine *e = s->e;
	char db[300], files[300];

	snprintf(db, sizeof(db), "%s/metadata/db", e->nvme_dir);
	snprintf(files, sizeof(files), "%s/files", e->nvme_dir);
	if (!access(db, F_OK) || !has_entries(files))
		return 0;
	return start_fail(s, -ENOTEMPTY,
			  "%s holds content, but the database that names it, "
			  "%s, is not there: bring it back, or give another "
			  "nvme= (to give up the content: remove %s)",
			  files, db, files);
}

static int open_meta(struct start *s)
{
	struct engine *e = s->e;
	char dir[300];
	struct meta_config mc = { .accepted_dir = e->place.meta_dir,
				  .durable_dir = dir,
				  .keep_events = e->config.remote != NULL,
				  .reserve_len = RESERVE_LEN };
	int r;

	snprintf(dir, sizeof(dir), "%s/metadata", e->nvme_dir);
	r = state_dir_make(dir);
	if (r == 0)
		r = meta_open(&mc, &e->opened, &e->meta);
	if (r == -EOPNOTSUPP)
		return start_fail(
			s, r,
			"nvme=%s was written by a newer ckptfs: use that "
			"one, or another directory",
			e->nvme_dir);
	if (r == -ESTALE)
		return start_fail(
			s, r,
			"nvme=%s holds an older state than the one that the "
			"DRAM tier (%s) goes on from: bring the newer one "
			"back, or free the DRAM tier (ckptctl leftovers "
			"--free) to start from what the disk has",
			e->nvme_dir, e->place.base);
	if (r == -ENOSPC)
		return start_fail(
			s, r,
			"nvme=%s: the disk is full: make room (64 MiB "
			"are needed to start)",
			e->nvme_dir);
	if (r < 0)
		return start_fail(s, r, "cannot open the metadata in %s: %s",
				  dir, strerror(-r));
	e->opened_seq = meta_nvme_seq(e->meta);
	return 0;
}

static int open_nvme(struct start *s)
{
	struct engine *e = s->e;
	char dir[300];
	int r;

	snprintf(dir, sizeof(dir), "%s/files", e->nvme_dir);
	r = state_dir_make(dir);
	if (r == 0)
		r = tier_nvme_open(dir, e->config.nvme_size, &e->nvme);
	if (r < 0)
		return start_fail(s, r, "cannot use %s: %s", dir, strerror(-r));
	if (!e->config.faulty)
		return 0;
	struct tier *real = e->nvme;

	r = tier_faulty_open(real, e->config.faulty, &e->nvme);
	if (r < 0) {
		e->nvme = real;
		return start_fail(s, r, "faulty=%s: cannot parse",
				  e->config.faulty);
	}
	return 0;
}

static int open_tiers(struct start *s)
{
	struct engine *e = s->e;
	int r;

	r = tier_dram_open(e->place.dir, e->config.dram, &e->dram);
	if (r < 0)
		return start_fail(s, r, "cannot use %s: %s", e->place.dir,
				  strerror(-r));
	r = open_nvme(s);
	if (r < 0)
		return r;
	r = reserve_start(e->place.dir, e->config.dram, e->config.reserve,
			  &e->reserve);
	if (r < 0)
		return start_fail(s, r, "cannot hold dram=: %s", strerror(-r));
	return throttle_new(e->config.flush_rate, &e->throttle);
}

/* Before the threads, which kick it. */
static int start_publisher(struct start *s)
{
	struct engine *e = s->e;
	int r;

	if (!e->remote)
		return 0;
	r = publish_start(e, e->meta, e->remote, &e->publisher);
	return r == 0 ? 0 : start_fail(s, r, "cannot start the publisher");
}

static int start_tensors(struct start *s)
{
	int r = tensor_room_new(&s->e->tensors);

	return r ? r : chunk_cache_new(&s->e->chunks);
}

static int start_threads(struct start *s)
{
	struct engine *e = s->e;

	static const struct {
		const char *name;
		void *(*run)(void *arg);
	} threads[N_THREADS] = {
		{ "ckpt-follow", follower_main },
		{ "ckpt-timer", timer_main },
		{ "ckpt-settle", settler_main },
		{ "ckpt-lease", leaser_main },
		{ "ckpt-allocate", allocator_main },
		{ "ckpt-flush", flusher_main },
		{ "ckpt-flush", flusher_main },
		{ "ckpt-stream", streamer_main },
		{ "ckpt-tensors", tensors_main },
	};

	for (; e->n_threads < N_THREADS; e->n_threads++)
		if (thread_start(&e->threads[e->n_threads],
				 threads[e->n_threads].name,
				 threads[e->n_threads].run, e))
			return start_fail(s, -EAGAIN, "cannot start threads");
	return 0;
}

static bool kernel_has_mgtime(void)
{
	struct utsname u;
	int major = 0, minor = 0;

	if (uname(&u))
		return false;
	if (sscanf(u.release, "%d.%d", &major, &minor) != 2)
		return false;
	return major > 6 || (major == 6 && minor >= 13);
}

static void engine_init(struct engine *e)
{
	mutex_init(&e->inodes.lock);
	mutex_init(&e->marks.lock);
	mutex_init(&e->watch.lock);
	mutex_init(&e->follow.lock);
	condition_init(&e->marks.settled);
	condition_init(&e->marks.added);
	condition_init(&e->watch.added);
	condition_init(&e->watch.lags);
	condition_init(&e->follow.kick);
	condition_init(&e->follow.timed);
	TAILQ_INIT(&e->marks.list);
	TAILQ_INIT(&e->watch.list);
	STAILQ_INIT(&e->follow.waiters);
	STAILQ_INIT(&e->follow.dead);
	backings_init(&e->backings);
	ahead_init(&e->ahead);
	versions_init(&e->versions);
	streams_init(&e->streams);
	e->lock_fd = -1;
	e->mgtime = kernel_has_mgtime();
}

/* keep: what is in DRAM is still needed. */
static void engine_free(struct engine *e, bool keep)
{
	publish_stop(e->publisher);
	tensor_room_free(e->tensors);
	chunk_cache_free(e->chunks);
	if (e->fetcher)
		fetcher_free(e->fetcher);
	reserve_stop(e->reserve);
	meta_close(e->meta);
	if (e->dram)
		e->dram->ops->close(e->dram);
	if (e->nvme)
		e->nvme->ops->close(e->nvme);
	throttle_free(e->throttle);
	remote_put(e->remote);
	if (!keep)
		dram_place_remove(&e->place);
	dram_place_close(&e->place);
	versions_fini(e);
	streams_fini(e);
	backings_fini(&e->backings);
	if (e->lock_fd >= 0)
		close(e->lock_fd);
	free(e->drops);
	free(e);
}

static int open_place(struct start *s)
{
	struct engine *e = s->e;
	char id[33];
	int r = state_dir_id(s, id);

	if (r < 0)
		return r;
	r = dram_place_open(id, e->nvme_dir, e->config.dram, META_TMPFS,
			    &e->place);
	if (r < 0)
		return start_fail(s, r, "cannot set up the DRAM tier: %s%s%s",
				  e->place.why, e->place.why[0] ? ": " : "",
				  strerror(-r));
	return 0;
}

static int recover(struct start *s)
{
	int r = recover_tiers(s->e);

	return r == 0 ? 0
		      : start_fail(s, r, "cannot recover %s: %s",
				   s->e->nvme_dir, strerror(-r));
}

/* What a dead daemon left unsealed is sealed before the first target is
 * chosen: of a version that was being overwritten in place there may be
 * nothing left but what overwrote it. */
static int seal_left(struct start *s)
{
	/* What cannot be sealed now keeps its mark. */
	(void)settle(s->e);
	return 0;
}

int start_goes_on(struct start *s)
{
	const struct engine_config *c = &s->e->config;

	if (!c->unwanted || !c->unwanted(c->unwanted_arg))
		return 0;
	return start_fail(s, -EINTR, "told to end before it was mounted");
}

static int start_all(struct start *s)
{
	static int (*const steps[])(struct start * s) = {
		state_dir_open, check_complete,  open_place,    open_meta,
		open_tiers,     start_remote,    recover,       start_import,
		seal_left,      start_publisher, start_tensors, start_threads,
	};

	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		int r = start_goes_on(s);

		if (r == 0)
			r = steps[i](s);
		if (r == 0)
			r = FAULT("start.step", -EIO);
		if (r < 0)
			return r;
	}
	return 0;
}

static void stop_threads(struct engine *e)
{
	mutex_lock(&e->versions.lock);
	e->versions.stop = true;
	pthread_cond_broadcast(&e->versions.work);
	pthread_cond_broadcast(&e->versions.changed);
	mutex_unlock(&e->versions.lock);
	mutex_lock(&e->streams.lock);
	e->streams.stop = true;
	pthread_cond_broadcast(&e->streams.work);
	mutex_unlock(&e->streams.lock);
	mutex_lock(&e->follow.lock);
	e->follow.stop = true;
	pthread_cond_broadcast(&e->follow.kick);
	pthread_cond_broadcast(&e->follow.timed);
	mutex_unlock(&e->follow.lock);
	mutex_lock(&e->marks.lock);
	e->marks.stop = true;
	pthread_cond_broadcast(&e->marks.added);
	mutex_unlock(&e->marks.lock);
	mutex_lock(&e->watch.lock);
	e->watch.stop = true;
	pthread_cond_broadcast(&e->watch.added);
	pthread_cond_broadcast(&e->watch.lags);
	mutex_unlock(&e->watch.lock);
	if (e->tensors)
		tensors_stop(e);
	while (e->n_threads)
		pthread_join(e->threads[--e->n_threads], NULL);
}

int engine_start(const struct engine_config *config, char *why, size_t why_len,
		 struct engine **out)
{
	struct engine *e = calloc(1, sizeof(*e));
	struct start s = { .e = e, .why = why, .why_len = why_len };
	int r;

	if (!e)
		return -ENOMEM;
	why[0] = 0;
	engine_init(e);
	e->config = *config;
	snprintf(e->nvme_dir, sizeof(e->nvme_dir), "%s", config->nvme_dir);
	/* The probe's lease: its break must not kill us. */
	signal(SIGIO, SIG_IGN);
	if (config->fsync == LEVEL_REMOTE && !config->remote)
		r = start_fail(&s, -EINVAL, "fsync=remote needs remote=");
	else
		r = start_all(&s);
	if (r < 0) {
		(void)start_fail(&s, r, "cannot start: %s", strerror(-r));
		stop_threads(e);
		/* What a dead daemon left there may be all there is of it: the
		 * next start carries on. */
		engine_free(e, e->place.found);
		return r;
	}
	dram_place_warn(&e->place);
	if (e->opened.reason[0])
		message_debug("start: %s", e->opened.reason);
	*out = e;
	return 0;
}

uint32_t engine_lineage(const struct engine *e)
{
	return meta_lineage(e->meta);
}

bool engine_has_lost(const struct engine *e, uint32_t lineage, uint64_t seq)
{
	if (lineage == meta_lineage(e->meta))
		return false;
	/* This start made the state anew, as of a number; of the starts before
	 * it nothing is known. */
	return e->opened.start == META_CARRIED_ON || seq > e->opened_seq;
}

/* ---- stop ------------------------------------------------------------- */

void engine_end_fetches(struct engine *e)
{
	if (e->fetcher)
		fetcher_end(e->fetcher);
}

void engine_stop(struct engine *e, int timeout_s)
{
	bool all;
	int r;

	state_dir_say(e, "draining");
	settle_written(e);
	r = engine_drain(e, LEVEL_NVME, timeout_s < 0 ? -1 : timeout_s * 1000);
	stop_threads(e); /* they kick the publisher */
	backings_tidy(e);
	publish_stop(e->publisher);
	e->publisher = NULL;
	follow_fail_waiters(e, -ESHUTDOWN);
	all = meta_nvme_seq(e->meta) >= meta_accepted_seq(e->meta) &&
	      TAILQ_EMPTY(&e->watch.list);
	if (!all)
		message_error("not all has reached nvme (%s): it is kept in "
			      "%s; mount nvme=%s again to carry on",
			      r ? strerror(-r) : "files still mapped",
			      e->place.base, e->nvme_dir);
	engine_free(e, !all);
}
