/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What libckpt tells the mount, and asks of it. All of it is advice or a
 * question: nothing here can change what is in a file, or make a create fail.
 */
#include "fs/capture.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fs/control_serve.h"
#include "fs/hidden.h"
#include "fs/options.h"
#include "providers/mount_ioctl.h"

#define N_EXPECTED 64
#define FORGET_NS INT64_C(10000000000)
#define WAIT_MS 100

/* ---- announced sizes --------------------------------------------------- */

struct announced {
	uint64_t dir, len;
	uid_t uid;     /* whoever said so must be the one who creates it */
	int64_t at_ns; /* 0: the place is free */
	char name[META_NAME_MAX + 1];
};

struct expected {
	struct mutex lock;
	_Atomic unsigned n;                /* places in use */
	struct announced list[N_EXPECTED]; /* guarded by lock */
};

int expected_new(struct expected **out)
{
	struct expected *x = calloc(1, sizeof(*x));

	if (!x)
		return -ENOMEM;
	mutex_init(&x->lock);
	*out = x;
	return 0;
}

void expected_free(struct expected *x)
{
	if (!x)
		return;
	mutex_fini(&x->lock);
	free(x);
}

/* The place of that name, else a free one, else the oldest. */
static struct announced *place_locked(struct expected *x, uint64_t dir,
				      const char *name, uid_t uid, bool *same)
{
	struct announced *best = &x->list[0];

	for (unsigned i = 0; i < N_EXPECTED; i++) {
		struct announced *a = &x->list[i];

		*same = a->at_ns && a->dir == dir && a->uid == uid &&
			!strcmp(a->name, name);
		if (*same)
			return a;
		if (a->at_ns < best->at_ns)
			best = a;
	}
	return best;
}

static void expected_add(struct expected *x, uint64_t dir, const char *name,
			 uid_t uid, uint64_t len)
{
	struct announced *a;
	bool same;

	mutex_lock(&x->lock);
	a = place_locked(x, dir, name, uid, &same);
	if (!a->at_ns)
		x->n++;
	a->dir = dir;
	a->uid = uid;
	a->len = len;
	a->at_ns = fs_now_ns();
	snprintf(a->name, sizeof(a->name), "%s", name);
	mutex_unlock(&x->lock);
}

uint64_t expected_take(struct expected *x, uint64_t dir, const char *name,
		       uid_t uid)
{
	struct announced *a;
	uint64_t len = 0;
	bool same;

	if (!x->n) /* the rule: nobody announces anything */
		return 0;
	mutex_lock(&x->lock);
	a = place_locked(x, dir, name, uid, &same);
	if (same) {
		if (fs_now_ns() - a->at_ns < FORGET_NS)
			len = a->len;
		a->at_ns = 0;
		x->n--;
	}
	mutex_unlock(&x->lock);
	return len;
}

/* ---- the three requests ------------------------------------------------ */

static void do_expect(fuse_req_t req, uint64_t dir, const void *in)
{
	struct fs *fs = fs_of(req);
	struct ckpt_expect x;

	memcpy(&x, in, sizeof(x));
	x.name[sizeof(x.name) - 1] = 0;
	if (x.version != CKPT_IOC_VERSION) {
		reply_result(req, -ENOTTY); /* as an older mount would */
		return;
	}
	expected_add(fs->expected, dir, x.name, fuse_req_ctx(req)->uid, x.len);
	x.flags = (engine_passes_through(fs->engine) ? CKPT_MOUNT_PASSTHROUGH
						     : 0) |
		  (fs->options->remote ? CKPT_MOUNT_REMOTE : 0);
	fuse_reply_ioctl(req, 0, &x, sizeof(x));
}

static void do_filled(fuse_req_t req, uint64_t ino, uint64_t fh, const void *in)
{
	struct ckpt_filled f;

	if (!file_is_writable(fh)) {
		reply_result(req, -EBADF);
		return;
	}

	memcpy(&f, in, sizeof(f));
	file_filled(fs_of(req)->engine, ino, f.off, f.len);
	fuse_reply_ioctl(req, 0, NULL, 0);
}

struct question {
	fuse_req_t req;
	struct fs *fs;
	struct ckpt_reached msg;
};

/* What is waited for, or why it is not. */
static int ask(struct question *q)
{
	struct ckpt_reached *m = &q->msg;
	uint32_t own;
	int err;

	memcpy(&own, meta_uuid(q->fs->meta), sizeof(own));
	m->reached = 0;
	if (m->level < 1 || m->level > 3 || !m->ino)
		return -EINVAL;
	if (m->level == 3 && !q->fs->options->remote)
		return -ENODEV;
	if (!m->seq) {
		err = engine_seal_tree(q->fs->engine, m->ino, &m->seq);
		if (err)
			return err;
		m->lineage = engine_lineage(q->fs->engine);
		m->mount = own;
	}
	if (m->mount != own ||
	    engine_has_lost(q->fs->engine, m->lineage, m->seq))
		return -ESTALE;
	return 0;
}

static void answer(struct question *q, int err)
{
	q->msg.err = err;
	fuse_reply_ioctl(q->req, 0, &q->msg, sizeof(q->msg));
	free(q);
}

static void wait_done(void *arg, int err)
{
	struct question *q = arg;

	q->msg.reached = !err;
	answer(q, err == -ETIMEDOUT ? 0 : err);
}

static void *question_main(void *arg)
{
	static const enum level levels[] = { LEVEL_DRAM, LEVEL_NVME,
					     LEVEL_REMOTE };
	struct question *q = arg;
	struct fs *fs = q->fs;
	int err = ask(q);

	if (err)
		answer(q, err);
	else
		engine_when_reached(fs->engine, q->msg.seq,
				    levels[q->msg.level - 1], WAIT_MS,
				    wait_done, q);
	control_job_end(fs->control);
	return NULL;
}

static void do_reached(fuse_req_t req, const void *in)
{
	struct question *q = malloc(sizeof(*q));
	int err;

	if (!q) {
		reply_result(req, -ENOMEM);
		return;
	}
	q->req = req;
	q->fs = fs_of(req);
	memcpy(&q->msg, in, sizeof(q->msg));
	err = ino_is_hidden(q->msg.ino) ? -ENOENT : 0;
	if (!err)
		err = control_job_start(q->fs->control, question_main, q);
	if (err)
		answer(q, err);
}

bool capture_ioctl(fuse_req_t req, uint64_t ino, uint64_t fh, unsigned cmd,
		   const void *in, size_t in_len)
{
	bool on_dir = !fh;

	if (in_len != _IOC_SIZE(cmd))
		return false;
	if (cmd == CKPT_IOC_EXPECT && on_dir)
		do_expect(req, ino, in);
	else if (cmd == CKPT_IOC_FILLED && !on_dir)
		do_filled(req, ino, fh, in);
	else if (cmd == CKPT_IOC_REACHED && on_dir)
		do_reached(req, in);
	else
		return false;
	return true;
}
