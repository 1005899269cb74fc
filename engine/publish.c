/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The publisher's thread: it follows the durable log, replays it on the
 * remote as long as all bytes are there (publish_replay.c), and moves to a
 * later number in one step when some are not (publish_reconcile.c). A remote
 * that fails makes it stand still and try again, and R with it; nothing else.
 *
 * Invariants
 *  1. R moves only after the remote has synced what R covers, whoever did it.
 *  2. After a crash, what is repeated is idempotent: see publish_replay.c.
 *  3. A step to a later number is noted before it begins, and finished before
 *     anything is replayed again.
 */
#include "engine/publish.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

#include "engine/publish_parts.h"
#include "engine/thread.h"
#include "engine/tier.h"
#include "metadata/fault.h"
#include "metadata/log_message.h"

#define MS INT64_C(1000000)
#define SECOND (1000 * MS)
#define BACKOFF_MIN (50 * MS)
#define BACKOFF_MAX (10 * SECOND)
#define PATIENCE (5 * SECOND)
#define PIN_PATIENCE (5 * SECOND)
#define IDLE SECOND
#define ROOM_EVERY (5 * SECOND)

/* ---- time ------------------------------------------------------------- */

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * SECOND + now.tv_nsec;
}

/* false: it is later than `until`. */
static bool wait_until_locked(struct publisher *p, pthread_cond_t *cond,
			      int64_t until) MUST_HOLD(p->lock);
static bool wait_until_locked(struct publisher *p, pthread_cond_t *cond,
			      int64_t until)
{
	struct timespec t = { until / SECOND, until % SECOND };

	return pthread_cond_timedwait(cond, &p->lock.m, &t) != ETIMEDOUT;
}

bool is_stopping(struct publisher *p)
{
	bool stop;

	mutex_lock(&p->lock);
	stop = p->stop;
	mutex_unlock(&p->lock);
	return stop;
}

bool is_abandoned(struct publisher *p)
{
	bool abandoned;

	mutex_lock(&p->lock);
	abandoned = p->abandoned;
	mutex_unlock(&p->lock);
	return abandoned;
}

/* ---- calls on the remote ---------------------------------------------- */

int remote_enter(struct publisher *p)
{
	int err = FAULT("publish.call", -EIO);
	bool stop;

	if (err)
		return err;
	mutex_lock(&p->lock);
	stop = p->stop;
	if (!stop)
		p->n_remote++;
	mutex_unlock(&p->lock);
	return stop ? -ECANCELED : 0;
}

int remote_leave(struct publisher *p, int err)
{
	bool abandoned;

	mutex_lock(&p->lock);
	p->n_remote--;
	abandoned = p->abandoned;
	pthread_cond_broadcast(&p->changed);
	mutex_unlock(&p->lock);
	if (!err || is_unlike(err))
		p->moved_ns = now_ns();
	if (!err)
		/* It was done; only the answer got lost. */
		err = FAULT("publish.answer", -EIO);
	return abandoned ? -ECANCELED : err;
}

bool is_unlike(int err)
{
	return err == -ENOENT || err == -EEXIST || err == -ENOTDIR ||
	       err == -EISDIR || err == -ENOTEMPTY;
}

bool is_impossible(int err)
{
	return err == -EINVAL || err == -ENAMETOOLONG || err == -EILSEQ ||
	       err == -EFBIG || err == -EMLINK || err == -E2BIG ||
	       err == -EXDEV || err == -ELOOP || err == -EOPNOTSUPP;
}

static bool is_retryable(int err)
{
	return err < 0 && !is_unlike(err) && !is_impossible(err) &&
	       err != -EBADMSG && err != -ECANCELED;
}

void stands_still(struct publisher *p, struct attempt *a, const char *why)
{
	bool begins;

	mutex_lock(&p->lock);
	begins = a->n++ == 0 && p->n_failing++ == 0;
	snprintf(p->status.error, sizeof(p->status.error), "%s", why);
	mutex_unlock(&p->lock);
	if (begins)
		message_error("publishing to %s stands still: %s", p->r->name,
			      why);
}

void goes_on(struct publisher *p, struct attempt *a)
{
	bool ends = false;

	if (!a->n)
		return;
	a->n = 0;
	mutex_lock(&p->lock);
	if (--p->n_failing == 0) {
		ends = true;
		p->status.error[0] = '\0';
		p->status.connected = true;
	}
	mutex_unlock(&p->lock);
	if (ends)
		message_info("publishing to %s goes on", p->r->name);
}

/* Doubles with each failure; jitter keeps many nodes from coming at once. */
static int64_t backoff_of(const struct attempt *a)
{
	int64_t ns = BACKOFF_MIN;
	uint32_t random = 0;

	for (unsigned i = 1; i < a->n && ns < BACKOFF_MAX; i++)
		ns *= 2;
	if (ns > BACKOFF_MAX)
		ns = BACKOFF_MAX;
	(void)!getrandom(&random, sizeof(random), GRND_NONBLOCK);
	return ns / 2 + (int64_t)((double)ns / 2 * random / UINT32_MAX);
}

int wait_backoff(struct publisher *p, const struct attempt *a)
{
	int64_t until = now_ns() + backoff_of(a);
	bool stop;

	mutex_lock(&p->lock);
	while (!p->stop && wait_until_locked(p, &p->changed, until))
		;
	stop = p->stop;
	mutex_unlock(&p->lock);
	return stop ? -ECANCELED : 0;
}

/* Bounded by itself, so it need not be entered; it reads notes of meta. */
static int attach(struct publisher *p, char *why, size_t why_len)
{
	int err = remote_attach(p->m, p->r, why, why_len);

	mutex_lock(&p->lock);
	p->status.connected = !err;
	mutex_unlock(&p->lock);
	return err;
}

static void say_failure(struct publisher *p, struct attempt *a, int err)
{
	char why[200] = "", cause[200];

	if (attach(p, cause, sizeof(cause)))
		snprintf(why, sizeof(why), "%s", cause);
	else if (a->path && *a->path)
		snprintf(why, sizeof(why), "cannot publish '%.140s': %s",
			 a->path, strerror(-err));
	else
		snprintf(why, sizeof(why), "cannot use %.140s: %s", p->r->name,
			 strerror(-err));
	stands_still(p, a, why);
}

bool attempt_again(struct publisher *p, struct attempt *a, int *err)
{
	char why[200];
	int stop;

	if (!is_retryable(*err)) {
		if (*err != -ECANCELED)
			goes_on(p, a);
		return false;
	}
	if (!is_stopping(p))
		say_failure(p, a, *err);
	stop = wait_backoff(p, a);
	if (stop) {
		*err = stop;
		return false;
	}
	(void)!attach(p, why, sizeof(why));
	return true;
}

int stuck_at(struct publisher *p, const char *path, int err)
{
	char why[200];
	int stop;

	snprintf(why, sizeof(why), "cannot publish '%.130s': %s", path,
		 err == -EBADMSG ? "its copy does not match its checksum"
				 : strerror(-err));
	stands_still(p, &p->over, why);
	stop = wait_backoff(p, &p->over);
	return stop ? stop : PUB_START_OVER;
}

void step_over(struct publisher *p, const char *path, int err)
{
	mutex_lock(&p->lock);
	p->status.n_skipped++;
	mutex_unlock(&p->lock);
	message_error("cannot publish '%s' to %s, it is left out: %s", path,
		      p->r->name, strerror(-err));
}

/* ---- progress --------------------------------------------------------- */

int checkpoint(struct publisher *p)
{
	const bool moves = p->done_seq > meta_remote_seq(p->m);
	const bool sync = p->n_pending || (p->unsynced && moves);
	int err = 0;

	if (sync) {
		err = remote_enter(p);
		if (!err)
			err = remote_leave(p,
					   p->r->ops->sync(p->r, p->unsynced));
	}
	if (err && err != -ECANCELED) {
		p->over.path = "";
		say_failure(p, &p->over, err);
		err = wait_backoff(p, &p->over);
		return err ? err : PUB_START_OVER;
	}
	if (!err && moves)
		err = meta_set_remote_seq(p->m, p->done_seq, sync);
	if (err)
		return err;
	p->n_pending = 0;
	p->pending = CLASS_NONE;
	p->unsynced &= !sync;
	goes_on(p, &p->over);
	return 0;
}

/* ---- what must stay on NVMe ------------------------------------------- */

void pin_all(struct publisher *p)
{
	p->pin_lapsed = false;
	p->moved_ns = now_ns();
	p->pin_version = UINT64_MAX;
	p->pin = meta_nvme_seq(p->m);
}

void pin_view(struct publisher *p, const struct view *v)
{
	p->pin = view_seq(v);
	/* What is sealed in v had its id before v was made. */
	p->pin_version = meta_new_version(p->m);
}

void pin_nothing(struct publisher *p)
{
	p->pin = UINT64_MAX;
}

int note_copy(struct publisher *p, uint64_t version,
	      const struct remote_attr *attr)
{
	struct version_rec rec;
	struct copy_rec c = {
		.version = version,
		.tier = COPY_REMOTE,
		.kind = COPY_OBJECT,
		.size = attr->size,
		.chunk_len = CHUNK_LEN,
		.n_chunks = attr->n_chunks,
		.crcs = attr->crcs, /* borrowed for the call */
		.verified = remote_attr_verified(attr),
	};

	/* Pointless already: its records may have been forgotten. */
	if (view_version(meta_accepted(p->m), version, &rec) == -ENOENT)
		return 0;
	memcpy(c.object, attr->identity, sizeof(c.object));
	return meta_put_copy(p->m, &c, false);
}

void seek_version(struct publisher *p, uint64_t version, struct sought *out)
{
	CLEANUP(copy_rec_fini) struct copy_rec c = { 0 };
	const bool known = !meta_copy(p->m, version, COPY_REMOTE, &c);

	*out = (struct sought){ 0 };
	out->of_others = known && remote_object_is_of_others(c.object);
	if (out->of_others)
		memcpy(out->others, c.object, sizeof(c.object));
	if (known && !out->of_others)
		memcpy(out->identity, c.object, sizeof(c.object));
	else
		remote_identity(p->m, version, out->identity);
}

bool is_sought(const struct sought *s, const struct remote_attr *a)
{
	return S_ISREG(a->mode) &&
	       (!strcmp(s->identity, a->identity) ||
		(s->of_others && remote_object_fits(s->others, a)));
}

int note_time(struct publisher *p, uint64_t version,
	      const struct remote_attr *found, int64_t mtime_ns)
{
	CLEANUP(copy_rec_fini) struct copy_rec c = { 0 };
	int err;

	if (!S_ISREG(found->mode) || found->identity[0] ||
	    found->mtime_ns == mtime_ns)
		return 0;
	err = meta_copy(p->m, version, COPY_REMOTE, &c);
	if (err || !remote_object_is_of_others(c.object))
		return err == -ENOENT ? 0 : err;
	remote_object_of_others(found->size, mtime_ns, found->mtime_ns,
				c.object);
	return meta_put_copy(p->m, &c, true);
}

bool identity_is_ours(struct publisher *p, const char *identity)
{
	char ours[REMOTE_IDENTITY_LEN + 1];

	remote_identity(p->m, 0, ours);
	return !strncmp(ours, identity, 33);
}

/* ---- the thread ------------------------------------------------------- */

/* What was staged and will not be placed: by a daemon that died, or ahead of
 * events that were then stepped over. The window is empty. */
static int clean(struct publisher *p)
{
	char uuid[REMOTE_IDENTITY_LEN + 1];
	bool idle;
	int err;

	mutex_lock(&p->lock);
	idle = !p->n_running && TAILQ_EMPTY(&p->queue);
	mutex_unlock(&p->lock);
	if (p->clean || !idle)
		return 0;
	remote_identity(p->m, 0, uuid);
	uuid[32] = '\0';
	err = ON_REMOTE(p, "", p->r->ops->unstage_all(p->r, uuid));
	p->clean = err != -ECANCELED;
	return err == -ECANCELED ? err : 0;
}

/* Its versions are staged, or on the way, and perhaps not wanted any more. */
static void drop_window(struct publisher *p)
{
	window_clear(p);
	p->clean = false;
}

static int look_at_room(struct publisher *p)
{
	uint64_t total = 0, avail = 0;
	int err;

	if (now_ns() < p->room_ns)
		return 0;
	p->room_ns = now_ns() + ROOM_EVERY;
	err = remote_enter(p);
	if (!err)
		err = remote_leave(p, p->r->ops->room(p->r, &total, &avail));
	mutex_lock(&p->lock);
	p->status.room_total = total;
	p->status.room_avail = avail;
	mutex_unlock(&p->lock);
	return err == -ECANCELED ? err : 0;
}

static int work(struct publisher *p)
{
	bool due = false, whole = false;
	int err = reconcile_is_due(p, &due, &whole);

	if (!err && due)
		err = reconcile(p, whole);
	if (!err)
		err = replay(p);
	if (err == PUB_GONE || err == PUB_UNLIKE || err == PUB_LOST) {
		drop_window(p);
		err = reconcile(p, err == PUB_LOST);
	}
	if (err)
		return err;
	goes_on(p, &p->over);
	err = look_at_room(p);
	return err ? err : clean(p);
}

/* Something local: the durable database, memory. */
static int start_over(struct publisher *p, int err)
{
	char why[200];

	drop_window(p);
	replay_from_remote_seq(p);
	p->unsynced = true;
	if (err == PUB_START_OVER)
		return 0; /* has waited */
	snprintf(why, sizeof(why), "cannot read what is to be published: %s",
		 strerror(-err));
	stands_still(p, &p->over, why);
	return wait_backoff(p, &p->over);
}

static void idle(struct publisher *p)
{
	int64_t until = now_ns() + IDLE;

	mutex_lock(&p->lock);
	while (!p->stop && !p->kicked && wait_until_locked(p, &p->kick, until))
		;
	p->kicked = false;
	mutex_unlock(&p->lock);
}

static int attach_first(struct publisher *p)
{
	char why[200];
	int err = 0;

	while (!err && attach(p, why, sizeof(why))) {
		stands_still(p, &p->over, why);
		err = wait_backoff(p, &p->over);
	}
	if (!err)
		goes_on(p, &p->over);
	return err;
}

static void publisher_put(struct publisher *p)
{
	bool last;

	mutex_lock(&p->lock);
	last = --p->refs == 0;
	mutex_unlock(&p->lock);
	if (!last)
		return;
	window_clear(p);
	folder_forget_all(p);
	remote_put(p->r);
	pthread_cond_destroy(&p->changed);
	pthread_cond_destroy(&p->kick);
	mutex_fini(&p->lock);
	free(p);
}

static void thread_ends(struct publisher *p)
{
	mutex_lock(&p->lock);
	p->n_threads--;
	pthread_cond_broadcast(&p->changed);
	mutex_unlock(&p->lock);
	publisher_put(p);
}

static void *publisher_main(void *arg)
{
	struct publisher *p = arg;
	int err = attach_first(p);

	thread_lower_priority();
	while (err != -ECANCELED && !is_stopping(p)) {
		err = work(p);
		if (!err)
			idle(p);
		else if (err != -ECANCELED)
			err = start_over(p, err);
	}
	thread_ends(p);
	return NULL;
}

static void *stager_thread(void *arg)
{
	struct publisher *p = arg;

	thread_lower_priority();
	stager_main(p);
	thread_ends(p);
	return NULL;
}

/* ---- the door --------------------------------------------------------- */

static int start_thread(struct publisher *p, const char *name,
			void *(*run)(void *))
{
	pthread_t thread;
	int err;

	mutex_lock(&p->lock);
	p->n_threads++;
	p->refs++;
	mutex_unlock(&p->lock);
	err = thread_start(&thread, name, run, p);
	if (err)
		thread_ends(p);
	else
		pthread_detach(thread);
	return err;
}

int publish_start(struct engine *e, struct meta *m, struct remote *r,
		  struct publisher **out)
{
	struct publisher *p = calloc(1, sizeof(*p));
	int err = 0;

	if (!p)
		return -ENOMEM;
	mutex_init(&p->lock);
	condition_init(&p->changed);
	condition_init(&p->kick);
	TAILQ_INIT(&p->queue);
	STAILQ_INIT(&p->window);
	p->e = e;
	p->m = m;
	p->r = remote_hold(r);
	p->refs = 1;
	pin_nothing(p);
	p->unsynced = true;
	p->started_seq = meta_nvme_seq(m);
	p->read_seq = p->done_seq = meta_remote_seq(m);
	for (int i = 0; i < N_STAGERS && !err; i++)
		err = start_thread(p, "stage", stager_thread);
	if (!err)
		err = start_thread(p, "publish", publisher_main);
	if (err)
		publish_stop(p);
	else
		*out = p;
	return err;
}

void publish_stop(struct publisher *p)
{
	int64_t until = now_ns() + PATIENCE;
	bool abandoned;

	if (!p)
		return;
	mutex_lock(&p->lock);
	p->stop = true;
	pthread_cond_broadcast(&p->changed);
	pthread_cond_broadcast(&p->kick);
	while (p->n_threads && wait_until_locked(p, &p->changed, until))
		;
	p->abandoned = abandoned = p->n_threads != 0;
	while (p->n_threads > p->n_remote)
		pthread_cond_wait(&p->changed, &p->lock.m);
	mutex_unlock(&p->lock);
	if (abandoned)
		message_warning("%s does not answer: what is under way to it "
				"is left to itself, the rest is carried on at "
				"the next mount",
				p->r->name);
	publisher_put(p);
}

void publish_kick(struct publisher *p)
{
	mutex_lock(&p->lock);
	p->kicked = true;
	pthread_cond_signal(&p->kick);
	mutex_unlock(&p->lock);
}

bool publish_pins(struct publisher *p, uint64_t version, uint64_t dead_seq)
{
	uint64_t bytes = p->bytes_done;

	/* What fails begins anew again and again. */
	if (bytes != p->moved_bytes && !p->n_failing)
		p->moved_ns = now_ns();
	p->moved_bytes = bytes;
	if (dead_seq <= p->pin || version >= p->pin_version || p->pin_lapsed)
		return false;
	if (now_ns() - p->moved_ns < PIN_PATIENCE)
		return true;
	p->pin_lapsed = true;
	return false;
}

void publish_status(struct publisher *p, struct publish_status *out)
{
	mutex_lock(&p->lock);
	*out = p->status;
	mutex_unlock(&p->lock);
	out->bytes_done = p->bytes_done;
}
