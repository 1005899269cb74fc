/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a state. A view is a store and, for a durable one, a snapshot of
 * it; every question is one look-up or one scan of a prefix.
 */
#include <errno.h>

#include "metadata/internal.h"
#include "metadata/keys.h"
#include "metadata/record.h"

const struct view *meta_accepted(const struct meta *m)
{
	return &m->accepted_view;
}

int meta_durable_view(struct meta *m, struct view **out)
{
	struct view *v = calloc(1, sizeof(*v));
	int err;

	if (!v)
		return -ENOMEM;
	v->m = m;
	v->store = &m->durable;
	v->snap = &v->own;
	err = snapshot_take(v->store, &v->own);
	if (err) {
		free(v);
		return err;
	}
	*out = v;
	return 0;
}

void view_free(struct view *v)
{
	if (!v)
		return;
	snapshot_release(v->store, &v->own);
	free(v);
}

uint64_t view_seq(const struct view *v)
{
	return v->snap ? v->own.seq : meta_accepted_seq(v->m);
}

/* ---- single records --------------------------------------------------- */

static int get(const struct view *v, enum cf cf, const struct key *key,
	       value_fn *fn, void *arg)
{
	return store_get(v->store, v->snap, cf, key_slice(key), fn, arg);
}

static int got_inode(void *arg, const void *val, size_t len)
{
	struct inode_rec *rec = arg;

	return inode_decode(val, len, rec->ino, rec);
}

int view_inode(const struct view *v, uint64_t ino, struct inode_rec *out)
{
	struct inode_rec rec = { .ino = ino };
	struct key key;
	int err;

	key_number(&key, ino);
	err = get(v, CF_INODE, &key, got_inode, &rec);
	if (!err)
		*out = rec;
	return err;
}

static int got_dentry(void *arg, const void *val, size_t len)
{
	return dentry_decode(val, len, arg);
}

int view_lookup(const struct view *v, uint64_t parent, const char *name,
		struct dentry_rec *out)
{
	struct key key;
	int err = key_named(&key, parent, name);

	return err ? err : get(v, CF_DENTRY, &key, got_dentry, out);
}

static int got_version(void *arg, const void *val, size_t len)
{
	struct version_rec *rec = arg;

	return version_decode(val, len, rec->id, rec);
}

int view_version(const struct view *v, uint64_t version,
		 struct version_rec *out)
{
	struct version_rec rec = { .id = version };
	struct key key;
	int err;

	key_number(&key, version);
	err = get(v, CF_VERSION, &key, got_version, &rec);
	if (!err)
		*out = rec;
	return err;
}

struct room {
	void *buf;
	size_t len; /* in: of buf; out: of the value */
};

static int got_plain(void *arg, const void *val, size_t len)
{
	struct room *r = arg;
	size_t room = r->len;
	struct slice s;
	int err = plain_decode(val, len, &s);

	if (err)
		return err;
	r->len = s.len;
	if (!r->buf)
		return 0;
	if (s.len > room)
		return -ERANGE;
	memcpy(r->buf, s.p, s.len);
	return 0;
}

int view_xattr(const struct view *v, uint64_t ino, const char *name, void *buf,
	       size_t *len)
{
	struct room r = { buf, *len };
	struct key key;
	int err = key_named(&key, ino, name);

	/* The kernel asks at the first write to each file. */
	if (!err && !v->snap && !v->m->any_xattr)
		return -ENODATA;
	if (!err)
		err = get(v, CF_XATTR, &key, got_plain, &r);
	if (!err || err == -ERANGE)
		*len = r.len;
	return err == -ENOENT ? -ENODATA : err;
}

int view_symlink(const struct view *v, uint64_t ino, char *buf)
{
	struct room r = { buf, META_PATH_MAX - 1 };
	struct key key;
	int err;

	key_number(&key, ino);
	err = get(v, CF_SYMLINK, &key, got_plain, &r);
	if (!err)
		buf[r.len] = '\0';
	return err == -ERANGE ? -EUCLEAN : err;
}

/* ---- runs of records -------------------------------------------------- */

struct each {
	union {
		dentry_fn *dentry;
		xattr_fn *xattr;
		name_fn *name;
		version_fn *version;
		unsealed_fn *unsealed;
		ino_fn *ino;
	} fn;
	void *arg;
};

static int each_dentry(void *arg, struct slice key, struct slice val)
{
	const struct each *e = arg;
	char name[META_NAME_MAX + 1];
	struct dentry_rec d;
	int err;

	if (key.len != 16)
		return -EUCLEAN;
	err = cookie_decode(val.p, val.len,
			    get_be64((const uint8_t *)key.p + 8), &d, name);
	return err ? err : e->fn.dentry(e->arg, name, &d);
}

int view_readdir(const struct view *v, uint64_t dir, uint64_t after,
		 dentry_fn *fn, void *arg)
{
	struct each e = { .fn.dentry = fn, .arg = arg };
	struct key prefix, last;

	key_number(&prefix, dir);
	key_pair(&last, dir, after);
	return store_scan_prefix(v->store, v->snap, CF_COOKIE,
				 key_slice(&prefix), key_slice(&last),
				 each_dentry, &e);
}

uint64_t meta_last_cookie(const struct meta *m)
{
	return ((meta_accepted_seq(m) + 1) << COOKIE_BITS) - 1;
}

static int stop(void *arg, struct slice key, struct slice val)
{
	(void)arg;
	(void)key;
	(void)val;
	return 1;
}

int view_dir_is_empty(const struct view *v, uint64_t dir, bool *out)
{
	struct key prefix;
	int n;

	key_number(&prefix, dir);
	n = store_scan_prefix(v->store, v->snap, CF_COOKIE, key_slice(&prefix),
			      (struct slice){ 0 }, stop, NULL);
	if (n < 0)
		return n;
	*out = n == 0;
	return 0;
}

static int each_xattr(void *arg, struct slice key, struct slice val)
{
	const struct each *e = arg;
	char name[META_NAME_MAX + 1];
	struct slice s;
	int err = key_tail(key.p, key.len, 8, name);

	if (!err)
		err = plain_decode(val.p, val.len, &s);
	return err ? err : e->fn.xattr(e->arg, name, s.p, s.len);
}

int view_xattrs(const struct view *v, uint64_t ino, xattr_fn *fn, void *arg)
{
	struct each e = { .fn.xattr = fn, .arg = arg };
	struct key prefix;

	if (!v->snap && !v->m->any_xattr)
		return 0;
	key_number(&prefix, ino);
	return store_scan_prefix(v->store, v->snap, CF_XATTR,
				 key_slice(&prefix), (struct slice){ 0 },
				 each_xattr, &e);
}

static int each_name(void *arg, struct slice key, struct slice val)
{
	const struct each *e = arg;
	char name[META_NAME_MAX + 1];
	int err = key_tail(key.p, key.len, 16, name);

	(void)val;
	if (err)
		return err;
	return e->fn.name(e->arg, get_be64((const uint8_t *)key.p + 8), name);
}

int view_names(const struct view *v, uint64_t ino, name_fn *fn, void *arg)
{
	struct each e = { .fn.name = fn, .arg = arg };
	struct key prefix;

	key_number(&prefix, ino);
	return store_scan_prefix(v->store, v->snap, CF_NAME, key_slice(&prefix),
				 (struct slice){ 0 }, each_name, &e);
}

static int each_version(void *arg, struct slice key, struct slice val)
{
	const struct each *e = arg;
	struct version_rec rec;
	int err;

	if (key.len != 8)
		return -EUCLEAN;
	err = version_decode(val.p, val.len, get_be64(key.p), &rec);
	return err ? err : e->fn.version(e->arg, &rec);
}

int view_versions(const struct view *v, version_fn *fn, void *arg)
{
	struct each e = { .fn.version = fn, .arg = arg };

	return store_scan(v->store, v->snap, CF_VERSION, (struct slice){ 0 },
			  (struct slice){ 0 }, each_version, &e);
}

static int each_unsealed(void *arg, struct slice key, struct slice val)
{
	const struct each *e = arg;
	struct unsealed_rec rec;
	int err;

	if (key.len != 8)
		return -EUCLEAN;
	err = unsealed_decode(val.p, val.len, get_be64(key.p), &rec);
	return err ? err : e->fn.unsealed(e->arg, &rec);
}

int meta_unsealed(const struct meta *m, unsealed_fn *fn, void *arg)
{
	struct each e = { .fn.unsealed = fn, .arg = arg };

	return store_scan(m->accepted_view.store, NULL, CF_UNSEALED,
			  (struct slice){ 0 }, (struct slice){ 0 },
			  each_unsealed, &e);
}

static int each_ino(void *arg, struct slice key, struct slice val)
{
	const struct each *e = arg;

	(void)val;
	return key.len == 8 ? e->fn.ino(e->arg, get_be64(key.p)) : -EUCLEAN;
}

int meta_orphans(const struct meta *m, ino_fn *fn, void *arg)
{
	struct each e = { .fn.ino = fn, .arg = arg };

	return store_scan(m->accepted_view.store, NULL, CF_ORPHAN,
			  (struct slice){ 0 }, (struct slice){ 0 }, each_ino,
			  &e);
}
