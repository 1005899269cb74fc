/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An accepted state that does not belong to the durable one is kept aside,
 * one at most, and the mount goes on as after a power cut.
 */
#include "tests/unit/metadata_fixture.h"

static int count_aside(const char *dir)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	int n = 0;

	CHECK(d);
	while ((e = readdir(d)))
		n += !strncmp(e->d_name, "kept-aside-", 11);
	closedir(d);
	return n;
}

static void copy_dir(const char *from, const char *to)
{
	char cmd[3 * PATH_MAX];

	check_remove(to);
	CHECK(snprintf(cmd, sizeof(cmd), "cp -a '%s' '%s'", from, to) <
	      (int)sizeof(cmd));
	CHECK_EQ(system(cmd), 0);
}

/* The accepted state of an earlier epoch comes back from somewhere. */
static void older_epoch(struct world *w)
{
	char old[PATH_MAX + 32], *as_of_d, *got;

	snprintf(old, sizeof(old), "%s-old", w->accepted);
	world_close(w);
	copy_dir(w->accepted, old);
	world_open(w);
	CHECK_EQ(w->opened.start, META_CARRIED_ON);
	make_dir(w->m, META_ROOT_INO, "newer");
	advance_all(w->m);
	as_of_d = dump_state(meta_accepted(w->m));
	make_dir(w->m, META_ROOT_INO, "newest");
	world_close(w);

	copy_dir(old, w->accepted);
	world_open(w);
	CHECK_EQ(w->opened.start, META_POWER_CUT);
	CHECK(strstr(w->opened.reason, "epoch"));
	CHECK_EQ(count_aside(w->accepted), 1);
	got = dump_state(meta_accepted(w->m));
	check_same(as_of_d, got);
	free(got);
	free(as_of_d);

	/* a second one replaces the first */
	world_close(w);
	check_remove(old);
	snprintf(old, sizeof(old), "%s/db/CURRENT", w->accepted);
	FILE *f = fopen(old, "w");
	CHECK(f);
	fputs("nonsense\n", f);
	fclose(f);
	world_open(w);
	CHECK_EQ(w->opened.start, META_POWER_CUT);
	CHECK(strstr(w->opened.reason, "damaged"));
	CHECK_EQ(count_aside(w->accepted), 1);
}

/* Another mount's. */
static void other_uuid(struct world *w)
{
	char other[PATH_MAX + 32];
	uint8_t uuid[16];
	struct meta_config config = w->config;

	world_close(w);
	snprintf(other, sizeof(other), "%s-other", w->durable);
	CHECK(!mkdir(other, 0700));
	w->config.durable_dir = other;
	world_open(w);
	CHECK_EQ(w->opened.start, META_FRESH);
	memcpy(uuid, meta_uuid(w->m), 16);
	world_close(w);

	w->config = config;
	world_open(w);
	CHECK_EQ(w->opened.start, META_POWER_CUT);
	CHECK(strstr(w->opened.reason, "UUID"));
	CHECK(memcmp(uuid, meta_uuid(w->m), 16));
	CHECK_EQ(count_aside(w->accepted), 1);
}

/* A copy that was not finished has no identity: thrown away, not kept. */
static void unfinished(struct world *w)
{
	char path[PATH_MAX + 64];

	world_close(w);
	check_remove(w->accepted);
	CHECK(!mkdir(w->accepted, 0700));
	snprintf(path, sizeof(path), "%s/db", w->accepted);
	CHECK(!mkdir(path, 0700));
	world_open(w);
	CHECK_EQ(w->opened.start, META_POWER_CUT);
	CHECK_EQ(count_aside(w->accepted), 0);
}

int main(void)
{
	struct world w;

	world_init(&w);
	make_dir(w.m, META_ROOT_INO, "d");
	advance_all(w.m);
	older_epoch(&w);
	other_uuid(&w);
	unfinished(&w);
	world_close(&w);
	return 0;
}
