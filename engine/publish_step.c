/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From R to a later number T in one step, when an event cannot be replayed:
 * the bytes of a version are gone, or the remote does not look as it should.
 * T is the nvme watermark; a view of the durable database is the truth as of
 * T. Every path that an event in (R, T] touched is compared with the remote:
 *
 *   stage all that is needed → new paths, in the order in which each
 *   appeared → changed paths, and new ones that were rewritten since they
 *   appeared, in the order of their last change → removals
 *
 * so that no new name precedes what it may refer to: a `latest` that the
 * remote has never had appeared early, but names what came last. While it lasts, copies
 * of versions that were alive at T are pinned. Done again after a crash it
 * finds what is left to do.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/core.h"
#include "engine/publish_core.h"
#include "metadata/log_message.h"

enum what { SAME, ATTRS, NEW, CHANGED, GONE };

struct touched {
	char *path;
	uint64_t first, last; /* numbers of its events, of content if any is */
	unsigned n_contents;  /* events that put something new there */
	bool rewritten;       /* new to the remote, in more than one form */
	enum what what;
	struct inode_rec rec; /* as of T; ino 0: not there */
	bool remote_dir;      /* a directory is there, and must go first */
};

struct step {
	struct publisher *p;
	struct view *v;
	struct touched *t;
	size_t n, cap;
	int err;
};

static void step_fini(struct step *s)
{
	for (size_t i = 0; i < s->n; i++)
		free(s->t[i].path);
	free(s->t);
	view_free(s->v);
}

static int touch(struct step *s, const char *path, uint64_t seq, bool content)
{
	if (!path[0])
		return 0; /* the root */
	if (s->n == s->cap) {
		size_t cap = s->cap ? s->cap * 2 : 256;
		void *grown = realloc(s->t, cap * sizeof(*s->t));

		if (!grown)
			return -ENOMEM;
		s->t = grown;
		s->cap = cap;
	}
	s->t[s->n] = (struct touched){ .path = strdup(path),
				       .first = seq,
				       .last = seq,
				       .n_contents = content };
	if (!s->t[s->n].path)
		return -ENOMEM;
	s->n++;
	return 0;
}

/* ---- what was touched ------------------------------------------------- */

int view_of_path(const struct view *v, const char *path, struct inode_rec *out)
{
	CLEANUP(free_p) char *copy = strdup(path);
	uint64_t at = META_ROOT_INO;
	char *save = NULL;
	int r = 0;

	if (!copy)
		return -ENOMEM;
	for (char *c = strtok_r(copy, "/", &save); c && r == 0;
	     c = strtok_r(NULL, "/", &save)) {
		struct dentry_rec d;

		r = view_lookup(v, at, c, &d);
		at = d.ino;
	}
	return r < 0 ? r : view_inode(v, at, out);
}

struct below {
	struct step *s;
	const char *path;
	uint64_t seq;
};

static int touch_tree(struct step *s, const char *path, uint64_t seq);

static int touch_entry(void *arg, const char *name, const struct dentry_rec *d)
{
	struct below *b = arg;
	char path[META_PATH_MAX];

	if (snprintf(path, sizeof(path), "%s/%s", b->path, name) >=
	    (int)sizeof(path))
		return 0;
	if (S_ISDIR(d->type))
		return touch_tree(b->s, path, b->seq);
	return touch(b->s, path, b->seq, true);
}

static int touch_remote_entry(void *arg, const char *name)
{
	struct below *b = arg;
	char path[META_PATH_MAX];

	if (snprintf(path, sizeof(path), "%s/%s", b->path, name) >=
	    (int)sizeof(path))
		return 0;
	return touch_tree(b->s, path, b->seq);
}

/* A directory that was renamed: all that is below it, here and there. */
static int touch_tree(struct step *s, const char *path, uint64_t seq)
{
	struct below b = { .s = s, .path = path, .seq = seq };
	struct publisher *p = s->p;
	struct inode_rec rec;
	int r;

	r = touch(s, path, seq, true);
	if (r == 0 && view_of_path(s->v, path, &rec) == 0 && S_ISDIR(rec.mode))
		r = view_readdir(s->v, rec.ino, 0, touch_entry, &b);
	if (r < 0)
		return r;
	r = remote_back(p, p->r->ops->list(p->r, path, touch_remote_entry, &b));
	return r == -ENOENT || r == -ENOTDIR ? 0 : r;
}

static int touch_event(void *arg, const struct event *ev)
{
	struct step *s = arg;
	bool tree = S_ISDIR(ev->rec.mode) &&
		    (ev->kind == EVENT_RENAME || ev->kind == EVENT_EXCHANGE);
	bool content = ev->kind == EVENT_SEAL || ev->kind == EVENT_SYMLINK ||
		       ev->kind == EVENT_MKDIR;
	int r = 0;

	if (ev->seq > view_seq(s->v))
		return 1;
	for (size_t i = 0; i < ev->n_paths && r == 0; i++)
		r = tree ? touch_tree(s, ev->paths[i], ev->seq)
			 : touch(s, ev->paths[i], ev->seq, content);
	if (r == 0 && ev->path2)
		r = tree || ev->kind == EVENT_EXCHANGE
			    ? touch_tree(s, ev->path2, ev->seq)
			    : touch(s, ev->path2, ev->seq, true);
	s->err = r;
	return r < 0;
}

static int by_path(const void *a, const void *b)
{
	return strcmp(((const struct touched *)a)->path,
		      ((const struct touched *)b)->path);
}

/* Attributes say nothing about the order as soon as content does. */
static void merge(struct touched *to, const struct touched *t)
{
	unsigned n = to->n_contents + t->n_contents;

	if (!to->n_contents == !t->n_contents) {
		if (t->first < to->first)
			to->first = t->first;
		if (t->last > to->last)
			to->last = t->last;
	} else if (t->n_contents) {
		to->first = t->first;
		to->last = t->last;
	}
	to->n_contents = n;
}

static void merge_same_paths(struct step *s)
{
	size_t kept = 0;

	if (!s->n)
		return;
	qsort(s->t, s->n, sizeof(*s->t), by_path);
	for (size_t i = 1; i < s->n; i++) {
		struct touched *to = &s->t[kept];

		if (strcmp(to->path, s->t[i].path) != 0) {
			s->t[++kept] = s->t[i];
			continue;
		}
		merge(to, &s->t[i]);
		free(s->t[i].path);
	}
	s->n = kept + 1;
}

/* ---- what is to be done ----------------------------------------------- */

static bool is_published(const struct inode_rec *rec)
{
	return S_ISDIR(rec->mode) || S_ISLNK(rec->mode) ||
	       (S_ISREG(rec->mode) && rec->version);
}

static enum what compare(struct step *s, const struct touched *t,
			 const struct remote_attr *there)
{
	char identity[REMOTE_IDENTITY_LEN + 1], target[META_PATH_MAX];

	if ((there->mode & S_IFMT) != (t->rec.mode & S_IFMT))
		return CHANGED;
	if (S_ISREG(t->rec.mode)) {
		remote_identity(s->p->m, t->rec.version, identity);
		return strcmp(identity, there->identity) ? CHANGED : ATTRS;
	}
	if (S_ISLNK(t->rec.mode)) {
		if (view_symlink(s->v, t->rec.ino, target) || !there->target ||
		    strcmp(target, there->target) != 0)
			return CHANGED;
		return SAME;
	}
	return ATTRS;
}

/* An imported version carries the identity it came with. */
static bool is_imported_copy(struct step *s, const struct touched *t,
			     const struct remote_attr *there)
{
	CLEANUP(copy_rec_fini) struct copy_rec c = { 0 };

	return S_ISREG(t->rec.mode) && t->rec.version &&
	       !meta_copy(s->p->m, t->rec.version, COPY_REMOTE, &c) &&
	       c.object[0] && !strcmp(c.object, there->identity);
}

static int plan_one(struct step *s, struct touched *t)
{
	CLEANUP(remote_attr_fini) struct remote_attr there = { 0 };
	struct publisher *p = s->p;
	bool here;
	int r;

	r = view_of_path(s->v, t->path, &t->rec);
	if (r < 0 && r != -ENOENT)
		return r;
	here = r == 0 && is_published(&t->rec);
	r = remote_back(p, p->r->ops->get_attr(p->r, t->path, &there));
	if (r == -ENOENT || r == -ENOTDIR) {
		t->what = here ? NEW : SAME;
		t->rewritten =
			here && t->n_contents > 1 && !S_ISDIR(t->rec.mode);
		return 0;
	}
	if (r < 0)
		return r;
	t->remote_dir = S_ISDIR(there.mode);
	if (!here)
		t->what = GONE;
	else if (is_imported_copy(s, t, &there))
		t->what = ATTRS;
	else
		t->what = compare(s, t, &there);
	return 0;
}

/* ---- doing it --------------------------------------------------------- */

static bool wants_bytes(const struct touched *t)
{
	return S_ISREG(t->rec.mode) && (t->what == NEW || t->what == CHANGED);
}

/* Its only bytes are on the remote, at a name it had: share them. */
static int restage(struct step *s, const struct touched *t,
		   struct remote_attr *attr)
{
	CLEANUP(copy_rec_fini) struct copy_rec c = { 0 };
	struct publisher *p = s->p;
	int r;

	r = meta_copy(p->m, t->rec.version, COPY_REMOTE, &c);
	if (r == 0)
		r = attr_of(p, s->v, &t->rec, t->rec.version, &c, attr);
	if (r < 0)
		return r;
	for (size_t i = 0; i < s->n; i++) {
		CLEANUP(remote_attr_fini) struct remote_attr there = { 0 };

		if (p->r->ops->get_attr(p->r, s->t[i].path, &there) ||
		    strcmp(there.identity, c.object) != 0)
			continue;
		return remote_back(p, p->r->ops->restage(p->r, attr,
							 s->t[i].path));
	}
	return -ENOENT;
}

static int stage_one(struct step *s, const struct touched *t,
		     struct remote_attr *attr)
{
	int r = stage_version(s->p, s->v, &t->rec, t->rec.version, attr);

	return r == PUBLISH_STEP ? restage(s, t, attr) : r;
}

static int remove_tree(struct publisher *p, const char *path);

static int remove_entry(void *arg, const char *name)
{
	const struct below *b = arg;
	char path[META_PATH_MAX];

	if (snprintf(path, sizeof(path), "%s/%s", b->path, name) >=
	    (int)sizeof(path))
		return -ENAMETOOLONG;
	return remove_tree(b->s->p, path);
}

static int remove_tree(struct publisher *p, const char *path)
{
	struct step s = { .p = p };
	struct below b = { .s = &s, .path = path };
	int r = remote_back(p, p->r->ops->remove(p->r, path));

	if (r != -ENOTEMPTY && r != -EEXIST)
		return r;
	r = remote_back(p, p->r->ops->list(p->r, path, remove_entry, &b));
	return r ? r : remote_back(p, p->r->ops->remove(p->r, path));
}

static int put_one(struct step *s, const struct touched *t)
{
	CLEANUP(remote_attr_fini) struct remote_attr attr = { 0 };
	struct publisher *p = s->p;
	int r = 0;

	if (t->what == CHANGED && (t->remote_dir || !S_ISREG(t->rec.mode)))
		r = remove_tree(p, t->path);
	if (r == 0)
		r = S_ISREG(t->rec.mode)
			    ? stage_one(s, t, &attr)
			    : attr_of(p, s->v, &t->rec, 0, NULL, &attr);
	if (r < 0)
		return r;
	if (S_ISREG(t->rec.mode)) {
		r = p->r->ops->place(p->r, t->path, &attr);
		if (r == 0)
			r = note_remote_copy(p, t->rec.version, &attr);
	} else if (S_ISDIR(t->rec.mode)) {
		r = p->r->ops->mkdir(p->r, t->path, &attr);
		if (r == -EEXIST)
			r = 0;
	} else {
		r = p->r->ops->symlink(p->r, t->path, &attr);
	}
	return remote_back(p, r);
}

static int set_attrs(struct step *s, const struct touched *t)
{
	CLEANUP(remote_attr_fini) struct remote_attr attr = { 0 };
	struct publisher *p = s->p;
	int r;

	r = attr_of(p, s->v, &t->rec, t->rec.version, NULL, &attr);
	if (r == 0)
		r = remote_back(p, p->r->ops->set_attr(p->r, t->path, &attr));
	return r == -ENOENT ? 0 : r;
}

/* A directory counts where the first thing below it does, and comes first. */
static int by_first(const void *a, const void *b)
{
	const struct touched *x = a, *y = b;
	bool dx = S_ISDIR(x->rec.mode), dy = S_ISDIR(y->rec.mode);

	if (dx != dy)
		return dy - dx;
	if (dx || x->first == y->first)
		return strcmp(x->path, y->path);
	return x->first < y->first ? -1 : 1;
}

static int by_last(const void *a, const void *b)
{
	const struct touched *x = a, *y = b;

	return x->last < y->last ? -1 : x->last > y->last;
}

static int by_path_down(const void *a, const void *b)
{
	return by_path(b, a);
}

static int run_kind(struct step *s, enum what what, bool rewritten,
		    int (*cmp)(const void *, const void *),
		    int (*fn)(struct step *, const struct touched *))
{
	int r = 0;

	qsort(s->t, s->n, sizeof(*s->t), cmp);
	for (size_t i = 0; i < s->n && r == 0; i++) {
		if (s->t[i].rewritten ? !rewritten : s->t[i].what != what)
			continue;
		if (publish_stopping(s->p))
			return -ECANCELED;
		r = fn(s, &s->t[i]);
	}
	return r;
}

static int drop_one(struct step *s, const struct touched *t)
{
	int r = remote_back(s->p, s->p->r->ops->remove(s->p->r, t->path));

	return r == -ENOTEMPTY || r == -EEXIST ? 0 : r;
}

static int stage_needed(struct step *s)
{
	int r = 0;

	for (size_t i = 0; i < s->n && r == 0; i++) {
		struct remote_attr attr = { 0 };

		if (publish_stopping(s->p))
			return -ECANCELED;
		if (!wants_bytes(&s->t[i]))
			continue;
		r = stage_one(s, &s->t[i], &attr);
		remote_attr_fini(&attr);
	}
	return r;
}

static int carry_out(struct step *s)
{
	int r = 0;

	if (s->n == 0)
		return 0;
	for (size_t i = 0; i < s->n && r == 0; i++)
		r = plan_one(s, &s->t[i]);
	if (r == 0)
		r = stage_needed(s);
	if (r == 0)
		r = run_kind(s, NEW, false, by_first, put_one);
	if (r == 0)
		r = run_kind(s, CHANGED, true, by_last, put_one);
	if (r == 0)
		r = run_kind(s, ATTRS, false, by_last, set_attrs);
	if (r == 0)
		r = run_kind(s, GONE, false, by_path_down, drop_one);
	for (size_t i = 0; i < s->n && r == 0; i++)
		if (s->t[i].what != SAME)
			r = folder_times(s->p, s->v, s->t[i].path);
	return r;
}

int step_to_now(struct publisher *p)
{
	CLEANUP(step_fini) struct step s = { .p = p };
	uint64_t from = meta_remote_seq(p->m);
	int r;

	/* Pinned before the view is taken: nothing alive in it may go. */
	p->pin = meta_nvme_seq(p->m);
	r = meta_durable_view(p->m, &s.v);
	if (r == 0)
		r = meta_events(p->m, from, touch_event, &s);
	if (r > 0)
		r = s.err;
	if (r == 0) {
		merge_same_paths(&s);
		r = carry_out(&s);
	}
	if (r == 0)
		r = remote_back(p, p->r->ops->sync(p->r));
	if (r == 0)
		r = meta_set_remote_seq(p->m, view_seq(s.v), true);
	p->pin = UINT64_MAX;
	if (r == 0) {
		mutex_lock(&p->lock);
		p->status.n_skipped++;
		mutex_unlock(&p->lock);
	}
	return r;
}
