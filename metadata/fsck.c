/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checking every record of the durable state against those it belongs with:
 *
 *      dentry <-> name <-> inode -> version -> copy, small
 *      dentry <-> cookie    |
 *                           +-> symlink, xattr, orphan, parent
 *
 * Each family is walked once, in one snapshot, looking up the others; so
 * memory stays bounded whatever the size. A record that cannot be decoded is
 * a finding and the walk goes on; only a failure to read ends it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>

#include "metadata/internal.h"
#include "metadata/keys.h"
#include "metadata/record.h"

#define MAX_DEPTH (META_PATH_MAX / 2)

struct fsck {
	struct view *v;
	finding_fn *fn;
	void *arg;
	uint64_t n;
};

PRINTF(2, 3)
static void finding(struct fsck *f, const char *fmt, ...)
{
	char line[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	f->n++;
	if (f->fn)
		f->fn(f->arg, line);
}

/* A look-up that is allowed to find nothing or nonsense: both are findings
 * of the caller. Returns a real failure only. */
static int looked_up(int err, bool *found)
{
	*found = !err;
	return err == -ENOENT || err == -EUCLEAN || err == -EOPNOTSUPP ? 0
								       : err;
}

/* ---- inodes ----------------------------------------------------------- */

struct names {
	uint64_t n, parent;
};

static int count_name(void *arg, uint64_t parent, const char *name)
{
	struct names *n = arg;

	(void)name;
	n->n++;
	n->parent = parent;
	return 0;
}

static int count_dir(void *arg, const char *name, const struct dentry_rec *d)
{
	(void)name;
	*(uint64_t *)arg += S_ISDIR(d->type);
	return 0;
}

/* Up to the root, in a bounded number of steps. */
static int check_reachable(struct fsck *f, const struct inode_rec *dir)
{
	struct inode_rec rec = *dir;
	bool found = true;

	for (int i = 0; i < MAX_DEPTH; i++) {
		int err;

		if (rec.ino == META_ROOT_INO)
			return 0;
		err = looked_up(view_inode(f->v, rec.parent, &rec), &found);
		if (err)
			return err;
		if (!found)
			break;
	}
	finding(f, "inode %" PRIx64 ": not reachable from the root", dir->ino);
	return 0;
}

static int check_dir(struct fsck *f, const struct inode_rec *rec,
		     const struct names *names)
{
	uint64_t n_dirs = 0;
	int err = view_readdir(f->v, rec->ino, 0, count_dir, &n_dirs);

	if (err == -EUCLEAN || err == -EOPNOTSUPP) {
		finding(f, "inode %" PRIx64 ": unreadable entries", rec->ino);
		err = 0;
	}
	if (err)
		return err;
	if (rec->nlink != 2 + n_dirs && names->n)
		finding(f,
			"inode %" PRIx64 ": directory with link count %u, has "
			"%" PRIu64 " directories in it",
			rec->ino, rec->nlink, n_dirs);
	if (rec->ino == META_ROOT_INO)
		return 0;
	if (names->n > 1)
		finding(f,
			"inode %" PRIx64 ": directory with %" PRIu64 " names",
			rec->ino, names->n);
	if (names->n == 1 && names->parent != rec->parent)
		finding(f,
			"inode %" PRIx64 ": parent is %" PRIx64
			" but its name is in %" PRIx64,
			rec->ino, rec->parent, names->parent);
	return names->n ? check_reachable(f, rec) : 0;
}

static int check_content(struct fsck *f, const struct inode_rec *rec)
{
	struct version_rec v;
	bool found;
	int err;

	if (!rec->version)
		return 0;
	err = looked_up(view_version(f->v, rec->version, &v), &found);
	if (err)
		return err;
	if (!found)
		finding(f,
			"inode %" PRIx64 ": its version %" PRIx64
			" does not exist",
			rec->ino, rec->version);
	else if (v.ino != rec->ino)
		finding(f,
			"inode %" PRIx64 ": its version %" PRIx64
			" is of inode %" PRIx64,
			rec->ino, rec->version, v.ino);
	else if (v.size != rec->size)
		finding(f,
			"inode %" PRIx64 ": size %" PRIu64
			", but its version has %" PRIu64,
			rec->ino, rec->size, v.size);
	return 0;
}

static int check_symlink(struct fsck *f, const struct inode_rec *rec)
{
	char target[META_PATH_MAX];
	bool found;
	int err = looked_up(view_symlink(f->v, rec->ino, target), &found);

	if (err)
		return err;
	if (!found)
		finding(f, "inode %" PRIx64 ": symlink without a target",
			rec->ino);
	else if (rec->size != strlen(target))
		finding(f,
			"inode %" PRIx64 ": symlink of size %" PRIu64
			" with a target of %zu",
			rec->ino, rec->size, strlen(target));
	return 0;
}

static int check_links(struct fsck *f, const struct inode_rec *rec,
		       const struct names *names)
{
	struct key key;
	bool orphan;
	int err;

	key_number(&key, rec->ino);
	err = looked_up(store_has(f->v->store, f->v->snap, CF_ORPHAN,
				  key_slice(&key)),
			&orphan);
	if (err)
		return err;
	if (!names->n && !orphan && rec->ino != META_ROOT_INO)
		finding(f, "inode %" PRIx64 ": no name and no orphan",
			rec->ino);
	if (names->n && orphan)
		finding(f, "inode %" PRIx64 ": an orphan with a name",
			rec->ino);
	if (!S_ISDIR(rec->mode) && rec->nlink != names->n)
		finding(f,
			"inode %" PRIx64 ": link count %u, has %" PRIu64
			" names",
			rec->ino, rec->nlink, names->n);
	return 0;
}

static int check_inode(void *arg, struct slice key, struct slice val)
{
	struct names names = { 0 };
	struct fsck *f = arg;
	struct inode_rec rec;
	uint64_t ino;
	int err;

	if (key.len != 8) {
		finding(f, "inode: a key of %zu bytes", key.len);
		return 0;
	}
	ino = get_be64(key.p);
	if (inode_decode(val.p, val.len, ino, &rec)) {
		finding(f, "inode %" PRIx64 ": unreadable record", ino);
		return 0;
	}
	if (rec.seq > view_seq(f->v))
		finding(f, "inode %" PRIx64 ": newer than the watermark", ino);
	err = view_names(f->v, ino, count_name, &names);
	if (err == -EUCLEAN)
		err = 0; /* check_name() says it */
	if (!err)
		err = check_links(f, &rec, &names);
	if (!err && S_ISDIR(rec.mode))
		err = check_dir(f, &rec, &names);
	if (!err && S_ISREG(rec.mode))
		err = check_content(f, &rec);
	if (!err && S_ISLNK(rec.mode))
		err = check_symlink(f, &rec);
	return err;
}

/* ---- entries ---------------------------------------------------------- */

struct cookie {
	struct dentry_rec d;
	char name[META_NAME_MAX + 1];
};

static int got_cookie(void *arg, const void *val, size_t len)
{
	struct cookie *c = arg;

	return cookie_decode(val, len, 0, &c->d, c->name);
}

static int check_cookie_of(struct fsck *f, uint64_t parent, const char *name,
			   const struct dentry_rec *d)
{
	struct cookie c;
	struct key key;
	bool found;
	int err;

	key_pair(&key, parent, d->cookie);
	err = looked_up(store_get(f->v->store, f->v->snap, CF_COOKIE,
				  key_slice(&key), got_cookie, &c),
			&found);
	if (err)
		return err;
	if (!found)
		finding(f, "entry %" PRIx64 "/%s: not listed", parent, name);
	else if (c.d.ino != d->ino || c.d.type != d->type ||
		 strcmp(c.name, name) != 0)
		finding(f, "entry %" PRIx64 "/%s: listed as another", parent,
			name);
	return 0;
}

static int check_name_of(struct fsck *f, uint64_t parent, const char *name,
			 uint64_t ino)
{
	struct key key;
	bool found;
	int err = key_link(&key, ino, parent, name);

	if (!err)
		err = looked_up(store_has(f->v->store, f->v->snap, CF_NAME,
					  key_slice(&key)),
				&found);
	if (!err && !found)
		finding(f, "entry %" PRIx64 "/%s: not a name of inode %" PRIx64,
			parent, name, ino);
	return err;
}

static int check_ends_of(struct fsck *f, uint64_t parent, const char *name,
			 const struct dentry_rec *d)
{
	struct inode_rec rec;
	bool found;
	int err = looked_up(view_inode(f->v, d->ino, &rec), &found);

	if (err)
		return err;
	if (!found)
		finding(f,
			"entry %" PRIx64 "/%s: inode %" PRIx64
			" does not exist",
			parent, name, d->ino);
	else if ((rec.mode & S_IFMT) != d->type)
		finding(f,
			"entry %" PRIx64 "/%s: of another type than inode "
			"%" PRIx64,
			parent, name, d->ino);
	err = looked_up(view_inode(f->v, parent, &rec), &found);
	if (!err && (!found || !S_ISDIR(rec.mode)))
		finding(f, "entry %" PRIx64 "/%s: in no directory", parent,
			name);
	return err;
}

static int check_dentry(void *arg, struct slice key, struct slice val)
{
	char name[META_NAME_MAX + 1];
	struct fsck *f = arg;
	struct dentry_rec d;
	uint64_t parent;
	int err;

	if (key_tail(key.p, key.len, 8, name) ||
	    dentry_decode(val.p, val.len, &d)) {
		finding(f, "dentry: unreadable record");
		return 0;
	}
	parent = get_be64(key.p);
	err = check_ends_of(f, parent, name, &d);
	if (!err)
		err = check_cookie_of(f, parent, name, &d);
	if (!err)
		err = check_name_of(f, parent, name, d.ino);
	return err;
}

static int check_cookie(void *arg, struct slice key, struct slice val)
{
	char name[META_NAME_MAX + 1];
	struct dentry_rec listed, d = { 0 };
	struct fsck *f = arg;
	uint64_t parent;
	bool found;
	int err;

	if (key.len != 16 ||
	    cookie_decode(val.p, val.len, get_be64((const uint8_t *)key.p + 8),
			  &listed, name)) {
		finding(f, "cookie: unreadable record");
		return 0;
	}
	parent = get_be64(key.p);
	err = looked_up(view_lookup(f->v, parent, name, &d), &found);
	if (!err && (!found || d.cookie != listed.cookie))
		finding(f, "entry %" PRIx64 "/%s: listed but not there", parent,
			name);
	return err;
}

static int check_name(void *arg, struct slice key, struct slice val)
{
	char name[META_NAME_MAX + 1];
	struct fsck *f = arg;
	struct dentry_rec d;
	uint64_t ino, parent;
	bool found;
	int err;

	(void)val;
	if (key_tail(key.p, key.len, 16, name)) {
		finding(f, "name: unreadable record");
		return 0;
	}
	ino = get_be64(key.p);
	parent = get_be64((const uint8_t *)key.p + 8);
	err = looked_up(view_lookup(f->v, parent, name, &d), &found);
	if (!err && (!found || d.ino != ino))
		finding(f,
			"inode %" PRIx64 ": its name %" PRIx64
			"/%s leads elsewhere",
			ino, parent, name);
	return err;
}

/* ---- versions and copies ---------------------------------------------- */

static int got_copy(void *arg, const void *val, size_t len)
{
	struct copy_rec *c = arg;

	return copy_decode(val, len, c->version, c->tier, c);
}

static int got_len(void *arg, const void *val, size_t len)
{
	(void)val;
	*(uint64_t *)arg = len;
	return len ? 0 : -EUCLEAN;
}

static int check_small(struct fsck *f, const struct copy_rec *c)
{
	uint64_t len = 0;
	struct key key;
	bool found;
	int err;

	key_number(&key, c->version);
	err = looked_up(store_get(f->v->store, f->v->snap, CF_SMALL,
				  key_slice(&key), got_len, &len),
			&found);
	if (err)
		return err;
	if (!found)
		finding(f, "version %" PRIx64 ": its small content is missing",
			c->version);
	else if (len - 1 != c->size)
		finding(f,
			"version %" PRIx64 ": small content of %" PRIu64
			" bytes, not %" PRIu64,
			c->version, len - 1, c->size);
	return 0;
}

static int check_one_copy(struct fsck *f, const struct version_rec *v,
			  enum copy_tier tier, bool *found)
{
	CLEANUP(copy_rec_fini)
	struct copy_rec c = { .version = v->id, .tier = tier };
	struct key key;
	uint64_t chunks;
	int err;

	key_copy(&key, v->id, tier);
	err = looked_up(store_get(f->v->store, f->v->snap, CF_COPY,
				  key_slice(&key), got_copy, &c),
			found);
	if (err || !*found)
		return err;
	if (c.size != v->size)
		finding(f,
			"version %" PRIx64 ": %" PRIu64
			" bytes, but a copy of %" PRIu64,
			v->id, v->size, c.size);
	chunks = c.chunk_len ? (c.size + c.chunk_len - 1) / c.chunk_len : 0;
	if (c.verified && c.n_chunks != chunks)
		finding(f,
			"version %" PRIx64 ": %u checksums for %" PRIu64
			" chunks",
			v->id, c.n_chunks, chunks);
	return c.kind == COPY_SMALL ? check_small(f, &c) : 0;
}

static int check_version(void *arg, struct slice key, struct slice val)
{
	bool nvme, remote, found;
	struct fsck *f = arg;
	struct version_rec v;
	struct inode_rec rec;
	int err;

	if (key.len != 8 ||
	    version_decode(val.p, val.len, get_be64(key.p), &v)) {
		finding(f, "version: unreadable record");
		return 0;
	}
	err = looked_up(view_inode(f->v, v.ino, &rec), &found);
	if (!err && !found)
		finding(f,
			"version %" PRIx64 ": inode %" PRIx64 " does not exist",
			v.id, v.ino);
	if (!err)
		err = check_one_copy(f, &v, COPY_NVME, &nvme);
	if (!err)
		err = check_one_copy(f, &v, COPY_REMOTE, &remote);
	if (!err && !nvme && !remote)
		finding(f, "version %" PRIx64 ": no copy", v.id);
	return err;
}

/* ---- what hangs on an inode, and the events --------------------------- */

static int check_owned(struct fsck *f, struct slice key, const char *what,
		       uint32_t type)
{
	struct inode_rec rec;
	bool found;
	int err;

	if (key.len < 8) {
		finding(f, "%s: unreadable record", what);
		return 0;
	}
	err = looked_up(view_inode(f->v, get_be64(key.p), &rec), &found);
	if (!err && (!found || (type && (rec.mode & S_IFMT) != type)))
		finding(f, "%s of inode %" PRIx64 ", which is none", what,
			get_be64(key.p));
	return err;
}

static int check_xattr(void *arg, struct slice key, struct slice val)
{
	(void)val;
	return check_owned(arg, key, "xattr", 0);
}

static int check_target(void *arg, struct slice key, struct slice val)
{
	(void)val;
	return check_owned(arg, key, "symlink target", S_IFLNK);
}

static int check_orphan(void *arg, struct slice key, struct slice val)
{
	(void)val;
	return check_owned(arg, key, "orphan mark", 0);
}

static int check_event(void *arg, struct slice key, struct slice val)
{
	CLEANUP(free_p) const char **paths = NULL;
	struct fsck *f = arg;
	struct event ev;

	if (key.len != 8 || event_decode(val, get_be64(key.p), &ev, &paths))
		finding(f, "event: unreadable record");
	else if (ev.seq > view_seq(f->v))
		finding(f, "event %" PRIx64 ": newer than the watermark",
			ev.seq);
	return 0;
}

int meta_fsck(struct meta *m, finding_fn *fn, void *arg, uint64_t *n_findings)
{
	static const struct {
		enum cf cf;
		entry_fn *check;
	} walks[] = {
		{ CF_INODE, check_inode },     { CF_DENTRY, check_dentry },
		{ CF_COOKIE, check_cookie },   { CF_NAME, check_name },
		{ CF_VERSION, check_version }, { CF_XATTR, check_xattr },
		{ CF_SYMLINK, check_target },  { CF_ORPHAN, check_orphan },
		{ CF_EVENT, check_event },
	};
	struct fsck f = { .fn = fn, .arg = arg };
	int err = meta_durable_view(m, &f.v);

	if (err)
		return err;
	for (size_t i = 0; !err && i < sizeof(walks) / sizeof(walks[0]); i++)
		err = store_scan(f.v->store, f.v->snap, walks[i].cf,
				 (struct slice){ 0 }, (struct slice){ 0 },
				 walks[i].check, &f);
	view_free(f.v);
	if (!err)
		*n_findings = f.n;
	return err;
}
