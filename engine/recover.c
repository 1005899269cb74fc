/* SPDX-License-Identifier: Apache-2.0 */
/*
 * After meta_open(): make the tiers agree with the databases.
 *
 *   carried on   every DRAM file that a version or an unsealed inode names is
 *                adopted, versions above D are queued again, unsealed inodes
 *                are marked (in doubt they are sealed), orphans are forgotten
 *   otherwise    the DRAM tier is emptied: what it held was never promised
 *
 * Both: NVMe files that nothing names are removed, and the records of copies
 * of versions that no state knows, or whose file is gone while the remote has
 * them.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core.h"
#include "metadata/log_message.h"

/* A growing array of ids, sorted before it is searched. */
struct ids {
	struct named {
		uint64_t id, version;
		bool recorded;
		bool seen;          /* of copies: its file is there */
		int64_t changed_ns; /* of unsealed content */
	} * v;
	size_t n, cap;
};

static int ids_add(struct ids *s, uint64_t id, uint64_t version, bool recorded)
{
	if (s->n == s->cap) {
		size_t cap = s->cap ? s->cap * 2 : 1024;
		void *grown = realloc(s->v, cap * sizeof(*s->v));

		if (!grown)
			return -ENOMEM;
		s->v = grown;
		s->cap = cap;
	}
	s->v[s->n++] = (struct named){ .id = id,
				       .version = version,
				       .recorded = recorded };
	return 0;
}

static int cmp_named(const void *a, const void *b)
{
	const struct named *x = a, *y = b;

	return x->id < y->id ? -1 : x->id > y->id;
}

static void ids_sort(struct ids *s)
{
	if (s->n)
		qsort(s->v, s->n, sizeof(*s->v), cmp_named);
}

static struct named *ids_find(const struct ids *s, uint64_t id)
{
	struct named key = { .id = id };

	return s->n ? bsearch(&key, s->v, s->n, sizeof(*s->v), cmp_named)
		    : NULL;
}

struct recovery {
	struct engine *e;
	struct ids dram;  /* backing files on DRAM that something names */
	struct ids files; /* on NVMe */
	struct ids live;  /* versions of the accepted or the durable state */
	struct ids accepted;
	struct ids copies; /* files on NVMe that a copy's record names */
	struct ids dead;   /* copies of versions that no state knows */
	uint64_t n_removed;
};

/* ---- what is named ---------------------------------------------------- */

/* Waiting for what is gone would hold up all that came after it. */
static bool is_there(struct engine *e, const struct version_rec *rec)
{
	struct tier *t = backing_tier(e, (enum backing_where)rec->where);
	int fd, r;

	r = t->ops->open(t, rec->backing, O_RDONLY, &fd);
	if (r == 0)
		close(fd);
	else
		message_error("inode %lu: its content is gone: %s",
			      (unsigned long)rec->ino, strerror(-r));
	return r != -ENOENT;
}

static int requeue(struct engine *e, const struct version_rec *rec,
		   bool unsealed_backing)
{
	struct version *v;

	if (!is_there(e, rec))
		return 0;
	v = version_new(rec->id, rec->ino, rec->size);
	if (!v)
		return -ENOMEM;
	v->seq = rec->seq;
	v->final = !(rec->flags & VERSION_SNAPSHOT) && !unsealed_backing;
	v->backing = backing_adopt(e, rec->backing,
				   (enum backing_where)rec->where,
				   unsealed_backing ? 0 : rec->id, 0);
	if (!v->backing) {
		free(v);
		return -ENOMEM;
	}
	version_insert(e, v);
	return 0;
}

static int accepted_version(void *arg, const struct version_rec *rec)
{
	struct recovery *rc = arg;
	bool recorded = rec->seq <= meta_nvme_seq(rc->e->meta);
	struct ids *s = rec->where == BACKING_DRAM ? &rc->dram : &rc->files;
	int r;

	r = ids_add(&rc->accepted, rec->id, 0, false);
	if (r == 0)
		r = ids_add(&rc->live, rec->id, 0, false);
	if (r < 0 || !rec->backing)
		return r;
	return ids_add(s, rec->backing, rec->id, recorded);
}

/* After the unsealed ones are known. */
static int requeue_version(void *arg, const struct version_rec *rec)
{
	struct recovery *rc = arg;
	struct named *n;

	if (rec->seq <= meta_nvme_seq(rc->e->meta) || !rec->backing)
		return 0;
	n = ids_find(rec->where == BACKING_DRAM ? &rc->dram : &rc->files,
		     rec->backing);
	return requeue(rc->e, rec, n && n->version == 0);
}

static int durable_version(void *arg, const struct version_rec *rec)
{
	struct recovery *rc = arg;

	if (!ids_find(&rc->accepted, rec->id))
		follow_dead(rc->e, rec->id, meta_accepted_seq(rc->e->meta));
	return ids_add(&rc->live, rec->id, 0, false);
}

static int unsealed_file(void *arg, const struct unsealed_rec *u)
{
	struct recovery *rc = arg;
	struct ids *s = u->where == BACKING_DRAM ? &rc->dram : &rc->files;

	/* Twice with the sealed version's, if written in place: then it is
	 * the unsealed content's. */
	for (size_t i = 0; i < s->n; i++)
		if (s->v[i].id == u->backing) {
			s->v[i].version = 0;
			s->v[i].recorded = false;
			return 0;
		}
	return ids_add(s, u->backing, 0, false);
}

static int copy_seen(void *arg, const struct copy_rec *c)
{
	struct recovery *rc = arg;

	if (!ids_find(&rc->live, c->version))
		return ids_add(&rc->dead, c->version, 0, false);
	return c->tier == COPY_NVME && c->kind == COPY_FILE
		       ? ids_add(&rc->copies, c->file, c->version, true)
		       : 0;
}

/* ---- DRAM ------------------------------------------------------------- */

static int dram_file(void *arg, uint64_t id, uint64_t blocks)
{
	struct recovery *rc = arg;
	struct engine *e = rc->e;
	struct named *n = ids_find(&rc->dram, id);
	struct version_rec rec;
	struct backing *b;

	if (!n || (n->version &&
		   view_version(meta_accepted(e->meta), n->version, &rec))) {
		rc->n_removed++;
		return e->dram->ops->remove(e->dram, id);
	}
	b = backing_adopt(e, id, BACKING_DRAM, n->version, blocks * 512);
	if (!b)
		return -ENOMEM;
	backing_set_charge(e, b, blocks * 512);
	reserve_charge(e->reserve, blocks * 512);
	if (n->version && n->recorded)
		backing_recorded(e, n->version, 0);
	backing_put(e, b); /* an unsealed one is held by its inode */
	return 0;
}

/* ---- NVMe ------------------------------------------------------------- */

static int nvme_file(void *arg, uint64_t id, uint64_t blocks)
{
	struct recovery *rc = arg;
	struct named *copy = ids_find(&rc->copies, id);

	(void)blocks;
	if (copy)
		copy->seen = true;
	if (copy || ids_find(&rc->files, id))
		return 0;
	rc->n_removed++;
	return rc->e->nvme->ops->remove(rc->e->nvme, id);
}

/* Evicted right before the power was cut: the file's end came to the disk, the
 * record's did not. The remote has it. */
static int forget_copy(struct engine *e, uint64_t version)
{
	CLEANUP(copy_rec_fini) struct copy_rec c = { 0 };
	int r = meta_copy(e->meta, version, COPY_REMOTE, &c);

	if (r == 0)
		return meta_del_copy(e->meta, version, COPY_NVME);
	message_error("version %016lx: its file on NVMe is gone",
		      (unsigned long)version);
	return r == -ENOENT ? 0 : r;
}

static int sweep_nvme(struct recovery *rc)
{
	struct engine *e = rc->e;
	int r;

	r = meta_copies(e->meta, copy_seen, rc);
	ids_sort(&rc->files);
	ids_sort(&rc->copies);
	for (size_t i = 0; i < rc->dead.n && r == 0; i++)
		r = meta_del_copies(e->meta, &rc->dead.v[i].id, 1);
	if (r == 0)
		r = e->nvme->ops->each(e->nvme, nvme_file, rc);
	for (size_t i = 0; i < rc->copies.n && r == 0; i++)
		if (!rc->copies.v[i].seen)
			r = forget_copy(e, rc->copies.v[i].version);
	return r;
}

/* ---- open state ------------------------------------------------------- */

static int forget_orphan(void *arg, uint64_t ino)
{
	return ids_add(arg, ino, 0, false);
}

static int gather_unsealed(void *arg, const struct unsealed_rec *u)
{
	return ids_add(arg, u->ino, u->backing, u->where == BACKING_DRAM);
}

static int revive(struct engine *e, const struct named *n)
{
	struct inode_rec rec;
	struct backing *b;
	struct inode *in;
	bool fresh;
	int r;

	if (view_inode(meta_accepted(e->meta), n->id, &rec))
		return 0; /* its name was never committed, or went */
	r = inode_get(e, n->id, &fresh, &in);
	if (r < 0)
		return r;
	b = backing_adopt(e, n->version,
			  n->recorded ? BACKING_DRAM : BACKING_NVME, 0, 0);
	if (!b) {
		inode_put(e, in);
		return -ENOMEM;
	}
	mutex_lock(&in->lock);
	r = inode_use_backing_locked(e, in, b);
	if (r == 0) {
		inode_begin_write_locked(e, in);
		in->rdwr = true; /* in doubt */
	}
	mutex_unlock(&in->lock);
	if (r == 0)
		mark_add(e, in);
	else
		message_error("inode %lu: its unsealed content is gone: %s",
			      (unsigned long)n->id, strerror(-r));
	inode_put(e, in);
	return 0;
}

static int drop_orphan(struct engine *e, uint64_t ino)
{
	struct inode *in;
	bool fresh;
	int r;

	r = inode_get(e, ino, &fresh, &in);
	if (r < 0)
		return r;
	in->orphan = true;
	inode_put(e, in);
	return 0;
}

/* When the unsealed content was last written. */
static int64_t changed_ns(struct engine *e, const struct named *n)
{
	struct tier *t = n->recorded ? e->dram : e->nvme;
	struct stat st = { 0 };
	int fd;

	if (t->ops->open(t, n->version, O_RDONLY, &fd))
		return 0;
	(void)!fstat(fd, &st);
	close(fd);
	return ns_of_timespec(st.st_ctim);
}

static int cmp_changed(const void *a, const void *b)
{
	const struct named *x = a, *y = b;

	if (x->changed_ns != y->changed_ns)
		return x->changed_ns < y->changed_ns ? -1 : 1;
	return cmp_named(a, b);
}

/* Several were closed, or open, when the daemon died: they are sealed in the
 * order in which they were written, so that `latest` comes last. */
static void sort_by_change(struct engine *e, struct ids *s)
{
	for (size_t i = 0; i < s->n; i++)
		s->v[i].changed_ns = changed_ns(e, &s->v[i]);
	if (s->n)
		qsort(s->v, s->n, sizeof(*s->v), cmp_changed);
}

static int revive_all(struct engine *e)
{
	struct ids s = { 0 };
	int r;

	r = meta_orphans(e->meta, forget_orphan, &s);
	for (size_t i = 0; i < s.n && r == 0; i++)
		r = drop_orphan(e, s.v[i].id);
	s.n = 0;
	if (r == 0)
		r = meta_unsealed(e->meta, gather_unsealed, &s);
	if (r == 0)
		sort_by_change(e, &s);
	for (size_t i = 0; i < s.n && r == 0; i++)
		r = revive(e, &s.v[i]);
	free(s.v);
	return r;
}

static int carry_on(struct recovery *rc)
{
	struct engine *e = rc->e;
	int r;

	r = meta_unsealed(e->meta, unsealed_file, rc);
	if (r < 0)
		return r;
	ids_sort(&rc->dram);
	ids_sort(&rc->files);
	r = view_versions(meta_accepted(e->meta), requeue_version, rc);
	if (r == 0)
		r = revive_all(e);
	if (r == 0)
		r = e->dram->ops->each(e->dram, dram_file, rc);
	return r;
}

int recover_tiers(struct engine *e)
{
	struct recovery rc = { .e = e };
	struct view *durable = NULL;
	int r;

	r = view_versions(meta_accepted(e->meta), accepted_version, &rc);
	ids_sort(&rc.accepted);
	if (r == 0)
		r = meta_durable_view(e->meta, &durable);
	if (r == 0)
		r = view_versions(durable, durable_version, &rc);
	ids_sort(&rc.live);
	if (r == 0 && e->opened.start != META_CARRIED_ON)
		rc.dram.n = 0;
	if (r == 0)
		r = carry_on(&rc);
	if (r == 0)
		r = sweep_nvme(&rc);
	if (rc.n_removed)
		message_info("%lu backing files that nothing names removed",
			     (unsigned long)rc.n_removed);
	view_free(durable);
	free(rc.dram.v);
	free(rc.files.v);
	free(rc.live.v);
	free(rc.accepted.v);
	free(rc.copies.v);
	free(rc.dead.v);
	return r;
}
