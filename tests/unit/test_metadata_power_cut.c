/* SPDX-License-Identifier: Apache-2.0 */
/*
 * After a power cut there is exactly the state as of D; after the daemon's
 * death there is everything.
 */
#include "tests/unit/metadata_fixture.h"

static void fill(struct meta *m, uint64_t top, int from, int to)
{
	char name[32];

	for (int i = from; i < to; i++) {
		uint64_t ino;

		snprintf(name, sizeof(name), "file-%d", i);
		ino = make_file(m, top, name);
		seal_file(m, ino, (uint64_t)i);
		if (i % 7 == 0) {
			struct txn *t = txn_begin(m);

			txn_put_xattr(t, ino, "user.x", name, strlen(name));
			commit_ok(t);
		}
		if (i % 5 == 4) {
			snprintf(name, sizeof(name), "file-%d", i - 2);
			unlink_file(m, top, name);
		}
	}
}

int main(void)
{
	struct world w;
	char *as_of_d, *all, *got;
	uint64_t top, d, a, epoch;
	uint8_t uuid[16];

	world_init(&w);
	memcpy(uuid, meta_uuid(w.m), 16);
	top = make_dir(w.m, META_ROOT_INO, "step-1");
	make_dir(w.m, top, "sub");
	fill(w.m, top, 0, 300);
	as_of_d = dump_state(meta_accepted(w.m));
	advance_all(w.m);
	d = meta_nvme_seq(w.m);
	got = dump_durable(w.m);
	check_same(as_of_d, got);
	free(got);

	fill(w.m, top, 300, 500);
	unlink_file(w.m, top, "file-0");
	make_file(w.m, top, "unsealed");
	all = dump_state(meta_accepted(w.m));
	a = meta_accepted_seq(w.m);
	CHECK(a > d);

	epoch = meta_epoch(w.m);
	for (int i = 0; i < 3; i++) {
		world_restart(&w);
		CHECK_EQ(w.opened.start, META_CARRIED_ON);
		CHECK_STR(w.opened.reason, "");
		CHECK_EQ(meta_accepted_seq(w.m), a);
		CHECK_EQ(meta_nvme_seq(w.m), d);
		CHECK_EQ(meta_epoch(w.m), ++epoch);
		got = dump_state(meta_accepted(w.m));
		check_same(all, got);
		free(got);
	}
	CHECK(meta_new_ino(w.m) >> 40 == epoch);

	world_power_cut(&w);
	CHECK_EQ(w.opened.start, META_POWER_CUT);
	CHECK(w.opened.reason[0]);
	CHECK_EQ(w.opened.n_dropped, 0);
	CHECK_EQ(meta_accepted_seq(w.m), d);
	CHECK_EQ(meta_nvme_seq(w.m), d);
	CHECK(!memcmp(uuid, meta_uuid(w.m), 16));
	got = dump_state(meta_accepted(w.m));
	check_same(as_of_d, got);
	free(got);
	got = dump_durable(w.m);
	check_same(as_of_d, got);
	free(got);

	/* It goes on from there, and over the border between two epochs. */
	fill(w.m, top, 1000, 1100);
	free(all);
	all = dump_state(meta_accepted(w.m));
	world_restart(&w);
	make_file(w.m, top, "after");
	unlink_file(w.m, top, "after");
	free(all);
	all = dump_state(meta_accepted(w.m));
	advance_all(w.m);
	got = dump_durable(w.m);
	check_same(all, got);
	free(got);
	world_power_cut(&w);
	got = dump_state(meta_accepted(w.m));
	check_same(all, got);
	free(got);

	world_close(&w);
	free(all);
	free(as_of_d);
	return 0;
}
