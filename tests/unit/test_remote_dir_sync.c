/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a directory remote fsyncs: each folder in which something was made or
 * removed, those of the records among them, before sync() returns.
 */
#include <sys/syscall.h>

#include "tests/unit/publish_fixture.h"

#define SYNCED_MAX 32u

static struct stat synced[SYNCED_MAX]; /* since the last forget() */
static unsigned n_synced;

/* Stands in for that of the C library. */
int fsync(int fd)
{
	if (n_synced < SYNCED_MAX && !fstat(fd, &synced[n_synced]))
		n_synced++;
	return (int)syscall(SYS_fsync, fd);
}

/* Does sync() bring the folder to the disk? Asked anew. */
static bool syncs(struct remote *r, const char *folder)
{
	struct stat st;

	n_synced = 0;
	CHECK_EQ(r->ops->sync(r, false), 0);
	CHECK_EQ(stat(folder, &st), 0);
	for (unsigned i = 0; i < n_synced; i++)
		if (synced[i].st_dev == st.st_dev &&
		    synced[i].st_ino == st.st_ino)
			return true;
	return false;
}

/* A clean start: nothing waits for a sync. */
static void settle(struct remote *r)
{
	CHECK_EQ(r->ops->sync(r, false), 0);
}

/* What only a sidecar can hold. */
static void odd_xattr(struct remote_attr *a, const char *value)
{
	CHECK_EQ(remote_attr_set_xattr(a, "security.odd", value, 1), 0);
}

static void record_of_an_object(struct remote *r, const char *dir)
{
	int fd = content_fd(1, 1000);
	struct remote_attr a = attr_with(1, fd, 1000);
	_Atomic uint64_t moved = 0;

	CHECK_EQ(r->ops->stage(r, &a, fd, &moved), 0);
	CHECK_EQ(r->ops->place(r, "f", &a), 0);
	CHECK(syncs(r, dir));
	odd_xattr(&a, "1");
	CHECK_EQ(r->ops->set_attr(r, "f", &a), 0);
	CHECK(syncs(r, at(dir, ".ckptfs/versions")));
	remote_attr_fini(&a);
	close(fd);
}

static void record_of_a_name(struct remote *r, const char *dir)
{
	struct remote_attr a = dir_attr(0755);

	CHECK_EQ(r->ops->mkdir(r, "d", &a), 0);
	settle(r);
	odd_xattr(&a, "1");
	CHECK_EQ(r->ops->set_attr(r, "d", &a), 0);
	CHECK(syncs(r, at(dir, ".ckptfs"))); /* names/ is new */
	odd_xattr(&a, "2");
	CHECK_EQ(r->ops->set_attr(r, "d", &a), 0);
	CHECK(syncs(r, at(dir, ".ckptfs/names")));
	remote_attr_del_xattr(&a, "security.odd");
	CHECK_EQ(r->ops->set_attr(r, "d", &a), 0);
	CHECK_EQ(n_entries(at(dir, ".ckptfs/names")), 0);
	CHECK(syncs(r, at(dir, ".ckptfs/names")));
	remote_attr_fini(&a);
}

/* What others did is not in the set. */
static void all_of_it(struct remote *r, const char *dir)
{
	settle(r);
	CHECK(!syncs(r, dir));
	CHECK_EQ(r->ops->sync(r, true), 0);
	CHECK(n_synced >= 4);
}

int main(void)
{
	const char *dir = strdup(at(check_tmpdir(), "store"));
	struct remote *r = attached(dir);

	record_of_an_object(r, dir);
	record_of_a_name(r, dir);
	all_of_it(r, dir);
	remote_put(r);
	free((char *)dir);
	return 0;
}
