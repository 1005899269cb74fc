/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The remote's listing, by several threads.
 *
 * Listing is not atomic: while one directory is read, another node may place
 * shards in one read before, and then `latest`. So the whole remote is
 * scanned again until two scans agree; a pointer read in the first names
 * nothing that the second has not seen whole.
 *
 * The threads that scan may hang with the remote. When nothing has moved for
 * a while they are left to themselves, with the scan, and the caller gets an
 * error.
 */
#include "engine/restore_scan.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <time.h>

#include "engine/thread.h"
#include "metadata/log_message.h"

#define N_SCANNERS 8
#define N_SCANS 5
#define PATIENCE_S 30
#define LOOK_BATCH 64u

/* ---- what was found --------------------------------------------------- */

static void node_fini(struct node *top)
{
	for (size_t i = 0; i < top->n; i++)
		node_fini(&top->children[i]);
	free(top->children);
	free(top->name);
	remote_attr_fini(&top->attr);
}

static int node_add(struct node *dir, const char *name)
{
	if (dir->n == dir->cap) {
		size_t cap = dir->cap ? 2 * dir->cap : 16;
		struct node *all = realloc(dir->children, cap * sizeof(*all));

		if (!all)
			return -ENOMEM;
		dir->children = all;
		dir->cap = cap;
	}
	dir->children[dir->n] = (struct node){ .name = strdup(name) };
	if (!dir->children[dir->n].name)
		return -ENOMEM;
	dir->n++;
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct node *)a)->name,
		      ((const struct node *)b)->name);
}

/* Good enough to be called the same state of the remote. */
static bool is_same(const struct node *a, const struct node *b)
{
	const struct remote_attr *x = &a->attr, *y = &b->attr;

	if (x->mode != y->mode || a->n != b->n)
		return false;
	if (S_ISREG(x->mode) &&
	    (strcmp(x->identity, y->identity) != 0 || x->size != y->size ||
	     x->mtime_ns != y->mtime_ns))
		return false;
	if (S_ISLNK(x->mode) && strcmp(x->target, y->target) != 0)
		return false;
	for (size_t i = 0; i < a->n; i++)
		if (strcmp(a->children[i].name, b->children[i].name) != 0 ||
		    !is_same(&a->children[i], &b->children[i]))
			return false;
	return true;
}

/* ---- scanning --------------------------------------------------------- */

/* List a directory, or look at some of its entries. */
struct item {
	STAILQ_ENTRY(item) next;
	struct node *dir;
	char *path;      /* of dir */
	size_t from, to; /* 0, 0: list */
};

struct scan {
	struct remote *r; /* held */
	struct node root;
	struct mutex lock;
	pthread_cond_t changed;
	STAILQ_HEAD(, item) items;         /* guarded by lock */
	unsigned n_items, n_threads, refs; /* guarded by lock; items: also
					      those being worked on */
	_Atomic uint64_t progress; /* items done, names heard of, looked at */
	int err;                   /* guarded by lock */
	char at[200];              /* guarded by lock: where err was */
};

static void scan_put(struct scan *s)
{
	bool last;
	struct item *it;

	mutex_lock(&s->lock);
	last = --s->refs == 0;
	mutex_unlock(&s->lock);
	if (!last)
		return;
	while ((it = STAILQ_FIRST(&s->items))) {
		STAILQ_REMOVE_HEAD(&s->items, next);
		free(it->path);
		free(it);
	}
	node_fini(&s->root);
	remote_put(s->r);
	pthread_cond_destroy(&s->changed);
	mutex_fini(&s->lock);
	free(s);
}

static void scan_fail(struct scan *s, int err, const char *at)
{
	mutex_lock(&s->lock);
	if (!s->err) {
		s->err = err;
		snprintf(s->at, sizeof(s->at), "%s", at);
	}
	pthread_cond_broadcast(&s->changed);
	mutex_unlock(&s->lock);
}

static int push(struct scan *s, struct node *dir, const char *path, size_t from,
		size_t to)
{
	struct item *it = calloc(1, sizeof(*it));

	if (it)
		it->path = strdup(path);
	if (!it || !it->path) {
		free(it);
		return -ENOMEM;
	}
	it->dir = dir;
	it->from = from;
	it->to = to;
	mutex_lock(&s->lock);
	STAILQ_INSERT_TAIL(&s->items, it, next);
	s->n_items++;
	pthread_cond_broadcast(&s->changed);
	mutex_unlock(&s->lock);
	return 0;
}

static struct item *take(struct scan *s)
{
	struct item *it = NULL;

	mutex_lock(&s->lock);
	while (!s->err && s->n_items && STAILQ_EMPTY(&s->items))
		pthread_cond_wait(&s->changed, &s->lock.m);
	if (!s->err && s->n_items) {
		it = STAILQ_FIRST(&s->items);
		STAILQ_REMOVE_HEAD(&s->items, next);
	}
	mutex_unlock(&s->lock);
	return it;
}

static void item_done(struct scan *s, struct item *it)
{
	free(it->path);
	free(it);
	s->progress++;
	mutex_lock(&s->lock);
	if (--s->n_items == 0)
		pthread_cond_broadcast(&s->changed);
	mutex_unlock(&s->lock);
}

/* Names come from a store that others write to. */
static bool name_is_good(const char *name)
{
	size_t len = strlen(name);

	return len && len <= META_NAME_MAX && !strchr(name, '/') &&
	       strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

struct listing {
	struct scan *s;
	const struct item *it;
};

static int list_entry(void *arg, const char *name)
{
	struct listing *l = arg;

	l->s->progress++;
	if (!name_is_good(name) ||
	    strlen(l->it->path) + strlen(name) + 2 > META_PATH_MAX) {
		message_warning("'%s/%.255s' on %s cannot be a name here: "
				"left out",
				l->it->path, name, l->s->r->name);
		return 0;
	}
	return node_add(l->it->dir, name);
}

/*
 * Something of others that is closed to us (lost+found) is none of this
 * mount's: it is not shown, and nothing else is held up. Not so the root: who
 * may not even list that has come with the wrong rights.
 */
static int leave_out(const struct scan *s, const char *path, struct node *it)
{
	if (!*path)
		return -EACCES;
	message_warning("cannot read '%s' of %s: %s: left out", path,
			s->r->name, strerror(EACCES));
	remote_attr_fini(&it->attr);
	return 0;
}

static int list_dir(struct scan *s, struct item *it)
{
	struct listing l = { s, it };
	struct node *dir = it->dir;
	int err = s->r->ops->list(s->r, it->path, list_entry, &l);

	if (err == -ENOENT || err == -ENOTDIR)
		err = 0; /* it has just gone: the next scan tells */
	if (err == -EACCES)
		err = leave_out(s, it->path, dir);
	if (dir->n)
		qsort(dir->children, dir->n, sizeof(*dir->children), by_name);
	for (size_t i = 0; i < dir->n && !err; i += LOOK_BATCH)
		err = push(s, dir, it->path, i,
			   i + LOOK_BATCH < dir->n ? i + LOOK_BATCH : dir->n);
	return err;
}

static bool type_is_known(uint32_t mode)
{
	return S_ISREG(mode) || S_ISDIR(mode) || S_ISLNK(mode);
}

static int look(struct scan *s, const char *dir, struct node *child)
{
	CLEANUP(free_p) char *path = NULL;
	int err;

	if (asprintf(&path, "%s%s%s", dir, *dir ? "/" : "", child->name) < 0) {
		path = NULL;
		return -ENOMEM;
	}
	err = s->r->ops->get_attr(s->r, path, &child->attr);
	if (err == -ENOENT)
		return 0;
	if (err == -EACCES)
		return leave_out(s, path, child);
	if (err)
		return err;
	if (!type_is_known(child->attr.mode)) {
		message_warning("'%s' on %s is no file, directory or symlink: "
				"left out",
				path, s->r->name);
		remote_attr_fini(&child->attr);
		return 0;
	}
	return S_ISDIR(child->attr.mode) ? push(s, child, path, 0, 0) : 0;
}

static int look_at_some(struct scan *s, struct item *it)
{
	int err = 0;

	for (size_t i = it->from; i < it->to && !err; i++, s->progress++)
		err = look(s, it->path, &it->dir->children[i]);
	return err;
}

static void *scanner_main(void *arg)
{
	struct scan *s = arg;
	struct item *it;

	while ((it = take(s))) {
		int err = it->to ? look_at_some(s, it) : list_dir(s, it);

		if (err)
			scan_fail(s, err, it->path);
		item_done(s, it);
	}
	mutex_lock(&s->lock);
	s->n_threads--;
	pthread_cond_broadcast(&s->changed);
	mutex_unlock(&s->lock);
	scan_put(s);
	return NULL;
}

/* Until all is seen, all have stopped after an error, or none moves. */
static int scan_wait(struct scan *s)
{
	struct timespec until;
	uint64_t before;
	int rc = 0, err;

	mutex_lock(&s->lock);
	do {
		before = s->progress;
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_sec += PATIENCE_S;
		rc = 0;
		while (s->n_threads && rc != ETIMEDOUT)
			rc = pthread_cond_timedwait(&s->changed, &s->lock.m,
						    &until);
	} while (s->n_threads && s->progress != before);
	if (s->n_threads && !s->err)
		s->err = -ETIMEDOUT;
	pthread_cond_broadcast(&s->changed);
	err = s->err;
	mutex_unlock(&s->lock);
	return err;
}

static int scan_threads(struct scan *s)
{
	int err = 0;

	for (int i = 0; i < N_SCANNERS && !err; i++) {
		pthread_t thread;

		mutex_lock(&s->lock);
		s->n_threads++;
		s->refs++;
		mutex_unlock(&s->lock);
		err = thread_start(&thread, "import", scanner_main, s);
		if (!err) {
			pthread_detach(thread);
			continue;
		}
		mutex_lock(&s->lock);
		s->n_threads--;
		s->refs--;
		mutex_unlock(&s->lock);
		if (i)
			return 0; /* some are enough */
	}
	return err;
}

static struct scan *scan_new(struct remote *r)
{
	struct scan *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	mutex_init(&s->lock);
	condition_init(&s->changed);
	STAILQ_INIT(&s->items);
	s->r = remote_hold(r);
	s->refs = 1;
	return s;
}

void scan_putp(struct scan **s)
{
	if (*s)
		scan_put(*s);
}

struct node *scan_root(struct scan *s)
{
	return &s->root;
}

static void say_why(const struct remote *r, const char *at, int err, char *why,
		    size_t why_len)
{
	if (err == -ETIMEDOUT)
		snprintf(why, why_len, "%s does not answer", r->name);
	else
		snprintf(why, why_len, "cannot read '%s' of %s: %s",
			 *at ? at : "/", r->name, strerror(-err));
}

static int scan(struct remote *r, struct scan **out, char *why, size_t why_len)
{
	CLEANUP(scan_putp) struct scan *s = scan_new(r);
	char at[200] = "";
	int err = s ? 0 : -ENOMEM;

	if (!err)
		err = push(s, &s->root, "", 0, 0);
	if (!err)
		err = scan_threads(s);
	if (!err)
		err = scan_wait(s);
	if (err && s) {
		mutex_lock(&s->lock);
		memcpy(at, s->at, sizeof(at));
		mutex_unlock(&s->lock);
	}
	if (!err) /* the root itself; it answered a moment ago */
		err = r->ops->get_attr(r, "", &s->root.attr);
	if (err) {
		say_why(r, at, err, why, why_len);
		return err;
	}
	*out = MOVE(s);
	return 0;
}

int scan_till_stable(struct remote *r, struct scan **out, char *why,
		     size_t why_len)
{
	CLEANUP(scan_putp) struct scan *before = NULL;
	struct scan *now = NULL;

	for (int i = 0; i < N_SCANS; i++) {
		int err = scan(r, &now, why, why_len);

		if (err)
			return err;
		if (before && is_same(&before->root, &now->root)) {
			*out = now;
			return 0;
		}
		scan_putp(&before);
		before = now;
	}
	message_warning("%s changes all the time: taken over as it was seen "
			"last",
			r->name);
	*out = MOVE(before);
	return 0;
}
