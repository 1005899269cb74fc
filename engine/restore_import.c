/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The namespace of a fresh node from what the remote lists.
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
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <time.h>

#include "engine/restore.h"
#include "engine/thread.h"
#include "engine/tier.h"
#include "metadata/fault.h"
#include "metadata/log_message.h"

#define NOTE_DONE "restore.done"
#define N_SCANNERS 8
#define N_SCANS 5
#define PATIENCE_S 30
#define LOOK_BATCH 64u
#define TXN_BATCH 7u /* names a transaction: it takes 8 at most */
#define LOG_BYTES ((size_t)16 << 20)

/* ---- what was found --------------------------------------------------- */

struct node {
	char *name;
	struct remote_attr attr; /* mode 0: not taken over */
	struct node *children;   /* directories; by name */
	size_t n, cap;
	struct inode_rec rec; /* once it is in the namespace */
};

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
	uint64_t progress;                 /* guarded by lock */
	int err;                           /* guarded by lock */
	char at[200];                      /* guarded by lock: where err was */
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
	mutex_lock(&s->lock);
	s->progress++;
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

	if (!name_is_good(name) ||
	    strlen(l->it->path) + strlen(name) + 2 > META_PATH_MAX) {
		message_warning("'%s/%.255s' on %s cannot be a name here: "
				"left out",
				l->it->path, name, l->s->r->name);
		return 0;
	}
	return node_add(l->it->dir, name);
}

static int list_dir(struct scan *s, struct item *it)
{
	struct listing l = { s, it };
	struct node *dir = it->dir;
	int err = s->r->ops->list(s->r, it->path, list_entry, &l);

	if (err == -ENOENT || err == -ENOTDIR)
		err = 0; /* it has just gone: the next scan tells */
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

	for (size_t i = it->from; i < it->to && !err; i++)
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

static void scan_putp(struct scan **s)
{
	if (*s)
		scan_put(*s);
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

static int scan_till_stable(struct remote *r, struct scan **out, char *why,
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

/* ---- into the namespace ----------------------------------------------- */

struct import {
	struct meta *m;
	const struct view *v;
	int64_t now_ns;
	uint64_t n_files;
};

static struct inode_rec rec_of(const struct import *im, const struct node *n,
			       uint64_t parent)
{
	const struct remote_attr *a = &n->attr;

	return (struct inode_rec){
		.ino = meta_new_ino(im->m),
		.mode = a->mode,
		.uid = a->uid,
		.gid = a->gid,
		.nlink = S_ISDIR(a->mode) ? 2 : 1,
		.size = S_ISLNK(a->mode) ? strlen(a->target)
					 : (S_ISREG(a->mode) ? a->size : 0),
		.blocks = S_ISREG(a->mode) ? (a->size + 511) / 512 : 0,
		.atime_ns = a->mtime_ns,
		.mtime_ns = a->mtime_ns,
		.ctime_ns = im->now_ns,
		.parent = S_ISDIR(a->mode) ? parent : 0,
	};
}

static int put_copy(struct import *im, const struct node *n)
{
	const struct remote_attr *a = &n->attr;
	const bool verified = remote_attr_verified(a);
	struct copy_rec c = {
		.version = n->rec.version,
		.tier = COPY_REMOTE,
		.kind = COPY_OBJECT,
		.size = a->size,
		.chunk_len = CHUNK_LEN,
		.n_chunks = verified ? a->n_chunks : 0,
		.crcs = a->crcs, /* borrowed for the call */
		.verified = verified,
	};

	memcpy(c.object, a->identity, sizeof(c.object));
	return meta_put_copy(im->m, &c, false);
}

static void put_node(struct txn *t, const struct node *dir,
		     const struct node *n)
{
	const struct inode_rec *rec = &n->rec;

	if (S_ISREG(rec->mode)) {
		struct version_rec v = {
			.id = rec->version,
			.ino = rec->ino,
			.size = rec->size,
			.blocks = rec->blocks,
		};

		txn_put_version(t, &v);
	}
	if (S_ISLNK(rec->mode))
		txn_put_symlink(t, rec->ino, n->attr.target);
	for (uint32_t i = 0; i < n->attr.n_xattrs; i++) {
		const struct remote_xattr *x = &n->attr.xattrs[i];

		txn_put_xattr(t, rec->ino, x->name, x->value, x->len);
	}
	txn_put_inode(t, rec);
	txn_put_dentry(t, dir->rec.ino, n->name, rec->ino, rec->mode);
}

/* One transaction: some new entries of dir, and dir's link count. */
static int put_some(struct import *im, struct node *dir, struct node **some,
		    size_t n)
{
	uint64_t seq;
	int err = 0;
	struct txn *t;

	for (size_t i = 0; i < n && !err; i++) {
		if (!S_ISREG(some[i]->rec.mode))
			continue;
		err = put_copy(im, some[i]);
		im->n_files++;
	}
	if (err || !n)
		return err;
	t = txn_begin(im->m);
	for (size_t i = 0; i < n; i++) {
		put_node(t, dir, some[i]);
		dir->rec.nlink += S_ISDIR(some[i]->rec.mode);
	}
	txn_put_inode(t, &dir->rec);
	return txn_commit(t, &seq);
}

/* Is it there already (an import that died, local state from before)? Then
 * it stays as it is. */
static int find_old(struct import *im, const struct node *dir, struct node *n)
{
	struct dentry_rec d;
	int err = view_lookup(im->v, dir->rec.ino, n->name, &d);

	return err ? err : view_inode(im->v, d.ino, &n->rec);
}

static int put_dir(struct import *im, struct node *dir)
{
	struct node *some[TXN_BATCH];
	size_t n = 0;
	int err = 0;

	for (size_t i = 0; i < dir->n && !err; i++) {
		struct node *child = &dir->children[i];

		if (!child->attr.mode)
			continue;
		err = find_old(im, dir, child);
		if (err != -ENOENT)
			continue;
		err = 0;
		child->rec = rec_of(im, child, dir->rec.ino);
		if (S_ISREG(child->rec.mode))
			child->rec.version = meta_new_version(im->m);
		some[n++] = child;
		if (n == TXN_BATCH) {
			err = put_some(im, dir, some, n);
			n = 0;
		}
	}
	return err ? err : put_some(im, dir, some, n);
}

/* Parents first. A stack of directories, for a tree may be deep. */
static int put_tree(struct import *im, struct node *root)
{
	struct node **stack = malloc(sizeof(*stack));
	size_t n = 1, cap = 1;
	int err = stack ? 0 : -ENOMEM;

	if (stack)
		stack[0] = root;
	while (!err && n) {
		struct node *dir = stack[--n];

		err = put_dir(im, dir);
		if (!err && n + dir->n > cap) {
			struct node **more;

			cap = 2 * (n + dir->n);
			more = realloc(stack, cap * sizeof(struct node *));
			err = more ? 0 : -ENOMEM;
			stack = more ? more : stack;
		}
		for (size_t i = 0; i < dir->n && !err; i++)
			if (S_ISDIR(dir->children[i].rec.mode) &&
			    S_ISDIR(dir->children[i].attr.mode))
				stack[n++] = &dir->children[i];
	}
	free(stack);
	return err;
}

static int put_root(struct import *im, struct node *root, bool fresh)
{
	const struct remote_attr *a = &root->attr;
	int err = view_inode(im->v, META_ROOT_INO, &root->rec);
	struct txn *t;
	uint64_t seq;

	if (err || !fresh)
		return err;
	root->rec.mode = S_IFDIR | (a->mode & 07777);
	root->rec.uid = a->uid;
	root->rec.gid = a->gid;
	root->rec.mtime_ns = a->mtime_ns;
	root->rec.ctime_ns = im->now_ns;
	t = txn_begin(im->m);
	txn_put_inode(t, &root->rec);
	for (uint32_t i = 0; i < a->n_xattrs; i++)
		txn_put_xattr(t, META_ROOT_INO, a->xattrs[i].name,
			      a->xattrs[i].value, a->xattrs[i].len);
	return txn_commit(t, &seq);
}

/* ---- the end ---------------------------------------------------------- */

/* No follower runs yet, and nothing in the log waits for a flush. */
static int advance_all(struct meta *m)
{
	const uint64_t want = meta_accepted_seq(m);
	int err = 0;

	while (!err && meta_nvme_seq(m) < want) {
		uint64_t n;

		err = meta_log_bound(m, want, LOG_BYTES, &n);
		if (!err)
			err = meta_advance(m, n, NULL, 0, NULL, 0);
	}
	return err;
}

/* fresh: the remote shows all there is here. */
static int settle(struct meta *m, bool fresh)
{
	int err = advance_all(m);

	if (!err && fresh)
		err = meta_set_remote_seq(m, meta_nvme_seq(m), true);
	return err ? err : meta_set_note(m, NOTE_DONE, "\1", 1);
}

bool restore_is_done(const struct meta *m)
{
	uint8_t note;
	size_t len = sizeof(note);

	return !meta_note(m, NOTE_DONE, &note, &len) && len;
}

int restore_import(struct meta *m, struct remote *r, uint64_t *n_files,
		   char *why, size_t why_len)
{
	CLEANUP(scan_putp) struct scan *s = NULL;
	struct import im = { .m = m, .v = meta_accepted(m) };
	const uint64_t begin = meta_accepted_seq(m);
	const bool all_durable = meta_nvme_seq(m) == begin;
	const bool fresh = all_durable && meta_remote_seq(m) == begin;
	struct timespec now;
	int err = remote_attach(m, r, why, why_len);

	if (!err)
		err = scan_till_stable(r, &s, why, why_len);
	if (err)
		return err;
	clock_gettime(CLOCK_REALTIME, &now);
	im.now_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
	err = put_root(&im, &s->root, fresh);
	if (!err)
		err = put_tree(&im, &s->root);
	/* What else is in the log must be flushed first: the follower will,
	 * and the import is made once more at the next mount. */
	if (!err)
		err = FAULT("import.settle", -EIO);
	if (!err && all_durable)
		err = settle(m, fresh);
	if (err) {
		snprintf(why, why_len, "cannot take over what %s holds: %s",
			 r->name, strerror(-err));
		return err;
	}
	*n_files = im.n_files;
	return 0;
}
