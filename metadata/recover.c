/* SPDX-License-Identifier: Apache-2.0 */
/*
 * After a power cut the durable state is what the mount goes on with: a
 * prefix of the log, so consistent but for what its end cut short. Files
 * that had not been sealed yet have no content and go; inodes that lived on
 * only because somebody held them open go; link counts follow. It is
 * corrected in place, in one synced batch, and then copied to the accepted
 * database, so that both states are the same again.
 *
 * One pass, in the order of inode numbers, over three families at once: an
 * inode, its names (key begins with the inode), and the entries in it if it
 * is a directory (key begins with the parent).
 */
#include <errno.h>
#include <sys/stat.h>

#include "metadata/internal.h"
#include "metadata/keys.h"
#include "metadata/record.h"

struct pass {
	struct store *s;
	struct cursor inode, name, entry;
	struct bytes ops;
	uint64_t n_dropped;
};

static void pass_fini(struct pass *p)
{
	cursor_close(&p->inode);
	cursor_close(&p->name);
	cursor_close(&p->entry);
	bytes_fini(&p->ops);
}

static uint64_t key_head(const struct cursor *c)
{
	struct slice k = cursor_key(c);

	return k.len >= 8 ? get_be64(k.p) : 0;
}

static int got_dentry(void *arg, const void *val, size_t len)
{
	return dentry_decode(val, len, arg);
}

/* Deletes (parent, name) -> ino with all that belongs to it. */
static int drop_entry(struct pass *p, uint64_t ino, uint64_t parent,
		      const char *name)
{
	struct dentry_rec d;
	struct key key;
	int err = key_link(&key, ino, parent, name);

	if (err)
		return -EUCLEAN;
	op_del(&p->ops, CF_NAME, key_slice(&key));
	err = key_named(&key, parent, name);
	if (!err)
		err = store_get(p->s, NULL, CF_DENTRY, key_slice(&key),
				got_dentry, &d);
	if (err == -ENOENT || (!err && d.ino != ino))
		return 0;
	if (err)
		return err;
	op_del(&p->ops, CF_DENTRY, key_slice(&key));
	key_pair(&key, parent, d.cookie);
	op_del(&p->ops, CF_COOKIE, key_slice(&key));
	return 0;
}

/* Names of inodes below `ino`, which are none; then those of ino. */
static int take_names(struct pass *p, uint64_t ino, bool drop, uint64_t *n)
{
	*n = 0;
	for (; cursor_valid(&p->name); cursor_next(&p->name)) {
		struct slice k = cursor_key(&p->name);
		uint64_t of = key_head(&p->name);
		char name[META_NAME_MAX + 1];
		int err;

		if (of > ino)
			break;
		if (of == ino && !drop) {
			++*n;
			continue;
		}
		err = key_tail(k.p, k.len, 16, name);
		if (!err)
			err = drop_entry(p, of,
					 get_be64((const uint8_t *)k.p + 8),
					 name);
		if (err)
			return err;
		if (of == ino)
			p->n_dropped++;
	}
	return 0;
}

/* Entries of directories below `ino`, which are none; then those of ino. */
static int take_entries(struct pass *p, uint64_t ino, uint64_t *n,
			uint64_t *n_dirs)
{
	*n = *n_dirs = 0;
	for (; cursor_valid(&p->entry); cursor_next(&p->entry)) {
		struct slice k = cursor_key(&p->entry);
		struct slice v = cursor_val(&p->entry);
		uint64_t of = key_head(&p->entry);
		char name[META_NAME_MAX + 1];
		struct dentry_rec d;
		int err;

		if (of > ino)
			break;
		err = dentry_decode(v.p, v.len, &d);
		if (!err && of < ino) {
			err = key_tail(k.p, k.len, 8, name);
			if (!err)
				err = drop_entry(p, d.ino, of, name);
		}
		if (err)
			return err;
		*n += of == ino;
		*n_dirs += of == ino && S_ISDIR(d.type);
	}
	return 0;
}

static int drop_xattr(void *arg, struct slice key, struct slice val)
{
	(void)val;
	op_del(arg, CF_XATTR, key);
	return 0;
}

static int drop_inode(struct pass *p, const struct inode_rec *rec)
{
	struct key key;

	key_number(&key, rec->ino);
	op_del(&p->ops, CF_INODE, key_slice(&key));
	if (S_ISLNK(rec->mode))
		op_del(&p->ops, CF_SYMLINK, key_slice(&key));
	if (rec->version) {
		struct key version;

		key_number(&version, rec->version);
		op_del(&p->ops, CF_VERSION, key_slice(&version));
	}
	return store_scan_prefix(p->s, NULL, CF_XATTR, key_slice(&key),
				 (struct slice){ 0 }, drop_xattr, &p->ops);
}

static void put_nlink(struct pass *p, struct inode_rec *rec, uint64_t nlink)
{
	struct key key;
	uint8_t *to;

	rec->nlink = (uint32_t)nlink;
	key_number(&key, rec->ino);
	to = op_put_room(&p->ops, CF_INODE, key_slice(&key), INODE_LEN);
	if (to)
		inode_encode(to, rec);
}

static int correct_inode(struct pass *p, struct inode_rec *rec)
{
	bool never_sealed = S_ISREG(rec->mode) && !rec->version;
	uint64_t n_names, n_entries, n_dirs, want;
	int err = take_names(p, rec->ino, never_sealed, &n_names);

	if (!err)
		err = take_entries(p, rec->ino, &n_entries, &n_dirs);
	if (err)
		return err;
	if (rec->ino != META_ROOT_INO && !n_names && !n_entries)
		return drop_inode(p, rec);
	want = S_ISDIR(rec->mode) ? 2 + n_dirs : n_names;
	if (want != rec->nlink)
		put_nlink(p, rec, want);
	return 0;
}

static int drop_orphan(void *arg, struct slice key, struct slice val)
{
	(void)val;
	op_del(arg, CF_ORPHAN, key);
	return 0;
}

static int correct_all(struct pass *p)
{
	uint64_t n, n_dirs;
	int err = 0;

	for (; !err && cursor_valid(&p->inode); cursor_next(&p->inode)) {
		struct slice v = cursor_val(&p->inode);
		struct inode_rec rec;

		err = inode_decode(v.p, v.len, key_head(&p->inode), &rec);
		if (!err)
			err = correct_inode(p, &rec);
	}
	if (!err)
		err = cursor_error(&p->inode);
	/* What is left belongs to no inode. */
	if (!err)
		err = take_names(p, UINT64_MAX, false, &n);
	if (!err)
		err = take_entries(p, UINT64_MAX, &n, &n_dirs);
	if (!err)
		err = cursor_error(&p->name);
	if (!err)
		err = cursor_error(&p->entry);
	if (!err)
		err = store_scan(p->s, NULL, CF_ORPHAN, (struct slice){ 0 },
				 (struct slice){ 0 }, drop_orphan, &p->ops);
	return err;
}

int recover_durable(struct store *durable, uint64_t *n_dropped)
{
	CLEANUP(pass_fini) struct pass p = { .s = durable };
	struct slice run;
	int err = cursor_open(&p.inode, durable, CF_INODE);

	if (!err)
		err = cursor_open(&p.name, durable, CF_NAME);
	if (!err)
		err = cursor_open(&p.entry, durable, CF_DENTRY);
	if (!err)
		err = correct_all(&p);
	if (!err && p.ops.failed)
		err = -ENOMEM;
	if (err)
		return err;
	/* A failed write may reopen the database: no cursor outlives this. */
	cursor_close(&p.inode);
	cursor_close(&p.name);
	cursor_close(&p.entry);
	run = bytes_slice(&p.ops);
	err = p.ops.len ? store_write(durable, &run, 1, true) : 0;
	if (!err)
		*n_dropped = p.n_dropped;
	return err;
}
