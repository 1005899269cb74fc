/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Event by event. The coming events stand in a window; the bytes of their
 * versions are staged ahead, names appear in order.
 *
 * After a crash everything above the last synced R is repeated, on a remote
 * where some of it is done. So events wait together for one synced R only as
 * far as repeating them is harmless:
 *
 *   ADD      new names, attributes: repeating makes the same again
 *   REMOVE   acts only on the version it names: repeating finds nothing
 *   REPLACE  overwrite, rename, exchange: alone. What came before it would
 *            put back what it replaced; what comes after it may give its old
 *            name to something else
 *
 * and R is synced between two classes, and on both sides of each REPLACE.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/publish_parts.h"
#include "metadata/log_message.h"

#define WINDOW_MAX 256u
#define WINDOW_LOW 128u
#define PENDING_MAX 64u

/* ---- the window ------------------------------------------------------- */

static void event_free(struct publisher *p, struct pub_event *pe)
{
	struct event *ev = &pe->ev;
	char **paths = (char **)ev->paths;

	job_drop(p, pe->job);
	for (size_t i = 0; i < ev->n_paths; i++)
		free(paths[i]);
	free(paths);
	free((char *)ev->path2);
	free((char *)ev->name);
	free((void *)ev->value);
	free(pe);
}

static char *copy_of(const char *s, bool *failed)
{
	char *copy = s ? strdup(s) : NULL;

	*failed |= s && !copy;
	return copy;
}

static struct pub_event *event_copy(const struct event *ev)
{
	struct pub_event *pe = calloc(1, sizeof(*pe));
	char **paths = calloc(ev->n_paths + 1, sizeof(*paths));
	bool failed = !pe || !paths;

	if (failed) {
		free(pe);
		free(paths);
		return NULL;
	}
	pe->ev = *ev;
	pe->ev.paths = (const char *const *)paths;
	for (size_t i = 0; i < ev->n_paths; i++)
		paths[i] = copy_of(ev->paths[i], &failed);
	pe->ev.path2 = copy_of(ev->path2, &failed);
	pe->ev.name = copy_of(ev->name, &failed);
	pe->ev.value = NULL;
	if (ev->value) { /* a string, too, for SYMLINK */
		char *value = calloc(1, ev->value_len + 1);

		failed |= !value;
		if (value)
			memcpy(value, ev->value, ev->value_len);
		pe->ev.value = value;
	}
	if (failed) {
		event_free(NULL, pe);
		return NULL;
	}
	return pe;
}

struct fill {
	struct publisher *p;
	struct view *v;
};

/* The bytes of a seal set out at once. */
static int stage_ahead(struct fill *f, struct pub_event *pe)
{
	const struct event *ev = &pe->ev;
	struct remote_attr attr = { 0 };
	int err;

	if (ev->kind != EVENT_SEAL || !ev->version || !ev->n_paths ||
	    !S_ISREG(ev->rec.mode))
		return 0;
	err = attr_of_seal(f->v, ev, &attr);
	if (err)
		return err;
	remote_identity(f->p->m, ev->version, attr.identity);
	err = job_new(ev->version, ev->paths[0], &attr, &pe->job);
	if (err) {
		remote_attr_fini(&attr);
		return err;
	}
	pe->job->repeated = ev->seq <= f->p->started_seq;
	job_submit(f->p, pe->job);
	return 0;
}

static int take_event(void *arg, const struct event *ev)
{
	struct fill *f = arg;
	struct publisher *p = f->p;
	struct pub_event *pe = event_copy(ev);
	int err = pe ? stage_ahead(f, pe) : -ENOMEM;

	if (err) {
		if (pe)
			event_free(p, pe);
		return err;
	}
	STAILQ_INSERT_TAIL(&p->window, pe, next);
	p->read_seq = ev->seq;
	return ++p->n_window >= WINDOW_MAX; /* 1: enough */
}

static int fill(struct publisher *p)
{
	const uint64_t d = meta_nvme_seq(p->m);
	struct fill f = { .p = p };
	int err;

	if (p->n_window > WINDOW_LOW || p->read_seq >= d)
		return 0;
	err = meta_durable_view(p->m, &f.v);
	if (err)
		return err;
	err = meta_events(p->m, p->read_seq, take_event, &f);
	view_free(f.v);
	/* After reading: D may have passed such numbers meanwhile. */
	if (err >= 0 && meta_events_lost(p->m))
		return PUB_LOST;
	if (!err && p->read_seq < d)
		p->read_seq = d; /* nothing more up to here */
	return err == 1 ? 0 : err;
}

static void drop_first(struct publisher *p)
{
	struct pub_event *pe = STAILQ_FIRST(&p->window);

	STAILQ_REMOVE_HEAD(&p->window, next);
	p->n_window--;
	event_free(p, pe);
}

void window_clear(struct publisher *p)
{
	while (!STAILQ_EMPTY(&p->window))
		drop_first(p);
	p->n_pending = 0;
	p->pending = CLASS_NONE;
}

void replay_from_remote_seq(struct publisher *p)
{
	p->read_seq = p->done_seq = meta_remote_seq(p->m);
	p->acted = false;
}

/* ---- one step --------------------------------------------------------- */

/* Before anything is changed at path. */
static int begin(struct publisher *p, enum event_class class, const char *path)
{
	int err = 0;

	if (p->n_pending &&
	    (class != p->pending || p->pending == CLASS_REPLACE))
		err = checkpoint(p);
	if (err)
		return err;
	p->pending = class;
	p->n_pending++;
	p->acted = true;
	return folder_touch(p, path);
}

/* What an error of a changing call means for the replay. */
static int outcome(struct publisher *p, const char *path, int err)
{
	if (is_unlike(err))
		return PUB_UNLIKE;
	if (is_impossible(err)) {
		step_over(p, path, err);
		return 0;
	}
	return err;
}

/* The same where a file, or a tree of them, did not come to its name: without
 * it nothing that comes later may be shown, so it is not left out. */
static int outcome_of_files(int err)
{
	return is_unlike(err) || is_impossible(err) ? PUB_UNLIKE : err;
}

/* mode 0: nothing is there. */
static int look(struct publisher *p, const char *path, struct remote_attr *out)
{
	int err = ON_REMOTE(p, path, p->r->ops->get_attr(p->r, path, out));

	return is_unlike(err) || is_impossible(err) ? 0 : err;
}

static bool is_version(struct publisher *p, const struct remote_attr *a,
		       uint64_t version)
{
	struct sought sought;

	if (!version)
		return false;
	seek_version(p, version, &sought);
	return is_sought(&sought, a);
}

/* ---- seal ------------------------------------------------------------- */

static int place_one(struct publisher *p, const char *path,
		     const struct remote_attr *attr, const char *placed)
{
	CLEANUP(remote_attr_fini) struct remote_attr found = { 0 };
	struct remote *r = p->r;
	int err = look(p, path, &found);

	if (err ||
	    (found.identity[0] && !strcmp(found.identity, attr->identity)))
		return err;
	err = begin(p, found.mode ? CLASS_REPLACE : CLASS_ADD, path);
	if (err)
		return err;
	if (placed)
		err = ON_REMOTE(p, path, r->ops->link(r, placed, path));
	else
		err = ON_REMOTE(p, path, r->ops->place(r, path, attr));
	return outcome_of_files(err);
}

static bool is_running(struct publisher *p, const struct stage_job *job)
{
	bool running;

	mutex_lock(&p->lock);
	running = job->state != STAGE_DONE;
	mutex_unlock(&p->lock);
	return running;
}

/* What is done does not wait for what takes long. */
static int wait_staged(struct publisher *p, struct pub_event *pe)
{
	int err = 0;

	if (p->n_pending && is_running(p, pe->job))
		err = checkpoint(p);
	if (!err)
		err = job_wait(p, pe->job);
	if (err == -EBADMSG || err == -EIO)
		return stuck_at(p, pe->ev.paths[0], err);
	return err;
}

static int do_seal(struct publisher *p, struct pub_event *pe)
{
	const struct event *ev = &pe->ev;
	const char *placed = NULL;
	int err;

	if (!pe->job)
		return 0;
	err = wait_staged(p, pe);
	if (err)
		return outcome_of_files(err);
	for (size_t i = 0; i < ev->n_paths && !err; i++) {
		err = place_one(p, ev->paths[i], &pe->job->attr, placed);
		placed = placed ? placed : ev->paths[i];
	}
	return err ? err : note_copy(p, ev->version, &pe->job->attr);
}

/* ---- names ------------------------------------------------------------ */

static int do_mkdir(struct publisher *p, const struct event *ev)
{
	struct remote_attr attr = { .mode = ev->rec.mode,
				    .uid = ev->rec.uid,
				    .gid = ev->rec.gid,
				    .mtime_ns = ev->rec.mtime_ns };
	const char *path = ev->paths[0];
	int err = begin(p, CLASS_ADD, path);

	if (err)
		return err;
	err = ON_REMOTE(p, path, p->r->ops->mkdir(p->r, path, &attr));
	return outcome(p, path, err);
}

static int do_symlink(struct publisher *p, const struct event *ev)
{
	struct remote_attr attr = { .mode = ev->rec.mode,
				    .uid = ev->rec.uid,
				    .gid = ev->rec.gid,
				    .mtime_ns = ev->rec.mtime_ns,
				    .target = (char *)ev->value };
	const char *path = ev->paths[0];
	int err = ev->value ? begin(p, CLASS_ADD, path) : -EUCLEAN;

	if (err)
		return err;
	err = ON_REMOTE(p, path, p->r->ops->symlink(p->r, path, &attr));
	return outcome(p, path, err);
}

static int do_link(struct publisher *p, const struct event *ev)
{
	CLEANUP(remote_attr_fini) struct remote_attr found = { 0 };
	const char *to = ev->path2;
	int err;

	if (S_ISREG(ev->rec.mode) && !ev->version)
		return 0; /* its first seal brings it to all its names */
	if (!to || !ev->n_paths)
		return 0;
	err = look(p, to, &found);
	if (err || is_version(p, &found, ev->version))
		return err;
	err = begin(p, found.mode ? CLASS_REPLACE : CLASS_ADD, to);
	if (err)
		return err;
	err = ON_REMOTE(p, to, p->r->ops->link(p->r, ev->paths[0], to));
	return outcome_of_files(err);
}

/* Only what the event names: see the head of this file. */
static bool may_remove(struct publisher *p, const struct event *ev,
		       const struct remote_attr *found)
{
	if ((found->mode & S_IFMT) != (ev->rec.mode & S_IFMT))
		return false;
	if (!S_ISREG(found->mode))
		return true;
	if (!ev->rec.version)
		return false;
	return !identity_is_ours(p, found->identity) ||
	       is_version(p, found, ev->rec.version);
}

static int do_unlink(struct publisher *p, const struct event *ev)
{
	CLEANUP(remote_attr_fini) struct remote_attr found = { 0 };
	const char *path = ev->paths[0];
	int err = look(p, path, &found);

	if (err || !found.mode || !may_remove(p, ev, &found))
		return err;
	err = begin(p, CLASS_REMOVE, path);
	if (err)
		return err;
	err = ON_REMOTE(p, path, p->r->ops->remove(p->r, path));
	if (err == -ENOTEMPTY) {
		message_warning("'%s' stays on %s: it holds files of others",
				path, p->r->name);
		return 0;
	}
	return outcome(p, path, err);
}

/* Never sealed, so it has no object; what had its new name is gone. */
static int rename_unsealed(struct publisher *p, const char *to,
			   const struct remote_attr *at_to)
{
	int err;

	if (!at_to->mode || S_ISDIR(at_to->mode))
		return 0;
	err = begin(p, CLASS_REPLACE, to);
	if (err)
		return err;
	err = ON_REMOTE(p, to, p->r->ops->remove(p->r, to));
	return outcome(p, to, err);
}

static bool is_renamed(struct publisher *p, const struct event *ev,
		       const struct remote_attr *at_from,
		       const struct remote_attr *at_to)
{
	if (!S_ISREG(ev->rec.mode))
		return !at_from->mode &&
		       (at_to->mode & S_IFMT) == (ev->rec.mode & S_IFMT);
	return is_version(p, at_to, ev->version) &&
	       !is_version(p, at_from, ev->version);
}

static int do_rename(struct publisher *p, const struct event *ev)
{
	CLEANUP(remote_attr_fini) struct remote_attr at_from = { 0 };
	CLEANUP(remote_attr_fini) struct remote_attr at_to = { 0 };
	const char *from = ev->paths[0], *to = ev->path2;
	int err = look(p, from, &at_from);

	if (!err)
		err = look(p, to, &at_to);
	if (err || is_renamed(p, ev, &at_from, &at_to))
		return err;
	if (S_ISREG(ev->rec.mode) && !ev->version)
		return rename_unsealed(p, to, &at_to);
	if ((at_from.mode & S_IFMT) != (ev->rec.mode & S_IFMT))
		return PUB_UNLIKE;
	err = begin(p, CLASS_REPLACE, to);
	if (!err)
		err = folder_touch(p, from);
	if (err)
		return err;
	err = ON_REMOTE(p, to, p->r->ops->rename(p->r, from, to));
	if (!err && S_ISDIR(ev->rec.mode))
		err = folder_moved(p, from, to, false);
	return outcome_of_files(err);
}

/* Twice is not once: what may have been done is told by its version, and for
 * directories, which have none, by comparing the trees. */
static int do_exchange(struct publisher *p, const struct event *ev)
{
	CLEANUP(remote_attr_fini) struct remote_attr at_a = { 0 };
	CLEANUP(remote_attr_fini) struct remote_attr at_b = { 0 };
	const char *a = ev->paths[0], *b = ev->path2;
	const uint64_t version = ev->rec.version;
	const bool repeated = !p->acted;
	bool a_has, b_has;
	int err = look(p, a, &at_a);

	if (!err)
		err = look(p, b, &at_b);
	if (err)
		return err;
	if (!at_a.mode || !at_b.mode || (repeated && !S_ISREG(ev->rec.mode)))
		return PUB_UNLIKE;
	/* Both, if they are of others and look alike. */
	a_has = is_version(p, &at_a, version);
	b_has = is_version(p, &at_b, version);
	if (b_has && !a_has)
		return 0;
	if (repeated && (b_has || !a_has))
		return PUB_UNLIKE;
	err = begin(p, CLASS_REPLACE, b);
	if (!err)
		err = folder_touch(p, a);
	if (err)
		return err;
	err = ON_REMOTE(p, b, p->r->ops->exchange(p->r, a, b));
	if (err == -EOPNOTSUPP)
		return PUB_UNLIKE; /* a step can, object by object */
	if (!err)
		err = folder_moved(p, a, b, true);
	return outcome_of_files(err);
}

/* ---- attributes ------------------------------------------------------- */

static int change_attr(const struct event *ev, struct remote_attr *a)
{
	switch (ev->kind) {
	case EVENT_SETATTR:
		a->mode = (a->mode & S_IFMT) | (ev->rec.mode & 07777);
		a->uid = ev->rec.uid;
		a->gid = ev->rec.gid;
		a->mtime_ns = ev->rec.mtime_ns;
		return 0;
	case EVENT_SETXATTR:
		return remote_attr_set_xattr(a, ev->name, ev->value,
					     ev->value_len);
	case EVENT_REMOVEXATTR:
		remote_attr_del_xattr(a, ev->name);
		return 0;
	default:
		return -EINVAL;
	}
}

/* What others have changed since is not what the event speaks of: with the
 * event's time it would look as if it were. */
static bool is_meant(struct publisher *p, const struct event *ev,
		     const struct remote_attr *found)
{
	if ((found->mode & S_IFMT) != (ev->rec.mode & S_IFMT))
		return false;
	return !S_ISREG(found->mode) || found->identity[0] ||
	       is_version(p, found, ev->rec.version);
}

static int set_attr_at(struct publisher *p, const struct event *ev,
		       const char *path)
{
	CLEANUP(remote_attr_fini) struct remote_attr a = { 0 };
	int64_t mtime_ns;
	int err = look(p, path, &a);

	if (err || !is_meant(p, ev, &a))
		return err;
	mtime_ns = ev->kind == EVENT_SETATTR ? ev->rec.mtime_ns : a.mtime_ns;
	err = note_time(p, ev->rec.version, &a, mtime_ns);
	if (!err)
		err = change_attr(ev, &a);
	if (!err)
		err = begin(p, CLASS_ADD, path);
	if (err)
		return err;
	err = ON_REMOTE(p, path, p->r->ops->set_attr(p->r, path, &a));
	return err == -ENOENT ? 0 : outcome(p, path, err);
}

static int do_set_attr(struct publisher *p, const struct event *ev)
{
	int err = 0;

	for (size_t i = 0; i < ev->n_paths && !err; i++)
		err = set_attr_at(p, ev, ev->paths[i]);
	return err;
}

/* ---- all of them ------------------------------------------------------ */

static bool has_object(const struct inode_rec *rec)
{
	return S_ISREG(rec->mode) || S_ISDIR(rec->mode) || S_ISLNK(rec->mode);
}

static int execute(struct publisher *p, struct pub_event *pe)
{
	const struct event *ev = &pe->ev;

	if (!ev->n_paths || !has_object(&ev->rec))
		return 0; /* a file without a name, or one that stays local */
	switch (ev->kind) {
	case EVENT_NONE:
		return 0;
	case EVENT_SEAL:
		return do_seal(p, pe);
	case EVENT_MKDIR:
		return do_mkdir(p, ev);
	case EVENT_SYMLINK:
		return do_symlink(p, ev);
	case EVENT_LINK:
		return do_link(p, ev);
	case EVENT_UNLINK:
		return do_unlink(p, ev);
	case EVENT_RENAME:
		return do_rename(p, ev);
	case EVENT_EXCHANGE:
		return do_exchange(p, ev);
	case EVENT_SETATTR:
	case EVENT_SETXATTR:
	case EVENT_REMOVEXATTR:
		return do_set_attr(p, ev);
	}
	return 0;
}

/* All is replayed: if D has not moved on meanwhile, both are the same now. */
static int times_when_even(struct publisher *p)
{
	struct view *v;
	int err;

	if (!p->folders.n)
		return 0;
	err = meta_durable_view(p->m, &v);
	if (err)
		return err;
	if (view_seq(v) == p->done_seq)
		err = folder_times(p, v);
	if (err != -ECANCELED || !is_abandoned(p))
		view_free(v);
	return err;
}

int replay(struct publisher *p)
{
	int err;

	for (;;) {
		struct pub_event *pe;

		err = fill(p);
		if (err)
			return err;
		pe = STAILQ_FIRST(&p->window);
		if (!pe)
			break;
		err = execute(p, pe);
		if (err)
			return err;
		p->done_seq = pe->ev.seq;
		drop_first(p);
		if (p->n_pending >= PENDING_MAX)
			err = checkpoint(p);
		if (err)
			return err;
		if (is_stopping(p))
			return -ECANCELED;
	}
	p->done_seq = p->read_seq;
	err = times_when_even(p);
	return err ? err : checkpoint(p);
}
