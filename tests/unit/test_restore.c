/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fresh node: the import shows what the remote holds, also after a power
 * cut; a fetch brings the bytes, checked, where they are wanted first; a chunk
 * that is wrong is -EBADMSG to those who read it, and no one else.
 */
#include <stdatomic.h>

#include "engine/restore.h"
#include "tests/unit/metadata_fixture.h"
#include "tests/unit/publish_fixture.h"

#define N_SMALL 50
#define BIG ((size_t)5 * CHUNK_LEN + 999)

static const char *dir;
static struct world w;
static struct remote *r;
static struct tier *nvme;
static int big_fd;

/* ---- what is there ---------------------------------------------------- */

static void put(const char *path, uint64_t id, int fd, size_t size)
{
	struct remote_attr a = attr_with(id, fd, size);
	_Atomic uint64_t moved = 0;

	if (id == 1)
		CHECK(!remote_attr_set_xattr(&a, "user.note", "hello", 5));
	CHECK_EQ(r->ops->stage(r, &a, fd, &moved), 0);
	CHECK_EQ(r->ops->place(r, path, &a), 0);
	remote_attr_fini(&a);
}

static void populate(void)
{
	struct remote_attr d = dir_attr(0750);
	struct remote_attr link = { .mode = S_IFLNK | 0777,
				    .uid = getuid(),
				    .gid = getgid(),
				    .mtime_ns = 7 * NS };
	char path[64];

	big_fd = content_fd(1, BIG);
	CHECK_EQ(r->ops->mkdir(r, "step", &d), 0);
	CHECK_EQ(r->ops->mkdir(r, "step/sub", &d), 0);
	CHECK_EQ(r->ops->mkdir(r, "empty", &d), 0);
	put("step/big", 1, big_fd, BIG);
	for (unsigned i = 0; i < N_SMALL; i++) {
		int fd = content_fd(100 + i, i);

		snprintf(path, sizeof(path), "step/sub/f%u", i);
		put(path, 100 + i, fd, i);
		close(fd);
	}
	link.target = strdup("step/big");
	CHECK_EQ(r->ops->symlink(r, "last", &link), 0);
	remote_attr_fini(&link);
	write_text(at(dir, "foreign"), "by others");
	CHECK(!mkfifo(at(dir, "fifo"), 0600));
	CHECK(!chmod(dir, 0751));
}

static struct inode_rec inode_at(const char *path)
{
	const struct view *v = meta_accepted(w.m);
	struct inode_rec rec = { .ino = META_ROOT_INO };
	struct dentry_rec d = { .ino = META_ROOT_INO };
	char name[64];

	while (*path) {
		size_t len = strcspn(path, "/");

		snprintf(name, sizeof(name), "%.*s", (int)len, path);
		CHECK_EQ(view_lookup(v, d.ino, name, &d), 0);
		path += len + (path[len] == '/');
	}
	CHECK_EQ(view_inode(v, d.ino, &rec), 0);
	return rec;
}

static struct copy_rec copy_at(const char *path)
{
	struct copy_rec c;

	CHECK_EQ(meta_copy(w.m, inode_at(path).version, COPY_REMOTE, &c), 0);
	return c;
}

static void check_namespace(void)
{
	const struct view *v = meta_accepted(w.m);
	struct inode_rec rec = inode_at("step/big");
	char buf[META_PATH_MAX];
	size_t len = sizeof(buf);
	struct dentry_rec d;
	struct copy_rec c;

	CHECK_EQ(rec.mode, S_IFREG | 0640);
	CHECK_EQ(rec.size, BIG);
	CHECK_EQ(rec.blocks, (BIG + 511) / 512);
	CHECK_EQ(rec.mtime_ns, 1600000000 * NS + 123456789);
	CHECK_EQ(view_xattr(v, rec.ino, "user.note", buf, &len), 0);
	CHECK(len == 5 && !memcmp(buf, "hello", 5));
	c = copy_at("step/big");
	CHECK(c.verified && c.n_chunks == 6 && c.kind == COPY_OBJECT);
	CHECK(!strncmp(c.object, UUID0, 32));
	copy_rec_fini(&c);
	c = copy_at("foreign");
	CHECK(!c.verified && c.object[0] &&
	      remote_object_is_of_others(c.object));
	copy_rec_fini(&c);
	CHECK_EQ(view_symlink(v, inode_at("last").ino, buf), 0);
	CHECK_STR(buf, "step/big");
	CHECK_EQ(inode_at("step").mode, S_IFDIR | 0750);
	CHECK_EQ(inode_at("step").nlink, 3);
	CHECK_EQ(inode_at("").mode, S_IFDIR | 0751);
	CHECK_EQ(inode_at("").nlink, 4);
	CHECK_EQ(inode_at("step/sub/f49").size, 49);
	CHECK_EQ(view_lookup(v, META_ROOT_INO, "fifo", &d), -ENOENT);
	CHECK_EQ(view_lookup(v, META_ROOT_INO, ".ckptfs", &d), -ENOENT);
}

static void imports(void)
{
	char why[256] = "";
	uint64_t n = 0;

	CHECK(!restore_is_done(w.m));
	CHECK_EQ(restore_import(w.m, r, &n, why, sizeof(why)), 0);
	CHECK_EQ(n, N_SMALL + 2);
	CHECK(restore_is_done(w.m));
	CHECK_EQ(meta_nvme_seq(w.m), meta_accepted_seq(w.m));
	CHECK_EQ(meta_remote_seq(w.m), meta_accepted_seq(w.m));
	check_namespace();
	CHECK_EQ(restore_import(w.m, r, &n, why, sizeof(why)), 0);
	CHECK_EQ(n, 0); /* all there */
	check_namespace();
	world_power_cut(&w);
	check_namespace();
	CHECK(restore_is_done(w.m));
}

/* What stands before it in the log is not flushed yet. */
static void imports_what_is_not_durable(void)
{
	char why[256] = "";
	struct txn *t = txn_begin(w.m);
	uint64_t n = 0, seq;

	txn_put_xattr(t, META_ROOT_INO, "user.early", "1", 1);
	CHECK_EQ(txn_commit(t, &seq), 0);
	CHECK_EQ(meta_set_note(w.m, "restore.done", "", 0), 0);
	write_text(at(dir, "late"), "by others");
	CHECK_EQ(restore_import(w.m, r, &n, why, sizeof(why)), 0);
	CHECK_EQ(n, 1);
	CHECK(meta_nvme_seq(w.m) < seq);

	/* Done, for who has the accepted state; else to be done again. */
	CHECK(restore_is_done(w.m));
	world_restart(&w);
	CHECK_EQ(restore_recall(w.m, false), 0);
	CHECK(restore_is_done(w.m));
	world_power_cut(&w);
	CHECK_EQ(restore_recall(w.m, true), 0);
	CHECK(!restore_is_done(w.m));
	CHECK_EQ(restore_import(w.m, r, &n, why, sizeof(why)), 0);
	CHECK_EQ(n, 1);
	world_power_cut(&w);
	CHECK_EQ(restore_recall(w.m, true), 0);
	CHECK(restore_is_done(w.m));
	CHECK_EQ(inode_at("late").size, 9);
}

/* ---- fetching --------------------------------------------------------- */

struct outcome {
	atomic_bool told;
	int err;
	uint32_t crc0;
};

static int told(void *arg, int err, const uint32_t *crcs)
{
	struct outcome *o = arg;

	CHECK(!o->told); /* once */
	CHECK(!err == (crcs != NULL));
	o->err = err;
	o->crc0 = crcs ? crcs[0] : 0;
	o->told = true;
	return err;
}

static struct fetch *start(struct fetcher *fr, const char *path,
			   struct outcome *o)
{
	CLEANUP(copy_rec_fini) struct copy_rec c = copy_at(path);
	struct fetch_config config = { .path = path,
				       .copy = c,
				       .dst = nvme,
				       .dst_id = meta_new_version(w.m),
				       .done = told,
				       .arg = o };
	struct fetch *f;

	CHECK_EQ(fetch_start(fr, &config, &f), 0);
	return f;
}

static bool on_nvme(const struct fetch *f)
{
	int fd, err = nvme->ops->open(nvme, fetch_dst_id(f), O_RDONLY, &fd);

	if (!err)
		close(fd);
	return !err;
}

static void check_range(const struct fetch *f, int source, size_t off,
			size_t len)
{
	char *a = malloc(len), *b = malloc(len);

	CHECK(a && b);
	CHECK_EQ(pread(fetch_fd(f), a, len, (off_t)off), len);
	CHECK_EQ(pread(source, b, len, (off_t)off), len);
	CHECK(!memcmp(a, b, len));
	free(a);
	free(b);
}

static void fetches(struct fetcher *fr)
{
	struct outcome o = { 0 }, o2 = { 0 };
	struct fetch *f = start(fr, "step/big", &o);

	CHECK_EQ(fetch_wait(f, 3 * CHUNK_LEN + 5, 100, true), 0);
	check_range(f, big_fd, 3 * CHUNK_LEN + 5, 100);
	CHECK_EQ(fetch_wait(f, 0, UINT64_MAX, true), 0);
	check_range(f, big_fd, 0, BIG);
	CHECK_EQ(fetch_wait(f, BIG + 5, 1, true), 0); /* behind the end */
	CHECK_SOON(o.told);
	CHECK_EQ(o.err, 0);
	CHECK(on_nvme(f));
	fetch_put(f);

	f = start(fr, "step/sub/f0", &o2); /* nothing in it */
	CHECK_SOON(o2.told);
	CHECK_EQ(o2.err, 0);
	fetch_put(f);
	CHECK(fetcher_bytes(fr) >= BIG);
}

static void fetches_what_is_not_verified(struct fetcher *fr)
{
	struct outcome o = { 0 };
	struct fetch *f = start(fr, "foreign", &o);
	char buf[16];

	CHECK_EQ(fetch_wait(f, 0, 100, true), 0);
	CHECK_EQ(pread(fetch_fd(f), buf, sizeof(buf), 0), 9);
	CHECK(!memcmp(buf, "by others", 9));
	CHECK_SOON(o.told);
	CHECK_EQ(o.err, 0);
	CHECK_EQ(o.crc0, crc32c(0, "by others", 9));
	fetch_put(f);
}

/* The mount calls it otherwise already, the remote does not yet. */
static void finds_what_was_renamed(struct fetcher *fr)
{
	struct inode_rec step = inode_at("step"), root = inode_at("");
	const char *paths[] = { "step" };
	struct event ev = { .kind = EVENT_RENAME,
			    .rec = step,
			    .paths = paths,
			    .n_paths = 1,
			    .path2 = "renamed" };
	struct outcome o = { 0 };
	struct dentry_rec d;
	struct fetch *f;
	struct txn *t;

	CHECK_EQ(view_lookup(meta_accepted(w.m), root.ino, "step", &d), 0);
	t = txn_begin(w.m);
	txn_event(t, &ev);
	txn_del_dentry(t, root.ino, "step", &d);
	txn_put_dentry(t, root.ino, "renamed", step.ino, step.mode);
	commit_ok(t);
	advance_all(w.m);
	f = start(fr, "renamed/sub/f7", &o);
	CHECK_EQ(fetch_wait(f, 0, 7, true), 0);
	CHECK_SOON(o.told);
	CHECK_EQ(o.err, 0);
	fetch_put(f);
}

/* One bit flipped in the third chunk, behind the store's back. */
static void tells_of_a_broken_chunk(struct fetcher *fr)
{
	struct outcome o = { 0 };
	struct timespec ts[2];
	struct stat st;
	struct fetch *f;
	char byte;
	int fd = open(at(dir, "step/big"), O_RDWR);

	CHECK(fd >= 0 && !fstat(fd, &st));
	CHECK_EQ(pread(fd, &byte, 1, 2 * CHUNK_LEN + 77), 1);
	byte ^= 1;
	CHECK_EQ(pwrite(fd, &byte, 1, 2 * CHUNK_LEN + 77), 1);
	ts[0] = st.st_atim;
	ts[1] = st.st_mtim;
	CHECK(!futimens(fd, ts));
	close(fd);

	f = start(fr, "renamed/big", &o);
	CHECK_EQ(fetch_wait(f, 2 * CHUNK_LEN, 10, true), -EBADMSG);
	CHECK_EQ(fetch_wait(f, 4 * CHUNK_LEN, 10, true), 0);
	check_range(f, big_fd, 4 * CHUNK_LEN, 10);
	CHECK_SOON(o.told);
	CHECK_EQ(o.err, -EBADMSG);
	CHECK(!on_nvme(f));
	CHECK_EQ(fetch_wait(f, 0, BIG, true), -EBADMSG);
	CHECK_EQ(fetch_wait(f, 0, 10, true), 0);
	fetch_put(f);
}

static void tells_of_a_lost_object(struct fetcher *fr)
{
	struct outcome o = { 0 };
	struct fetch *f;

	CHECK(!unlink(at(dir, "step/sub/f9")));
	f = start(fr, "renamed/sub/f9", &o);
	CHECK_EQ(fetch_wait(f, 0, 1, true), -EIO);
	CHECK_SOON(o.told);
	CHECK_EQ(o.err, -EIO);
	CHECK(!on_nvme(f));
	fetch_put(f);
}

/* ---- the end, and a remote that is not there -------------------------- */

static atomic_bool hang;
static _Atomic unsigned n_hanging;
static const struct remote_ops *real_ops;

static ssize_t hang_read(struct remote_object *o, void *buf, size_t len,
			 uint64_t off)
{
	n_hanging++;
	while (hang)
		short_wait();
	n_hanging--;
	return real_ops->read_object(o, buf, len, off);
}

static void stops_although_it_hangs(void)
{
	static struct remote_ops ops;
	struct outcome o = { 0 };
	struct fetcher *fr;
	struct fetch *f;

	real_ops = r->ops;
	ops = *real_ops;
	ops.read_object = hang_read;
	r->ops = &ops;
	CHECK_EQ(fetcher_new(w.m, r, &fr), 0);
	hang = true;
	f = start(fr, "renamed/sub/f30", &o);
	CHECK_SOON(n_hanging);
	fetcher_free(fr);
	CHECK(o.told);
	CHECK_EQ(o.err, -ESHUTDOWN);
	CHECK_EQ(fetch_wait(f, 0, 1, true), -ESHUTDOWN);
	CHECK(!on_nvme(f));
	hang = false;
	CHECK_SOON(!n_hanging);
	fetch_put(f);
	r->ops = real_ops;
}

static void says_that_it_is_down(void)
{
	char why[256] = "";
	struct remote *none;
	uint64_t n;

	CHECK(!rename(dir, at(check_dir, "away")));
	CHECK_EQ(restore_import(w.m, r, &n, why, sizeof(why)), -ENOTCONN);
	CHECK(strstr(why, "is it mounted?"));
	CHECK_EQ(remote_open(at(check_dir, "no/parent"), &none), 0);
	CHECK_EQ(restore_import(w.m, none, &n, why, sizeof(why)), -ENOTCONN);
	remote_put(none);
}

int main(void)
{
	struct fetcher *fr;
	const char *nvme_dir;

	world_init(&w);
	dir = strdup(at(check_dir, "remote"));
	nvme_dir = strdup(at(check_dir, "nvme"));
	CHECK(!mkdir(nvme_dir, 0700));
	CHECK_EQ(tier_nvme_open(nvme_dir, 0, &nvme), 0);
	r = attached(dir);
	populate();
	imports();
	imports_what_is_not_durable();
	CHECK_EQ(fetcher_new(w.m, r, &fr), 0);
	fetches(fr);
	fetches_what_is_not_verified(fr);
	finds_what_was_renamed(fr);
	tells_of_a_broken_chunk(fr);
	tells_of_a_lost_object(fr);
	fetcher_free(fr);
	stops_although_it_hangs();
	says_that_it_is_down();
	nvme->ops->close(nvme);
	remote_put(r);
	world_close(&w);
	free((char *)nvme_dir);
	return 0;
}
