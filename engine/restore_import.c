/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Import: the namespace of a fresh node from what a remote lists. Directory by
 * directory; the attributes of a directory's entries are asked for by several
 * threads, the records are made by one. Names that exist already stay as they
 * are, so an import that was cut off is simply done again.
 *
 * Listing is not atomic. `latest` may be read late and name what an early
 * listing did not show. So all is listed twice, and the second time only adds:
 * whatever a pointer of the first pass names was there before the second.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/restore.h"
#include "engine/thread.h"
#include "metadata/log_message.h"

#define NOTE_DONE "restore.done"
#define N_ASKERS 8
#define N_A_TRANSACTION 256

struct entry {
	char *name;
	struct remote_attr attr;
	int err;
};

/* A directory that is being imported. */
struct folder {
	char path[META_PATH_MAX];
	uint64_t ino;
	struct entry *entries;
	size_t n, cap;
};

struct pending {
	char *path;
	uint64_t ino;
};

struct import {
	struct meta *m;
	struct remote *r;
	struct pending *stack;
	size_t n, cap;
	uint64_t n_files;
	char *why;
	size_t why_len;
};

bool restore_is_done(const struct meta *m)
{
	char val[8];
	size_t len = sizeof(val);

	return meta_note(m, NOTE_DONE, val, &len) == 0;
}

static void folder_fini(struct folder *f)
{
	for (size_t i = 0; i < f->n; i++) {
		free(f->entries[i].name);
		remote_attr_fini(&f->entries[i].attr);
	}
	free(f->entries);
}

static int push(struct import *im, const char *path, uint64_t ino)
{
	if (im->n == im->cap) {
		size_t cap = im->cap ? im->cap * 2 : 64;
		void *grown = realloc(im->stack, cap * sizeof(*im->stack));

		if (!grown)
			return -ENOMEM;
		im->stack = grown;
		im->cap = cap;
	}
	im->stack[im->n].path = strdup(path);
	im->stack[im->n].ino = ino;
	if (!im->stack[im->n].path)
		return -ENOMEM;
	im->n++;
	return 0;
}

/* Notes the reason for the operator; err is passed on. */
static int why(struct import *im, int err, const char *what, const char *path)
{
	snprintf(im->why, im->why_len, "%s '/%.100s': %s", what, path,
		 strerror(-err));
	return err;
}

/* ---- listing ---------------------------------------------------------- */

static bool name_is_valid(const char *name)
{
	size_t len = strlen(name);

	return len > 0 && len <= META_NAME_MAX && !strchr(name, '/') &&
	       strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static int add_name(void *arg, const char *name)
{
	struct folder *f = arg;

	if (!name_is_valid(name) ||
	    (!f->path[0] && !strcmp(name, REMOTE_PREFIX))) {
		message_warning("'%s/%s' on the remote is skipped: not a "
				"valid name",
				f->path, name);
		return 0;
	}
	if (f->n == f->cap) {
		size_t cap = f->cap ? f->cap * 2 : 64;
		void *grown = realloc(f->entries, cap * sizeof(*f->entries));

		if (!grown)
			return -ENOMEM;
		f->entries = grown;
		f->cap = cap;
	}
	f->entries[f->n] = (struct entry){ .name = strdup(name) };
	if (!f->entries[f->n].name)
		return -ENOMEM;
	f->n++;
	return 0;
}

static int child_path(const struct folder *f, const char *name,
		      char out[META_PATH_MAX])
{
	int n = snprintf(out, META_PATH_MAX, "%s%s%s", f->path,
			 f->path[0] ? "/" : "", name);

	return n < META_PATH_MAX ? 0 : -ENAMETOOLONG;
}

struct asker {
	struct remote *r;
	struct folder *f;
	_Atomic size_t next;
};

static void *ask_run(void *arg)
{
	struct asker *a = arg;
	size_t i;

	while ((i = a->next++) < a->f->n) {
		struct entry *en = &a->f->entries[i];
		char path[META_PATH_MAX];

		en->err = child_path(a->f, en->name, path);
		if (!en->err)
			en->err = a->r->ops->get_attr(a->r, path, &en->attr);
	}
	return NULL;
}

static void ask_all(struct remote *r, struct folder *f)
{
	struct asker a = { .r = r, .f = f };
	pthread_t threads[N_ASKERS];
	unsigned n = 0;

	while (n < N_ASKERS && n * 4 < f->n) {
		if (thread_start(&threads[n], "ckpt-import", ask_run, &a))
			break;
		n++;
	}
	ask_run(&a);
	while (n)
		pthread_join(threads[--n], NULL);
}

/* ---- making records --------------------------------------------------- */

static void put_inode(struct txn *t, const struct remote_attr *a, uint64_t ino,
		      uint64_t version, uint64_t parent)
{
	struct inode_rec rec = {
		.ino = ino,
		.mode = a->mode,
		.uid = a->uid,
		.gid = a->gid,
		.nlink = S_ISDIR(a->mode) ? 2 : 1,
		.size = a->size,
		.blocks = (a->size + 511) / 512,
		.atime_ns = a->mtime_ns,
		.mtime_ns = a->mtime_ns,
		.ctime_ns = a->mtime_ns,
		.version = version,
		.parent = S_ISDIR(a->mode) ? parent : 0,
	};

	if (S_ISLNK(a->mode))
		rec.size = strlen(a->target);
	txn_put_inode(t, &rec);
	for (uint32_t i = 0; i < a->n_xattrs; i++)
		txn_put_xattr(t, ino, a->xattrs[i].name, a->xattrs[i].value,
			      a->xattrs[i].len);
}

static int put_copy(struct import *im, const struct remote_attr *a,
		    uint64_t version)
{
	bool verified = remote_attr_verified(a);
	struct copy_rec c = {
		.version = version,
		.tier = COPY_REMOTE,
		.kind = COPY_OBJECT,
		.size = a->size,
		.chunk_len = CHUNK_LEN,
		.n_chunks = verified ? a->n_chunks : 0,
		.crcs = verified ? a->crcs : NULL,
		.verified = verified,
	};

	memcpy(c.object, a->identity, sizeof(c.object));
	return meta_put_copy(im->m, &c, false);
}

static int add_file(struct import *im, struct txn *t, uint64_t ino,
		    const struct remote_attr *a)
{
	struct version_rec v = {
		.id = meta_new_version(im->m),
		.ino = ino,
		.size = a->size,
		.blocks = (a->size + 511) / 512,
	};
	int r = put_copy(im, a, v.id);

	if (r < 0)
		return r;
	put_inode(t, a, ino, v.id, 0);
	txn_put_version(t, &v);
	im->n_files++;
	return 0;
}

/* One name that is not there yet. *n_dirs: directories made in the folder. */
static int add_entry(struct import *im, struct txn *t, struct folder *f,
		     const struct entry *en, unsigned *n_dirs)
{
	const struct remote_attr *a = &en->attr;
	uint64_t ino = meta_new_ino(im->m);
	char path[META_PATH_MAX];
	int r = 0;

	if (S_ISREG(a->mode)) {
		r = add_file(im, t, ino, a);
	} else if (S_ISDIR(a->mode)) {
		put_inode(t, a, ino, 0, f->ino);
		++*n_dirs;
		r = child_path(f, en->name, path);
		if (r == 0)
			r = push(im, path, ino);
	} else if (S_ISLNK(a->mode) && a->target) {
		put_inode(t, a, ino, 0, 0);
		txn_put_symlink(t, ino, a->target);
	} else {
		return 0; /* sockets and devices stay where they are */
	}
	if (r == 0)
		txn_put_dentry(t, f->ino, en->name, ino, a->mode & S_IFMT);
	return r;
}

/* Is it known already? Directories are walked again. */
static int known(struct import *im, struct folder *f, const struct entry *en,
		 bool *out)
{
	struct dentry_rec d;
	char path[META_PATH_MAX];
	int r;

	r = view_lookup(meta_accepted(im->m), f->ino, en->name, &d);
	*out = r == 0;
	if (r == -ENOENT)
		return 0;
	if (r < 0 || !S_ISDIR(d.type) || !S_ISDIR(en->attr.mode))
		return r;
	r = child_path(f, en->name, path);
	return r < 0 ? r : push(im, path, d.ino);
}

static int raise_nlink(struct import *im, struct txn *t, uint64_t ino,
		       unsigned n)
{
	struct inode_rec rec;
	int r;

	if (!n)
		return 0;
	r = view_inode(meta_accepted(im->m), ino, &rec);
	if (r < 0)
		return r;
	rec.nlink += n;
	txn_put_inode(t, &rec);
	return 0;
}

static int add_slice(struct import *im, struct folder *f, size_t from,
		     size_t to)
{
	struct txn *t = txn_begin(im->m);
	unsigned n_dirs = 0;
	uint64_t seq;
	bool there;
	int r = 0;

	for (size_t i = from; i < to && r == 0; i++) {
		struct entry *en = &f->entries[i];

		if (en->err == -ENOENT)
			continue; /* gone since it was listed */
		if (en->err) {
			r = why(im, en->err, "cannot look at", en->name);
			break;
		}
		r = known(im, f, en, &there);
		if (r == 0 && !there)
			r = add_entry(im, t, f, en, &n_dirs);
	}
	if (r == 0)
		r = raise_nlink(im, t, f->ino, n_dirs);
	if (r < 0) {
		txn_abort(t);
		return r;
	}
	return txn_commit(t, &seq);
}

static int import_folder(struct import *im, const char *path, uint64_t ino)
{
	CLEANUP(folder_fini) struct folder f = { .ino = ino };
	int r;

	snprintf(f.path, sizeof(f.path), "%s", path);
	r = im->r->ops->list(im->r, path, add_name, &f);
	if (r == -ENOENT && path[0])
		return 0;
	if (r < 0)
		return why(im, r, "cannot list", path);
	ask_all(im->r, &f);
	for (size_t i = 0; i < f.n && r == 0; i += N_A_TRANSACTION) {
		size_t to = i + N_A_TRANSACTION;

		r = add_slice(im, &f, i, to < f.n ? to : f.n);
	}
	return r;
}

/* The root's own attributes, as far as the remote knows them. */
static int import_root(struct import *im)
{
	CLEANUP(remote_attr_fini) struct remote_attr a = { 0 };
	struct inode_rec rec;
	struct txn *t;
	uint64_t seq;
	int r;

	r = im->r->ops->get_attr(im->r, "", &a);
	if (r == -ENOENT)
		return 0;
	if (r < 0)
		return why(im, r, "cannot look at", "");
	t = txn_begin(im->m);
	r = view_inode(meta_accepted(im->m), META_ROOT_INO, &rec);
	if (r < 0) {
		txn_abort(t);
		return r;
	}
	rec.mode = S_IFDIR | (a.mode & 07777);
	rec.uid = a.uid;
	rec.gid = a.gid;
	rec.mtime_ns = a.mtime_ns;
	txn_put_inode(t, &rec);
	for (uint32_t i = 0; i < a.n_xattrs; i++)
		txn_put_xattr(t, META_ROOT_INO, a.xattrs[i].name,
			      a.xattrs[i].value, a.xattrs[i].len);
	return txn_commit(t, &seq);
}

static int import_pass(struct import *im)
{
	int r;

	r = push(im, "", META_ROOT_INO);
	while (r == 0 && im->n) {
		struct pending p = im->stack[--im->n];

		r = import_folder(im, p.path, p.ino);
		free(p.path);
	}
	return r;
}

static bool is_fresh(struct meta *m)
{
	bool empty = false;

	return view_dir_is_empty(meta_accepted(m), META_ROOT_INO, &empty) ==
		       0 &&
	       empty;
}

int restore_import(struct meta *m, struct remote *r, uint64_t *n_files,
		   char *why_buf, size_t why_len)
{
	struct import im = {
		.m = m, .r = r, .why = why_buf, .why_len = why_len
	};
	int err = 0;

	if (is_fresh(m))
		err = import_root(&im);
	for (int pass = 0; pass < 2 && err == 0; pass++)
		err = import_pass(&im);
	while (im.n)
		free(im.stack[--im.n].path);
	free(im.stack);
	if (err == 0)
		err = meta_set_note(m, NOTE_DONE, "1", 1);
	if (err == 0)
		*n_files = im.n_files;
	return err;
}
