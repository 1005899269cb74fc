/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step to the number T must do. The events say which paths were
 * touched since R (a renamed directory: all below its old and its new name);
 * each is looked at on both sides: in the durable view of T, and on the
 * remote.
 *
 * Order of new paths. A name may be written only after all it may refer to. A
 * path that was written once stands where it first appeared. One that was
 * rewritten before the remote ever saw it cannot do both, be early enough for
 * those that refer to it and late enough for what it refers to: a small file
 * is taken for a pointer (`latest`, a tracker) and counts with its last write,
 * a large one for what pointers name and counts with its first.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/publish_parts.h"

#define BATCH 64

/* ---- growing ---------------------------------------------------------- */

static int grow(void *array, size_t n, size_t *cap, size_t size)
{
	void **at = array;
	size_t more = *cap ? 2 * *cap : BATCH;
	void *bigger;

	if (n < *cap)
		return 0;
	bigger = realloc(*at, more * size);
	if (!bigger)
		return -ENOMEM;
	*at = bigger;
	*cap = more;
	return 0;
}

void plan_fini(struct publisher *p, struct plan *plan)
{
	for (size_t i = 0; i < plan->n; i++) {
		struct step *s = &plan->steps[i];

		job_drop(p, s->job);
		remote_attr_fini(&s->has);
		free(s->target);
		free(s->path);
	}
	moves_fini(&plan->moves);
	for (size_t i = 0; i < plan->n_areas; i++)
		free(plan->areas[i].path);
	free(plan->steps);
	free(plan->areas);
	free(plan->by_identity);
	*plan = (struct plan){ 0 };
}

static int touch(struct plan *plan, const char *path, uint64_t first,
		 uint64_t last, bool named)
{
	struct step *s;

	if (grow(&plan->steps, plan->n, &plan->cap, sizeof(*s)))
		return -ENOMEM;
	s = &plan->steps[plan->n];
	*s = (struct step){
		.path = strdup(path),
		.first = first,
		.last = last,
		.named = named,
	};
	if (!s->path)
		return -ENOMEM;
	plan->n++;
	return 0;
}

static int appears(struct plan *plan, const char *path, uint64_t seq)
{
	return touch(plan, path, seq, seq, false);
}

static int goes(struct plan *plan, const char *path)
{
	return touch(plan, path, UINT64_MAX, 0, true);
}

static int add_area(struct plan *plan, const char *path, uint64_t seq)
{
	struct area *a;

	if (grow(&plan->areas, plan->n_areas, &plan->cap_areas, sizeof(*a)))
		return -ENOMEM;
	a = &plan->areas[plan->n_areas];
	*a = (struct area){ strdup(path), seq };
	if (!a->path)
		return -ENOMEM;
	plan->n_areas++;
	return 0;
}

/* ---- what the events touched ------------------------------------------ */

static int gather_move(struct plan *plan, const struct event *ev)
{
	const bool exchange = ev->kind == EVENT_EXCHANGE;
	/* The other half of an exchange may be a directory, too. */
	const bool dir = S_ISDIR(ev->rec.mode) || exchange;
	int err = moves_add(&plan->moves, ev);

	if (!err)
		err = appears(plan, ev->path2, ev->seq);
	if (!err)
		err = exchange ? appears(plan, ev->paths[0], ev->seq)
			       : goes(plan, ev->paths[0]);
	if (!err && dir)
		err = add_area(plan, ev->paths[0], ev->seq);
	if (!err && dir)
		err = add_area(plan, ev->path2, ev->seq);
	return err;
}

/* Where the bytes of the new name may be: looked at, whatever becomes of it. */
static int gather_link(struct plan *plan, const struct event *ev)
{
	int err = moves_add(&plan->moves, ev);

	if (!err)
		err = appears(plan, ev->path2, ev->seq);
	return err ? err : touch(plan, ev->paths[0], UINT64_MAX, 0, false);
}

static int gather_paths(struct plan *plan, const struct event *ev)
{
	const bool content = ev->kind == EVENT_SEAL ||
			     ev->kind == EVENT_SYMLINK ||
			     ev->kind == EVENT_MKDIR;
	int err = 0;

	for (size_t i = 0; i < ev->n_paths && !err; i++)
		err = content ? appears(plan, ev->paths[i], ev->seq)
			      : touch(plan, ev->paths[i], UINT64_MAX, 0, false);
	return err;
}

static int gather(struct plan *plan, const struct event *ev)
{
	if (!ev->n_paths)
		return 0;
	plan->n_seals += ev->kind == EVENT_SEAL && ev->version;
	switch (ev->kind) {
	case EVENT_UNLINK:
		return goes(plan, ev->paths[0]);
	case EVENT_RENAME:
	case EVENT_EXCHANGE:
		return ev->path2 ? gather_move(plan, ev) : 0;
	case EVENT_LINK:
		return ev->path2 ? gather_link(plan, ev) : 0;
	default:
		return gather_paths(plan, ev);
	}
}

struct gathering {
	struct plan *plan;
	uint64_t until;
};

static int gather_event(void *arg, const struct event *ev)
{
	struct gathering *g = arg;

	return ev->seq > g->until ? 1 : gather(g->plan, ev);
}

/* ---- all below a directory -------------------------------------------- */

/* Directories still to be read. */
struct todo {
	struct dir {
		char *path;
		uint64_t ino;
	} * dirs;
	size_t n, cap;
};

static void todo_fini(struct todo *t)
{
	while (t->n)
		free(t->dirs[--t->n].path);
	free(t->dirs);
}

static int todo_push(struct todo *t, char *path, uint64_t ino)
{
	if (grow(&t->dirs, t->n, &t->cap, sizeof(*t->dirs)))
		return -ENOMEM;
	t->dirs[t->n++] = (struct dir){ path, ino };
	return 0;
}

struct walk {
	struct plan *plan;
	struct todo todo;
	char *at; /* path of the directory being read */
	uint64_t seq;
};

static char *join(const char *dir, const char *name)
{
	char *path;

	if (asprintf(&path, "%s%s%s", dir, *dir ? "/" : "", name) < 0)
		return NULL;
	return path;
}

static int wanted_entry(void *arg, const char *name, const struct dentry_rec *d)
{
	struct walk *w = arg;
	CLEANUP(free_p) char *path = join(w->at, name);
	int err = path ? appears(w->plan, path, w->seq) : -ENOMEM;

	if (!err && S_ISDIR(d->type)) {
		err = todo_push(&w->todo, path, d->ino);
		if (!err)
			path = NULL;
	}
	return err;
}

static int walk_wanted(const struct view *v, struct walk *w, const char *path)
{
	struct inode_rec rec;
	char *copy;
	int err = view_path_inode(v, path, &rec);

	if (err || !S_ISDIR(rec.mode))
		return err == -ENOENT ? 0 : err;
	copy = strdup(path);
	err = copy ? todo_push(&w->todo, copy, rec.ino) : -ENOMEM;
	while (!err && w->todo.n) {
		struct dir dir = w->todo.dirs[--w->todo.n];

		w->at = dir.path;
		err = view_readdir(v, dir.ino, 0, wanted_entry, w);
		free(dir.path);
	}
	return err;
}

static int found_entry(void *arg, const char *name)
{
	struct walk *w = arg;
	char *path = join(w->at, name);
	int err = path ? touch(w->plan, path, UINT64_MAX, 0, false) : -ENOMEM;

	if (!err)
		err = todo_push(&w->todo, path, 0);
	if (err)
		free(path);
	return err;
}

/* What is there: everything may be a directory until it turns out not to. */
static int walk_found(struct publisher *p, struct walk *w, const char *path)
{
	char *copy = strdup(path);
	int err = copy ? todo_push(&w->todo, copy, 0) : -ENOMEM;

	while (!err && w->todo.n) {
		struct dir dir = w->todo.dirs[--w->todo.n];

		w->at = dir.path;
		err = ON_REMOTE(p, w->at,
				p->r->ops->list(p->r, w->at, found_entry, w));
		if (is_unlike(err) || is_impossible(err))
			err = 0;
		free(dir.path);
	}
	return err;
}

static int walk_areas(struct publisher *p, const struct view *v,
		      struct plan *plan)
{
	int err = 0;

	for (size_t i = 0; i < plan->n_areas && !err; i++) {
		struct walk w = { .plan = plan, .seq = plan->areas[i].seq };

		err = walk_wanted(v, &w, plan->areas[i].path);
		if (!err)
			err = walk_found(p, &w, plan->areas[i].path);
		todo_fini(&w.todo);
	}
	return err;
}

/* ---- one step a path -------------------------------------------------- */

static int by_path(const void *a, const void *b)
{
	const struct step *x = a, *y = b;

	return strcmp(x->path, y->path);
}

static void merge(struct plan *plan)
{
	size_t n = 0;

	if (plan->n)
		qsort(plan->steps, plan->n, sizeof(*plan->steps), by_path);
	for (size_t i = 0; i < plan->n; i++) {
		struct step *s = &plan->steps[i];
		struct step *before = n ? &plan->steps[n - 1] : NULL;

		if (!before || strcmp(before->path, s->path) != 0) {
			plan->steps[n++] = *s;
			continue;
		}
		if (s->first < before->first)
			before->first = s->first;
		if (s->last > before->last)
			before->last = s->last;
		before->named |= s->named;
		free(s->path);
	}
	plan->n = n;
}

int view_path_inode(const struct view *v, const char *path,
		    struct inode_rec *out)
{
	char name[META_NAME_MAX + 1];
	uint64_t ino = META_ROOT_INO;
	struct dentry_rec d;
	int err;

	while (*path) {
		size_t len = strcspn(path, "/");

		if (!len || len > META_NAME_MAX)
			return -ENOENT;
		memcpy(name, path, len);
		name[len] = '\0';
		err = view_lookup(v, ino, name, &d);
		if (err)
			return err;
		ino = d.ino;
		path += len + (path[len] == '/');
	}
	return view_inode(v, ino, out);
}

static int want_symlink(const struct view *v, struct step *s)
{
	char target[META_PATH_MAX];
	int err = view_symlink(v, s->want.ino, target);

	if (err)
		return err;
	s->target = strdup(target);
	return s->target ? 0 : -ENOMEM;
}

static int want(struct publisher *p, const struct view *v, struct step *s)
{
	struct version_rec version;
	uint32_t type;
	int err = view_path_inode(v, s->path, &s->want);

	if (err) {
		s->want = (struct inode_rec){ 0 };
		return err == -ENOENT ? 0 : err;
	}
	type = s->want.mode & S_IFMT;
	if (type == S_IFLNK)
		return want_symlink(v, s);
	if ((type == S_IFREG && !s->want.version) ||
	    (type != S_IFREG && type != S_IFDIR))
		s->want = (struct inode_rec){ 0 }; /* has no object */
	if (type != S_IFREG || !s->want.version)
		return 0;
	if (!view_version(v, s->want.version, &version))
		s->version_seq = version.seq;
	seek_version(p, s->want.version, &s->sought);
	return 0;
}

static bool has_bytes_of(const struct step *x, const struct step *s)
{
	return is_sought(&s->sought, &x->has) && x->has.size == s->want.size;
}

static bool is_same(const struct step *s)
{
	if (!s->has.mode || ((s->has.mode ^ s->want.mode) & S_IFMT))
		return false;
	if (S_ISREG(s->has.mode))
		return has_bytes_of(s, s);
	return !S_ISLNK(s->has.mode) || !strcmp(s->has.target, s->target);
}

bool step_must_be_placed(const struct step *s)
{
	return S_ISREG(s->want.mode) && strlen(s->path) < META_PATH_MAX;
}

static int look_at(struct publisher *p, const struct view *v, struct step *s)
{
	int err = want(p, v, s);

	if (err)
		return err;
	err = ON_REMOTE(p, s->path,
			p->r->ops->get_attr(p->r, s->path, &s->has));
	if (is_impossible(err)) {
		if (step_must_be_placed(s))
			return stuck_at(p, s->path, err);
		if (s->want.mode)
			step_over(p, s->path, err);
		s->skip = true;
		err = 0;
	}
	s->same = is_same(s);
	return is_unlike(err) ? 0 : err;
}

/* Of a directory compared as a whole only what cannot hold anybody's data
 * goes without being named: an empty directory. And what was a symlink of
 * ours under an old name of its directory. */
static void name_by_area(const struct plan *plan, bool whole, struct step *s)
{
	if (S_ISDIR(s->has.mode) && (whole || plan->n_areas))
		s->named = true;
	if (S_ISLNK(s->has.mode) && !whole && plan->n_areas)
		s->named = true;
}

static int by_identity(const void *a, const void *b)
{
	const struct step *x = *(struct step *const *)a;
	const struct step *y = *(struct step *const *)b;

	return strcmp(x->has.identity, y->has.identity);
}

static int index_identities(struct plan *plan)
{
	struct step **all = calloc(plan->n + 1, sizeof(struct step *));
	size_t n = 0;

	if (!all)
		return -ENOMEM;
	for (size_t i = 0; i < plan->n; i++)
		if (S_ISREG(plan->steps[i].has.mode) &&
		    plan->steps[i].has.identity[0])
			all[n++] = &plan->steps[i];
	qsort(all, n, sizeof(struct step *), by_identity);
	plan->by_identity = all;
	plan->n_by_identity = n;
	return 0;
}

/* At the new name of a file of others there may be another that looks just
 * like it. */
static int doubt_alike(struct plan *plan)
{
	int err = 0;

	for (size_t i = 0; i < plan->n && !err; i++) {
		struct step *s = &plan->steps[i], *source = s;

		if (!s->same || !s->sought.of_others)
			continue;
		err = plan_source(plan, s, &source);
		s->same = source == s;
	}
	return err;
}

int plan_make(struct publisher *p, const struct view *v, bool whole,
	      struct plan *out)
{
	struct gathering g = { out, view_seq(v) };
	int err = whole ? add_area(out, "", 0) : 0;

	if (!err)
		err = meta_events(p->m, meta_remote_seq(p->m), gather_event,
				  &g);
	if (err == 1)
		err = 0;
	if (!err)
		err = walk_areas(p, v, out);
	if (err)
		return err;
	merge(out);
	for (size_t i = 0; i < out->n && !err; i++) {
		err = look_at(p, v, &out->steps[i]);
		name_by_area(out, whole, &out->steps[i]);
	}
	if (!err)
		err = index_identities(out);
	if (!err)
		err = doubt_alike(out);
	for (size_t i = 0; i < out->n && !err; i++)
		if (out->steps[i].skip && S_ISREG(out->steps[i].want.mode))
			err = plan_keep(out, &out->steps[i]);
	return err;
}

/* ---- order ------------------------------------------------------------ */

static uint64_t key_of(const struct step *s)
{
	if (s->has.mode)
		return s->last;
	if (S_ISLNK(s->want.mode) ||
	    (S_ISREG(s->want.mode) && s->want.size <= META_SMALL_MAX))
		return s->last;
	return s->first;
}

static int by_key(const void *a, const void *b)
{
	const struct step *x = *(struct step *const *)a;
	const struct step *y = *(struct step *const *)b;

	if (key_of(x) != key_of(y))
		return key_of(x) < key_of(y) ? -1 : 1;
	if (x->version_seq != y->version_seq)
		return x->version_seq < y->version_seq ? -1 : 1;
	return strcmp(x->path, y->path);
}

int plan_order(const struct plan *plan, bool is_new, struct step ***out,
	       size_t *n)
{
	struct step **order = calloc(plan->n + 1, sizeof(struct step *));

	if (!order)
		return -ENOMEM;
	*n = 0;
	for (size_t i = 0; i < plan->n; i++) {
		struct step *s = &plan->steps[i];

		if (s->want.mode && !s->skip && !s->same &&
		    is_new == !s->has.mode)
			order[(*n)++] = s;
	}
	qsort(order, *n, sizeof(struct step *), by_key);
	*out = order;
	return 0;
}

/* ---- where bytes may be ----------------------------------------------- */

static struct step *find(const struct plan *plan, const char *path)
{
	struct step key = { .path = (char *)path };

	if (!plan->n)
		return NULL;
	return bsearch(&key, plan->steps, plan->n, sizeof(key), by_path);
}

static struct step *find_identity(const struct plan *plan, const char *identity)
{
	struct step like = { 0 }, *key = &like, **found;

	snprintf(like.has.identity, sizeof(like.has.identity), "%s", identity);
	found = bsearch(&key, plan->by_identity, plan->n_by_identity,
			sizeof(key), by_identity);
	return found ? *found : NULL;
}

struct search {
	const struct plan *plan;
	const struct step *wanted;
	struct step *found;
};

static int try_path(void *arg, const char *path)
{
	struct search *search = arg;
	struct step *x = find(search->plan, path);

	if (!x || !has_bytes_of(x, search->wanted))
		return 0;
	search->found = x;
	return 1;
}

int plan_source(const struct plan *plan, const struct step *s,
		struct step **out)
{
	struct search search = { plan, s, NULL };
	struct step *x;
	int err = moves_back(&plan->moves, s->path, try_path, &search);

	if (err < 0)
		return err;
	if (!search.found) {
		x = find_identity(plan, s->sought.identity);
		if (x && has_bytes_of(x, s))
			search.found = x;
	}
	*out = search.found;
	return 0;
}

static int keep_path(void *arg, const char *path)
{
	struct step *x = find(arg, path);

	if (x && !x->has.identity[0])
		x->keep = true;
	return 0;
}

int plan_keep(struct plan *plan, const struct step *s)
{
	for (size_t i = 0; i < plan->n; i++)
		plan->steps[i].keep |=
			is_sought(&s->sought, &plan->steps[i].has);
	return moves_back(&plan->moves, s->path, keep_path, plan);
}
