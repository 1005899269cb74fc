/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small world for the tests of metadata/: both folders below a temporary
 * one, and short ways to do what an engine does.
 */
#ifndef CKPT_TESTS_UNIT_METADATA_FIXTURE_H
#define CKPT_TESTS_UNIT_METADATA_FIXTURE_H

#include "metadata/metadata.h"
#include "tests/unit/check.h"

struct world {
	char accepted[PATH_MAX + 16], durable[PATH_MAX + 16];
	struct meta_config config;
	struct meta_opened opened;
	struct meta *m;
};

__attribute__((unused)) static void world_open(struct world *w)
{
	memset(&w->opened, 0, sizeof(w->opened));
	CHECK_EQ(meta_open(&w->config, &w->opened, &w->m), 0);
}

__attribute__((unused)) static void world_close(struct world *w)
{
	meta_close(w->m);
	w->m = NULL;
}

__attribute__((unused)) static void world_init(struct world *w)
{
	const char *dir = check_tmpdir();

	memset(w, 0, sizeof(*w));
	snprintf(w->accepted, sizeof(w->accepted), "%s/accepted", dir);
	snprintf(w->durable, sizeof(w->durable), "%s/durable", dir);
	CHECK(!mkdir(w->accepted, 0700));
	CHECK(!mkdir(w->durable, 0700));
	w->config = (struct meta_config){ .accepted_dir = w->accepted,
					  .durable_dir = w->durable,
					  .keep_events = true };
	world_open(w);
}

/* The host loses power: what was in DRAM is gone. */
__attribute__((unused)) static void world_power_cut(struct world *w)
{
	world_close(w);
	check_remove(w->accepted);
	CHECK(!mkdir(w->accepted, 0700));
	world_open(w);
}

/* The daemon dies and comes back. */
__attribute__((unused)) static void world_restart(struct world *w)
{
	world_close(w);
	world_open(w);
}

__attribute__((unused)) static uint64_t commit_ok(struct txn *t)
{
	uint64_t seq = 0;

	CHECK_EQ(txn_commit(t, &seq), 0);
	return seq;
}

__attribute__((unused)) static void put_parent(struct txn *t, struct meta *m,
					       uint64_t parent, int links)
{
	struct inode_rec dir;

	CHECK_EQ(view_inode(meta_accepted(m), parent, &dir), 0);
	dir.nlink += (uint32_t)links;
	dir.mtime_ns++;
	txn_put_inode(t, &dir);
}

/* An unsealed regular file. Returns its inode number. */
__attribute__((unused)) static uint64_t make_file(struct meta *m,
						  uint64_t parent,
						  const char *name)
{
	struct inode_rec rec = { .ino = meta_new_ino(m),
				 .mode = S_IFREG | 0644,
				 .nlink = 1 };
	struct unsealed_rec u = { .ino = rec.ino,
				  .backing = meta_new_version(m) };
	struct txn *t = txn_begin(m);

	put_parent(t, m, parent, 0);
	txn_put_inode(t, &rec);
	txn_put_dentry(t, parent, name, rec.ino, rec.mode);
	txn_put_unsealed(t, &u);
	commit_ok(t);
	return rec.ino;
}

__attribute__((unused)) static uint64_t make_dir(struct meta *m,
						 uint64_t parent,
						 const char *name)
{
	struct inode_rec rec = { .ino = meta_new_ino(m),
				 .mode = S_IFDIR | 0755,
				 .nlink = 2,
				 .parent = parent };
	struct txn *t = txn_begin(m);

	put_parent(t, m, parent, 1);
	txn_put_inode(t, &rec);
	txn_put_dentry(t, parent, name, rec.ino, rec.mode);
	commit_ok(t);
	return rec.ino;
}

/* Seals ino with `size` bytes. Returns the version's id. */
__attribute__((unused)) static uint64_t seal_file(struct meta *m, uint64_t ino,
						  uint64_t size)
{
	struct version_rec v = { .id = meta_new_version(m),
				 .ino = ino,
				 .size = size,
				 .backing = 7 };
	struct inode_rec rec;
	struct txn *t = txn_begin(m);

	CHECK_EQ(view_inode(meta_accepted(m), ino, &rec), 0);
	if (rec.version)
		txn_del_version(t, rec.version);
	rec.version = v.id;
	rec.size = size;
	txn_put_inode(t, &rec);
	txn_put_version(t, &v);
	txn_del_unsealed(t, ino);
	commit_ok(t);
	return v.id;
}

/* Takes a name away, and the inode with its last one. */
__attribute__((unused)) static void unlink_file(struct meta *m, uint64_t parent,
						const char *name)
{
	struct dentry_rec d;
	struct inode_rec rec;
	struct txn *t = txn_begin(m);

	CHECK_EQ(view_lookup(meta_accepted(m), parent, name, &d), 0);
	CHECK_EQ(view_inode(meta_accepted(m), d.ino, &rec), 0);
	put_parent(t, m, parent, 0);
	txn_del_dentry(t, parent, name, &d);
	if (--rec.nlink) {
		txn_put_inode(t, &rec);
	} else {
		txn_del_inode(t, &rec);
		if (rec.version)
			txn_del_version(t, rec.version);
		txn_del_unsealed(t, d.ino);
	}
	txn_frees(t);
	commit_ok(t);
}

__attribute__((unused)) static struct copy_rec file_copy(uint64_t version,
							 uint64_t size)
{
	static uint32_t crc = 0x1234;

	return (struct copy_rec){ .version = version,
				  .tier = COPY_NVME,
				  .kind = COPY_FILE,
				  .file = version,
				  .size = size,
				  .chunk_len = 4 << 20,
				  .n_chunks = size ? 1 : 0,
				  .crcs = &crc,
				  .verified = true };
}

/* D := everything, with no copies. */
__attribute__((unused)) static void advance_all(struct meta *m)
{
	uint64_t a = meta_accepted_seq(m);

	if (a > meta_nvme_seq(m))
		CHECK_EQ(meta_advance(m, a, NULL, 0, NULL, 0), 0);
}

/* ---- a whole state as text -------------------------------------------- */

struct dump {
	const struct view *v;
	FILE *f;
	const char *path;
};

static void dump_dir(const struct view *v, FILE *f, uint64_t dir,
		     const char *path);

static int dump_xattr(void *arg, const char *name, const void *value,
		      size_t len)
{
	struct dump *d = arg;

	fprintf(d->f, "  xattr %s=%.*s\n", name, (int)len, (const char *)value);
	return 0;
}

static int dump_entry(void *arg, const char *name, const struct dentry_rec *e)
{
	struct dump *d = arg;
	struct inode_rec r;
	struct version_rec ver;
	char path[META_PATH_MAX], target[META_PATH_MAX] = "";

	CHECK_EQ(view_inode(d->v, e->ino, &r), 0);
	CHECK((size_t)snprintf(path, sizeof(path), "%s/%s", d->path, name) <
	      sizeof(path));
	fprintf(d->f,
		"%s ino=%llx cookie=%llx mode=%o uid=%u nlink=%u size=%llu "
		"mtime=%lld version=%llx seq=%llx\n",
		path, (unsigned long long)r.ino, (unsigned long long)e->cookie,
		r.mode, r.uid, r.nlink, (unsigned long long)r.size,
		(long long)r.mtime_ns, (unsigned long long)r.version,
		(unsigned long long)r.seq);
	if (r.version) {
		CHECK_EQ(view_version(d->v, r.version, &ver), 0);
		fprintf(d->f, "  version ino=%llx size=%llu seq=%llx\n",
			(unsigned long long)ver.ino,
			(unsigned long long)ver.size,
			(unsigned long long)ver.seq);
	}
	if (S_ISLNK(r.mode)) {
		CHECK_EQ(view_symlink(d->v, r.ino, target), 0);
		fprintf(d->f, "  -> %s\n", target);
	}
	CHECK_EQ(view_xattrs(d->v, r.ino, dump_xattr, d), 0);
	if (S_ISDIR(r.mode))
		dump_dir(d->v, d->f, r.ino, path);
	return 0;
}

static void dump_dir(const struct view *v, FILE *f, uint64_t dir,
		     const char *path)
{
	struct dump d = { v, f, path };

	CHECK_EQ(view_readdir(v, dir, 0, dump_entry, &d), 0);
}

/* malloc'ed */
__attribute__((unused)) static char *dump_state(const struct view *v)
{
	struct inode_rec root;
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	CHECK(f);
	CHECK_EQ(view_inode(v, META_ROOT_INO, &root), 0);
	fprintf(f, "/ mode=%o nlink=%u seq=%llx\n", root.mode, root.nlink,
		(unsigned long long)root.seq);
	dump_dir(v, f, META_ROOT_INO, "");
	CHECK(!fclose(f));
	return text;
}

__attribute__((unused)) static char *dump_durable(struct meta *m)
{
	struct view *v;
	char *text;

	CHECK_EQ(meta_durable_view(m, &v), 0);
	text = dump_state(v);
	view_free(v);
	return text;
}

__attribute__((unused)) static void check_same(const char *a, const char *b)
{
	if (strcmp(a, b) == 0)
		return;
	fprintf(stderr, "---- one\n%s---- other\n%s----\n", a, b);
	check_failed();
}

#endif
