/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The durable database on a filesystem that somebody else fills: D stands
 * still with -ENOSPC, reads go on, and D goes on once there is room again.
 */
#include <sys/statvfs.h>

#include "tests/unit/metadata_fixture.h"

#define SMALL_LEN 60000

static uint64_t free_room(const char *dir)
{
	struct statvfs st;

	CHECK(!statvfs(dir, &st));
	return (uint64_t)st.f_bavail * st.f_frsize;
}

/* Fills dir but for `leave` bytes. */
static void fill(const char *dir, uint64_t leave)
{
	static char block[65536];
	char path[PATH_MAX + 32];
	uint64_t room = free_room(dir);
	int fd;

	snprintf(path, sizeof(path), "%s/filler", dir);
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
	CHECK(fd >= 0);
	memset(block, 'x', sizeof(block));
	for (; room > leave; room -= 4096)
		if (write(fd, block, 4096) != 4096)
			break;
	close(fd);
}

static void make_room(const char *dir)
{
	char path[PATH_MAX + 32];

	snprintf(path, sizeof(path), "%s/filler", dir);
	CHECK(!unlink(path));
}

/* One file with a small content, up to D. Returns meta_advance()'s answer. */
static int advance_one(struct world *w, int i, char *content)
{
	char name[32];
	struct copy_rec c;
	struct small_content s;
	uint64_t ino, version;

	snprintf(name, sizeof(name), "f%d", i);
	ino = make_file(w->m, META_ROOT_INO, name);
	version = seal_file(w->m, ino, SMALL_LEN);
	memset(content, 'a' + i % 26, SMALL_LEN);
	for (int k = 0; k < SMALL_LEN; k++)
		content[k] = (char)(rand() % 256);
	c = file_copy(version, SMALL_LEN);
	c.kind = COPY_SMALL;
	s = (struct small_content){ version, content, SMALL_LEN };
	return meta_advance(w->m, meta_accepted_seq(w->m), &c, 1, &s, 1);
}

static void run(struct world *w, uint64_t leave)
{
	char *content = malloc(SMALL_LEN), *all, *got;
	int n = 0, err = 0, failed = 0;
	uint64_t d;
	struct inode_rec rec;
	struct view *v;

	for (; n < 20; n++)
		CHECK_EQ(advance_one(w, n, content), 0);
	CHECK(meta_reserve_hold(w->m));
	fill(w->durable, leave);
	for (; n < 2000 && failed < 5; n++) {
		err = advance_one(w, n, content);
		CHECK(!err || err == -ENOSPC);
		failed += !!err;
	}
	CHECK_EQ(err, -ENOSPC);
	CHECK(!meta_reserve_hold(w->m));
	d = meta_nvme_seq(w->m);
	CHECK(d < meta_accepted_seq(w->m));
	/* create, ls and unlink do not touch it; reading it works */
	make_file(w->m, META_ROOT_INO, "while-full");
	unlink_file(w->m, META_ROOT_INO, "while-full");
	CHECK_EQ(meta_durable_view(w->m, &v), 0);
	CHECK_EQ(view_seq(v), d);
	CHECK_EQ(view_inode(v, META_ROOT_INO, &rec), 0);
	view_free(v);

	make_room(w->durable);
	advance_all(w->m);
	CHECK(meta_reserve_hold(w->m));
	all = dump_state(meta_accepted(w->m));
	world_power_cut(w);
	got = dump_state(meta_accepted(w->m));
	check_same(all, got);
	free(got);
	free(all);
	free(content);
}

int main(void)
{
	struct world w;

	world_init(&w);
	world_close(&w);
	if (mount("tmpfs", w.durable, "tmpfs", 0, "size=96m,mode=0700"))
		SKIP("cannot mount a tmpfs: %s", strerror(errno));
	w.config.reserve_len = 16 << 20;
	for (uint64_t leave = 0; leave <= 8 << 20; leave += 2 << 20) {
		memset(&w.opened, 0, sizeof(w.opened));
		world_open(&w);
		run(&w, leave);
		world_close(&w);
		CHECK(!umount(w.durable));
		CHECK(!mount("tmpfs", w.durable, "tmpfs", 0,
			     "size=96m,mode=0700"));
	}
	CHECK(!umount(w.durable));
	return 0;
}
