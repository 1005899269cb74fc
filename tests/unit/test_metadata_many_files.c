/* SPDX-License-Identifier: Apache-2.0 */
/* 100,000 files: the databases' memory stays bounded, nothing is lost. */
#include "tests/unit/metadata_fixture.h"

#define N 100000
#define MIB (UINT64_C(1) << 20)

static int count(void *arg, const char *name, const struct dentry_rec *d)
{
	(void)name;
	(void)d;
	++*(int *)arg;
	return 0;
}

int main(void)
{
	struct meta_usage u;
	struct world w;
	uint64_t dir;
	int n = 0;

	world_init(&w);
	dir = make_dir(w.m, META_ROOT_INO, "many");
	for (int i = 0; i < N; i++) {
		char name[32];

		snprintf(name, sizeof(name), "rank-%06d.pt", i);
		make_file(w.m, dir, name);
		if (i % 20000 == 19999)
			advance_all(w.m);
	}
	meta_usage(w.m, &u);
	fprintf(stderr,
		"memory %llu MiB, accepted %llu MiB, durable %llu MiB\n",
		(unsigned long long)(u.memory / MIB),
		(unsigned long long)(u.accepted / MIB),
		(unsigned long long)(u.durable / MIB));
	CHECK(u.memory > 0 && u.memory < 160 * MIB);
	CHECK(u.accepted > 0 && u.accepted < 256 * MIB);
	CHECK(u.durable > 0 && u.durable < 256 * MIB);
	CHECK(u.n_inodes > N * 9 / 10 && u.n_inodes < N * 11 / 10);
	world_restart(&w);
	CHECK_EQ(w.opened.start, META_CARRIED_ON);
	CHECK_EQ(view_readdir(meta_accepted(w.m), dir, 0, count, &n), 0);
	CHECK_EQ(n, N);
	meta_usage(w.m, &u);
	CHECK(u.memory < 160 * MIB);
	world_close(&w);
	return 0;
}
