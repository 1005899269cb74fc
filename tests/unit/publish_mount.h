/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mount without FUSE and without tiers, for the tests of publish and
 * restore: a namespace that logs events as fs/ does, and versions whose bytes
 * are made up from their id when somebody asks for them
 * (version_open_bytes, given here in place of the engine's).
 */
#ifndef CKPT_TESTS_UNIT_PUBLISH_MOUNT_H
#define CKPT_TESTS_UNIT_PUBLISH_MOUNT_H

#include <pthread.h>

#include "engine/publish.h"
#include "engine/version.h"
#include "tests/unit/metadata_fixture.h"
#include "tests/unit/publish_fixture.h"

/* ---- versions --------------------------------------------------------- */

#define N_CONTENTS 8192

struct content {
	uint64_t version;
	size_t size;
	char text[64]; /* the content, if not "" */
	bool gone, broken;
};

static struct content contents[N_CONTENTS];
static unsigned n_contents;
static pthread_mutex_t contents_lock = PTHREAD_MUTEX_INITIALIZER;

static struct content *content_of(uint64_t version)
{
	for (unsigned i = 0; i < n_contents; i++)
		if (contents[i].version == version)
			return &contents[i];
	return NULL;
}

static int content_open(const struct content *c)
{
	int fd;

	if (!c->text[0])
		return content_fd(c->version, c->size);
	fd = memfd_create("text", MFD_CLOEXEC);
	CHECK_EQ(pwrite(fd, c->text, c->size, 0), c->size);
	return fd;
}

int version_open_bytes(struct engine *e, uint64_t version, bool slow, int *fd,
		       struct copy_rec *copy)
{
	struct content c = { 0 }, *found;

	(void)e;
	(void)slow;
	pthread_mutex_lock(&contents_lock);
	found = content_of(version);
	if (found)
		c = *found;
	pthread_mutex_unlock(&contents_lock);
	if (!found || c.gone)
		return -ENOENT;
	*fd = content_open(&c);
	if (!copy)
		return 0;
	*copy = (struct copy_rec){ .version = version,
				   .tier = COPY_NVME,
				   .kind = COPY_FILE,
				   .size = c.size,
				   .chunk_len = CHUNK_LEN,
				   .verified = true };
	copy->crcs = content_crcs(*fd, c.size, &copy->n_chunks);
	copy->crcs[0] ^= c.broken;
	return 0;
}

static void add_content(uint64_t version, size_t size, const char *text)
{
	struct content *c;

	pthread_mutex_lock(&contents_lock);
	CHECK(n_contents < N_CONTENTS);
	c = &contents[n_contents++];
	*c = (struct content){ .version = version, .size = size };
	if (text) {
		c->size = strlen(text);
		snprintf(c->text, sizeof(c->text), "%s", text);
	}
	pthread_mutex_unlock(&contents_lock);
}

/* Its bytes are on no tier here any more. */
__attribute__((unused)) static void lose_content(uint64_t version)
{
	pthread_mutex_lock(&contents_lock);
	CHECK(content_of(version));
	content_of(version)->gone = true;
	pthread_mutex_unlock(&contents_lock);
}

/* ---- the namespace ---------------------------------------------------- */

static int64_t fake_now = 1600000000 * NS;

struct spot {
	uint64_t parent;
	char name[META_NAME_MAX + 1];
	struct dentry_rec d; /* ino 0: nothing there */
	struct inode_rec rec;
};

static struct spot spot_of(struct meta *m, const char *path)
{
	const struct view *v = meta_accepted(m);
	struct spot s = { .parent = META_ROOT_INO };
	struct dentry_rec d;

	for (;;) {
		size_t len = strcspn(path, "/");

		memcpy(s.name, path, len);
		s.name[len] = '\0';
		if (!path[len])
			break;
		CHECK_EQ(view_lookup(v, s.parent, s.name, &d), 0);
		s.parent = d.ino;
		path += len + 1;
	}
	if (view_lookup(v, s.parent, s.name, &s.d))
		s.d.ino = 0;
	else
		CHECK_EQ(view_inode(v, s.d.ino, &s.rec), 0);
	return s;
}

__attribute__((unused)) static uint64_t version_at(struct meta *m,
						   const char *path)
{
	struct spot s = spot_of(m, path);

	CHECK(s.d.ino);
	return s.rec.version;
}

struct all_names {
	struct meta *m;
	char *path[16];
	size_t n;
};

static int one_name(void *arg, uint64_t parent, const char *name)
{
	struct all_names *a = arg;
	char path[META_PATH_MAX];

	CHECK(a->n < 16);
	CHECK_EQ(view_child_path(meta_accepted(a->m), parent, name, path), 0);
	a->path[a->n++] = strdup(path);
	return 0;
}

/* An event of an inode, with all its names. */
static void log_inode(struct meta *m, struct txn *t, struct event *ev,
		      const struct inode_rec *rec)
{
	struct all_names a = { .m = m };

	CHECK_EQ(view_names(meta_accepted(m), rec->ino, one_name, &a), 0);
	ev->rec = *rec;
	ev->paths = (const char *const *)a.path;
	ev->n_paths = a.n;
	txn_event(t, ev);
	for (size_t i = 0; i < a.n; i++)
		free(a.path[i]);
}

static void log_name(struct txn *t, enum event_kind kind, const char *path,
		     const char *path2, const struct inode_rec *rec,
		     const char *target)
{
	const char *paths[] = { path };
	struct event ev = { .kind = kind,
			    .version = rec->version,
			    .rec = *rec,
			    .paths = paths,
			    .n_paths = 1,
			    .path2 = path2,
			    .value = target,
			    .value_len = target ? strlen(target) : 0 };

	txn_event(t, &ev);
}

static struct inode_rec fresh(struct meta *m, const struct spot *s,
			      uint32_t mode)
{
	fake_now += 1000001;
	return (struct inode_rec){ .ino = meta_new_ino(m),
				   .mode = mode,
				   .uid = getuid(),
				   .gid = getgid(),
				   .nlink = S_ISDIR(mode) ? 2 : 1,
				   .mtime_ns = fake_now,
				   .parent = S_ISDIR(mode) ? s->parent : 0 };
}

__attribute__((unused)) static void m_mkdir(struct meta *m, const char *path)
{
	struct spot s = spot_of(m, path);
	struct inode_rec rec = fresh(m, &s, S_IFDIR | 0755);
	struct txn *t = txn_begin(m);

	CHECK(!s.d.ino);
	put_parent(t, m, s.parent, 1);
	txn_put_inode(t, &rec);
	txn_put_dentry(t, s.parent, s.name, rec.ino, rec.mode);
	log_name(t, EVENT_MKDIR, path, NULL, &rec, NULL);
	commit_ok(t);
}

__attribute__((unused)) static void m_symlink(struct meta *m, const char *path,
					      const char *target)
{
	struct spot s = spot_of(m, path);
	struct inode_rec rec = fresh(m, &s, S_IFLNK | 0777);
	struct txn *t = txn_begin(m);

	CHECK(!s.d.ino);
	rec.size = strlen(target);
	txn_put_inode(t, &rec);
	txn_put_symlink(t, rec.ino, target);
	txn_put_dentry(t, s.parent, s.name, rec.ino, rec.mode);
	log_name(t, EVENT_SYMLINK, path, NULL, &rec, target);
	commit_ok(t);
}

/* Created, not sealed. */
__attribute__((unused)) static void m_create(struct meta *m, const char *path)
{
	struct spot s = spot_of(m, path);
	struct inode_rec rec = fresh(m, &s, S_IFREG | 0644);
	struct txn *t = txn_begin(m);

	CHECK(!s.d.ino);
	txn_put_inode(t, &rec);
	txn_put_dentry(t, s.parent, s.name, rec.ino, rec.mode);
	commit_ok(t);
}

/* Written (made if need be) and sealed; returns the version. */
__attribute__((unused)) static uint64_t m_write(struct meta *m,
						const char *path, size_t size,
						const char *text)
{
	struct version_rec v = { .id = meta_new_version(m) };
	struct event ev = { .kind = EVENT_SEAL, .version = v.id };
	struct spot s = spot_of(m, path);
	struct txn *t;

	if (!s.d.ino) {
		m_create(m, path);
		s = spot_of(m, path);
	}
	add_content(v.id, size, text);
	fake_now += 1000001;
	t = txn_begin(m);
	if (s.rec.version)
		txn_del_version(t, s.rec.version);
	v.ino = s.rec.ino;
	v.size = text ? strlen(text) : size;
	s.rec.version = v.id;
	s.rec.size = v.size;
	s.rec.mtime_ns = fake_now;
	txn_put_version(t, &v);
	txn_put_inode(t, &s.rec);
	log_inode(m, t, &ev, &s.rec);
	commit_ok(t);
	return v.id;
}

static void drop(struct meta *m, struct txn *t, const struct spot *s)
{
	struct inode_rec rec = s->rec;

	txn_del_dentry(t, s->parent, s->name, &s->d);
	if (!S_ISDIR(rec.mode) && --rec.nlink) {
		txn_put_inode(t, &rec);
		return;
	}
	(void)m;
	txn_del_inode(t, &rec);
	if (rec.version)
		txn_del_version(t, rec.version);
}

__attribute__((unused)) static void m_unlink(struct meta *m, const char *path)
{
	struct spot s = spot_of(m, path);
	struct txn *t = txn_begin(m);

	CHECK(s.d.ino);
	log_name(t, EVENT_UNLINK, path, NULL, &s.rec, NULL);
	if (S_ISDIR(s.rec.mode))
		put_parent(t, m, s.parent, -1);
	drop(m, t, &s);
	commit_ok(t);
}

__attribute__((unused)) static void m_link(struct meta *m, const char *from,
					   const char *to)
{
	struct spot s = spot_of(m, from), d = spot_of(m, to);
	struct txn *t = txn_begin(m);

	CHECK(s.d.ino && !d.d.ino);
	log_name(t, EVENT_LINK, from, to, &s.rec, NULL);
	s.rec.nlink++;
	txn_put_inode(t, &s.rec);
	txn_put_dentry(t, d.parent, d.name, s.rec.ino, s.rec.mode);
	commit_ok(t);
}

__attribute__((unused)) static void m_rename(struct meta *m, const char *from,
					     const char *to)
{
	struct spot s = spot_of(m, from), d = spot_of(m, to);
	struct txn *t = txn_begin(m);

	CHECK(s.d.ino);
	log_name(t, EVENT_RENAME, from, to, &s.rec, NULL);
	if (d.d.ino)
		drop(m, t, &d);
	txn_del_dentry(t, s.parent, s.name, &s.d);
	txn_put_dentry(t, d.parent, d.name, s.rec.ino, s.rec.mode);
	if (S_ISDIR(s.rec.mode)) {
		s.rec.parent = d.parent;
		txn_put_inode(t, &s.rec);
	}
	commit_ok(t);
}

/* Files, or directories of one parent. */
__attribute__((unused)) static void m_exchange(struct meta *m, const char *a,
					       const char *b)
{
	struct spot s = spot_of(m, a), d = spot_of(m, b);
	struct txn *t = txn_begin(m);

	CHECK(s.d.ino && d.d.ino);
	log_name(t, EVENT_EXCHANGE, a, b, &s.rec, NULL);
	txn_del_dentry(t, s.parent, s.name, &s.d);
	txn_del_dentry(t, d.parent, d.name, &d.d);
	txn_put_dentry(t, d.parent, d.name, s.rec.ino, s.rec.mode);
	txn_put_dentry(t, s.parent, s.name, d.rec.ino, d.rec.mode);
	commit_ok(t);
}

__attribute__((unused)) static void m_chmod(struct meta *m, const char *path,
					    uint32_t mode)
{
	struct event ev = { .kind = EVENT_SETATTR };
	struct spot s = spot_of(m, path);
	struct txn *t = txn_begin(m);

	CHECK(s.d.ino);
	s.rec.mode = (s.rec.mode & S_IFMT) | mode;
	s.rec.mtime_ns += 5 * NS;
	txn_put_inode(t, &s.rec);
	log_inode(m, t, &ev, &s.rec);
	commit_ok(t);
}

__attribute__((unused)) static void m_setxattr(struct meta *m, const char *path,
					       const char *name,
					       const char *value)
{
	struct event ev = { .kind = value ? EVENT_SETXATTR : EVENT_REMOVEXATTR,
			    .name = name,
			    .value = value,
			    .value_len = value ? strlen(value) : 0 };
	struct spot s = spot_of(m, path);
	struct txn *t = txn_begin(m);

	CHECK(s.d.ino);
	if (value)
		txn_put_xattr(t, s.rec.ino, name, value, strlen(value));
	else
		txn_del_xattr(t, s.rec.ino, name);
	log_inode(m, t, &ev, &s.rec);
	commit_ok(t);
}

/* ---- both sides the same ---------------------------------------------- */

struct compare {
	struct meta *m;
	const struct view *v;
	struct remote *r;
	const char *dir;  /* the remote's plain directory */
	const char *path; /* here */
	bool quiet;
	unsigned n_wrong;
};

static void wrong(struct compare *c, const char *path, const char *what)
{
	if (!c->quiet)
		fprintf(stderr, "on the remote '%s': %s\n", path, what);
	c->n_wrong++;
}

static int add_view_xattr(void *arg, const char *name, const void *value,
			  size_t len)
{
	return remote_attr_set_xattr(arg, name, value, len);
}

static void compare_file(struct compare *c, const char *path,
			 const struct inode_rec *rec,
			 const struct remote_attr *got)
{
	CLEANUP(copy_rec_fini) struct copy_rec copy = { 0 };
	char identity[64];
	int fd;

	remote_identity(c->m, rec->version, identity);
	if (strcmp(identity, got->identity) != 0)
		wrong(c, path, "another version");
	if (got->size != rec->size || got->mtime_ns != rec->mtime_ns)
		wrong(c, path, "size or mtime");
	if (!remote_attr_verified(got))
		wrong(c, path, "not verified");
	if (meta_copy(c->m, rec->version, COPY_REMOTE, &copy) ||
	    strcmp(copy.object, identity) != 0 || !copy.verified)
		wrong(c, path, "copy record");
	fd = content_open(content_of(rec->version));
	if (!same_bytes(fd, at(c->dir, path)))
		wrong(c, path, "bytes");
	close(fd);
}

static void compare_one(struct compare *c, const char *path,
			const struct inode_rec *rec)
{
	CLEANUP(remote_attr_fini) struct remote_attr got = { 0 }, want = { 0 };
	char target[META_PATH_MAX];

	if (c->r->ops->get_attr(c->r, path, &got)) {
		wrong(c, path, "missing");
		return;
	}
	if (got.mode != rec->mode || got.uid != rec->uid)
		wrong(c, path, "mode or owner");
	CHECK_EQ(view_xattrs(c->v, rec->ino, add_view_xattr, &want), 0);
	if (!remote_attr_same_xattrs(&got, &want))
		wrong(c, path, "xattrs");
	if (S_ISDIR(rec->mode) && got.mtime_ns != rec->mtime_ns)
		wrong(c, path, "mtime of a directory");
	if (S_ISREG(rec->mode) && S_ISREG(got.mode))
		compare_file(c, path, rec, &got);
	if (S_ISLNK(rec->mode) &&
	    (view_symlink(c->v, rec->ino, target) || !got.target ||
	     strcmp(target, got.target) != 0))
		wrong(c, path, "target");
	remote_attr_fini(&want);
}

static void compare_dir(struct compare *c, uint64_t ino, const char *path);

static int compare_entry(void *arg, const char *name,
			 const struct dentry_rec *d)
{
	struct compare *c = arg;
	const char *dir = c->path;
	char path[META_PATH_MAX];
	struct inode_rec rec;

	CHECK(snprintf(path, sizeof(path), "%s%s%s", dir, *dir ? "/" : "",
		       name) < (int)sizeof(path));
	CHECK_EQ(view_inode(c->v, d->ino, &rec), 0);
	if (!S_ISREG(rec.mode) || rec.version)
		compare_one(c, path, &rec);
	if (S_ISDIR(rec.mode))
		compare_dir(c, d->ino, path);
	c->path = dir;
	return 0;
}

static int compare_found(void *arg, const char *name)
{
	struct compare *c = arg;
	char path[META_PATH_MAX];
	struct spot s;

	CHECK(snprintf(path, sizeof(path), "%s%s%s", c->path,
		       *c->path ? "/" : "", name) < (int)sizeof(path));
	if (!strncmp(name, "foreign", 7))
		return 0;
	s = spot_of(c->m, path);
	if (!s.d.ino || (S_ISREG(s.rec.mode) && !s.rec.version))
		wrong(c, path, "should not be there");
	return 0;
}

static void compare_dir(struct compare *c, uint64_t ino, const char *path)
{
	c->path = path;
	CHECK_EQ(view_readdir(c->v, ino, 0, compare_entry, c), 0);
	c->path = path;
	if (c->r->ops->list(c->r, path, compare_found, c))
		wrong(c, path, "cannot be listed");
}

/* The remote shows exactly what the mount shows (nothing moves). */
__attribute__((unused)) static void check_same_tree(struct meta *m,
						    struct remote *r,
						    const char *dir)
{
	struct compare c = {
		.m = m, .v = meta_accepted(m), .r = r, .dir = dir
	};

	compare_dir(&c, META_ROOT_INO, "");
	CHECK_EQ(c.n_wrong, 0);
}

/* ---- publishing ------------------------------------------------------- */

__attribute__((unused)) static struct publisher *publishing(struct meta *m,
							    struct remote *r)
{
	struct publisher *p = NULL;

	CHECK_EQ(publish_start((struct engine *)m, m, r, &p), 0);
	return p;
}

/* D := all there is, then R too. */
__attribute__((unused)) static void published(struct meta *m,
					      struct publisher *p)
{
	struct publish_status st;

	advance_all(m);
	publish_kick(p);
	CHECK_SOON(meta_remote_seq(m) == meta_accepted_seq(m));
	CHECK_SOON((publish_status(p, &st), st.connected));
}

__attribute__((unused)) static void copy_tree(const char *from, const char *to)
{
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (!pid) {
		execlp("cp", "cp", "-a", from, to, (char *)NULL);
		_exit(127);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
}

#endif
