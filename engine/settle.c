/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Marks, and the thread that settles them (DESIGN.md section 4.5).
 *
 * close(2) waits for FLUSH and for nothing else. So FLUSH marks an inode, and
 * before an event that a power cut may show is logged, the marks set before it
 * are settled:
 *
 *   no writer left                → final seal
 *   writer left, content changed  → the mark is dropped: still being written
 *   writer left, nothing changed  → snapshot seal
 *
 * When no event comes, after 1, 10, 100 ms. Marks are settled many at a time,
 * by one commit: for small files it costs more than all the rest.
 *
 * The creation of a regular file is not such an event: until its first seal,
 * which comes after theirs, no power cut shows its name (metadata/recover.c),
 * and no remote. But what somebody may write on is settled before it.
 *
 * Invariants
 *  1. Seals are logged in the order of the closes, by one thread at a time. Of
 *     several closes of one content the first counts, of several contents the
 *     close of the last.
 *  2. A mark leaves the list only when its seal has its number: settle() also
 *     waits for those that another thread is settling. Where a seal fails, for
 *     whatever reason, its mark stays and all behind it wait; no event is
 *     logged meanwhile but those that make room, or an fsync would promise,
 *     and `latest` name, what is not in the log.
 */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "engine/core.h"
#include "metadata/log_message.h"

#define MS INT64_C(1000000)
#define MAPPED_EVERY (2000 * MS)
#define SETTLE_BY (100 * MS)
#define AWAKE (20 * MS)
#define AGAIN (100 * MS) /* after a seal that failed */
#define N_RUN 32         /* seals in one commit */
#define N_MAPPED 64      /* looked at in one turn */
#define N_MARKS_MOST 256 /* whoever makes more files helps */

/* Eager: whoever makes a file settles this mark first. */
static void set_eager(struct engine *e, struct inode *in, bool eager)
	MUST_HOLD(e->marks.lock);
static void set_eager(struct engine *e, struct inode *in, bool eager)
{
	if (eager && !in->mark_eager)
		e->marks.n_eager++;
	else if (!eager && in->mark_eager)
		e->marks.n_eager--;
	in->mark_eager = eager;
}

/* A mark's place in the list: its number is given here. */
static void place_mark(struct engine *e, struct inode *in, bool changed)
	MUST_HOLD(in->lock) MUST_HOLD(e->marks.lock);
static void place_mark(struct engine *e, struct inode *in, bool changed)
{
	if (changed || !(in->in_marks || in->in_run)) {
		in->mark_no = ++e->marks.last_no;
		in->marked_ns = now_mono_ns();
	}
	/* Somebody may write on (a descriptor that is left has not been
	 * released; a store through a mapping does not even show): what was
	 * closed is a version before more files come. */
	set_eager(e, in, in->n_writers > 0 || in->rdwr);
	if (in->in_marks && !changed)
		return;
	if (in->in_marks) {
		TAILQ_REMOVE(&e->marks.list, in, marked);
	} else {
		e->marks.n++;
		e->marks.pending++;
	}
	TAILQ_INSERT_TAIL(&e->marks.list, in, marked);
	in->in_marks = true;
	if (e->marks.asleep)
		pthread_cond_signal(&e->marks.added);
}

/*
 * One that is marked already keeps its place, unless it was written since: a
 * child that drops what it inherited must not put a shard behind the pointer
 * to it, nor what is closed at last stay ahead of what was closed before.
 */
void mark_add(struct engine *e, struct inode *in)
{
	struct look now = { 0 };
	bool listed;

	mutex_lock(&e->inodes.lock);
	in->refs++;
	mutex_unlock(&e->inodes.lock);

	mutex_lock(&in->lock);
	if (in->ro_fd < 0 || look_at(in, &now))
		now.valid = false;
	mutex_lock(&e->marks.lock);
	listed = in->in_marks;
	if (in->written)
		place_mark(e, in, !look_same(&in->mark, &now));
	listed |= !in->in_marks;
	mutex_unlock(&e->marks.lock);
	in->mark = now;
	mutex_unlock(&in->lock);
	if (listed) /* the mark has one already, or there is none */
		inode_put(e, in);
}

/* ---- a run of marks --------------------------------------------------- */

/* From the head of the list, in its order. */
struct run {
	struct inode *in[N_RUN]; /* the marks' references */
	uint64_t no[N_RUN];
	bool force[N_RUN]; /* seal also what has a writer */
	struct seal seals[N_RUN];
	unsigned n;
};

static void take_run(struct engine *e, int64_t force_until, struct run *run)
	MUST_HOLD(e->marks.lock);
static void take_run(struct engine *e, int64_t force_until, struct run *run)
{
	struct inode *in;

	run->n = 0;
	while (run->n < N_RUN && (in = TAILQ_FIRST(&e->marks.list))) {
		TAILQ_REMOVE(&e->marks.list, in, marked);
		in->in_marks = false;
		in->in_run = true;
		run->no[run->n] = in->mark_no;
		run->force[run->n] = in->marked_ns <= force_until;
		run->in[run->n++] = in;
	}
	e->marks.n -= run->n;
	e->marks.settling = run->n;
	e->marks.settling_no = run->no[0];
}

/* false: leave the mark for later. */
static bool begin_locked(struct engine *e, struct inode *in, uint64_t no,
			 bool force, struct seal *s) MUST_HOLD(in->lock);
static bool begin_locked(struct engine *e, struct inode *in, uint64_t no,
			 bool force, struct seal *s)
{
	struct look now = { 0 };

	*s = (struct seal){ .in = in };
	/* Written and closed again since: it has a later place. */
	if (!in->written || in->ro_fd < 0 || in->mark_no != no)
		return true;
	if (!writer_left_locked(e, in)) {
		seal_begin_locked(e, in, true, s);
		return true;
	}
	if (look_at(in, &now) || !look_same(&in->mark, &now))
		return true;
	if (force)
		seal_begin_locked(e, in, false, s);
	return force;
}

/* Its chunks may have to be summed, or its lease be cut. */
static bool takes_long_locked(const struct inode *in) MUST_HOLD(in->lock);
static bool takes_long_locked(const struct inode *in)
{
	return in->rdwr || !in->mark.valid || in->mark.size >= LEASE_FROM;
}

/* Locks those that can be dealt with now. Only the first is waited for, and
 * what takes long is dealt with alone. */
TSA(no_thread_safety_analysis)
static unsigned lock_run(struct engine *e, struct run *run)
{
	bool alone = false;
	unsigned n = 0;

	while (n < run->n && !alone) {
		struct inode *in = run->in[n];

		if (n == 0)
			mutex_lock(&in->lock);
		else if (!mutex_trylock(&in->lock))
			break;
		alone = takes_long_locked(in);
		if ((n && alone) ||
		    !begin_locked(e, in, run->no[n], run->force[n],
				  &run->seals[n])) {
			mutex_unlock(&in->lock);
			break;
		}
		alone |= seal_failed(run->seals[n++].err);
	}
	return n;
}

/* Unlocks them. How many are done with; *err: why the next one is not. */
TSA(no_thread_safety_analysis)
static unsigned finish_run(struct engine *e, struct run *run, unsigned n,
			   int *err)
{
	unsigned done = n;

	*err = 0;
	for (unsigned i = 0; i < n; i++) {
		struct inode *in = run->in[i];
		int r = seal_finish_locked(e, in, &run->seals[i]);

		if (i < done && r < 0) {
			done = i;
			*err = r;
		}
		mutex_unlock(&in->lock);
	}
	return done;
}

/* One that is not done with goes to the head, unless it has a later place.
 * true: the run's reference is the mark's. */
static bool put_back_one(struct engine *e, struct inode *in, uint64_t no)
	MUST_HOLD(e->marks.lock);
static bool put_back_one(struct engine *e, struct inode *in, uint64_t no)
{
	bool listed = in->in_marks;

	if (in->mark_no != no)
		return false;
	if (listed)
		TAILQ_REMOVE(&e->marks.list, in, marked);
	else
		e->marks.n++;
	TAILQ_INSERT_HEAD(&e->marks.list, in, marked);
	in->in_marks = true;
	return !listed;
}

/* What is left in the run has a reference to give back. */
static void put_back(struct engine *e, struct run *run, unsigned done)
	MUST_HOLD(e->marks.lock);
static void put_back(struct engine *e, struct run *run, unsigned done)
{
	for (unsigned i = run->n; i-- > 0;) {
		struct inode *in = run->in[i];

		in->in_run = false;
		if (i >= done && put_back_one(e, in, run->no[i]))
			run->in[i] = NULL;
		if (!in->in_marks)
			set_eager(e, in, false);
	}
	e->marks.settling = 0;
	e->marks.pending = e->marks.n;
}

/* Nobody is settling, and there are marks. How many it is done with. */
static unsigned settle_run(struct engine *e, int64_t force_until, int *err)
	MUST_HOLD(e->marks.lock);
static unsigned settle_run(struct engine *e, int64_t force_until, int *err)
{
	struct run run;
	unsigned n, done;
	uint64_t ino;
	bool news;

	take_run(e, force_until, &run);
	mutex_unlock(&e->marks.lock);
	n = lock_run(e, &run);
	seals_log(e, run.seals, n);
	done = finish_run(e, &run, n, err);
	ino = *err ? run.in[done]->ino : 0;

	mutex_lock(&e->marks.lock);
	news = *err && !e->marks.error;
	if (done || *err)
		e->marks.error = *err;
	put_back(e, &run, done);
	pthread_cond_broadcast(&e->marks.settled);
	mutex_unlock(&e->marks.lock);
	if (news)
		message_error("cannot seal inode %lu: %s: nothing is accepted "
			      "until it is",
			      (unsigned long)ino, strerror(-*err));
	for (unsigned i = 0; i < run.n; i++)
		inode_put(e, run.in[i]);
	mutex_lock(&e->marks.lock);
	return done;
}

/* ---- settling --------------------------------------------------------- */

/* Is one left of those that had their places by then? */
static bool any_until(struct engine *e, uint64_t no) MUST_HOLD(e->marks.lock);
static bool any_until(struct engine *e, uint64_t no)
{
	const struct inode *first = TAILQ_FIRST(&e->marks.list);

	return (e->marks.settling && e->marks.settling_no <= no) ||
	       (first && first->mark_no <= no);
}

int settle(struct engine *e)
{
	uint64_t no;
	int err = 0;

	if (!e->marks.pending)
		return 0;
	mutex_lock(&e->marks.lock);
	no = e->marks.last_no;
	while (!err && any_until(e, no)) {
		/* Taken by another thread: wait until they have their
		 * numbers (or are back in the list). */
		if (e->marks.settling)
			pthread_cond_wait(&e->marks.settled, &e->marks.lock.m);
		else
			settle_run(e, INT64_MAX, &err);
	}
	mutex_unlock(&e->marks.lock);
	return err;
}

/* Each mark may stand for a charge of a new file (open.c). */
static unsigned most_marks(const struct engine *e)
{
	uint64_t n = e->config.dram >> 20;

	return n < N_MARKS_MOST ? (unsigned)n : N_MARKS_MOST;
}

int settle_if_needed(struct engine *e)
{
	bool needed;

	if (!e->marks.pending)
		return 0;
	mutex_lock(&e->marks.lock);
	needed = e->marks.error || e->marks.n_eager ||
		 e->marks.n >= most_marks(e);
	mutex_unlock(&e->marks.lock);
	return needed ? settle(e) : 0;
}

/* The next look at a mark of this age: 1, 10, 100 ms after it was set. */
static int64_t next_look(int64_t age)
{
	if (age < 1 * MS)
		return 1 * MS - age;
	if (age < 10 * MS)
		return 10 * MS - age;
	return SETTLE_BY - age;
}

/* Settles what is due, in order: what was closed after a file that is left for
 * later waits, too. The time until the next look, or -1; any: there were marks. */
static int64_t settle_due(struct engine *e, bool *any)
{
	int64_t age = 0;
	unsigned done = 1;
	uint64_t no;
	int err = 0;

	mutex_lock(&e->marks.lock);
	*any = e->marks.pending > 0;
	no = e->marks.last_no;
	while (done && any_until(e, no)) {
		int64_t now = now_mono_ns();

		if (e->marks.settling) {
			pthread_cond_wait(&e->marks.settled, &e->marks.lock.m);
			continue;
		}
		age = now - TAILQ_FIRST(&e->marks.list)->marked_ns;
		done = settle_run(e, now - SETTLE_BY, &err);
	}
	mutex_unlock(&e->marks.lock);
	if (done)
		return -1;
	if (err)
		return AGAIN;
	return next_look(age) > MS / 2 ? next_look(age) : MS / 2;
}

/* A file with a writable mapping and no descriptor; without the mapping it is
 * one that was closed. */
static void mapped_only(struct engine *e, struct inode *in)
{
	bool marked, yes, closed = false;
	int r;

	mutex_lock(&e->marks.lock);
	marked = in->in_marks;
	mutex_unlock(&e->marks.lock);
	mutex_lock(&in->lock);
	yes = !marked && in->written && in->n_handles == 0 &&
	      now_mono_ns() - in->snapshot_ns > MAPPED_EVERY;
	if (yes) {
		in->snapshot_ns = now_mono_ns();
		closed = !writer_left_locked(e, in);
		r = closed ? 0 : seal_snapshot_locked(e, in);
		if (r < 0)
			in->error = r;
	}
	mutex_unlock(&in->lock);
	if (closed)
		mark_add(e, in);
}

static void look_at_mapped(struct engine *e)
{
	struct inode *batch[N_MAPPED];
	unsigned n = watch_take(e, batch, N_MAPPED);

	for (unsigned k = 0; k < n; k++) {
		mapped_only(e, batch[k]);
		inode_put(e, batch[k]);
	}
}

/* Waits for the next look; false: stop. */
static bool wait_to_settle(struct engine *e, int64_t wait, bool sleep)
{
	bool stop;

	mutex_lock(&e->marks.lock);
	if (sleep && e->marks.pending)
		wait = MS;
	else
		e->marks.asleep = sleep;
	if (!e->marks.stop)
		cond_wait_ns(&e->marks.added, &e->marks.lock, wait);
	e->marks.asleep = false;
	stop = e->marks.stop;
	mutex_unlock(&e->marks.lock);
	return !stop;
}

void *settler_main(void *arg)
{
	struct engine *e = arg;
	int64_t mapped_at = now_mono_ns(), marked_at = 0, wait;
	bool sleep;

	do {
		bool any;
		int64_t now;

		wait = settle_due(e, &any);
		now = now_mono_ns();
		if (any)
			marked_at = now;
		if (now - mapped_at > 500 * MS) {
			look_at_mapped(e);
			rates_sample(e, now - mapped_at);
			mapped_at = now;
		}
		/* Where files are closed all the time it is not woken for
		 * each: that costs more than the seal. */
		sleep = wait < 0 && now - marked_at > AWAKE;
		if (sleep)
			ahead_drop(e);
		else
			ahead_make(e);
		if (wait < 0)
			wait = sleep ? 500 * MS : MS;
	} while (wait_to_settle(e, wait, sleep));
	ahead_drop(e);
	return NULL;
}

bool engine_any_written(struct engine *e)
{
	return e->n_unsealed > 0;
}

int file_seal_written(struct engine *e, uint64_t ino)
{
	struct inode *in;
	int r = settle(e); /* what was closed before comes first */

	if (r < 0)
		return r;
	in = inode_find(e, ino);
	if (!in)
		return 0;
	mutex_lock(&in->lock);
	if (in->written && !writer_left_locked(e, in))
		r = seal_final_locked(e, in);
	else
		r = seal_snapshot_locked(e, in);
	mutex_unlock(&in->lock);
	inode_put(e, in);
	return r;
}

void settle_written(struct engine *e)
{
	struct inode *batch[64];
	uint64_t left = e->n_unsealed;

	while (left) {
		unsigned n = watch_take(e, batch, left < 64 ? left : 64);

		for (unsigned i = 0; i < n; i++) {
			bool closed;

			mutex_lock(&batch[i]->lock);
			closed = batch[i]->n_unflushed == 0;
			mutex_unlock(&batch[i]->lock);
			if (closed)
				mark_add(e, batch[i]);
			inode_put(e, batch[i]);
		}
		(void)settle(e);
		left = n ? left - n : 0;
	}
}

int settle_all(struct engine *e)
{
	int r;

	if (atomic_exchange(&e->no_room, false))
		settle_written(e);
	r = settle(e);
	return r == 0 && e->no_room ? -ENOSPC : r;
}

int engine_seal_all(struct engine *e, uint64_t *seq)
{
	int r = settle_all(e);

	if (r == 0)
		*seq = meta_accepted_seq(e->meta);
	return r;
}

int engine_seal_tree(struct engine *e, uint64_t ino, uint64_t *seq)
{
	struct tree_state tree = { 0 };
	int r = engine_seal_all(e, &tree.seq);

	if (r == 0 && ino && ino != META_ROOT_INO)
		r = engine_tree_state(e, ino, &tree);
	if (r == 0)
		*seq = tree.seq;
	return r;
}
