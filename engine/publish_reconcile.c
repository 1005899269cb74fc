/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From R to a later number T in one step, when the bytes of some version in
 * between are gone, or the remote does not look as the log says.
 *
 *   pin T → note it → plan → stage all that T needs → new paths → changed
 *   paths → attributes → what is gone → sync → R := T → forget the note
 *
 * No new name precedes what it may refer to, and nothing is deleted before
 * all that replaces it is there: a file that cannot be staged or placed makes
 * it stand still, for what goes may be the only copy. Only a version whose
 * bytes are nowhere is left out. Until the note is forgotten a daemon that
 * starts does this again before it replays anything: half of a step is no
 * state the log ever was in.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/publish_parts.h"
#include "metadata/log_message.h"

#define NOTE "publish.reconcile" /* version byte, then 1: whole */
#define NOTE_VERSION 1
#define TRIES 4

struct reconcile {
	struct publisher *p;
	struct view *v; /* of T */
	struct plan plan;
	struct step **fresh, **changed;
	size_t n_fresh, n_changed;
	uint64_t n_placed;
	bool last_try; /* what is gone now is left out */
};

/* ---- the note --------------------------------------------------------- */

static int note_set(struct meta *m, bool due, bool whole)
{
	const uint8_t note[2] = { NOTE_VERSION, whole };

	return meta_set_note(m, NOTE, note, due ? sizeof(note) : 0);
}

int reconcile_is_due(struct publisher *p, bool *due, bool *whole)
{
	uint8_t note[2] = { 0, 0 };
	size_t len = sizeof(note);
	int err = meta_note(p->m, NOTE, note, &len);

	*due = !err && len == sizeof(note);
	*whole = *due && note[1];
	if (*due && note[0] > NOTE_VERSION)
		return -EOPNOTSUPP;
	return err == -ENOENT ? 0 : err;
}

/* ---- staging ---------------------------------------------------------- */

static bool needs_bytes(const struct step *s)
{
	return S_ISREG(s->want.mode) && !s->same && !s->skip;
}

static int new_job(struct reconcile *rc, struct step *s)
{
	struct step *source = NULL;
	struct remote_attr attr = { 0 };
	int err = plan_source(&rc->plan, s, &source);

	if (!err)
		err = attr_of(rc->v, &s->want, &attr);
	if (err)
		return err;
	/* Somebody else's file becomes a version of ours as it moves. */
	memcpy(attr.identity, s->sought.identity, sizeof(attr.identity));
	err = job_new(s->want.version, s->path, &attr, &s->job);
	if (!err && source) {
		s->job->from = strdup(source->path);
		err = s->job->from ? 0 : -ENOMEM;
		source->moved = true;
	}
	remote_attr_fini(&attr);
	return err;
}

static int by_version(const void *a, const void *b)
{
	const struct step *x = *(struct step *const *)a;
	const struct step *y = *(struct step *const *)b;

	return x->want.version < y->want.version
		       ? -1
		       : x->want.version > y->want.version;
}

static void share_job(struct publisher *p, struct stage_job *job,
		      struct step *s)
{
	mutex_lock(&p->lock);
	job->refs++;
	mutex_unlock(&p->lock);
	s->job = job;
}

/* One job a version, however many names it has. */
static int make_jobs(struct reconcile *rc)
{
	size_t n = 0;
	int err = 0;
	CLEANUP(free_p)
	struct step **all = calloc(rc->plan.n + 1, sizeof(struct step *));

	if (!all)
		return -ENOMEM;
	for (size_t i = 0; i < rc->plan.n; i++)
		if (needs_bytes(&rc->plan.steps[i]))
			all[n++] = &rc->plan.steps[i];
	qsort(all, n, sizeof(struct step *), by_version);
	for (size_t i = 0; i < n && !err; i++) {
		if (i && all[i]->want.version == all[i - 1]->want.version)
			share_job(rc->p, all[i - 1]->job, all[i]);
		else
			err = new_job(rc, all[i]);
	}
	return err;
}

static void submit(struct reconcile *rc, struct step **order, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct stage_job *job = order[i]->job;

		if (!job || job->placed_at)
			continue;
		job->placed_at = ""; /* submitted */
		job_submit(rc->p, job);
	}
}

static int wait_for(struct reconcile *rc, struct step *s)
{
	struct publisher *p = rc->p;
	int err = job_wait(p, s->job);

	if (!err || err == -ECANCELED)
		return err;
	if (err == PUB_GONE && !rc->last_try)
		return PUB_GONE; /* of a later T, then */
	if (err != PUB_GONE)
		return stuck_at(p, s->path, err);
	step_over(p, s->path, -ENODATA);
	s->skip = true;
	return plan_keep(&rc->plan, s);
}

static int stage_all(struct reconcile *rc)
{
	int err = make_jobs(rc);

	if (err)
		return err;
	submit(rc, rc->fresh, rc->n_fresh);
	submit(rc, rc->changed, rc->n_changed);
	for (size_t i = 0; i < rc->plan.n && !err; i++)
		if (rc->plan.steps[i].job)
			err = wait_for(rc, &rc->plan.steps[i]);
	for (size_t i = 0; i < rc->plan.n; i++)
		if (rc->plan.steps[i].job)
			rc->plan.steps[i].job->placed_at = NULL;
	return err;
}

/* ---- removing --------------------------------------------------------- */

/* Others' files stay, unless the events name them. */
static bool may_go(struct reconcile *rc, const struct step *s)
{
	if (!s->has.mode || s->want.mode || s->keep)
		return false;
	return s->named || s->moved ||
	       (S_ISREG(s->has.mode) &&
		identity_is_ours(rc->p, s->has.identity));
}

static int remove_step(struct reconcile *rc, struct step *s)
{
	struct publisher *p = rc->p;
	int err = ON_REMOTE(p, s->path, p->r->ops->remove(p->r, s->path));

	if (err == -ENOTEMPTY && !s->want.mode)
		message_warning("'%s' stays on %s: it holds files of others",
				s->path, p->r->name);
	else if (!err)
		remote_attr_fini(&s->has);
	return is_unlike(err) || is_impossible(err) ? 0 : err;
}

static bool is_below(const char *path, const char *dir)
{
	size_t len = strlen(dir);

	return !strncmp(path, dir, len) && (!len || path[len] == '/');
}

/* Deepest first. dir NULL: everything that goes. */
static int remove_gone(struct reconcile *rc, const char *dir)
{
	int err = 0;

	for (size_t i = rc->plan.n; i-- > 0 && !err;) {
		struct step *s = &rc->plan.steps[i];

		if ((!dir || is_below(s->path, dir)) && may_go(rc, s))
			err = remove_step(rc, s);
	}
	return err;
}

/* ---- placing ---------------------------------------------------------- */

static int make_dir(struct reconcile *rc, const char *path)
{
	CLEANUP(remote_attr_fini) struct remote_attr attr = { 0 };
	struct publisher *p = rc->p;
	struct inode_rec rec;
	int err = view_path_inode(rc->v, path, &rec);

	if (!err)
		err = attr_of(rc->v, &rec, &attr);
	if (err)
		return err;
	err = ON_REMOTE(p, path, p->r->ops->mkdir(p->r, path, &attr));
	if (err != -EEXIST)
		return err;
	/* Something of another kind is in the way. */
	err = ON_REMOTE(p, path, p->r->ops->remove(p->r, path));
	return err ? err
		   : ON_REMOTE(p, path, p->r->ops->mkdir(p->r, path, &attr));
}

static int make_parents(struct reconcile *rc, const char *path)
{
	CLEANUP(free_p) char *copy = strdup(path);
	int err = copy ? 0 : -ENOMEM;

	for (char *slash = copy; !err && (slash = strchr(slash, '/'));) {
		*slash = '\0';
		err = make_dir(rc, copy);
		*slash++ = '/';
	}
	return err;
}

static int place_file(struct reconcile *rc, struct step *s)
{
	struct publisher *p = rc->p;
	struct stage_job *job = s->job;
	struct remote *r = p->r;

	if (job->placed_at)
		return ON_REMOTE(p, s->path,
				 r->ops->link(r, job->placed_at, s->path));
	return ON_REMOTE(p, s->path, r->ops->place(r, s->path, &job->attr));
}

static int place_symlink(struct reconcile *rc, struct step *s)
{
	CLEANUP(remote_attr_fini) struct remote_attr attr = { 0 };
	struct publisher *p = rc->p;
	int err = attr_of(rc->v, &s->want, &attr);

	if (err)
		return err;
	attr.target = strdup(s->target);
	if (!attr.target)
		return -ENOMEM;
	return ON_REMOTE(p, s->path, p->r->ops->symlink(p->r, s->path, &attr));
}

static int place_once(struct reconcile *rc, struct step *s)
{
	if (S_ISDIR(s->want.mode))
		return make_dir(rc, s->path);
	return S_ISLNK(s->want.mode) ? place_symlink(rc, s) : place_file(rc, s);
}

/* A directory where a file shall be: its entries are gone or moved. */
static int clear_way(struct reconcile *rc, struct step *s)
{
	int err;

	if (!S_ISDIR(s->has.mode) || S_ISDIR(s->want.mode))
		return 0;
	err = remove_gone(rc, s->path);
	return err ? err : remove_step(rc, s);
}

static int place(struct reconcile *rc, struct step *s)
{
	struct publisher *p = rc->p;
	int err;

	if (s->skip)
		return 0;
	err = clear_way(rc, s);
	if (!err)
		err = place_once(rc, s);
	if (err == -ENOENT || err == -ENOTDIR) {
		err = make_parents(rc, s->path);
		if (!err)
			err = place_once(rc, s);
	}
	if (is_unlike(err) || is_impossible(err)) {
		if (step_must_be_placed(s))
			return stuck_at(p, s->path, err);
		step_over(p, s->path, err);
		s->skip = true;
		return S_ISREG(s->want.mode) ? plan_keep(&rc->plan, s) : 0;
	}
	if (err || !S_ISREG(s->want.mode))
		return err;
	s->job->placed_at = s->path;
	rc->n_placed += s->version_seq > meta_remote_seq(p->m);
	return note_copy(p, s->want.version, &s->job->attr);
}

static int place_all(struct reconcile *rc, struct step **order, size_t n)
{
	int err = 0;

	for (size_t i = 0; i < n && !err; i++)
		err = place(rc, order[i]);
	return err;
}

/* ---- attributes ------------------------------------------------------- */

static bool same_attr(const struct remote_attr *a, const struct remote_attr *b)
{
	return a->mode == b->mode && a->uid == b->uid && a->gid == b->gid &&
	       a->mtime_ns == b->mtime_ns && remote_attr_same_xattrs(a, b);
}

static int set_attrs(struct reconcile *rc)
{
	struct publisher *p = rc->p;
	int err = 0;

	/* Directories after what is in them: their mode may forbid it. */
	for (size_t i = rc->plan.n; i-- > 0 && !err;) {
		CLEANUP(remote_attr_fini) struct remote_attr attr = { 0 };
		const struct step *s = &rc->plan.steps[i];

		if (!s->want.mode || s->skip ||
		    (!s->same && !S_ISDIR(s->want.mode)))
			continue;
		err = attr_of(rc->v, &s->want, &attr);
		if (err || (s->same && same_attr(&attr, &s->has)))
			continue;
		err = note_time(p, s->want.version, &s->has, attr.mtime_ns);
		if (err)
			continue;
		err = ON_REMOTE(p, s->path,
				p->r->ops->set_attr(p->r, s->path, &attr));
		if (is_unlike(err) || is_impossible(err))
			err = 0;
	}
	return err;
}

/* ---- what was right already ------------------------------------------- */

/* A daemon that died may have placed it and not come to note it. */
static int note_found(struct reconcile *rc)
{
	struct meta *m = rc->p->m;
	int err = 0;

	for (size_t i = 0; i < rc->plan.n && !err; i++) {
		CLEANUP(copy_rec_fini) struct copy_rec copy = { 0 };
		struct step *s = &rc->plan.steps[i];

		if (!s->same || !S_ISREG(s->want.mode) || !s->has.identity[0])
			continue;
		err = meta_copy(m, s->want.version, COPY_REMOTE, &copy);
		if (err == -ENOENT ||
		    (!err && strcmp(copy.object, s->has.identity) != 0))
			err = note_copy(rc->p, s->want.version, &s->has);
	}
	return err;
}

/* ---- the step --------------------------------------------------------- */

static int finish(struct reconcile *rc)
{
	struct publisher *p = rc->p;
	uint64_t before = meta_remote_seq(p->m), n = 0;
	int err;

	p->done_seq = view_seq(rc->v);
	p->n_pending = 1;
	err = 0;
	for (size_t i = 0; i < rc->plan.n && !err; i++)
		err = folder_touch(p, rc->plan.steps[i].path);
	if (!err)
		err = folder_times(p, rc->v);
	if (!err)
		err = checkpoint(p);
	if (!err)
		err = note_set(p->m, false, false);
	if (err)
		return err;
	if (rc->plan.n_seals > rc->n_placed)
		n = rc->plan.n_seals - rc->n_placed;
	mutex_lock(&p->lock);
	p->status.n_skipped += n;
	mutex_unlock(&p->lock);
	message_info("moved %s from %llu to %llu in one step, %llu versions "
		     "in between were stepped over",
		     p->r->name, (unsigned long long)before,
		     (unsigned long long)p->done_seq, (unsigned long long)n);
	return 0;
}

static int step(struct reconcile *rc, bool whole)
{
	int err = plan_make(rc->p, rc->v, whole, &rc->plan);

	if (!err)
		err = plan_order(&rc->plan, true, &rc->fresh, &rc->n_fresh);
	if (!err)
		err = plan_order(&rc->plan, false, &rc->changed,
				 &rc->n_changed);
	if (!err)
		err = stage_all(rc);
	if (!err)
		err = place_all(rc, rc->fresh, rc->n_fresh);
	if (!err)
		err = place_all(rc, rc->changed, rc->n_changed);
	if (!err)
		err = note_found(rc);
	if (!err)
		err = set_attrs(rc);
	if (!err)
		err = remove_gone(rc, NULL);
	return err ? err : finish(rc);
}

/* The pin comes before the view: what T needs must not go in between. */
static int try(struct publisher *p, bool whole, bool last_try)
{
	struct reconcile rc = { .p = p, .last_try = last_try };
	int err;

	pin_all(p);
	err = meta_durable_view(p->m, &rc.v);
	if (err)
		return err;
	pin_view(p, rc.v);
	err = step(&rc, whole);
	plan_fini(p, &rc.plan);
	free(rc.fresh);
	free(rc.changed);
	if (err != -ECANCELED || !is_abandoned(p))
		view_free(rc.v);
	return err;
}

int reconcile(struct publisher *p, bool whole)
{
	bool due, was_whole;
	int err = reconcile_is_due(p, &due, &was_whole);

	whole |= was_whole;
	if (!err)
		err = note_set(p->m, true, whole);
	for (int i = 1; !err && i <= TRIES; i++) {
		err = try(p, whole, i == TRIES);
		if (err != PUB_GONE)
			break;
		err = 0;
		if (p->pin_lapsed)
			i = 0; /* no wonder */
	}
	pin_nothing(p);
	if (!err)
		replay_from_remote_seq(p);
	return err;
}
