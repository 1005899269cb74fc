/* SPDX-License-Identifier: Apache-2.0 */
/* A sound state has no findings; each injected fault has its own. */
#include "tests/unit/metadata_fixture.h"

struct found {
	const char *want;
	int hits;
};

static void take(void *arg, const char *line)
{
	struct found *f = arg;

	f->hits += !!strstr(line, f->want);
}

static void finds(struct meta *m, const char *want)
{
	struct found f = { .want = want };
	uint64_t n;

	advance_all(m);
	CHECK_EQ(meta_fsck(m, take, &f, &n), 0);
	if (!f.hits)
		fprintf(stderr, "not found: %s (%llu findings)\n", want,
			(unsigned long long)n);
	CHECK(f.hits > 0);
}

static void sound(struct meta *m)
{
	uint64_t n;

	advance_all(m);
	CHECK_EQ(meta_fsck(m, NULL, NULL, &n), 0);
	CHECK_EQ(n, 0);
}

static uint64_t sealed(struct meta *m, const char *name, uint64_t *version)
{
	uint64_t ino = make_file(m, META_ROOT_INO, name);
	struct copy_rec c;

	*version = seal_file(m, ino, 100);
	c = file_copy(*version, 100);
	CHECK_EQ(meta_put_copy(m, &c, true), 0);
	return ino;
}

static void change(struct meta *m, uint64_t ino, struct inode_rec *old,
		   void (*fn)(struct inode_rec *))
{
	struct inode_rec rec;
	struct txn *t = txn_begin(m);

	CHECK_EQ(view_inode(meta_accepted(m), ino, &rec), 0);
	*old = rec;
	fn(&rec);
	txn_put_inode(t, &rec);
	commit_ok(t);
}

static void put_back(struct meta *m, const struct inode_rec *old)
{
	struct txn *t = txn_begin(m);

	txn_put_inode(t, old);
	commit_ok(t);
	sound(m);
}

static void more_links(struct inode_rec *r)
{
	r->nlink++;
}

static void other_size(struct inode_rec *r)
{
	r->size++;
}

static void other_version(struct inode_rec *r)
{
	r->version++;
}

static void other_type(struct inode_rec *r)
{
	r->mode = S_IFIFO;
}

static void other_parent(struct inode_rec *r)
{
	r->parent = r->ino;
}

static void records(struct meta *m, uint64_t ino, uint64_t dir)
{
	struct inode_rec old;

	change(m, ino, &old, more_links);
	finds(m, "link count 2, has 1 names");
	put_back(m, &old);
	change(m, dir, &old, more_links);
	finds(m, "directory with link count");
	put_back(m, &old);
	change(m, ino, &old, other_size);
	finds(m, "but its version has 100");
	put_back(m, &old);
	change(m, ino, &old, other_version);
	finds(m, "does not exist");
	put_back(m, &old);
	change(m, ino, &old, other_type);
	finds(m, "of another type");
	put_back(m, &old);
	change(m, dir, &old, other_parent);
	finds(m, "not reachable");
	finds(m, "but its name is in");
	put_back(m, &old);
}

static void copies(struct meta *m, uint64_t version)
{
	struct copy_rec c = file_copy(version, 99);
	struct copy_rec good = file_copy(version, 100);

	CHECK_EQ(meta_put_copy(m, &c, true), 0);
	finds(m, "but a copy of 99");
	CHECK_EQ(meta_del_copies(m, &version, 1), 0);
	finds(m, "no copy");
	c = file_copy(version, 100);
	c.kind = COPY_SMALL;
	CHECK_EQ(meta_put_copy(m, &c, true), 0);
	finds(m, "small content is missing");
	c = file_copy(version, 100);
	c.n_chunks = 0;
	CHECK_EQ(meta_put_copy(m, &c, true), 0);
	finds(m, "0 checksums for 1 chunks");
	CHECK_EQ(meta_put_copy(m, &good, true), 0);
	sound(m);
}

/* Entries that lie: what a wrong txn_del_dentry() leaves. */
static void entries(struct meta *m)
{
	uint64_t version, ino = sealed(m, "lie", &version);
	struct dentry_rec d, wrong;
	struct txn *t;

	sound(m);
	CHECK_EQ(view_lookup(meta_accepted(m), META_ROOT_INO, "lie", &d), 0);
	wrong = d;
	wrong.ino = 12345;
	wrong.cookie = 54321;
	t = txn_begin(m);
	txn_del_dentry(t, META_ROOT_INO, "lie", &wrong);
	commit_ok(t);
	finds(m, "leads elsewhere");
	finds(m, "listed but not there");
	t = txn_begin(m);
	txn_del_dentry(t, META_ROOT_INO, "lie", &d);
	commit_ok(t);
	finds(m, "no name and no orphan");
	t = txn_begin(m);
	txn_put_orphan(t, ino);
	txn_put_xattr(t, 999, "user.x", "", 0);
	commit_ok(t);
	finds(m, "xattr of inode 3e7");
	t = txn_begin(m);
	txn_del_xattr(t, 999, "user.x");
	txn_put_dentry(t, META_ROOT_INO, "dangling", 777, S_IFREG);
	txn_del_inode(t, &(struct inode_rec){ .ino = ino });
	commit_ok(t);
	finds(m, "inode 309 does not exist");
	finds(m, "orphan mark of inode");
	finds(m, "version ");
}

int main(void)
{
	uint64_t dir, ino, version;
	struct world w;

	world_init(&w);
	dir = make_dir(w.m, META_ROOT_INO, "d");
	make_dir(w.m, dir, "sub");
	ino = sealed(w.m, "f", &version);
	sound(w.m);
	records(w.m, ino, dir);
	copies(w.m, version);
	entries(w.m);
	world_close(&w);
	return 0;
}
