/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One byte of the durable database's log flips: RocksDB takes what stands
 * before it for all there is. Whoever goes on from more than that notices.
 */
#include "metadata/internal.h"
#include "tests/unit/metadata_fixture.h"

static struct world w;

/* Its log: the largest file of that name, and how long it is. */
static off_t find_log(char path[PATH_MAX + 300])
{
	char dir[PATH_MAX + 50], file[PATH_MAX + 300];
	const struct dirent *e;
	off_t len = -1;
	struct stat st;
	DIR *d;

	snprintf(dir, sizeof(dir), "%s/db", w.durable);
	d = opendir(dir);
	CHECK(d);
	while ((e = readdir(d))) {
		size_t n = strlen(e->d_name);

		if (n < 5 || strcmp(e->d_name + n - 4, ".log") != 0)
			continue;
		snprintf(file, sizeof(file), "%s/%.200s", dir, e->d_name);
		CHECK(!stat(file, &st));
		if (st.st_size > len) {
			len = st.st_size;
			memcpy(path, file, sizeof(file));
		}
	}
	closedir(d);
	return len;
}

static void flip(const char *path, off_t at)
{
	int fd = open(path, O_RDWR);
	char c;

	CHECK(fd >= 0);
	CHECK_EQ(pread(fd, &c, 1, at), 1);
	c ^= 1;
	CHECK_EQ(pwrite(fd, &c, 1, at), 1);
	close(fd);
}

/* A state of which the log then loses "b" and "c". */
static void lose(void)
{
	char path[PATH_MAX + 300];
	off_t at;

	make_dir(w.m, META_ROOT_INO, "a");
	advance_all(w.m);
	at = find_log(path);
	make_dir(w.m, META_ROOT_INO, "b");
	advance_all(w.m);
	make_dir(w.m, META_ROOT_INO, "c");
	advance_all(w.m);
	flip(path, at + 40);
}

int main(void)
{
	world_init(&w);
	lose();
	CHECK_EQ(store_reopen(&w.m->durable, w.m->durable.generation),
		 -EUCLEAN);
	world_close(&w);
	CHECK_EQ(meta_open(&w.config, &w.opened, &w.m), -ESTALE);
	check_remove(w.accepted); /* a power cut, or somebody's decision */
	CHECK(!mkdir(w.accepted, 0700));
	world_open(&w);
	CHECK_EQ(w.opened.start, META_POWER_CUT);
	world_close(&w);
	return 0;
}
