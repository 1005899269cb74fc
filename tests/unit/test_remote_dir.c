/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory remote: what is put there comes back, with and without xattrs on
 * its filesystem; what others put or change there is never taken for ours; and
 * nobody is led out of it.
 */
#include <sys/resource.h>

#include "tests/unit/publish_fixture.h"

static const char *base;

static int found(void *arg, const char *name)
{
	char *names = arg;

	CHECK(strlen(names) + strlen(name) + 2 < 4096);
	strncat(names, name, 4000);
	strncat(names, " ", 2);
	return 0;
}

static struct remote_attr get(struct remote *r, const char *path)
{
	struct remote_attr a = { 0 };

	CHECK_EQ(r->ops->get_attr(r, path, &a), 0);
	return a;
}

static void stage_place(struct remote *r, const char *path,
			const struct remote_attr *a, int fd)
{
	_Atomic uint64_t moved = 0;

	CHECK_EQ(r->ops->stage(r, a, fd, &moved), 0);
	CHECK_EQ(r->ops->place(r, path, a), 0);
	CHECK(moved <= a->size);
}

static void check_object(struct remote *r, const char *path,
			 const struct remote_attr *want)
{
	struct remote_attr got = get(r, path);

	CHECK_EQ(got.mode, want->mode);
	CHECK_EQ(got.uid, want->uid);
	CHECK_EQ(got.gid, want->gid);
	CHECK_EQ(got.mtime_ns, want->mtime_ns);
	CHECK_EQ(got.size, want->size);
	CHECK_STR(got.identity, want->identity);
	CHECK(remote_attr_verified(&got));
	CHECK_EQ(got.n_chunks, want->n_chunks);
	CHECK(!got.n_chunks || !memcmp(got.crcs, want->crcs, 4 * got.n_chunks));
	CHECK(remote_attr_same_xattrs(&got, want));
	remote_attr_fini(&got);
}

static void goes_there_and_back(struct remote *r, const char *dir)
{
	const size_t size = CHUNK_LEN + 12345;
	int fd = content_fd(1, size), empty = content_fd(2, 0);
	struct remote_attr a = attr_with(1, fd, size);
	struct remote_attr b = attr_with(2, empty, 0), d = dir_attr(0750);
	char names[4096] = "";

	CHECK_EQ(remote_attr_set_xattr(&a, "user.note", "hello", 5), 0);
	CHECK_EQ(remote_attr_set_xattr(&a, "security.odd", "x\0y", 3), 0);
	CHECK_EQ(r->ops->mkdir(r, "step-1", &d), 0);
	CHECK_EQ(r->ops->mkdir(r, "step-1", &d), 0);
	stage_place(r, "step-1/rank0.pt", &a, fd);
	stage_place(r, "step-1/empty", &b, empty);
	check_object(r, "step-1/rank0.pt", &a);
	check_object(r, "step-1/empty", &b);
	CHECK(same_bytes(fd, at(dir, "step-1/rank0.pt")));
	CHECK_EQ(r->ops->list(r, "", found, names), 0);
	CHECK_STR(names, "step-1 ");
	CHECK_EQ(n_entries(at(dir, ".ckptfs/staged")), 0);
	CHECK_EQ(n_entries(at(dir, ".ckptfs/versions")), 2);
	CHECK_EQ(r->ops->sync(r, false), 0);

	/* Again: done is done; unstaging what is placed takes nothing away. */
	CHECK_EQ(r->ops->place(r, "step-1/rank0.pt", &a), 0);
	CHECK_EQ(r->ops->unstage_all(r, UUID0), 0);
	check_object(r, "step-1/rank0.pt", &a);
	CHECK_EQ(r->ops->place(r, "step-1/other", &a), -ENOENT);

	/* Attributes, also the mtime that the sidecar is matched by. */
	a.mtime_ns = 1700000000 * NS + 7;
	a.mode = S_IFREG | 0604;
	remote_attr_del_xattr(&a, "user.note");
	CHECK_EQ(remote_attr_set_xattr(&a, "user.more", "", 0), 0);
	CHECK_EQ(r->ops->set_attr(r, "step-1/rank0.pt", &a), 0);
	check_object(r, "step-1/rank0.pt", &a);
	remote_attr_fini(&a);
	remote_attr_fini(&b);
	close(fd);
	close(empty);
}

static void overwrites_and_removes(struct remote *r, const char *dir)
{
	int fd = content_fd(3, 5000), fd2 = content_fd(4, 70000);
	struct remote_attr a = attr_with(3, fd, 5000);
	struct remote_attr b = attr_with(4, fd2, 70000);
	unsigned n = n_entries(at(dir, ".ckptfs/versions"));

	stage_place(r, "latest", &a, fd);
	stage_place(r, "latest", &b, fd2);
	check_object(r, "latest", &b);
	CHECK_EQ(n_entries(at(dir, ".ckptfs/versions")), n + 1);
	CHECK_EQ(r->ops->remove(r, "latest"), 0);
	CHECK_EQ(r->ops->remove(r, "latest"), 0);
	CHECK_EQ(r->ops->remove(r, "no/such/dir"), 0);
	CHECK_EQ(n_entries(at(dir, ".ckptfs/versions")), n);
	CHECK_EQ(r->ops->remove(r, "step-1"), -ENOTEMPTY);
	remote_attr_fini(&a);
	remote_attr_fini(&b);
	close(fd);
	close(fd2);
}

static void links_are_objects(struct remote *r)
{
	int fd = content_fd(5, 9000);
	struct remote_attr a = attr_with(5, fd, 9000), b;

	stage_place(r, "one", &a, fd);
	CHECK_EQ(r->ops->link(r, "one", "two"), 0);
	CHECK_EQ(r->ops->link(r, "one", "two"), 0);
	CHECK_EQ(r->ops->link(r, "none", "three"), -ENOENT);
	check_object(r, "two", &a);
	b = get(r, "two");
	b.mode = S_IFREG | 0600;
	b.mtime_ns += NS;
	CHECK_EQ(r->ops->set_attr(r, "two", &b), 0);
	check_object(r, "two", &b);
	check_object(r, "one", &a);
	CHECK_EQ(r->ops->remove(r, "one"), 0);
	check_object(r, "two", &b);
	CHECK_EQ(r->ops->remove(r, "two"), 0);
	remote_attr_fini(&a);
	remote_attr_fini(&b);
	close(fd);
}

static void renames(struct remote *r)
{
	int fd = content_fd(6, 600), fd2 = content_fd(7, 700);
	struct remote_attr a = attr_with(6, fd, 600);
	struct remote_attr b = attr_with(7, fd2, 700), d = dir_attr(0700);

	CHECK_EQ(r->ops->mkdir(r, "tmp", &d), 0);
	CHECK_EQ(r->ops->mkdir(r, "tmp/sub", &d), 0);
	stage_place(r, "tmp/sub/x", &a, fd);
	stage_place(r, "y", &b, fd2);
	CHECK_EQ(r->ops->rename(r, "tmp", "step-2"), 0);
	CHECK_EQ(r->ops->rename(r, "tmp", "step-2"), -ENOENT);
	check_object(r, "step-2/sub/x", &a);
	CHECK_EQ(r->ops->exchange(r, "step-2/sub/x", "y"), 0);
	check_object(r, "y", &a);
	check_object(r, "step-2/sub/x", &b);
	CHECK_EQ(r->ops->rename(r, "y", "step-2/sub/x"), 0);
	check_object(r, "step-2/sub/x", &a);
	CHECK_EQ(r->ops->remove(r, "step-2/sub/x"), 0);
	CHECK_EQ(r->ops->remove(r, "step-2/sub"), 0);
	CHECK_EQ(r->ops->remove(r, "step-2"), 0);
	remote_attr_fini(&a);
	remote_attr_fini(&b);
	close(fd);
	close(fd2);
}

static void symlinks(struct remote *r)
{
	struct remote_attr a = { .mode = S_IFLNK | 0777,
				 .uid = getuid(),
				 .gid = getgid(),
				 .mtime_ns = 1400000000 * NS + 5 };
	struct remote_attr got;

	a.target = strdup("step-1/rank0.pt");
	CHECK_EQ(r->ops->symlink(r, "last", &a), 0);
	CHECK_EQ(r->ops->symlink(r, "last", &a), 0);
	got = get(r, "last");
	CHECK_STR(got.target, "step-1/rank0.pt");
	CHECK_EQ(got.mtime_ns, a.mtime_ns);
	remote_attr_fini(&got);
	free(a.target);
	a.target = strdup("elsewhere");
	CHECK_EQ(r->ops->symlink(r, "last", &a), 0);
	got = get(r, "last");
	CHECK_STR(got.target, "elsewhere");
	remote_attr_fini(&got);
	remote_attr_fini(&a);
	CHECK_EQ(r->ops->remove(r, "last"), 0);
}

static void others_files_are_theirs(struct remote *r, const char *dir)
{
	int fd = content_fd(8, 5);
	struct remote_attr a = attr_with(8, fd, 5), got;
	struct remote_object *o;
	char buf[16], object[64];

	write_text(at(dir, "foreign"), "not ours");
	got = get(r, "foreign");
	CHECK_STR(got.identity, "");
	CHECK(!remote_attr_verified(&got));
	CHECK_EQ(got.size, 8);
	remote_object_of(&got, object);
	remote_attr_fini(&got);

	/* Told by size and time, also while it is being read. */
	CHECK_EQ(r->ops->open_object(r, "foreign", object, &o), 0);
	CHECK_EQ(r->ops->read_object(o, buf, sizeof(buf), 0), 8);
	write_text(at(dir, "foreign"), "not ours either");
	CHECK_EQ(r->ops->read_object(o, buf, sizeof(buf), 0), -EBADMSG);
	r->ops->close_object(o);
	CHECK_EQ(r->ops->open_object(r, "foreign", object, &o), -ENOENT);

	/* Edited in place on the remote, to the same size. */
	stage_place(r, "latest", &a, fd);
	CHECK_EQ(r->ops->open_object(r, "latest", a.identity, &o), 0);
	CHECK_EQ(r->ops->read_object(o, buf, sizeof(buf), 1), 4);
	r->ops->close_object(o);
	write_text(at(dir, "latest"), "other");
	got = get(r, "latest");
	CHECK_STR(got.identity, "");
	remote_attr_fini(&got);
	CHECK_EQ(r->ops->open_object(r, "latest", a.identity, &o), -ENOENT);
	CHECK_EQ(r->ops->open_object(r, "latest", "", &o), 0);
	CHECK_EQ(r->ops->read_object(o, buf, sizeof(buf), 0), 5);
	CHECK(!memcmp(buf, "other", 5));
	r->ops->close_object(o);
	CHECK_EQ(r->ops->remove(r, "latest"), 0);
	CHECK_EQ(r->ops->remove(r, "foreign"), 0);
	remote_attr_fini(&a);
	close(fd);
}

static void a_broken_source_is_not_staged(struct remote *r, const char *dir)
{
	int fd = content_fd(9, 100000);
	struct remote_attr a = attr_with(9, fd, 100000);
	_Atomic uint64_t moved = 0;

	a.crcs[0] ^= 1;
	CHECK_EQ(r->ops->stage(r, &a, fd, &moved), -EBADMSG);
	CHECK_EQ(n_entries(at(dir, ".ckptfs/staged")), 0);
	a.crcs[0] ^= 1;
	a.size += 10; /* shorter than its record */
	CHECK_EQ(r->ops->stage(r, &a, fd, &moved), -EBADMSG);
	CHECK_EQ(n_entries(at(dir, ".ckptfs/staged")), 0);
	remote_attr_fini(&a);
	close(fd);
}

static void restages(struct remote *r)
{
	int fd = content_fd(10, 4321);
	struct remote_attr a = attr_with(10, fd, 4321);

	CHECK_EQ(r->ops->restage(r, &a, NULL), -ENOENT);
	CHECK_EQ(r->ops->restage(r, &a, "old"), -ENOENT);
	stage_place(r, "old", &a, fd);
	CHECK_EQ(r->ops->restage(r, &a, "old"), 0);
	CHECK_EQ(r->ops->restage(r, &a, NULL), 0);
	CHECK_EQ(r->ops->place(r, "new", &a), 0);
	check_object(r, "new", &a);
	CHECK_EQ(r->ops->remove(r, "old"), 0);
	check_object(r, "new", &a);
	CHECK_EQ(r->ops->remove(r, "new"), 0);
	remote_attr_fini(&a);
	close(fd);
}

static void nobody_is_led_out(struct remote *r, const char *dir)
{
	int fd = content_fd(11, 10);
	struct remote_attr a = attr_with(11, fd, 10), got;
	_Atomic uint64_t moved = 0;
	char buf[8];

	write_text(at(base, "secret"), "secret");
	CHECK(!symlink("..", at(dir, "up")));
	CHECK(!symlink(at(base, "secret"), at(dir, "leak")));
	CHECK_EQ(r->ops->stage(r, &a, fd, &moved), 0);
	CHECK_EQ(r->ops->place(r, "up/secret", &a), -ENOTDIR);
	CHECK_EQ(r->ops->get_attr(r, "up/secret", &got), -ENOENT);
	CHECK(r->ops->read(r, "leak", buf, 6, 0) < 0);
	CHECK_EQ(r->ops->get_attr(r, "../secret", &got), -EINVAL);
	CHECK_EQ(r->ops->get_attr(r, "a//b", &got), -EINVAL);
	CHECK_EQ(r->ops->get_attr(r, "a/", &got), -EINVAL);
	CHECK_EQ(r->ops->get_attr(r, ".ckptfs/id", &got), -EINVAL);
	CHECK_EQ(r->ops->place(r, ".ckptfs", &a), -EINVAL);
	CHECK_EQ(r->ops->place(r, "leak", &a), 0); /* replaces the link */
	check_object(r, "leak", &a);
	CHECK_EQ(open(at(base, "secret"), O_RDONLY) >= 0, 1);
	CHECK_EQ(r->ops->remove(r, "leak"), 0);
	CHECK_EQ(r->ops->remove(r, "up"), 0);
	remote_attr_fini(&a);
	close(fd);
}

static void works_on(const char *name, bool xattrs)
{
	const char *dir = strdup(at(base, name));
	struct remote *r = attached(dir);

	if (!xattrs)
		remote_dir_without_xattrs(r);
	goes_there_and_back(r, dir);
	overwrites_and_removes(r, dir);
	links_are_objects(r);
	renames(r);
	symlinks(r);
	others_files_are_theirs(r, dir);
	a_broken_source_is_not_staged(r, dir);
	restages(r);
	nobody_is_led_out(r, dir);
	CHECK_EQ(r->ops->remove(r, "step-1/rank0.pt"), 0);
	CHECK_EQ(r->ops->remove(r, "step-1/empty"), 0);
	CHECK_EQ(r->ops->remove(r, "step-1"), 0);
	CHECK_EQ(n_entries(at(dir, ".ckptfs/versions")), 0);
	CHECK_EQ(n_entries(at(dir, ".ckptfs/names")), 0);
	CHECK_EQ(n_entries(dir), 1); /* .ckptfs */
	remote_put(r);
	free((char *)dir);
}

/* A vanished mount is not an empty remote. */
static void is_down_without_its_marker(void)
{
	const char *dir = strdup(at(base, "mnt"));
	char id[REMOTE_ID_ROOM] = "", id2[REMOTE_ID_ROOM] = "", why[256];
	struct remote *r = attached(dir), *r2;
	struct remote_attr d = dir_attr(0755);

	CHECK_EQ(r->ops->attach(r, id, why, sizeof(why)), 0);
	CHECK_EQ(strlen(id), 32);
	CHECK(!rename(dir, at(base, "away")));
	CHECK_EQ(r->ops->mkdir(r, "x", &d), -ENOTCONN);
	CHECK_EQ(r->ops->attach(r, id, why, sizeof(why)), -ENOTCONN);
	CHECK(!exists(dir));
	CHECK(!mkdir(dir, 0755)); /* the bare mount point */
	CHECK_EQ(r->ops->mkdir(r, "x", &d), -ENOTCONN);
	CHECK_EQ(r->ops->attach(r, id, why, sizeof(why)), -ENOTCONN);
	CHECK_EQ(r->ops->probe(r, why, sizeof(why)), -ENOTCONN);
	CHECK_EQ(n_entries(dir), 0);
	CHECK_EQ(remote_open(dir, &r2), 0); /* another, fresh remote there */
	CHECK_EQ(r2->ops->attach(r2, id2, why, sizeof(why)), 0);
	CHECK_EQ(r->ops->attach(r, id, why, sizeof(why)), -EMEDIUMTYPE);
	CHECK(strstr(why, "another remote"));
	remote_put(r2);
	check_remove(dir);
	CHECK(!rename(at(base, "away"), dir));
	CHECK_EQ(r->ops->attach(r, id, why, sizeof(why)), 0);
	CHECK_EQ(r->ops->mkdir(r, "x", &d), 0);
	CHECK_EQ(r->ops->probe(r, why, sizeof(why)), 0);
	remote_put(r);
	free((char *)dir);
}

static void specs(void)
{
	struct remote *r;
	char why[128], id[REMOTE_ID_ROOM] = "";

	CHECK_EQ(remote_open("ftp://x", &r), -EINVAL);
	CHECK_EQ(remote_open("dir:relative", &r), -EINVAL);
	CHECK_EQ(remote_open("/", &r), -EINVAL);
	CHECK_EQ(remote_open("s3://bucket/prefix", &r), -EOPNOTSUPP);
	CHECK_EQ(remote_open(at(base, "no/parent"), &r), 0);
	CHECK(r->ops->probe(r, why, sizeof(why)) < 0);
	CHECK_EQ(r->ops->attach(r, id, why, sizeof(why)), -ENOTCONN);
	remote_put(r);
}

static unsigned mode_of(const char *path)
{
	struct stat st;

	CHECK_EQ(stat(path, &st), 0);
	return st.st_mode & 07777;
}

static void chmod_to(struct remote *r, const char *path, unsigned mode)
{
	struct remote_attr a = get(r, path);

	a.mode = (a.mode & S_IFMT) | mode;
	CHECK_EQ(r->ops->set_attr(r, path, &a), 0);
	remote_attr_fini(&a);
}

/* A user takes his own rights away; what is to be done is done all the same,
 * and the modes stay. */
static void what_is_closed_is_reached(const char *dir)
{
	int fd = content_fd(14, 1000);
	struct remote *r = attached(dir);
	struct remote_attr a = attr_with(14, fd, 1000), b, d = dir_attr(0700);

	b = attr_with(15, fd, 1000);
	a.mode = S_IFREG | 0200;
	CHECK_EQ(remote_attr_set_xattr(&a, "user.note", "1", 1), 0);
	CHECK_EQ(r->ops->mkdir(r, "c", &d), 0);
	CHECK_EQ(r->ops->mkdir(r, "c/d", &d), 0);
	stage_place(r, "c/d/f", &a, fd);
	check_object(r, "c/d/f", &a);
	chmod_to(r, "c/d", 0500);
	chmod_to(r, "c", 0);
	CHECK_EQ(r->ops->link(r, "c/d/f", "c/d/g"), 0);
	stage_place(r, "c/d/h", &b, fd);
	check_object(r, "c/d/g", &a);
	check_object(r, "c/d/h", &b);
	CHECK_EQ(r->ops->rename(r, "c/d/g", "c/d/i"), 0);
	CHECK_EQ(r->ops->remove(r, "c/d/f"), 0);
	check_object(r, "c/d/i", &a);
	chmod_to(r, "c/d", 0);
	CHECK_EQ(mode_of(at(dir, "c")), 0);
	chmod_to(r, "c", 0700);
	CHECK_EQ(mode_of(at(dir, "c/d")), 0);
	CHECK_EQ(r->ops->remove(r, "c/d/h"), 0);
	CHECK_EQ(r->ops->remove(r, "c/d/i"), 0);
	CHECK_EQ(r->ops->remove(r, "c/d"), 0);
	CHECK_EQ(r->ops->remove(r, "c"), 0);
	remote_attr_fini(&a);
	remote_attr_fini(&b);
	remote_put(r);
	close(fd);
}

/* What an ordinary user cannot set comes back from the sidecar. */
static void what_cannot_be_set_is_kept(void)
{
	const char *dir = strdup(at(base, "plain"));
	int fd = content_fd(12, 1000), status;
	pid_t pid;

	if (getuid())
		return;
	CHECK(!mkdir(dir, 0700) && !chown(dir, 4711, 4711));
	CHECK(!chmod(base, 0755));
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		struct remote_attr a = attr_with(12, fd, 1000), d, got;
		struct remote *r;

		CHECK(!setgid(4711) && !setuid(4711));
		what_is_closed_is_reached(dir);
		r = attached(dir);
		a.uid = 17;
		a.gid = 18;
		CHECK_EQ(remote_attr_set_xattr(&a, "trusted.t", "1", 1), 0);
		d = dir_attr(0711);
		d.uid = 19;
		d.gid = 20;
		CHECK_EQ(r->ops->mkdir(r, "d", &d), 0);
		stage_place(r, "d/f", &a, fd);
		check_object(r, "d/f", &a);
		CHECK_EQ(r->ops->rename(r, "d", "e"), 0);
		check_object(r, "e/f", &a);
		got = get(r, "e");
		CHECK_EQ(got.uid, 19);
		CHECK_EQ(got.gid, 20);
		CHECK_EQ(got.mode, S_IFDIR | 0711);
		remote_attr_fini(&got);
		remote_attr_fini(&a);
		remote_put(r);
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	close(fd);
	free((char *)dir);
}

static long peak_kib(void)
{
	struct rusage use;

	CHECK_EQ(getrusage(RUSAGE_SELF, &use), 0);
	return use.ru_maxrss;
}

/* Records come from a store that others write to. */
static void broken_records_are_no_records(void)
{
	const char *dir = strdup(at(base, "broken"));
	struct remote *r = attached(dir);
	int fd = content_fd(13, 1000), rec;
	struct remote_attr a = attr_with(13, fd, 1000), got;
	uint8_t whole[4096];
	ssize_t len;
	long peak;
	struct sidecar s;
	char tag[TAG_LEN + 1] = "", side[PATH_MAX];

	stage_place(r, "f", &a, fd);
	CHECK(getxattr(at(dir, "f"), TAG_XATTR, tag, TAG_LEN) > 49);
	snprintf(side, sizeof(side), "%s/.ckptfs/versions/%s", dir, tag);
	rec = open(side, O_RDWR);
	CHECK(rec >= 0);
	len = pread(rec, whole, sizeof(whole), 0);
	CHECK(len > 96);
	for (ssize_t i = 0; i < len; i++) {
		CHECK(sidecar_decode(whole, (size_t)i, &s) < 0);
		whole[i] ^= 0x40;
		CHECK(sidecar_decode(whole, (size_t)len, &s) < 0);
		whole[i] ^= 0x40;
	}
	CHECK_EQ(sidecar_decode(whole, (size_t)len, &s), 0);
	sidecar_fini(&s);
	/* Longer than it says: not even looked at. */
	CHECK_EQ(ftruncate(rec, (off_t)1 << 30), 0);
	peak = peak_kib();
	got = get(r, "f");
	CHECK_STR(got.identity, "");
	remote_attr_fini(&got);
	CHECK(WITH_TSAN || peak_kib() < peak + (256 << 10));
	CHECK_EQ(ftruncate(rec, len), 0);
	check_object(r, "f", &a);
	CHECK_EQ(pwrite(rec, "x", 1, 50), 1);
	close(rec);
	got = get(r, "f");
	CHECK_STR(got.identity, "");
	CHECK_EQ(got.size, 1000);
	remote_attr_fini(&got);
	remote_attr_fini(&a);
	remote_put(r);
	close(fd);
	free((char *)dir);
}

int main(void)
{
	base = check_tmpdir();
	works_on("with", true);
	works_on("without", false);
	is_down_without_its_marker();
	specs();
	if (!WITH_TSAN)
		what_cannot_be_set_is_kept();
	broken_records_are_no_records();
	return 0;
}
