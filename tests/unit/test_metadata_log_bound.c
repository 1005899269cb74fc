/* SPDX-License-Identifier: Apache-2.0 */
/* A target is bounded in bytes of log; chains of targets reach the end. */
#include "tests/unit/metadata_fixture.h"

int main(void)
{
	uint64_t first, n, last, steps = 0;
	struct world w;
	char *big;

	world_init(&w);
	CHECK_EQ(meta_log_bound(w.m, UINT64_MAX, 1, &n), 0);
	CHECK_EQ(n, meta_nvme_seq(w.m)); /* nothing to do */
	CHECK_EQ(meta_advance(w.m, n, NULL, 0, NULL, 0), -EINVAL);
	for (int i = 0; i < 1000; i++) {
		char name[32];

		snprintf(name, sizeof(name), "f%d", i);
		make_file(w.m, META_ROOT_INO, name);
	}
	first = meta_nvme_seq(w.m);
	last = meta_accepted_seq(w.m);
	CHECK_EQ(last - first, 1000);
	CHECK_EQ(meta_log_bound(w.m, UINT64_MAX, 64 << 20, &n), 0);
	CHECK_EQ(n, last);
	CHECK_EQ(meta_log_bound(w.m, first + 10, 64 << 20, &n), 0);
	CHECK_EQ(n, first + 10);
	CHECK_EQ(meta_log_bound(w.m, UINT64_MAX, 1, &n), 0);
	CHECK_EQ(n, first + 1); /* at least one */
	CHECK_EQ(meta_log_bound(w.m, UINT64_MAX, 100000, &n), 0);
	CHECK(n > first + 50 && n < last);
	CHECK_EQ(meta_log_bound(w.m, first + 20, 100000, &n), 0);
	CHECK_EQ(n, first + 20);
	CHECK_EQ(meta_advance(w.m, last + 1, NULL, 0, NULL, 0), -EINVAL);

	/* one entry larger than the bound goes alone */
	big = calloc(1, 65536);
	struct txn *t = txn_begin(w.m);
	txn_put_xattr(t, META_ROOT_INO, "user.big", big, 65536);
	last = commit_ok(t);
	free(big);
	world_restart(&w); /* the bound survives a restart */
	while (meta_nvme_seq(w.m) < last) {
		CHECK_EQ(meta_log_bound(w.m, last, 30000, &n), 0);
		CHECK(n > meta_nvme_seq(w.m) && n <= last);
		CHECK_EQ(meta_advance(w.m, n, NULL, 0, NULL, 0), 0);
		steps++;
	}
	CHECK(steps > 10 && steps < 100);
	world_close(&w);
	return 0;
}
