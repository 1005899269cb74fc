/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Start and stop of the movers, and the namespace transactions that concern
 * open files. Start order: state directory and its lock → DRAM place →
 * databases → tiers → reserve → remote → recovery (→ import) → threads. Each
 * step undoes itself on failure through engine_free().
 */
#include "engine/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/statfs.h>
#include <sys/utsname.h>
#include <time.h>

#include "engine/chunk_cache.h"
#include "engine/core.h"
#include "engine/tensors.h"
#include "engine/thread.h"
#include "metadata/fault.h"
#include "metadata/log_message.h"

#define TMPFS_MAGIC 0x01021994
#define NOTE_JOINED "remote.joined" /* 1: its files and ours are one tree */
#define META_TMPFS (UINT64_C(1) << 30)
#define RESERVE_LEN (UINT64_C(32) << 20)
#define DRAIN_WAIT_S 600

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

/* ---- namespace transactions ------------------------------------------- */

struct txn *engine_txn_begin(struct engine *e)
{
	int r = settle(e);
	struct txn *t = txn_begin(e->meta);

	txn_refuse(t, r);
	return t;
}

void drop_version(struct engine *e, struct txn *t, uint64_t version)
{
	if (!version)
		return;
	txn_del_version(t, version);
	if (e->n_drops == e->cap_drops) {
		size_t cap = e->cap_drops ? e->cap_drops * 2 : 16;
		void *grown = realloc(e->drops, cap * sizeof(*e->drops));

		if (!grown)
			return; /* the sweep at the next start finds it */
		e->drops = grown;
		e->cap_drops = cap;
	}
	e->drops[e->n_drops++] = (struct dropped){ .version = version };
}

int commit_and_drop(struct engine *e, struct txn *t, uint64_t *seq)
{
	/* The list is the door's: take it before the door is given back. */
	CLEANUP(free_p) struct dropped *drops = MOVE(e->drops);
	size_t n = e->n_drops, len = txn_len(t);
	uint64_t orphaned;
	int r;

	e->n_drops = e->cap_drops = 0;
	orphaned = e->orphaned;
	e->orphaned = 0;
	r = txn_commit(t, seq);
	if (r < 0) {
		if (orphaned)
			(void)inode_set_orphan(e, orphaned, false);
		return r;
	}
	version_bound(e, len);
	for (size_t i = 0; i < n; i++)
		version_dead(e, drops[i].version, *seq);
	return 0;
}

int engine_txn_commit(struct engine *e, struct txn *t, uint64_t *seq)
{
	return commit_and_drop(e, t, seq);
}

void engine_txn_abort(struct engine *e, struct txn *t)
{
	uint64_t orphaned = e->orphaned;

	e->n_drops = 0;
	e->orphaned = 0;
	txn_abort(t);
	if (orphaned)
		(void)inode_set_orphan(e, orphaned, false);
}

void engine_drop_link(struct engine *e, struct txn *t, struct inode_rec *rec,
		      int64_t now_ns)
{
	rec->ctime_ns = now_ns;
	rec->nlink = S_ISDIR(rec->mode) ? 0 : rec->nlink - 1;
	txn_frees(t);
	if (rec->nlink) {
		txn_put_inode(t, rec);
	} else if (inode_set_orphan(e, rec->ino, true)) {
		e->orphaned = rec->ino;
		txn_put_inode(t, rec);
		txn_put_orphan(t, rec->ino);
	} else {
		/* Not in use, so it is sealed: no unsealed record to delete. */
		drop_version(e, t, rec->version);
		txn_del_inode(t, rec);
	}
}

/* ---- start ------------------------------------------------------------ */

struct start {
	struct engine *e;
	char *why;
	size_t why_len;
};

static int PRINTF(3, 4) fail(struct start *s, int err, const char *fmt, ...)
{
	va_list ap;

	if (s->why[0])
		return err; /* the first reason is the right one */
	va_start(ap, fmt);
	vsnprintf(s->why, s->why_len, fmt, ap);
	va_end(ap);
	return err;
}

static int make_dirs(const char *path)
{
	char buf[256];
	char *p;

	if (snprintf(buf, sizeof(buf), "%s", path) >= (int)sizeof(buf))
		return -ENAMETOOLONG;
	for (p = strchr(buf + 1, '/'); p; p = strchr(p + 1, '/')) {
		*p = 0;
		if (mkdir(buf, 0755) && errno != EEXIST)
			return -errno;
		*p = '/';
	}
	return mkdir(buf, 0700) && errno != EEXIST ? -errno : 0;
}

static void write_lock_state(struct engine *e, const char *state)
{
	char line[400];
	int n = snprintf(line, sizeof(line), "%s %d %s\n", state, (int)getpid(),
			 e->config.mountpoint);

	if (e->lock_fd < 0)
		return;
	if (ftruncate(e->lock_fd, 0) ||
	    pwrite(e->lock_fd, line, (size_t)n, 0) != n)
		message_warning("cannot write the lock file of %s: %m",
				e->nvme_dir);
}

/* line: "STATE PID MOUNTPOINT". One that was unmounted just now may not have
 * come to say that it drains. */
static bool is_mounted(const char *line)
{
	const char *at = strchr(line, '/');
	char entry[4096];
	FILE *f = fopen("/proc/self/mountinfo", "re");
	bool found = false;
	size_t len = at ? strlen(at) : 0;

	while (f && len && !found && fgets(entry, sizeof(entry), f)) {
		const char *p = strstr(entry, at);

		found = p && p > entry && p[-1] == ' ' && p[len] == ' ';
	}
	if (f)
		fclose(f);
	return found;
}

/* Another ckptfs holds it: wait while that one drains, else say so. */
static int wait_for_lock(struct start *s)
{
	struct engine *e = s->e;
	int64_t until = now_mono_ns() + DRAIN_WAIT_S * INT64_C(1000000000);
	int64_t soon = now_mono_ns() + INT64_C(3000000000);
	bool told = false;
	char line[400];

	while (flock(e->lock_fd, LOCK_EX | LOCK_NB)) {
		ssize_t n = pread(e->lock_fd, line, sizeof(line) - 1, 0);
		struct timespec ts = { .tv_nsec = 20000000 };

		line[n > 0 ? n : 0] = 0;
		line[strcspn(line, "\n")] = 0;
		if (n > 0 && strncmp(line, "draining", 8) != 0 &&
		    (is_mounted(line) || now_mono_ns() > soon))
			return fail(s, -EBUSY,
				    "nvme=%s is in use by another ckptfs "
				    "(%s): unmount that one, or choose "
				    "another directory",
				    e->nvme_dir, line);
		if (now_mono_ns() > until)
			return fail(s, -ETIMEDOUT,
				    "nvme=%s: the last mount still flushes "
				    "(%s): try again later",
				    e->nvme_dir, line);
		if (!told)
			message_info("waiting until the last mount of %s has "
				     "flushed",
				     e->nvme_dir);
		told = true;
		nanosleep(&ts, NULL);
	}
	return 0;
}

static int open_state_dir(struct start *s)
{
	struct engine *e = s->e;
	struct statfs fs;
	char path[300];
	int r;

	r = make_dirs(e->nvme_dir);
	if (r < 0)
		return fail(s, r,
			    "cannot make nvme=%s: %s: choose a directory on "
			    "a local disk",
			    e->nvme_dir, strerror(-r));
	snprintf(path, sizeof(path), "%s/lock", e->nvme_dir);
	e->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (e->lock_fd < 0) {
		r = -errno;
		return fail(s, r,
			    "cannot write in nvme=%s: %s: choose a directory "
			    "that you may write",
			    e->nvme_dir, strerror(-r));
	}
	r = wait_for_lock(s);
	if (r < 0)
		return r;
	write_lock_state(e, "mounted");
	if (!statfs(e->nvme_dir, &fs) && fs.f_type == TMPFS_MAGIC)
		message_warning("nvme=%s is on tmpfs: `nvme` will not survive "
				"a power loss",
				e->nvme_dir);
	return 0;
}

/* Names the mount's DRAM place; made once, kept in the state directory. */
static int state_id(struct start *s, char id[33])
{
	struct engine *e = s->e;
	CLEANUP(close_p) int fd = -1;
	unsigned char raw[16];
	char path[300];

	snprintf(path, sizeof(path), "%s/id", e->nvme_dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return fail(s, -errno, "cannot open %s: %m", path);
	if (pread(fd, id, 32, 0) == 32) {
		id[32] = 0;
		if (strspn(id, "0123456789abcdef") == 32)
			return 0;
	}
	if (getrandom(raw, sizeof(raw), 0) != sizeof(raw))
		return fail(s, -EIO, "no random numbers: %m");
	for (int i = 0; i < 16; i++)
		snprintf(id + 2 * i, 3, "%02x", raw[i]);
	if (pwrite(fd, id, 32, 0) != 32 || fsync(fd))
		return fail(s, errno ? -errno : -EIO,
			    "cannot write %s: %m: is the disk full?", path);
	return 0;
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
	r = make_dirs(dir);
	if (r == 0)
		r = meta_open(&mc, &e->opened, &e->meta);
	if (r == -EOPNOTSUPP)
		return fail(s, r,
			    "nvme=%s was written by a newer ckptfs: use that "
			    "one, or another directory",
			    e->nvme_dir);
	if (r == -ENOSPC)
		return fail(s, r,
			    "nvme=%s: the disk is full: make room (64 MiB "
			    "are needed to start)",
			    e->nvme_dir);
	if (r < 0)
		return fail(s, r, "cannot open the metadata in %s: %s", dir,
			    strerror(-r));
	e->opened_seq = meta_nvme_seq(e->meta);
	return 0;
}

static int open_nvme(struct start *s)
{
	struct engine *e = s->e;
	char dir[300];
	int r;

	snprintf(dir, sizeof(dir), "%s/files", e->nvme_dir);
	r = make_dirs(dir);
	if (r == 0)
		r = tier_nvme_open(dir, e->config.nvme_size, &e->nvme);
	if (r < 0)
		return fail(s, r, "cannot use %s: %s", dir, strerror(-r));
	if (!e->config.faulty)
		return 0;
	struct tier *real = e->nvme;

	r = tier_faulty_open(real, e->config.faulty, &e->nvme);
	if (r < 0) {
		e->nvme = real;
		return fail(s, r, "faulty=%s: cannot parse", e->config.faulty);
	}
	return 0;
}

static int open_tiers(struct start *s)
{
	struct engine *e = s->e;
	int r;

	r = tier_dram_open(e->place.dir, e->config.dram, &e->dram);
	if (r < 0)
		return fail(s, r, "cannot use %s: %s", e->place.dir,
			    strerror(-r));
	r = open_nvme(s);
	if (r < 0)
		return r;
	r = reserve_start(e->place.dir, e->config.dram, e->config.reserve,
			  &e->reserve);
	if (r < 0)
		return fail(s, r, "cannot hold dram=: %s", strerror(-r));
	return throttle_new(e->config.flush_rate, &e->throttle);
}

static int open_remote(struct start *s)
{
	struct engine *e = s->e;
	char why[200] = "";
	int r;

	if (!e->config.remote)
		return 0;
	r = remote_open(e->config.remote, &e->remote);
	if (r < 0)
		return fail(s, r, "remote=%s: %s", e->config.remote,
			    r == -EOPNOTSUPP ? "not in this build"
					     : strerror(-r));
	r = remote_attach(e->meta, e->remote, why, sizeof(why));
	if (r == 0)
		r = e->remote->ops->probe(e->remote, why, sizeof(why));
	/* Down is no reason not to mount; a mistake is. */
	if (r < 0 && (e->opened.start == META_FRESH ||
		      !restore_is_done(e->meta) || r == -EMEDIUMTYPE))
		return fail(s, r, "remote=%s cannot be used: %s",
			    e->config.remote, why[0] ? why : strerror(-r));
	if (r < 0)
		message_warning("remote %s is down (%s): mounted on local "
				"state alone, will go on trying",
				e->config.remote, why[0] ? why : strerror(-r));
	return fetcher_new(e->meta, e->remote, &e->fetcher);
}

static int any_entry(void *arg, const char *name, const struct dentry_rec *d)
{
	(void)name;
	(void)d;
	*(bool *)arg = true;
	return 1;
}

static int any_name(void *arg, const char *name)
{
	(void)name;
	*(bool *)arg = true;
	return 1;
}

/*
 * Which of two files of one name would be the right one? Asked once: an import
 * that was interrupted, or is made once more, finds its own files here.
 */
static int check_merge(struct start *s)
{
	struct engine *e = s->e;
	bool here = false, there = false;
	uint8_t joined;
	size_t len = sizeof(joined);
	int r;

	if (!meta_note(e->meta, NOTE_JOINED, &joined, &len) && len)
		return 0;
	r = view_readdir(meta_accepted(e->meta), META_ROOT_INO, 0, any_entry,
			 &here);
	if (r >= 0 && here)
		r = e->remote->ops->list(e->remote, "", any_name, &there);
	if (r < 0)
		return fail(s, r, "cannot read what remote=%s holds: %s",
			    e->config.remote, strerror(-r));
	if (!here || !there)
		return meta_set_note(e->meta, NOTE_JOINED, "\1", 1);
	(void)!remote_forget(e->meta);
	return fail(s, -EEXIST,
		    "remote=%s holds files already, and so does nvme=%s: give "
		    "one of them an empty directory",
		    e->config.remote, e->nvme_dir);
}

static int import_remote(struct start *s)
{
	struct engine *e = s->e;
	char why[200] = "";
	uint64_t n = 0;
	int r;

	if (!e->remote || restore_is_done(e->meta))
		return 0;
	r = check_merge(s);
	if (r < 0)
		return r;
	r = restore_import(e->meta, e->remote, &n, why, sizeof(why));
	if (r < 0)
		return fail(s, r, "cannot read what remote=%s holds: %s",
			    e->config.remote, why[0] ? why : strerror(-r));
	if (n)
		message_info("%lu files found on %s", (unsigned long)n,
			     e->config.remote);
	return 0;
}

/* Before the threads, which kick it. */
static int start_publisher(struct start *s)
{
	struct engine *e = s->e;
	int r;

	if (!e->remote)
		return 0;
	r = publish_start(e, e->meta, e->remote, &e->publisher);
	return r == 0 ? 0 : fail(s, r, "cannot start the publisher");
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
		{ "ckpt-settle", settler_main },
		{ "ckpt-lease", leaser_main },
		{ "ckpt-flush", flusher_main },
		{ "ckpt-flush", flusher_main },
		{ "ckpt-stream", streamer_main },
		{ "ckpt-tensors", tensors_main },
	};

	for (; e->n_threads < N_THREADS; e->n_threads++)
		if (thread_start(&e->threads[e->n_threads],
				 threads[e->n_threads].name,
				 threads[e->n_threads].run, e))
			return fail(s, -EAGAIN, "cannot start threads");
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
	condition_init(&e->follow.kick);
	TAILQ_INIT(&e->marks.list);
	TAILQ_INIT(&e->watch.list);
	STAILQ_INIT(&e->follow.waiters);
	STAILQ_INIT(&e->follow.dead);
	backings_init(&e->backings);
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
	if (e->place.base[0] && !keep)
		dram_place_remove(&e->place);
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
	int r = state_id(s, id);

	if (r < 0)
		return r;
	r = dram_place_open(id, e->nvme_dir, getpid(), e->config.dram,
			    META_TMPFS, &e->place);
	if (r < 0)
		return fail(s, r, "cannot set up the DRAM tier: %s%s%s",
			    e->place.why, e->place.why[0] ? ": " : "",
			    strerror(-r));
	return 0;
}

static int recover(struct start *s)
{
	int r = recover_tiers(s->e);

	return r == 0 ? 0
		      : fail(s, r, "cannot recover %s: %s", s->e->nvme_dir,
			     strerror(-r));
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

static int start_all(struct start *s)
{
	static int (*const steps[])(struct start * s) = {
		open_state_dir,  open_place,    open_meta,     open_tiers,
		open_remote,     recover,       import_remote, seal_left,
		start_publisher, start_tensors, start_threads,
	};

	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		int r = steps[i](s);

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
	mutex_unlock(&e->follow.lock);
	mutex_lock(&e->marks.lock);
	e->marks.stop = true;
	pthread_cond_broadcast(&e->marks.added);
	mutex_unlock(&e->marks.lock);
	mutex_lock(&e->watch.lock);
	e->watch.stop = true;
	pthread_cond_broadcast(&e->watch.added);
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
		r = fail(&s, -EINVAL, "fsync=remote needs remote=");
	else
		r = start_all(&s);
	if (r < 0) {
		(void)fail(&s, r, "cannot start: %s", strerror(-r));
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

/* Every file still unsealed: the mount is gone, so nobody writes through it;
 * a mapping that lives on is asked by the probe. */
static void mark_all_written(struct engine *e)
{
	struct inode *in;

	for (;;) {
		mutex_lock(&e->watch.lock);
		TAILQ_FOREACH(in, &e->watch.list, watched)
		if (!in->in_marks && in->n_handles == 0 && in->marked_ns >= 0)
			break;
		if (in) {
			mutex_lock(&e->inodes.lock);
			in->refs++;
			mutex_unlock(&e->inodes.lock);
		}
		mutex_unlock(&e->watch.lock);
		if (!in)
			return;
		mark_add(e, in);
		(void)settle(e);
		in->marked_ns = -1; /* once is enough */
		inode_put(e, in);
	}
}

void engine_stop(struct engine *e, int timeout_s)
{
	bool all;
	int r;

	write_lock_state(e, "draining");
	mark_all_written(e);
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
