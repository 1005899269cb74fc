/* SPDX-License-Identifier: Apache-2.0 */
/* Events come back with all their fields, in order, until R has passed. */
#include "tests/unit/metadata_fixture.h"

static const char *const three[] = { "a", "dir/b", "dir/with space/c" };

static struct event full(struct world *w, enum event_kind kind)
{
	return (struct event){
		.kind = kind,
		.version = 42,
		.rec = { .ino = meta_new_ino(w->m),
			 .mode = S_IFREG | 0604,
			 .uid = 1,
			 .gid = 2,
			 .nlink = 3,
			 .rdev = 4,
			 .size = UINT64_MAX,
			 .blocks = 6,
			 .atime_ns = -7,
			 .mtime_ns = 8,
			 .ctime_ns = 9,
			 .version = 42,
			 .parent = 11,
			 .seq = 12 },
		.paths = three,
		.n_paths = 3,
		.path2 = "to/here",
		.name = "user.attr",
		.value = "v\0w",
		.value_len = 3,
	};
}

static uint64_t log_event(struct world *w, const struct event *ev)
{
	struct txn *t = txn_begin(w->m);

	put_parent(t, w->m, META_ROOT_INO, 0);
	txn_event(t, ev);
	return commit_ok(t);
}

struct expect {
	const struct event *ev;
	const uint64_t *seqs;
	int at, n, stop_at;
};

static int got(void *arg, const struct event *ev)
{
	struct expect *e = arg;
	const struct event *want = &e->ev[e->at];

	CHECK(e->at < e->n);
	CHECK_EQ(ev->seq, e->seqs[e->at]);
	CHECK(ev->stamp_ns > INT64_C(1500000000000000000));
	CHECK_EQ(ev->kind, want->kind);
	CHECK_EQ(ev->version, want->version);
	CHECK(!memcmp(&ev->rec, &want->rec, sizeof(ev->rec)));
	CHECK_EQ(ev->n_paths, want->n_paths);
	for (size_t i = 0; i < ev->n_paths; i++)
		CHECK_STR(ev->paths[i], want->paths[i]);
	CHECK_EQ(!ev->path2, !want->path2);
	if (want->path2)
		CHECK_STR(ev->path2, want->path2);
	CHECK_EQ(!ev->name, !want->name);
	if (want->name)
		CHECK_STR(ev->name, want->name);
	CHECK_EQ(ev->value_len, want->value_len);
	if (want->value_len)
		CHECK(!memcmp(ev->value, want->value, want->value_len));
	return ++e->at == e->stop_at ? 9 : 0;
}

static void comes_back(struct world *w)
{
	struct event ev[4] = { full(w, EVENT_SEAL), full(w, EVENT_RENAME),
			       full(w, EVENT_UNLINK), full(w, EVENT_SYMLINK) };
	uint64_t seqs[4], before = meta_nvme_seq(w->m);
	struct expect e = { .ev = ev, .seqs = seqs, .n = 4 };
	const char *one[] = { "path" };
	char *big = malloc(65536);

	CHECK(big);
	memset(big, 'x', 65536);
	ev[1].paths = one;
	ev[1].n_paths = 1;
	ev[1].name = NULL;
	ev[2].paths = NULL;
	ev[2].n_paths = 0;
	ev[2].path2 = ev[2].name = NULL;
	ev[2].value = NULL;
	ev[2].value_len = 0;
	ev[3].value = big;
	ev[3].value_len = 65536;
	for (int i = 0; i < 4; i++)
		seqs[i] = log_event(w, &ev[i]);
	CHECK_EQ(meta_events(w->m, before, got, &e), 0);
	CHECK_EQ(e.at, 0); /* above D nothing is replayed */
	CHECK_EQ(meta_advance(w->m, seqs[1], NULL, 0, NULL, 0), 0);
	CHECK_EQ(meta_events(w->m, before, got, &e), 0);
	CHECK_EQ(e.at, 2);
	advance_all(w->m);
	CHECK_EQ(meta_events(w->m, seqs[1], got, &e), 0);
	CHECK_EQ(e.at, 4);
	e.at = 0;
	e.stop_at = 3;
	CHECK_EQ(meta_events(w->m, before, got, &e), 9);
	CHECK_EQ(e.at, 3);

	/* over a power cut */
	world_power_cut(w);
	e.at = e.stop_at = 0;
	CHECK_EQ(meta_events(w->m, before, got, &e), 0);
	CHECK_EQ(e.at, 4);

	/* R passes two */
	CHECK_EQ(meta_set_remote_seq(w->m, seqs[1], true), 0);
	CHECK_EQ(meta_remote_seq(w->m), seqs[1]);
	e.at = 2;
	CHECK_EQ(meta_events(w->m, before, got, &e), 0);
	CHECK_EQ(e.at, 4);
	CHECK_EQ(meta_set_remote_seq(w->m, seqs[0], true), -EINVAL);
	CHECK_EQ(meta_set_remote_seq(w->m, meta_nvme_seq(w->m) + 1, true),
		 -EINVAL);
	world_restart(w);
	CHECK_EQ(meta_remote_seq(w->m), seqs[1]);
	e.at = 2;
	CHECK_EQ(meta_events(w->m, before, got, &e), 0);
	CHECK_EQ(e.at, 4);
	CHECK(!w->opened.events_lost);
	free(big);
}

static int none(void *arg, const struct event *ev)
{
	(void)arg;
	(void)ev;
	CHECK(false);
	return 0;
}

/* A while without a remote: the publisher is told that events are missing. */
static void gap(struct world *w)
{
	struct event ev = full(w, EVENT_SEAL);

	CHECK_EQ(meta_set_remote_seq(w->m, meta_nvme_seq(w->m), true), 0);
	w->config.keep_events = false;
	world_restart(w);
	CHECK(!w->opened.events_lost);
	CHECK(!meta_keeps_events(w->m));
	log_event(w, &ev);
	CHECK_EQ(meta_remote_seq(w->m), meta_nvme_seq(w->m));
	CHECK(meta_nvme_seq(w->m) < meta_accepted_seq(w->m));

	/* logged without, advanced with: still a gap */
	w->config.keep_events = true;
	world_restart(w);
	advance_all(w->m);
	CHECK_EQ(meta_events(w->m, 0, none, NULL), 0);
	world_restart(w);
	CHECK(w->opened.events_lost);
	CHECK(meta_remote_seq(w->m) < meta_nvme_seq(w->m));
	CHECK_EQ(meta_set_remote_seq(w->m, meta_nvme_seq(w->m), true), 0);
	world_restart(w);
	CHECK(!w->opened.events_lost);
}

static int seen(void *arg, const char *name, const void *value, size_t len)
{
	char *text = arg;
	size_t at = strlen(text);

	(void)value;
	snprintf(text + at, 100 - at, "%s=%zu ", name, len);
	return 0;
}

/* A seal carries the xattrs of its inode; a torn one is refused. */
static void xattrs(struct world *w)
{
	struct txn *t = txn_begin(w->m);
	struct event ev = full(w, EVENT_SEAL);
	char text[100] = "";
	void *value;

	txn_put_xattr(t, META_ROOT_INO, "user.a", "1\0002", 3);
	txn_put_xattr(t, META_ROOT_INO, "user.empty", "", 0);
	(void)commit_ok(t);
	CHECK_EQ(event_xattrs_encode(meta_accepted(w->m), META_ROOT_INO, &value,
				     &ev.value_len),
		 0);
	ev.value = value;
	CHECK_EQ(event_xattrs(&ev, seen, text), 0);
	CHECK_STR(text, "user.a=3 user.empty=0 ");
	for (size_t len = ev.value_len; len-- > 1;) {
		int err;

		ev.value_len = len;
		err = event_xattrs(&ev, seen, (char[100]){ "" });
		CHECK(err == -EUCLEAN || !err);
		CHECK(err == -EUCLEAN || len == 1 || len == 1 + 11 + 4 + 3);
	}
	ev.value_len = 0;
	CHECK_EQ(event_xattrs(&ev, seen, text), -ENODATA);
	free(value);
}

int main(void)
{
	struct world w;

	world_init(&w);
	comes_back(&w);
	xattrs(&w);
	gap(&w);
	world_close(&w);
	return 0;
}
